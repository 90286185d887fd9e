"""Products of factors that are rounded to bfloat16 on a processor, beside NumPy's of the same rounded factors."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends import reference
from lib.model.backends.base import Epoch, Steps
from lib.model.backends.reference import N_STEPS, TOLERANCE
from lib.model.backends.registry import JAX_PRECISION, Runtime, load_train
from lib.model.backends.with_jax import ROUNDED, product, rounds_beforehand
from lib.model.spec import Network, Training
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Progress

sizes = st.integers(1, 9)


def rounded(array):
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float64)


def operands(n, inputs, outputs, contracted, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, inputs), np.float32), rng.standard_normal((inputs, outputs), np.float32)
    return a if contracted[0] == 1 else a.T, b if contracted[1] == 0 else b.T


@pytest.mark.slow
@given(sizes, sizes, sizes, st.tuples(st.integers(0, 1), st.integers(0, 1)), st.integers(0, 99))
def test_a_rounded_product_and_its_gradients_are_those_of_rounded_factors(n, inputs, outputs, contracted, seed):
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


def test_without_being_asked_nothing_is_rounded():
    a, b = operands(5, 7, 3, (1, 0), 0)
    assert not rounds_beforehand()
    np.testing.assert_allclose(product(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6)
    with jax.default_matmul_precision(JAX_PRECISION["tf32"]):
        assert not rounds_beforehand(), "no processor has it"


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(), (64,), (64, 32)])
def test_a_training_in_bfloat16_is_near_the_reference_and_not_that_of_float32(small_data, hidden):
    training = Training(Network(hidden), 0.1, 32, 1)

    def losses():
        return np.concatenate(
            [one.losses for one in load_train("jax-epoch")(training, small_data) if isinstance(one, Steps)]
        )

    exact = losses()
    with jax.default_matmul_precision(ROUNDED):
        here = losses()
    right, _ = reference.train(training, small_data, N_STEPS)
    np.testing.assert_allclose(here[:N_STEPS], right, rtol=TOLERANCE["bfloat16"])
    assert np.max(np.abs(here - exact)) > 1e-5


@pytest.mark.release
def test_a_worker_rounds_as_its_environment_says_and_learns_all_the_same(engine):
    """On any processor: one without matrix units computes the same, more slowly."""
    training = Training(Network((32,)), 0.1, 512, 2)

    def epochs(runtime):
        events = [one.event for one in engine.run(runtime, [training], Cancel()) if isinstance(one, Progress)]
        return [event for event in events if isinstance(event, Epoch)]

    exact, here = epochs(Runtime()), epochs(Runtime(precision="bfloat16"))
    assert here[-1].validation_loss != exact[-1].validation_loss
    assert here[-1].validation_accuracy == pytest.approx(exact[-1].validation_accuracy, abs=0.03)
