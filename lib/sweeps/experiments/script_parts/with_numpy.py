"""Training loop of an exported script, in plain NumPy."""

import numpy as np

from lib.sweeps.experiments.script_parts.common import BATCH_SIZE, EPOCHS, LEARNING_RATE, Epochs, batch_starts


def forward(parameters: list, x: np.ndarray) -> list[np.ndarray]:
    """Return the input (batch, inputs), then each layer's output; logits come last."""
    outputs = [x]
    for index, (weights, biases) in enumerate(parameters, 1):
        z = outputs[-1] @ weights + biases  # (batch, width)
        outputs.append(np.maximum(z, 0) if index < len(parameters) else z)
    return outputs


def loss_and_gradients(parameters: list, x: np.ndarray, y: np.ndarray) -> tuple:
    """Return mean cross-entropy and its gradients, by layer: weights and biases."""
    outputs, rows = forward(parameters, x), np.arange(len(y))
    shifted = outputs[-1] - outputs[-1].max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    delta = np.exp(log_p)
    delta[rows, y] -= 1
    delta /= len(y)  # gradient with respect to the logits, (batch, classes)
    gradients = []
    for index in reversed(range(len(parameters))):
        gradients.insert(0, (outputs[index].T @ delta, delta.sum(axis=0)))
        if index > 0:
            delta = delta @ parameters[index][0].T * (outputs[index] > 0)
    return -log_p[rows, y].mean(), gradients


def train(
    parameters: list,
    x: np.ndarray,
    y: np.ndarray,
    x_validation: np.ndarray,
) -> Epochs:
    """Yield, after each epoch, its steps' losses and the validation logits."""
    np.seterr(all="ignore")  # divergence is a valid result
    for epoch in range(EPOCHS):
        losses = []
        for start in batch_starts(len(x), epoch):
            batch = slice(start, start + BATCH_SIZE)
            loss, gradients = loss_and_gradients(parameters, x[batch], y[batch])
            losses.append(loss)
            for layer, gradient in zip(parameters, gradients, strict=True):
                for values, slope in zip(layer, gradient, strict=True):
                    values -= LEARNING_RATE * slope
        yield np.array(losses), forward(parameters, x_validation)[-1]
