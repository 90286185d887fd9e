"""A bare machine measures itself, stops and resumes; files that cannot be written are reported first."""

import itertools
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from lib import ROOT
from lib.cli import Unusable
from lib.cli import record as record_module
from lib.cli.record import QUESTIONS, Battery, Entry, RecordingTask, main, read_plan, record, resume
from lib.model.backends import registry
from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime, Unavailable, versions
from lib.model.hardware.machine import machine_id
from lib.model.hardware.nvidia import Card
from lib.sweeps.experiments.backend_race import Cell
from lib.sweeps.experiments.calibration import all_ways, stored, trials
from lib.sweeps.experiments.single_operations import OperationTask
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store, read_export
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import CardLost, Measured, Progress, TrainingFailed
from lib.sweeps.workers.queue import Cancel
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import QUANTITIES
from lib.timing.profiling.request import OperationRequest
from tests.hiding import hiding

# What `make bare` packs for a recording, and what scikit-learn's digits need.
BARE = ("numpy", "filelock", "msgspec", "platformdirs", "psutil", "threadpoolctl")
BARE += ("sklearn", "scipy", "joblib", "cloudpickle", "narwhals")


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("bare")
    environment = {name: value for name, value in os.environ.items() if name not in ("MNIST_NPZ", "KERAS_BACKEND")}
    of_its_own = {"MNIST_CACHE_DIR": str(folder / "cache"), "MNIST_OFFLINE": "1"}
    return environment | hiding(folder, only=("lib", *BARE)) | of_its_own


def recording(bare: dict[str, str], path: Path, minutes: float) -> subprocess.Popen:
    command = [sys.executable, "-m", "lib.cli.record", str(path), "--minutes", str(minutes)]
    return subprocess.Popen(command, cwd=ROOT, env=bare, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupted(program: subprocess.Popen, after: str) -> tuple[str, str]:
    assert program.stdout is not None
    try:
        said = []
        for line in program.stdout:
            said.append(line)
            if after in line:
                break
        program.send_signal(signal.SIGINT)
        rest, errors = program.communicate(timeout=120)
        return "".join(said) + rest, errors
    finally:
        program.kill()


def test_recording_modules_import_on_a_bare_machine(bare):
    modules = "lib.cli.record, lib.model.backends.with_numpy, lib.timing.profiling.with_numpy"
    command = [sys.executable, "-c", f"import {modules}"]
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.release
def test_a_recording_on_a_bare_machine_resumes_after_a_stop(bare, tmp_path):
    path = tmp_path / "machine.json"
    first = recording(bare, path, 20)
    said, errors = interrupted(first, after="race, 2 of")
    assert (first.returncode, errors) == (3, "")
    assert "stopped: " in said
    assert "The same command continues from here" in said
    cached = read_export(path)
    assert cached.about["complete"] is False
    assert {"ceiling", "race"} == {one.kind for one in cached.records}
    assert cached.about["data"] == "scikit-learn digits"
    second = recording(bare, path, 30)
    said, errors = interrupted(second, after="race, 2 of")
    assert (second.returncode, errors) == (3, "")
    assert f"{len(cached.records)} figures already recorded" in said
    assert "ceilings" not in said.split("left: ")[0]
    more = read_export(path).records
    assert {one.id for one in cached.records} < {one.id for one in more}
    one = next(one for one in more if one.kind == Kind.RACE)
    assert one.command == f"python -m lib.cli.record machine.json --minutes {30 if one not in cached.records else 20}"
    assert one.machine == machine_id()
    assert "numpy" in one.versions
    assert len(one.block_s) >= (1 if one.ended == "CAP" else 3), "fewer only where its time was over"
    assert str(ROOT) not in path.read_text()
    assert str(tmp_path) not in path.read_text()


def test_a_recording_of_another_machine_is_not_overwritten(tmp_path):
    path = recorded(tmp_path / "other.json", "old", machine="another")
    before = path.read_bytes()
    with pytest.raises(Unusable, match=r"other.json was recorded on another \(Eniac · 1 core\); choose another name"):
        resume(path, Store(tmp_path / "mine.sqlite"))
    assert main([str(path)]) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["no folder/a.json"],
            "Expected to write no folder/a.json, but it cannot be written (No such file or directory)",
        ),
        (["folder"], "Expected a readable file, got folder (Is a directory); correct the name."),
        (["a.json", "--minutes", "0"], "Minutes: expected more than 0, up to 600, got 0; choose for example 9."),
        (["broken.json"], "is not JSON or was cut off"),
        (["a.json", "--runtimes", "numpy/cpu", "abacus"], ", got abacus; choose from these."),
        (["a.json", "--questions", "races"], "Questions: expected some of ceilings, race, the article's experiments, "),
    ],
)
def test_bad_input_is_reported_in_one_sentence(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("broken.json").write_text('{"format": "less-overhead results", "vers')
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("left", "status"), [([], 0), (["race"], 3)])
def test_the_exit_status_says_whether_the_recording_is_complete(tmp_path, monkeypatch, capsys, left, status):
    monkeypatch.setattr(Battery, "run", lambda _: iter(()))
    monkeypatch.setattr(Battery, "left", lambda _: left)
    assert main([str(tmp_path / "machine.json")]) == status
    assert read_export(tmp_path / "machine.json").about["complete"] is (not left)
    assert "at most 9:30 left" in capsys.readouterr().out


