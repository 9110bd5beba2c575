// Cards of folded elements, and titles of open elements. All text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const symbolOf = (text) => svg("tspan", { class: "symbol" }, text);

const FAMILIES = {
  recurrent: "LSTM GRU RNN Scan Loop LinearAttention CausalConvWithState DynamicQuantizeLSTM",
  weights: "Conv ConvTranspose MatMul Gemm Einsum ConvInteger MatMulInteger QLinearConv QLinearMatMul Attention",
  control: "If SequenceMap SequenceInsert SequenceAt SequenceEmpty SequenceConstruct ConcatFromSequence",
  shaping:
    "Reshape Transpose Squeeze Unsqueeze Flatten Slice Concat Split Gather Pad Expand Tile Identity Cast Shape " +
    "Size Range ConstantOfShape GatherND ScatterND ScatterElements GatherElements Where DepthToSpace SpaceToDepth",
};
const familyOf = new Map(
  Object.entries(FAMILIES).flatMap(([name, all]) => all.split(" ").map((each) => [each, name])),
);

const titleOf = (key) => {
  const { kind, name, node } = elements.get(key);
  if (kind === "holder") return `${nodes[node].operator}  ${middle(name)}`;
  return middle(name, 48);
};

// The content of a card: lines of text, marks and colour.
function cardOf(key) {
  const { kind, name, node, value } = elements.get(key);
  const marks = [];
  if (kind === "input" || kind === "output") {
    const lines = [
      { text: middle(name || kind), bold: true },
      { text: middle(typeText(value), 44), size: 11, muted: true },
    ];
    const state = returns.some(({ from, to, kind: of }) => of === "state" && (from === key || to === key));
    return { lines, marks, pill: true, colour: state ? "state" : kind, time: timeOf(value) };
  }
  if (kind !== "head" && keptIn(key).length) marks.push("state");
  if (kind !== "head" && (refusedIn(key) || problemIn(key))) marks.push("refused");
  if (canOpen(key)) marks.push("open");
  const lines = [],
    parameters = kind === "head" ? [] : parametersOf(key);
  const size = parameters.reduce((sum, each) => sum + (bytesOf.get(each) ?? 0), 0);
  if (kind === "section" || kind === "branch") {
    const used = new Set(
      within(key)
        .map((each) => nodes[each].operator)
        .filter((each) => familyOf.get(each) === "recurrent"),
    );
    lines.push({ text: middle(name, 40), bold: true });
    lines.push({
      text: [plural(within(key).length, "node"), ...used, ...(size ? [inBytes(size)] : [])].join(", "),
      size: 11,
      muted: true,
    });
  } else {
    const [first] = nodes[node].outputs;
    const late =
      first !== undefined && timeOf(first)?.kind === "late" ? `, delay ${timeOf(first).streamed.delay}` : "";
    const after = first !== undefined && kind !== "head" ? middle(shapeText(shapeOf(first)), 40) + late : "";
    lines.push({ text: nodes[node].operator, bold: true, after });
  }
  if (size && kind !== "section" && kind !== "branch") lines.push({ text: inBytes(size), size: 11, muted: true });
  const colour = kind === "section" || kind === "branch" ? kind : (familyOf.get(nodes[node].operator) ?? "other");
  const time =
    node !== undefined && kind !== "branch"
      ? (nodes[node].outputs.map(timeOf).find(Boolean) ?? null)
      : timeWithin(key);
  return { lines, marks, pill: false, colour, time };
}

function timeWithin(key) {
  // the latest value of a section
  const found = within(key)
    .flatMap((node) => nodes[node].outputs.map(timeOf))
    .filter(Boolean);
  const late = (time) => time.streamed?.delay ?? 0;
  return found.reduce((best, each) => (best === null || late(each) > late(best) ? each : best), null);
}

const timeClass = (time) => (time === null ? "" : `time-${time.kind}`);

// The colour is stronger for later values.
function strength(time) {
  return time?.kind === "late" ? (0.35 + (0.65 * time.streamed.delay) / largestDelay).toFixed(2) : null;
}

const MARKS = { open: "+", state: "⟲", refused: "✕" };

function card(key, { x, y, width, height }) {
  const { lines, marks, pill, colour, time } = cardOf(key);
  const group = svg("g", {
    class: `card ${colour}${pill ? " pill" : ""}`,
    "data-key": key,
    transform: `translate(${x},${y})`,
  });
  group.append(svg("rect", { class: "body", width, height, rx: pill ? height / 2 : 5 }));
  if (time && !pill) {
    const style = strength(time) ? `--strength:${strength(time)}` : null;
    group.append(
      svg("path", {
        class: `stripe ${timeClass(time)}`,
        style,
        d: `M5 .5h-.5a4 4 0 0 0-4 4v${height - 9}a4 4 0 0 0 4 4h.5z`,
      }),
    );
  }
  lines.forEach(({ text, bold, size = FONT, muted, after }, place) => {
    const y = (pill ? 3 : 5) + LINE * place + 12,
      anchor = pill ? { x: width / 2, "text-anchor": "middle" } : { x: PAD + 3 };
    const made = svg("text", {
      ...anchor,
      y,
      "font-size": size,
      class: `${bold ? "bold" : ""}${muted ? " muted" : ""}`,
    });
    made.append(...(muted ? inTime(text, symbolOf) : [text]));
    group.append(made);
    if (after) {
      const x = PAD + 3 + widthOf(text, bold, size) + GAP;
      group.append(svg("text", { x, y, "font-size": 11, class: "muted" }, ...inTime(after, symbolOf)));
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
