"""Every library has probes, and they say how much work a step of theirs is; on a card the best of several products."""

import time

import pytest

from lib.model.backends.registry import ALL_DEVICES, BACKENDS
from lib.model.hardware.webgpu import BROWSER, SOFTWARE
from lib.timing.measurement import Config, no_wait
from lib.timing.profiling import peak_rates
from lib.timing.profiling.peak_rates import SIDES, Probe, probe
from tests.cupy_stand_in import in_cupys_place
from tests.software_adapter import needs_software_adapter

QUICK = Config(warm_up_s=0.0, min_time_s=0.002, max_time_s=0.02, min_blocks=3)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(peak_rates, "CONFIG", QUICK)
    monkeypatch.setattr(peak_rates, "COPY_BYTES", 2**12)
    monkeypatch.setattr(peak_rates, "l2_cache_bytes", lambda: 50 * 2**20)


def rows_of(backend, device):
    return {row[0]: row for row in probe(backend, device) if row is not None}


def test_every_library_has_its_probes():
    from lib.timing.profiling.peak_rates import _MAKERS

    assert set(_MAKERS) == {backend.worker for backend in BACKENDS.values()}
    assert set(SIDES) == set(ALL_DEVICES) - {BROWSER}, "no worker of this machine runs in a browser"


@pytest.mark.slow
@needs_software_adapter
def test_an_adapter_is_probed_by_the_kernels_that_train_on_it(monkeypatch):
    monkeypatch.setattr(peak_rates, "SIDES", {SOFTWARE: (40,)})
    found = rows_of("webgpu-step", SOFTWARE)
    assert list(found) == ["product", "copy", "dispatch"]
    assert found["product"][2] == 2.0 * 40**3


@pytest.mark.parametrize(("device", "tried", "best"), [("gpu", [2048, 4096, 8192], 4096), ("cpu", [2048], 2048)])
def test_the_best_rate_of_several_products_is_the_ceiling(monkeypatch, device, tried, best):
    """On a fast card 2,048 takes as long as its call; and the largest may be throttled."""
    made = []

    def product(side):
        made.append(side)
        return Probe(lambda: time.sleep({2048: 1e-3, 4096: 2e-3, 8192: 50e-3}[side]), no_wait, 2.0 * side**3)

    monkeypatch.setitem(peak_rates._MAKERS, "jax", lambda device: {"product": product})
    (_, measured, work) = rows_of("jax-epoch", device)["product"]
    assert made == tried == list(SIDES[device])
    assert work == 2.0 * best**3
    assert measured.median_s < 20e-3, "of that one"


def test_a_card_is_asked_for_its_cache_and_a_processor_is_not(monkeypatch):
    """With NumPy in CuPy's place: its probes run, and count what they do."""
    monkeypatch.setattr(peak_rates, "SIDES", {"cpu": (8,), "gpu": (8, 16)})
    with in_cupys_place():
        found = rows_of("cupy", "gpu")
    assert list(found) == ["product", "copy", "dispatch", "cache"]
    assert found["product"][2] in (2.0 * 8**3, 2.0 * 16**3)
    assert found["cache"][1].median_s == 50 * 2**20
    assert list(rows_of("numpy", "cpu")) == ["product", "copy", "dispatch"]
    monkeypatch.setattr(peak_rates, "l2_cache_bytes", lambda: 0)
    with in_cupys_place():
        assert "cache" not in rows_of("cupy", "gpu"), "not known, and nothing is said instead"
