"""Flax with Optax, in the form of Flax' own MNIST tutorial: an NNX module, its optimiser, one jitted step.

With what its guide to performance adds, `nnx.cached_partial`, which looks at the module once instead of at each step;
and without the tutorial's metrics, which nobody else computes.
"""

# pyright: reportMissingImports=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false
# pyright: reportArgumentType=false
# It is installed for its benchmark only. Its biases may be None; NumPy arrays are taken for its own.

from collections.abc import Iterator
from itertools import pairwise

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.peer.loop import by_step
from lib.model.backends.base import Event, Parameters, initial_parameters
from lib.model.data.mnist import Data
from lib.model.spec import Training


class Perceptron(nnx.Module):
    """Linear layers with ReLU between."""

    def __init__(self, widths: tuple[int, ...], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(inputs, outputs, rngs=rngs) for inputs, outputs in pairwise(widths)])

    def __call__(self, x: jax.Array) -> jax.Array:
        *hidden, last = self.layers
        for layer in hidden:
            x = nnx.relu(layer(x))  # (batch, width)
        return last(x)  # (batch, 10)


def loss_of(model: Perceptron, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def train_step(model: Perceptron, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, gradients)
    return loss


def train(training: Training, data: Data) -> Iterator[Event]:
    """Batches come from host memory, as they do from the tutorial's loader."""
    model = Perceptron(training.network.widths, nnx.Rngs(training.seed))
    start = initial_parameters(training.network, training.seed)
    for layer, (weights, biases) in zip(model.layers, start, strict=True):
        layer.kernel.set_value(jnp.array(weights))
        layer.bias.set_value(jnp.array(biases))
    optimizer = nnx.Optimizer(model, optax.sgd(training.learning_rate), wrt=nnx.Param)
    cached_step, size = nnx.cached_partial(train_step, model, optimizer), training.batch_size

    def step(start: int) -> jax.Array:
        stop = start + size
        return cached_step(data.x_train[start:stop], data.y_train[start:stop])

    def parameters() -> Parameters:
        return [tuple(jax.device_get((layer.kernel[...], layer.bias[...]))) for layer in model.layers]

    yield from by_step(training, data, step, jax.device_get, parameters)
