// The part that both workers share: handles the page's requests one at a time, and times them. `webgpu_on_gpu.js` or
// `webgpu_on_cpu.js` follows in the same script, with a Device, and an Execution of a program on it.
const PIXELS = 784;
const MOST_STEPS = 4096; // per block
const CLOCKS_OF_A_BLOCK = 100; // a block lasts at least this many times the clock's resolution
const WARM_UP_S = 0.1; // not counted in steps: browsers compile JavaScript while it runs, and devices raise their clock rates

class Failure extends Error {
  constructor(kind, message = "", more = {}) {
    super(message);
    Object.assign(this, { kind, more });
  }
}

function asFloats(pixels) {
  const [floats, unit] = [new Float32Array(pixels.length), Math.fround(1 / 255)]; // scaled like lib/model/data/mnist.py
  for (let place = 0; place < pixels.length; place++) floats[place] = pixels[place] * unit;
  return floats;
}

function joined(some) {
  const all = new Uint8Array(some.reduce((length, { length: more }) => length + more, 0));
  let at = 0;
  for (const one of some) all.set(one, (at += one.length) - one.length);
  return all;
}

const nowS = () => performance.now() / 1000;

// The clock's resolution: browsers coarsen it, so that pages cannot spy on one another.
function resolutionS() {
  let least = Infinity;
  for (let tries = 0; tries < 20; tries++) {
    const before = nowS();
    let after = before;
    while (after === before) after = nowS();
    least = Math.min(least, after - before);
  }
  return least;
}

let device, images, sample, clockS;
let noImages = null; // why the device has no images
let parts = []; // of the images, until all have arrived
let training = null;
const tasks = {}; // by name: `launch` runs n steps and waits; `before` and `after` are not timed

async function timed({ before, launch, after }, steps) {
  await before?.(steps);
  const began = nowS();
  await launch(steps);
  const blockS = nowS() - began;
  await after?.(steps);
  return blockS;
}

const asks = {
  async open({ kernels }) {
    clockS = resolutionS();
    device = await Device.open(kernels);
    sample = await device.images(new Uint8Array(2 * PIXELS), new Uint8Array(2)); // enough for products outside a training
    return { facts: device.facts, clock_s: clockS };
  },

  // Receives a part of the training images, or the `sample` for evaluation.
  async part(part) {
    parts.push(part);
  },

  // Loads the images once all parts have arrived.
  async images() {
    noImages = null;
    try {
      const [[few], all] = [parts.filter((part) => part.sample), parts.filter((part) => !part.sample)];
      parts = [];
      images = await device.images(joined(all.map(({ pixels }) => pixels)), joined(all.map(({ labels }) => labels)));
      sample = { ...(await device.images(few.pixels, few.labels)), n: few.labels.length };
    } catch (failure) {
      throw (noImages = failure); // each training will report it
    }
  },

  // Starts a training. `starts`: the first image of each batch; the last batch is followed by the first again.
  async train({ program, evaluation, slice, parameters, rate, starts }) {
    for (const one of [training?.execution, training?.evaluation]) one?.destroy();
    training = null;
    if (noImages) throw noImages;
    const execution = await device.execution(program, images, MOST_STEPS);
    const evaluating = await device.execution(evaluation, sample, sample.n / slice).catch((failure) => {
      execution.destroy();
      throw failure;
    });
    training = { execution, evaluation: evaluating, slice, starts, at: 0, losses: [], launches: {} };
    execution.write("rate", Float32Array.of(rate));
    let at = 0;
    for (const [name, { shape }] of layers()) execution.write(name, parameters.subarray(at, (at += shape[0] * shape[1])));
  },

  // Compiles a task. Unless `least_s` is 0, also runs steps to find how many make up a block.
  async prepare({ task, least_s, way, program, bytes }) {
    if (task === "train") {
      await trainBy(way);
    } else if (task === "copy") {
      const numbers = new Float32Array(bytes / 4).fill(1);
      tasks.copy = { launch: async (n) => { for (let copy = 0; copy < n; copy++) await device.copy(numbers); } };
    } else {
      tasks.alone?.execution.destroy();
      delete tasks.alone;
      const execution = await device.execution(program, sample, 1);
      for (const [name, { shape }] of Object.entries(program.regions))
        execution.write(name, new Float32Array(shape[0] * shape[1]).fill(0.5));
      tasks.alone = { execution, launch: await execution.way(way) };
    }
    if (!least_s) return { first_s: 0, steps: 0, step_s: 0 };
    const wanted = Math.max(least_s, CLOCKS_OF_A_BLOCK * clockS);
    const first_s = await timed(tasks[task], 1);
    for (const began = nowS(); nowS() - began < WARM_UP_S; ) await timed(tasks[task], 1);
    for (let steps = 1; ; steps = Math.min(MOST_STEPS, 4 * steps)) {
      // The faster of two: otherwise one pause of a busy machine would decide the way and the block length.
      const took = Math.min(await timed(tasks[task], steps), await timed(tasks[task], steps));
      if (took < wanted / 2 && steps < MOST_STEPS) continue;
      const enough = Math.round((steps * wanted) / Math.max(took, clockS));
      return { first_s, steps: Math.min(MOST_STEPS, Math.max(1, enough)), step_s: took / steps };
    }
  },

  // Times a block. A training's block also returns its way and losses.
  async block({ task, steps, way }) {
    if (task !== "train") return { block_s: await timed(tasks[task], steps) };
    await trainBy(way);
    const block_s = await timed(tasks.train, steps);
    return { way: training.way, block_s, losses: Float32Array.from(training.losses.splice(0)) };
  },

  async evaluate() {
    const { evaluation, execution, slice, way } = training;
    const n = sample.n / slice;
    evaluation.copyParameters(execution);
    await evaluation.schedule(Array.from({ length: n }, (_, index) => index * slice));
    await (await evaluation.way(device.evaluatedBy(way)))(n);
    const found = await evaluation.results(n);
    const sum = (which) => found.reduce((total, value, index) => total + (index % 2 === which ? value : 0), 0);
    return { loss: sum(0) / n, accuracy: sum(1) / sample.n };
  },

  // Each layer's weights, followed by its biases as one more row.
  async parameters() {
    const found = [];
    for (const [name] of layers()) found.push(...(await training.execution.read(name)));
    return Float32Array.from(found);
  },
};

const layers = () => Object.entries(training.execution.program.regions).filter(([name]) => name.startsWith("layer "));

// Continues the training in this way, compiled on first use.
async function trainBy(way) {
  const launch = (training.launches[way] ??= await training.execution.way(way));
  const after = async (steps) => { training.losses.push(...(await losses(steps))); };
  training.way = way;
  tasks.train = { before: schedule, launch, after };
}

async function schedule(steps) {
  const { starts, at } = training;
  await training.execution.schedule(Array.from({ length: steps }, (_, step) => starts[(at + step) % starts.length]));
  training.at = at + steps;
}

async function losses(steps) {
  return (await training.execution.results(steps)).filter((_, index) => index % 2 === 0);
}

let turn = Promise.resolve();
self.onmessage = ({ data: { id, what, ...asked } }) => {
  turn = turn.then(async () => {
    try {
      self.postMessage({ id, found: (await asks[what](asked)) ?? null });
    } catch (error) {
      const { kind = "fault", message, more = {} } = error;
      self.postMessage({ id, failed: { kind, message: String(message).slice(0, 400), ...more } });
    }
  });
};
