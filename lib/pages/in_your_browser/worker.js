// Python in a worker of the page: it trains what was asked for last, and tells of it event by event.
import { loadPyodide } from "./pyodide/pyodide.mjs";

let asked = null;
let training = false;

const fetched = async name => {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
};

async function start(source) {
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
  const [lib, images] = await Promise.all([fetched("lib.zip"), fetched("images.npz"), python.loadPackage("numpy")]);
  python.unpackArchive(lib, "zip", { extractDir: "/home/site" });
  python.globals.set("content", new Uint8Array(images));
  python.globals.set("source", source);
  python.runPython(`
import sys
sys.path.insert(0, "/home/site")
import json
import driver
data = driver.read_images(content.to_bytes(), source)
begun = lambda settings: driver.events(json.loads(settings), data)
told = lambda running: json.dumps(next(running, None))
versions = f"NumPy {driver.np.__version__}, Python {sys.version.split()[0]}"
`);
  const [begun, told] = ["begun", "told"].map(name => python.globals.get(name));
  return { begun, told, versions: python.globals.get("versions") };
}

async function trainWhatIsAsked(python) {
  if (training) return;
  training = true;
  for (let present = null; asked !== present; ) {
    present = asked;
    try {
      const running = python.begun(JSON.stringify(present.settings));
      while (asked === present) {
        const event = JSON.parse(python.told(running));
        postMessage(event ? { id: present.id, ...event } : { id: present.id, over: true });
        if (!event) break;
        await new Promise(resolve => setTimeout(resolve)); // what was asked meanwhile is heard
      }
      running.destroy();
    } catch (error) {
      postMessage({ id: present.id, problem: String(error.message).trim().split("\n").pop() });
    }
  }
  training = false;
}

let ready = null;
onmessage = async ({ data }) => {
  if (data.source !== undefined) {
    ready = start(data.source);
    try {
      postMessage({ versions: (await ready).versions });
    } catch (error) {
      postMessage({ broken: String(error.message ?? error).trim().split("\n").pop() });
    }
    return;
  }
  asked = data;
  const python = await ready.catch(() => null);
  if (python) trainWhatIsAsked(python);
};
