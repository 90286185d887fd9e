// Promise-based requests to a worker. Must precede the scripts that use it.
class AskedWorker {
  constructor(worker, onLost = () => {}) {
    this.worker = worker;
    this.waiting = new Map();
    this.asked = 0;
    worker.onmessage = ({ data }) => {
      if (data.lost !== undefined) return onLost(data.lost);
      const asked = this.waiting.get(data.id); // undefined if an error event has already rejected it
      this.waiting.delete(data.id);
      data.failed ? asked?.reject(data.failed) : asked?.resolve(data.found);
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.refuse({ kind: "fault", message: event.message || "its files cannot be read" });
    };
  }

  ask(what, asked = {}) {
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, what, ...asked });
    });
  }

  end(why) {
    this.worker.terminate();
    this.refuse(why);
  }

  refuse(why) {
    for (const { reject } of this.waiting.values()) reject(why);
    this.waiting.clear();
  }
}

// Starts the worker that executes programs on this device, `gpu` or `cpu`.
function workerOf(scripts, name) {
  const address = URL.createObjectURL(new Blob([scripts.worker, scripts[name]], { type: "text/javascript" }));
  const worker = new Worker(address);
  worker.addEventListener("message", () => URL.revokeObjectURL(address), { once: true });
  return worker;
}
