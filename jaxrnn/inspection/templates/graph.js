// The file as a tree of elements with links, and the visible part of the tree if elements are folded.
//
// Keys of elements: "n3" is a node, "b3" a node with graphs (an open box with "n3" as its head), "g2"
// one of several graphs in such a box, "s4" a section, "i2.0" and "o2.0" an input and an output of graph 2.

const facts = JSON.parse(document.getElementById("facts").textContent);
const { nodes, values, graphs } = facts.graph;
const inPulses = facts.graph_stream;
const elements = new Map();
const links = []; // { from, to, value }; a value of null: what a loop makes, such as its count of trips
const returns = []; // arrows back: { from, to, kind, state }
const opened = new Set();

function element(key, kind, parent, more = {}) {
  elements.set(key, { key, kind, parent, children: [], ...more });
}

const bodies = nodes.map(() => []);
graphs.forEach((graph, number) => graph.node === null || bodies[graph.node].push(number));

function containerOf(graph) {
  const owner = graphs[graph].node;
  if (owner === null) return null;
  return bodies[owner].length > 1 ? `g${graph}` : `b${owner}`;
}

facts.sections.forEach((section, number) => {
  const parent = section.parent === null ? containerOf(section.graph) : `s${section.parent}`;
  element(`s${number}`, "section", parent, { name: section.name });
});
nodes.forEach((node, number) => {
  const section = facts.section_of_node[number];
  const home = section === null ? containerOf(node.graph) : `s${section}`;
  if (bodies[number].length) {
    element(`b${number}`, "holder", home, { node: number, name: node.name });
    element(`n${number}`, "head", `b${number}`, { node: number, name: node.name });
  } else {
    element(`n${number}`, "node", home, { node: number, name: node.name });
  }
});
graphs.forEach((graph, number) => {
  if (graph.node !== null && bodies[graph.node].length > 1) {
    element(`g${number}`, "branch", `b${graph.node}`, { name: graph.name, node: graph.node });
  }
  for (const [letter, kind] of [
    ["i", "input"],
    ["o", "output"],
  ]) {
    graph[`${kind}s`].forEach((value, place) => {
      element(`${letter}${number}.${place}`, kind, containerOf(number), {
        value,
        name: values[value].name,
        graph: number,
      });
    });
  }
});
for (const [key, { parent }] of elements) if (parent !== null) elements.get(parent).children.push(key);

// -- links

const makers = new Map(); // by value, the elements that it comes from
const add = (value, key) => makers.set(value, [...(makers.get(value) ?? []), key]);
nodes.forEach((node, number) =>
  node.outputs.forEach((value, place) => {
    const exits = bodies[number].flatMap((graph) =>
      graphs[graph].exits.filter(([, outer]) => outer === place).map(([inner]) => `o${graph}.${inner}`),
    );
    for (const key of exits.length ? exits : [`n${number}`]) add(value, key);
  }),
);
graphs.forEach((graph, number) => graph.inputs.forEach((value, place) => add(value, `i${number}.${place}`)));

const link = (value, to) => (makers.get(value) ?? []).forEach((from) => links.push({ from, to, value }));
nodes.forEach((node, number) =>
  node.inputs.forEach(([, value], place) => {
    if (value === null) return;
    const entries = bodies[number].flatMap((graph) =>
      graphs[graph].entries.filter(([outer]) => outer === place).map(([, inner]) => `i${graph}.${inner}`),
    );
    for (const key of entries.length ? entries : [`n${number}`]) link(value, key);
  }),
);
graphs.forEach((graph, number) => {
  graph.outputs.forEach((value, place) => link(value, `o${number}.${place}`));
  if (graph.node !== null) {
    const entered = new Set(graph.entries.map(([, inner]) => inner));
    graph.inputs.forEach((_, place) => {
      if (!entered.has(place)) links.push({ from: `n${graph.node}`, to: `i${number}.${place}`, value: null });
    });
    for (const [output, input] of graph.carries) {
      returns.push({ from: `o${number}.${output}`, to: `i${number}.${input}`, kind: "carry", node: graph.node });
    }
  }
});
function remove(key) {
  const { parent } = elements.get(key);
  elements.get(parent).children = elements.get(parent).children.filter((each) => each !== key);
  elements.delete(key);
}

// Unread outputs of a body, such as weights that a loop passes to the next iteration.
const read = new Set([...links, ...returns].map(({ from }) => from));
const idle = [...elements.values()].filter(
  ({ key, kind, parent }) => kind === "output" && parent !== null && !read.has(key),
);
for (const { key } of idle) remove(key);
for (let place = links.length - 1; place >= 0; place--) if (!elements.has(links[place].to)) links.splice(place, 1);

