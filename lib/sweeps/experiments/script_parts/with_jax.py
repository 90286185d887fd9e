"""Training loop of an exported script, in JAX."""

import os

import numpy as np

from lib.sweeps.experiments.script_parts.common import BATCH_SIZE, EPOCHS, LEARNING_RATE, Epochs, batch_starts

# jaxlib 0.10.2 can return wrong sums on a CPU (jax#39103).
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=-reduce")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # float32 on a GPU
import jax
import jax.numpy as jnp


def logits_of(parameters, x):
    for weights, biases in parameters[:-1]:
        x = jax.nn.relu(x @ weights + biases[None])  # (batch, width)
    weights, biases = parameters[-1]
    return x @ weights + biases[None]  # (batch, classes)


def loss_of(parameters, x, y):
    """Mean cross-entropy of images (batch, inputs) and labels (batch,)."""
    log_p = jax.nn.log_softmax(logits_of(parameters, x))  # (batch, classes)
    return -jnp.mean(log_p[jnp.arange(len(y)), y])


@jax.jit
def step(parameters, x, y):
    """Take one step of plain SGD; return the new parameters and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    moved = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients)
    return moved, loss


def train(
    parameters: list,
    x: np.ndarray,
    y: np.ndarray,
    x_validation: np.ndarray,
) -> Epochs:
    """Yield, after each epoch, its steps' losses and the validation logits."""
    for epoch in range(EPOCHS):
        losses = []
        for start in batch_starts(len(x), epoch):
            batch = slice(start, start + BATCH_SIZE)
            parameters, loss = step(parameters, x[batch], y[batch])
            losses.append(loss)
        yield np.array(losses), np.asarray(logits_of(parameters, x_validation))
