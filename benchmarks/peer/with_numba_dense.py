"""Numba as its own guide has it: the step in array expressions, compiled, whose products are BLAS'.

Zeros are not left out. Not with `parallel=True`, which the guide recommends too: it stops a loop over layers of
different shapes (“Sizes … do not match”, Numba 0.68).
"""

from collections.abc import Iterator

import numpy as np
from numba import njit

from benchmarks.peer.loop import by_step
from lib.model.backends.base import Event, Parameters, initial_parameters
from lib.model.data.mnist import Data
from lib.model.spec import Training


@njit(fastmath=True)
def train_step(x, y, weights, biases, rate):
    """Plain SGD on images (batch, inputs) and labels (batch,), in place; returns the mean cross-entropy."""
    n, last = len(x), len(weights) - 1
    activations = [x]
    for layer in range(last):
        activations.append(np.maximum(np.dot(activations[layer], weights[layer]) + biases[layer], np.float32(0)))
    logits = np.dot(activations[last], weights[last]) + biases[last]
    loss = np.float32(0)
    for i in range(n):
        logits[i] -= logits[i].max()
        loss -= logits[i, y[i]]
        logits[i] = np.exp(logits[i])
        total = logits[i].sum()
        loss += np.log(total)
        logits[i] /= total
        logits[i, y[i]] -= np.float32(1)
    delta = logits / np.float32(n)
    for back in range(last + 1):
        layer = last - back
        matrix, row, inputs = weights[layer], biases[layer], activations[layer]
        below = np.dot(delta, matrix.T) if layer else delta
        matrix -= rate * np.dot(inputs.T, delta)
        row -= rate * delta.sum(axis=0)
        delta = below * (inputs > 0).astype(np.float32) if layer else below
    return loss / np.float32(n)


def train(training: Training, data: Data) -> Iterator[Event]:
    size, rate = training.batch_size, np.float32(training.learning_rate)
    start_at = initial_parameters(training.network, training.seed)
    weights, biases = tuple(w for w, _ in start_at), tuple(b for _, b in start_at)

    def step(start: int) -> float:
        x, y = data.x_train[start : start + size], data.y_train[start : start + size]
        return float(train_step(x, y, weights, biases, rate))

    def parameters() -> Parameters:
        return [(w.copy(), b.copy()) for w, b in zip(weights, biases, strict=True)]

    yield from by_step(training, data, step, list, parameters)
