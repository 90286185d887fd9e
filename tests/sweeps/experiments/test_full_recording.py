"""A machine measures itself: with NumPy alone, stopped and gone on with, and with what fails marked in its place."""

import itertools
import json
import sys

import numpy as np
import pytest

from lib.cli import record as record_module
from lib.cli.record import resume
from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments import full_recording as battery_module
from lib.sweeps.experiments.backend_race import Cell
from lib.sweeps.experiments.calibration import all_ways, stored, trials
from lib.sweeps.experiments.full_recording import Battery, RecordingTask, experiment_cells, record_of_point
from lib.sweeps.experiments.parallel_sweeps import Point
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Measured, Progress, TrainingFailed, WorkerDied
from lib.sweeps.workers.queue import Cancel
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.input_pipeline import QUANTITIES
from lib.timing.profiling.request import OperationRequest


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
    assert resume(path, Store(tmp_path / "again.sqlite")).records == 3, "what failed is tried again"


def test_the_order_keeps_one_library_in_memory_at_a_time(tmp_path):
    runtimes = [Runtime("numpy"), Runtime("jax-epoch"), Runtime("jax-step"), Runtime("keras-jax")]
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), runtimes)
    for rounds in (1, 2, 3):
        libraries = [task.runtime.process for task in battery._repetitions(experiment_cells(runtimes), rounds)]
        changes = sum(one != other for one, other in itertools.pairwise(libraries))
        assert changes == 2, "three libraries, each in one piece"


@pytest.mark.slow
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
    n_sizes = sum(map(len, battery_module.operations([Runtime("numpy")])))
    missed = asked.count("operation")
    assert 3 <= missed <= n_sizes, "a stand-in that gives no row is taken for one that was cancelled"
    assert [kind for kind in asked if kind != "operation"][:3] == ["ceilings", "operations", "parts"]
    assert battery.left() == ["ceilings: 1", "a step taken apart: 2", "single operations: 3"], (
        "which the stand-in did not answer"
    )
    counts = {
        len(battery_module.backend_race.records_of(c, battery.store.records("race")))
        for c in battery_module.all_cells([Runtime("numpy")])
    }
    assert counts == {3}
    assert all(one.subject["first_call_s"] == 0.1 for one in battery.store.records(Kind.RACE))
    (trained,) = all_ways([Runtime("numpy")])
    assert set(stored([trained], battery.store)) == {(trained, trial) for trial in trials(trained)}


def test_a_way_to_train_that_fails_is_not_calibrated_and_not_left(tmp_path):
    numpy = Runtime("numpy")
    battery = Battery(StandIn({numpy: WorkerDied("gone")}), Store(tmp_path / "store.sqlite"), Cancel(), [numpy])
    (task,) = battery._calibrations()
    list(battery._perform(task))
    assert [one.subject["calibration"] for one in battery.store.records(Kind.FAILURE)] == ["NumPy"]
    assert battery._calibrations() == []


def test_a_point_keeps_its_spread():
    point = Point("vmap", "cpu", 8, 0.02, 10**6, "", 0.018, 0.025, ("disturbed",))
    cached = record_of_point(point, Runtime())
    assert (cached.kind, cached.block_s, cached.warnings) == (Kind.MODELS, (0.018, 0.02, 0.025), ("disturbed",))
    assert cached.subject["count"] == 8


@pytest.mark.parametrize(("cores", "counts"), [(2, [2, 8]), (16, [16, 64]), (96, [64])])
def test_numba_is_asked_for_many_networks_a_core_each_once(tmp_path, monkeypatch, cores, counts):
    asked, numba = [], Runtime("numba")

    def on_cores(counts, *_):
        asked.append(counts)
        yield from (Point("cores", "cpu", count, 0.2, 0, "", 0.1, 0.3) for count in counts)

    monkeypatch.setattr(battery_module.parallel_sweeps, "on_cores", on_cores)
    monkeypatch.setattr(battery_module, "usable_cores", lambda: cores)
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), [numba])
    (task,) = battery._models()
    list(battery._perform(task))
    assert asked == [counts]
    assert sorted(one.subject["count"] for one in battery.store.records(Kind.MODELS)) == counts
    assert battery._models() == []
    battery.runtimes = [Runtime()]
    assert len(battery._models()) == 1, "JAX's networks in one program are another question"


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
    """JAX' processes are the smallest; on eight cores only these fit, on sixty-four none does."""
    pooled = [method for method in battery_module.parallel_sweeps.methods() if method.strategy in battery_module.POOLED]
    large = {"keras-tensorflow", "numba"}
    for cores, backends in ((2, set()), (8, large), (64, large | {"jax-epoch"})):
        monkeypatch.setattr(battery_module, "usable_cores", lambda cores=cores: cores)
        out = {method.runtime.backend for method in pooled if "more than 4 GiB" in battery_module.why_no_pool(method)}
        assert out == backends & {method.runtime.backend for method in pooled}


