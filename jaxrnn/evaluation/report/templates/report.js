"use strict";
const order = new Intl.Collator("en", { numeric: true });

function value(row, column, numeric) {
  const cell = row.cells[column], kept = cell.dataset.v;
  if (kept === "") return null;
  return numeric ? Number(kept) : cell.textContent;
}

function sort(table, column) {
  const headers = [...table.tHead.rows[0].cells], header = headers[column];
  const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const numeric = header.dataset.kind === "number", body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [value(row, column, numeric), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);  // nothing comes last, either way
    if (!numeric) return sign * order.compare(a, b);
    return a === b ? 0 : sign * (a < b ? -1 : 1);
  });
  const sorted = document.createDocumentFragment();
  for (const [, row] of rows) sorted.append(row);
  body.append(sorted);
  for (const other of headers) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) =>
    header.querySelector("button").addEventListener("click", () => sort(table, column)));
}

for (const input of document.querySelectorAll("input[data-table]")) {
  const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  const count = document.querySelector(`output[data-count="${input.dataset.table}"]`);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += !row.hidden;
    });
    count.textContent = `${shown} of ${rows.length}`;
  });
}

const players = [...document.querySelectorAll("audio")];
for (const player of players) {
  const pictures = player.parentElement.querySelector(".pictures"), head = pictures.querySelector(".head");
  const share = Number(player.dataset.share);  // of the pictures' width
  const follow = () => {
    head.style.left = `${100 * share * player.currentTime / player.duration}%`;
    head.style.visibility = "visible";
    if (!player.paused) requestAnimationFrame(follow);
  };
  player.addEventListener("play", () => {
    for (const other of players) if (other !== player) other.pause();
    follow();
  });
  player.addEventListener("seeked", follow);
  pictures.addEventListener("click", (event) => {
    const box = pictures.getBoundingClientRect();
    player.currentTime = Math.min(player.duration, player.duration * (event.clientX - box.left) / box.width / share);
    player.play();
  });
}
