"""A stage: one task at a time, begun anew only for something else or at the press of a button."""

import gc
import threading
import weakref
from types import SimpleNamespace

import marimo as mo
import pytest

from lib.sweeps.experiments.runs import Run, Seat
from lib.sweeps.experiments.teacher import Classroom
from lib.sweeps.workers.notes import State
from lib.sweeps.workers.queue import ALLOWANCE, Request, SharedRequest, Urgency
from lib.ui import stage as stage_module
from lib.ui.export_menu import ExportMenu
from lib.ui.stage import Stage
from lib.ui.views.predict_first import PAUSED
from tests.made import learning_rate


@pytest.fixture
def stage():
    return Stage(None, None)  # type: ignore[arg-type]


def begun(stage, asked, presses, heard=None):
    def make(pressed):
        if heard is not None:
            heard.append(pressed)
        return (asked,), lambda engine, store, cancel, request: iter(["one", "two"])

    return stage.begin_if_new(asked, presses, Request(), make)


def test_a_task_is_begun_anew_for_something_else_or_at_the_press_of_a_button(stage):
    heard = []
    first = begun(stage, "a", 0, heard)
    assert begun(stage, "a", 0, heard) is first
    other = begun(stage, "b", 0, heard)
    assert other is not first
    assert begun(stage, "b", 1, heard) is not other
    assert heard == [False, False, True], "the third time the button was pressed"
    assert stage.began_with == ("b",)


def test_a_task_gives_what_its_work_yields(stage):
    task = begun(stage, "a", 0)
    assert task.wait_for_end(5)
    assert (task.view().items, task.view().state) == (["one", "two"], State.DONE)


def until_cancelled(engine, store, cancel, request):
    cancel.wait(20)
    yield from ()


def test_the_next_task_ends_the_one_before(stage):
    first = stage.begin(until_cancelled, Request())
    stage.begin(until_cancelled, Request())
    assert first.wait_for_end(5)
    assert first.state is State.STOPPED
    stage.stop()
    assert stage.running.wait_for_end(5)


def test_a_stage_that_nobody_holds_ends_its_task(stage):
    """As when a session ends: the task's thread must not hold the stage."""
    ended, here = threading.Event(), Stage(None, None)  # type: ignore[arg-type]

    def work(engine, store, cancel, request):
        yield from until_cancelled(engine, store, cancel, request)
        ended.set()

    here.begin_if_new("a", 0, Request(), lambda pressed: ((), work))
    gone = weakref.ref(here)
    del here
    gc.collect()
    assert gone() is None
    assert ended.wait(5)


def rates(epochs):
    return learning_rate((0.1, 1.0), epochs=epochs, batch_size=32, hidden="8")


def watched(experiment, engine, store, request, fresh=False):
    """A seat at a run that nothing fills."""
    return Seat(Run(experiment, SharedRequest(request)), request)


def pinned_by(stage, experiment):
    seat = stage.pin(experiment)
    assert seat is not None
    return seat


def test_stop_ends_the_pinned_run_too_and_a_moved_control_leaves_it(monkeypatch):
    monkeypatch.setattr(stage_module, "join", watched)
    stage = Stage(None, None)  # type: ignore[arg-type]
    one, kept, other = (rates(epochs) for epochs in (1, 2, 3))
    before, pinned = stage.run(one, 0), pinned_by(stage, kept)
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
    again = pinned_by(stage, kept)
    assert again is not pinned, "with the next run it begins again"
    assert stage.pin(None) is None
    assert again.run.cancel.is_set(), "nobody watches what was let go"


def test_a_pinned_run_ends_with_the_session(monkeypatch):
    monkeypatch.setattr(stage_module, "join", watched)
    stage = Stage(None, None)  # type: ignore[arg-type]
    one, kept = (rates(epochs) for epochs in (1, 2))
    stage.run(one, 0)
    run = pinned_by(stage, kept).run
    del stage
    gc.collect()
    assert run.cancel.is_set()


def test_an_unseen_run_begins_at_a_press_and_ends_with_its_settings_by_stop_or_with_the_session(monkeypatch):
    monkeypatch.setattr(stage_module, "join", watched)
    stage = Stage(None, None)  # type: ignore[arg-type]
    one, beside, other = (rates(epochs) for epochs in (1, 2, 3))
    stage.run(one, 0)
    assert stage.run_unseen(beside, 0) is None, "nobody has asked for it"
    first = stage.run_unseen(beside, 1)
    assert first is not None
    assert stage.run_unseen(beside, 1) is first
    assert stage.run_unseen(other, 1) is None, "it was asked for with other settings"
    assert first.run.cancel.is_set()
    second = stage.run_unseen(beside, 2)
    assert second is not None
    stage.stop()
    assert second.run.cancel.is_set()
    third = stage.run_unseen(beside, 3)
    assert third is not None
    assert third is not second, "what was stopped begins again"
    assert stage.run_unseen(beside, 0) is None, "the controls were reset"
    run = stage.run_unseen(beside, 1).run  # type: ignore[union-attr]
    del stage
    gc.collect()
    assert run.cancel.is_set()


