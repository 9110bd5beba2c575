// Texts for values, sizes and times.

function middle(text, most = 34) {
  const letters = [...text];
  return letters.length <= most
    ? text
    : `${letters.slice(0, most / 2).join("")}…${letters.slice(-most / 2 + 1).join("")}`;
}

const grouped = (number) => number.toLocaleString("en");

function inBytes(size) {
  if (size < 1024) return `${size} B`;
  return size < 1024 ** 2
    ? `${(size / 1024).toFixed(size < 10240 ? 1 : 0)} KiB`
    : `${(size / 1024 ** 2).toFixed(1)} MiB`;
}

const shapeText = (shape) => (shape === null ? "[…]" : `[${shape.join(", ")}]`);

function typeText(value) {
  return `${values[value].dtype ?? "?"}${shapeText(shapeOf(value))}`;
}

function plural(count, what) {
  return `${grouped(count)} ${what}${count === 1 ? "" : "s"}`;
}

function timeText(value) {
  const time = timeOf(value);
  if (!time?.streamed) return time ? ["moves in time"] : [];
  const { delay, rate, first, last, varies } = time.streamed;
  if (time.kind === "end") return ["known when the stream ends"];
  const said = [delay === null ? "the same in every frame" : `delay ${plural(delay, "frame")}`];
  if (rate !== "1") said.push(`${rate} frames per input frame`);
  if (varies && first === null) said.push("history: all of the past");
  else if (varies && fraction(first) < 0) said.push(`history: ${plural(-fraction(first), "input frame")}`);
  if (varies && fraction(last) > 0) said.push(`look-ahead: ${plural(fraction(last), "input frame")}`);
  return said;
}

function fraction(text) {
  const [over, under = "1"] = String(text).split("/");
  const number = Number(over) / Number(under);
  return Number.isInteger(number) ? number : Number(number.toFixed(2));
}

const short = (number) => (number === null ? "NaN" : Number(number.toPrecision(3)).toString());

// A text in which the symbol of time is a separate element.
function inTime(text, emphasized) {
  const symbol = inPulses?.symbol;
  if (!symbol || !text.includes(symbol)) return [text];
  return text.split(BETWEEN_NAMES).map((part) => (part === symbol ? emphasized(part) : part));
}