def test_selected_questions_are_asked_of_selected_runtimes(tmp_path, monkeypatch):
    """A rented card costs by the minute, so the most wanted can be measured first. The file lists what is left."""
    asked = []
    monkeypatch.setattr(Battery, "_perform", lambda _, task: asked.append((task.name, task.runtime)) or iter(()))
    words = ["--runtimes", "numpy/cpu", "--questions", "ceilings", "sweeps", "what feeds a step"]
    assert main([str(tmp_path / "machine.json"), *words]) == 3
    assert asked == [("NumPy", Runtime("numpy"))], "which neither sweeps nor feeds, and of whose race no round is asked"
    left = list(read_export(tmp_path / "machine.json").about["left"])  # type: ignore[call-overload]
    assert {line.split(":")[0] for line in left} >= {"ceilings", "race", "single operations"}


@pytest.mark.parametrize(("cards", "words", "minutes"), [((), [], 9.5), (("L4",), [], 60), (("L4",), ["5"], 5)])
def test_the_default_time_limit_is_longer_with_a_card(tmp_path, monkeypatch, cards, words, minutes):
    given = []
    monkeypatch.setattr(record_module, "cards", lambda: cards)
    monkeypatch.setattr(record_module, "record", lambda _path, limit, *_: given.append(limit) or True)
    assert main([str(tmp_path / "machine.json"), *(["--minutes", *words] if words else [])]) == 0
    assert given == [minutes]


def test_two_recordings_cannot_write_the_same_file(tmp_path, capsys):
    path = tmp_path / "machine.json"
    with record_module.alone(path):
        assert main([str(path)]) == 1
    assert "but one is running; wait until it ends, or choose another name." in capsys.readouterr().err
    assert not path.exists()


def test_an_unwritable_file_is_reported_before_measuring(tmp_path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_module, "export_to", full)
    monkeypatch.setattr(Battery, "run", lambda _: pytest.fail("it measured"))
    assert main([str(tmp_path / "machine.json")]) == 1
    error = capsys.readouterr().err
    assert "machine.json, but it cannot be written (No space left on device); free the disk" in error


def recorded(path: Path, sources: str, machine: str = "", **about: object) -> Path:
    store = Store(path.with_suffix(".sqlite"))
    subject = Cell(Runtime("numpy"), 32).subject
    one = Record.of(Kind.RACE, subject, Measurement((0.1,) * 3, 1, Ended.CAP), versions(Runtime("numpy")))
    of = {"machine": machine, "machine_line": "Eniac · 1 core"} if machine else {}
    store.add(replace(one, sources=sources, **of))
    record_module.export_to(path, store, about)
    return path


