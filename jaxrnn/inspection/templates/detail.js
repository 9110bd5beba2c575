// The facts about one element, in the panel.

const detail = document.getElementById("detail");

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function jump(key, label) {
  // a button that shows an element
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
  const about = html(
    "div",
    { class: "value" },
    html(
      "code",
      {},
      `${dtype ?? "?"}`,
      ...inTime(shapeText(shapeOf(value)), (text) => html("span", { class: "symbol" }, text)),
    ),
  );
  if (parameter !== null) about.append(parameterRows(parameter));
  else if (content !== null) about.append(html("p", { class: "note" }, `= ${content}`));
  const time = timeText(value);
  if (time.length) about.append(html("p", { class: `note ${timeClass(timeOf(value))}` }, time.join("; ")));
  about.append(...ways);
  return [name, about];
}

const note = (text) => html("p", { class: "note" }, text);
const shareText = (size) => `${((100 * size) / facts.parameter_bytes).toFixed(1)} %`;

function parameterRows(name) {
  const { nbytes, size } = facts.parameters.find((each) => each.name === name);
  const box = html("div", { class: "parameter" }, html("p", {}, name));
  box.append(note(`${grouped(size)} elements, ${inBytes(nbytes)}, ${shareText(nbytes)} of all`));
  const spread = facts.graph.statistics[name];
  if (spread) {
    const said = [`mean ${short(spread.mean)}`, `deviation ${short(spread.deviation)}`];
    said.push(`from ${short(spread.smallest)} to ${short(spread.largest)}`);
    if (spread.zeros) said.push(`${(100 * spread.zeros).toFixed(1)} % zero`);
    if (spread.not_finite) said.push(`${grouped(spread.not_finite)} not finite`);
    box.append(note(said.join(", ")));
  }
  return box;
}

function stateRows(number) {
  const { name, kind, dtype, shape, reason } = facts.state[number];
  return html(
    "div",
    { class: "parameter" },
    html("p", {}, name),
    html("p", { class: "note" }, `${kind}, ${dtype}${shapeText(shape)}: ${reason}`),
  );
}

function aboutValue(key) {
  const { kind, name, value, graph } = elements.get(key);
  const pairs = [
    valueRows(value, "value", []),
    ["from", makers.get(value)?.[0] === key ? "outside" : makerOf(value)],
    ["to", ...readersOf(value)],
  ];
  const back = returns.find(({ from, to }) => from === key || to === key);
  if (back?.kind === "state") pairs.push(["state", stateRows(back.state)]);
  if (back?.kind === "carry")
    pairs.push(["carry", `${elements.get(back.from).name} → ${elements.get(back.to).name}`]);
  return [html("h2", {}, name), note(`${kind} of ${graphs[graph].name || "the file"}`), rows(pairs)];
}

function aboutSection(key) {
  const counts = new Map();
  for (const { operator } of within(key).map((node) => nodes[node]))
    counts.set(operator, (counts.get(operator) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  return [
    html("h2", {}, elements.get(key).name),
    sizeNote(key),
    rows(sorted.map(([name, count]) => [name, grouped(count)])),
  ];
}

function aboutNode(key) {
  const { node } = elements.get(key);
  const { name, operator, domain, version, inputs, outputs, attributes, problem } = nodes[node];
  const parts = [html("h2", {}, operator), html("p", { class: "name" }, name), sizeNote(key)];
  parts.push(note([domain || "ai.onnx", version].filter((each) => each !== null).join(" ")));
  for (const wrong of [problem, inPulses?.refused === node ? streamProblem() : null]) {
    if (wrong !== null) parts.push(html("p", { class: "problem" }, wrong));
  }
  const titled = (title, pairs) => (pairs.length ? parts.push(html("h3", {}, title), rows(pairs)) : 0);
  if (kept.has(node)) parts.push(html("h3", {}, "State"), ...kept.get(node).map(stateRows));
  const held = inPulses?.kept[node] ?? [];
  titled(
    "State in pulses",
    held.map(({ kind, shape, nbytes }) => [kind, `${shapeText(shape)}, ${inBytes(nbytes)}`]),
  );
  const taken = inputs
    .map(([slot, value], place) => [slot || `input ${place + 1}`, value])
    .filter(([, value]) => value !== null);
  const ways = (value) => (values[value].kind === "value" ? [makerOf(value)] : []);
  titled(
    "Inputs",
    taken.map(([slot, value]) => valueRows(value, slot, ways(value))),
  );
  const given = outputs.filter((value) => values[value].name);
  titled(
    "Outputs",
    given.map((value) => valueRows(value, middle(values[value].name, 24), readersOf(value))),
  );
  titled(
    "Attributes",
    Object.entries(attributes).map(([name, text]) => [name, html("code", {}, text)]),
  );
  return parts;
}

function sizeNote(key) {
  const size = parametersOf(key).reduce((sum, each) => sum + (bytesOf.get(each) ?? 0), 0);
  return size ? html("p", {}, `Parameters: ${inBytes(size)}, ${shareText(size)} of all`) : null;
}

function describe(key) {
  const { kind, value } = elements.get(key);
  const about = value !== undefined ? aboutValue : kind === "section" || kind === "branch" ? aboutSection : aboutNode;
  const parts = about(key).filter((part) => part !== null);
  if (canOpen(key)) {
    const turn = html("button", { type: "button", class: "turn" }, opened.has(key) ? "Fold" : "Unfold");
    turn.addEventListener("click", () => toggle(key));
    parts.push(turn);
  }
  detail.replaceChildren(...parts);
  detail.hidden = false;
  document.querySelector("aside").scrollTop = 0;
}
