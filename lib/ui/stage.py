"""The place of one thing that runs on one viewer's page: an experiment, whose run it may share, or a background task.

A `Stage` leaves or ends what runs when the next one begins, and at the end of the session, when the stage is
garbage-collected. Nothing that runs in a thread refers to the stage. Where somebody watches, what runs is drawn into
its cell while it goes on; where nobody does (a script, an export, a test), once, at the end.

All pages of a process together have a share of one core for drawing. A move of a slider is answered at once, and so is
a run's end; only the frames in between wait. One page has a frame whenever it wants one; a hundred, whose trainings
want the same cores, have fewer each.
"""

import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import marimo as mo

from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import BackgroundTask, Seat, View, Watched, join
from lib.sweeps.experiments.teacher import classroom
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request, Urgency
from lib.ui.export_menu import ExportMenu
from lib.ui.opened import TEACHER, role, streaming
from lib.ui.views.predict_first import PAUSED
from lib.ui.widgets import HearCurves

T = TypeVar("T")
# Yields what it measures, and notes; ends when the event is set.
Work = Callable[[Engine, Store, Cancel, Request], Iterator[Any]]

# The first frames follow quickly, later ones ever more slowly: drawing takes a core for as long as a frame is due, and
# the training that is being timed wants that core.
FIRST_FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # where seconds are what is asked for, it is drawn seldom: a race from the start, other tasks soon
SHARE = 0.15  # of a core, for all that is drawn


@dataclass
class _Place:
    """Where a stage's showings draw, one after another: the number of the latest, and who is drawing now."""

    number: int = 0
    drawing: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Let no showing draw any more."""
        self.number += 1


@dataclass(frozen=True)
class Showing:
    """One showing of what runs on a stage, which it does not hold; once the next has begun it draws no more."""

    _place: _Place
    _number: int

    @property
    def is_latest(self) -> bool:
        """Whether no other has begun since."""
        return self._place.number == self._number

    def draw(self, paint: Callable[[], T]) -> T | None:
        """Paint, if this is the latest showing; a frame of an earlier one can thus never cover a later one's."""
        with self._place.drawing:
            return paint() if self.is_latest else None


class _Watching:
    """A seat at a run, which is left for the next one, by Stop, or with the session."""

    def __init__(self) -> None:
        self.seat: Seat | None = None
        self.leave: Callable[[], object] = lambda: None

    def is_at(self, experiment: Experiment | None) -> bool:
        """Whether the seat is at the run of this experiment; None for no run."""
        return experiment == (self.seat.run.experiment if self.seat is not None else None)

    def go_to(self, take: Callable[[], Seat] | None) -> None:
        """Leave, and take another seat, if there is one."""
        self.leave()
        self.seat = take() if take is not None else None
        if self.seat is not None:
            self.leave = weakref.finalize(self, self.seat.leave)

    def forget_if_stopped(self) -> None:
        """What Stop has ended begins again with the next run."""
        if self.seat is not None and self.seat.results.state is State.STOPPED:
            self.seat = None


