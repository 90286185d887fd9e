"""The race from literal figures: its state, its table in each view, its sentence, and a cell in full."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from lib.labs.which_library.race import LEAST_GROUND, Race, Raced, key_of, one_cell, sentence, table
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.backend_race import BATCH_SIZES, Cell, Standing, all_cells, standings
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.ui.url_state import Address
from tests.sweeps.experiments.test_backend_race import JAX, KERAS, NUMPY, record

NUMBA = Runtime("numba")


def at(view="seconds", target=0.95, hidden="128", size=32) -> Race:
    return Race({"view": view, "target": target, "hidden": hidden, "size": size})


def raced(known: dict[Cell, Standing], learned=None) -> Raced:
    made = Raced([], [], learned or {})
    made.standings = known
    return made


def of_records(*records: Record) -> Raced:
    cells = all_cells([NUMPY, JAX, KERAS])
    return Raced(cells, records, {})


def test_the_table_shows_measured_and_published_times():
    known = of_records(record(Cell(JAX, 32), [0.2, 0.2]), record(Cell(KERAS, 32), [2.0, 2.0]))
    seconds = table([JAX, KERAS], known, at(), running=Cell(JAX, 512))
    assert [row["cells"][1]["text"] for row in seconds["rows"][:2]] == ["0.200 s", "2.00 s"]
    assert seconds["rows"][0]["cells"][3]["text"] == "…", "being measured"
    assert seconds["rows"][0]["cells"][0]["text"] == "–"
    published = [row for row in seconds["rows"] if row["group"] == "published"]
    assert len(published) == 4
    assert "6.26 s" in [cell["text"] for cell in published[0]["cells"]]
    assert sentence(of_records(), at()) == ""


# Seconds per epoch: NumPy wins at 32, JAX at 512, and at 128 it has no rival; Keras is measured at 32 only.
MEASURED = {Cell(NUMPY, 32): 0.1, Cell(JAX, 32): 0.2, Cell(KERAS, 32): 5.9, Cell(NUMPY, 512): 0.3, Cell(JAX, 512): 0.05}
MEASURED[Cell(JAX, 128)] = 0.1
KNOWN = standings(list(MEASURED), [record(cell, [epoch_s] * 3) for cell, epoch_s in MEASURED.items()])


def test_the_table_marks_the_fastest_and_shades_by_time():
    runtimes, cells = [NUMPY, JAX, KERAS], {}
    made = table(runtimes, raced(KNOWN), at())
    for runtime, row in zip(runtimes, made["rows"], strict=False):
        cells |= {Cell(runtime, size): cell for size, cell in zip(BATCH_SIZES, row["cells"], strict=True)}
    levels = {cell: drawn["level"] for cell, drawn in cells.items() if drawn["level"] is not None}
    assert {cell for cell, drawn in cells.items() if drawn["best"]} == {Cell(NUMPY, 32), Cell(JAX, 512)}
    assert levels[Cell(KERAS, 32)] == 1.0 == max(levels.values())
    assert min(levels.values()) == LEAST_GROUND > 0, "what is measured is never blank"
    assert cells[Cell(KERAS, 512)]["level"] is None, "what is not measured has no ground"
    low, high = (made["scale"][end].replace("\u202f", " ") for end in ("low", "high"))
    assert re.fullmatch(r"0\.050+ s", low)
    assert re.fullmatch(r"5\.90? s", high)


def test_the_sentence_is_about_the_chosen_view():
    seconds, target = (sentence(raced(KNOWN), at(view)).replace("\u202f", " ") for view in ("seconds", "target"))
    assert "Fastest at batch size 32: NumPy, 100 ms per epoch." in seconds
    assert "Fastest at any batch size: JAX, one call an epoch at 512, 50 ms." in seconds
    assert "counted after the race" in target
    assert "Fastest at" not in target
    few = standings([Cell(JAX, 32), Cell(KERAS, 32)], [record(Cell(JAX, 32), [0.2] * 3, warnings=("busy",))])
    some = Raced([Cell(JAX, 32), Cell(KERAS, 32)], [], {})
    some.standings = few
    assert "Fastest of the 1 measured so far at batch size 32" in sentence(some, at())
    assert table([JAX], some, at())["rows"][0]["cells"][1]["text"].startswith("≤ 0.2"), "something disturbed it"


def test_the_readers_own_program_is_marked_and_compared():
    assert ", 59 times as fast as your Keras on TensorFlow. The host" in sentence(raced(KNOWN), at(), KERAS.address)
    assert "as fast as" not in sentence(raced(KNOWN), at(), NUMPY.address), "it is the fastest"
    labels = [row["label"] for row in table([JAX, KERAS], raced(KNOWN), at(), None, KERAS.address)["rows"]]
    assert labels[:2] == ["JAX, one call an epoch", "Keras on TensorFlow (yours)"]


@pytest.fixture
def store(tmp_path):
    """A race of three cells on a machine with 200 GFLOP/s, 500 in bfloat16, and 20 GB/s for copies."""
    store = Store(tmp_path / "results.sqlite")
    store.add(record(Cell(JAX, 512), [0.2] * 3))
    store.add(record(Cell(NUMBA, 512), [0.05] * 3))
    store.add(record(Cell(JAX, 1), [1.0, 3.0], scaled=1))
    ceilings = ("product", "float32", 200e9), ("product", "bfloat16", 500e9), ("copy", "float32", 20e9)
    for name, precision, rate in ceilings:
        subject = {"library": "jax", "device": "cpu", "precision": precision, "name": name, "work": rate}
        store.add(Record.of(Kind.CEILING, subject, Measurement((1.0,), 1, Ended.CAP)))
    return store


@pytest.mark.parametrize(
    ("cell", "words", "unsaid"),
    [
        (Cell(JAX, 512), ("the rest is overhead",), "scaled"),
        # no overhead is negative
        (Cell(NUMBA, 512), ("it skips products, such as those with zeros",), "the rest is overhead"),
        (Cell(JAX, 1), ("scaled", "spans 50% of the median"), "disturbed"),
        (None, ("Choose a cell",), "overhead"),
    ],
)
def test_cell_details_explain_its_time(store, cell, words, unsaid):
    page: Any = SimpleNamespace(store=store, address=Address())
    shown = one_cell(page, key_of(cell) if cell is not None else "").text
    assert [one for one in words if one not in shown] == []
    assert unsaid not in shown
