"""Keras' plain `fit`, on whichever library `KERAS_BACKEND` named: the articles' model, without callbacks or
validation."""

# pyright: reportArgumentType=false
# Keras annotates `verbose` as text only.

from collections.abc import Iterator

import numpy as np

from benchmarks.peer.loop import by_fit
from lib.backends.base import Event, initial_parameters
from lib.backends.with_keras import build
from lib.data.mnist import Data
from lib.spec import Training


def train(training: Training, data: Data) -> Iterator[Event]:
    model = build(training.network, training.learning_rate, initial_parameters(training.network, training.seed))

    def fit(x: np.ndarray, y: np.ndarray) -> float:
        return model.fit(x, y, batch_size=training.batch_size, epochs=1, shuffle=False, verbose=0).history["loss"][-1]

    def parameters():
        flat = model.get_weights()
        return list(zip(flat[::2], flat[1::2], strict=True))

    yield from by_fit(training, data, fit, parameters)
