"""Training in float64, written for clarity alone: tests and workers compare every backend with it."""

import numpy as np

from lib.model.backends.base import Parameters, initial_parameters
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Training


def loss_and_gradients(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> tuple[float, Parameters]:
    """Mean cross-entropy of images (batch, 784) and labels (batch,), and its gradient by the chain rule."""
    activations = [x.astype(np.float64)]
    for index, (weights, biases) in enumerate(parameters):
        z = activations[-1] @ weights + biases
        activations.append(np.maximum(z, 0) if index + 1 < len(parameters) else z)
    logits = activations[-1]
    log_sum = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    loss = float(np.mean(log_sum - logits[np.arange(len(y)), y]))
    delta = np.exp(logits - log_sum[:, None])
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    gradients: Parameters = []
    for index in range(len(parameters) - 1, -1, -1):
        gradients.insert(0, (activations[index].T @ delta, delta.sum(0)))
        delta = (delta @ parameters[index][0].T) * (activations[index] > 0)
    return loss, gradients


def train(training: Training, data: Data, steps: int) -> tuple[np.ndarray, Parameters]:
    """Losses (steps,) of the first steps of the first epoch, and the parameters after them."""
    parameters = [
        (w.astype(np.float64), b.astype(np.float64)) for w, b in initial_parameters(training.network, training.seed)
    ]
    losses = []
    for start in batch_starts(len(data.x_train), training.batch_size, training.seed, 0)[:steps]:
        stop = start + training.batch_size
        loss, gradients = loss_and_gradients(parameters, data.x_train[start:stop], data.y_train[start:stop])
        losses.append(loss)
        parameters = [
            (w - training.learning_rate * gw, b - training.learning_rate * gb)
            for (w, b), (gw, gb) in zip(parameters, gradients, strict=True)
        ]
    return np.array(losses), parameters
