"""Training with JAX: what makes it compile, and how parameters lie on the device. The rest is in `test_backends.py`."""

import numpy as np

from lib.backends import with_jax
from lib.backends.base import initial_parameters
from lib.spec import Network, Training


def test_learning_rate_epochs_and_seed_do_not_compile_again(small_data):
    list(with_jax.train(Training(Network((11,))), small_data))
    before = dict(with_jax.TRACES)
    for training in (
        Training(Network((11,)), learning_rate=0.3),
        Training(Network((11,)), epochs=5),
        Training(Network((11,)), seed=4),
    ):
        list(with_jax.train(training, small_data))
    assert before == with_jax.TRACES
    list(with_jax.train(Training(Network((11,)), batch_size=64), small_data))
    assert with_jax.TRACES["epoch"] == before["epoch"] + 1


def test_parameters_are_copied_to_the_device_and_back():
    parameters = initial_parameters(Network((5, 3)), 0)
    packed = with_jax.packed(parameters)
    assert [weights.shape for weights, _ in packed] == [(5, 784), (3, 5), (10, 3)]
    for (weights, biases), (again, biases_again), (on_device, _) in zip(
        parameters, with_jax.unpacked(packed), packed, strict=True
    ):
        np.testing.assert_array_equal(again, weights)
        np.testing.assert_array_equal(biases_again, biases)
        assert not np.shares_memory(on_device, weights), "compiled steps write into their arguments"
