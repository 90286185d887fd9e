"""Programs for fresh processes, which time the first use of a library and of a Keras model.

`python -m lib.timing.profiling.first_use stages WORKER MODULE DEVICE SIZE DEPTH STARTED_S` prints the seconds of each
stage:

* `process`: from the start of a Python process to its first line.
* `import`: importing the library.
* `context`: opening the device and moving a first array to it; a card sets up its context here.
* `first`, `steady`: nested sines of that array, waiting for each call. The excess of the first call over the steady one
  is loading kernels; in JAX, it is also compiling a kernel for each operation.
* `compiled first`, `compiled steady`: the same sines as one program. The excess of the first call is compilation.

`… first_use models HIDDEN DEVICE` builds and clones a Keras model. Neither process has imported anything before.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable

BEGAN_S = time.perf_counter()  # this project's first line in the process: NumPy is not imported yet

STEADY_CALLS = 50
AGAIN, AGAIN_S = 9, 1.5  # most repetitions of each model action, and the seconds after which they end
BATCH_SIZE = 32  # of the model's steps
FRESH = ("import", "device", "build", "clone", "step")  # once each, in this order
REPEATED = ("build again", "clone again", "step again")


def stages(worker: str, module: str, device: str, size: str, depth: str, started_s: str) -> dict[str, float]:
    """Return the seconds of each stage in this process, which must be fresh.

    Args:
        worker: Key of `lib.timing.profiling.operations.LIBRARIES`.
        module: The library's module.
        device: `cpu` or `gpu`.
        size: Elements of the array.
        depth: Number of nested sines.
        started_s: When the process was started, on `time.perf_counter`.
    """
    found = {"process": max(0.0, BEGAN_S - float(started_s))}
    found["import"] = _seconds(lambda: importlib.import_module(module))
    import numpy as np

    from lib.timing.profiling.harness import nested_sine
    from lib.timing.profiling.operations import LIBRARIES

    began_s = time.perf_counter()
    library = LIBRARIES[worker](device)
    here = library.wait(library.move(np.ones(int(size), np.float32)))
    found["context"] = time.perf_counter() - began_s
    sines = nested_sine(library.sine, int(depth))

    def time_calls(prefix: str, program: Callable) -> None:
        def call() -> object:
            return library.wait(program(here))

        found[f"{prefix}first"] = _seconds(call)
        found[f"{prefix}steady"] = sorted(_seconds(call) for _ in range(STEADY_CALLS))[STEADY_CALLS // 2]

    time_calls("", sines)
    if library.fused is not None:
        time_calls("compiled ", library.fused(sines))
    return found


def _seconds(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def models(hidden: str, device: str) -> dict[str, list[float]]:
    """Return the seconds of each repetition of `FRESH` and `REPEATED` in this process, which must be fresh.

    Args:
        hidden: Label of the network's hidden layers.
        device: `cpu` or `gpu`; the process's environment hides the others.
    """
    found = {"import": [_seconds(lambda: importlib.import_module("keras"))]}  # it imports TensorFlow
    import keras
    import numpy as np
    import tensorflow as tf

    from lib.model.spec import N_CLASSES, N_PIXELS, Network

    network, place = Network.parse(hidden), f"/{device.upper()}:0"
    images, labels = np.zeros((BATCH_SIZE, N_PIXELS), np.float32), np.zeros(BATCH_SIZE, np.int32)
    made: list[keras.Model] = []

    def build() -> None:
        layers = [keras.layers.Dense(width, activation="relu") for width in network.hidden]
        made[:] = [keras.Sequential([keras.Input((N_PIXELS,)), *layers, keras.layers.Dense(N_CLASSES)])]
        made[0].compile(
            optimizer=keras.optimizers.SGD(0.01), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )

    calls = {
        "build": build,
        "clone": lambda: keras.models.clone_model(made[0]),
        "step": lambda: made[0].train_on_batch(images, labels),
    }
    with tf.device(place):
        found["device"] = [_seconds(lambda: tf.zeros(1).numpy())]
        for name, call in calls.items():
            found[name] = [_seconds(call)]
            again = found[f"{name} again"] = []
            while len(again) < AGAIN and (len(again) < 3 or sum(again) < AGAIN_S):
                again.append(_seconds(call))
    return found


if __name__ == "__main__":
    _program, *_arguments = sys.argv[1:]
    print(json.dumps((models if _program == "models" else stages)(*_arguments)))
