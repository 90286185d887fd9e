// The two charts of `webgpu.js`, which follows in the same script. Every frame redraws them; their text changes less often.
const colors = { gpu: "#3a72d8", software: "#8a8f98", cpu: "#d1623a" };
const HEIGHT = 240, LEFT = 46, BOTTOM = 34, TOP = 10, RIGHT = 20;

function begin(canvas) {
  const width = canvas.clientWidth, scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(HEIGHT * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, HEIGHT);
  const style = getComputedStyle(canvas);
  pen.font = `11px ${style.fontFamily}`;
  return { pen, width, ink: style.color };
}

function axes({ pen, width, ink }, x, y, xTicks, yTicks, title) {
  pen.fillStyle = pen.strokeStyle = ink;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const [value, text] of yTicks) {
    pen.globalAlpha = 0.12;
    pen.beginPath();
    pen.moveTo(LEFT, y(value));
    pen.lineTo(width - RIGHT, y(value));
    pen.stroke();
    pen.globalAlpha = 1;
    pen.fillText(text, LEFT - 6, y(value));
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const [value, text] of xTicks) pen.fillText(text, x(value), HEIGHT - BOTTOM + 4);
  pen.fillText(title, (LEFT + width - RIGHT) / 2, HEIGHT - 14);
}

function line({ pen }, places, color, dashed) {
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  pen.setLineDash(dashed ? [5, 3] : []);
  pen.beginPath();
  places.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
  pen.setLineDash([]);
}

const seconds = (exact) => {
  const s = +exact.toPrecision(2); // rounded before choosing the unit: 0.9996 ms is 1 ms
  return s < 1e-3 ? `${+(s * 1e6).toPrecision(2)} μs` : s < 1 ? `${+(s * 1e3).toPrecision(2)} ms` : `${s.toLocaleString("en")} s`;
};

// Lists the lines' names in a left corner that stays free, the lower or the upper one.
function names(frame, labels, shown, colorOf, corner) {
  const { pen, ink } = frame;
  const end = LEFT + 8;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  shown.forEach((name, index) => {
    const at = corner === "lower" ? HEIGHT - BOTTOM - 12 - 16 * index : TOP + 12 + 16 * index;
    pen.fillStyle = ink;
    pen.fillText(labels[name] ?? name, end + 28, at);
    line(frame, [[end, at], [end + 22, at]], colorOf(name), name === "gpu" && labels.software);
  });
}

// Losses of single batches are noisy, so the chart shows a running mean of about ten points.
function smoothed(points) {
  let mean = null;
  return points.filter(([, loss]) => Number.isFinite(loss)).map(([s, loss]) => [s, (mean = mean === null ? loss : 0.9 * mean + 0.1 * loss)]);
}

function drawRace(canvas, curves, labels, colorOf) {
  const frame = begin(canvas);
  const longest = Math.max(0.1, ...Object.values(curves).map(({ at_s }) => at_s));
  const most = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100].find((value) => value >= longest) ?? longest;
  const [low, high] = [0.01, 3];
  const x = (s) => LEFT + ((frame.width - LEFT - RIGHT) * s) / most;
  const y = (loss) => TOP + ((HEIGHT - TOP - BOTTOM) * Math.log(high / Math.min(high, Math.max(low, loss)))) / Math.log(high / low);
  const ticks = [0, most / 4, most / 2, (3 * most) / 4, most].map((value) => [value, String(+value.toPrecision(3))]);
  axes(frame, x, y, ticks, [0.01, 0.03, 0.1, 0.3, 1, 3].map((value) => [value, String(value)]), "seconds of training");
  const shown = Object.keys(curves);
  for (const name of shown) {
    const places = smoothed(curves[name].points).map(([s, loss]) => [x(s), y(loss)]);
    if (!places.length) continue;
    line(frame, places, colorOf(name), name === "gpu" && labels.software);
    const [px, py] = places.at(-1);
    frame.pen.fillStyle = colorOf(name);
    frame.pen.beginPath();
    frame.pen.arc(px, py, 3.5, 0, 7);
    frame.pen.fill();
  }
  names(frame, labels, shown, colorOf, "lower");
}

function tellRace(canvas, title, curves, labels) {
  const lines = Object.entries(curves).map(([name, { points }]) => [labels[name] ?? name, smoothed(points).map(([, loss]) => loss)]);
  const axes = "Across: seconds of training. Up: loss, 0.01 to 3, logarithmic.";
  const told = toldLines(axes, "loss", lines, (loss) => String(+loss.toPrecision(3)));
  const spent = Object.entries(curves).map(([name, { at_s }]) => `${labels[name] ?? name} ${seconds(at_s)}`);
  if (spent.length) told.text += ` Trained for: ${LISTED.format(spent)}.`;
  tellDrawing(canvas, title, told);
}

function tellSizes(canvas, title, points, labels, border) {
  const lines = Object.entries(points).map(([name, mine]) => [labels[name] ?? name, mine.map(({ s }) => s)]);
  const axes = "Across: n, of two n × n matrices, 1 to 4,096, logarithmic. Up: seconds per product, logarithmic.";
  const told = toldLines(axes, "seconds", lines, seconds);
  for (const [name, mine] of Object.entries(points)) {
    const first = mine.find(({ predicted }) => predicted);
    if (first) told.text += ` Predicted from n = ${first.n.toLocaleString("en")}: ${labels[name] ?? name}.`;
  }
  if (border) told.text += ` Dotted line at n = ${border.toLocaleString("en")}.`;
  tellDrawing(canvas, title, told);
}

function drawSizes(canvas, points, labels, colorOf, border) {
  const frame = begin(canvas);
  const all = Object.values(points).flat().map(({ s }) => s);
  const low = 10 ** Math.floor(Math.log10(Math.min(1e-6, ...all))), high = 10 ** Math.ceil(Math.log10(Math.max(0.1, ...all)));
  const x = (n) => LEFT + ((frame.width - LEFT - RIGHT) * Math.log2(n)) / 12;
  const y = (s) => TOP + ((HEIGHT - TOP - BOTTOM) * Math.log(high / s)) / Math.log(high / low);
  const decades = Array.from({ length: Math.round(Math.log10(high / low)) + 1 }, (_, k) => low * 10 ** k);
  axes(frame, x, y, [1, 4, 16, 64, 256, 1024, 4096].map((n) => [n, n.toLocaleString("en")]), decades.map((s) => [s, seconds(s)]), "n, of two n × n matrices");
  if (border) {
    frame.pen.setLineDash([2, 3]);
    frame.pen.strokeStyle = frame.ink;
    frame.pen.lineWidth = 1;
    frame.pen.beginPath();
    frame.pen.moveTo(x(border), TOP);
    frame.pen.lineTo(x(border), HEIGHT - BOTTOM);
    frame.pen.stroke();
    frame.pen.setLineDash([]);
  }
  for (const [name, mine] of Object.entries(points)) {
    const color = colorOf(name);
    line(frame, mine.filter(({ predicted }) => !predicted).map(({ n, s }) => [x(n), y(s)]), color, name === "gpu" && labels.software);
    for (const { n, s, predicted } of mine) {
      frame.pen.fillStyle = frame.pen.strokeStyle = color;
      frame.pen.lineWidth = 1.4;
      frame.pen.beginPath();
      frame.pen.arc(x(n), y(s), 3, 0, 7);
      predicted ? frame.pen.stroke() : frame.pen.fill();
    }
  }
  names(frame, labels, Object.keys(points), colorOf, "upper");
}
