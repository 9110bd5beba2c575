// The element under the mouse: a tip with facts, and highlighted lines of its values.

const tip = document.getElementById("tip");

function tell(event, rows) {
  tip.replaceChildren(
    ...rows.filter(Boolean).map((row, place) => {
      const made = document.createElement(place ? "p" : "strong");
      made.textContent = row;
      return made;
    }),
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

function returnRows({ dataset }) {
  const { from, to, kind, state } = returns[Number(dataset.return)];
  if (kind === "carry") {
    return [
      `carried: ${elements.get(from).name} → ${elements.get(to).name}`,
      `${typeText(elements.get(to).value)}, from step to step`,
    ];
  }
  const variable = facts.state[state];
  return [
    `state: ${variable.output} → ${variable.input}`,
    `${variable.dtype}${shapeText(variable.shape)}`,
    variable.reason,
  ];
}

function cardRows(key) {
  const { kind, node, value, name } = elements.get(key);
  if (value !== undefined) return [name, `${kind} ${typeText(value)}`, ...timeText(value)];
  const state = keptIn(key).map((each) => `state ${facts.state[each].name}: ${facts.state[each].reason}`);
  if (kind === "section" || kind === "branch")
    return [name, plural(within(key).length, "node"), ...state.slice(0, 4)];
  const out = nodes[node].outputs.filter((each) => values[each].name);
  return [
    `${nodes[node].operator} ${name}`,
    ...out.map((each) => [typeText(each), ...timeText(each)].join("; ")),
    ...state,
    nodes[node].problem ?? "",
    inPulses?.refused === node ? streamProblem() : "",
  ];
}

function streamProblem() {
  return facts.streams.find(({ symbol }) => symbol === inPulses?.symbol)?.problem ?? "";
}

function lightUp(numbers, ...keys) {
  // elements and the lines of values
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
  return [...new Set([key, ...within(key).map(elementOf)].flatMap(valuesOf))];
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
    const rows = numbers
      .slice(0, 6)
      .map((value) => [values[value].name, typeText(value), ...timeText(value)].join("; "));
    tell(event, [
      ...(rows.length ? rows : ["computed by the loop"]),
      numbers.length > 6 ? `and ${numbers.length - 6} more` : "",
    ]);
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