def test_recordings_of_two_versions_are_merged_and_say_so(tmp_path, capsys):
    whole = recorded(tmp_path / "a.json", "old", recorded_at="2026-11-01", took_s=60.0, price_per_h=2.0)
    part = recorded(tmp_path / "b.json", "new", recorded_at="2026-11-02", took_s=30.0, asked=["race: NumPy"])
    for new in (1, 0):  # nothing is new the second time
        assert main([str(whole), "--merge", str(part)]) == 0
        assert f"b.json: 1 rows, {new} of them new; a.json: 2 rows" in capsys.readouterr().out
    merged = read_export(whole)
    assert {one.sources for one in merged.records} == {"old", "new"}
    assert merged.about["price_per_h"] == 2.0
    assert merged.about["recorded_at"] == "2026-11-02"
    assert merged.about["asked"] == ["race: NumPy"]
    assert main([str(whole), "--merge", str(part)]) == 0
    assert "measurements by another version of the code (old): 1" in capsys.readouterr().out


def test_a_recording_of_another_machine_or_a_newer_program_is_not_merged(tmp_path, capsys):
    mine, other = recorded(tmp_path / "a.json", "old"), recorded(tmp_path / "b.json", "old", machine="another")
    before = mine.read_bytes()
    newer = tmp_path / "c.json"
    newer.write_text(mine.read_text().replace('"version": ', '"version": 9'))
    for path, words in (
        (other, "and b.json from another, Eniac · 1 core; keep separate files"),
        (newer, "was written by a newer version (schema 9"),
        (mine, "Expected two recordings, got a.json twice"),
        (tmp_path / "none.json", "none.json (No such file or directory)"),
    ):
        assert main([str(mine), "--merge", str(path)]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert mine.read_bytes() == before


class StandIn(Engine):
    def __init__(self, failing: dict[Runtime, Exception]) -> None:
        super().__init__()
        self.failing, self.asked = failing, []

    def run(self, jobs, cancel, request=None, n_workers=0):
        ((item,),) = (job.items for job in jobs)
        runtime = item.runtime
        self.asked.append(runtime)
        if runtime in self.failing:
            raise self.failing[runtime]
        yield Progress(item, FirstCall(0.1))
        for epoch in range(item.training.epochs):
            yield Progress(item, Steps(epoch, 0, np.ones(4, np.float32), 0.01))
            yield Progress(item, Epoch(epoch, 4, 1.0, 0.9, 0.01, 0.002, no_parameters))


@pytest.mark.parametrize("error", [TrainingFailed("there is not enough memory"), TrainingFailed("the card is gone")])
def test_failures_are_marked_and_the_rest_continues(tmp_path, error):
    lost, sound = Runtime("jax-epoch", "gpu"), Runtime("numpy")
    engine, store = StandIn({lost: error}), Store(tmp_path / "store.sqlite")
    battery = Battery(engine, store, Cancel(), [lost, sound])
    tasks = battery.repetitions([Cell(runtime, size) for size in (32, 512, 4096) for runtime in (lost, sound)], 1)
    notes = [note.text for task in tasks for note in battery._perform(task)]
    failures = store.records(Kind.FAILURE)
    assert [one.warnings for one in failures] == [(str(error),)] * 2
    assert {one.subject["backend"] for one in failures} == {"jax-epoch"}
    assert len([one for one in store.records(Kind.RACE) if one.subject["backend"] == "numpy"]) == 3
    assert engine.asked.count(lost) == 2, "after two failures in a row it is given up"
    assert any(str(error) in note for note in notes)
    path = tmp_path / "file.json"
    record_module.export_to(path, store)
    again = Store(tmp_path / "again.sqlite")
    resume(path, again)
    assert len(again.records()) == 3, "what failed is tried again"


def test_the_order_keeps_one_library_in_memory_at_a_time(tmp_path):
    runtimes = [Runtime("numpy"), Runtime("jax-epoch"), Runtime("jax-step"), Runtime("keras-jax")]
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), runtimes)
    for rounds in (1, 2, 3):
        tasks = battery.repetitions(record_module.experiment_cells(runtimes), rounds)
        pieces = itertools.groupby(tasks, lambda task: task.runtime.process)
        assert len(list(pieces)) == 3, "three libraries, each in one piece"


