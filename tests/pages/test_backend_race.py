"""The chosen cell of the race, below the table: its floor, and its place in the roofline."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.backend_race import Cell
from lib.pages.backend_race import detail
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.views import roofline
from lib.views.backend_race import key_of
from tests.experiments.test_backend_race import JAX, record

NUMBA = Runtime("numba")


@pytest.fixture
def store(tmp_path):
    """A race of two cells, on a machine that multiplies at 200 GFLOP/s, in bfloat16 at 500, and copies at 20 GB/s."""
    store = Store(tmp_path / "results.sqlite")
    store.add(record(Cell(JAX, 512), [0.2] * 3))
    store.add(record(Cell(NUMBA, 512), [0.05] * 3))
    for name, precision, rate in (
        ("product", "float32", 200e9),
        ("product", "bfloat16", 500e9),
        ("copy", "float32", 20e9),
    ):
        subject = {"library": "jax", "device": "cpu", "precision": precision, "name": name, "work": rate}
        store.add(Record.of(Kind.CEILING, subject, Measurement((1.0,), 1, Ended.CAP)))
    return store


def test_the_chosen_cell_stands_in_the_roofline_below_a_roof_for_each_precision(store):
    shown = detail(store, key_of(Cell(JAX, 512))).text
    assert roofline.TITLE in shown
    assert "best bfloat16" in shown
    assert "the rest is overhead" in shown
    assert "of the best rate of float32 here" in shown


def test_who_leaves_zeros_out_has_no_overhead_below_nothing(store):
    shown = detail(store, key_of(Cell(NUMBA, 512))).text
    assert "it does less, as where zeros are left out" in shown
    assert "the rest is overhead" not in shown
    assert "what stands above a roof has less work" in shown


def test_without_peak_rates_there_is_no_roofline(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    store.add(record(Cell(JAX, 512), [0.2] * 3))
    assert roofline.TITLE not in detail(store, key_of(Cell(JAX, 512))).text
    assert "Choose a cell" in detail(store, "").text
