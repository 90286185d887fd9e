// A canvas for drawing a digit, and the network's ten probabilities for it, computed in the page at every stroke.
const SIDE = 280;

export function decode(network) {
  const bytes = Uint8Array.from(atob(network.values), (c) => c.charCodeAt(0));
  const all = new Float32Array(bytes.buffer);
  let at = 0;
  return network.shapes.map(([inputs, outputs]) => {
    const weights = all.subarray(at, (at += inputs * outputs)); // (inputs, outputs), row-major
    const biases = all.subarray(at, (at += outputs));
    return { inputs, outputs, weights, biases };
  });
}

export function probabilities(layers, pixels) {
  let x = pixels;
  layers.forEach(({ inputs, outputs, weights, biases }, index) => {
    const z = Float32Array.from(biases);
    for (let i = 0; i < inputs; i++) {
      const value = x[i];
      if (value === 0) continue; // most pixels are background
      for (let o = 0, at = i * outputs; o < outputs; o++, at++) z[o] += value * weights[at];
    }
    x = index + 1 < layers.length ? z.map((value) => Math.max(0, value)) : z;
  });
  const top = Math.max(...x);
  const powers = Array.from(x, (value) => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((value) => value / sum);
}

// Preprocesses as MNIST did: scales the digit to fit 20 × 20 pixels and centres its centre of mass in 28 × 28.
export function asMnist(canvas) {
  const source = canvas.getContext("2d", { willReadFrequently: true }).getImageData(0, 0, SIDE, SIDE).data;
  let [left, top, right, bottom] = [SIDE, SIDE, -1, -1];
  for (let y = 0; y < SIDE; y++)
    for (let x = 0; x < SIDE; x++)
      if (source[4 * (y * SIDE + x) + 3] > 20) {
        left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
      }
  if (right < 0) return null;
  const [width, height] = [right - left + 1, bottom - top + 1];
  const scale = 20 / Math.max(width, height);
  const small = document.createElement("canvas");
  small.width = small.height = 28;
  const context = small.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  const place = (dx, dy) => {
    context.clearRect(0, 0, 28, 28);
    const [x, y] = [14 - (width * scale) / 2 + dx, 14 - (height * scale) / 2 + dy];
    context.drawImage(canvas, left, top, width, height, x, y, width * scale, height * scale);
    const data = context.getImageData(0, 0, 28, 28).data;
    return Float32Array.from({ length: 784 }, (_, i) => data[4 * i + 3] / 255);
  };
  let [mass, mx, my] = [0, 0, 0];
  place(0, 0).forEach((value, i) => {
    mass += value; mx += value * (i % 28); my += value * Math.floor(i / 28);
  });
  return place(13.5 - mx / mass, 13.5 - my / mass);
}

function render({ model, el }) {
  el.innerHTML = `
    <div class="draw">
      <canvas width="${SIDE}" height="${SIDE}" role="img" aria-label="Canvas for drawing a digit"></canvas>
      <div class="draw-side">
        <div class="draw-bars" role="list" aria-label="Probability of each digit"></div>
        <div class="draw-buttons"><button data-do="clear">Clear</button><button data-do="sample">Show a test digit</button></div>
        <p class="draw-says" aria-live="polite"></p>
      </div>
    </div>`;
  const canvas = el.querySelector("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const bars = el.querySelector(".draw-bars");
  const says = el.querySelector(".draw-says");
  bars.innerHTML = Array.from({ length: 10 }, (_, digit) =>
    `<div role="listitem"><span>${digit}</span><i><b></b></i><em></em></div>`).join("");
  let layers = null;
  let sample = null; // the test digit shown, if any
  let sampleAt = 0;

  function show(pixels) {
    const p = pixels && layers ? probabilities(layers, pixels) : null;
    const best = p ? p.indexOf(Math.max(...p)) : -1;
    [...bars.children].forEach((row, digit) => {
      row.querySelector("b").style.width = p ? `${100 * p[digit]}%` : "0";
      row.querySelector("em").textContent = p ? `${(100 * p[digit]).toFixed(1)} %` : "";
      row.classList.toggle("draw-best", digit === best);
    });
    says.textContent = p
      ? `${best}, with ${(100 * p[best]).toFixed(1)} %`
      : model.get("says") || "Draw a digit with the mouse or a finger.";
    el.dataset.probabilities = p ? JSON.stringify(p) : "";
  }
  function look() {
    sample = null;
    show(asMnist(canvas));
  }
  let from = null;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * SIDE) / box.width, ((event.clientY - box.top) * SIDE) / box.height];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    from = point(event);
    stroke(from);
  });
  canvas.addEventListener("pointermove", (event) => { if (from) stroke(point(event)); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { from = null; });
  function stroke(to) {
    Object.assign(context, { lineWidth: 22, lineCap: "round", lineJoin: "round", strokeStyle: "#3a72d8" });
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(to[0] + 0.01, to[1]);
    context.stroke();
    from = to;
    look();
  }
  el.querySelector("[data-do=clear]").addEventListener("click", () => {
    context.clearRect(0, 0, SIDE, SIDE);
    look();
  });
  el.querySelector("[data-do=sample]").addEventListener("click", () => {
    const samples = model.get("samples");
    if (!samples.length) return;
    const bytes = Uint8Array.from(atob(samples[sampleAt++ % samples.length]), (c) => c.charCodeAt(0));
    const small = document.createElement("canvas");
    small.width = small.height = 28;
    const image = new ImageData(28, 28);
    bytes.forEach((value, i) => image.data.set([58, 114, 216, value], 4 * i));
    small.getContext("2d").putImageData(image, 0, 0);
    context.clearRect(0, 0, SIDE, SIDE);
    context.drawImage(small, 0, 0, SIDE, SIDE);
    sample = Float32Array.from(bytes, (value) => value / 255); // already preprocessed
    show(sample);
  });
  function load() {
    const network = model.get("network");
    layers = network && network.values ? decode(network) : null;
    show(sample ?? asMnist(canvas)); // the drawing stays when the network changes
  }
  model.on("change:network", load);
  model.on("change:says", load);
  load();
}
export default { render };
