"""The small convolutional network of larger work (`lib.timing.prediction.workload`), whose step JAX runs to be
measured."""

import jax
import jax.numpy as jnp
import numpy as np

from lib.model.backends.base import initial_parameters
from lib.model.backends.with_jax import logits_of as logits_of_layers
from lib.model.backends.with_jax import packed
from lib.model.spec import Network

SIDE, KERNEL = 28, 3
FILTERS = (32, 64)
LAYERS = Network((128,), n_inputs=(SIDE // 4) ** 2 * FILTERS[-1])  # that follow both convolutions


def initial() -> tuple:
    """Its parameters, float32 and He-normal: kernels (3, 3, inputs, filters), and the layers as JAX's backends want."""
    rng = np.random.default_rng(0)
    shapes = [(KERNEL, KERNEL, inputs, filters) for inputs, filters in zip((1, *FILTERS), FILTERS, strict=False)]
    kernels = [rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[:3]))) for shape in shapes]
    return kernels, packed(initial_parameters(LAYERS, 0))


def logits_of(parameters, x):
    """Forward pass: (batch, 784) → (batch, classes): twice a convolution, ReLU and 2×2 pooling, then two layers."""
    kernels, layers = parameters
    x = x.reshape(len(x), SIDE, SIDE, 1)
    for kernel in kernels:
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x).reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1)
        x = jnp.max(x, axis=(2, 4))  # (batch, side / 2, side / 2, filters)
    return logits_of_layers(layers, x.reshape(len(x), -1))
