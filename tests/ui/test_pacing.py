"""Frames of what runs: at once for one page, and for many as seldom as their share of a core allows."""

import threading
import time
from types import SimpleNamespace

import numpy as np

from lib.model.backends.base import Steps
from lib.sweeps.events import ToTrain
from lib.sweeps.experiments.background import News
from lib.sweeps.experiments.results import Results
from lib.sweeps.workers.messages import Progress
from lib.sweeps.workers.notes import State
from lib.sweeps.workers.queue import Request
from lib.ui import lab, layout, pacing, streaming
from lib.ui.lab import _Trainings
from lib.ui.pacing import Pacer
from lib.ui.stage import Showing, _Place
from tests.ui.test_stage import rates, watched


def spin(cpu_s):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass
    return 7


def test_turns_come_one_after_another_by_what_a_frame_costs():
    pacer = Pacer(share=0.25)
    assert [pacer.turn_in_s(0.0) for _ in range(3)] == [0.0, 0.0, 0.0], "nothing is known of their cost"
    assert pacer.draw(lambda: spin(0.08)) == 7
    mean_s = 0.08 / 8
    turns = [pacer.turn_in_s(now) for now in (1.0, 1.0, 1.0, 9.0)]
    assert turns[0] == turns[3] == 0.0
    assert 4 * mean_s <= turns[1] < 8 * mean_s
    assert turns[2] == 2 * turns[1]


def test_the_end_of_a_run_waits_for_no_turn(monkeypatch):
    asked, drawn = threading.Event(), []

    def turn_in_s(now):
        asked.set()
        return 1000.0

    monkeypatch.setattr(pacing, "shared", SimpleNamespace(turn_in_s=turn_in_s, draw=lambda paint: paint()))
    monkeypatch.setattr(streaming.mo, "current_thread", lambda: SimpleNamespace(should_exit=False))
    run, showing = Results((), ()), Showing(_Place(), 0)

    def paint():
        drawn.append(run.state)
        return run.version

    page = threading.Thread(target=streaming._keep_painting, args=(run, paint, showing, -1, streaming.slower(0.1, 0.1)))
    page.start()
    assert asked.wait(10)
    assert drawn == [], "its turn is far off"
    run.end(State.STOPPED)
    page.join(10)
    assert drawn == [State.STOPPED]


def section_at(seat):
    """A section whose controls ask for what the seat is at, and whose page has no hooks."""
    stage = SimpleNamespace(
        streams=True,
        pauses=False,
        opening=False,
        menu=None,
        said=[""],
        engine=SimpleNamespace(known_facts=lambda: None),
        run=lambda experiment, again: seat,
        pin=lambda experiment: None,
    )
    panel = SimpleNamespace(value={"pin": "", "again": 0})
    declared = SimpleNamespace(checked=lambda prefix, values: None)
    page = SimpleNamespace(hooks=(), news=News())
    nothing = dict.fromkeys(("controls", "buttons", "menu"), str)
    return SimpleNamespace(stage=stage, panel=panel, declared=declared, page=page, prefix="rate", members=[], **nothing)


def test_the_first_points_of_a_run_wait_for_neither_turn_nor_frame(monkeypatch):
    """A moved slider: a frame says that the run trains, and its first points come just after."""
    turns, drawn, painted = iter((0.0, 1000.0, 1000.0)), [], threading.Semaphore(0)
    pacer = SimpleNamespace(turn_in_s=lambda now: next(turns), draw=lambda paint: paint())
    monkeypatch.setattr(pacing, "shared", pacer)
    monkeypatch.setattr(lab, "FIRST_FRAME_S", 1000.0)
    monkeypatch.setattr(lab, "LATER_FRAME_S", 1000.0)
    monkeypatch.setattr(lab, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(lab.mo.output, "replace", lambda page: painted.release())
    monkeypatch.setattr(layout, "result", lambda experiment, results, *_: drawn.append(results.worth_showing) or "")
    experiment = rates(1)
    seat, place = watched(experiment, None, None, Request()), _Place()
    drawing = _Trainings(section_at(seat), lambda at: experiment, None)  # pyright: ignore[reportArgumentType]
    page = threading.Thread(target=drawing.keep, args=(Showing(place, 0), drawing.draw()), daemon=True)
    page.start()
    assert painted.acquire(timeout=10)
    assert drawn == [False]
    seat.results.add(ToTrain(experiment.items))
    seat.results.add(Progress(experiment.items[0], Steps(0, 0, np.ones(3, np.float32), 0.1)))
    assert painted.acquire(timeout=10)
    assert drawn == [False, True]
    seat.results.add(Progress(experiment.items[0], Steps(0, 3, np.ones(3, np.float32), 0.1)))
    assert not painted.acquire(timeout=0.3), "what comes later waits"
    seat.results.end(State.STOPPED)
    assert painted.acquire(timeout=10)
    assert drawn == [False, True, True]
    place.number += 1  # the cell runs again
    drawing.news.tell()
    page.join(10)
    assert not page.is_alive()
