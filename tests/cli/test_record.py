"""A machine measures itself with NumPy alone, stops and resumes; what cannot be written is reported first."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lib.cli import Unusable
from lib.cli import record as record_module
from lib.cli.record import Battery, main, resume, took_s
from lib.model.backends.registry import Runtime, versions
from lib.model.hardware.machine import machine_id
from lib.sweeps.experiments.backend_race import Cell
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store, read_export
from lib.timing.measurement import Ended, Measurement
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


@pytest.mark.release
def test_numpy_alone_suffices_and_a_stopped_record_goes_on(bare, tmp_path):
    path = tmp_path / "machine.json"
    first = recording(bare, path, 20)
    said, errors = interrupted(first, after="race, 2 of")
    assert (first.returncode, errors) == (3, "")
    assert "stopped: " in said
    assert "The same command goes on from here" in said
    cached = read_export(path)
    assert cached.about["complete"] is False
    assert {"ceiling", "race"} == {one.kind for one in cached.records}
    assert cached.about["data"] == "made-up images"
    second = recording(bare, path, 30)
    said, errors = interrupted(second, after="race, 2 of")
    assert (second.returncode, errors) == (3, "")
    assert f"{len(cached.records)} figures are there already" in said
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


def test_a_file_of_another_machine_is_not_written_over(tmp_path):
    path, store = tmp_path / "other.json", Store(tmp_path / "store.sqlite")
    measured = Measurement((0.1, 0.1, 0.1), 1, Ended.CAP)
    other = Record.of(Kind.RACE, Cell(Runtime("numpy"), 32).subject, measured, versions(Runtime("numpy")))
    store.add(Record(**{**vars(other), "machine": "another", "machine_line": "Eniac · 1 core"}))
    record_module.export_to(path, store)
    before = path.read_bytes()
    with pytest.raises(Unusable, match=r"other.json was recorded on another \(Eniac · 1 core\); choose another name"):
        resume(path, Store(tmp_path / "mine.sqlite"))
    assert main([str(path)]) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no folder/a.json"], "Expected a folder that exists, got no folder; make it first."),
        (["a.json", "--minutes", "0"], "Minutes: expected more than 0, up to 600, got 0; choose for example 9."),
        (["broken.json"], "is no JSON or was cut off"),
        (["a.json", "--runtimes", "numpy/cpu", "abacus"], ", got abacus; choose among these."),
        (["a.json", "--questions", "races"], "Questions: expected some of ceilings, race, the article's experiments, "),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"format": "less-overhead results", "vers')
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("left", "status"), [([], 0), (["race"], 3)])
def test_the_exit_status_tells_complete_from_incomplete(tmp_path, monkeypatch, capsys, left, status):
    monkeypatch.setattr(Battery, "run", lambda _: iter(()))
    monkeypatch.setattr(Battery, "left", lambda _: left)
    assert main([str(tmp_path / "machine.json")]) == status
    assert read_export(tmp_path / "machine.json").about["complete"] is (not left)
    assert "at most 9:30 left" in capsys.readouterr().out


def test_a_part_of_the_questions_is_asked_of_some_runtimes(tmp_path, monkeypatch):
    """A rented card costs by the minute: what is wanted first can be asked for first. The file says what is left."""
    asked = []
    monkeypatch.setattr(Battery, "_perform", lambda _, task: asked.append((task.name, task.runtime)) or iter(()))
    words = ["--runtimes", "numpy/cpu", "--questions", "ceilings", "sweeps", "what feeds a step"]
    assert main([str(tmp_path / "machine.json"), *words]) == 3
    assert asked == [("NumPy", Runtime("numpy"))], "which neither sweeps nor feeds, and of whose race no round is asked"
    left = list(read_export(tmp_path / "machine.json").about["left"])  # type: ignore[call-overload]
    assert {line.split(":")[0] for line in left} >= {"ceilings", "race", "single operations"}


@pytest.mark.parametrize(("cards", "words", "minutes"), [((), [], 9.5), (("L4",), [], 60), (("L4",), ["5"], 5)])
def test_a_card_is_given_the_time_that_it_needs(tmp_path, monkeypatch, cards, words, minutes):
    given = []
    monkeypatch.setattr(record_module, "cards", lambda: cards)
    monkeypatch.setattr(record_module, "record", lambda _path, limit, *_: given.append(limit) or True)
    assert main([str(tmp_path / "machine.json"), *(["--minutes", *words] if words else [])]) == 0
    assert given == [minutes]


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


def recorded(path: Path, sources: str, machine: str = "", **about: object) -> Path:
    """A recording of one row, by this version of the code, on this machine or another."""
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
    for new in (1, 0):  # the second time, nothing is new
        assert main([str(whole), "--merge", str(part)]) == 0
        assert f"rows of b.json: 1, of them new: {new}; rows of a.json: 2" in capsys.readouterr().out
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
        (other, "and b.json of another, Eniac · 1 core; leave each a file of its own"),
        (newer, "was written by a newer version (schema 9"),
        (mine, "Expected two recordings, got a.json twice"),
        (tmp_path / "none.json", "none.json (No such file or directory)"),
    ):
        assert main([str(mine), "--merge", str(path)]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert mine.read_bytes() == before


def test_rows_of_an_older_version_are_resumed(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    earlier = resume(recorded(tmp_path / "a.json", "old", took_s=5.0), store)
    assert earlier is not None
    assert took_s(earlier.about) == 5.0
    assert [one.sources for one in store.records()] == ["old"]
