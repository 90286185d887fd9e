"""Frames of what runs: at once for one page, and for many as seldom as their share of a core allows."""

import threading
import time
from types import SimpleNamespace

from lib.experiments.results import Results
from lib.pages import streaming
from lib.pages.pacing import Pacer
from lib.pages.stage import Showing, _Place
from lib.workers.notes import State


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

    monkeypatch.setattr(streaming, "_pacer", SimpleNamespace(turn_in_s=turn_in_s, draw=lambda paint: paint()))
    monkeypatch.setattr(streaming.mo, "current_thread", lambda: SimpleNamespace(should_exit=False))
    watched, showing = Results((), ()), Showing(_Place(), 0)

    def paint():
        drawn.append(watched.state)
        return watched.version

    page = threading.Thread(
        target=streaming._keep_painting, args=(watched, paint, showing, -1, streaming.slower(0.1, 0.1))
    )
    page.start()
    assert asked.wait(10)
    assert drawn == [], "its turn is far off"
    watched.end(State.STOPPED)
    page.join(10)
    assert drawn == [State.STOPPED]
