"""The advice in a terminal, as a table or as JSON, and its message when it has no answer."""

import json
import os
import sys

import numpy as np
import pytest

from lib.cli import advise as command
from lib.cli.advise import NOT_KNOWN, RECORDED, main
from lib.formatting import seconds, sentence
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments import calibration
from lib.sweeps.experiments.calibration import MAX_STEP_FLOPS, ROUNDS, TrainingWay, Trial, trials
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import TrainingFailed
from lib.timing.measurement import Ended, Measurement

QUESTION = ["--hidden", "512,256", "--batch", "64", "--epochs", "20", "--networks", "32"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration, "usable_runtimes", lambda: [Runtime()])
    monkeypatch.setattr(calibration, "measure_trials", lambda *_: iter(()))  # unless a test measures


def calibrated(seconds_per_flop: float, call_s: float = 1e-5) -> None:
    """Fill this machine's store with a step per trial, with the scatter of real repetitions."""
    store, scatter = Store(), np.random.default_rng(0)
    for one in (TrainingWay(Runtime()), TrainingWay(Runtime(), True)):
        for trial in trials(one):
            step_s = call_s + seconds_per_flop * trial.workload(one.runtime).flops
            step_s *= scatter.lognormal(sigma=0.05)
            subject = one.subject(trial) | {"first_call_s": 0.1}
            store.add(Record.of(Kind.STEP_TIME, subject, Measurement((step_s,), 1, Ended.CAP), versions(one.runtime)))


def answers(capsys, *words: str) -> list[dict]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["answers"]


def test_the_table_has_devices_seconds_cost_interval_and_remedy(capsys):
    assert main([*QUESTION, "--all", "--no-measure"]) == 0
    said = capsys.readouterr()
    first, _, head, *rows = said.out.splitlines()
    assert first.startswith("Train 32 networks on a ")
    assert "; what helps most: " in first
    assert head.split()[:2] == ["device", "trained"]
    assert any(row.startswith("L4") and "(2025-03-06)" in row and " to " in row for row in rows)
    assert said.err == (
        "This machine is not calibrated, so it has no answer; `python -m lib.cli.advise --calibrate` does that.\n"
    )