@pytest.mark.slow
def test_the_whole_battery_asks_everything_once(tmp_path, monkeypatch):
    monkeypatch.setattr(record_module.parallel_sweeps, "methods", list)
    monkeypatch.setattr(record_module, "usable_cores", lambda: 64)  # too many for a pool below 4 GiB
    asked = []

    def examined(self, runtime, examination, cancel, request=None):
        asked.append(examination.kind)
        yield from ()

    monkeypatch.setattr(StandIn, "examine", examined)
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), [Runtime("numpy")])
    assert len(list(battery.run())) > 30
    n_sizes = sum(map(len, record_module.operations([Runtime("numpy")])))
    missed = asked.count("operation")
    assert 3 <= missed <= n_sizes, "a stand-in that gives no row is taken for one that was cancelled"
    assert [kind for kind in asked if kind != "operation"][:3] == ["ceilings", "parts", "operations"]
    assert battery.left() == ["ceilings: 1", "a step taken apart: 2", "single operations: 3"], "not answered by it"
    raced, cells = battery.store.records(Kind.RACE), record_module.all_cells([Runtime("numpy")])
    assert {len(record_module.backend_race.records_of(cell, raced)) for cell in cells} == {3}
    assert all(one.subject["first_call_s"] == 0.1 for one in raced)
    (trained,) = all_ways([Runtime("numpy")])
    assert set(stored([trained], battery.store)) == {(trained, trial) for trial in trials(trained)}


def test_a_failed_calibration_is_marked_and_not_asked_again(tmp_path):
    numpy = Runtime("numpy")
    battery = Battery(StandIn({numpy: TrainingFailed("gone")}), Store(tmp_path / "store.sqlite"), Cancel(), [numpy])
    (task,) = battery.calibrations()
    list(battery._perform(task))
    (marked,) = battery.store.records(Kind.FAILURE)
    assert (marked.warnings, marked.subject["task"], marked.subject["calibration"]) == (("gone",), task.name, "NumPy")
    assert battery.calibrations() == []


def test_pools_that_need_too_much_memory_are_left_out_with_a_reason(monkeypatch):
    pooled = [method for method in record_module.parallel_sweeps.methods() if method.strategy in record_module.POOLED]
    large = {"keras-tensorflow", "numba"}
    for cores, backends in ((2, set()), (8, large), (64, large | {"jax-epoch"})):
        monkeypatch.setattr(record_module, "usable_cores", lambda cores=cores: cores)
        out = {method.runtime.backend for method in pooled if "more than 4 GiB" in record_module.why_no_pool(method)}
        assert out == backends & {method.runtime.backend for method in pooled}


class Examined(StandIn):
    def __init__(self, refuses=lambda _examination: ""):
        super().__init__({})
        self.refuses, self.examined = refuses, []

    def examine(self, runtime, examination, cancel, request=None):
        self.examined.append((runtime, examination))
        if why := self.refuses(examination):
            raise TrainingFailed(why)
        nine = Measurement((1e-3,) * 9, 1, Ended.CAP)
        names = [f"0/{name}" for name in QUANTITIES] if examination.pipeline else ["waited", "moved"]
        for name in names:
            yield Measured(name, nine, 1.0)


@pytest.fixture
def two_libraries_on_two_devices(monkeypatch):
    both = [Runtime(backend, device) for backend in ("jax-epoch", "keras-tensorflow") for device in ("cpu", "gpu")]
    operations = record_module.single_operations
    monkeypatch.setattr(operations, "usable_runtimes", lambda: both)
    monkeypatch.setattr(operations, "unavailable", lambda one: None if one in both else "it is not installed")
    monkeypatch.setattr(record_module, "usable_memory_bytes", lambda _: 1e12)
    return both


