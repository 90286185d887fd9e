"""Every library makes the same operations: those of a step, with the reference's gradients; and has ceilings."""

import time

import numpy as np
import pytest

from lib.model.backends.reference import loss_and_gradients
from lib.model.backends.registry import ALL_DEVICES
from lib.model.hardware.webgpu import BROWSER, SOFTWARE
from lib.model.spec import Network
from lib.timing.measurement import Config, no_wait
from lib.timing.profiling import operations
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.operations import (
    ALL,
    COMPILED,
    LIBRARIES,
    OPERATIONS,
    PRODUCT,
    SIDES,
    calls_of,
    forward_and_backward,
    makers_of,
    measure_ceilings,
)
from tests.cupy_stand_in import in_cupys_place
from tests.software_adapter import needs_software_adapter

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
    assert set(calls_of(LIBRARIES["numpy"]("cpu"), subject)) == named | {ALL, PRODUCT}
    assert set(calls_of(LIBRARIES["jax"]("cpu"), subject)) == named | {ALL, PRODUCT, COMPILED}


def test_measuring_an_update_again_and_again_does_not_run_away(subject):
    parameters = subject.parameters
    calls = calls_of(LIBRARIES["numpy"]("cpu"), subject)
    for _ in range(1000):
        calls["update"]()
    assert np.isfinite(calls["hidden"]()).all()
    assert all((a == b).all() for a, b in zip(parameters[0], subject.parameters[0], strict=True)), "the caller's stay"


QUICK = Config(warm_up_s=0.0, min_time_s=0.002, max_time_s=0.02, min_blocks=3)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(operations, "CEILINGS", QUICK)
    monkeypatch.setattr(operations, "COPY_BYTES", 2**12)
    monkeypatch.setattr(operations, "l2_cache_bytes", lambda: 50 * 2**20)


def rows_of(backend, device):
    return {row[0]: row for row in measure_ceilings(backend, device) if row is not None}


@pytest.mark.parametrize("worker", ["numpy", "jax", "keras-jax"])
def test_every_library_has_its_probes(worker):
    assert list(makers_of(worker, "cpu")) == ["product", "copy", "dispatch"]
    assert set(SIDES) == set(ALL_DEVICES) - {BROWSER}, "no worker of this machine runs in a browser"


@pytest.mark.slow
@needs_software_adapter
def test_an_adapter_is_probed_by_the_kernels_that_train_on_it(monkeypatch):
    monkeypatch.setattr(operations, "SIDES", {SOFTWARE: (40,)})
    found = rows_of("webgpu-step", SOFTWARE)
    assert list(found) == ["product", "copy", "dispatch"]
    assert found["product"][2] == 2.0 * 40**3


@pytest.mark.parametrize(("device", "tried", "best"), [("gpu", [2048, 4096, 8192], 4096), ("cpu", [2048], 2048)])
def test_the_best_rate_of_several_products_is_the_ceiling(monkeypatch, device, tried, best):
    """On a fast card 2,048 takes as long as its call; and the largest may be throttled."""
    made = []

    def product(side):
        made.append(side)
        return lambda: time.sleep({2048: 1e-3, 4096: 2e-3, 8192: 0.2}[side]), no_wait, 2.0 * side**3

    monkeypatch.setattr(operations, "makers_of", lambda worker, device: {"product": product})
    (_, measured, work) = rows_of("jax-epoch", device)["product"]
    assert made == tried == list(SIDES[device])
    assert work == 2.0 * best**3
    assert measured.median_s < 20e-3, "of that one"


def test_a_card_is_asked_for_its_cache_and_a_processor_is_not(monkeypatch):
    """With NumPy in CuPy's place: its probes run, and count what they do."""
    monkeypatch.setattr(operations, "SIDES", {"cpu": (8,), "gpu": (8, 16)})
    with in_cupys_place():
        found = rows_of("cupy", "gpu")
    assert list(found) == ["product", "copy", "dispatch", "cache"]
    assert found["product"][2] in (2.0 * 8**3, 2.0 * 16**3)
    assert found["cache"][1].median_s == 50 * 2**20
    assert list(rows_of("numpy", "cpu")) == ["product", "copy", "dispatch"]
    monkeypatch.setattr(operations, "l2_cache_bytes", lambda: 0)
    with in_cupys_place():
        assert "cache" not in rows_of("cupy", "gpu"), "not known, and nothing is said instead"
