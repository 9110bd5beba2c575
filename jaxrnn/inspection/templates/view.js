// The window onto the drawing: pan, zoom, fit, and what is under the mouse.

let view = { x: 0, y: 0, scale: 1 };
const tip = document.getElementById("tip");
const LEAST = 0.02, MOST = 4;

function show() {
  scene.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.scale})`);
  canvas.classList.toggle("far", view.scale < 0.3);
}

function fit(area = extent, most = 1.2) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = Math.min(most, (width - 40) / area.width, (height - 40) / area.height);
  view.scale = Math.max(LEAST, scale);
  view.x = (width - area.width * view.scale) / 2 - area.x * view.scale;
  view.y = (height - area.height * view.scale) / 2 - area.y * view.scale;
  show();
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(MOST, Math.max(LEAST, view.scale * factor)), by = scale / view.scale;
  view = { x: x - (x - view.x) * by, y: y - (y - view.y) * by, scale };
  show();
}

function centre(key) {
  const { x, y, width, height } = placed.get(key), { clientWidth, clientHeight } = canvas;
  view.scale = Math.max(view.scale, Math.min(0.9, clientWidth / width, clientHeight / height));
  view.x = clientWidth / 2 - (x + width / 2) * view.scale;
  view.y = clientHeight / 2 - (y + Math.min(height, clientHeight / view.scale) / 2) * view.scale;
  show();
}

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  if (event.ctrlKey || event.deltaMode || Math.abs(event.deltaX) < Math.abs(event.deltaY)) {
    const step = event.deltaMode ? event.deltaY * 16 : event.deltaY;
    zoom(Math.exp(-step * (event.ctrlKey ? 0.01 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
  } else {
    view.x -= event.deltaX;
    show();
  }
}, { passive: false });

const fingers = new Map();
let moved = 0;

canvas.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  moved = 0;
});
window.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const [first, second] = [...fingers.values()];
  if (fingers.size === 2) {
    const other = before === first ? second : first, box = canvas.getBoundingClientRect();
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    zoom(apart(event) / Math.max(1, apart(before)), (event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top);
  } else {
    view.x += event.clientX - before.clientX;
    view.y += event.clientY - before.clientY;
    show();
  }
  moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
  canvas.classList.toggle("dragging", moved > 4);
  fingers.set(event.pointerId, event);
});
for (const name of ["pointerup", "pointercancel"]) {
  window.addEventListener(name, (event) => {
    fingers.delete(event.pointerId);
    canvas.classList.remove("dragging");
  });
}

// -- what is under the mouse

function timeText(value) {
  const time = timeOf(value);
  if (!time?.streamed) return time ? ["moves in time"] : [];
  const { delay, rate, first, last, varies } = time.streamed;
  if (time.kind === "end") return ["known when the stream ends"];
  const said = [delay === null ? "the same in every frame" : `delay ${plural(delay, "frame")}`];
  if (rate !== "1") said.push(`${rate} frames an input frame`);
  if (varies) said.push(first === null ? "history: all of the past" : `history: ${-Number(fraction(first))} input frames`);
  if (varies && fraction(last) > 0) said.push(`look-ahead: ${fraction(last)}`);
  return said;
}

function fraction(text) {
  const [over, under = "1"] = String(text).split("/");
  const number = Number(over) / Number(under);
  return Number.isInteger(number) ? number : Number(number.toFixed(2));
}

function tell(event, rows) {
  tip.replaceChildren(...rows.filter(Boolean).map((row, place) => {
    const made = document.createElement(place ? "p" : "strong");
    made.textContent = row;
    return made;
  }));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

function returnRows({ dataset }) {
  const { from, to, kind, state } = returns[Number(dataset.return)];
  if (kind === "carry") {
    return [`carried: ${elements.get(from).name} → ${elements.get(to).name}`, `${typeText(elements.get(to).value)}, from each step to the next`];
  }
  const variable = facts.state[state];
  return [`state: ${variable.output} → ${variable.input}`, `${variable.dtype}${shapeText(variable.shape)}`, variable.reason];
}

function cardRows(key) {
  const { kind, node, value, name } = elements.get(key);
  if (value !== undefined) return [name, `${kind} ${typeText(value)}`, ...timeText(value)];
  const state = keptIn(key).map((each) => `state ${facts.state[each].name}: ${facts.state[each].reason}`);
  if (kind === "section" || kind === "branch") return [name, plural(within(key).length, "node"), ...state.slice(0, 4)];
  const out = nodes[node].outputs.filter((each) => values[each].name);
  return [`${nodes[node].operator} ${name}`, ...out.map((each) => [typeText(each), ...timeText(each)].join("; ")), ...state,
    nodes[node].problem ?? "", inPulses?.refused === node ? streamProblem() : ""];
}

function streamProblem() {
  return facts.streams.find(({ symbol }) => symbol === inPulses?.symbol)?.problem ?? "";
}

function lightUp(numbers, ...keys) {  // the lines that carry values, and elements
  canvas.querySelectorAll(".lit").forEach((each) => each.classList.remove("lit"));
  const wanted = new Set(numbers.map(String));
  if (wanted.size) {
    for (const each of canvas.querySelectorAll(".line")) {
      if (each.dataset.values.split(" ").some((value) => wanted.has(value))) each.classList.add("lit");
    }
  }
  for (const key of keys) shapes.get(key)?.classList.add("lit");
  canvas.classList.toggle("lighting", wanted.size > 0);
}

function valuesAround(key) {
  const inside = new Set(within(key)), { value, node } = elements.get(key);
  if (value !== undefined) return [value];
  if (node !== undefined) inside.add(node);
  return [...inside].flatMap((each) => [...nodes[each].outputs, ...nodes[each].inputs.map(([, one]) => one)]).filter((one) => one !== null);
}

function endsOf(numbers) {
  const wanted = new Set(numbers);
  return links.filter(({ value }) => wanted.has(value)).flatMap(({ from, to }) => [shown(from), shown(to)]);
}

canvas.addEventListener("mousemove", (event) => {
  if (fingers.size && moved > 4) {
    tip.hidden = true;
    return;
  }
  const hit = event.target.closest(".line, .return, .card, .bar");
  if (!hit) {
    tip.hidden = true;
    if (canvas.classList.contains("lighting") || canvas.querySelector(".return.lit")) lightUp([]);
    return;
  }
  if (hit.classList.contains("return")) {
    tell(event, returnRows(hit));
    const { from, to } = returns[Number(hit.dataset.return)];
    lightUp([], from, to);
    hit.classList.add("lit");
  } else if (hit.classList.contains("line")) {
    const numbers = hit.dataset.values.split(" ").filter(Boolean).map(Number);
    const rows = numbers.slice(0, 6).map((value) => [values[value].name, typeText(value), ...timeText(value)].join("; "));
    tell(event, [...(rows.length ? rows : ["made by the loop itself"]), numbers.length > 6 ? `and ${numbers.length - 6} more` : ""]);
    lightUp(numbers, ...endsOf(numbers));
  } else {
    const { key } = hit.closest("[data-key]").dataset;
    tell(event, cardRows(key));
    lightUp(valuesAround(key), key);
  }
});
canvas.addEventListener("mouseleave", () => {
  tip.hidden = true;
  lightUp([]);
});
