// Positions of the visible elements. Each open box is laid out separately, in layers, and is then an element of the box
// around it. A value crosses the border of a box at a port, so lines inside connect ports and elements.

const FONT = 12,
  LINE = 15,
  PAD = 8,
  GAP = 7,
  TITLE = 24,
  LANE = 10,
  MARGIN = 14;
const measure = document.createElement("canvas").getContext("2d");
const family = getComputedStyle(document.body).fontFamily;
const keptLayouts = new Map();

function widthOf(text, bold = false, size = FONT) {
  measure.font = `${bold ? 600 : 400} ${size}px ${family}`;
  return measure.measureText(text).width;
}

function sizeOf(card) {
  const widths = card.lines.map(
    ({ text, bold, size, after }) => widthOf(text, bold, size) + (after ? GAP + widthOf(after, false, 11) : 0),
  );
  return {
    width: Math.ceil(Math.max(44, ...widths) + 2 * PAD + 4 + (card.marks.length ? 4 + 20 * card.marks.length : 0)),
    height: card.lines.length * LINE + 2 * (card.pill ? 3 : 5),
  };
}

// The links between visible elements, cut into one piece per crossed box: by box, "from>to" to a piece.
function pieces() {
  const found = new Map([[null, new Map()]]);
  const piece = (box, from, to, value) => {
    if (!found.has(box)) found.set(box, new Map());
    const inside = found.get(box),
      key = `${from}>${to}`;
    if (!inside.has(key)) inside.set(key, { from, to, values: new Set() });
    inside.get(key).values.add(value);
  };
  for (const { from, to, value } of links) {
    const start = shown(from),
      end = shown(to);
    if (start === end) continue;
    const left = [...pathTo(start), start],
      right = [...pathTo(end), end];
    let common = 0;
    while (left[common] === right[common]) common++;
    if (common === left.length || common === right.length) continue; // from a box into itself
    const port = value ?? `${from}>`;
    for (let depth = left.length - 1; depth > common; depth--)
      piece(left[depth - 1], left[depth], `out:${port}`, value);
    piece(common ? left[common - 1] : null, left[common], right[common], value);
    for (let depth = common + 1; depth < right.length; depth++)
      piece(right[depth - 1], `in:${port}`, right[depth], value);
  }
  return found;
}

// Positions in a box relative to the upper left corner; inner boxes first.
function arrange(box, cut) {
  const inside = new Map(),
    boxes = new Map();
  for (const key of childrenOf(box)) {
    if (opened.has(key)) {
      boxes.set(key, arrange(key, cut));
      inside.set(key, boxes.get(key));
    } else {
      inside.set(key, { ...sizeOf(cardOf(key)) });
    }
  }
  const crossing = [...(cut.get(box)?.values() ?? [])];
  const name = JSON.stringify([
    [...inside].map(([key, { width, height }]) => [key, width, height]),
    crossing.map(({ from, to }) => [from, to]),
  ]);
  if (keptLayouts.get(box)?.name !== name) keptLayouts.set(box, { name, ...inLayers(inside, crossing) });
  const { places, routes, width, height } = keptLayouts.get(box);
  const lanes = returns.filter(({ from, to }) => inside.has(from) && inside.has(to) && box !== null).length;
  const side = MARGIN + (lanes ? LANE * (1 + Math.ceil(lanes / 2)) : 0);
  const left = box === null ? 0 : side,
    top = box === null ? 0 : TITLE + (lanes ? 20 : 8);
  const least = box === null ? 0 : widthOf(titleOf(box), true) + 60;
  return {
    box,
    inside: new Map([...inside.keys()].map((key) => [key, places.get(key)])),
    boxes,
    left,
    top,
    ports: new Map([...places].filter(([key]) => /^(in|out):/.test(key))),
    routes: crossing.map((piece, place) => ({ ...piece, points: routes[place] })),
    width: Math.max(width + 2 * left, least),
    height: height + top + (box === null ? 0 : lanes ? 20 : MARGIN),
  };
}

function inLayers(inside, crossing) {
  const size = ([v, { width, height }]) => ({ v, width, height });
  const ports = [...new Set(crossing.flatMap(({ from, to }) => [from, to]).filter((key) => !inside.has(key)))];
  const boxes = [...[...inside].map(size), ...ports.map((v) => ({ v, width: 6, height: 1 }))];
  const lines = crossing.map(({ from, to }) => ({
    v: from,
    w: to,
    minlen: 1,
    weight: 1,
    width: 0,
    height: 0,
    labeloffset: 10,
    labelpos: "r",
  }));
  const options = { nodesep: 22, edgesep: 10, ranksep: 20 };
  if (boxes.length > 1500) options.ranker = "longest-path";
  if (boxes.length) dagre.layout(boxes, lines, options, {});
  const edge = (side, extent) => boxes.map((each) => each[side] - each[extent] / 2);
  const far = (side, extent) => boxes.map((each) => each[side] + each[extent] / 2);
  const bends = lines.flatMap(({ points }) => points ?? []);
  const lowest = (list) => list.reduce((a, b) => Math.min(a, b), Infinity);
  const highest = (list) => list.reduce((a, b) => Math.max(a, b), -Infinity);
  const x = lowest([...edge("x", "width"), ...bends.map((point) => point.x)]),
    y = lowest(edge("y", "height"));
  const right = highest([...far("x", "width"), ...bends.map((point) => point.x)]),
    low = highest(far("y", "height"));
  return {
    places: new Map(boxes.map((each) => [each.v, { ...each, x: each.x - x, y: each.y - y }])),
    routes: lines.map(({ points }) => (points ?? []).map((point) => ({ x: point.x - x, y: point.y - y }))),
    width: boxes.length ? right - x : 0,
    height: boxes.length ? low - y : 0,
  };
}
