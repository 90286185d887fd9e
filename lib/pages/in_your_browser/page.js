// The page: its controls, two charts of fixed size, which `chart_text.js` above says in words, and a sentence that says what was
// computed where.
const page = document.querySelector("#lab");
const { offered, source, images } = JSON.parse(document.querySelector("#offered").textContent);
const at = name => page.querySelector(`[name=${name}]`);
const shown = name => page.querySelector(`#${name}`);
const say = (name, text) => { if (shown(name).textContent !== text) shown(name).textContent = text; };
const percent = share => `${(100 * share).toFixed(1)} %`;
const settings = () => Object.fromEntries(Object.entries(offered).map(([name, values]) => [name, values[at(name).value]]));

// Losses from 0.01 to 10 on a logarithmic axis; accuracies from 0 to 1.
const WIDTH = 400, HEIGHT = 220, LEFT = 46, BOTTOM = 30, TOP = 10, RIGHT = 12;
const x = share => LEFT + share * (WIDTH - LEFT - RIGHT);
const y = share => HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
const height = { loss: loss => (Math.log10(Math.min(10, Math.max(0.01, loss))) + 2) / 3, accuracy: share => share };
const ticks = { loss: [0.01, 0.1, 1, 10], accuracy: [0, 0.25, 0.5, 0.75, 1] };
const up = { loss: "loss, 0.01 to 10, logarithmic", accuracy: "accuracy, 0 to 100 %" };
const written = { loss: loss => String(+loss.toPrecision(3)), accuracy: percent };
const words = { loss: String, accuracy: share => `${100 * share} %` };

function chart(kind, points, last, unit) {
  const grid = ticks[kind].map(tick => {
    const level = y(height[kind](tick));
    return `<path class="grid" d="M${LEFT} ${level}H${WIDTH - RIGHT}"/>`
      + `<text x="${LEFT - 6}" y="${level + 4}" text-anchor="end">${words[kind](tick)}</text>`;
  }).join("");
  const every = Math.max(1, Math.ceil(points.length / 400)); // more points than pixels say no more
  const kept = points.filter((_, index) => index % every === 0 || index === points.length - 1);
  const path = kept.map(([step, value], index) =>
    `${index ? "L" : "M"}${x(step / last).toFixed(1)} ${y(height[kind](value)).toFixed(1)}`).join("");
  const dots = kind === "accuracy" ? points.map(([epoch, share]) =>
    `<circle cx="${x(epoch / last)}" cy="${y(share)}" r="3"/>`).join("") : "";
  shown(kind).innerHTML = `${grid}<path class="line" d="${path}"/>${dots}`
    + `<text x="${LEFT}" y="${HEIGHT - 8}">0</text>`
    + `<text x="${WIDTH - RIGHT}" y="${HEIGHT - 8}" text-anchor="end">${unit} ${last.toLocaleString("en")}</text>`;
  const title = shown(kind).parentNode.querySelector("figcaption").textContent;
  const axes = `Across: ${unit}, 0 to ${last.toLocaleString("en")}. Up: ${up[kind]}.`;
  tellDrawing(shown(kind), title, toldLines(axes, kind, [["NumPy in your browser", points.map(([, value]) => value)]], written[kind]));
}

let id = 0, now = null, versions = "", began = 0;
const worker = begin();

function begin() {
  try {
    const made = new Worker(new URL("worker.js", document.currentScript.src), { type: "module" });
    made.onmessage = ({ data }) => hear(data);
    made.onerror = event => broken(event.message || "its files cannot be read");
    made.postMessage({ source });
    return made;
  } catch (error) {
    broken(`${error.message}; a page that is opened as a file cannot start it, a page host can`);
  }
}

function broken(why) {
  say("state", "Failed");
  say("doing", "");
  shown("sentence").innerHTML = '<span class="problem" role="alert"></span>';
  shown("sentence").firstChild.textContent = `Python could not be started in this browser: ${why}`;
}

function ask() {
  for (const [name, values] of Object.entries(offered)) {
    const text = String(values[at(name).value]);
    at(name).setAttribute("aria-valuetext", text);
    page.querySelector(`output[for=${name}]`).textContent = text;
  }
  now = { settings: settings(), losses: [], accuracies: [], steps: 1, train_s: 0, diverged: null };
  worker?.postMessage({ id: ++id, settings: now.settings });
  if (versions) say("state", "Training");
  draw();
}

function hear(event) {
  if (event.broken) return broken(event.broken);
  if (event.versions) {
    versions = event.versions;
    say("state", "Training");
    return say("doing", `in your browser, by ${versions}`);
  }
  if (event.id !== id) return; // of an earlier setting
  if (event.problem) {
    say("state", "Failed");
    return say("sentence", event.problem);
  }
  if (event.losses) {
    now.steps = event.steps;
    event.losses.forEach((loss, index) => now.losses.push([event.first_step + index, loss ?? 10]));
  } else if (event.epoch) {
    now.accuracies.push([event.epoch, event.accuracy]);
    Object.assign(now, { train_s: event.train_s, diverged: event.diverged_step });
  } else if (event.over) {
    say("state", "Done");
    say("sentence", conclusion());
  }
  draw();
}

function draw() {
  const { losses, accuracies, steps } = now;
  chart("loss", losses, Math.max(1, steps), "step");
  chart("accuracy", accuracies, now.settings.epochs, "epoch");
  say("doing", versions ? `${losses.length.toLocaleString("en")} of ${steps.toLocaleString("en")} steps, in your browser, by ${versions}` : "Python comes to your browser, 15 MB, once");
}

function conclusion() {
  const { rate, size, width, epochs } = now.settings;
  const which = `784→${width}→10, learning rate ${rate}, batch size ${size}`;
  const where = `Computed in your browser, ${new Date().toISOString().slice(0, 10)}, on ${images} images of ${source}.`;
  return now.diverged === null
    ? `${percent(now.accuracies.at(-1)[1])} of the validation images are right after ${epochs} epoch${epochs > 1 ? "s" : ""} and ${now.train_s.toFixed(2)} s of training: ${which}. ${where}`
    : `The loss stopped being a number in step ${now.diverged}: ${which}. A smaller rate learns. ${where}`;
}

page.addEventListener("input", ask);
ask();
