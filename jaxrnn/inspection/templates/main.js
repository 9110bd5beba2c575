// Search, buttons, keys, and the first drawing.

const search = document.getElementById("search"),
  results = document.getElementById("results");
const texts = [...elements.values()]
  .filter(({ kind }) => kind !== "head")
  .map(({ key, kind, name, node }) => {
    const all = valuesOf(key).map((value) => {
      const { name, parameter } = values[value];
      return `${name} ${parameter ?? ""} ${shapeText(shapeOf(value)).replaceAll(" ", "")}`;
    });
    const operator = node !== undefined && kind !== "branch" ? nodes[node].operator : kind;
    return { key, name, operator, text: `${name} ${operator} ${all.join(" ")}`.toLowerCase() };
  });
let hits = [],
  current = -1;

function find() {
  const words = search.value.toLowerCase().replace(/,\s+/g, ",").split(/\s+/).filter(Boolean);
  // First elements with a matching name, then elements that read or compute a value with a matching name.
  const called = ({ name, operator }) => {
    return words.some((word) => operator.toLowerCase().startsWith(word) || name.toLowerCase().includes(word));
  };
  hits = words.length ? texts.filter(({ text }) => words.every((word) => text.includes(word))) : [];
  hits.sort((a, b) => called(b) - called(a));
  current = -1;
  results.replaceChildren(
    ...hits.slice(0, 40).map(({ key, name, operator }, place) => {
      const made = html("button", { type: "button", class: "jump" }, html("b", {}, operator), ` ${middle(name, 40)}`);
      made.addEventListener("click", () => goTo(place));
      made.dataset.hit = key;
      return html("li", {}, made);
    }),
  );
  results.hidden = !words.length;
  document.getElementById("hits").textContent = words.length ? plural(hits.length, "hit") : "";
}

function goTo(place) {
  if (!hits.length) return;
  current = (place + hits.length) % hits.length;
  [...results.children].forEach((each, at) => each.classList.toggle("current", at === current));
  reveal(hits[current].key);
}

search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") goTo(current + (event.shiftKey ? -1 : 1));
});

canvas.addEventListener("click", (event) => {
  if (moved > 4) return;
  const hit = event.target.closest(".card, .bar"),
    back = event.target.closest(".return.state");
  if (back) {
    select(returns[Number(back.dataset.return)].to);
    return;
  }
  if (!hit) {
    select(null);
    return;
  }
  const { key } = hit.closest("[data-key]").dataset;
  canOpen(key) && (hit.classList.contains("bar") || !opened.has(key)) ? toggle(key) : select(key);
});

const actions = {
  fit: () => fit(),
  closer: () => zoom(1.3),
  farther: () => zoom(1 / 1.3),
  all: () => {
    for (const key of elements.keys()) if (canOpen(key)) opened.add(key);
    draw();
    fit();
  },
  none: () => {
    opened.clear();
    draw();
    fit();
  },
  panel: () => {
    document.body.classList.toggle("wide");
    fit();
  },
};
for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", () => actions[button.dataset.action]());
}

window.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    search.value = "";
    search.blur();
    find();
    select(null);
  } else if (event.target === search) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    document.body.classList.remove("wide");
    search.focus();
    search.select();
  } else if (event.key === "f") {
    fit();
  } else if (event.key === "+" || event.key === "-") {
    zoom(event.key === "+" ? 1.3 : 1 / 1.3);
  }
});

let width = 0;
new ResizeObserver(() => {
  if (canvas.clientWidth !== width && selected === null) fit();
  width = canvas.clientWidth;
}).observe(canvas);

const began = performance.now();
openFirst(40);
draw();
fit();
document.body.dataset.drawn = String(Math.round(performance.now() - began));