def answered(battery, phases=("single operations", "what feeds a step")):
    return [
        note.text
        for phase in battery.questions()
        if phase.title in phases
        for task in battery.missing(phase)
        for note in battery._perform(task)
    ]


def left_of(battery):
    return [line for line in battery.left() if line.startswith(("single operations", "what feeds"))]


def test_operations_and_feeds_are_measured_once_on_each_device(tmp_path, two_libraries_on_two_devices, monkeypatch):
    monkeypatch.setattr(record_module, "LARGEST_WITH_A_CARD", (2, 4, 4))
    monkeypatch.setattr(record_module.single_operations, "FEEDS", {"keras-tensorflow": {"cache": "a cache"}})
    engine, store = Examined(), Store(tmp_path / "store.sqlite")
    battery = Battery(engine, store, Cancel(), two_libraries_on_two_devices)
    assert left_of(battery) == ["single operations: 12", "what feeds a step: 4"]
    answered(battery)
    assert left_of(battery) == []
    pieces = list(itertools.groupby(engine.examined, lambda one: one[0].process))
    assert len(pieces) == 6, "JAX and TensorFlow on either device, then what feeds TensorFlow on processor and card"
    before = len(engine.examined)
    answered(battery)
    assert len(engine.examined) == before, "what is stored is not measured again"
    path = tmp_path / "file.json"
    record_module.export_to(path, store)
    again = Store(tmp_path / "again.sqlite")
    resume(path, again)
    assert len(again.records()) == len(store.records())
    assert left_of(Battery(engine, again, Cancel(), two_libraries_on_two_devices)) == []


@pytest.mark.slow
def test_failing_operations_and_feeds_are_marked_and_remain_open(store, two_libraries_on_two_devices):
    def refuses(examination):
        is_large = examination.operation is not None and examination.operation.size == 1024
        return (
            "the card is gone"
            if is_large or (examination.pipeline and examination.pipeline.feed == "generator")
            else ""
        )

    of_processor = [one for one in two_libraries_on_two_devices if one.device == "cpu"]
    battery = Battery(Examined(refuses), store, Cancel(), of_processor)
    notes = answered(battery)
    marked = {(one.subject.get("operation"), one.subject.get("feed")) for one in store.records(Kind.FAILURE)}
    assert marked == {("product", None), ("sine", None), ("transfer", None), (None, "generator")}
    assert "failed, continuing: the card is gone" in notes
    assert left_of(battery) == ["single operations: 6", "what feeds a step: 1"]


def test_a_profile_is_saved_beside_the_recording(tmp_path, store, monkeypatch):
    from lib.sweeps.experiments import trace_of_a_step

    trace = trace_of_a_step.shipped()[0]
    monkeypatch.setattr(trace_of_a_step, "profile", lambda *_: iter([trace]))
    runtimes = [Runtime("jax-step"), Runtime("numpy")]
    battery = Battery(StandIn({}), store, Cancel(), runtimes, traces=tmp_path / "card_traces")
    (task,) = QUESTIONS["profiles"](battery)
    list(battery._perform(task))
    assert [path.name for path in (tmp_path / "card_traces").iterdir()] == ["jax-step-cpu.json"]


def test_networks_larger_than_the_memory_are_not_measured(tmp_path, monkeypatch):
    runtimes = [Runtime("torch", "gpu"), Runtime("torch")]
    battery = Battery(StandIn({}), Store(tmp_path / "s.sqlite"), Cancel(), runtimes)
    sizes = []
    for free_bytes in (1e12, 5e9):
        monkeypatch.setattr(record_module, "usable_memory_bytes", lambda _, free=free_bytes: free)
        sizes.append([task.subject["batch_size"] for task in QUESTIONS["larger networks"](battery)])
    assert sizes == [[1, 32, 256] * 2, [1, 32] * 2]


SHIPPED = ROOT / "recorded" / "plan.toml"
TASKS = 4  # per question of the stand-in
ONE = Measurement((1.0,), 1, Ended.CAP)
OF_A_CARD = [
    Runtime(backend.key, device, precision)
    for backend in registry.BACKENDS.values()
    for device in registry.DEVICES
    if device in backend.devices
    for precision in backend.offered(device)
]


