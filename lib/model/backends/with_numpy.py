"""Training with NumPy alone: forward, backward and update by hand, into buffers allocated once.

The matrix products go straight to BLAS; the remaining overhead is about twenty NumPy calls per step.
"""

import time
from functools import partial

import numpy as np

from lib.model.backends.base import VALIDATION_SLICE, Loop, Parameters, backend, next_chunk
from lib.model.data.mnist import Data
from lib.model.spec import Network, Training


class Workspace:
    """Buffers for one batch size: activations, their gradients, and the gradients of the parameters."""

    def __init__(self, network: Network, batch_size: int) -> None:
        outputs = network.widths[1:]
        self.activations = [np.empty((batch_size, width), np.float32) for width in outputs]
        self.deltas = [np.empty((batch_size, width), np.float32) for width in outputs]
        self.masks = [np.empty((batch_size, width), np.bool_) for width in outputs[:-1]]
        self.weight_gradients = [np.empty(shape, np.float32) for shape in network.shapes]
        self.bias_gradients = [np.empty(shape[1], np.float32) for shape in network.shapes]
        self.rows = np.arange(batch_size)
        self.column = np.empty((batch_size, 1), np.float32)


def forward(parameters: Parameters, x: np.ndarray, activations: list[np.ndarray]) -> np.ndarray:
    """Fill `activations` layer by layer, with ReLU in between; return the last, the logits (batch, classes)."""
    last = len(parameters) - 1
    for index, ((weights, biases), out) in enumerate(zip(parameters, activations, strict=True)):
        np.matmul(x, weights, out=out)  # (batch, width)
        out += biases
        if index < last:
            np.maximum(out, 0, out=out)
        x = out
    return x


def loss_and_gradients(parameters: Parameters, x: np.ndarray, y: np.ndarray, work: Workspace) -> np.float32:
    """Mean cross-entropy of images (batch, inputs) and labels (batch,); leaves the gradients in `work`."""
    logits = forward(parameters, x, work.activations)
    delta = work.deltas[-1]
    np.subtract(logits, logits.max(axis=1, keepdims=True, out=work.column), out=delta)
    picked = delta[work.rows, y]  # shifted logit of the right class, (batch,)
    np.exp(delta, out=delta)
    np.sum(delta, axis=1, keepdims=True, out=work.column)
    loss = np.mean(np.log(work.column[:, 0]) - picked)
    delta /= work.column  # softmax
    delta[work.rows, y] -= 1
    delta /= len(x)  # gradient of the mean loss w.r.t. the logits, (batch, classes)
    for index in range(len(parameters) - 1, -1, -1):
        inputs = work.activations[index - 1] if index else x
        np.matmul(inputs.T, work.deltas[index], out=work.weight_gradients[index])
        np.sum(work.deltas[index], axis=0, out=work.bias_gradients[index])
        if index:
            np.matmul(work.deltas[index], parameters[index][0].T, out=work.deltas[index - 1])
            np.greater(work.activations[index - 1], 0, out=work.masks[index - 1])
            work.deltas[index - 1] *= work.masks[index - 1]
    return loss


def update(parameters: Parameters, learning_rate: np.float32, work: Workspace) -> None:
    """Update by plain SGD, in place; overwrites the gradient buffers."""
    for (weights, biases), weight_gradient, bias_gradient in zip(
        parameters, work.weight_gradients, work.bias_gradients, strict=True
    ):
        weight_gradient *= learning_rate
        weights -= weight_gradient
        bias_gradient *= learning_rate
        biases -= bias_gradient


def evaluate(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean loss and accuracy over all images."""
    loss, correct = 0.0, 0
    for first in range(0, len(x), VALIDATION_SLICE):
        images, labels = x[first : first + VALIDATION_SLICE], y[first : first + VALIDATION_SLICE]
        logits = predict_logits(parameters, images)
        shifted = logits - logits.max(axis=1, keepdims=True)
        right = np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]
        loss += float(np.sum(np.log(np.exp(shifted).sum(axis=1)) - right, dtype=np.float64))
        correct += int(np.sum(np.argmax(logits, axis=1) == labels))
    return loss / len(x), correct / len(x)


def predict_logits(parameters: Parameters, x: np.ndarray) -> np.ndarray:
    """Logits (n, classes) of images (n, inputs)."""
    return forward(parameters, x, [np.empty((len(x), biases.size), np.float32) for _, biases in parameters])


def _copy(parameters: Parameters) -> Parameters:
    return [(weights.copy(), biases.copy()) for weights, biases in parameters]


@backend
def train(training: Training, data: Data, _device: str, parameters: Parameters) -> Loop:
    """Train on the CPU. See `lib.model.backends.base`."""
    clock = time.perf_counter
    current, work = _copy(parameters), Workspace(training.network, training.batch_size)
    rate, size = np.float32(training.learning_rate), training.batch_size

    def chunk(_epoch: int, starts: np.ndarray, done: int, step_s: float | None) -> tuple[np.ndarray, float]:
        part = starts[done : done + next_chunk(len(starts) - done, step_s)].tolist()
        losses, before = np.empty(len(part), np.float32), clock()
        for index, start in enumerate(part):
            stop = start + size
            losses[index] = loss_and_gradients(current, data.x_train[start:stop], data.y_train[start:stop], work)
            update(current, rate, work)
        return losses, clock() - before

    return chunk, partial(evaluate, current, data.x_validation, data.y_validation), lambda: _copy(current)
