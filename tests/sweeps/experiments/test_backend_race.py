"""The race: order, resuming, scaling, and repetitions by a real worker."""

import os
import subprocess
import sys
import time

import pytest

from lib.model.backends.registry import Runtime, versions
from lib.sweeps.experiments.backend_race import (
    ROUNDS,
    Cell,
    Repetition,
    all_cells,
    plan,
    race,
    records_of,
    standings,
)
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State, Waiting
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from tests.conftest import ROOT

NUMPY, JAX, KERAS = Runtime("numpy"), Runtime("jax-epoch"), Runtime("keras-tensorflow")


def record(cell, epoch_s, scaled=0, **changes):
    measured = Measurement(tuple(epoch_s), 1500, Ended.CAP)
    made = Record.of(Kind.RACE, cell.subject | {"scaled": scaled}, measured, versions(cell.runtime))
    return Record(**{**vars(made), **changes})


def repetitions_of(events):
    return [one for one in events if isinstance(one, Repetition)]


def test_every_cell_is_measured_once_before_any_is_measured_again():
    cells = all_cells([NUMPY, JAX])
    repetitions = plan(cells, [])
    assert len(repetitions) == ROUNDS * len(cells)
    turns = [repetitions[i * len(cells) : (i + 1) * len(cells)] for i in range(ROUNDS)]
    assert all(sorted(turn) == sorted(cells) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == ROUNDS, "each round in another order"


def test_it_resumes_where_it_stopped():
    cells = all_cells([NUMPY])
    cached = [record(cells[0], [1.0]) for _ in range(2)] + [record(cells[1], [1.0])]
    left = plan(cells, cached)
    assert [left.count(cell) for cell in cells[:3]] == [1, 2, 3]


@pytest.mark.parametrize(
    "change", [{"machine": "another"}, {"sources": "older"}, {"versions": "numpy 1"}, {"kind": Kind.RACE}]
)
def test_only_repetitions_of_this_machine_code_and_versions_count(change):
    cell = Cell(NUMPY, 32)
    assert len(records_of(cell, [record(cell, [1.0], **change)])) == (1 if "kind" in change else 0)


def test_a_standing_joins_all_repetitions():
    cell = Cell(NUMPY, 1)
    standing = standings([cell], [record(cell, [1.0, 3.0], 1), record(cell, [2.0, 2.0], 1)])[cell]
    assert standing.quartiles_s == (1.75, 2.0, 2.25)
    assert (standing.repetitions, standing.scaled) == (2, True)
    assert standing.spread == 0.25


@pytest.mark.slow
def test_a_real_repetition_says_what_it_is_doing_is_cached_and_not_made_again(tmp_path):
    """A worker that starts takes seconds, up to half a minute: meanwhile it is said which."""
    store, cells, began, own = Store(tmp_path / "r.sqlite"), [Cell(NUMPY, 4096)], time.perf_counter(), Engine()
    try:
        events = list(race(plan(cells, [], rounds=1), own, store, Cancel(), Request(), budget_s=1e9))
    finally:
        own.close()
    notes = [(one.state, one.text) for one in events if isinstance(one, Note)]
    assert notes[0] == notes[-1] == (State.MEASURING, "NumPy, batch size 4,096")
    assert (State.STARTING, "NumPy: its worker imports the library and loads the images") in notes
    (repetition,) = repetitions_of(events)
    assert len(repetition.record.block_s) == 3, "the first epoch is not timed"
    assert all(second > 0 for second in repetition.record.block_s)
    assert sum(repetition.record.block_s) < time.perf_counter() - began, "seconds, of those that passed here"
    assert 0.5 < float(repetition.record.subject["first_accuracy"]) < 1
    assert store.records(Kind.RACE) == [repetition.record]
    assert plan(cells, store.records(Kind.RACE), rounds=1) == []


@pytest.mark.slow
def test_a_long_epoch_is_measured_in_parts(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.sweeps.experiments.backend_race.BUDGET_S", 0.5)
    monkeypatch.setattr("lib.sweeps.experiments.backend_race.PART_S", 0.1)
    (repetition,) = repetitions_of(race([Cell(NUMPY, 1)], engine, Store(tmp_path / "r.sqlite"), Cancel(), Request()))
    assert repetition.record.subject["scaled"] == 1
    assert "first_accuracy" not in repetition.record.subject, "no epoch was trained to its end"
    assert len(repetition.record.block_s) >= 3
    assert repetition.record.measurement.median_s * 48_000 > 1, (
        "seconds of a whole epoch, from a tenth of a second of steps"
    )


@pytest.mark.slow
def test_a_stopped_race_keeps_what_is_done(engine, tmp_path):
    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    made = []
    for repetition in race([Cell(NUMPY, 4096), Cell(NUMPY, 1)], engine, store, cancel, Request()):
        if isinstance(repetition, Repetition):
            made.append(repetition)
            cancel.set()
    assert len(made) == 1
    assert len(store.records(Kind.RACE)) == 1


def test_a_stop_does_not_wait_for_the_end_of_a_repetition(tmp_path):
    """However long an epoch takes: an engine whose training never ends by itself."""

    class Endless(Engine):
        def run(self, runtime, trainings, cancel, how=None, request=None):
            for _ in range(100_000):
                if cancel.is_set():
                    return
                yield Waiting(1)
            raise AssertionError("it was not stopped")

    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    for event in race([Cell(NUMPY, 1)], Endless(), store, cancel, Request()):
        if isinstance(event, Note) and event.state is State.WAITING:
            cancel.set()
    assert store.records() == []


@pytest.mark.slow
def test_the_notebook_as_a_script(tmp_path):
    answer = subprocess.run(
        [sys.executable, "notebooks/which_library.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MNIST_CACHE_DIR": str(tmp_path)},
    )
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