class PlannedCard:
    def __init__(self, plan, factor=1.0, fails=lambda _: None, sources="this version", late=False):
        self.plan, self.factor, self.fails, self.sources, self.late = plan, factor, fails, sources, late
        self.now, self.asked = 0.0, []

    def monotonic(self):
        return self.now

    def questions(self):
        return MappingProxyType({name: lambda battery, name=name: self.tasks(name, battery) for name in QUESTIONS})

    def tasks(self, question, battery):
        entry = next(e for e in self.plan if e.question == question and e.among(OF_A_CARD) == list(battery.runtimes))
        runtime = battery.runtimes[0]
        return [
            RecordingTask(f"task {number}", runtime, lambda n=number: self.measured(entry, n, battery.store, runtime))
            for number in range(TASKS)
        ]

    def measured(self, entry, number, store, runtime):
        self.now += self.factor * entry.expected_s / TASKS
        name = f"{entry.title}, {number}"
        error = self.fails(name)
        if error and not self.late:
            raise error
        self.asked.append(name)
        asked = OperationTask(runtime, OperationRequest("product")).subject
        one = replace(Record.of(Kind.OPERATION, asked | {"name": name, "work": 1.0}, ONE), sources=self.sources)
        store.add(one)
        yield one
        if error:
            raise error


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setattr(record_module, "usable_runtimes", lambda: OF_A_CARD)
    monkeypatch.setattr(record_module, "all_runtimes", lambda: OF_A_CARD)
    monkeypatch.setattr(record_module, "cards", lambda: (Card("GPU-1", "A card", "580.1"),))
    monkeypatch.setattr(record_module, "listed_now", lambda: {"GPU-1"})
    monkeypatch.setattr(Battery, "left_out", lambda _: [])
    monkeypatch.setattr(
        record_module, "about", lambda battery, took_s: {"asked": sorted(battery.asked), "took_s": took_s}
    )

    def make(plan, **how):
        stand_in = PlannedCard(plan, **how)
        monkeypatch.setattr(record_module, "QUESTIONS", stand_in.questions())
        monkeypatch.setattr(record_module, "time", stand_in)
        return stand_in

    return make


def asked_of(path):
    return {str(one.subject["name"]): one.sources for one in read_export(path).records if one.kind == Kind.OPERATION}


@pytest.mark.slow
def test_the_shipped_plan_fits_in_twelve_minutes_over_two_calls(card, tmp_path, capsys):
    plan, path = read_plan(SHIPPED, QUESTIONS), tmp_path / "card.json"
    first = card(plan, sources="an older version")
    assert record(path, 7, plan=plan) is False
    assert 6 * 60 < first.now <= 7 * 60
    assert "The same command continues from here" in capsys.readouterr().out
    cached = asked_of(path)
    assert len(cached) == len(first.asked)
    second = card(plan)
    assert record(path, 5, plan=plan) is True, "nothing is left"
    assert second.now <= 5 * 60
    whole = asked_of(path)
    assert set(cached.values()) == {"an older version"}
    assert cached.items() < whole.items(), "what the older version recorded is kept, and says so"
    assert len(whole) == TASKS * len(plan)
    assert not set(first.asked) & set(second.asked)
    assert {whole[name] for name in second.asked} == {"this version"}


def test_a_question_that_does_not_fit_is_skipped_for_a_later_one_that_does(card, tmp_path):
    plan = [Entry("ceilings", ("*/gpu",), 40), Entry("overlap", ("torch/gpu",), 60), Entry("race", ("cupy/gpu",), 10)]
    stand_in, path = card(plan), tmp_path / "card.json"
    assert record(path, 1, plan=plan) is False
    assert [name.partition(" of")[0] for name in stand_in.asked] == ["ceilings"] * TASKS + ["race"] * TASKS
    assert stand_in.now == 50


