// Selection, folding and unfolding, and the rows of the panel that show elements.

let selected = null;

function select(key) {
  selected = key;
  scene.querySelectorAll(".selected").forEach((each) => each.classList.remove("selected"));
  if (key === null) {
    detail.hidden = true;
    return;
  }
  shapes.get(key)?.classList.add("selected");
  describe(key);
}

// Unfold the boxes around an element, and centre the element.
function reveal(key) {
  const hidden = pathTo(key).filter((box) => !opened.has(box));
  hidden.forEach((box) => opened.add(box));
  if (hidden.length) draw();
  const there = placed.has(key) ? key : shown(key);
  if (placed.has(there)) centre(there);
  select(key);
  const found = shapes.get(there);
  found?.classList.remove("found");
  void canvas.clientWidth; // so that the flash begins anew
  found?.classList.add("found");
}

// Fold or unfold with a fixed upper left corner, unless the unfolded box would leave the window.
function toggle(key) {
  const before = placed.get(key);
  opened.has(key) ? opened.delete(key) : opened.add(key);
  draw();
  const after = placed.get(key);
  view.x += (before.x - after.x) * view.scale;
  view.y += (before.y - after.y) * view.scale;
  opened.has(key) && !inSight(after) ? lookInto(after) : show();
  select(key);
}

for (const row of document.querySelectorAll("[data-state-row]")) {
  row.addEventListener("click", () => {
    const number = Number(row.dataset.stateRow),
      place = facts.graph.state[number];
    if (place.input !== null) {
      reveal(`i0.${graphs[0].inputs.indexOf(place.input)}`);
      scene.querySelector(`.return[data-state="${number}"]`)?.classList.add("lit");
    } else if (place.nodes.length) {
      reveal(elementOf(place.nodes[0]));
    }
  });
}
for (const row of document.querySelectorAll("[data-parameter]")) {
  row.addEventListener("click", () => {
    const name = row.dataset.parameter;
    const reader = nodes.findIndex(({ inputs }) =>
      inputs.some(([, value]) => value !== null && values[value].parameter === name),
    );
    if (reader >= 0) reveal(elementOf(reader));
  });
}
for (const row of document.querySelectorAll("[data-node]")) {
  row.addEventListener("click", () => reveal(elementOf(Number(row.dataset.node))));
}
