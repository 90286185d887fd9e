// Python in a worker of the page: it answers what the page asks for, one thing after the other.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const running = new Map(); // events of the trainings that were begun, by number
let python = null, begun = 0;

const fetched = async (name) => {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
};
const called = (name, ...words) => python.globals.get(name)(...words.map((word) => JSON.stringify(word)));

const asks = {
  async start({ source }) {
    const found = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
    const [lib, images] = await Promise.all([fetched("lib.zip"), fetched("images.npz"), found.loadPackage("numpy")]);
    found.unpackArchive(lib, "zip", { extractDir: "/home/site" });
    found.globals.set("content", new Uint8Array(images));
    found.globals.set("source", source);
    found.runPython(`
import sys
sys.path.insert(0, "/home/site")
import json
import numpy as np
import driver
data = driver.read_images(content.to_bytes(), source)
begin = lambda experiment, settings: json.dumps(driver.begin(json.loads(experiment), json.loads(settings), data))
events = lambda experiment, settings: driver.events(json.loads(experiment), json.loads(settings), data)
told = lambda running: json.dumps(next(running, None))
concluded = lambda experiment, settings, lines: driver.concluded(json.loads(experiment), json.loads(settings), data, json.loads(lines))
pixels = lambda images: np.rint(images * 255).astype(np.uint8).tobytes()
whole = lambda: [pixels(data.x_train), data.y_train.astype(np.uint8).tobytes(), pixels(data.x_validation), data.y_validation.astype(np.uint8).tobytes()]
`);
    python = found;
    return found.runPython('f"NumPy {np.__version__}, Python {sys.version.split()[0]}"');
  },

  // The lines of an experiment, and a number by which its events are asked for.
  async begin({ experiment, settings }) {
    const first = JSON.parse(called("begin", experiment, settings));
    running.set(++begun, called("events", experiment, settings));
    return { run: begun, ...first };
  },

  // The next event of a training; nothing after the last.
  async next({ run }) {
    return JSON.parse(python.globals.get("told")(running.get(run)));
  },

  // Nothing more is asked of a training.
  async leave({ run }) {
    running.get(run).destroy();
    running.delete(run);
  },

  async conclude({ experiment, settings, lines }) {
    return called("concluded", experiment, settings, lines);
  },

  // The images as they were kept, for the devices.
  async images() {
    const [pixels, labels, few, fewLabels] = python.globals.get("whole")().toJs();
    return { train: { pixels, labels }, validation: { pixels: few, labels: fewLabels } };
  },
};

let turn = Promise.resolve();
onmessage = ({ data: { id, what, ...asked } }) => {
  turn = turn.then(async () => {
    try {
      postMessage({ id, found: await asks[what](asked) });
    } catch (error) {
      const lines = String(error.message ?? error).trim().split("\n"); // of Python the last is the error
      postMessage({ id, failed: { kind: "fault", message: lines.at(-1).replace(/^[A-Za-z]*Error: /, "") } });
    }
  });
};
