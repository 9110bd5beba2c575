// The view of the drawing: pan, zoom and fit.

let view = { x: 0, y: 0, scale: 1 };
const LEAST = 0.02,
  MOST = 4;

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
  const scale = Math.min(MOST, Math.max(LEAST, view.scale * factor)),
    by = scale / view.scale;
  view = { x: x - (x - view.x) * by, y: y - (y - view.y) * by, scale };
  show();
}

function centre(key) {
  const { x, y, width, height } = placed.get(key),
    { clientWidth, clientHeight } = canvas;
  view.scale = Math.max(view.scale, Math.min(0.9, clientWidth / width, clientHeight / height));
  view.x = clientWidth / 2 - (x + width / 2) * view.scale;
  view.y = clientHeight / 2 - (y + Math.min(height, clientHeight / view.scale) / 2) * view.scale;
  show();
}

function inSight({ x, y, width, height }) {
  const left = view.x + x * view.scale,
    top = view.y + y * view.scale;
  const right = left + width * view.scale,
    bottom = top + height * view.scale;
  return left >= 0 && top >= 0 && right <= canvas.clientWidth && bottom <= canvas.clientHeight;
}

// Fit an area into the window; if the text would be too small to read, show the top of the area.
function lookInto({ x, y, width, height }) {
  const { clientWidth, clientHeight } = canvas,
    room = 40;
  view.scale = Math.max(0.7, Math.min(1, (clientWidth - room) / width, (clientHeight - room) / height));
  view.x = clientWidth / 2 - (x + width / 2) * view.scale;
  view.y = Math.max(room / 2, (clientHeight - height * view.scale) / 2) - y * view.scale;
  show();
}

canvas.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.deltaMode || Math.abs(event.deltaX) < Math.abs(event.deltaY)) {
      const step = event.deltaMode ? event.deltaY * 16 : event.deltaY;
      zoom(Math.exp(-step * (event.ctrlKey ? 0.01 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
    } else {
      view.x -= event.deltaX;
      show();
    }
  },
  { passive: false },
);

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
    const other = before === first ? second : first,
      box = canvas.getBoundingClientRect();
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    zoom(
      apart(event) / Math.max(1, apart(before)),
      (event.clientX + other.clientX) / 2 - box.left,
      (event.clientY + other.clientY) / 2 - box.top,
    );
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
