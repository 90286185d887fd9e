"""A machine measures itself: with NumPy alone, stopped and gone on with, and with what fails marked in its place."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lib.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.backends.registry import Runtime, versions
from lib.cli import record as record_module
from lib.cli.record import CannotRecord, main, resume
from lib.experiments import full_recording as battery_module
from lib.experiments.backend_race import Cell
from lib.experiments.full_recording import FAILURE, MODELS, Battery, RecordingTask, experiment_cells, record_of_point
from lib.experiments.parallel_sweeps import Point
from lib.hardware.machine import machine_id
from lib.storage.export import read_export
from lib.storage.records import Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine, Progress, TrainingFailed, WorkerDied
from tests.conftest import ROOT
from tests.hiding import hiding


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> dict[str, str]:
    """The environment of a machine where only NumPy is installed, and no network is tried."""
    folder = tmp_path_factory.mktemp("bare")
    environment = {name: value for name, value in os.environ.items() if name not in ("MNIST_NPZ", "KERAS_BACKEND")}
    of_its_own = {"MNIST_CACHE_DIR": str(folder / "cache"), "MNIST_OFFLINE": "1"}
    return environment | hiding(folder, only=("numpy", "lib", "pyarrow")) | of_its_own


def recording(bare: dict[str, str], path: Path, minutes: float) -> subprocess.Popen:
    command = [sys.executable, "-m", "lib.cli.record", str(path), "--minutes", str(minutes)]
    return subprocess.Popen(command, cwd=ROOT, env=bare, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupted(program: subprocess.Popen, after: str) -> tuple[str, str]:
    """What it said, interrupted when it says so."""
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


def test_numpy_alone_suffices_and_a_stopped_record_goes_on(bare, tmp_path):
    path = tmp_path / "machine.json"
    first = recording(bare, path, 20)
    said, errors = interrupted(first, after="race, 2 of")
    assert (first.returncode, errors) == (0, "")
    assert "stopped: " in said
    assert "The same command goes on from here" in said
    cached = read_export(path)
    assert cached.about["complete"] is False
    assert {"ceiling", "race"} == {one.kind for one in cached.records}
    assert cached.about["data"] == "made-up images"
    second = recording(bare, path, 30)
    said, errors = interrupted(second, after="race, 2 of")
    assert (second.returncode, errors) == (0, "")
    assert f"{len(cached.records)} figures are there already" in said
    assert "ceilings" not in said.split("left: ")[0]
    more = read_export(path).records
    assert {one.id for one in cached.records} < {one.id for one in more}
    one = next(one for one in more if one.kind == "race")
    assert one.command == f"python -m lib.cli.record machine.json --minutes {30 if one not in cached.records else 20}"
    assert one.machine == machine_id()
    assert "numpy" in one.versions
    assert len(one.block_s) >= (1 if one.ended == "CAP" else 3), "fewer only where its time was over"
    assert str(ROOT) not in path.read_text()
    assert str(tmp_path) not in path.read_text()


class StandIn(Engine):
    """An engine whose trainings take no time, and of which some runtimes fail."""

    def __init__(self, failing: dict[Runtime, Exception]) -> None:
        super().__init__()
        self.failing, self.asked = failing, []

    def run(self, runtime, trainings, cancel, how=None, request=None):
        self.asked.append(runtime)
        if runtime in self.failing:
            raise self.failing[runtime]
        yield Progress(0, FirstCall(0.1))
        for epoch in range(trainings[0].epochs):
            yield Progress(0, Steps(epoch, 0, np.ones(4, np.float32), 0.01))
            yield Progress(0, Epoch(epoch, 4, 1.0, 0.9, 0.01, 0.002, no_parameters))


@pytest.mark.parametrize("error", [TrainingFailed("there is not enough memory"), WorkerDied("the card is gone")])
def test_what_fails_is_marked_and_the_rest_goes_on(tmp_path, error):
    """A card that disappears, or whose memory is too small, in the middle of a record."""
    lost, sound = Runtime("jax-epoch", "gpu"), Runtime("numpy")
    engine, store = StandIn({lost: error}), Store(tmp_path / "store.sqlite")
    battery = Battery(engine, store, Cancel(), [lost, sound])
    tasks = battery._repetitions([Cell(runtime, size) for size in (32, 512, 4096) for runtime in (lost, sound)], 1)
    notes = [note.text for task in tasks for note in battery._perform(task)]
    failures = store.records(FAILURE)
    assert [one.warnings for one in failures] == [(str(error),)] * 2
    assert {one.subject["backend"] for one in failures} == {"jax-epoch"}
    assert len([one for one in store.records("race") if one.subject["backend"] == "numpy"]) == 3
    assert engine.asked.count(lost) == 2, "after two failures in a row it is given up"
    assert any(str(error) in note for note in notes)
    path = tmp_path / "file.json"
    record_module.export_to(path, store)
    assert resume(path, Store(tmp_path / "again.sqlite")) == (3, 0.0), "what failed is tried again"


def test_the_order_keeps_one_library_in_memory_at_a_time(tmp_path):
    runtimes = [Runtime("numpy"), Runtime("jax-epoch"), Runtime("jax-step"), Runtime("keras-jax")]
    battery = Battery(StandIn({}), Store(tmp_path / "store.sqlite"), Cancel(), runtimes)
    for rounds in (1, 2, 3):
        libraries = [
            battery_module._library_of(task.runtime)
            for task in battery._repetitions(experiment_cells(runtimes), rounds)
        ]
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
    assert all(one.subject["first_call_s"] == 0.1 for one in battery.store.records("race"))


def test_a_point_keeps_its_spread():
    point = Point("vmap", "cpu", 8, 0.02, 10**6, "", 0.018, 0.025, ("disturbed",))
    cached = record_of_point(point, Runtime())
    assert (cached.kind, cached.block_s, cached.warnings) == (MODELS, (0.018, 0.02, 0.025), ("disturbed",))
    assert cached.subject["count"] == 8


def test_a_cancelled_battery_ends(tmp_path):
    cancel = Cancel()
    cancel.set()
    assert list(Battery(StandIn({}), Store(tmp_path / "s.sqlite"), cancel, [Runtime("numpy")]).run()) == []


def test_a_file_of_another_machine_is_not_written_over(tmp_path):
    path, store = tmp_path / "other.json", Store(tmp_path / "store.sqlite")
    measured = Measurement((0.1, 0.1, 0.1), 1, Ended.CAP)
    other = Record.of("race", Cell(Runtime("numpy"), 32).subject, measured, versions("numpy"))
    store.add(Record(**{**vars(other), "machine": "another", "machine_line": "Eniac · 1 core"}))
    record_module.export_to(path, store)
    before = path.read_bytes()
    with pytest.raises(
        CannotRecord, match=r"other.json was recorded on another \(Eniac · 1 core\); choose another name"
    ):
        resume(path, Store(tmp_path / "mine.sqlite"))
    assert main([str(path)]) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no folder/a.json"], "Expected a folder that exists, got no folder; make it first."),
        (["a.json", "--minutes", "0"], "Minutes: expected more than 0, up to 600, got 0; choose for example 9."),
        (["a.json", "--price", "0.7"], "Price date: expected a day such as 2026-11-21, got ''; add --price-date."),
        (
            ["a.json", "--price", "-1", "--price-date", "2026-11-01"],
            "Price: expected 0 to 1000 dollars an hour, got -1",
        ),
        (["broken.json"], "is no JSON or was cut off"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"format": "less-overhead results", "vers')
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_figure_says_all_that_is_needed_to_judge_it():
    row = json.loads(json.dumps(vars(Record.of("race", {}, Measurement((1.0, 2.0, 3.0), 1, Ended.CAP)))))
    for name in ("block_s", "machine", "machine_line", "sources", "measured_at", "command"):
        assert row[name], name
    assert "clocks" in row


def test_a_task_names_its_subject():
    task = RecordingTask("NumPy at 32", Runtime("numpy"), lambda cancel: iter(()), {"batch_size": 32})
    marked = battery_module.failure(task, "no memory")
    assert (marked.kind, marked.subject["task"], marked.subject["batch_size"]) == (FAILURE, "NumPy at 32", 32)


def test_two_records_do_not_write_the_same_file(tmp_path, capsys):
    path = tmp_path / "machine.json"
    with record_module.alone(path):
        assert main([str(path)]) == 1
    assert "another record runs; wait for its end, or choose another name." in capsys.readouterr().err
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_module, "export_to", full)
    monkeypatch.setattr(Battery, "run", lambda _: pytest.fail("it measured"))
    assert main([str(tmp_path / "machine.json")]) == 1
    error = capsys.readouterr().err
    assert "Expected to write machine.json, but it cannot be written (No space left on device); free the disk" in error
    assert main([str(tmp_path)]) == 1
    assert "got the folder" in capsys.readouterr().err


def test_what_would_take_too_much_memory_is_left_out_and_said(monkeypatch):
    """Keras' processes are larger than JAX'; on eight cores only these fit, on sixty-four neither does."""
    pooled = [method for method in battery_module.parallel_sweeps.methods() if method.strategy in battery_module.POOLED]
    for cores, backends in ((2, set()), (8, {"keras-tensorflow"}), (64, {"keras-tensorflow", "jax-epoch"})):
        monkeypatch.setattr(battery_module, "usable_cores", lambda cores=cores: cores)
        out = {method.runtime.backend for method in pooled if "more than 4 GiB" in battery_module.why_no_pool(method)}
        assert out == backends & {method.runtime.backend for method in pooled}
    monkeypatch.setattr(battery_module, "pools_are_possible", lambda: False)
    assert all("loky is not installed" in battery_module.why_no_pool(method) for method in pooled)
