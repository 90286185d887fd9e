// The charts of “Train in your browser”: fixed size, one colour per line, described as text by `chart_text.js`, loaded before.
const WIDTH = 400, HEIGHT = 220, LEFT = 46, BOTTOM = 30, TOP = 10, RIGHT = 12;
const MOST_POINTS = 150; // per line: more would exceed its pixels
const LOSSES = [0.01, 10], EPOCH_S = [0.001, 100]; // ranges of logarithmic axes
const inside = ([low, high], value) => Math.min(high, Math.max(low, value));
const share = ([low, high], value) => Math.log(inside([low, high], value) / low) / Math.log(high / low);
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const inSeconds = (value) => (value < 1 ? `${+(1000 * value).toPrecision(2)} ms` : `${+value.toPrecision(2)} s`);
const nice = (value) => [1, 2, 5, 10].map((digit) => digit * 10 ** Math.floor(Math.log10(value))).find((end) => end >= value);
const x = (part) => LEFT + part * (WIDTH - LEFT - RIGHT);
const y = (part) => HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP);

// By kind: a line's points, the end of the x axis, and the scale and format of the y axis.
const accuracies = {
  up: (value) => value, ticks: [0, 0.25, 0.5, 0.75, 1], written: percent, tick: (value) => `${100 * value} %`,
  measure: "accuracy", upwards: "accuracy, 0 to 100 %", dots: true,
};
const KINDS = {
  loss: {
    points: ({ losses }) => losses, end: (lines) => Math.max(1, ...lines.map(({ steps }) => steps)), unit: "step",
    up: (value) => share(LOSSES, value), ticks: [0.01, 0.1, 1, 10], written: (value) => String(+value.toPrecision(3)), tick: String,
    measure: "loss", upwards: "loss, 0.01 to 10, logarithmic",
  },
  accuracy: {
    ...accuracies, unit: "epoch", points: ({ epochs }) => epochs.map(({ epoch, accuracy }) => [epoch, accuracy]),
    end: (_, { epochs }) => epochs,
  },
  spent: {
    ...accuracies, unit: "seconds",
    points: ({ epochs }) => epochs.map(({ accuracy, spent_s }) => [spent_s, accuracy]),
    end: (lines) => nice(Math.max(0.1, ...lines.flatMap(({ epochs }) => epochs.map(({ spent_s }) => spent_s)))),
  },
};

function drawn(drawing, lines, settings) {
  const kind = drawing.dataset.kind;
  kind === "epoch_s" ? epochSeconds(drawing, lines) : curves(drawing, KINDS[kind], lines, settings);
}

function curves(drawing, kind, lines, settings) {
  const end = kind.end(lines, settings);
  const grid = kind.ticks.map((tick) => {
    const level = y(kind.up(tick));
    return `<path class="grid" d="M${LEFT} ${level}H${WIDTH - RIGHT}"/>`
      + `<text x="${LEFT - 6}" y="${level + 4}" text-anchor="end">${kind.tick(tick)}</text>`;
  });
  const paths = lines.map((line) => {
    const points = thinned(kind.points(line)).map(([at, value]) => [x(Math.min(1, at / end)).toFixed(1), y(kind.up(value)).toFixed(1)]);
    const dots = kind.dots ? points.map(([left, top]) => `<circle cx="${left}" cy="${top}" r="3" fill="${line.color}"/>`) : [];
    return `<path class="line" stroke="${line.color}" d="${points.map((at, index) => `${index ? "L" : "M"}${at.join(" ")}`).join("")}"/>`
      + dots.join("");
  });
  const last = `${kind.unit} ${end.toLocaleString("en")}`;
  drawing.innerHTML = `${grid.join("")}${paths.join("")}<text x="${LEFT}" y="${HEIGHT - 8}">0</text>`
    + `<text x="${WIDTH - RIGHT}" y="${HEIGHT - 8}" text-anchor="end">${last}</text>`;
  const axes = `Across: ${kind.unit}, 0 to ${end.toLocaleString("en")}. Up: ${kind.upwards}.`;
  const told = lines.map((line) => [line.label, kind.points(line).map(([, value]) => value)]);
  tellDrawing(drawing, captionOf(drawing), toldLines(axes, kind.measure, told, kind.written));
}

// Averages equal groups of points, so that a line stays readable with any number of steps.
function thinned(points) {
  const width = Math.ceil(points.length / MOST_POINTS);
  if (width <= 1) return points;
  return Array.from({ length: Math.ceil(points.length / width) }, (_, group) => {
    const some = points.slice(group * width, (group + 1) * width);
    return [0, 1].map((which) => some.reduce((sum, point) => sum + point[which], 0) / some.length);
  });
}

function epochSeconds(drawing, lines) {
  const rows = lines.map((line) => [line, medianEpochS(line)]);
  const height = (HEIGHT - BOTTOM - TOP) / Math.max(1, lines.length);
  const ticks = [0.001, 0.01, 0.1, 1, 10, 100].map((tick) => {
    const left = x(share(EPOCH_S, tick));
    const anchor = tick === EPOCH_S[1] ? "end" : "middle";
    return `<path class="grid" d="M${left} ${TOP}V${HEIGHT - BOTTOM}"/>`
      + `<text x="${left}" y="${HEIGHT - 8}" text-anchor="${anchor}">${inSeconds(tick)}</text>`;
  });
  const dots = rows.map(([line, took_s], row) => {
    const top = TOP + (row + 0.5) * height;
    const words = `<text x="${LEFT + 4}" y="${top - 8}">${line.label}${took_s ? `: ${inSeconds(took_s)}` : ""}</text>`;
    return took_s ? `${words}<circle cx="${x(share(EPOCH_S, took_s))}" cy="${top + 4}" r="5" fill="${line.color}"/>` : words;
  });
  drawing.innerHTML = ticks.join("") + dots.join("");
  const axes = "Across: seconds per epoch, logarithmic.";
  const told = rows.map(([line, took_s]) => [line.label, took_s ? [took_s] : []]);
  tellDrawing(drawing, captionOf(drawing), toldLines(axes, "seconds", told, inSeconds));
}

// Excludes the first epoch, which warms up; 0 without further epochs.
function medianEpochS({ epochs }) {
  const took = epochs.slice(1).map(({ train_s }) => train_s).sort((one, other) => one - other);
  return took.length ? (took[(took.length - 1) >> 1] + took[took.length >> 1]) / 2 : 0;
}

const captionOf = (drawing) => drawing.parentNode.querySelector("figcaption").textContent;
