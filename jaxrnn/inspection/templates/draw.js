// The drawing: cards, boxes and lines as SVG. Every text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const canvas = document.getElementById("canvas");
const scene = canvas.querySelector("#scene");
const placed = new Map();  // by element, where it is in the drawing: x, y, width, height
const shapes = new Map();  // by element, its group in the drawing

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const FAMILIES = {
  recurrent: "LSTM GRU RNN Scan Loop LinearAttention CausalConvWithState DynamicQuantizeLSTM",
  weights: "Conv ConvTranspose MatMul Gemm Einsum ConvInteger MatMulInteger QLinearConv QLinearMatMul Attention",
  control: "If SequenceMap SequenceInsert SequenceAt SequenceEmpty SequenceConstruct ConcatFromSequence",
  shaping: "Reshape Transpose Squeeze Unsqueeze Flatten Slice Concat Split Gather Pad Expand Tile Identity Cast Shape " +
    "Size Range ConstantOfShape GatherND ScatterND ScatterElements GatherElements Where DepthToSpace SpaceToDepth",
};
const familyOf = new Map(Object.entries(FAMILIES).flatMap(([name, all]) => all.split(" ").map((each) => [each, name])));

function middle(text, most = 34) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most / 2).join("")}…${letters.slice(-most / 2 + 1).join("")}`;
}

const grouped = (number) => number.toLocaleString("en");

function inBytes(size) {
  if (size < 1024) return `${size} B`;
  return size < 1024 ** 2 ? `${(size / 1024).toFixed(size < 10240 ? 1 : 0)} KiB` : `${(size / 1024 ** 2).toFixed(1)} MiB`;
}

const shapeText = (shape) => shape === null ? "[…]" : `[${shape.join(", ")}]`;

function typeText(value) {
  return `${values[value].dtype ?? "?"}${shapeText(shapeOf(value))}`;
}

function plural(count, what) {
  return `${grouped(count)} ${what}${count === 1 ? "" : "s"}`;
}

const titleOf = (key) => {
  const { kind, name, node } = elements.get(key);
  if (kind === "holder") return `${nodes[node].operator}  ${middle(name)}`;
  return middle(name, 48);
};

// What a folded element shows: its lines of text, its marks and its colour.
function cardOf(key) {
  const { kind, name, node, value } = elements.get(key);
  const marks = [];
  if (kind === "input" || kind === "output") {
    const lines = [{ text: middle(name || kind), bold: true }, { text: middle(typeText(value), 44), size: 11, muted: true }];
    const state = returns.some(({ from, to, kind: of }) => of === "state" && (from === key || to === key));
    return { lines, marks, pill: true, colour: state ? "state" : kind, time: timeOf(value) };
  }
  if (kind !== "head" && keptIn(key).length) marks.push("state");
  if (kind !== "head" && (refusedIn(key) || problemIn(key))) marks.push("refused");
  if (canOpen(key)) marks.push("open");
  const lines = [], parameters = kind === "head" ? [] : parametersOf(key);
  const size = parameters.reduce((sum, each) => sum + (bytesOf.get(each) ?? 0), 0);
  if (kind === "section" || kind === "branch") {
    const used = new Set(within(key).map((each) => nodes[each].operator).filter((each) => familyOf.get(each) === "recurrent"));
    lines.push({ text: middle(name, 40), bold: true });
    lines.push({ text: [plural(within(key).length, "node"), ...used, ...(size ? [inBytes(size)] : [])].join(", "), size: 11, muted: true });
  } else {
    const [first] = nodes[node].outputs;
    const late = first !== undefined && timeOf(first)?.kind === "late" ? `, delay ${timeOf(first).streamed.delay}` : "";
    const after = first !== undefined && kind !== "head" ? middle(shapeText(shapeOf(first)), 40) + late : "";
    lines.push({ text: nodes[node].operator, bold: true, after });
  }
  if (size && kind !== "section" && kind !== "branch") lines.push({ text: inBytes(size), size: 11, muted: true });
  const colour = kind === "section" || kind === "branch" ? kind : familyOf.get(nodes[node].operator) ?? "other";
  const time = node !== undefined && kind !== "branch" ? nodes[node].outputs.map(timeOf).find(Boolean) ?? null : timeWithin(key);
  return { lines, marks, pill: false, colour, time };
}

function timeWithin(key) {  // of a section, what is latest in it
  const found = within(key).flatMap((node) => nodes[node].outputs.map(timeOf)).filter(Boolean);
  const late = (time) => time.streamed?.delay ?? 0;
  return found.reduce((best, each) => best === null || late(each) > late(best) ? each : best, null);
}

const timeClass = (time) => time === null ? "" : `time-${time.kind}`;

// A later value has a stronger colour.
function strength(time) {
  return time?.kind === "late" ? (0.35 + 0.65 * time.streamed.delay / largestDelay).toFixed(2) : null;
}

const MARKS = { open: "+", state: "⟲", refused: "✕" };

function card(key, { x, y, width, height }) {
  const { lines, marks, pill, colour, time } = cardOf(key);
  const group = svg("g", { class: `card ${colour}${pill ? " pill" : ""}`, "data-key": key, transform: `translate(${x},${y})` });
  group.append(svg("rect", { class: "body", width, height, rx: pill ? height / 2 : 5 }));
  if (time && !pill) {
    const style = strength(time) ? `--strength:${strength(time)}` : null;
    group.append(svg("path", { class: `stripe ${timeClass(time)}`, style, d: `M5 .5h-.5a4 4 0 0 0-4 4v${height - 9}a4 4 0 0 0 4 4h.5z` }));
  }
  lines.forEach(({ text, bold, size = FONT, muted, after }, place) => {
    const y = (pill ? 3 : 5) + LINE * place + 12, anchor = pill ? { x: width / 2, "text-anchor": "middle" } : { x: PAD + 3 };
    const made = svg("text", { ...anchor, y, "font-size": size, class: `${bold ? "bold" : ""}${muted ? " muted" : ""}` });
    made.append(...(muted ? inTime(text) : [text]));
    group.append(made);
    if (after) {
      const x = PAD + 3 + widthOf(text, bold, size) + GAP;
      group.append(svg("text", { x, y, "font-size": 11, class: "muted" }, ...inTime(after)));
    }
  });
  marks.forEach((mark, place) => {
    const at = width - 12 - 20 * (marks.length - 1 - place);
    const sign = svg("g", { class: `mark ${mark}`, transform: `translate(${at},12.5)` });
    sign.append(svg("circle", { r: 8 }), svg("text", { "text-anchor": "middle", y: 4 }, MARKS[mark]));
    group.append(sign);
  });
  return group;
}

function inTime(text) {  // the symbol of time stands out in shapes
  const symbol = inPulses?.symbol;
  if (!symbol || !text.includes(symbol)) return [text];
  return text.split(/([^\p{L}\p{N}_.]+)/u).map((part) => part === symbol ? svg("tspan", { class: "symbol" }, part) : part);
}

function curve(points) {  // through the middles between points, as soft as they are apart
  if (points.length < 3) return `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`, mid = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let path = `M${at(points[0])}L${at(mid(points[0], points[1]))}`;
  for (let place = 1; place < points.length - 1; place++) path += `Q${at(points[place])} ${at(mid(points[place], points[place + 1]))}`;
  return `${path}L${at(points.at(-1))}`;
}

// The ends of a piece for one value: at the port of an open box, or at the border of the box that the piece is in.
function endsOfPiece({ from, to, points }, arranged, value, x, y) {
  const inside = { x: x + arranged.left, y: y + arranged.top };
  const path = points.map((point) => ({ x: point.x + inside.x, y: point.y + inside.y }));
  for (const [side, key, last] of [["out", from, false], ["in", to, true]]) {
    const box = arranged.boxes.get(key), at = arranged.inside.get(key);
    const port = box?.ports.get(`${side}:${value}`);
    if (at && port) {
      const border = inside.y + at.y + (last ? -at.height : at.height) / 2;
      path[last ? path.length - 1 : 0] = { x: inside.x + at.x - at.width / 2 + box.left + port.x, y: border };
    } else if (!at) {
      const border = { x: inside.x + arranged.ports.get(key).x, y: last ? y + arranged.height : y };
      last ? path.push(border) : path.unshift(border);
    }
  }
  return path;
}

function linesOf(piece, arranged, x, y) {
  const paths = new Map();  // values that go the same way are one line
  for (const value of piece.values) {
    const d = curve(endsOfPiece(piece, arranged, value, x, y));
    paths.set(d, [...(paths.get(d) ?? []), value]);
  }
  const arrow = arranged.inside.has(piece.to) && !arranged.boxes.has(piece.to) ? "url(#arrow)" : null;
  return [...paths].map(([d, carried]) => {
    const numbers = carried.filter((value) => value !== null), times = numbers.map(timeOf).filter(Boolean);
    const time = times.find(({ kind }) => kind === "late") ?? times[0] ?? null;
    const style = strength(time) ? `--strength:${strength(time)}` : null;
    const name = `line ${timeClass(time)}${numbers.length ? "" : " made"}`;
    const group = svg("g", { class: name, style, "data-values": numbers.join(" ") });
    group.append(svg("path", { class: "wide", d }), svg("path", { class: "thin", d, "marker-end": arrow }));
    return group;
  });
}

function barOf(box, width) {
  const bar = svg("g", { class: "bar" });
  bar.append(svg("rect", { class: "title", width, height: TITLE, rx: 7 }));
  bar.append(svg("text", { x: 28, y: 16, "font-size": FONT, class: "bold" }, titleOf(box)));
  const marks = [["open", "−", 14]];
  if (elements.get(box).kind === "holder" && keptIn(box).length) marks.push(["state", MARKS.state, width - 14]);
  for (const [mark, sign, x] of marks) {
    const made = svg("g", { class: `mark ${mark}`, transform: `translate(${x},12)` });
    made.append(svg("circle", { r: 8 }), svg("text", { "text-anchor": "middle", y: 4 }, sign));
    bar.append(made);
  }
  return bar;
}

function drawBox(arranged, x, y, layer) {
  const { box, width, height } = arranged;
  const lines = svg("g", { class: "lines" }), cards = svg("g", { class: "cards" });
  if (box === null) {
    layer.append(lines, cards);
  } else {
    const { kind, node } = elements.get(box), colour = kind === "holder" ? familyOf.get(nodes[node].operator) ?? "other" : "section";
    const at = { class: `box ${kind} ${colour}`, "data-key": box, transform: `translate(${x},${y})` };
    const ground = svg("g", at), head = svg("g", at);
    ground.append(svg("rect", { class: "body", width, height, rx: 7 }));
    head.append(barOf(box, width));  // above the lines, so that its name can be read and clicked
    layer.append(ground, lines, head, cards);
    shapes.set(box, ground);
    placed.set(box, { x, y, width, height });
  }
  for (const route of arranged.routes) if (route.points.length) lines.append(...linesOf(route, arranged, x, y));
  for (const [key, at] of arranged.inside) {
    const left = x + arranged.left + at.x - at.width / 2, top = y + arranged.top + at.y - at.height / 2;
    if (arranged.boxes.has(key)) {
      drawBox(arranged.boxes.get(key), left, top, cards);
      continue;
    }
    const made = card(key, { x: left, y: top, width: at.width, height: at.height });
    cards.append(made);
    shapes.set(key, made);
    placed.set(key, { x: left, y: top, width: at.width, height: at.height });
  }
}

// From below an output to above an input, past all that lies between, on the side that is nearer.
function around(start, end, others, taken) {
  const a = { x: start.x + start.width / 2, y: start.y + start.height }, b = { x: end.x + end.width / 2, y: end.y };
  const shift = 2 * (taken.length % 4), low = a.y + 8 + shift, high = b.y - 8 - shift;
  const [top, bottom] = [Math.min(low, high), Math.max(low, high)];
  const between = others.filter(({ y, height }) => y < bottom && y + height > top);
  const beside = taken.filter((each) => each.top < bottom && each.bottom > top);
  const lane = (side) => 12 + LANE * beside.filter((each) => each.side === side).length;
  const left = Math.min(a.x, b.x, ...between.map(({ x }) => x)) - lane("left");
  const right = Math.max(a.x, b.x, ...between.map(({ x, width }) => x + width)) + lane("right");
  const side = a.x + b.x - 2 * left < 2 * right - a.x - b.x ? "left" : "right";
  taken.push({ side, top, bottom });
  const edge = side === "left" ? left : right, out = side === "left" ? -1 : 1, up = low > high ? -1 : 1;
  const turn = Math.min(9, Math.abs(low - high) / 2);
  return `M${a.x} ${a.y}V${low - 5}Q${a.x} ${low} ${a.x + out * 5} ${low}H${edge - out * turn}Q${edge} ${low} ${edge} ${low + up * turn}` +
    `V${high - up * turn}Q${edge} ${high} ${edge - out * turn} ${high}H${b.x + out * 5}Q${b.x} ${high} ${b.x} ${high + 5}V${b.y - 1}`;
}

// Arrows from outputs back to inputs, each on a lane of its own: of the state, and of what a body carries.
function drawReturns(layer) {
  const lanes = new Map();
  for (const [number, { from, to, kind, state, node }] of returns.entries()) {
    const start = placed.get(from), end = placed.get(to), box = elements.get(from).parent;
    if (!start || !end) continue;
    if (!lanes.has(box)) lanes.set(box, []);
    const d = around(start, end, childrenOf(box).map((key) => placed.get(key)).filter(Boolean), lanes.get(box));
    const group = svg("g", { class: `return ${kind}`, "data-return": number, "data-state": state ?? null, "data-node": node ?? null });
    group.append(svg("path", { class: "wide", d }), svg("path", { class: "thin", d, "marker-end": `url(#arrow-${kind})` }));
    layer.append(group);
  }
}

let extent = { x: 0, y: 0, width: 1, height: 1 };

function draw() {
  placed.clear();
  shapes.clear();
  const layer = svg("g");
  const arranged = arrange(null, pieces());
  drawBox(arranged, 0, 0, layer);
  drawReturns(layer);
  scene.replaceChildren(layer);
  const { x, y, width, height } = scene.getBBox();
  extent = { x, y, width, height };
}