def test_a_question_that_overruns_resumes_in_the_next_call(card, tmp_path, capsys):
    plan, path = [Entry("ceilings", ("*/gpu",), 10), Entry("race", ("*/gpu",), 10)], tmp_path / "card.json"
    slow = card(plan, factor=3.0)
    assert record(path, 1, plan=plan) is False
    assert [name.partition(" of")[0] for name in slow.asked] == ["ceilings"] * 3 + ["race"] * 3
    assert "10 expected; postponed to the next call: 1" in capsys.readouterr().out
    again = card(plan)
    assert record(path, 1, plan=plan) is True
    assert len(again.asked) == 2
    assert again.now == 5, "a quarter of each is left"
    assert read_export(path).about["took_s"] == slow.now + again.now


@pytest.mark.parametrize("late", [False, True])
def test_a_lost_card_keeps_its_rows_and_says_what_to_do(card, tmp_path, monkeypatch, capsys, late):
    plan, path = [Entry(name, ("torch/gpu",), 10) for name in ("ceilings", "race", "overlap")], tmp_path / "card.json"
    stand_in = card(
        plan, fails=lambda name: CardLost("the card is gone") if name.startswith("race") else None, late=late
    )
    monkeypatch.setattr(record_module, "listed_now", lambda: set() if stand_in.now > 10 else {"GPU-1"})
    assert record(path, 1, plan=plan) is False
    said = capsys.readouterr().out
    assert "the GPU no longer answers; finished measurements are kept; when `nvidia-smi -L` lists" in said
    assert stand_in.now == 12.5, "nothing more is asked"
    assert len(asked_of(path)) == TASKS + late
    back = card(plan)
    monkeypatch.setattr(record_module, "listed_now", lambda: {"GPU-1"})
    assert record(path, 1, plan=plan) is True
    assert len(back.asked) == 2 * TASKS


def test_every_way_on_a_card_is_asked(tmp_path, monkeypatch):
    on_cards = [one for one in OF_A_CARD if one.device == "gpu"]
    monkeypatch.setattr(record_module.single_operations, "usable_runtimes", lambda: OF_A_CARD)
    monkeypatch.setattr(record_module, "usable_memory_bytes", lambda _: 1e12)
    monkeypatch.setattr(record_module.single_operations, "unavailable", lambda _: None)
    battery = Battery(None, Store(tmp_path / "s.sqlite"), Cancel(), OF_A_CARD)  # pyright: ignore[reportArgumentType]
    tasks = {title: make(battery) for title, make in QUESTIONS.items() if "accuracy" not in title}
    asked = {title: {task.runtime for task in todo} for title, todo in tasks.items()}
    for title in ("race", "CUDA calls of a step"):
        assert {one for one in asked[title] if one.device == "gpu"} == set(on_cards)
    assert asked["ways to launch a step"] == {Runtime("torch", "gpu"), Runtime("torch", "gpu", "tf32")}
    in_bfloat16 = ("jax-epoch", "torch", "keras-tensorflow")
    assert asked["products in bfloat16"] == {Runtime(backend, "gpu") for backend in in_bfloat16}
    assert asked["the traps"] == {Runtime("jax-epoch", "cpu"), Runtime("jax-epoch", "gpu")}
    names = [[task.name for task in todo] for todo in tasks.values()]
    assert all(len(set(of)) == len(of) for of in names), "a plan remembers by its name what was asked"
    processors = Battery(None, battery.store, Cancel(), [Runtime("numpy")])  # pyright: ignore[reportArgumentType]
    assert not {phase.title for phase in processors.questions()} & {*record_module.ABOUT_CARDS}