const linked = new Set(links.flatMap(({ from, to }) => [from, to]));
for (const [key, { kind }] of [...elements]) {
  if (kind === "head" && !linked.has(key)) remove(key); // the box itself says all that there is to say
}

// -- state

const kept = new Map(); // by node, the variables of the internal state
facts.state.forEach((variable, number) => {
  const place = facts.graph.state[number];
  if (variable.kind === "external" && place.input !== null && place.output !== null) {
    const from = `o0.${graphs[0].outputs.indexOf(place.output)}`,
      to = `i0.${graphs[0].inputs.indexOf(place.input)}`;
    returns.push({ from, to, kind: "state", state: number });
  } else {
    for (const node of place.nodes) kept.set(node, [...(kept.get(node) ?? []), number]);
  }
});

// -- what is visible

const roots = [...elements.values()].filter(({ parent }) => parent === null).map(({ key }) => key);
const childrenOf = (key) => (key === null ? roots : elements.get(key).children);
const canOpen = (key) => childrenOf(key).length > 0;

function pathTo(key) {
  // the enclosing boxes of an element, the outermost first
  const path = [];
  for (let at = elements.get(key).parent; at !== null; at = elements.get(at).parent) path.unshift(at);
  return path;
}

function shown(key) {
  // the element, or the folded element that contains it
  return pathTo(key).find((box) => !opened.has(box)) ?? key;
}

function within(key) {
  // the numbers of the nodes of an element
  const { node, kind, children } = elements.get(key);
  const own = node === undefined || kind === "branch" || kind === "head" ? [] : [node];
  return [...own, ...children.flatMap(within)];
}

function countOpen(key) {
  return childrenOf(key).reduce((sum, child) => sum + (opened.has(child) ? countOpen(child) : 1), 0);
}

function openFirst(most) {
  // box by box from outside, while the drawing remains readable
  for (let level = roots; level.length;) {
    const boxes = level.filter(canOpen);
    boxes.forEach((box) => opened.add(box));
    if (countOpen(null) > most) {
      boxes.forEach((box) => opened.delete(box));
      return;
    }
    level = boxes.flatMap(childrenOf);
  }
}

// -- facts about elements

const elementOf = (node) => (elements.has(`b${node}`) ? `b${node}` : `n${node}`);
const bytesOf = new Map(facts.parameters.map((each) => [each.name, each.nbytes]));

function parametersOf(key) {
  const names = within(key).flatMap((node) =>
    nodes[node].inputs.filter(([, value]) => value !== null).map(([, value]) => values[value].parameter),
  );
  return [...new Set(names.filter((name) => name !== null))];
}
const keptIn = (key) => within(key).flatMap((node) => kept.get(node) ?? []);
const refusedIn = (key) => inPulses !== null && inPulses.refused !== null && within(key).includes(inPulses.refused);
const problemIn = (key) => within(key).some((node) => nodes[node].problem !== null);

const outside = new Set([...graphs[0].inputs, ...nodes.flatMap(({ graph, outputs }) => (graph ? [] : outputs))]);

// The kind and the frames of a value along time; null without a time axis.
function timeOf(value) {
  if (value === null) return null;
  const streamed = inPulses?.values[value];
  if (streamed) {
    if (streamed.axis === null) return { kind: "end", streamed };
    return { kind: streamed.delay > 0 ? "late" : "now", streamed };
  }
  // Names of dimensions in bodies are less reliable: exporters copy them from the surrounding graph.
  const symbol = inPulses?.symbol,
    shape = outside.has(value) ? (values[value].shape ?? []) : [];
  return symbol && shape.some((size) => spells(size, symbol)) ? { kind: "now", streamed: null } : null;
}

const BETWEEN_NAMES = /([^\p{L}\p{N}_.]+)/u;

function spells(size, symbol) {
  return typeof size === "string" && size.split(BETWEEN_NAMES).includes(symbol);
}
const shapeOf = (value) => inPulses?.values[value]?.shape ?? values[value].shape;
const delays = Object.values(inPulses?.values ?? {}).map(({ delay }) => delay ?? 0);
const largestDelay = Math.max(0, ...delays);

function valuesOf(key) {
  // the outputs and inputs of a node, or the value of an input or output
  const { kind, node, value } = elements.get(key);
  if (value !== undefined) return [value];
  if (node === undefined || kind === "branch") return [];
  return [...nodes[node].outputs, ...nodes[node].inputs.map(([, each]) => each).filter((each) => each !== null)];
}
