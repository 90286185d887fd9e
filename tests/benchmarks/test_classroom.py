"""Classes of several sizes in one run: which rows and targets each has, and that a later one costs no earlier one."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from benchmarks import classroom, report
from benchmarks.classroom import CELL, _Asked
from benchmarks.client import FINISHED, Frame, Lost, Viewer
from benchmarks.report import row
from benchmarks.viewers import Usage, numbers_of_viewers
from lib.formatting import format_rate
from lib.site.access import MAX_VIEWERS
from lib.sweeps.workers.notes import State
from lib.ui import layout

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    return tmp_path


def played(viewers: int, *_) -> list[report.Row]:
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
    monkeypatch.setattr(classroom, "_one_class", played)
    classroom.main()
    rows = json.loads((out / "classroom.json").read_text())
    assert [one["viewers"] for one in rows] == [100] * 5 + [300] * 5
    assert {one["workers_peak_mb"] for one in rows if one["name"] == "server"} == {900.0}
    written = report.RESULTS.read_text()
    assert "workers_peak_mb" in written
    assert "- met 100 viewers: moved to what is stored: 0.15 s (0.1 to 0.2; target ≤ 0.3 s)" in written
    assert "- MISSED 300 viewers: lost: 60" in written
    assert "300 viewers: moved" not in written, "it has more than there are places for"


def test_what_was_measured_before_something_went_wrong_is_kept(monkeypatch, out):
    monkeypatch.setenv("VIEWERS", "5,13")
    monkeypatch.setattr(classroom, "_one_class", played)
    with pytest.raises(RuntimeError, match="nobody came"):
        classroom.main()
    assert len(json.loads((out / "classroom.json").read_text())) == 5


def test_a_class_begins_although_one_of_it_could_not_come(monkeypatch):
    lesson = classroom.Lesson("http://127.0.0.1:9/", [], viewers=1, seconds=0.0)

    def fails():
        raise TimeoutError

    monkeypatch.setattr(lesson, "_opened", fails)
    with pytest.raises(TimeoutError):
        lesson.attend(0)
    assert lesson.begun.is_set(), "the others wait for it"


@pytest.mark.parametrize("asked", ["0", "5,", "many", "1,1001", "-3"])
def test_numbers_of_viewers_that_cannot_be(monkeypatch, asked):
    monkeypatch.setenv("VIEWERS", asked)
    with pytest.raises(RuntimeError, match="VIEWERS: expected numbers from 1 to 1,000, such as 1,5,20, got"):
        numbers_of_viewers((100,), 1_000)


def test_the_memory_of_workers_is_not_the_server_s():
    held_mb = 200
    hold = f"held = b'x' * {held_mb * 10**6}; print(flush=True); input()"
    command = [sys.executable, "-c", hold]
    with Usage(psutil.Process()) as usage:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            limit = time.monotonic() + 20
            while usage.workers_peak_mb < held_mb:
                assert time.monotonic() < limit, f"expected {held_mb} MB, got {usage.workers_peak_mb:.0f} MB"
                time.sleep(0.05)
            worker.communicate(b"\n")
    assert usage.peak_mb < psutil.Process().memory_info().rss / 1e6 + held_mb


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


OTHERS = (0.1, 0.2, 0.5, 1.0)
NEVER_ASKED = (0.001, 0.002, 0.005, 0.01)


@pytest.mark.parametrize(
    ("shown", "came"),
    [
        (frame(OTHERS, State.DONE), 2.5),
        (frame(OTHERS, State.WAITING, "number 3 in the queue: one training at a time"), None),
        (frame(OTHERS, State.TRAINING, "1%"), None),
        (frame(OTHERS, State.WAITING), Lost),
        (frame(NEVER_ASKED, State.DONE), Lost),
    ],
    ids=["finished", "in the queue", "under way", "told nothing", "somebody else's"],
)
def test_who_is_not_told_or_sees_what_others_asked_for_has_lost_a_move(shown, came):
    asked = _Asked(cast(Viewer, Tab(shown)))
    if came is Lost:
        with pytest.raises(Lost):
            asked.answer("Learning rates", [0, 1], OTHERS, 5.0)
    else:
        assert asked.answer("Learning rates", [0, 1], OTHERS, 5.0) == came


def test_what_was_asked_for_long_ago_is_not_this_answer():
    positions = [tuple(rate * factor for rate in OTHERS) for factor in (1, 2, 3, 4)]
    tab = Tab(*(frame(rates, State.DONE) for rates in [*positions, positions[0]]))
    asked = _Asked(cast(Viewer, tab))
    for rates in positions:
        asked.answer("Learning rates", [0, 1], rates, 5.0)
    with pytest.raises(Lost, match="not asked for lately"):
        asked.answer("Learning rates", [0, 1], tuple(5 * rate for rate in OTHERS), 5.0)