class Examined(StandIn):
    """An engine that answers every examination at once, but for what `refuses`."""

    def __init__(self, refuses=lambda _examination: ""):
        super().__init__({})
        self.refuses, self.examined = refuses, []

    def examine(self, runtime, examination, cancel, request=None):
        self.examined.append((runtime, examination))
        if why := self.refuses(examination):
            raise TrainingFailed(why)
        nine = Measurement((1e-3,) * 9, 1, Ended.CAP)
        names = [f"0/{name}" for name in QUANTITIES] if examination.kind == "pipelines" else ["waited", "moved"]
        for name in names:
            yield Measured(name, nine, 1.0)


@pytest.fixture
def two_libraries(monkeypatch):
    """JAX and TensorFlow, each on the processor and on a card, and nothing else, whatever this machine has."""
    both = [Runtime(backend, device) for backend in ("jax-epoch", "keras-tensorflow") for device in ("cpu", "gpu")]
    monkeypatch.setattr(battery_module.single_operations, "usable_runtimes", lambda: both)
    monkeypatch.setattr(
        battery_module.input_pipeline, "unavailable", lambda one: None if one in both else "it is not installed"
    )
    monkeypatch.setattr(battery_module, "usable_memory_bytes", lambda _: 1e12)
    return both


def answered(battery, phases=("single operations", "what feeds a step")):
    """The notes of these questions, asked once."""
    return [
        note.text
        for phase in battery.questions()
        if phase.title in phases
        for task in phase.missing()
        for note in battery._perform(task)
    ]


def left_of(battery):
    return [line for line in battery.left() if line.startswith(("single operations", "what feeds"))]


def test_operations_and_pipelines_are_asked_once_on_each_device(tmp_path, two_libraries, monkeypatch):
    monkeypatch.setattr(battery_module, "LARGEST_WITH_A_CARD", (2, 4, 4))
    monkeypatch.setattr(battery_module.input_pipeline, "FEEDS", {"keras-tensorflow": {"cache": "a cache"}})
    engine, store = Examined(), Store(tmp_path / "store.sqlite")
    battery = Battery(engine, store, Cancel(), two_libraries)
    assert left_of(battery) == ["single operations: 12", "what feeds a step: 4"]
    answered(battery)
    assert left_of(battery) == []
    libraries = [runtime.process for runtime, _ in engine.examined]
    changes = sum(one != other for one, other in itertools.pairwise(libraries))
    assert changes == 5, "JAX and TensorFlow on either device, then what feeds TensorFlow on the processor and the card"
    before = len(engine.examined)
    answered(battery)
    assert len(engine.examined) == before, "what is stored is not measured again"
    path = tmp_path / "file.json"
    record_module.export_to(path, store)
    again = Store(tmp_path / "again.sqlite")
    assert resume(path, again).records == len(store.records())
    assert left_of(Battery(engine, again, Cancel(), two_libraries)) == []


def test_without_a_card_the_sizes_are_those_of_the_notebooks(two_libraries):
    of_processor = [one for one in two_libraries if one.device == "cpu"]
    largest = {todo[-1].operation.name: todo[-1].operation.size for todo in battery_module.operations(of_processor)}
    assert largest == {"product": 1024, "sine": 4**11, "transfer": 4**12}
    assert {task.pipelines[0].preprocessing_ms for task in battery_module.pipelines(of_processor)} == {0.2}
    assert {task.pipelines[0].preprocessing_ms for task in battery_module.pipelines(two_libraries)} == {0.0, 0.2}