ASK = '[[ask]]\nquestion = "race"\nof = ["*/gpu"]\nexpected_s = 10\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ASK.replace("race", "rase"), "plan.toml, question 1: expected one of ceilings, race, "),
        (ASK.replace("race", "rase"), ", got 'rase'; choose from these."),
        (ASK + ASK.replace("10", "0"), "question 2: expected a `question`, runtimes such as"),
        (ASK.replace("10", "inf"), "'expected_s': inf}; correct it."),
        (ASK.replace("10", '"10"'), "'expected_s': '10'}; correct it."),
        (ASK.replace('["*/gpu"]', '"gpu"'), "'of': 'gpu'"),
        (ASK.replace("*/gpu", "jax-epok/gpu"), "or a pattern, got 'jax-epok/gpu'; correct it."),
        (ASK.replace("*/gpu", "torch/gpu/bfloat16"), "or a pattern, got 'torch/gpu/bfloat16'; correct it."),
        (ASK + 'and = "more"\n', "'and': 'more'}; correct it."),
        ("ask = 3\n", "expected only tables [[ask]], got ask; see recorded/plan.toml."),
        ("", "got none; see recorded/plan.toml."),
        ("[[ask]", "Expected a plan in TOML, got plan.toml ("),
    ],
)
def test_a_bad_plan_is_refused_in_one_sentence_before_measuring(tmp_path, monkeypatch, capsys, text, words):
    monkeypatch.setattr(record_module, "record", lambda *_: pytest.fail("it measured"))
    (tmp_path / "plan.toml").write_text(text)
    assert main([str(tmp_path / "a.json"), "--plan", str(tmp_path / "plan.toml")]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("570.86", "needs NVIDIA driver 580 or newer, but this one is 570.86; update the driver"),
        ("", "no NVIDIA driver answers"),
    ],
)
def test_an_old_or_missing_driver_is_reported_before_measuring(tmp_path, monkeypatch, driver, words):
    monkeypatch.setattr(registry, "nvidia_driver_answers", lambda: bool(driver))
    monkeypatch.setattr(registry, "cards", lambda: (Card("GPU-1", "A card", driver, compute_capability=9.0),))
    monkeypatch.setitem(registry.BUILDS, "jax", lambda _: 13)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "driver_version", lambda: driver)
    plan = [Entry("ceilings", ("numpy/cpu",), 5), Entry("race", ("jax-*/gpu",), 10)]
    with pytest.raises(Unusable, match=words):
        record(tmp_path / "card.json", 1, plan=plan)
    assert not (tmp_path / "card.json").exists()


def test_a_missing_library_is_left_out_of_the_plan_with_a_reason(monkeypatch):
    here, missing = Runtime("torch", "gpu"), Runtime("keras-jax", "gpu")
    monkeypatch.setattr(record_module, "all_runtimes", lambda: [here, missing])
    monkeypatch.setattr(record_module, "unavailable", lambda _: Unavailable("keras is not installed", "install it"))
    plan = [Entry("race", (one.address,), 1.0) for one in (here, missing)]
    why = "race of keras-jax/gpu: Keras on JAX, GPU: keras is not installed"
    assert record_module.not_here(plan, [here]) == {plan[1]: why}
    with pytest.raises(Unusable, match="expected a usable GPU, because the plan asks for one, but keras is not"):
        record_module.not_here(plan[1:], [])
    elsewhere = [Entry("race", ("webgpu-step/discrete",), 1.0)]
    with pytest.raises(Unusable, match="a question this machine can answer, but race of webgpu-step/discrete: this"):
        record_module.not_here(elsewhere, [here])


def test_a_bare_machine_gets_locked_wheels_and_a_documented_command(monkeypatch):
    (names,) = re.findall(r"^BARE_NAMES := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    locked = {line.partition("==")[0] for line in (ROOT / "requirements-gpu.txt").read_text().splitlines()}
    assert set(names.replace("\\\n", " ").split()) <= locked
    readme = (ROOT / "deploy" / "README.md").read_text()
    (words,) = re.findall(r"python3 -m lib.cli.record (.+ 7)$", readme, re.MULTILINE)
    asked = []
    monkeypatch.setattr(record_module, "record", lambda *of: asked.append(of) or True)
    monkeypatch.chdir(ROOT)
    assert main(words.split()) == 0
    ((path, minutes, *_, plan),) = asked
    assert (path.name, minutes, len(plan)) == ("card.json", 7, len(read_plan(SHIPPED, QUESTIONS)))