def test_an_unseen_run_waits_for_a_paused_class_too(monkeypatch, room, pupil):
    monkeypatch.setattr(stage_module, "join", watched)
    pupil.run(rates(1), 0)
    room.say(pauses=True)
    assert pupil.run_unseen(rates(2), 1) is None
    room.say(pauses=False)
    assert pupil.run_unseen(rates(2), 1) is not None, "the press is not lost"


def test_a_menu_forgets_what_was_shown_with_its_stage():
    menu = ExportMenu()
    here = Stage(None, None, menu=menu)  # type: ignore[arg-type]
    menu.now = lambda: "results"  # type: ignore[assignment,return-value]
    del here
    gc.collect()
    assert menu.now() is None


def test_only_the_latest_showing_may_draw(stage):
    first = stage.next_showing()
    assert first.is_latest
    second = stage.next_showing()
    assert (first.draw(lambda: "drawn"), second.draw(lambda: "drawn")) == (None, "drawn")


def test_a_frame_that_takes_long_is_not_drawn_over_the_next_showing(stage):
    """As when Stop is pressed while the chart of a moment ago is being made: “Measuring” must not cover “Stopped”."""
    drawn, begun, go_on = [], threading.Event(), threading.Event()

    def slow():
        begun.set()
        go_on.wait(20)
        drawn.append("measuring")

    first = stage.next_showing()
    painter = threading.Thread(target=first.draw, args=(slow,))
    painter.start()
    begun.wait(20)
    later = threading.Thread(target=lambda: stage.next_showing().draw(lambda: drawn.append("stopped")))
    later.start()
    later.join(0.2)
    go_on.set()
    painter.join(20)
    later.join(20)
    assert drawn == ["measuring", "stopped"]


def test_all_pages_of_a_browser_are_one_viewer(monkeypatch):
    """As the door of the class site tells them; elsewhere each page is one."""
    meta: dict[str, str] = {}
    monkeypatch.setattr(mo, "app_meta", lambda: SimpleNamespace(mode="run", request=SimpleNamespace(meta=meta)))
    assert Stage(None, None, "this page").viewer == "this page"  # type: ignore[arg-type]
    meta["viewer"] = "abc"
    assert Stage(None, None, "this page").viewer == "abc"  # type: ignore[arg-type]


def test_a_task_beyond_the_allowance_says_so_in_its_section(stage, monkeypatch):
    monkeypatch.setattr(ALLOWANCE, "most", 0)
    began, urgent = threading.Event(), Request(stage.viewer, Urgency.NOW)

    def work(engine, store, cancel, request):
        began.set()
        yield from until_cancelled(engine, store, cancel, request)

    stage.begin(work, urgent)
    assert began.wait(20)
    other = Stage(None, None, stage.viewer).begin(until_cancelled, urgent)  # type: ignore[arg-type]
    assert other.wait_for_end(20)
    assert other.state is State.FAILED
    assert "Expected at most 0 of your runs to wait, got one more" in other.view().problem
    assert not stage.running.over
    stage.stop()


@pytest.fixture
def room(monkeypatch):
    room = Classroom()
    monkeypatch.setattr(stage_module, "classroom", lambda: room)
    return room


@pytest.fixture
def pupil(monkeypatch, room):
    monkeypatch.setattr(stage_module, "role", lambda: "pupil")
    return Stage(None, None)  # type: ignore[arg-type]


def test_a_pause_holds_a_pupil_s_task_until_the_class_goes_on(room, pupil):
    """Of whichever notebook: each begins its tasks here."""
    room.say(pauses=True)
    task = begun(pupil, "a", 0)
    assert task.wait_for_news(0, 5)
    now = task.view()
    assert (now.state, now.note, now.items) == (State.WAITING, PAUSED, [])
    assert not task.wait_for_end(0.2)
    room.say(pauses=False)
    assert task.wait_for_end(5)
    assert (task.view().items, task.view().note) == (["one", "two"], "")


def test_a_pause_holds_neither_what_runs_nor_a_teacher(room, pupil):
    running = pupil.begin(until_cancelled, Request())
    room.say(pauses=True)
    assert running.view().note == ""
    teacher = Stage(None, None)  # type: ignore[arg-type]
    teacher.is_teacher = True
    assert begun(teacher, "a", 0).wait_for_end(5)
    assert (pupil.pauses, teacher.pauses) == (True, False)
    pupil.stop()


@pytest.mark.slow
def test_a_paused_task_that_is_stopped_does_not_begin_later(room, pupil):
    room.say(pauses=True)
    task = begun(pupil, "a", 0)
    assert task.wait_for_news(0, 5)
    pupil.stop()
    assert task.wait_for_end(5)
    room.say(pauses=False)
    assert (task.view().items, task.state) == ([], State.STOPPED)
