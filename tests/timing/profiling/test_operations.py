"""Every library makes the same operations: those of a step, with the reference's gradients."""

import time
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.reference import loss_and_gradients
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.operations import (
    ALL,
    COMPILED,
    LIBRARIES,
    OPERATIONS,
    PRODUCT,
    forward_and_backward,
    measure_operations,
    steps,
)

NETWORK = Network((16,))


@pytest.fixture
def subject(small_data):
    return Subject(NETWORK, 32, small_data, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["numpy", "jax"])
def test_the_operations_are_those_of_a_step(subject, worker):
    """Their gradients are the reference's, in float64 and by other formulas."""
    library = LIBRARIES[worker]("cpu")
    x, y = subject.batch
    (w1, b1), (w2, b2) = subject.parameters
    onehot = np.eye(10, dtype=np.float32)[y]
    values = forward_and_backward(
        library, library.move(x), library.move(onehot), [library.move(one) for one in (w1, b1[None], w2, b2[None])]
    )
    loss, gradients = loss_and_gradients(subject.parameters, x, y)
    assert float(values["loss"]) == pytest.approx(loss, rel=1e-5)
    for name, expected in zip(("dw1", "db1", "dw2", "db2"), [g for layer in gradients for g in layer], strict=True):
        np.testing.assert_allclose(np.asarray(values[name]), np.atleast_2d(expected), rtol=1e-3, atol=1e-6)


def test_each_operation_of_the_table_is_measured(subject):
    named = {operation.key for operation in OPERATIONS}
    assert set(steps(LIBRARIES["numpy"]("cpu"), subject)) == named | {ALL, PRODUCT}
    assert set(steps(LIBRARIES["jax"]("cpu"), subject)) == named | {ALL, PRODUCT, COMPILED}


@pytest.mark.slow
def test_a_part_takes_no_longer_than_its_whole_on_a_machine_that_slows_down(subject, monkeypatch):
    """Whatever is measured first or last."""
    began_s, plain = time.monotonic(), LIBRARIES["numpy"]("cpu")

    def product(*operands):
        time.sleep(2e-4 * (1 + 4 * (time.monotonic() - began_s)))
        return plain.product(*operands)

    monkeypatch.setitem(LIBRARIES, "numpy", lambda _: replace(plain, product=product))
    found = {row[0]: row[1].median_s for row in measure_operations("numpy", subject) if row}
    assert found[PRODUCT] < 1.2 * found["hidden"]
    assert sum(found[one.key] for one in OPERATIONS) == pytest.approx(found[ALL], rel=0.3)


def test_measuring_an_update_again_and_again_does_not_run_away(subject):
    parameters = subject.parameters
    calls = steps(LIBRARIES["numpy"]("cpu"), subject)
    for _ in range(1000):
        calls["update"]()
    assert np.isfinite(calls["hidden"]()).all()
    assert all((a == b).all() for a, b in zip(parameters[0], subject.parameters[0], strict=True)), "the caller's stay"
