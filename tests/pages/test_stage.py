"""A stage: one task at a time, begun anew only for something else or at the press of a button."""

import gc
import threading
import weakref
from types import SimpleNamespace

import marimo as mo
import pytest

from lib.experiments.mnist_training import learning_rate
from lib.experiments.results import Results
from lib.experiments.runs import Run, Seat
from lib.pages import stage as stage_module
from lib.pages.export_menu import ExportMenu
from lib.pages.stage import Stage
from lib.workers.notes import State
from lib.workers.queue import ALLOWANCE, Request, SharedRequest, Urgency


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
    return Seat(Run(experiment, Results(experiment.items, experiment.labels), SharedRequest(request)), request)


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
