// The drawing: boxes, cards, and the lines between them.

const canvas = document.getElementById("canvas");
const scene = canvas.querySelector("#scene");
const placed = new Map(); // by element, where it is in the drawing: x, y, width, height
const shapes = new Map(); // by element, its group in the drawing

function curve(points) {
  // through the midpoints, smoother for larger distances
  if (points.length < 3) return `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`,
    mid = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let path = `M${at(points[0])}L${at(mid(points[0], points[1]))}`;
  for (let place = 1; place < points.length - 1; place++)
    path += `Q${at(points[place])} ${at(mid(points[place], points[place + 1]))}`;
  return `${path}L${at(points.at(-1))}`;
}

// The ends of a piece for one value: at the port of an open box, or at the border of the enclosing box.
function endsOfPiece({ from, to, points }, arranged, value, x, y) {
  const inside = { x: x + arranged.left, y: y + arranged.top };
  const path = points.map((point) => ({ x: point.x + inside.x, y: point.y + inside.y }));
  for (const [side, key, last] of [
    ["out", from, false],
    ["in", to, true],
  ]) {
    const box = arranged.boxes.get(key),
      at = arranged.inside.get(key);
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
  const paths = new Map(); // values that go the same way are one line
  for (const value of piece.values) {
    const d = curve(endsOfPiece(piece, arranged, value, x, y));
    paths.set(d, [...(paths.get(d) ?? []), value]);
  }
  const arrow = arranged.inside.has(piece.to) && !arranged.boxes.has(piece.to) ? "url(#arrow)" : null;
  return [...paths].map(([d, carried]) => {
    const numbers = carried.filter((value) => value !== null),
      times = numbers.map(timeOf).filter(Boolean);
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
  const lines = svg("g", { class: "lines" }),
    cards = svg("g", { class: "cards" });
  if (box === null) {
    layer.append(lines, cards);
  } else {
    const { kind, node } = elements.get(box),
      colour = kind === "holder" ? (familyOf.get(nodes[node].operator) ?? "other") : "section";
    const at = { class: `box ${kind} ${colour}`, "data-key": box, transform: `translate(${x},${y})` };
    const ground = svg("g", at),
      head = svg("g", at);
    ground.append(svg("rect", { class: "body", width, height, rx: 7 }));
    head.append(barOf(box, width)); // above the lines, so that its name can be read and clicked
    layer.append(ground, lines, head, cards);
    shapes.set(box, ground);
    placed.set(box, { x, y, width, height });
  }
  for (const route of arranged.routes) if (route.points.length) lines.append(...linesOf(route, arranged, x, y));
  for (const [key, at] of arranged.inside) {
    const left = x + arranged.left + at.x - at.width / 2,
      top = y + arranged.top + at.y - at.height / 2;
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

// From below an output to above an input, around the elements in between, on the nearer side.
function around(start, end, others, taken) {
  const a = { x: start.x + start.width / 2, y: start.y + start.height },
    b = { x: end.x + end.width / 2, y: end.y };
  const shift = 2 * (taken.length % 4),
    low = a.y + 8 + shift,
    high = b.y - 8 - shift;
  const [top, bottom] = [Math.min(low, high), Math.max(low, high)];
  const between = others.filter(({ y, height }) => y < bottom && y + height > top);
  const beside = taken.filter((each) => each.top < bottom && each.bottom > top);
  const lane = (side) => 12 + LANE * beside.filter((each) => each.side === side).length;
  const left = Math.min(a.x, b.x, ...between.map(({ x }) => x)) - lane("left");
  const right = Math.max(a.x, b.x, ...between.map(({ x, width }) => x + width)) + lane("right");
  const side = a.x + b.x - 2 * left < 2 * right - a.x - b.x ? "left" : "right";
  taken.push({ side, top, bottom });
  const edge = side === "left" ? left : right,
    out = side === "left" ? -1 : 1,
    up = low > high ? -1 : 1;
  const turn = Math.min(9, Math.abs(low - high) / 2);
  const down = `M${a.x} ${a.y}V${low - 5}Q${a.x} ${low} ${a.x + out * 5} ${low}`;
  const across = `H${edge - out * turn}Q${edge} ${low} ${edge} ${low + up * turn}`;
  const back = `V${high - up * turn}Q${edge} ${high} ${edge - out * turn} ${high}`;
  return `${down}${across}${back}H${b.x + out * 5}Q${b.x} ${high} ${b.x} ${high + 5}V${b.y - 1}`;
}

// Arrows from outputs back to inputs for state and carries, each on a separate lane.
function drawReturns(layer) {
  const lanes = new Map();
  for (const [number, { from, to, kind, state, node }] of returns.entries()) {
    const start = placed.get(from),
      end = placed.get(to),
      box = elements.get(from).parent;
    if (!start || !end) continue;
    if (!lanes.has(box)) lanes.set(box, []);
    const d = around(
      start,
      end,
      childrenOf(box)
        .map((key) => placed.get(key))
        .filter(Boolean),
      lanes.get(box),
    );
    const group = svg("g", {
      class: `return ${kind}`,
      "data-return": number,
      "data-state": state ?? null,
      "data-node": node ?? null,
    });
    group.append(
      svg("path", { class: "wide", d }),
      svg("path", { class: "thin", d, "marker-end": `url(#arrow-${kind})` }),
    );
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