class Stage:
    """Where one viewer sees one thing that runs: an experiment, or a background task. The next one replaces it."""

    def __init__(self, engine: Engine, store: Store, viewer: Hashable = None, menu: ExportMenu | None = None) -> None:
        self.engine, self.store, self.menu = engine, store, menu
        # Stages of one page share it: their runs then keep the page's order. So do all pages of a browser at a class
        # site, so that many tabs get no more turns than one.
        self.viewer = _browser() or viewer or object()
        self.running: BackgroundTask | None = None
        self.asked: tuple = ()  # what the present run was begun for, and what was known then
        self.began_with: tuple = ()
        self._place = _Place()
        self.curves = mo.ui.anywidget(HearCurves()) if menu is not None else None
        if menu is not None:
            weakref.finalize(self, menu.forget)  # its widget may outlive the session
        weakref.finalize(self, self._place.close)  # what is watched may never end; who draws it ends with the session
        self._end_task: Callable[[], object] = lambda: None
        self._own, self._pinned, self._unseen = _Watching(), _Watching(), _Watching()
        self._unseen_asked = 0
        self.said = [""]  # the last sentence; shared with the painters, which do not hold the stage
        # Asked once: a cell that runs because of a state that a thread has set has no request, though somebody watches.
        self.streams, self.is_teacher = streaming(), role() == TEACHER
        self.opening = True  # the next run comes with the page, in its order; later ones because a control was moved

    @property
    def pauses(self) -> bool:
        """Whether this viewer's new runs wait for the teacher."""
        return classroom().said.pauses and not self.is_teacher

    def run(self, experiment: Experiment, asked: int) -> Seat:
        """The viewer's seat at the run of this experiment: the present one, or a new one, which ends what ran before.

        Args:
            experiment: What is to run.
            asked: How often “Run again” was pressed; a new count begins a fresh run.
        """
        if not self.has(experiment, asked):
            self._pinned.forget_if_stopped()
            request, again = self.request(), self._is_again(asked)
            self._own.go_to(lambda: join(experiment, self.engine, self.store, request, fresh=again))
            self.asked = (asked,)
        assert self._own.seat is not None, "taken above"
        return self._own.seat

    def has(self, experiment: Experiment, asked: int) -> bool:
        """Whether the present run is of this experiment, and “Run again” was not pressed since."""
        return self._own.is_at(experiment) and not self._is_again(asked)

    def _is_again(self, asked: int) -> bool:
        return asked != (self.asked[-1] if self.asked else 0)

    def pin(self, experiment: Experiment | None) -> Seat | None:
        """The viewer's seat at the run that is pinned beside the present one, which it leaves for another; None where
        none is to be."""
        return self._beside(self._pinned, experiment)

    def run_unseen(self, experiment: Experiment, asked: int) -> Seat | None:
        """The viewer's seat at a run beside the present one that is not drawn, for as long as it is wanted at all; None
        where there is none.

        Args:
            experiment: What is to run; another one is left.
            asked: How often its button was pressed; it begins at a new count.
        """
        if asked != self._unseen_asked and not self.pauses:
            self._unseen_asked = asked
            self._unseen.forget_if_stopped()
            return self._beside(self._unseen, experiment if asked else None)  # 0: the controls were reset
        return self._unseen.seat if self._unseen.is_at(experiment) else self._beside(self._unseen, None)

    def _beside(self, place: _Watching, experiment: Experiment | None) -> Seat | None:
        own = self._own.seat
        if experiment is None or own is None:
            place.go_to(None)
        elif not place.is_at(experiment):
            request = Request(self.viewer, own.request.urgency)
            place.go_to(lambda: join(experiment, self.engine, self.store, request))
        return place.seat

    @property
    def unseen(self) -> Seat | None:
        """The seat at the run beside the present one that is not drawn."""
        return self._unseen.seat

    def close(self) -> None:
        """Stop what runs, and let nothing be drawn any more: the session has ended."""
        self.stop()
        self._place.close()

    def pins(self, experiment: Experiment | None) -> bool:
        """Whether the pinned run is of this experiment; None for no run."""
        return self._pinned.is_at(experiment)

    def begin(self, work: Work, request: Request) -> BackgroundTask:
        """Do the work in a thread, in place of what ran before, and once the class goes on where it is paused."""
        self.stop()
        cancel = Cancel()
        self._end_task = weakref.finalize(self, cancel.set)
        held = partial(_admitted, self.is_teacher, work, self.engine, self.store, cancel, request)
        self.running = BackgroundTask(held, cancel)
        return self.running

    def begin_if_new(
        self, asked: Hashable, presses: object, request: Request, make: Callable[[bool], tuple[tuple, Work]]
    ) -> BackgroundTask:
        """The task for what is `asked`: the present one, or a new one where that or the button's count differs.

        Args:
            asked: What the controls ask for, compared by equality.
            presses: How often the button was pressed.
            request: Place in the queue of a new task.
            make: Called with whether the button was pressed since; gives what is known now (`began_with`) and the work.
        """
        if self.running is None or self.asked != (asked, presses):
            self.began_with, work = make(bool(self.asked) and self.asked[-1] != presses)
            self.asked = (asked, presses)
            self.begin(work, request)
        assert self.running is not None, "begun above"
        return self.running

    def request(self) -> Request:
        """A place in the queue: in the page's order for the first after it opens or is reset, urgent for later ones."""
        request = Request(self.viewer, Urgency.IN_ORDER if self.opening else Urgency.NOW)
        self.opening = False
        return request

    @property
    def asked_as(self) -> int:
        """The number of the present run's request; 0 without a run."""
        return self._own.seat.request.number if self._own.seat is not None else 0

    def stop(self) -> None:
        """Stop what runs, also beside it; what is finished stays stored."""
        self._end_task()
        for watching in (self._own, self._pinned, self._unseen):
            watching.leave()

    def next_showing(self) -> Showing:
        """Begin a showing in place of the one before, whose frame is completed first."""
        with self._place.drawing:
            self._place.number += 1
            return Showing(self._place, self._place.number)


def until_the_class_goes_on(is_teacher: bool, cancel: Cancel) -> Iterator[Note]:
    """Notes for a viewer whose run the teacher has paused: one before it waits, and one after; nothing for others."""
    if classroom().said.pauses and not is_teacher:
        yield Note(PAUSED, State.WAITING)
        classroom().wait_until_it_goes_on(cancel)
        yield Note("")


