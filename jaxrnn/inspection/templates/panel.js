// The panel beside the drawing: what is selected, states, parameters, problems.

const detail = document.getElementById("detail");
let selected = null;

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function jump(key, label) {  // a button that leads to an element
  const made = html("button", { type: "button", class: "jump", title: label }, middle(label, 44));
  made.addEventListener("click", () => reveal(key));
  return made;
}

function rows(pairs) {
  const list = html("dl");
  for (const [name, ...about] of pairs) list.append(html("dt", {}, name), html("dd", {}, ...about));
  return list;
}

function makerOf(value) {
  const [key] = makers.get(value) ?? [];
  return key === undefined ? null : jump(key, values[value].name || key);
}

function readersOf(value) {
  const found = links.filter((each) => each.value === value).map(({ to }) => to);
  return [...new Set(found)].map((key) => jump(key, elements.get(key).name || key));
}

function valueRows(value, name, ways) {
  const { parameter, content, dtype } = values[value];
  const about = html("div", { class: "value" }, html("code", {}, `${dtype ?? "?"}`, ...inTimeText(shapeText(shapeOf(value)))));
  if (parameter !== null) about.append(parameterRows(parameter));
  else if (content !== null) about.append(html("p", { class: "note" }, `= ${content}`));
  const time = timeText(value);
  if (time.length) about.append(html("p", { class: `note ${timeClass(timeOf(value))}` }, time.join("; ")));
  about.append(...ways);
  return [name, about];
}

function inTimeText(text) {
  const symbol = inPulses?.symbol;
  if (!symbol) return [text];
  return text.split(/([^\p{L}\p{N}_.]+)/u).map((part) => part === symbol ? html("span", { class: "symbol" }, part) : part);
}

const short = (number) => number === null ? "NaN" : Number(number.toPrecision(3)).toString();

function parameterRows(name) {
  const { nbytes, size } = facts.parameters.find((each) => each.name === name), spread = facts.graph.statistics[name];
  const share = facts.parameter_bytes ? `${(100 * nbytes / facts.parameter_bytes).toFixed(1)} %` : "";
  const box = html("div", { class: "parameter" }, html("p", {}, name), html("p", { class: "note" }, `${grouped(size)} elements, ${inBytes(nbytes)}, ${share} of all`));
  if (spread) {
    const said = `mean ${short(spread.mean)}, deviation ${short(spread.deviation)}, from ${short(spread.smallest)} to ${short(spread.largest)}`;
    const more = [spread.zeros ? `, ${(100 * spread.zeros).toFixed(1)} % zero` : "", spread.not_finite ? `, ${spread.not_finite} not finite` : ""];
    box.append(html("p", { class: "note" }, said + more.join("")));
  }
  return box;
}

function stateRows(number) {
  const { name, kind, dtype, shape, reason } = facts.state[number];
  return html("div", { class: "parameter" }, html("p", {}, name), html("p", { class: "note" }, `${kind}, ${dtype}${shapeText(shape)}: ${reason}`));
}

