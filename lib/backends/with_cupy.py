"""Training with CuPy, NumPy's interface on a graphics card: batch by batch, and as the first article ported it, image
by image.

Every operation is a kernel that Python launches. The port goes through a batch one image at a time, adding up its
gradients, so that a batch of 32 costs 32 times as many launches; an epoch takes minutes, and a race measures only parts
of it.
"""

# pyright: reportMissingImports=false
# It is optional, and needs an NVIDIA card: requirements-cupy.txt.

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import cupy as cp
import numpy as np

from lib.backends.base import (
    CHUNK_S,
    VALIDATION_SLICE,
    Event,
    FirstCall,
    Parameters,
    epochs,
    initial_parameters,
)
from lib.data.mnist import Data
from lib.spec import Training

Array = Any  # on the card
OnCard = list[tuple[Array, Array]]  # weights (inputs, outputs), biases (outputs,)
Step = Callable[[OnCard, Array, Array, np.float32], Array]  # updates the parameters; the loss before it, on the card


def forward(parameters: OnCard, x: Array) -> list[Array]:
    """What goes into each layer, and the logits (batch, 10) last."""
    values = [x]
    for index, (weights, biases) in enumerate(parameters):
        z = values[-1] @ weights + biases  # (batch, width)
        values.append(cp.maximum(z, 0) if index + 1 < len(parameters) else z)
    return values


def loss_and_gradients(parameters: OnCard, x: Array, y: Array) -> tuple[Array, OnCard]:
    """Mean cross-entropy of a batch, and its gradients by all parameters."""
    values = forward(parameters, x)
    shifted = values[-1] - values[-1].max(axis=1, keepdims=True)
    exponents = cp.exp(shifted)
    sums = exponents.sum(axis=1, keepdims=True)
    rows = cp.arange(len(x))
    loss = cp.mean(cp.log(sums[:, 0]) - shifted[rows, y])
    delta = exponents / sums
    delta[rows, y] -= 1
    delta /= np.float32(len(x))  # (batch, 10)
    gradients: OnCard = []
    for index in range(len(parameters) - 1, -1, -1):
        gradients.insert(0, (values[index].T @ delta, delta.sum(axis=0)))
        if index:
            delta = (delta @ parameters[index][0].T) * (values[index] > 0)
    return loss, gradients


def descend(parameters: OnCard, gradients: OnCard, rate: np.float32) -> None:
    """Plain SGD, in place."""
    for (weights, biases), (by_weights, by_biases) in zip(parameters, gradients, strict=True):
        weights -= rate * by_weights
        biases -= rate * by_biases


def step_by_batch(parameters: OnCard, x: Array, y: Array, rate: np.float32) -> Array:
    """A step on images (batch, 784) and labels (batch,), all at once."""
    loss, gradients = loss_and_gradients(parameters, x, y)
    descend(parameters, gradients, rate)
    return loss


def step_by_image(parameters: OnCard, x: Array, y: Array, rate: np.float32) -> Array:
    """The same step, one image after another: the port that only changes the import."""
    total = [(cp.zeros_like(weights), cp.zeros_like(biases)) for weights, biases in parameters]
    loss = cp.zeros((), np.float32)
    for image in range(len(x)):
        one, gradients = loss_and_gradients(parameters, x[image : image + 1], y[image : image + 1])
        loss += one
        for (weights, biases), (by_weights, by_biases) in zip(total, gradients, strict=True):
            weights += by_weights
            biases += by_biases
    descend(parameters, total, rate / np.float32(len(x)))
    return loss / np.float32(len(x))


@lru_cache(maxsize=1)
def arrays(data: Data) -> tuple[Array, ...]:
    """Images and labels, moved to the card once."""
    return tuple(cp.asarray(one) for one in (data.x_train, data.y_train, data.x_validation, data.y_validation))


def wait() -> None:
    """Until the card has done what it was given."""
    cp.cuda.Device().synchronize()


def train(
    training: Training, data: Data, device: str = "gpu", parameters: Parameters | None = None, first_epoch: int = 0
) -> Iterator[Event]:
    """See `lib.backends.base`. `device` is always the card here."""
    yield from _train(step_by_batch, training, data, parameters, first_epoch)


def train_by_image(
    training: Training, data: Data, device: str = "gpu", parameters: Parameters | None = None, first_epoch: int = 0
) -> Iterator[Event]:
    """See `lib.backends.base`. `device` is always the card here."""
    yield from _train(step_by_image, training, data, parameters, first_epoch)


def _train(
    step: Step, training: Training, data: Data, parameters: Parameters | None, first_epoch: int
) -> Iterator[Event]:
    clock, size, rate = time.perf_counter, training.batch_size, np.float32(training.learning_rate)
    started = clock()
    current = _on_card(parameters or initial_parameters(training.network, training.seed))
    x, y, x_validation, y_validation = arrays(data)
    step([(w.copy(), b.copy()) for w, b in current], x[:size], y[:size], np.float32(0))  # compiles the kernels
    wait()
    yield FirstCall(clock() - started)

    def chunk(_epoch: int, starts: np.ndarray, done: int, _step_s: float | None) -> tuple[np.ndarray, float]:
        losses, before = [], clock()
        for first in starts[done:].tolist():
            losses.append(step(current, x[first : first + size], y[first : first + size], rate))
            if clock() - before >= CHUNK_S:
                break
        wait()
        chunk_s = clock() - before
        return cp.asnumpy(cp.stack(losses)).astype(np.float32), chunk_s

    def validate() -> tuple[float, float]:
        return evaluate(current, x_validation, y_validation)

    # Overflow is an outcome here, not an accident: it is reported as divergence.
    with np.errstate(all="ignore"):
        yield from epochs(training, len(data.x_train), first_epoch, chunk, validate, lambda: _at_home(current))


def evaluate(parameters: OnCard, x: Array, y: Array) -> tuple[float, float]:
    """Mean loss and accuracy over all images, in slices."""
    loss, correct = 0.0, 0
    for first in range(0, len(x), VALIDATION_SLICE):
        images, labels = x[first : first + VALIDATION_SLICE], y[first : first + VALIDATION_SLICE]
        logits = forward(parameters, images)[-1]
        shifted = logits - logits.max(axis=1, keepdims=True)
        right = shifted[cp.arange(len(images)), labels]
        loss += float((cp.log(cp.exp(shifted).sum(axis=1)) - right).sum())
        correct += int((logits.argmax(axis=1) == labels).sum())
    return loss / len(x), correct / len(x)


def _on_card(parameters: Parameters) -> OnCard:
    return [(cp.array(weights), cp.array(biases)) for weights, biases in parameters]


def _at_home(parameters: OnCard) -> Parameters:
    return [(cp.asnumpy(weights).copy(), cp.asnumpy(biases).copy()) for weights, biases in parameters]
