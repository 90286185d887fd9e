# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
"""A stage runs one task at a time, and restarts it only for different settings or at the press of a button."""

import gc
import threading
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import altair  # noqa: F401 – until it is imported, first frames are blank
import marimo as mo
import numpy as np
import pytest

from lib.model.backends.base import Steps
from lib.sweeps.experiments.results import Results, Run, Subscription, Watched
from lib.sweeps.experiments.teacher import Classroom
from lib.sweeps.sweep import Finished, ToTrain
from lib.sweeps.workers.messages import Progress, State
from lib.sweeps.workers.queue import ALLOWANCE, Request, Urgency
from lib.ui import lab as lab_module
from lib.ui.export_menu import ExportMenu
from lib.ui.lab import MAX_FRAMES, Pacer, Painter, Showings, Stage, _frames, _Trainings, shared_frame
from lib.ui.views import mnist_training as view
from lib.ui.views.predict_first import PAUSED
from tests.made import learning_rate
from tests.sweeps.experiments.test_results import filled


@pytest.fixture
def stage():
    return Stage(None, None)


def begun(stage, asked, presses, heard=None):
    def make(pressed):
        if heard is not None:
            heard.append(pressed)
        return (asked,), lambda engine, store, cancel, request: iter(["one", "two"])

    return stage.begin_if_new(asked, presses, Request(), make)


def put_to(stage, work, request):
    return stage.begin_if_new(object(), 0, request, lambda pressed: ((), work))


def test_a_task_restarts_for_other_settings_or_a_button_press(stage):
    heard = []
    first = begun(stage, "a", 0, heard)
    assert begun(stage, "a", 0, heard) is first
    other = begun(stage, "b", 0, heard)
    assert other is not first
    assert begun(stage, "b", 1, heard) is not other
    assert heard == [False, False, True], "the third time the button was pressed"
    assert stage.began_with == ("b",)


def until_cancelled(engine, store, cancel, request):
    cancel.wait(20)
    yield from ()


def test_a_new_task_ends_the_previous_one(stage):
    first = put_to(stage, until_cancelled, Request())
    put_to(stage, until_cancelled, Request())
    assert first.wait_for_end(5)
    assert first.state is State.STOPPED
    stage.stop()
    assert stage.running.wait_for_end(5)


def test_an_unreferenced_stage_ends_its_task_and_its_menu_drops_the_results():
    """When a session ends, the task's thread must not keep the stage alive."""
    ended, menu = threading.Event(), ExportMenu()
    here = Stage(None, None, menu=menu)
    menu.now = lambda: "results"

    def work(engine, store, cancel, request):
        yield from until_cancelled(engine, store, cancel, request)
        ended.set()

    put_to(here, work, Request())
    gone = weakref.ref(here)
    del here
    gc.collect()
    assert gone() is None
    assert menu.now() is None
    assert ended.wait(5)


def rates(epochs):
    return learning_rate((0.1, 1.0), epochs=epochs, batch_size=32, hidden="8")


def watched(experiment, engine=None, store=None, request=None, fresh=False):
    request = request or Request()
    return Subscription(Run(experiment, [request]), request)


def test_stop_ends_the_pinned_run_but_a_moved_control_does_not(stage, monkeypatch):
    monkeypatch.setattr(lab_module, "join", watched)
    one, kept, other = (rates(epochs) for epochs in (1, 2, 3))
    before, pinned = stage.run(one, 0), stage.pin(kept)
    now = stage.run(other, 0)
    assert (before.run.cancel.is_set(), now.run.cancel.is_set()) == (True, False)
    assert stage.pin(kept) is pinned
    assert not pinned.run.cancel.is_set()
    stage.stop()
    assert now.run.cancel.is_set()
    assert pinned.run.cancel.is_set()
    assert stage.pin(kept) is pinned, "it stays stopped"
    assert pinned.results.state is State.STOPPED
    stage.run(one, 0)
    again = stage.pin(kept)
    assert again is not pinned, "with the next run it begins again"
    assert stage.pin(None) is None
    assert again.run.cancel.is_set(), "nobody watches what was let go"


