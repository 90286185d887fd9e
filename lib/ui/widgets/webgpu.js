// Measures the reader's GPU and processor in the browser, alternately. Two workers run the blocks of steps; this part requests
// block after block, draws, and reports to Python, which compares the two and writes the text.
const BLOCK_S = 0.05, SHORT_BLOCK_S = 0.01;
const PAIRS = { least: 9, most: 40, for_s: 6 };
const OTHER_ROUNDS = 9, SIZE_ROUNDS = 9, SHORT_ROUNDS = 5;
const LONGEST_STEP_S = 1; // longer steps are predicted, not started
const FEW_FLOPS = 2e8; // every device makes such a step in that time, so no prediction is needed
const LONGEST_SIZE_S = 0.25;
const CPU_WAYS = ["simd", "javascript"];
const CLEARLY = 4; // times faster at a product: training never reverses that, so the slower way is not tried first
const PACE_WAYS = { cpu: CPU_WAYS, gpu: ["one_submission"] };
const IMAGES_FOR_MS = 1000; // how long images are fetched
const TELL_EVERY_MS = 400;

// A device's worker, and its measured speed.
class Device extends AskedWorker {
  constructor(name, scripts, onLost) {
    super(workerOf(scripts, name), onLost);
    this.flopsPerS = 0;
    this.flopsPerSOf = {}; // by way, if a device's ways differ in speed
    this.productWay = "waiting_after_each_operation"; // for products outside a training
  }
}

// A failure, in the form that Python reads.
function described({ kind = "fault", message = "", needs = 0, allows = 0, expected_s = 0 }, device, way = "") {
  return { device, way, kind, message: String(message).slice(0, 400), needs, allows, expected_s };
}

const ENDED = { kind: "ended" }; // the reader moved a slider or left
const GONE = { kind: "gone" }; // the device was lost, which is reported elsewhere

