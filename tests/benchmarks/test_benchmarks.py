"""A benchmark comes to its end: what goes wrong in one row is told, and costs no other."""

import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from playwright.sync_api import Error as PlaywrightError

from benchmarks import busy, classroom, epochs, interaction, regret, report
from benchmarks.busy import AS_IT_IS, ONE_THREAD, ROUNDS, SETTINGS
from benchmarks.classroom import CELL, _Asked
from benchmarks.client import FINISHED, Frame, Lost, Viewer
from benchmarks.peer.process import PeerFailed
from benchmarks.report import LeftOut, row
from lib.formatting import format_rate
from lib.model.backends.registry import Runtime
from lib.site.access import MAX_VIEWERS
from lib.sweeps.workers.messages import TrainingFailed
from lib.sweeps.workers.notes import State
from lib.timing.disturbance import Disturbance
from lib.ui import layout

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    return tmp_path


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


STEPS = 1500


class Played:
    """A machine that becomes slower from round to round, one other program on it, and trainings with each setting."""

    def __init__(self, monkeypatch, times=None, disturbed=(), fails=()):
        self.times, self.disturbed, self.fails = times or {}, list(disturbed), fails
        self.core_is_busy, self.epochs = False, 0
        monkeypatch.setattr(busy, "SETTLE_S", 0.0)
        monkeypatch.setattr(busy, "PeerProcess", self.process)
        monkeypatch.setattr(busy, "a_busy_core", self.busy_core)
        monkeypatch.setattr(busy, "Watch", self.watch)

    @contextmanager
    def busy_core(self):
        self.core_is_busy = True
        yield
        self.core_is_busy = False

    @contextmanager
    def watch(self):
        said = SimpleNamespace(disturbance=None)
        yield said
        said.disturbance = Disturbance(1.0, 0.0, 1.0 if self.epochs in self.disturbed else 0.0, 0)

    def process(self, peer, settings, threads):
        times = self.times.get("one thread" if threads == 1 else "".join(settings.values()), (1.0, 1.0))

        def ask(question, _limit_s):
            if peer.key in self.fails:
                raise PeerFailed("it was killed")
            if question["do"] == "start":
                return {}
            self.epochs += 1
            drift = 1 + self.epochs / 10
            return {"train_s": drift * times[self.core_is_busy] * 0.5, "steps": STEPS // 2}

        return SimpleNamespace(ask=ask, answer=lambda _limit_s: {}, close=lambda: None)


def test_beside_a_busy_core_all_is_held_against_the_same_rounds_epoch_alone_as_it_is(monkeypatch):
    """One thread is no quicker alone, and hardly slower beside the busy core; what sleeps costs a third more alone."""
    Played(monkeypatch, {"": (1.0, 7.0), "one thread": (1.01, 1.2), "4": (1.3, 1.1)})
    found = busy.rows_of("numpy", 32, busy.measure("numpy", SETTINGS["numpy"], 32))
    rows = {r["setting"]: r for r in found}
    assert [rows[AS_IT_IS][name] for name in ("alone_times", "n")] == [1.0, ROUNDS]
    assert rows[AS_IT_IS]["busy_times"] == pytest.approx(7.0, rel=0.15)
    assert rows[ONE_THREAD]["busy_times"] == pytest.approx(1.2, rel=0.15), "though the machine became slower"
    assert rows["OPENBLAS_THREAD_TIMEOUT=4"]["alone_times"] == pytest.approx(1.3, rel=0.15)
    assert rows[AS_IT_IS]["busy_low"] == pytest.approx(7.0, rel=0.3), "and so is its interval"


def test_a_machine_that_is_never_quiet_has_no_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(busy, "unavailable", lambda _peer: None)
    Played(monkeypatch, disturbed=range(10_000), fails=["torch-eager"])
    busy.main()
    assert json.loads((tmp_path / "busy.json").read_text()) == []
    said = capsys.readouterr().out
    assert "Left out: NumPy, batch size 32: as it is: other programs disturbed each of 18 rounds" in said
    assert "Left out: PyTorch, eager, batch size 512: it was killed" in said
    assert "not measured  numpy, batch size 32, beside a busy core, over alone: ≤ 2.2 ×" in said


def class_of_ten(viewers: int, *_) -> list[report.Row]:
    """A class whose every tenth move is lost."""
    if viewers == 13:
        raise RuntimeError("nobody came")
    moves = [
        row(name, [0.1, 0.2] * 20, lost=viewers // 10, told=0, p95_s=0.2, viewers=viewers)
        for name in ("precomputed", "live")
    ]
    full = row("turned away", [], told=max(0, viewers - MAX_VIEWERS), viewers=viewers)
    server = row("server", [], peak_mb=700.0, growth_mb=1.0, workers_peak_mb=900.0, runs_left=0, viewers=viewers)
    return [*moves, row("browser", [0.1], lost=0, told=0, viewers=viewers), full, server]


def test_two_classes_have_their_rows_in_one_table(monkeypatch, out):
    monkeypatch.setenv("VIEWERS", "100,300")
    monkeypatch.setattr(classroom, "_one_class", class_of_ten)
    classroom.main()
    rows = json.loads((out / "classroom.json").read_text())
    assert [one["viewers"] for one in rows] == [100] * 5 + [300] * 5
    assert {one["workers_peak_mb"] for one in rows if one["name"] == "server"} == {900.0}
    written = report.RESULTS.read_text()
    assert "workers_peak_mb" in written
    assert "- met 100 viewers: moved to what is stored: 0.15 s (0.1 to 0.2; target ≤ 0.3 s)" in written
    assert "- MISSED 300 viewers: lost: 60" in written
    assert "300 viewers: moved" not in written, "it has more than there are places for"


class Tab:
    """A tab that has shown the usual rates, and shows what it is given once a control was moved."""

    def __init__(self, *after: Frame):
        self.problem = ""
        self.frames = {CELL: frame((0.001, 0.01, 0.1, 1.0), State.DONE)}
        self._after = iter(after)

    def move(self, *_):
        return SimpleNamespace(finished=self._finished, at_s=0.0)

    def _finished(self, _limit_s, answers):
        shown = self.frames[CELL] = next(self._after)
        if answers(shown) and shown.state in FINISHED:
            return shown
        raise Lost("not within the limit")

    def wait(self, condition, _limit_s, what):
        if not condition(self):
            raise Lost(what)


def frame(rates, state, words=""):
    cells = "".join(f"<tr><td>{format_rate(rate)}</td><td>–</td></tr>" for rate in rates)
    table = f'<table class="lab-table"><tr><th>rate</th><th>state</th></tr>{cells}</table>'
    return Frame(layout.state_line(state, 0.0, 1.0, words) + table, "1", 2.5)


RATES = (0.1, 0.2, 0.5, 1.0)


NEVER_ASKED = (0.001, 0.002, 0.005, 0.01)


@pytest.mark.parametrize(
    ("shown", "came"),
    [
        (frame(RATES, State.DONE), 2.5),
        (frame(RATES, State.WAITING, "number 3 in the queue: one training at a time"), None),
        (frame(RATES, State.TRAINING, "1%"), None),
        (frame(RATES, State.WAITING), Lost),
        (frame(NEVER_ASKED, State.DONE), Lost),
    ],
    ids=["finished", "in the queue", "under way", "told nothing", "somebody else's"],
)
def test_who_is_not_told_or_sees_what_others_asked_for_has_lost_a_move(shown, came):
    asked = _Asked(cast(Viewer, Tab(shown)))
    if came is Lost:
        with pytest.raises(Lost):
            asked.answer("Learning rates", [0, 1], RATES, 5.0)
    else:
        assert asked.answer("Learning rates", [0, 1], RATES, 5.0) == came


@pytest.mark.parametrize(
    ("picked_s", "word"),
    [([2.0, 2.01], "MISSED"), ([1.45, 1.6], "unclear"), ([1.2, 1.21], "met"), ([1.0, 1.01], "met")],
)
def test_the_worst_regret_is_judged_by_its_interval_and_a_time_taken_once_by_none(monkeypatch, picked_s, word):
    picked_and_best = [(picked_s, [1.0, 1.01])] + [([1.0, 1.0],) * 2] * (regret.SWEEPS - 1)
    choosing_s = iter([0.4, 1.3] + [0.5] * regret.SWEEPS)

    def played(_engine, number, _trainings):
        times = {f"{strategy}_s": 1.0 for strategy in regret.STRATEGIES}
        twice = regret._regret_of("regret", *picked_and_best[number]) | regret._regret_of(
            "regret_inside", *([[1.0]] * 2)
        )
        judged = {"picked": "vmap", "picked_inside": "vmap"} | twice
        return row("regret", [1.0], number=number + 1, choosing_s=next(choosing_s)) | judged | times

    monkeypatch.setattr(regret, "timed", lambda *_: None)
    monkeypatch.setattr(regret, "_regret", played)
    regret.main()
    written = report.RESULTS.read_text()
    assert "- unclear choosing, the longest of these: 1.3 s (once; target ≤ 1 s)" in written
    assert f"- {word} worst regret of these sweeps: {picked_s[0]:.3g} " in written
    assert "- met worst regret of these sweeps without processes: 1 " in written