def test_an_unseen_run_starts_at_a_press_and_ends_with_its_settings_or_the_session(monkeypatch):
    monkeypatch.setattr(lab_module, "join", watched)
    stage = Stage(None, None)
    one, beside, other = (rates(epochs) for epochs in (1, 2, 3))
    stage.run(one, 0)
    assert stage.run_unseen(beside, 0) is None, "nobody has asked for it"
    first = stage.run_unseen(beside, 1)
    assert stage.run_unseen(beside, 1) is first
    assert stage.run_unseen(other, 1) is None, "it was asked for with other settings"
    assert first.run.cancel.is_set()
    second = stage.run_unseen(beside, 2)
    stage.stop()
    assert second.run.cancel.is_set()
    assert stage.run_unseen(beside, 3) not in (None, second), "what was stopped begins again"
    assert stage.run_unseen(beside, 0) is None, "the controls were reset"
    run = stage.run_unseen(beside, 1).run
    del stage
    gc.collect()
    assert run.cancel.is_set()


def test_a_pause_also_delays_an_unseen_run(monkeypatch, room, pupil):
    monkeypatch.setattr(lab_module, "join", watched)
    pupil.run(rates(1), 0)
    room.say("pauses", True)
    assert pupil.run_unseen(rates(2), 1) is None
    room.say("pauses", False)
    assert pupil.run_unseen(rates(2), 1) is not None, "the press is not lost"


def test_a_slow_frame_is_not_drawn_over_a_newer_one(stage):
    """If Stop is pressed while a chart is being drawn, “Measuring” must not cover “Stopped”."""
    drawn, begun, go_on = [], threading.Event(), threading.Event()

    def slow():
        begun.set()
        go_on.wait(20)
        drawn.append("measuring")

    showings = stage.showings
    painter = threading.Thread(target=showings.draw, args=(showings.begin(), slow))
    painter.start()
    begun.wait(20)
    later = threading.Thread(target=lambda: showings.draw(showings.begin(), lambda: drawn.append("stopped")))
    later.start()
    later.join(0.2)
    go_on.set()
    painter.join(20)
    later.join(20)
    assert drawn == ["measuring", "stopped"]


def test_all_pages_of_a_browser_belong_to_one_viewer(monkeypatch):
    """The class site's access check identifies viewers; elsewhere each page is a viewer."""
    meta: dict[str, str] = {}
    monkeypatch.setattr(mo, "app_meta", lambda: SimpleNamespace(mode="run", request=SimpleNamespace(meta=meta)))
    assert Stage(None, None, "this page").viewer == "this page"
    meta["viewer"] = "abc"
    assert Stage(None, None, "this page").viewer == "abc"


def test_a_task_beyond_the_allowance_says_so_in_its_section(stage, monkeypatch):
    monkeypatch.setattr(ALLOWANCE, "most", 0)
    began, urgent = threading.Event(), Request(stage.viewer, Urgency.NOW)

    def work(engine, store, cancel, request):
        began.set()
        yield from until_cancelled(engine, store, cancel, request)

    put_to(stage, work, urgent)
    assert began.wait(20)
    other = put_to(Stage(None, None, stage.viewer), until_cancelled, urgent)
    assert other.wait_for_end(20)
    assert other.state is State.FAILED
    assert "Expected at most 0 of your runs to wait, got one more" in other.view().problem
    assert not stage.running.over
    stage.stop()


@pytest.fixture
def room(monkeypatch):
    room = Classroom()
    monkeypatch.setattr(lab_module, "classroom", lambda: room)
    return room


@pytest.fixture
def pupil(monkeypatch, room):
    monkeypatch.setattr(lab_module, "role", lambda: "pupil")
    return Stage(None, None)


def test_a_pause_delays_a_pupils_task(room, pupil):
    room.say("pauses", True)
    task = begun(pupil, "a", 0)
    assert task.wait_for_news(0, 5)
    now = task.view()
    assert (now.state, now.note, now.items) == (State.WAITING, PAUSED, [])
    assert not task.wait_for_end(0.2)
    room.say("pauses", False)
    assert task.wait_for_end(5)
    assert (task.view().items, task.view().note) == (["one", "two"], "")


