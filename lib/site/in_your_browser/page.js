// The page: four experiments, each with controls, charts and a sentence. They run one at a time, so that timings are
// undisturbed; the one whose control moved last goes first.
const { controls: offered, palettes, numpy, others, where } = JSON.parse(document.querySelector("#offered").textContent);
const FOLDER = new URL(".", document.currentScript.src);
const BLOCK_STEPS = 512, FRAME_MS = 100;
const sections = Object.fromEntries([...document.querySelectorAll("section.lab")].map((element) => [element.id, { element }]));
const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const order = []; // the sections waiting to train, the next one first
let python = null, devices = {}, working = false;

const inputsOf = ({ element }, name) => [...element.querySelectorAll(`[name="${element.dataset.short}.${name}"]`)];

function valueOf(section, name, values) {
  const inputs = inputsOf(section, name);
  if (inputs[0].type === "checkbox") return inputs.filter(({ checked }) => checked).map(({ value }) => values[value]);
  return values.length ? values[inputs[0].value] : inputs[0].value;
}

const settingsOf = (section) => Object.fromEntries(
  Object.entries(offered[section.element.id]).map(([name, values]) => [name, valueOf(section, name, values)]));

// The address holds every setting that differs from its default, so that a link restores it.
function keepInAddress() {
  const said = new URLSearchParams();
  for (const section of Object.values(sections))
    for (const [name, value] of Object.entries(settingsOf(section)))
      if (String(value) !== section.usual[name]) said.set(`${section.element.dataset.short}.${name}`, value);
  history.replaceState(null, "", said.size ? `?${said}` : location.pathname);
}

// Ignores settings that no control offers, and lists them on the page.
function readAddress() {
  const said = new URLSearchParams(location.search), refused = [];
  const refuse = (key, expected, text) => refused.push(`${key}: expected ${expected}, got “${text.slice(0, 60)}”`);
  for (const section of Object.values(sections)) {
    section.usual = Object.fromEntries(Object.entries(settingsOf(section)).map(([name, value]) => [name, String(value)]));
    for (const [name, values] of Object.entries(offered[section.element.id])) {
      const key = `${section.element.dataset.short}.${name}`, text = said.get(key), known = values.map(String);
      said.delete(key);
      if (text === null) continue;
      const inputs = inputsOf(section, name);
      if (!values.length) inputs[0].value = text.slice(0, 200);
      else if (inputs[0].type === "checkbox") {
        const chosen = text.split(",");
        if (chosen.every((one) => known.includes(one))) for (const input of inputs) input.checked = chosen.includes(known[input.value]);
        else refuse(key, `some of ${known.join(", ")}`, text);
      } else if (known.includes(text)) inputs[0].value = known.indexOf(text);
      else refuse(key, `one of ${known.join(", ")}`, text);
    }
  }
  for (const [key, text] of said) refuse(key.slice(0, 60), "no such setting", text);
  if (refused.length) say(document.querySelector("#address"), `Ignored in the address: ${refused.slice(0, 5).join("; ")}.`);
}

function tellValues(section) {
  for (const [name, values] of Object.entries(offered[section.element.id])) {
    const [input] = inputsOf(section, name);
    if (input.type !== "range") continue;
    const text = String(values[input.value]);
    input.setAttribute("aria-valuetext", text);
    say(section.element.querySelector(`output[for="${input.name}"]`), text);
  }
}

function ask(section, first) {
  const name = section.element.id, settings = settingsOf(section);
  tellValues(section);
  section.events?.return();
  Object.assign(section, { settings, lines: [], began: false, events: runOf(name, settings) });
  leaveOrder(name);
  first ? order.unshift(name) : order.push(name);
  state(section, "Waiting", "");
  say(section.element.querySelector(".sentence"), "");
  draw(section);
  work();
}

function leaveOrder(name) {
  if (order.includes(name)) order.splice(order.indexOf(name), 1);
}

async function* runOf(experiment, settings) {
  const { run, lines, job } = await python.ask("begin", { experiment, settings });
  try {
    yield* eventsOf(run, lines, job);
  } finally {
    python.ask("leave", { run }); // at its end, or when a new setting or Stop ends it early
  }
}

async function* eventsOf(run, lines, job) {
  const told = lines.map((line, index) => ({ ...line, color: job ? numpy.color : palettes[lines.length][index] }));
  const rest = job ? others.map(({ label, color }) => ({ label, color, steps: told[0].steps })) : [];
  yield { lines: [...told, ...rest] };
  for (let event; (event = await python.ask("next", { run })); ) yield event;
  for (const [index, other] of (job ? others : []).entries()) yield* trainedBy(other, job, index + 1);
}

// Trains with another backend, yielding the same events as Python; on failure, yields the reason.
async function* trainedBy({ device: name, way }, job, line) {
  try {
    const device = await opened(name);
    await device.ask("train", { ...job.train, parameters: Float32Array.from(job.parameters), starts: job.starts });
    await device.ask("prepare", { task: "train", way, least_s: 0 });
    for (let epoch = 1, diverged_step = null; epoch <= job.epochs && diverged_step === null; epoch++) {
      let train_s = 0;
      for (let done = 0; done < job.steps && diverged_step === null; done += BLOCK_STEPS) {
        const steps = Math.min(BLOCK_STEPS, job.steps - done);
        const { block_s, losses } = await device.ask("block", { task: "train", steps, way });
        const bad = losses.findIndex((loss) => !Number.isFinite(loss));
        if (bad >= 0) diverged_step = done + bad;
        train_s += block_s;
        yield { line, losses: [...losses], first_step: (epoch - 1) * job.steps + done };
      }
      const began = performance.now(), { accuracy } = await device.ask("evaluate");
      const evaluation_s = (performance.now() - began) / 1000;
      yield { line, epoch, accuracy, steps: job.steps, train_s, evaluation_s, diverged_step };
    }
  } catch (failure) {
    yield { line, without: WITHOUT[failure.kind] ?? failure.message ?? String(failure) };
  }
}
const WITHOUT = { "not offered": "this browser offers no WebGPU", "no adapter": "this browser finds no GPU" };