function render({ model, el }) {
  el.innerHTML = `
    <div class="webgpu">
      <div data-slot="sentence"></div>
      <div class="lab-charts">
        <figure class="lab-figure lab-low"><figcaption></figcaption><canvas role="img"></canvas></figure>
        <figure class="lab-figure lab-low"><figcaption></figcaption><canvas role="img"></canvas></figure>
      </div>
      <div data-slot="line"></div>
      <div data-slot="said"></div>
      <div data-slot="table"></div>
      <div data-slot="below"></div>
    </div>`;
  const [race, sizes] = [...el.querySelectorAll("canvas")];
  const captions = [...el.querySelectorAll("figcaption")];
  let devices = {}, job = null, closed = false, drawing = false, seen = false, saidAt = 0;
  let lost = null; // the report of a lost device, repeated for every later job
  let curves = {}, points = {}; // for drawing: losses and products, by device
  let imagesBegan = 0;
  let work = Promise.resolve(); // runs jobs one at a time
  let held = Promise.resolve(), letGo = () => {};

  // Shows Python's text.
  function tell() {
    const told = model.get("told");
    for (const slot of el.querySelectorAll("[data-slot]")) {
      const html = told[slot.dataset.slot] ?? "";
      if (slot.told !== html) slot.innerHTML = slot.told = html;
    }
    // The buttons are marimo's elements, outside this one.
    const foot = el.getRootNode().host?.closest(".lab-result")?.querySelector(":scope > .lab-foot");
    foot?.classList.toggle("lab-under-way", Boolean(told.under_way));
    for (const box of el.querySelectorAll(".lab-scroll")) box.tabIndex = 0; // makes it scroll by keyboard
    (told.captions ?? []).forEach((text, index) => { captions[index].textContent = text; });
    draw();
  }

  // Sends measurements to Python a few times a second, not per block.
  let rows = [], due = 0;
  function report(mine, row) {
    if (mine !== job) return; // from a training that has ended
    rows.push(row);
    due ||= setTimeout(flush, TELL_EVERY_MS);
  }
  function flush() {
    clearTimeout(due);
    due = 0;
    if (rows.length && !closed) model.send({ is: "rows", job: job?.id ?? 0, rows: rows.splice(0) });
  }
  function at(mine, stage) {
    if (mine !== job || closed) return;
    flush();
    model.send({ is: "at", job: mine.id, stage });
  }

  // Reports why a part could not be measured, so that the others continue. Rethrows the end of the job. A lost device's worker
  // reports the loss itself.
  function failed(mine, failure, device, way = "") {
    if (failure.kind === "ended") throw failure;
    if (!["gone", "lost"].includes(failure.kind)) report(mine, { is: "failed", ...described(failure, device, way) });
  }

  function ask(mine, name, what, asked) {
    if (mine !== job || closed) throw ENDED;
    if (!devices[name]) throw GONE;
    return devices[name].ask(what, asked);
  }

  async function start(name) {
    const device = new Device(name, model.get("scripts"), (message) => {
      delete devices[name];
      device.end(GONE);
      lost = { is: "failed", ...described({ kind: "lost", message }, name) };
      report(job, lost);
      flush();
    });
    try {
      Object.assign(device, await device.ask("open", { kernels: model.get("kernels") }));
      devices[name] = device;
    } catch (failure) {
      device.end(ENDED);
      return [described(failure, name)];
    }
    return [];
  }

  // Makes the GPU compile the kernels, by running the smallest step.
  async function warm() {
    const { smallest: program } = model.get("kernels");
    try {
      await devices.gpu.ask("prepare", { task: "alone", program, way: "one_submission", least_s: 0 });
      await devices.gpu.ask("block", { task: "alone", steps: 1 });
    } catch {
      // Its training will report why.
    }
  }

  // Measures a device's FLOP per second at a medium-sized product, and picks the processor's fastest way to multiply.
  async function pace(name) {
    const { pace: program } = model.get("kernels");
    for (const way of PACE_WAYS[name])
      try {
        const { step_s } = await devices[name].ask("prepare", { task: "alone", program, way, least_s: SHORT_BLOCK_S });
        const flopsPerS = program.flops / step_s;
        if (name === "cpu") devices.cpu.flopsPerSOf[way] = flopsPerS;
        if (flopsPerS < devices[name].flopsPerS) continue;
        devices[name].flopsPerS = flopsPerS;
        if (name === "cpu") devices.cpu.productWay = way;
      } catch {
        // Its training will report why.
      }
  }

  async function open() {
    for (const device of Object.values(devices)) device.end(ENDED);
    [devices, job, lost] = [{}, null, null];
    const failures = (await Promise.all([start("cpu"), start("gpu")])).flat();
    if (closed) return;
    // While the images arrive.
    const ready = Object.keys(devices).map((name) => (name === "gpu" ? warm() : pace(name)));
    work = work.then(() => Promise.all(ready));
    const brand = navigator.userAgentData?.brands?.find(({ brand }) => !/Not|Chromium/.test(brand))
      ?? navigator.userAgentData?.brands?.find(({ brand }) => brand === "Chromium");
    model.send({
      is: "opened",
      browser: brand ? `${brand.brand} ${brand.version}`.slice(0, 100) : browserOf(navigator.userAgent),
      platform: String(navigator.userAgentData?.platform || navigator.platform || "").slice(0, 100),
      cores: navigator.hardwareConcurrency || 1,
      secure: isSecureContext,
      offered: Boolean(navigator.gpu),
      host: location.hostname.slice(0, 100),
      reader: reader(),
      clock_s: Math.max(...Object.values(devices).map(({ clock_s }) => clock_s), 0),
      adapter: devices.gpu?.facts ?? null,
      failed: failures,
    });
  }

  // Images arrive in parts, for up to a second, and each part goes to the workers at once: all images together would stop the
  // page from drawing. Then a training can begin.
  async function take(content, buffers) {
    const [pixels, labels] = buffers.map(({ buffer, byteOffset, byteLength }) => new Uint8Array(buffer.slice(byteOffset, byteOffset + byteLength)));
    const all = (what, asked) => Promise.all(Object.values(devices).map((device) => device.ask(what, asked).catch(() => {})));
    if (content.sample) imagesBegan = performance.now();
    all("part", { pixels, labels, sample: Boolean(content.sample) });
    const took = performance.now() - imagesBegan;
    if (took < IMAGES_FOR_MS && !content.last) return model.send({ is: "more" });
    await all("images");
    model.send({ is: "enough", took_s: took / 1000 });
  }

  async function visible(mine) {
    if (!document.hidden) return;
    at(mine, "hidden");
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    if (document.hidden) await visible(mine);
    at(mine, mine.stage);
  }

  // Runs a block while the tab is visible. Discards and repeats a block during which the tab was hidden.
  async function block(mine, device, asked) {
    for (;;) {
      await visible(mine);
      await held; // while the server measures: it may run on this machine
      let hidden = false;
      const hide = () => { hidden = true; };
      document.addEventListener("visibilitychange", hide);
      const found = await ask(mine, device, "block", asked);
      document.removeEventListener("visibilitychange", hide);
      if (mine !== job || closed) throw ENDED;
      if (!hidden) return found;
      report(mine, { is: "block", of: "discarded", device, block_s: found.block_s });
    }
  }

  const stage = (mine, name) => {
    mine.stage = name;
    at(mine, name);
  };

  function expectable(name, way, flops) {
    const expected_s = flops / (devices[name]?.flopsPerSOf[way] ?? devices[name]?.flopsPerS ?? 0);
    if (Number.isFinite(expected_s) && expected_s > LONGEST_STEP_S) throw { kind: "too slow", message: "", expected_s };
  }

  const clearlySlower = (name, way) => devices[name]?.flopsPerSOf[way] * CLEARLY < devices[name]?.flopsPerS;

  async function prepare(mine, name, way) {
    if (way === "one_kernel" && mine.program.flops > mine.most_flops_in_one_kernel) throw { kind: "too much for one kernel", message: "" };
    const { first_s, steps, step_s } = await ask(mine, name, "prepare", { task: "train", way, least_s: BLOCK_S });
    report(mine, { is: "block", of: "first step", device: name, way, block_s: first_s });
    return { way, steps, step_s };
  }

  async function trained(mine, name, asked, pair) {
    const { way, block_s, losses } = await block(mine, name, { task: "train", ...asked });
    report(mine, { is: "block", of: "training", device: name, way, steps: asked.steps, block_s, round: pair });
    if (pair < 0) return block_s;
    const curve = (curves[name] ??= { at_s: 0, points: [] });
    const parts = Math.min(8, losses.length);
    for (let part = 0; part < parts; part++) {
      const few = losses.slice((part * losses.length) / parts, ((part + 1) * losses.length) / parts);
      curve.points.push([curve.at_s + ((part + 1) * block_s) / parts, few.reduce((a, b) => a + b, 0) / few.length]);
    }
    curve.at_s += block_s;
    if (losses.some((loss) => !Number.isFinite(loss))) throw { kind: "diverged", message: "" };
    return block_s;
  }

  // Alternates the devices, in random order within each pair, so that other load on the machine affects both alike.
  async function pairs(mine, ready) {
    stage(mine, "training");
    const unlessItFails = async (name, act) => {
      try {
        await act(ready[name]);
      } catch (failure) {
        failed(mine, failure, name, ready[name].way);
        delete ready[name];
      }
    };
    for (const name of Object.keys(ready)) await unlessItFails(name, () => load(mine, name)); // again: prepare() has trained it
    const began = performance.now();
    let evaluated = 0;
    for (let pair = 0; pair < PAIRS.most; pair++) {
      const passed_s = (performance.now() - began) / 1000;
      if (pair >= PAIRS.least && passed_s > PAIRS.for_s) break;
      const order = Object.keys(ready);
      if (Math.random() < 0.5) order.reverse();
      for (const name of order)
        await unlessItFails(name, ({ way, steps }) => trained(mine, name, { way, steps }, pair));
      if (!Object.keys(ready).length) return;
      if (performance.now() - evaluated > 1000 || pair + 1 === PAIRS.most) {
        evaluated = performance.now();
        for (const name of Object.keys(ready)) await evaluate(mine, name, ready[name].way);
      }
    }
    for (const name of Object.keys(ready)) await evaluate(mine, name, ready[name].way);
  }

  async function evaluate(mine, name, way) {
    try {
      expectable(name, way, mine.evaluation_flops);
      report(mine, { is: "evaluated", device: name, train_s: curves[name]?.at_s ?? 0, ...(await ask(mine, name, "evaluate")) });
    } catch (failure) {
      if (failure.kind !== "too slow") failed(mine, failure, name);
    }
  }

  // Measures all ways of a device alternately, including the one already compared.
  async function otherWays(mine, name) {
    const steps = {};
    for (const way of name === "gpu" ? mine.ways : CPU_WAYS) {
      try {
        expectable(name, way, mine.program.flops);
        await load(mine, name);
        ({ steps: steps[way] } = await prepare(mine, name, way));
      } catch (failure) {
        failed(mine, failure, name, way);
      }
    }
    for (let round = 0; round < OTHER_ROUNDS; round++)
      for (const way of Object.keys(steps)) {
        try {
          await trained(mine, name, { way, steps: steps[way] }, -1 - round);
        } catch (failure) {
          failed(mine, failure, name, way);
          delete steps[way];
        }
      }
  }

  // Measures launching alone: as many operations as a step has, all of them empty, for each way of launching.
  async function empties(mine) {
    for (const name of Object.keys(devices))
      for (const way of name === "gpu" ? mine.ways : [mine.cpuWay])
        await rounds(mine, [name], { of: "empty", way, size: 1 }, { task: "alone", program: mine.empty, way }, SHORT_ROUNDS);
  }

  async function copies(mine) {
    for (const bytes of mine.copies)
      await rounds(mine, Object.keys(devices), { of: "copy", way: "", size: bytes }, { task: "copy", bytes }, SHORT_ROUNDS);
  }

  // Runs blocks of a task other than training, alternating devices. Returns the median seconds of each device that did not fail.
  async function rounds(mine, names, about, asked, n) {
    const [steps, found] = [{}, {}];
    for (const name of names) {
      try {
        const way = asked.way ?? devices[name]?.productWay;
        ({ steps: steps[name] } = await ask(mine, name, "prepare", { ...asked, way, least_s: SHORT_BLOCK_S }));
        found[name] = [];
      } catch (failure) {
        failed(mine, failure, name, about.of === "empty" ? about.way : "");
      }
    }
    for (let round = 0; round < n; round++)
      for (const name of Object.keys(found)) {
        try {
          const { block_s } = await block(mine, name, { task: asked.task, steps: steps[name] });
          report(mine, { is: "block", ...about, device: name, steps: steps[name], block_s, round });
          found[name].push(block_s / steps[name]);
        } catch (failure) {
          failed(mine, failure, name);
          delete found[name];
        }
      }
    return Object.fromEntries(Object.entries(found).map(([name, times]) => [name, median(times)]));
  }

  // Measures products from small to large. Predicts those that would take a device too long.
  async function products(mine) {
    stage(mine, "sizes");
    points = {};
    const last = {};
    for (const program of mine.products) {
      const n = program.side;
      const names = [];
      for (const name of Object.keys(devices)) {
        const expected_s = last[name] ? last[name].s * Math.max(1, program.flops / last[name].flops) : 0;
        const fits = name === "cpu" || program.memory_bytes <= devices[name].facts.largest_bytes;
        if (expected_s > LONGEST_SIZE_S || !fits || last[name]?.predicted) {
          last[name] = { s: expected_s, flops: program.flops, predicted: true };
          (points[name] ??= []).push({ n, s: expected_s, predicted: true });
        } else names.push(name);
      }
      if (!names.length) continue;
      const found = await rounds(mine, names, { of: "product", way: "", size: n }, { task: "alone", program }, SIZE_ROUNDS);
      for (const name of Object.keys(found)) {
        last[name] = { s: found[name], flops: program.flops };
        (points[name] ??= []).push({ n, s: found[name] });
        if (devices[name]) devices[name].flopsPerS = Math.max(devices[name].flopsPerS, program.flops / found[name]);
      }
      draw();
    }
  }

  async function load(mine, name) {
    const { program, evaluation, slice, rate, parameters, starts } = mine;
    await ask(mine, name, "train", { program, evaluation, slice, rate, parameters, starts });
  }

  async function measure(mine) {
    if (mine !== job || closed) return;
    curves = {};
    if (!drawing) requestAnimationFrame(frame);
    drawing = true;
    try {
      stage(mine, "starting");
      if (lost) report(job, lost);
      const ready = {};
      for (const name of Object.keys(devices)) {
        if (!devices[name].flopsPerS && mine.program.flops > FEW_FLOPS) await pace(name);
        for (const way of name === "gpu" ? [mine.way] : CPU_WAYS) {
          if (clearlySlower(name, way)) continue; // otherWays() measures it
          try {
            expectable(name, way, mine.program.flops);
            await load(mine, name);
            const found = await prepare(mine, name, way);
            if (!ready[name] || found.step_s < ready[name].step_s) ready[name] = found; // the processor's faster way
          } catch (failure) {
            failed(mine, failure, name, way);
          }
        }
      }
      mine.cpuWay = ready.cpu?.way ?? CPU_WAYS[0];
      await pairs(mine, ready);
      stage(mine, "ways");
      for (const name of Object.keys(devices)) await otherWays(mine, name);
      if (mine.sizes) {
        await products(mine);
        await copies(mine);
      }
      await empties(mine);
      stage(mine, "over");
    } catch (failure) {
      if (failure.kind === "ended") return;
      failed(mine, failure, "");
      stage(mine, "over");
    } finally {
      if (mine === job) drawing = false;
    }
  }

  // One tab at a time: two would compete for cores and GPU.
  async function inTurn(mine) {
    if (!navigator.locks) return measure(mine);
    let free = false;
    await navigator.locks.request("your_gpu", { ifAvailable: true }, async (lock) => {
      free = lock !== null;
      if (free) await measure(mine);
    });
    if (free || mine !== job) return;
    stage(mine, "another tab");
    await navigator.locks.request("your_gpu", () => measure(mine));
  }

  function heard(content, buffers) {
    if (content.do === "images") take(content, buffers);
    if (content.do === "reopen") open();
    if (content.do === "hold") {
      letGo();
      held = content.hold ? new Promise((resolve) => { letGo = resolve; }) : Promise.resolve();
      if (drawing) at(job, content.hold ? "held" : (job.stage ?? "starting"));
    }
    if (content.do === "stop") {
      if (job) stage(job, "stopped");
      job = null;
      drawing = false;
    }
    if (content.do === "measure") {
      const [parameters, starts] = buffers.map(({ buffer, byteOffset, byteLength }) => buffer.slice(byteOffset, byteOffset + byteLength));
      rows = [];
      const mine = (job = { ...content, parameters: new Float32Array(parameters), starts: new Uint32Array(starts) });
      work = work.then(() => inTurn(mine)).catch(() => {});
    }
  }

  function frame() {
    if (closed || !drawing) return draw();
    draw();
    requestAnimationFrame(frame);
  }
  function draw() {
    const labels = model.get("told").labels ?? {};
    const colorOf = (name) => (name === "cpu" ? colors.cpu : labels.software ? colors.software : colors.gpu);
    drawRace(race, curves, labels, colorOf);
    if (!seen && (seen = Object.keys(curves).length > 0)) performance.mark("first figure"); // for `make bench BENCH=webgpu`
    const border = model.get("told").border ?? 0;
    drawSizes(sizes, points, labels, colorOf, border);
    if (drawing && performance.now() - saidAt < TELL_EVERY_MS) return; // not in every frame, but always for the last
    saidAt = performance.now();
    tellRace(race, captions[0].textContent, curves, labels);
    tellSizes(sizes, captions[1].textContent, points, labels, border);
  }

  model.on("msg:custom", heard);
  model.on("change:told", tell);
  const resized = new ResizeObserver(draw);
  resized.observe(race);
  tell();
  open();
  return () => {
    closed = true;
    job = null;
    clearTimeout(due);
    resized.disconnect();
    model.off("msg:custom", heard);
    model.off("change:told", tell);
    for (const device of Object.values(devices)) device.end(ENDED);
  };
}

// A number stored in this browser: it distinguishes identical laptops in a class.
function reader() {
  try {
    return (localStorage.your_gpu ??= String(Math.random()).slice(2)).slice(0, 100);
  } catch {
    return String(Math.random()).slice(2); // without storage, the browser counts as a new one each time
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

// The name from the user agent, for browsers without `brands`.
function browserOf(agent) {
  // Edge and Opera also call themselves Chrome, and Chrome Safari.
  const found = /(Firefox|Edg|OPR)\/(\d+)/.exec(agent) ?? /(Chrome|Version)\/(\d+)/.exec(agent);
  return found ? `${{ Edg: "Edge", OPR: "Opera", Version: "Safari" }[found[1]] ?? found[1]} ${found[2]}` : "unknown browser";
}

export default { render };
