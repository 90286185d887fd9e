"""The float64 reference itself, and where nobody can agree with it in float32."""

import numpy as np
import pytest

from lib.model.backends import reference
from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training

ROUNDING = 2e-6  # what float32 makes of a sum of a few hundred terms near 1


def at_a_kink(training: Training, data: Data, steps: int) -> bool:
    """Whether a hidden neuron's input comes so near to 0 that its rounding decides on which side of ReLU's kink it is.

    Both sides are right then, but their gradients differ, and so does everything after that step.
    """
    starts = batch_starts(len(data.x_train), training.batch_size, training.seed, 0)[:steps]
    for done, start in enumerate(starts):
        _, parameters = reference.train(training, data, done)
        layer = data.x_train[start : start + training.batch_size].astype(np.float64)  # (batch, inputs)
        for weights, biases in parameters[:-1]:
            z = layer @ weights + biases  # (batch, neurons)
            if np.min(np.abs(z)) < ROUNDING:
                return True
            layer = np.maximum(z, 0)
    return False


def test_the_gradient_agrees_with_finite_differences(small_data):
    x, y = small_data.x_train[:8], small_data.y_train[:8]
    parameters = [(w.astype(float), b.astype(float) + 0.1) for w, b in initial_parameters(Network((5, 4)), 3)]
    _, gradients = reference.loss_and_gradients(parameters, x, y)
    rng = np.random.default_rng(0)
    for layer, (weights, biases) in enumerate(parameters):
        for array, gradient in zip((weights, biases), gradients[layer], strict=True):
            place = tuple(rng.integers(0, size) for size in array.shape)
            losses = []
            for nudge in (1e-6, -2e-6):
                array[place] += nudge
                losses.append(reference.loss_and_gradients(parameters, x, y)[0])
            array[place] += 1e-6
            assert gradient[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-6)


def test_a_neuron_at_its_kink_is_found(small_data):
    """As hypothesis found it: NumPy stayed with float64, JAX took the other side, and its losses went 0.4 % apart."""
    network, knife_edge = Network((8, 12, 6)), 1
    assert at_a_kink(Training(network, 0.01, 32, 1, seed=knife_edge), small_data, 20)
    assert not at_a_kink(Training(network, 0.01, 32, 1, seed=0), small_data, 20)
