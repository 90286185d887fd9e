"""Keras' `fit` on whichever library `KERAS_BACKEND` named, one over all epochs, without validation, in two forms: the
articles' plain model, and the quickest that Keras documents.
"""

# pyright: reportArgumentType=false
# Keras annotates `verbose` as text only.

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import keras
import numpy as np

from benchmarks.peer.loop import by_fit
from lib.model.backends.base import Event, initial_parameters
from lib.model.backends.with_keras import build
from lib.model.data.mnist import Data
from lib.model.spec import Training

STEPS_PER_EXECUTION = 50


def train(training: Training, data: Data) -> Iterator[Event]:
    """As the articles call it: an accuracy is computed in each step, and the loop returns to Python after each."""
    yield from _train(training, data, _model(training))


def train_quickest(training: Training, data: Data) -> Iterator[Event]:
    """No metric, which nobody else computes, and many steps in a call, which Keras refuses on PyTorch."""
    model = _model(training)
    steps = 1 if keras.backend.backend() == "torch" else STEPS_PER_EXECUTION
    model.compile(
        optimizer=model.optimizer,
        loss=model.loss,
        steps_per_execution=min(steps, training.steps_per_epoch(len(data.x_train))),
    )
    yield from _train(training, data, model)


def _model(training: Training) -> keras.Model:
    return build(training.network, training.learning_rate, initial_parameters(training.network, training.seed))


def _train(training: Training, data: Data, model: keras.Model) -> Iterator[Event]:
    start = model.get_weights()

    def fit(x: np.ndarray, y: np.ndarray, epochs: int) -> Iterator[float]:
        """The `fit` runs in a thread of its own, and waits at the end of each epoch."""
        ended, more = Queue[float | None](), Queue[bool]()

        def wait(_epoch: int, logs: dict[str, float]) -> None:
            ended.put(logs["loss"])
            model.stop_training = not more.get()

        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(
                model.fit,
                x,
                y,
                batch_size=training.batch_size,
                epochs=epochs,
                shuffle=False,
                verbose=0,
                callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=wait)],
            )
            running.add_done_callback(lambda _: ended.put(None))
            try:
                while (loss := ended.get()) is not None:
                    yield loss
                    more.put(True)
            finally:
                more.put(False)
            running.result()

    def parameters():
        flat = model.get_weights()
        return list(zip(flat[::2], flat[1::2], strict=True))

    yield from by_fit(training, data, fit, lambda: model.set_weights(start), parameters)
