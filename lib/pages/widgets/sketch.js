// An empty chart of the loss to sketch a curve into: with mouse or finger, or with the arrow keys on its points. The
// sketch is a level for each of the points, from 0, the top; nothing is sent before something was drawn.
const WIDTH = 320, HEIGHT = 150, LEFT = 34, BELOW = 22;

function render({ model, el }) {
  const [losses, points] = [model.get("losses"), model.get("points")];
  const x = (point) => LEFT + 8 + (point * (WIDTH - LEFT - 16)) / (points - 1);
  const y = (level) => 8 + (level * (HEIGHT - BELOW - 12)) / (losses.length - 1);
  const nearest = (value, of, count) => [...Array(count).keys()].reduce((a, b) => (Math.abs(of(b) - value) < Math.abs(of(a) - value) ? b : a));
  const tick = (loss) => nearest(Math.log(loss), (level) => Math.log(losses[level]), losses.length);
  const grid = [3, 1, 0.3, 0.1].map((loss) =>
    `<line x1="${LEFT}" x2="${WIDTH}" y1="${y(tick(loss))}" y2="${y(tick(loss))}"/><text x="${LEFT - 6}" y="${y(tick(loss)) + 4}" text-anchor="end">${loss}</text>`);
  el.innerHTML = `<div class="sketch"><svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="group">
    <g class="sketch-grid">${grid.join("")}<line x1="${LEFT}" x2="${LEFT}" y1="4" y2="${HEIGHT - BELOW}"/>
    <text x="${LEFT}" y="${HEIGHT - 5}">first step</text><text x="${WIDTH}" y="${HEIGHT - 5}" text-anchor="end">last step</text></g>
    <polyline fill="none"/></svg><button type="button">Clear the sketch</button></div>`;
  const svg = el.querySelector("svg"), line = el.querySelector("polyline"), clear = el.querySelector("button");
  svg.setAttribute("aria-label", model.get("label"));
  const handles = [...Array(points).keys()].map((point) => {
    const handle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [name, value] of Object.entries({ r: 5, cx: x(point), role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": losses.length - 1, "aria-label": `Loss at point ${point + 1} of ${points}` }))
      handle.setAttribute(name, value);
    handle.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -1, ArrowDown: 1, PageUp: -4, PageDown: 4 }[event.key];
      if (by) set(point, (now()[point] ?? start) + by, start);
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") handles[point + (event.key === "ArrowLeft" ? -1 : 1)]?.focus();
      else return;
      event.preventDefault();
      model.save_changes();
    });
    svg.append(handle);
    return handle;
  });
  const start = tick(2.3); // ten digits, guessed: the loss is the logarithm of 10
  const now = () => model.get("levels");
  function set(point, level, others = level) {
    const levels = now().length ? [...now()] : Array(points).fill(others);
    levels[point] = Math.max(0, Math.min(losses.length - 1, level));
    model.set("levels", levels);
  }
  function draw() {
    const levels = now();
    line.setAttribute("points", levels.map((level, point) => `${x(point)},${y(level)}`).join(" "));
    handles.forEach((handle, point) => {
      const level = levels[point] ?? start;
      handle.setAttribute("cy", y(level));
      handle.setAttribute("aria-valuenow", losses.length - 1 - level); // up is more
      handle.setAttribute("aria-valuetext", levels.length ? `loss ${losses[level]}` : "not drawn yet");
    });
    svg.classList.toggle("sketch-empty", !levels.length);
    clear.disabled = !levels.length;
  }
  let last = null; // the point that was drawn last, while the pointer is down
  function trace(event) {
    const box = svg.getBoundingClientRect();
    const [at, level] = [
      nearest(((event.clientX - box.left) * WIDTH) / box.width, x, points),
      nearest(((event.clientY - box.top) * HEIGHT) / box.height, y, losses.length),
    ];
    const from = last ?? { at, level };
    const steps = Math.max(1, Math.abs(at - from.at)); // none is left out by a quick hand
    for (let step = 0; step <= steps; step++)
      set(Math.round(from.at + ((at - from.at) * step) / steps), Math.round(from.level + ((level - from.level) * step) / steps));
    last = { at, level };
  }
  svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); trace(event); });
  svg.addEventListener("pointermove", (event) => { if (last) trace(event); });
  for (const end of ["pointerup", "pointercancel"])
    svg.addEventListener(end, () => { if (last) { last = null; model.save_changes(); } });
  clear.addEventListener("click", () => { model.set("levels", []); model.save_changes(); });
  model.on("change:levels", draw);
  draw();
  return () => model.off("change:levels", draw);
}
export default { render };
