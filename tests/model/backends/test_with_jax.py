"""Training with JAX: what makes it compile, and how parameters lie on the device. The rest is in `test_backends.py`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends import with_jax
from lib.model.backends.base import Steps, initial_parameters
from lib.model.data.mnist import batch_starts
from lib.model.spec import Network, Training


@pytest.mark.slow
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


def arguments_of(data, batch_size):
    starts = batch_starts(len(data.x_train), batch_size, 0, 0)
    layers = with_jax.packed(initial_parameters(Network((5,)), 0))
    return layers, jnp.zeros(len(starts), jnp.float32), starts, data.x_train, data.y_train


def compiled_steps(data, block):
    layers, losses, starts, x, y = arguments_of(data, 32)
    lowered = with_jax.run_steps.lower(layers, losses, starts, 0, 20, x, y, np.float32(0.1), batch_size=32, block=block)
    return lowered.compile().as_text() or ""


@pytest.mark.slow
def test_blocks_are_loops_of_known_length(small_data):
    """A GPU asks the host before each iteration of a loop whose length it does not know."""
    known = re.findall(r'known_trip_count":\{"n":"(\d+)"', compiled_steps(small_data, 8))
    assert known == ["8"], "one loop of eight steps, inside the one over blocks"
    assert "known_trip_count" not in compiled_steps(small_data, 1), "a processor does not wait, and compiles it once"
    text = compiled_steps(small_data, 8)
    assert len(re.findall(r" while\(", text)) == 3, "blocks, the steps of one, and the steps that are left"


@pytest.mark.slow
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 12))
def test_steps_in_blocks_are_the_same_steps(first, more, block):
    def collect(index, seen):
        return seen * 3 % 1_000_003 + index  # depends on which steps, and on their order

    found = jax.jit(with_jax.in_blocks, static_argnums=(0, 4))(collect, first, first + more, jnp.int32(1), block)
    expected = 1
    for index in range(first, first + more):
        expected = collect(index, expected)
    assert int(found) == expected


@pytest.mark.slow
@pytest.mark.parametrize("block", [4, 32])
def test_blocks_change_no_loss(small_data, block, monkeypatch):
    training = Training(Network((5,)), batch_size=32, epochs=2)
    plain = [event.losses for event in with_jax.train(training, small_data) if isinstance(event, Steps)]
    monkeypatch.setitem(with_jax.BLOCK, "cpu", block)
    blocked = [event.losses for event in with_jax.train(training, small_data) if isinstance(event, Steps)]
    np.testing.assert_allclose(np.concatenate(blocked), np.concatenate(plain), rtol=1e-5)