def test_a_pause_affects_neither_running_tasks_nor_the_teacher(room, pupil):
    running = put_to(pupil, until_cancelled, Request())
    room.say("pauses", True)
    assert running.view().note == ""
    teacher = Stage(None, None)
    teacher.is_teacher = True
    assert begun(teacher, "a", 0).wait_for_end(5)
    assert (pupil.pauses, teacher.pauses) == (True, False)
    pupil.stop()


@pytest.mark.slow
def test_a_stopped_paused_task_does_not_start_later(room, pupil):
    room.say("pauses", True)
    task = begun(pupil, "a", 0)
    assert task.wait_for_news(0, 5)
    pupil.stop()
    assert task.wait_for_end(5)
    room.say("pauses", False)
    assert (task.view().items, task.state) == ([], State.STOPPED)


def spin(cpu_s):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass
    return 7


def test_drawing_turns_are_spaced_by_the_cost_of_a_frame():
    pacer = Pacer(share=0.25)
    assert [pacer.turn_in_s(0.0) for _ in range(3)] == [0.0, 0.0, 0.0], "nothing is known of their cost"
    pacer.draw(lambda: spin(0.08))
    mean_s = 0.08 / 8
    turns = [pacer.turn_in_s(now) for now in (1.0, 1.0, 1.0, 9.0)]
    assert turns[0] == turns[3] == 0.0
    assert 4 * mean_s <= turns[1] < 8 * mean_s
    assert turns[2] == 2 * turns[1]


def test_the_end_of_a_run_is_drawn_without_waiting_for_a_turn(monkeypatch):
    asked, drawn = threading.Event(), []
    pacer = SimpleNamespace(turn_in_s=lambda now: asked.set() or 1000.0, draw=lambda paint: paint())
    monkeypatch.setattr(lab_module, "pacer", pacer)
    run, showings, over = Results((), ()), Showings(), threading.Event()

    def draw():
        drawn.append(run.state)
        over.set()

    drawing = Painter(draw, run)
    showings.news.followed_by(drawing.news)
    page = threading.Thread(target=drawing.keep, args=(showings, 0, -1))
    page.start()
    assert asked.wait(10)
    assert drawn == [], "its turn is far off"
    run.end(State.STOPPED)
    assert over.wait(10)
    assert drawn == [State.STOPPED]
    showings.close()
    page.join(10)
    assert not page.is_alive()


def test_a_drawing_error_is_shown_and_drawing_continues(stage, monkeypatch, shown, capsys):
    news, tries = Watched(), threading.Semaphore(0)

    def draw():
        tries.release()
        if news.version == 1:
            raise KeyError("no such column")
        shown.append("drawn")

    monkeypatch.setattr(mo, "Thread", threading.Thread)
    stage.streams = True
    Painter(draw, news).show(stage)
    for _ in range(2):
        assert tries.acquire(timeout=10)
        news.tell()
    assert tries.acquire(timeout=10)
    stage.close()
    assert shown[0] == shown[2] == "drawn"
    assert "could not be drawn" in shown[1]
    assert "KeyError: &#x27;no such column&#x27;" in shown[1]
    assert "Traceback" in capsys.readouterr().err


def section_at(joined):
    stage = SimpleNamespace(streams=True, pauses=False, menu=None, said=[""], pin=lambda experiment: None)
    stage.engine, stage.run = SimpleNamespace(known_facts=lambda: None), lambda experiment, again: joined
    panel = SimpleNamespace(value={"pin": "", "again": 0})
    declared = SimpleNamespace(checked=lambda prefix, values: None)
    page = SimpleNamespace(hooks=(), news=Watched(), in_sight={"rate"})
    nothing = dict.fromkeys(("controls", "buttons", "menu"), str)
    return SimpleNamespace(stage=stage, panel=panel, declared=declared, page=page, prefix="rate", members=[], **nothing)


