"""A benchmark comes to its end: what goes wrong in one row is told, and costs no other."""

import json
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from playwright.sync_api import Error as PlaywrightError

from benchmarks import anatomy, epochs, interaction, pipeline, report, traces, webgpu, webgpu_page
from benchmarks.report import LeftOut
from lib.model.backends.registry import Runtime
from lib.model.hardware.webgpu import SOFTWARE, SOFTWARE_ALLOWED
from lib.sweeps.experiments import single_operations
from lib.sweeps.workers.messages import Measured, TrainingFailed
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.input_pipeline import QUANTITIES
from lib.timing.profiling.request import FEEDS
from tests.software_adapter import needs_software_adapter

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    return tmp_path


@needs_software_adapter
def test_the_ways_of_launching_are_held_against_a_wait_for_each_operation(monkeypatch, out):
    monkeypatch.setenv(SOFTWARE_ALLOWED, "1")
    monkeypatch.setattr(webgpu, "ROUNDS", 2)
    monkeypatch.setattr(webgpu, "N_STEPS", {SOFTWARE: 2})
    monkeypatch.setattr(webgpu_page, "measured", lambda left_out: ([], []))
    webgpu.main()
    rows = [one for one in json.loads((out / "webgpu.json").read_text()) if one["adapter"] == SOFTWARE]
    assert [one["backend"] for one in rows] == 2 * list(webgpu.WAYS)
    assert {one["than one wait an operation"] for one in rows if one["backend"] == webgpu.WAYS[0]} == {1.0}
    assert "- met dispatches of a step with one hidden layer: 7" in report.RESULTS.read_text()
    assert "- met bytes sent a step" in report.RESULTS.read_text()


def test_what_fails_is_told_and_what_follows_is_done(capsys):
    left_out, done = LeftOut(), []
    for number in range(3):
        with left_out.unless_it_works(f"number {number}"):
            if number == 1:
                raise TrainingFailed("there is not enough memory\nand more lines")
            done.append(number)
    report.show("some", [report.row("some", [1.0])], ("name", "median_s"), [], left_out)
    assert done == [0, 2]
    assert "Left out: number 1: there is not enough memory\n" in capsys.readouterr().out


def test_a_run_replaces_its_own_section_of_the_results_and_no_other():
    target = report.Target.counted("it", 2.0, 1.0, "s")
    for name, figure in (("some", 1.0), ("other", 5.0), ("some", 2.5)):
        report.show(name, [report.row(name, [figure])], ("name", "median_s"), [target], ["a row: no browser"])
    text = report.RESULTS.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## other", "## some"]
    assert "| other | 5 |" in text
    assert "| some | 2.5 |" in text
    assert "| some | 1 |" not in text
    assert text.count("- left out: a row: no browser") == 2
    assert text.count("- MISSED it: 2 s (target ≤ 1 s)") == 2


def test_a_fault_of_the_benchmark_is_no_missing_row():
    with pytest.raises(AssertionError), LeftOut().unless_it_works("it"):
        raise AssertionError


def test_a_press_that_shows_something_else_costs_only_itself(monkeypatch, capsys, out):
    """Of 40 presses a new position comes from the store, and in another the browser gives up."""
    pressed = []

    def press(_page, _slider, key):
        pressed.append(key)
        if len(pressed) == 13:
            raise PlaywrightError("Timeout 30000ms exceeded.")
        state = "Training" if key == "ArrowRight" and len(pressed) != 3 else "Saved result"
        return {"gone": 0.1, "labels": 0.2, "points": 0.3, "state": state}

    monkeypatch.setattr(interaction, "press", press)
    for waits in ("_move", "_wait_over", "_cancelled"):
        monkeypatch.setattr(interaction, waits, lambda *_: None)
    seconds, left_out = interaction.defaultdict(list), LeftOut()
    interaction._presses(interaction.Presses(SimpleNamespace(), seconds, left_out))  # pyright: ignore[reportArgumentType]
    interaction._report(seconds, left_out)
    assert {name: len(values) for name, values in seconds.items()} == {
        "first-points": 18,
        "first-labels": 18,
        "cached": 20,
    }
    assert [line.split(":")[0] for line in left_out] == [
        "5 rates, 4 epochs, ArrowRight",
        "6 rates, 4 epochs, ArrowRight",
    ]
    assert capsys.readouterr().out.count("Left out: ") == 2
    assert {row["name"] for row in json.loads((out / "interaction.json").read_text())} == set(seconds)