// A device's worker with the images loaded, started on first use.
async function opened(name) {
  return (devices[name] ??= begun(name).catch((failure) => {
    delete devices[name];
    throw failure;
  }));
}

async function begun(name) {
  const { scripts, kernels } = await (await fetch(new URL("devices.json", FOLDER))).json();
  const device = new AskedWorker(workerOf(scripts, name), (message) => {
    delete devices[name];
    device.end({ kind: "lost", message });
  });
  await device.ask("open", { kernels });
  const { train, validation } = await python.ask("images");
  await device.ask("part", { sample: true, ...validation });
  await device.ask("part", train);
  await device.ask("images");
  return device;
}

async function work() {
  if (working) return;
  working = true;
  while (order.length) {
    const name = order[0], section = sections[name], { events } = section;
    if (!section.began) state(section, "Training", "");
    section.began = true;
    const { value, done, problem } = await events.next().catch((error) => ({ done: true, problem: error.message ?? String(error) }));
    if (section.events !== events || !order.includes(name)) continue; // its setting changed, or it was stopped
    if (value) hear(section, value);
    if (!done) continue;
    leaveOrder(name);
    if (problem) fail(section, problem);
    else await conclude(section, events);
  }
  working = false;
}

function hear(section, event) {
  if (event.lines) {
    section.lines = event.lines.map((line) => ({ ...line, losses: [], epochs: [], spent_s: 0 }));
    return draw(section);
  }
  const line = section.lines[event.line];
  if (event.without) line.without = event.without;
  if (event.losses) event.losses.forEach((loss, index) => line.losses.push([event.first_step + index, Number.isFinite(loss) ? loss : 10]));
  if (event.epoch) {
    line.spent_s += event.train_s + event.evaluation_s;
    line.epochs.push({ ...event, spent_s: line.spent_s });
  }
  section.due ??= setTimeout(() => draw(section), FRAME_MS);
}

async function conclude(section, events) {
  const { settings, lines, element } = section;
  const told = lines.filter(({ epochs }) => epochs.length).map(({ label, epochs }) => [label, epochs]);
  let sentence, problem;
  try {
    sentence = await python.ask("conclude", { experiment: element.id, settings, lines: told });
  } catch (failure) {
    problem = failure.message ?? String(failure);
  }
  if (section.events !== events) return;
  draw(section);
  if (problem) return fail(section, problem);
  state(section, "Done", "");
  say(element.querySelector(".sentence"), `${sentence} Computed in your browser, ${new Date().toISOString().slice(0, 10)}, on ${where}.`);
}

function fail(section, problem) {
  state(section, "Failed", "");
  const sentence = section.element.querySelector(".sentence");
  sentence.innerHTML = '<span class="problem" role="alert"></span>';
  say(sentence.firstChild, problem);
}

function state(section, word, words) {
  const [badge, beside] = section.element.querySelectorAll(".state > *");
  say(badge, word);
  say(beside, words);
}

function draw(section) {
  const { element, lines, settings } = section;
  clearTimeout(section.due);
  section.due = undefined;
  for (const drawing of element.querySelectorAll("svg")) drawn(drawing, lines, settings);
  const steps = lines.reduce((sum, line) => sum + line.steps, 0), made = lines.reduce((sum, { losses }) => sum + losses.length, 0);
  if (steps && order.includes(element.id)) say(element.querySelector(".state span"), `${made.toLocaleString("en")} of ${steps.toLocaleString("en")} steps`);
  element.querySelector(".legend").innerHTML = lines.map(({ color }) => `<li><i style="background:${color}"></i><span></span></li>`).join("");
  element.querySelectorAll(".legend span").forEach((item, index) => say(item, legend(lines[index])));
}

function legend({ label, epochs, without }) {
  const last = epochs.at(-1);
  if (without) return `${label}: left out, ${without}`;
  if (!last) return label;
  return `${label}: ${last.diverged_step === null ? percent(last.accuracy) : "diverged"}`;
}

function broken(why) {
  say(document.querySelector("#python"), "Failed");
  for (const section of Object.values(sections)) state(section, "Failed", "");
  const line = document.querySelector("#versions");
  line.className = "problem";
  line.setAttribute("role", "alert");
  say(line, `Python could not be started in this browser: ${why}`);
}

async function begin() {
  try {
    python = new AskedWorker(new Worker(new URL("worker.js", FOLDER), { type: "module" }));
  } catch (error) {
    return broken(`${error.message}; open the page from a web server, not as a file`);
  }
  readAddress();
  for (const section of Object.values(sections)) {
    section.element.addEventListener("input", () => { ask(section, true); keepInAddress(); });
    section.element.addEventListener("submit", (event) => event.preventDefault());
    section.element.querySelector(".again").addEventListener("click", () => ask(section, true));
    section.element.querySelector(".stop").addEventListener("click", () => {
      if (!order.includes(section.element.id)) return;
      leaveOrder(section.element.id);
      section.events.return();
      state(section, "Stopped", "");
    });
  }
  working = true; // nothing runs before Python is ready
  for (const section of Object.values(sections)) ask(section, false);
  try {
    say(document.querySelector("#versions"), `in your browser, by ${await python.ask("start", { source: where })}`);
    say(document.querySelector("#python"), "Ready");
    working = false;
    work();
  } catch (failure) {
    broken(failure.message ?? String(failure));
  }
}

begin();
