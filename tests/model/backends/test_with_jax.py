import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends import reference, with_jax
from lib.model.backends.base import Epoch, initial_parameters
from lib.model.backends.reference import N_STEPS, TOLERANCE
from lib.model.backends.registry import JAX_PRECISION, Runtime
from lib.model.backends.with_jax import ROUNDED, product, rounds_beforehand
from lib.model.data.mnist import batch_starts
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import Job, Progress
from lib.sweeps.workers.queue import Cancel
from tests.model.backends.comparing import losses_of


@pytest.mark.slow
def test_changing_rate_epochs_or_seed_does_not_recompile(small_data, monkeypatch):
    first = Training(Network((11,)))
    list(with_jax.train(first, small_data))
    monkeypatch.setattr(with_jax, "cross_entropy", None)  # tracing a program calls it
    for change in ({"learning_rate": 0.3}, {"epochs": 5}, {"seed": 4}):
        list(with_jax.train(replace(first, **change), small_data))
    with pytest.raises(TypeError, match="not callable"):
        list(with_jax.train(replace(first, batch_size=64), small_data))


def compiled_steps(data, block):
    layers, starts = with_jax.packed(initial_parameters(Network((5,)), 0)), batch_starts(len(data.x_train), 32, 0, 0)
    given = layers, jnp.zeros(len(starts), jnp.float32), starts, 0, 20, data.x_train, data.y_train, np.float32(0.1)
    return with_jax.run_steps.lower(*given, batch_size=32, block=block).compile().as_text() or ""


@pytest.mark.slow
def test_blocks_are_loops_of_known_length(small_data):
    text = compiled_steps(small_data, 8)
    known = re.findall(r'known_trip_count":\{"n":"(\d+)"', text)
    assert known == ["8"], "one loop of eight steps, inside the one over blocks"
    assert "known_trip_count" not in compiled_steps(small_data, 1), "a processor does not wait, and compiles it once"
    assert len(re.findall(r" while\(", text)) == 3, "blocks, the steps of one, and the steps that are left"


@pytest.mark.slow
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 12))
def test_running_in_blocks_does_not_change_the_steps(first, more, block):
    def collect(index, seen):
        return seen * 3 % 1_000_003 + index  # depends on the steps and on their order

    found = jax.jit(with_jax.in_blocks, static_argnums=(0, 4))(collect, first, first + more, jnp.int32(1), block)
    expected = 1
    for index in range(first, first + more):
        expected = collect(index, expected)
    assert int(found) == expected


sizes = st.integers(1, 9)


def rounded(array):
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float64)


def operands(n, inputs, outputs, contracted, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, inputs), np.float32), rng.standard_normal((inputs, outputs), np.float32)
    return a if contracted[0] == 1 else a.T, b if contracted[1] == 0 else b.T


@pytest.mark.slow
@given(sizes, sizes, sizes, st.tuples(st.integers(0, 1), st.integers(0, 1)), st.integers(0, 99))
def test_a_bfloat16_product_and_its_gradients_round_the_factors(n, inputs, outputs, contracted, seed):
    a, b = operands(n, inputs, outputs, contracted, seed)
    by = np.random.default_rng(seed + 1).standard_normal((n, outputs), np.float32)
    with jax.default_matmul_precision(ROUNDED):
        found, pull = jax.vjp(lambda a, b: product(a, b, contracted), jnp.asarray(a), jnp.asarray(b))
        of_a, of_b = pull(jnp.asarray(by))
    left = rounded(a) if contracted[0] == 1 else rounded(a).T
    right = rounded(b) if contracted[1] == 0 else rounded(b).T
    in_a, in_b = rounded(by) @ right.T, left.T @ rounded(by)
    for here, expected in (
        (found, left @ right),
        (of_a, in_a if contracted[0] == 1 else in_a.T),
        (of_b, in_b if contracted[1] == 0 else in_b.T),
    ):
        assert np.asarray(here).dtype == np.float32
        np.testing.assert_allclose(np.asarray(here), expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_rounded_by_default():
    a, b = operands(5, 7, 3, (1, 0), 0)
    assert not rounds_beforehand()
    np.testing.assert_allclose(product(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6)
    with jax.default_matmul_precision(JAX_PRECISION["tf32"]):
        assert not rounds_beforehand(), "no processor has it"


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(), (64,), (64, 32)])
def test_bfloat16_training_is_near_the_reference_but_not_float32(small_data, hidden):
    training = Training(Network(hidden), 0.1, 32, 1)

    exact = losses_of(with_jax.train(training, small_data))
    with jax.default_matmul_precision(ROUNDED):
        here = losses_of(with_jax.train(training, small_data))
    right, _ = reference.train(training, small_data, N_STEPS)
    np.testing.assert_allclose(here[:N_STEPS], right, rtol=TOLERANCE["bfloat16"])
    assert np.max(np.abs(here - exact)) > 1e-5


@pytest.mark.release
def test_a_bfloat16_worker_rounds_and_still_learns(engine):
    training = Training(Network((32,)), 0.1, 512, 2)

    def epochs(runtime):
        events = [one.event for one in engine.run([Job(runtime, (training,))], Cancel()) if isinstance(one, Progress)]
        return [event for event in events if isinstance(event, Epoch)]

    exact, here = epochs(Runtime()), epochs(Runtime(precision="bfloat16"))
    assert here[-1].validation_loss != exact[-1].validation_loss
    assert here[-1].validation_accuracy == pytest.approx(exact[-1].validation_accuracy, abs=0.03)