def test_unknowns_and_twice_published_times_are_listed(capsys):
    assert main(["--hidden", "128", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sentence(NOT_KNOWN) in lines
    (twice,) = [line for line in lines if "the same time was published twice" in line]
    assert seconds(4.4) in twice
    assert seconds(11.31) in twice


@pytest.mark.parametrize(("shape", "steps"), [(["--inputs", "64", "--rows", "1797"], 56), (["--classes", "100"], 1500)])
def test_the_shape_of_the_data_changes_each_answer(shape, steps, capsys):
    usual = answers(capsys)
    other = {(one["device"], one["way"]): one for one in answers(capsys, *shape)}
    both = [one for one in usual if one["origin"] != RECORDED and (one["device"], one["way"]) in other]
    assert len(both) > 20
    for one in both:
        per_step = other[one["device"], one["way"]]["seconds"] / steps
        assert (per_step > one["seconds"] / 1500) == ("--classes" in shape)


@pytest.mark.slow
def test_a_calibrated_machine_has_rows(capsys):
    calibrated(1e-11)
    assert main([*QUESTION, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    here = [answer for answer in json.loads(said.out)["answers"] if answer["device"] == "this machine"]
    assert {answer["origin"] for answer in here} == {"steps measured here"}
    assert len(here) == 2, "one network at a time, and many at once"
    for answer in here:
        assert answer["low_s"] < answer["seconds"] < answer["high_s"]


def test_this_machine_is_priced_as_given(capsys):
    calibrated(1e-11)
    here = [one for one in answers(capsys, "--price", "0.5") if one["device"] == "this machine"]
    assert {one["price_dated"] for one in here} == {"your price"}
    assert all(one["dollars"] == pytest.approx(0.5 * one["seconds"] / 3600) for one in here)
    assert main(["--price", "0.5", "--all"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert all(
        ("(your price)" in row) == row.startswith("this machine") for row in rows if "steps measured here" in row
    )
    assert sum("(your price)" in row for row in rows) == len(here)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--networks", "0"], "Networks: expected 1 to 100,000, got 0"),
        (["--price", "-1"], "Price: expected 0 to 1,000 dollars an hour, got -1"),
        (["--hidden", "12a"], "Hidden layers: expected widths"),
    ],
)
def test_bad_arguments_are_reported_in_one_sentence(arguments, words, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(words)
    assert said.err.count("\n") == 1


def measured(ways, *_):
    """Replace `measure_trials`: each step takes a known time."""
    for trained, todo in ways:
        for trial in todo:
            yield trained, trial, StepTime(1e-5 + 1e-11 * trial.workload(trained.runtime).flops, 0.1, times=ROUNDS)


@pytest.fixture
def unwritable_cache(tmp_path, monkeypatch):
    """The cache folder's path leads through a file."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "file"))


@pytest.mark.usefixtures("unwritable_cache")
def test_calibration_works_without_a_cache_and_despite_a_failing_way(capsys, monkeypatch):
    def measured_alone(ways, *_):
        for trained, todo in ways:
            if trained.together:
                raise TrainingFailed("its library is broken")
            yield from measured([(trained, todo)])

    monkeypatch.setattr(calibration, "measure_trials", measured_alone)
    assert main(["--calibrate", "--json", "--all"]) == 0
    said = capsys.readouterr()
    here = [one["way"] for one in json.loads(said.out)["answers"] if one["device"] == "this machine"]
    assert here == [TrainingWay(Runtime()).label]
    assert f"{TrainingWay(Runtime(), True).label}: its library is broken." in said.err
    assert "Results are not being saved: " in said.err
    assert "\r" not in said.err, "progress is for terminals"


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_says_whether_measurements_are_kept(kept, request, capsys, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    if not kept:
        request.getfixturevalue("unwritable_cache")
    monkeypatch.setattr(calibration, "measure_trials", stopped)
    assert main(["--calibrate"]) == 130
    said = capsys.readouterr()
    assert ("Finished measurements are kept" in said.err, "Results are not being saved" in said.err) == (kept, not kept)
    assert said.out == ""


def test_a_closed_pipe_is_not_an_error(capsys, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main([]) == 0
    assert "Error" not in capsys.readouterr().err


@pytest.mark.parametrize(("batch", "hidden"), [(64, "128"), (100, "100"), (7, "128,64"), (4096, "784,128,64,10")])
def test_any_network_is_answered_in_a_line_and_at_most_eight_rows(batch, hidden, capsys):
    assert main(["--hidden", hidden, "--batch", str(batch), "--no-measure"]) == 0
    said = capsys.readouterr()
    first, blank, head, *rows, last = said.out.splitlines()
    assert first.startswith("Train it on a CPU such as ")
    assert (blank, head.split()[0]) == ("", "device")
    assert 2 <= len(rows) <= 8
    assert sum(row.startswith("other GPUs: ") for row in rows) == 1
    assert last.endswith("in a minute.")
    assert "--all" in last


def test_an_unknown_machine_is_measured_near_the_question_once(capsys, monkeypatch):
    asked = []

    def fake_trials(ways, *_):
        for trained, trial, step in measured(ways):
            asked.append(trial)
            yield trained, trial, step

    monkeypatch.setattr(calibration, "measure_trials", fake_trials)
    question = ["--hidden", "100", "--batch", "100", "--inputs", "64", "--classes", "3", "--rows", "1000"]
    assert main([*question, "--no-measure"]) == 0
    assert asked == []
    capsys.readouterr()
    assert main(question) == 0
    said = capsys.readouterr()
    assert said.err.startswith("This machine is unknown so far: measuring a few steps, for at most 20 s; --no-measure")
    assert said.out.startswith("Train it on this machine (JAX, one call an epoch): ")
    assert len(asked) >= 3
    assert asked[0] == Trial(Network((100,)), 100), "MNIST's images in its place: a worker has no others"
    assert all(one.network.step_flops(one.batch_size) <= MAX_STEP_FLOPS for one in asked)
    capsys.readouterr()
    calibrated(1e-11)
    asked.clear()
    assert main(question) == 0
    assert asked == [], "a calibrated machine is known"


def test_measuring_ends_at_its_time_limit(monkeypatch, capsys):
    def forever(ways, _engine, _store, cancel, *_):
        assert cancel.wait(10), "stopped long before"
        yield from ()

    monkeypatch.setattr(command, "MEASURED_S", 0.05)
    monkeypatch.setattr(calibration, "measure_trials", forever)
    assert main([]) == 0
    assert "for at most 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("keras-tensorflow", 'import os; os.environ["KERAS_BACKEND"] = "jax"'),
        ("torch", "step = torch.compile(step)"),
        ("numpy", "batch_size = 256"),
    ],
)
def test_users_of_a_library_get_a_line_to_change_in_their_program(by, line, capsys):
    """The times come from recorded machines if nothing was measured here."""
    assert main(["--batch", "64", "--by", by, "--no-measure", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert any(f"`{line}" in one for one in changes)
    assert not any("Numba" in one for one in changes), "that is another program"
    assert main(["--batch", "64", "--by", by, "--no-measure"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"what helps most: {changes[0]}." in said[0]
    assert sum(row.startswith("In your program: ") for row in said) == len(changes)
