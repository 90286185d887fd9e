// Runs Python in a worker, and handles the page's requests one at a time.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const running = new Map(); // events of started trainings, by number
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

  // Returns an experiment's lines, and a number for requesting its events.
  async begin({ experiment, settings }) {
    const first = JSON.parse(called("begin", experiment, settings));
    running.set(++begun, called("events", experiment, settings));
    return { run: begun, ...first };
  },

  // Returns a training's next event; null after the last.
  async next({ run }) {
    return JSON.parse(python.globals.get("told")(running.get(run)));
  },

  // Frees a training that gets no further requests.
  async leave({ run }) {
    running.get(run).destroy();
    running.delete(run);
  },

  async conclude({ experiment, settings, lines }) {
    return called("concluded", experiment, settings, lines);
  },

  // Returns the images as bytes, for the devices.
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
      const lines = String(error.message ?? error).trim().split("\n"); // a Python traceback's last line is the error
      postMessage({ id, failed: { kind: "fault", message: lines.at(-1).replace(/^[A-Za-z]*Error: /, "") } });
    }
  });
};
