"""Building and cloning a Keras model in a fresh process, where the first of each pays for what the others find.

`main` runs in a process of its own, which has imported nothing, and sends what it measures; it ends when the pipe does.
"""

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from lib.model.hardware.process import kept_away
from lib.model.spec import N_CLASSES, N_PIXELS, Network

AGAIN, AGAIN_S = 9, 1.5  # repetitions of each, and the seconds after which there are no more
BATCH_SIZE = 32  # of its steps
FRESH = ("import", "device", "build", "clone", "step")  # once each, in this order
REPEATED = ("build again", "clone again", "step again")


def main(connection: Connection, hidden: str, device: str) -> None:
    """Send `(name, seconds of each repetition)` for each of `FRESH` and `REPEATED`, and at last None.

    Args:
        connection: To whoever asked; when it is closed, the process ends.
        hidden: Label of the network's hidden layers.
        device: `cpu` or `gpu`; the process's environment hides the others.
    """
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()

    def timed(call: Callable[[], object]) -> float:
        before = time.perf_counter()
        call()
        return time.perf_counter() - before

    def once(name: str, call: Callable[[], object]) -> None:
        connection.send((name, (timed(call),)))

    def again(name: str, call: Callable[[], object]) -> None:
        found: list[float] = []
        while len(found) < AGAIN and (len(found) < 3 or sum(found) < AGAIN_S):
            found.append(timed(call))
        connection.send((name, tuple(found)))

    once("import", _import)
    import keras
    import numpy as np
    import tensorflow as tf

    network, place = Network.parse(hidden), f"/{device.upper()}:0"
    images, labels = np.zeros((BATCH_SIZE, N_PIXELS), np.float32), np.zeros(BATCH_SIZE, np.int32)
    models: list[keras.Model] = []

    def build() -> None:
        layers = [keras.layers.Dense(width, activation="relu") for width in network.hidden]
        models[:] = [keras.Sequential([keras.Input((N_PIXELS,)), *layers, keras.layers.Dense(N_CLASSES)])]
        models[0].compile(
            optimizer=keras.optimizers.SGD(0.01), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )

    def clone() -> object:
        return keras.models.clone_model(models[0])

    def step() -> object:
        return models[0].train_on_batch(images, labels)

    with tf.device(place):
        once("device", lambda: tf.zeros(1).numpy())
        for name, call in (("build", build), ("clone", clone), ("step", step)):
            once(name, call)
            again(f"{name} again", call)
    connection.send(None)


def _import() -> None:
    with kept_away():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


def _end_with(connection: Connection) -> None:
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(0)