def test_the_first_points_of_a_run_are_drawn_at_once(monkeypatch):
    turns, drawn, painted = iter((0.0, 1000.0, 1000.0)), [], threading.Semaphore(0)
    pacer = SimpleNamespace(turn_in_s=lambda now: next(turns), draw=lambda paint: paint())
    monkeypatch.setattr(lab_module, "pacer", pacer)
    monkeypatch.setattr(lab_module, "FIRST_FRAME_S", 1000.0)
    monkeypatch.setattr(lab_module, "LATER_FRAME_S", 1000.0)
    monkeypatch.setattr(lab_module, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(lab_module.mo.output, "replace", lambda page: painted.release())
    monkeypatch.setattr(view, "result", lambda experiment, results, *_: drawn.append(results.worth_showing) or "")
    experiment = rates(1)
    joined, showings = watched(experiment), Showings()
    drawing = _Trainings(section_at(joined), lambda at: experiment, None)
    showings.news.followed_by(drawing.news)
    drawing.draw()
    page = threading.Thread(target=drawing.keep, args=(showings, 0, drawing.news.version), daemon=True)
    page.start()
    assert painted.acquire(timeout=10)
    assert drawn == [False]
    joined.results.add(ToTrain(experiment.items))
    joined.results.add(Progress(experiment.items[0], Steps(0, 0, np.ones(3, np.float32), 0.1)))
    assert painted.acquire(timeout=10)
    assert drawn == [False, True]
    joined.results.add(Progress(experiment.items[0], Steps(0, 3, np.ones(3, np.float32), 0.1)))
    assert not painted.acquire(timeout=0.3), "what comes later waits"
    joined.results.end(State.STOPPED)
    assert painted.acquire(timeout=10)
    assert drawn == [False, True, True]
    showings.close()  # the cell runs again
    page.join(10)
    assert not page.is_alive()


@pytest.mark.slow
def test_two_runs_pinned_beside_each_other_are_garbage_collected():
    """Each is drawn next to the other; the drawings must not keep them alive."""
    one, other = (watched(rates(epochs)) for epochs in (1, 2))
    shared_frame(rates(1), one.results, [""], pinned=other)
    shared_frame(rates(2), other.results, [""], pinned=one)
    gone = [weakref.ref(joined.results) for joined in (one, other)]
    del one, other
    gc.collect()
    assert [results() for results in gone] == [None, None]


def test_saved_results_are_drawn_once_for_all_viewers(monkeypatch):
    experiment = learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    curve = filled(experiment, (0.9, 0.9)).lines[0].curve
    assert curve is not None
    results = Results(experiment.items, experiment.labels)
    for item in experiment.items:
        results.add(Finished(item, curve, cached=True))
    results.end(State.DONE)
    drawn, ago = [], ["“a moment” & ago"]
    monkeypatch.setattr(view, "result", lambda *seen: drawn.append(seen) or f"frame {len(drawn)}, {seen[2]}")
    monkeypatch.setattr(view, "progress_text", lambda _: ago[0])

    def show(target=0.9):
        return shared_frame(replace(experiment, target=target), results, [""])[0]

    assert "frame 1, " in show() == show()
    assert len(drawn) == 1
    ago[0] = "2 minutes ago"
    later = show()
    assert len(drawn) == 1
    assert "frame 1, " in later
    assert "2 minutes ago" in later, "time has passed"
    for target in range(3 * MAX_FRAMES):
        show(target)
    assert len(_frames[results]) == MAX_FRAMES


def test_a_run_that_ends_while_drawn_is_shown_as_done_only_afterwards(monkeypatch):
    """“Done” appeared below charts that lacked a line, and its text replaced every “0%”, even in number formats."""
    experiment = learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results = Results(experiment.items, experiment.labels)
    monkeypatch.setattr(view, "progress_text", lambda _: "2 trainings" if results.over else ".0%")
    monkeypatch.setattr(view, "charts", lambda *_: results.end(State.DONE) or [])
    monkeypatch.setattr(view, "details", lambda *_: 'format=".0%"')
    drawn = [shared_frame(experiment, results, [""]) for _ in range(3)]
    assert ["<b>Waiting</b>" in html for html, _ in drawn] == [True, False, False]
    assert ["<b>Done</b>" in html for html, _ in drawn] == [False, True, True]
    assert all('format=".0%"' in details for _, details in drawn)
