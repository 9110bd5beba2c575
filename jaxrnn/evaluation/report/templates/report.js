const order = new Intl.Collator("en", { numeric: true });

function value(row, column, numeric) {
  const cell = row.cells[column], text = cell.textContent;
  if (text === "\u2013") return null;
  return numeric ? Number(cell.dataset.v) : text;
}

function sort(table, column) {
  const headers = [...table.tHead.rows[0].cells], header = headers[column];
  const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const numeric = header.classList.contains("n"), body = table.tBodies[0];
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

// A click on a file's point plays it, or leads to its row in the table.
function lead(file) {
  const article = document.querySelector(`article[data-file="${file}"]`);
  const target = article ?? document.querySelector(`th[data-file="${file}"]`)?.parentElement;
  if (!target) return;  // the table does not hold all
  target.hidden = false;
  target.scrollIntoView({ block: "center" });
  document.querySelector(".led")?.classList.remove("led");
  target.classList.add("led");
  (article?.querySelector("audio[aria-label^=output]") ?? article?.querySelector("audio"))?.play();
}

const tooltip = {
  disableDefaultStyle: true,
  formatTooltip: (content, sanitize) => Object.entries(content)
    .map(([name, text]) => `<div>${sanitize(name)} <b>${sanitize(text)}</b></div>`).join(""),
};
const columns = Object.entries(JSON.parse(document.getElementById("data").textContent));
const plots = document.querySelectorAll(".plot");
for (const plot of plots) {
  const spec = JSON.parse(plot.dataset.spec);
  const files = columns[0][1].map((_, file) => ({
    index: file, ...Object.fromEntries(columns.map(([name, values]) => [name, values[file]])),
  }));
  spec.datasets = { ...spec.datasets, files };
  // Expressions are interpreted: the page may make no code.
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip };
  const { view } = await vegaEmbed(plot, spec, options);
  view.addEventListener("click", (_, item) => lead(item?.datum?.index));
}
document.body.dataset.drawn = plots.length;