@pytest.mark.slow
def test_an_operation_and_a_feed_that_fail_are_marked_and_left(tmp_path, two_libraries):
    def refuses(examination):
        is_large = examination.operation is not None and examination.operation.size == 1024
        return "the card is gone" if is_large or any(p.feed == "generator" for p in examination.pipelines) else ""

    of_processor = [one for one in two_libraries if one.device == "cpu"]
    store = Store(tmp_path / "store.sqlite")
    battery = Battery(Examined(refuses), store, Cancel(), of_processor)
    notes = answered(battery)
    marked = [one.subject for one in store.records(Kind.FAILURE)]
    assert {(one.get("operation"), one.get("feed")) for one in marked} == {
        ("product", None),
        ("sine", None),
        ("transfer", None),
        (None, "generator"),
    }
    assert "failed, and goes on: the card is gone" in notes
    assert left_of(battery) == ["single operations: 6", "what feeds a step: 1"]


@pytest.mark.slow
def test_a_size_beyond_this_machine_is_not_left(tmp_path, two_libraries, monkeypatch):
    monkeypatch.setattr(battery_module, "usable_memory_bytes", lambda _: 1e6)
    engine = Examined()
    battery = Battery(engine, Store(tmp_path / "store.sqlite"), Cancel(), two_libraries)
    answered(battery, ("single operations",))
    assert (
        max(one.size for _, examined in engine.examined if (one := examined.operation) and one.name == "product") < 512
    )
    assert left_of(battery) == ["what feeds a step: 40"]


def test_a_profile_lies_beside_the_recording_or_is_left_out(tmp_path, monkeypatch):
    from lib.sweeps.experiments import trace_of_a_step

    trace = trace_of_a_step.shipped()[0]
    monkeypatch.setattr(trace_of_a_step, "profile", lambda *_: iter([trace]))
    runtimes = [Runtime("jax-step"), Runtime("numpy")]
    store = Store(tmp_path / "store.sqlite")
    battery = Battery(StandIn({}), store, Cancel(), runtimes, traces=tmp_path / "card_traces")
    (task,) = battery_module.QUESTIONS["profiles"](battery)
    list(battery._perform(task))
    assert [path.name for path in (tmp_path / "card_traces").iterdir()] == ["jax-step-cpu.json"]
    assert "msgspec" not in " ".join(battery.left_out())
    monkeypatch.setitem(sys.modules, "msgspec", None)  # as on a machine that lacks it
    assert battery_module.QUESTIONS["profiles"](battery) == []
    assert "profiles: msgspec, which reads them, is not installed" in battery.left_out()


def test_a_network_too_large_for_the_memory_is_not_asked_for(tmp_path, monkeypatch):
    runtimes = [Runtime("torch", "gpu"), Runtime("torch")]
    battery = Battery(StandIn({}), Store(tmp_path / "s.sqlite"), Cancel(), runtimes)
    sizes = []
    for free_bytes in (1e12, 5e9):
        monkeypatch.setattr(battery_module, "usable_memory_bytes", lambda _, free=free_bytes: free)
        sizes.append([task.subject["batch_size"] for task in battery_module.QUESTIONS["larger networks"](battery)])
    assert sizes == [[1, 32, 256] * 2, [1, 32] * 2]


def test_a_card_is_asked_for_a_product_of_two_to_the_fifteen_and_a_processor_is_not():
    measured = {"waited": 0.18, "moved": 1.3, "returned": 0.18}  # seconds at 2^14, by 50 TFLOP/s and 3 GB/s
    for device, allowed in (("gpu", True), ("cpu", False)):
        runtime = Runtime("torch", device)
        smaller, larger = (battery_module.OperationTask(runtime, OperationRequest("product", 2**k)) for k in (14, 15))
        records = {
            way: Record.of(Kind.OPERATION, {}, Measurement((seconds,), 1, Ended.CAP))
            for way, seconds in measured.items()
        }
        earlier = [battery_module.OperationPoint(smaller, records)]
        free = battery_module.OPERATION_LIMIT_S[device]
        assert (battery_module.refused(larger, earlier, lambda _: 1e12, free) is None) is allowed
