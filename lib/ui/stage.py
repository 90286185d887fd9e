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
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import marimo as mo

from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import BackgroundTask, Seat, View, Watched, join
from lib.sweeps.experiments.teacher import classroom
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request, Urgency
from lib.ui import layout
from lib.ui.export_menu import ExportMenu
from lib.ui.opened import TEACHER, role, streaming
from lib.ui.views.predict_first import PAUSED
from lib.ui.widgets import HearCurves

# Yields what it measures, and notes; ends when the event is set.
Work = Callable[[Engine, Store, Cancel, Request], Iterator[Any]]

# The first frames follow quickly, later ones ever more slowly: drawing takes a core for as long as a frame is due, and
# the training that is being timed wants that core.
FIRST_FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # where seconds are what is asked for, it is drawn seldom: a race from the start, other tasks soon
SHARE = 0.15  # of a core, for all that is drawn
QUIET_S = 2.0  # what follows from a result waits until its controls have rested for so long
NOT_DRAWN = "This cannot be drawn, which is a mistake in the program: reload the page, and report the words in brackets"


class Showings:
    """What is shown in one cell, one after another, by number: only the latest draws."""

    def __init__(self) -> None:
        self._latest, self._drawing = 0, threading.Lock()
        self.news = Watched()

    def begin(self) -> int:
        """The number of the next, in place of the one before, whose frame is completed first."""
        with self._drawing:
            self.close()
            return self._latest

    def is_latest(self, number: int) -> bool:
        return self._latest == number

    def draw(self, number: int, draw: Callable[[], object]) -> None:
        """Draw, if this is the latest; a frame of an earlier one can thus never cover a later one's."""
        with self._drawing:
            if self.is_latest(number):
                draw()

    def close(self) -> None:
        """Let none of them draw any more."""
        self._latest += 1
        self.news.tell()


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
        self.showings = Showings()
        self.curves = mo.ui.anywidget(HearCurves()) if menu is not None else None
        if menu is not None:
            weakref.finalize(self, menu.forget)  # its widget may outlive the session
        weakref.finalize(self, self.showings.close)  # what is watched may never end; who draws it ends with the session
        self._end_task: Callable[[], object] = lambda: None
        self._own, self._pinned, self._unseen = _Watching(), _Watching(), _Watching()
        self._unseen_asked = 0
        self.said = [""]  # the last sentence; shared with the painters, which do not hold the stage
        # Asked once: a cell that runs because of a state that a thread has set has no request, though somebody watches.
        self.streams, self.is_teacher = streaming(), role() == TEACHER
        self.opening = True  # the next run comes with the page, in its order; later ones because a control was moved
        self._in_order = Request(self.viewer)

    @property
    def pauses(self) -> bool:
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
        self.stop()
        self.showings.close()

    def pins(self, experiment: Experiment | None) -> bool:
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
        request = replace(self._in_order) if self.opening else Request(self.viewer, Urgency.NOW)
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
    tooltip = "Stop; what is measured is saved"
    return mo.ui.button(label="Stop", value=0, on_click=lambda n: stop() or n + 1, tooltip=tooltip)


def button(label: str, tooltip: str) -> mo.ui.button:
    return mo.ui.button(label=label, value=0, on_click=lambda n: n + 1, tooltip=tooltip)


def end_script(sentence: str, status: int) -> None:
    """Where a notebook runs as a script, print why it cannot go on, and exit with this status; else do nothing."""
    if mo.app_meta().mode == "script":
        print(sentence, file=sys.stderr)
        raise SystemExit(status)


def say(text: str) -> None:
    if mo.app_meta().mode == "script":
        print(text)


def put(view: View, content: str, sentence: str) -> None:
    """Put HTML into the cell; a script prints the sentence at the end."""
    mo.output.replace(mo.Html(content))
    if view.over:
        say(sentence)


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

    def draw(self, draw: Callable[[], object]) -> None:
        """Draw, and note the CPU time that it takes."""
        began = time.thread_time()
        draw()
        with self._guard:
            self._cost_s += (time.thread_time() - began - self._cost_s) / 8  # their mean, of the latest


pacer = Pacer()  # of all that is drawn here


class Painter:
    """Draws into a cell, again whenever its `news` change, until the cell runs again or the session ends.

    Args:
        draw: Draws the present state.
        watched: Whose changes are news, and whose end no frame holds up; None for nothing.
        look: Called every `QUIET_S`, where changes are not told but have to be looked for.
    """

    def __init__(
        self, draw: Callable[[], object], watched: Watched | None = None, look: Callable[[], object] | None = None
    ) -> None:
        self.news = Watched()
        self._draw_now, self._watched, self._look = draw, watched or self.news, look
        if watched is not None:
            watched.followed_by(self.news)

    def rest(self, at_most_s: float) -> None:
        """Wait, but not longer than for what no frame holds up."""
        self._watched.wait_for_end(at_most_s)

    def frames_s(self) -> Iterator[float]:
        """Seconds of one frame after another: drawing takes a core that the measurement wants."""
        return slower(FIRST_FRAME_S, TIMED_FRAME_S)

    def when_quiet(self) -> None:
        """Do what waits until nothing has changed for a while."""

    def show(self, stage: Stage) -> None:
        """Draw now, and at every change if the page streams."""
        number = stage.showings.begin()
        stage.showings.news.followed_by(self.news)
        version = self.news.version
        self._draw_now()
        if stage.streams:
            mo.Thread(target=self.keep, args=(stage.showings, number, version), daemon=True).start()

    def keep(self, showings: Showings, number: int, version: int) -> None:
        """Draw what is new after this version of the news, until the next showing begins."""
        frames_s = self.frames_s()
        while True:
            self._wait(version)
            if not showings.is_latest(number):
                return
            self.rest(pacer.turn_in_s(time.monotonic()))
            version = self.news.version
            showings.draw(number, partial(pacer.draw, self._draw_or_say))
            self.rest(next(frames_s))

    def _wait(self, version: int) -> None:
        if not self.news.wait_for_news(version, QUIET_S):
            self.when_quiet()
        while self._look is not None and not self.news.wait_for_news(version, QUIET_S):
            self._look()
        self.news.wait_for_news(version)

    def _draw_or_say(self) -> None:
        try:
            self._draw_now()
        except Exception as error:  # marimo shows what a cell raises, but not what its thread does
            traceback.print_exc()
            mo.output.replace(layout.failed(f"{NOT_DRAWN} ({type(error).__name__}: {error})."))