@contextmanager
def no_ceiling():
    yield SimpleNamespace(measure=lambda: None, flops_per_s=1e11)


def test_a_backend_that_fails_leaves_the_other_rows(monkeypatch, capsys, out):
    def measured(_engine, runtime, batch_size):
        if (runtime.backend, batch_size) == ("numpy", 32):
            raise TrainingFailed("it was killed")
        return [1.0, 2.0], 0.9

    runtimes = [Runtime(), Runtime(precision="bfloat16"), Runtime("jax-operation"), Runtime("numpy")]
    monkeypatch.setattr(epochs, "usable_runtimes", lambda: runtimes)
    monkeypatch.setattr(epochs, "_measure", measured)
    monkeypatch.setattr(epochs, "ceiling", no_ceiling)
    epochs.main()
    rows = json.loads((out / "epochs.json").read_text())
    found = {(row["backend"], row["precision"], row["batch_size"]) for row in rows}
    assert len(rows) == len(found) == 3 * len(epochs.BATCH_SIZES) - 1
    assert not [row for row in rows if row["backend"] == "jax-operation"], "an epoch of it takes minutes"
    assert capsys.readouterr().out.count("\nLeft out: NumPy, batch size 32, round") == epochs.ROUNDS


def test_a_split_that_misses_an_experiment_is_left_out(monkeypatch, capsys, out):
    monkeypatch.setattr(anatomy, "usable_runtimes", lambda: [Runtime("numpy"), Runtime("jax-epoch")])
    monkeypatch.setattr(anatomy, "BATCH_SIZES", (32,))
    monkeypatch.setattr(anatomy, "Engine", lambda: SimpleNamespace(examine=lambda *_: [], close=lambda: None))
    anatomy.main()
    said = capsys.readouterr().out
    assert said.count("\nLeft out: ") == 2
    assert "expected all of its experiments, got none" in said
    assert json.loads((out / "anatomy.json").read_text()) == []


def test_a_feed_that_raises_leaves_the_other_rows(monkeypatch, capsys, out):
    def examine(_runtime, examination, *_):
        if examination.pipelines[0].feed == "prefetch":
            raise TrainingFailed("reading a batch raised ValueError: it is damaged")
        for name in QUANTITIES:
            yield Measured(f"0/{name}", Measurement((2e-3,) * 9, 1, Ended.CAP), 1.0)

    monkeypatch.setattr(single_operations, "unavailable", lambda runtime: "no" if runtime.backend == "torch" else None)
    engine = SimpleNamespace(examine=examine, turn=nullcontext, close=lambda: None)
    monkeypatch.setattr(pipeline, "Engine", lambda: engine)
    pipeline.main()
    rows = json.loads((out / "pipeline.json").read_text())
    feeds = FEEDS["keras-tensorflow"]
    assert len(rows) == 2 * (len(feeds) - 1)
    assert {row["feed"] for row in rows} == set(feeds.values()) - {feeds["prefetch"]}
    assert {(row["median_s"], row["low_s"], row["high_s"], row["waits"]) for row in rows} == {(2e-3, 2e-3, 2e-3, 1.0)}
    assert capsys.readouterr().out.count("\nLeft out: tf.data + prefetch, ") == 2


def test_a_trace_is_explained_with_the_peak_of_who_reads_it(monkeypatch, tmp_path):
    monkeypatch.setattr(traces, "ROUNDS", 1)
    monkeypatch.setattr(traces, "SQLITE_BYTES", 1_000_000)
    found = traces._explained("small", traces._sqlite(tmp_path / "small"))
    assert found["n"] == 1
    assert found["trace_rows"]
    (peak_mb,) = found["peaks_mb"]  # pyright: ignore[reportGeneralTypeIssues]
    assert 10 < peak_mb < traces.MAX_PEAK_MB
