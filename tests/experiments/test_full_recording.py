"""A machine measures itself: with NumPy alone, stopped and gone on with, and with what fails marked in its place."""

import itertools
import json

import numpy as np
import pytest

from lib.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.backends.registry import Runtime
from lib.cli import record as record_module
from lib.cli.record import resume
from lib.experiments import full_recording as battery_module
from lib.experiments.backend_race import Cell
from lib.experiments.full_recording import Battery, RecordingTask, experiment_cells, record_of_point
from lib.experiments.parallel_sweeps import Point
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Item, Progress, TrainingFailed, WorkerDied


class StandIn(Engine):
    """An engine whose trainings take no time, and of which some runtimes fail."""

    def __init__(self, failing: dict[Runtime, Exception]) -> None:
        super().__init__()
        self.failing, self.asked = failing, []

    def run(self, runtime, trainings, cancel, how=None, request=None):
        self.asked.append(runtime)
        if runtime in self.failing:
            raise self.failing[runtime]
        item = Item(trainings[0], runtime)
        yield Progress(item, FirstCall(0.1))
        for epoch in range(trainings[0].epochs):
            yield Progress(item, Steps(epoch, 0, np.ones(4, np.float32), 0.01))
            yield Progress(item, Epoch(epoch, 4, 1.0, 0.9, 0.01, 0.002, no_parameters))


@pytest.mark.parametrize("error", [TrainingFailed("there is not enough memory"), WorkerDied("the card is gone")])
def test_what_fails_is_marked_and_the_rest_goes_on(tmp_path, error):
    """A card that disappears, or whose memory is too small, in the middle of a record."""
    lost, sound = Runtime("jax-epoch", "gpu"), Runtime("numpy")
    engine, store = StandIn({lost: error}), Store(tmp_path / "store.sqlite")
    battery = Battery(engine, store, Cancel(), [lost, sound])
    tasks = battery._repetitions([Cell(runtime, size) for size in (32, 512, 4096) for runtime in (lost, sound)], 1)
    notes = [note.text for task in tasks for note in battery._perform(task)]
    failures = store.records(Kind.FAILURE)
    assert [one.warnings for one in failures] == [(str(error),)] * 2
    assert {one.subject["backend"] for one in failures} == {"jax-epoch"}
    assert len([one for one in store.records(Kind.RACE) if one.subject["backend"] == "numpy"]) == 3
    assert engine.asked.count(lost) == 2, "after two failures in a row it is given up"
    assert any(str(error) in note for note in notes)
    path = tmp_path / "file.json"
    record_module.export_to(path, store)
    assert resume(path, Store(tmp_path / "again.sqlite")) == (3, 0.0), "what failed is tried again"


def test_the_order_keeps_one_library_in_memory_at_a_time(tmp_path):
    runtimes = [Runtime("numpy"), Runtime("jax-epoch"), Runtime("jax-step"), Runtime("keras-jax")]
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), runtimes)
    for rounds in (1, 2, 3):
        libraries = [task.runtime.process for task in battery._repetitions(experiment_cells(runtimes), rounds)]
        changes = sum(one != other for one, other in itertools.pairwise(libraries))
        assert changes == 2, "three libraries, each in one piece"


def test_the_whole_battery_asks_everything_once(tmp_path, monkeypatch):
    """Every question of a NumPy machine is answered, and then nothing is left."""
    monkeypatch.setattr(battery_module.parallel_sweeps, "methods", list)
    monkeypatch.setattr(battery_module, "usable_cores", lambda: 64)  # too many for a pool below 4 GiB
    asked = []

    def examined(self, runtime, examination, cancel, request=None):
        asked.append(examination.kind)
        yield from ()

    monkeypatch.setattr(StandIn, "examine", examined)
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), [Runtime("numpy")])
    assert len(list(battery.run())) > 30
    assert asked == ["ceilings", "operations", "parts"]
    assert battery.left() == ["ceilings: 1", "a step taken apart: 2"], "which the stand-in did not answer"
    counts = {
        len(battery_module.backend_race.records_of(c, battery.store.records("race")))
        for c in battery_module.all_cells([Runtime("numpy")])
    }
    assert counts == {3}
    assert all(one.subject["first_call_s"] == 0.1 for one in battery.store.records(Kind.RACE))


def test_a_point_keeps_its_spread():
    point = Point("vmap", "cpu", 8, 0.02, 10**6, "", 0.018, 0.025, ("disturbed",))
    cached = record_of_point(point, Runtime())
    assert (cached.kind, cached.block_s, cached.warnings) == (Kind.MODELS, (0.018, 0.02, 0.025), ("disturbed",))
    assert cached.subject["count"] == 8


def test_a_cancelled_battery_ends(tmp_path):
    cancel = Cancel()
    cancel.set()
    assert list(Battery(StandIn({}), Store(tmp_path / "s.sqlite"), cancel, [Runtime("numpy")]).run()) == []


def test_a_figure_says_all_that_is_needed_to_judge_it():
    row = json.loads(json.dumps(vars(Record.of(Kind.RACE, {}, Measurement((1.0, 2.0, 3.0), 1, Ended.CAP)))))
    for name in ("block_s", "machine", "machine_line", "sources", "measured_at", "command"):
        assert row[name], name
    assert "clocks" in row


def test_what_fails_on_a_processor_is_marked_with_its_subject(tmp_path):
    def fails(_cancel):
        raise TrainingFailed("no memory")

    store = Store(tmp_path / "store.sqlite")
    battery = Battery(StandIn({}), store, Cancel(), [Runtime("numpy")])
    list(battery._perform(RecordingTask("NumPy at 32", Runtime("numpy"), fails, {"batch_size": 32})))
    (marked,) = store.records(Kind.FAILURE)
    assert (marked.warnings, marked.subject["task"], marked.subject["batch_size"]) == (
        ("no memory",),
        "NumPy at 32",
        32,
    )


def test_what_would_take_too_much_memory_is_left_out_and_said(monkeypatch):
    """Keras' processes are larger than JAX'; on eight cores only these fit, on sixty-four neither does."""
    pooled = [method for method in battery_module.parallel_sweeps.methods() if method.strategy in battery_module.POOLED]
    for cores, backends in ((2, set()), (8, {"keras-tensorflow"}), (64, {"keras-tensorflow", "jax-epoch"})):
        monkeypatch.setattr(battery_module, "usable_cores", lambda cores=cores: cores)
        out = {method.runtime.backend for method in pooled if "more than 4 GiB" in battery_module.why_no_pool(method)}
        assert out == backends & {method.runtime.backend for method in pooled}
    monkeypatch.setattr(battery_module, "pools_are_possible", lambda _: False)
    assert all("loky is not installed" in battery_module.why_no_pool(method) for method in pooled)
