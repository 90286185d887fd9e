"""Benchmarks finish: a failure in one row is reported and costs no other row."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from playwright.sync_api import Error as PlaywrightError

from benchmarks import classroom, epochs, interaction, pipeline, regret, report
from benchmarks.report import LeftOut, row
from lib.model.backends.registry import Runtime
from lib.site.access import MAX_VIEWERS
from lib.sweeps.experiments import single_operations
from lib.sweeps.workers.messages import Measured, TrainingFailed
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import QUANTITIES
from lib.timing.profiling.request import FEEDS

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    return tmp_path


def test_a_failed_row_is_reported_and_the_next_ones_run(capsys):
    left_out, done = LeftOut(), []
    for number in range(3):
        with left_out.unless_it_works(f"number {number}"):
            if number == 1:
                raise TrainingFailed("there is not enough memory\nand more lines")
            done.append(number)
    with pytest.raises(AssertionError), left_out.unless_it_works("it"):
        raise AssertionError
    report.show("epochs", [report.row("epochs", [1.0])], ("name", "median_s"), [], left_out)
    assert done == [0, 2]
    assert "Left out: number 1: there is not enough memory\n" in capsys.readouterr().out


def test_a_run_replaces_only_its_own_section_of_the_results():
    target = report.Target.counted("it", 2.0, 1.0, "s")
    for name, figure in (("epochs", 1.0), ("busy", 5.0), ("epochs", 2.5)):
        report.show(name, [report.row(name, [figure])], ("name", "median_s"), [target], ["a row: no browser"])
    text = report.RESULTS.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## busy", "## epochs"]
    assert "| busy | 5 |" in text
    assert "| epochs | 2.5 |" in text
    assert "| epochs | 1 |" not in text
    assert text.count("- left out: a row: no browser") == 2
    assert text.count("- MISSED it: 2 s (target ≤ 1 s)") == 2


def test_an_unexpected_key_press_result_drops_only_that_press(monkeypatch, capsys, out):
    """Of 40 presses, one shows a saved result instead of a training, and one times out."""
    pressed = []

    def press(_page, _slider, key):
        pressed.append(key)
        if len(pressed) == 13:
            raise PlaywrightError("Timeout 30000ms exceeded.")
        state = "Training" if key == "ArrowRight" and len(pressed) != 3 else "Saved result"
        return {"gone": 0.1, "labels": 0.2, "points": 0.3, "state": state}

    monkeypatch.setattr(interaction, "press", press)
    for waits in ("_move", "_wait_over", "_cancelled", "_finished"):
        monkeypatch.setattr(interaction, waits, lambda *_: None)
    seconds, left_out = interaction.defaultdict(list), LeftOut()
    interaction._presses(interaction.Presses(SimpleNamespace(), seconds, left_out))  # pyright: ignore[reportArgumentType]
    interaction._report(seconds, left_out)
    n_seconds = {name: len(values) for name, values in seconds.items()}
    assert n_seconds == {"first-points": 18, "first-labels": 18, "cached": 20}
    of_presses = [line.split(":")[0] for line in left_out]
    assert of_presses == ["5 rates, 4 epochs, ArrowRight", "6 rates, 4 epochs, ArrowRight"]
    assert capsys.readouterr().out.count("Left out: ") == 2
    assert {row["name"] for row in json.loads((out / "interaction.json").read_text())} == set(seconds)


def test_a_backend_that_fails_leaves_the_other_rows(monkeypatch, capsys, out):
    def measured(_engine, runtime, batch_size):
        if (runtime.backend, batch_size) == ("numpy", 32):
            raise TrainingFailed("it was killed")
        return [1.0, 2.0], 0.9

    runtimes = [Runtime(), Runtime(precision="bfloat16"), Runtime("jax-operation"), Runtime("numpy")]
    monkeypatch.setattr(epochs, "usable_runtimes", lambda: runtimes)
    monkeypatch.setattr(epochs, "_measure", measured)
    ceiling = SimpleNamespace(measure=lambda: None, flops_per_s=1e11)
    monkeypatch.setattr(epochs, "ceiling", lambda: nullcontext(ceiling))
    epochs.main()
    rows = json.loads((out / "epochs.json").read_text())
    found = {(row["backend"], row["precision"], row["batch_size"]) for row in rows}
    assert len(rows) == len(found) == 3 * len(epochs.BATCH_SIZES) - 1
    assert not [row for row in rows if row["backend"] == "jax-operation"], "an epoch of it takes minutes"
    assert capsys.readouterr().out.count("\nLeft out: NumPy, batch size 32, round") == epochs.ROUNDS


def fake_class(viewers: int, *_) -> list[report.Row]:
    if viewers == 13:
        raise RuntimeError("nobody came")
    moves = [
        row(name, [0.1, 0.2] * 20, lost=viewers // 10, told=0, p95_s=0.2, viewers=viewers)
        for name in ("precomputed", "live")
    ]
    full = row("turned away", [], told=max(0, viewers - MAX_VIEWERS), viewers=viewers)
    server = row("server", [], peak_mb=700.0, growth_mb=1.0, workers_peak_mb=900.0, runs_left=0, viewers=viewers)
    return [*moves, row("browser", [0.1], lost=0, told=0, viewers=viewers), full, server]


def test_a_feed_that_raises_leaves_the_other_rows(monkeypatch, capsys, out):
    def examine(_runtime, examination, *_):
        if examination.pipeline.feed == "prefetch":
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


def test_two_class_sizes_share_one_table(monkeypatch, out):
    monkeypatch.setenv("VIEWERS", "100,300")
    monkeypatch.setattr(classroom, "_one_class", fake_class)
    classroom.main()
    rows = json.loads((out / "classroom.json").read_text())
    assert [one["viewers"] for one in rows] == [100] * 5 + [300] * 5
    assert {one["workers_peak_mb"] for one in rows if one["name"] == "server"} == {900.0}
    written = report.RESULTS.read_text()
    assert "workers_peak_mb" in written
    assert "- met 100 viewers: moved to what is stored: 0.15 s (0.1 to 0.2; target ≤ 0.3 s)" in written
    assert "- MISSED 300 viewers: lost: 60" in written
    assert "300 viewers: moved" not in written, "it has more than there are places for"


@pytest.mark.parametrize(
    ("picked_s", "word"),
    [([2.0, 2.01], "MISSED"), ([1.45, 1.6], "unclear"), ([1.2, 1.21], "met"), ([1.0, 1.01], "met")],
)
def test_regret_is_judged_by_its_interval_and_a_single_time_is_unclear(monkeypatch, picked_s, word):
    picked_and_best = [(picked_s, [1.0, 1.01])] + [([1.0, 1.0],) * 2] * (regret.SWEEPS - 1)
    choosing_s, best = iter([0.4, 1.3] + [0.5] * regret.SWEEPS), [1.0]

    def fake_regret(_engine, number, _trainings):
        times = {f"{strategy}_s": 1.0 for strategy in regret.STRATEGIES}
        judged = regret._regret_of("regret", *picked_and_best[number])
        judged |= regret._regret_of("regret_inside", best, best) | {"picked": "vmap", "picked_inside": "vmap"}
        return row("regret", [1.0], number=number + 1, choosing_s=next(choosing_s)) | judged | times

    monkeypatch.setattr(regret, "timed", lambda *_: None)
    monkeypatch.setattr(regret, "_regret", fake_regret)
    regret.main()
    written = report.RESULTS.read_text()
    assert "- unclear choosing, the longest of these: 1.3 s (once; target ≤ 1 s)" in written
    assert f"- {word} worst regret of these sweeps: {picked_s[0]:.3g} " in written
    assert "- met worst regret of these sweeps without processes: 1 " in written