def _admitted(
    is_teacher: bool, work: Work, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Any]:
    """What the work yields, once the class goes on, unless the viewer has too many runs waiting."""
    yield from until_the_class_goes_on(is_teacher, cancel)
    if cancel.is_set():
        return
    done = threading.Event()
    ALLOWANCE.admit(request, lambda: done.is_set() or cancel.is_set())  # once cancelled it only takes a moment to end
    try:
        yield from work(engine, store, cancel, request)
    finally:
        done.set()


def _browser() -> str:
    """Which browser asks, as the door of the class site tells it; empty where there is none."""
    request = mo.app_meta().request
    return str(request.meta.get("viewer", "")) if request is not None else ""


def stop_button(stop: Callable[[], None]) -> mo.ui.button:
    """A button that stops what runs in a section."""
    tooltip = "Stop; what is measured is saved"
    return mo.ui.button(label="Stop", value=0, on_click=lambda n: stop() or n + 1, tooltip=tooltip)


def button(label: str, tooltip: str) -> mo.ui.button:
    """A button whose value counts how often it was pressed."""
    return mo.ui.button(label=label, value=0, on_click=lambda n: n + 1, tooltip=tooltip)


def end_script(sentence: str, status: int) -> None:
    """Where a notebook runs as a script, print why it cannot go on, and exit with this status; else do nothing."""
    if mo.app_meta().mode == "script":
        print(sentence, file=sys.stderr)
        raise SystemExit(status)


def say(text: str) -> None:
    """Print to standard output, where a notebook runs as a script."""
    if mo.app_meta().mode == "script":
        print(text)


def painted(view: View, content: str, sentence: str) -> int:
    """Put HTML into the cell, and return the version that it shows; a script prints the sentence at the end."""
    mo.output.replace(mo.Html(content))
    if view.over:
        say(sentence)
    return view.version


def paint_while_it_runs(stage: Stage, task: BackgroundTask, paint: Callable[[], int]) -> None:
    """Paint now and at every change, until the end is painted or another showing has begun.

    Where nobody watches, it is painted once, at the end; a script whose task failed ends with exit status 1.
    """
    if not stage.streams:
        task.wait_for_end()
    paint_at_changes(stage, task, paint)
    if not stage.streams and (now := task.view()).state is State.FAILED:
        end_script(now.problem, 1)


def paint_at_changes(stage: Stage, watched: Watched, paint: Callable[[], int]) -> None:
    """Paint now and, where somebody watches, at every change; `paint` draws the present state, and returns its version.

    It ends when the end is painted, which may never come, or when another showing has begun.
    """
    showing, version = stage.next_showing(), paint()
    if stage.streams:
        mo.Thread(target=_keep_painting, args=(watched, paint, showing, version), daemon=True).start()


def slower(first_s: float, last_s: float) -> Iterator[float]:
    """Seconds of one frame after another: each is `SLOWER` times as long as the one before, up to the last.

    >>> frames_s = slower(1.0, 1.5)
    >>> [next(frames_s) for _ in range(4)]
    [1.0, 1.3, 1.5, 1.5]
    """
    frame_s = first_s
    while True:
        yield frame_s
        frame_s = min(SLOWER * frame_s, last_s)


def _keep_painting(watched: Watched, paint: Callable[[], int], showing: Showing, painted: int) -> None:
    """After version `painted`, paint what is new.

    Not before the frame is over: drawing takes a core that the measurement wants.
    """
    frames_s = slower(FIRST_FRAME_S, TIMED_FRAME_S)
    while not watched.over_at(painted):
        news = watched.wait_for_news(painted, 1.0)
        if not showing.is_latest or mo.current_thread().should_exit:
            return
        if news:
            watched.wait_for_end(pacer.turn_in_s(time.monotonic()))  # the end waits neither for its turn
            painted = showing.draw(partial(pacer.draw, paint)) or painted
            watched.wait_for_end(next(frames_s))  # nor for its frame


class Pacer:
    """Deals out moments to draw at, so that all that is drawn takes no more than a share of a core."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._guard = share, threading.Lock()
        self._cost_s, self._next_at = 0.0, 0.0

    def turn_in_s(self, now: float) -> float:
        """Take the next turn; seconds from `now`, a time of `time.monotonic`, until it comes."""
        with self._guard:
            at = max(now, self._next_at)
            self._next_at = at + self._cost_s / self._share
            return at - now

    def draw(self, paint: Callable[[], int]) -> int:
        """Draw, and note the CPU time that it takes; returns what `paint` returns."""
        began = time.thread_time()
        painted = paint()
        with self._guard:
            self._cost_s += (time.thread_time() - began - self._cost_s) / 8  # their mean, of the latest
        return painted


pacer = Pacer()  # of all that is drawn here