function describe(key) {
  const { kind, name, node, value } = elements.get(key);
  const parts = [html("h2", {}, kind === "section" || kind === "branch" ? name : value === undefined ? nodes[node].operator : name)];
  if (value !== undefined) {
    parts.push(html("p", { class: "note" }, `${kind} of ${graphs[elements.get(key).graph].name || "the file"}`));
    const back = returns.find(({ from, to }) => from === key || to === key);
    parts.push(rows([
      valueRows(value, "value", []), ["from", makers.get(value)?.[0] === key ? "outside" : makerOf(value)], ["to", ...readersOf(value)],
      ...(back ? [[back.kind, back.kind === "state" ? stateRows(back.state) : html("p", {}, `${elements.get(back.from).name} → ${elements.get(back.to).name}`)]] : []),
    ]));
  } else if (kind === "section" || kind === "branch") {
    const counts = new Map();
    for (const each of within(key)) counts.set(nodes[each].operator, (counts.get(nodes[each].operator) ?? 0) + 1);
    parts.push(rows([...counts].sort((a, b) => b[1] - a[1]).map(([operator, count]) => [operator, String(count)])));
  } else {
    const { domain, version, inputs, outputs, attributes, problem } = nodes[node];
    parts.push(html("p", { class: "name" }, name), html("p", { class: "note" }, `${domain || "ai.onnx"}${version === null ? "" : ` ${version}`}`));
    if (problem !== null) parts.push(html("p", { class: "problem" }, problem));
    if (inPulses?.refused === node) parts.push(html("p", { class: "problem" }, streamProblem()));
    if (kept.has(node)) parts.push(html("h3", {}, "State"), ...kept.get(node).map(stateRows));
    const held = inPulses?.kept[node] ?? [];
    if (held.length) parts.push(html("h3", {}, "State in pulses"), rows(held.map((each) => [each.kind, `${shapeText(each.shape)}, ${inBytes(each.nbytes)}`])));
    const taken = inputs.map(([slot, one], place) => one === null ? null : valueRows(one, slot || `input ${place + 1}`, values[one].kind === "value" ? [makerOf(one)] : []));
    if (taken.some(Boolean)) parts.push(html("h3", {}, "Inputs"), rows(taken.filter(Boolean)));
    const given = outputs.filter((one) => values[one].name);
    if (given.length) parts.push(html("h3", {}, "Outputs"), rows(given.map((one) => valueRows(one, middle(values[one].name, 24), readersOf(one)))));
    const named = Object.entries(attributes);
    if (named.length) parts.push(html("h3", {}, "Attributes"), rows(named.map(([one, text]) => [one, html("code", {}, text)])));
  }
  const size = parametersOf(key).reduce((sum, each) => sum + (bytesOf.get(each) ?? 0), 0);
  if (size && value === undefined) {
    const share = facts.parameter_bytes ? (100 * size / facts.parameter_bytes).toFixed(1) : "0";
    parts.splice(2, 0, html("p", {}, `Parameters: ${inBytes(size)}, ${share} % of all`));
  }
  if (canOpen(key)) {
    const turn = html("button", { type: "button", class: "turn" }, opened.has(key) ? "Fold" : "Unfold");
    turn.addEventListener("click", () => toggle(key));
    parts.push(turn);
  }
  detail.replaceChildren(...parts);
  detail.hidden = false;
  document.querySelector("aside").scrollTop = 0;
}

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

// Unfold whatever hides an element, and show it in the middle.
function reveal(key) {
  const hidden = pathTo(key).filter((box) => !opened.has(box));
  hidden.forEach((box) => opened.add(box));
  if (hidden.length) draw();
  const there = placed.has(key) ? key : shown(key);
  if (placed.has(there)) centre(there);
  select(key);
  const found = shapes.get(there);
  found?.classList.remove("found");
  void canvas.clientWidth;  // so that the flash begins anew
  found?.classList.add("found");
}

// Fold or unfold, with the upper left corner where it was, unless what unfolds would leave the window.
function toggle(key) {
  const before = placed.get(key);
  opened.has(key) ? opened.delete(key) : opened.add(key);
  draw();
  const after = placed.get(key);
  view.x += (before.x - after.x) * view.scale;
  view.y += (before.y - after.y) * view.scale;
  const { width, height } = canvas.getBoundingClientRect(), x = view.x + after.x * view.scale, y = view.y + after.y * view.scale;
  const inSight = x >= 0 && y >= 0 && x + after.width * view.scale <= width && y + after.height * view.scale <= height;
  opened.has(key) && !inSight ? fit({ x: after.x - 30, y: after.y - 30, width: after.width + 60, height: after.height + 60 }) : show();
  select(key);
}

for (const row of document.querySelectorAll("[data-state-row]")) {
  row.addEventListener("click", () => {
    const number = Number(row.dataset.stateRow), place = facts.graph.state[number];
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
    const reader = nodes.findIndex(({ inputs }) => inputs.some(([, value]) => value !== null && values[value].parameter === name));
    if (reader >= 0) reveal(elementOf(reader));
  });
}
for (const row of document.querySelectorAll("[data-node]")) {
  row.addEventListener("click", () => reveal(elementOf(Number(row.dataset.node))));
}
