"""Training with CuPy, NumPy's interface on a GPU: batch by batch, or image by image, as the first article ported it.

Python launches a kernel for every operation. The article's port processes a batch image by image and sums the
gradients, so a batch of 32 costs 32 times as many launches; an epoch takes minutes, so the race times only parts of it.
"""

# pyright: reportMissingImports=false
# Optional, and needs an NVIDIA GPU: requirements-cupy.txt.

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import cupy as cp
import numpy as np

from lib.model.backends.base import VALIDATION_SLICE, Loop, Parameters, backend, one_step_at_a_time
from lib.model.data.mnist import Data
from lib.model.spec import Training

Array = Any  # in GPU memory
OnCard = list[tuple[Array, Array]]  # weights (inputs, outputs), biases (outputs,)
Step = Callable[[OnCard, np.float32, Array, Array], Array]  # updates the parameters; returns the loss before the update


def forward(parameters: OnCard, x: Array) -> list[Array]:
    """Return the inputs of each layer, (batch, inputs), and finally the logits, (batch, classes)."""
    values = [x]
    for index, (weights, biases) in enumerate(parameters):
        z = values[-1] @ weights + biases  # (batch, width)
        values.append(cp.maximum(z, 0) if index + 1 < len(parameters) else z)
    return values


def loss_and_gradients(parameters: OnCard, x: Array, y: Array) -> tuple[Array, OnCard]:
    """Return a batch's mean cross-entropy, and its gradient with respect to each parameter."""
    values = forward(parameters, x)
    shifted = values[-1] - values[-1].max(axis=1, keepdims=True)
    exponents = cp.exp(shifted)
    sums = exponents.sum(axis=1, keepdims=True)
    rows = cp.arange(len(x))
    loss = cp.mean(cp.log(sums[:, 0]) - shifted[rows, y])
    delta = exponents / sums
    delta[rows, y] -= 1
    delta /= np.float32(len(x))  # (batch, classes)
    gradients: OnCard = []
    for index in range(len(parameters) - 1, -1, -1):
        gradients.insert(0, (values[index].T @ delta, delta.sum(axis=0)))
        if index:
            delta = (delta @ parameters[index][0].T) * (values[index] > 0)
    return loss, gradients


def descend(parameters: OnCard, gradients: OnCard, rate: np.float32) -> None:
    """Update by plain SGD, in place."""
    for (weights, biases), (by_weights, by_biases) in zip(parameters, gradients, strict=True):
        weights -= rate * by_weights
        biases -= rate * by_biases


def step_by_batch(parameters: OnCard, rate: np.float32, x: Array, y: Array) -> Array:
    """Take one step on images (batch, inputs) and labels (batch,), all at once."""
    loss, gradients = loss_and_gradients(parameters, x, y)
    descend(parameters, gradients, rate)
    return loss


def step_by_image(parameters: OnCard, rate: np.float32, x: Array, y: Array) -> Array:
    """Take the same step, image by image: a port that changes only the import."""
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
    """Images and labels, copied to the GPU once."""
    return tuple(cp.asarray(one) for one in (data.x_train, data.y_train, data.x_validation, data.y_validation))


def wait() -> None:
    """Block until the GPU has finished its queue."""
    cp.cuda.Device().synchronize()


def _begin(step: Step, training: Training, data: Data, _device: str, parameters: Parameters) -> Loop:
    size, rate = training.batch_size, np.float32(training.learning_rate)
    current = [(cp.array(weights), cp.array(biases)) for weights, biases in parameters]
    x, y, x_validation, y_validation = arrays(data)
    step([(w.copy(), b.copy()) for w, b in current], np.float32(0), x[:size], y[:size])  # compiles the kernels
    wait()
    chunk = one_step_at_a_time(
        partial(step, current, rate), wait, lambda losses: cp.asnumpy(cp.stack(losses)).astype(np.float32), x, y, size
    )
    return chunk, partial(evaluate, current, x_validation, y_validation), lambda: _on_host(current)


train = backend(partial(_begin, step_by_batch))
train_by_image = backend(partial(_begin, step_by_image))


def evaluate(parameters: OnCard, x: Array, y: Array) -> tuple[float, float]:
    """Mean loss and accuracy over all images, in slices."""
    losses, correct = [], []
    for first in range(0, len(x), VALIDATION_SLICE):
        images, labels = x[first : first + VALIDATION_SLICE], y[first : first + VALIDATION_SLICE]
        logits = forward(parameters, images)[-1]
        shifted = logits - logits.max(axis=1, keepdims=True)
        right = shifted[cp.arange(len(images)), labels]
        losses.append((cp.log(cp.exp(shifted).sum(axis=1)) - right).sum())
        correct.append((logits.argmax(axis=1) == labels).sum())
    # Copied at the end, because the card would wait for each copy.
    return sum(cp.asnumpy(cp.stack(losses)).tolist()) / len(x), int(cp.asnumpy(cp.stack(correct)).sum()) / len(x)


def _on_host(parameters: OnCard) -> Parameters:
    return [(cp.asnumpy(weights).copy(), cp.asnumpy(biases).copy()) for weights, biases in parameters]
