"""Keras' `fit` on whichever library `KERAS_BACKEND` named, without callbacks or validation, in two forms: the articles'
plain model, and the quickest that Keras documents.

A `fit` is of one epoch in both: only so can its batches come in the order that all participants share.
"""

# pyright: reportArgumentType=false
# Keras annotates `verbose` as text only.

from collections.abc import Iterator

import keras
import numpy as np

from benchmarks.peer.loop import by_fit
from lib.backends.base import Event, initial_parameters
from lib.backends.with_keras import build
from lib.data.mnist import Data
from lib.spec import Training

STEPS_PER_EXECUTION = 50


def train(training: Training, data: Data) -> Iterator[Event]:
    """As the articles call it: an accuracy is computed in each step, and the loop returns to Python after each."""
    yield from _train(training, data, _model(training))


def train_quickest(training: Training, data: Data) -> Iterator[Event]:
    """Many steps in a call (`steps_per_execution`), and no metric, which nobody else computes."""
    model = _model(training)
    model.compile(
        optimizer=model.optimizer,
        loss=model.loss,
        steps_per_execution=min(STEPS_PER_EXECUTION, training.steps_per_epoch(len(data.x_train))),
    )
    yield from _train(training, data, model)


def _model(training: Training) -> keras.Model:
    return build(training.network, training.learning_rate, initial_parameters(training.network, training.seed))


def _train(training: Training, data: Data, model: keras.Model) -> Iterator[Event]:
    def fit(x: np.ndarray, y: np.ndarray) -> float:
        return model.fit(x, y, batch_size=training.batch_size, epochs=1, shuffle=False, verbose=0).history["loss"][-1]

    def parameters():
        flat = model.get_weights()
        return list(zip(flat[::2], flat[1::2], strict=True))

    yield from by_fit(training, data, fit, parameters)
