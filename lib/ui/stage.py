"""Runs one thing for one viewer's page: an experiment, whose run it may share, or a background task.

A `Stage` leaves or ends its run when the next one begins, and when it is garbage-collected at the end of the session;
so no thread may refer to it. With a live viewer, results are drawn into the cell as they arrive; otherwise (script,
export, test) once, at the end.

All pages of a process share a fraction of one core for drawing. Slider moves and the end of a run are drawn at once;
only the frames in between wait. A single page draws whenever it wants; a hundred pages, whose trainings compete for the
same cores, get fewer frames each.
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
from lib.sweeps.experiments.results import BackgroundTask, Subscription, View, Watched, join
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

# Yields measurements and notes; ends when `Cancel` is set.
Work = Callable[[Engine, Store, Cancel, Request], Iterator[Any]]

# Frames start fast and slow down: drawing takes a core that the timed training needs.
FIRST_FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # draw rarely where time is the result: races from the start, other tasks soon after
SHARE = 0.15  # of one core, for all drawing
QUIET_S = 2.0  # follow-up work waits until the controls have been still this long
NOT_DRAWN = "This could not be drawn because of a bug. Reload the page and report the text in brackets"


class Showings:
    """Successive drawings in one cell, numbered; only the latest may draw."""

    def __init__(self) -> None:
        self._latest, self._drawing = 0, threading.Lock()
        self.news = Watched()

    def begin(self) -> int:
        """The number of the next drawing, which replaces the current one once its frame is complete."""
        with self._drawing:
            self.close()
            return self._latest

    def is_latest(self, number: int) -> bool:
        return self._latest == number

    def draw(self, number: int, draw: Callable[[], object]) -> None:
        """Draw if this is the latest, so that an older frame never covers a newer one."""
        with self._drawing:
            if self.is_latest(number):
                draw()

    def close(self) -> None:
        """Stop all of them from drawing."""
        self._latest += 1
        self.news.tell()


class _Slot:
    """A subscription to a run, which ends with the next one, by Stop, or with the session."""

    def __init__(self) -> None:
        self.joined: Subscription | None = None
        self.leave: Callable[[], object] = lambda: None

    def is_at(self, experiment: Experiment | None) -> bool:
        """Whether this is the run of the experiment; None means no run."""
        return experiment == (self.joined.run.experiment if self.joined is not None else None)

    def go_to(self, take: Callable[[], Subscription] | None) -> None:
        self.leave()
        self.joined = take() if take is not None else None
        if self.joined is not None:
            self.leave = weakref.finalize(self, self.joined.leave)

    def forget_if_stopped(self) -> None:
        """Drop a stopped run, so that the next request starts it again."""
        if self.joined is not None and self.joined.results.state is State.STOPPED:
            self.joined = None


class Stage:
    """What one viewer runs: an experiment or a background task. The next one replaces it."""

    def __init__(self, engine: Engine, store: Store, viewer: Hashable = None, menu: ExportMenu | None = None) -> None:
        self.engine, self.store, self.menu = engine, store, menu
        # Shared by a page's stages, so that their runs keep the page's order, and on a class site by all pages of a
        # browser, so that many tabs get no more turns than one.
        self.viewer = _browser() or viewer or object()
        self.running: BackgroundTask | None = None
        self.asked: tuple = ()  # what the current run was started for; `began_with` is what was known then
        self.began_with: tuple = ()
        self.showings = Showings()
        self.curves = mo.ui.anywidget(HearCurves()) if menu is not None else None
        if menu is not None:
            weakref.finalize(self, menu.forget)  # the widget may outlive the session
        weakref.finalize(self, self.showings.close)  # stops the painter even if the watched run never ends
        self._end_task: Callable[[], object] = lambda: None
        self._own, self._pinned, self._unseen = _Slot(), _Slot(), _Slot()
        self._unseen_asked = 0
        self.said = [""]  # the last sentence, in a list that painters share, because they must not hold the stage
        # Read once: a cell that runs because a thread set a state has no request, even with a live viewer.
        self.streams, self.is_teacher = streaming(), role() == TEACHER
        self.opening = True  # the next run takes its turn in page order; later ones follow a control
        self._in_order = Request(self.viewer)

    @property
    def pauses(self) -> bool:
        return classroom().settings.pauses and not self.is_teacher

    def run(self, experiment: Experiment, asked: int) -> Subscription:
        """This experiment's run: the current one, or a new one, which ends the current one.

        Args:
            experiment: What to run.
            asked: Presses of “Run again”; a new count starts a fresh run.
        """
        if not self.has(experiment, asked):
            self._pinned.forget_if_stopped()
            request, again = self.request(), self._is_again(asked)
            self._own.go_to(lambda: join(experiment, self.engine, self.store, request, fresh=again))
            self.asked = (asked,)
        assert self._own.joined is not None, "taken above"
        return self._own.joined

    def has(self, experiment: Experiment, asked: int) -> bool:
        """Whether the current run is of this experiment, without “Run again” since."""
        return self._own.is_at(experiment) and not self._is_again(asked)

    def _is_again(self, asked: int) -> bool:
        return asked != (self.asked[-1] if self.asked else 0)

    def pin(self, experiment: Experiment | None) -> Subscription | None:
        """The pinned run, which replaces any other pinned one; None for none."""
        return self._beside(self._pinned, experiment)

    def run_unseen(self, experiment: Experiment, asked: int) -> Subscription | None:
        """An additional run that is not drawn; None without one.

        Args:
            experiment: What to run; a run of another experiment is left.
            asked: Presses of its button; a new count starts the run.
        """
        if asked != self._unseen_asked and not self.pauses:
            self._unseen_asked = asked
            self._unseen.forget_if_stopped()
            return self._beside(self._unseen, experiment if asked else None)  # 0: the controls were reset
        return self._unseen.joined if self._unseen.is_at(experiment) else self._beside(self._unseen, None)

    def _beside(self, place: _Slot, experiment: Experiment | None) -> Subscription | None:
        own = self._own.joined
        if experiment is None or own is None:
            place.go_to(None)
        elif not place.is_at(experiment):
            request = Request(self.viewer, own.request.urgency)
            place.go_to(lambda: join(experiment, self.engine, self.store, request))
        return place.joined

    @property
    def unseen(self) -> Subscription | None:
        return self._unseen.joined

    def close(self) -> None:
        self.stop()
        self.showings.close()

    def pins(self, experiment: Experiment | None) -> bool:
        return self._pinned.is_at(experiment)

    def begin(self, work: Work, request: Request) -> BackgroundTask:
        """Run the work in a thread, in place of the previous task; it waits while the class is paused."""
        self.stop()
        cancel = Cancel()
        self._end_task = weakref.finalize(self, cancel.set)
        held = partial(_admitted, self.is_teacher, work, self.engine, self.store, cancel, request)
        self.running = BackgroundTask(held, cancel)
        return self.running

    def begin_if_new(
        self, asked: Hashable, presses: object, request: Request, make: Callable[[bool], tuple[tuple, Work]]
    ) -> BackgroundTask:
        """The task for `asked`: the current one, or a new one if `asked` or the presses have changed.

        Args:
            asked: What the controls ask for, compared by equality.
            presses: How often the button was pressed.
            request: Place in the queue of a new task.
            make: Called with whether the button was pressed since; returns what is known (`began_with`) and the work.
        """
        if self.running is None or self.asked != (asked, presses):
            self.began_with, work = make(bool(self.asked) and self.asked[-1] != presses)
            self.asked = (asked, presses)
            self.begin(work, request)
        assert self.running is not None, "begun above"
        return self.running

    def request(self) -> Request:
        """A place in the queue: in page order for the first run after the page opens or is reset, urgent afterwards."""
        request = replace(self._in_order) if self.opening else Request(self.viewer, Urgency.NOW)
        self.opening = False
        return request

    @property
    def asked_as(self) -> int:
        """The number of the current run's request; 0 without a run."""
        return self._own.joined.request.number if self._own.joined is not None else 0

    def stop(self) -> None:
        """Stop all runs, drawn or not; finished trainings stay stored."""
        self._end_task()
        for watching in (self._own, self._pinned, self._unseen):
            watching.leave()


def until_the_class_goes_on(is_teacher: bool, cancel: Cancel) -> Iterator[Note]:
    """While the teacher has paused the class, wait, with a note before and after; yield nothing for the teacher."""
    if classroom().settings.pauses and not is_teacher:
        yield Note(PAUSED, State.WAITING)
        classroom().wait_until_it_goes_on(cancel)
        yield Note("")


def _admitted(
    is_teacher: bool, work: Work, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Any]:
    yield from until_the_class_goes_on(is_teacher, cancel)
    if cancel.is_set():
        return
    done = threading.Event()
    ALLOWANCE.admit(request, lambda: done.is_set() or cancel.is_set())  # a cancelled run ends soon
    try:
        yield from work(engine, store, cancel, request)
    finally:
        done.set()


def _browser() -> str:
    request = mo.app_meta().request
    return str(request.meta.get("viewer", "")) if request is not None else ""


def stop_button(stop: Callable[[], None]) -> mo.ui.button:
    tooltip = "Stop; finished results are saved"
    return mo.ui.button(label="Stop", value=0, on_click=lambda n: stop() or n + 1, tooltip=tooltip)


def button(label: str, tooltip: str) -> mo.ui.button:
    return mo.ui.button(label=label, value=0, on_click=lambda n: n + 1, tooltip=tooltip)


def end_script(sentence: str, status: int) -> None:
    """In a script, print why it cannot go on and exit with this status; elsewhere do nothing."""
    if mo.app_meta().mode == "script":
        print(sentence, file=sys.stderr)
        raise SystemExit(status)


def say(text: str) -> None:
    if mo.app_meta().mode == "script":
        print(text)


def put(view: View, content: str, sentence: str) -> None:
    """Put HTML into the cell; a script prints the sentence once the work is over."""
    mo.output.replace(mo.Html(content))
    if view.over:
        say(sentence)


def slower(first_s: float, last_s: float) -> Iterator[float]:
    """Seconds between frames, each `SLOWER` times the one before, up to `last_s`.

    >>> frames_s = slower(1.0, 1.5)
    >>> [next(frames_s) for _ in range(4)]
    [1.0, 1.3, 1.5, 1.5]
    """
    frame_s = first_s
    while True:
        yield frame_s
        frame_s = min(SLOWER * frame_s, last_s)


class Pacer:
    """Spaces drawing out in time, so that all of it takes no more than a share of a core."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._guard = share, threading.Lock()
        self._cost_s, self._next_at = 0.0, 0.0

    def turn_in_s(self, now: float) -> float:
        """Reserve the next turn; return the seconds until it, from `now` in `time.monotonic`."""
        with self._guard:
            at = max(now, self._next_at)
            self._next_at = at + self._cost_s / self._share
            return at - now

    def draw(self, draw: Callable[[], object]) -> None:
        began = time.thread_time()
        draw()
        with self._guard:
            self._cost_s += (time.thread_time() - began - self._cost_s) / 8  # moving average


pacer = Pacer()  # for all drawing in this process


class Painter:
    """Redraws a cell whenever `news` changes, until the cell runs again or the session ends.

    Args:
        draw: Draws the current state.
        watched: Changes count as news, and the end cuts the wait for the next frame short.
        look: Called every `QUIET_S`, to poll for changes that are not reported.
    """

    def __init__(
        self, draw: Callable[[], object], watched: Watched | None = None, look: Callable[[], object] | None = None
    ) -> None:
        self.news = Watched()
        self._draw_now, self._watched, self._look = draw, watched or self.news, look
        if watched is not None:
            watched.followed_by(self.news)

    def rest(self, at_most_s: float) -> None:
        """Wait, cut short by the end of what is watched."""
        self._watched.wait_for_end(at_most_s)

    def frames_s(self) -> Iterator[float]:
        """Seconds between frames; they grow, because drawing takes a core that the measurement needs."""
        return slower(FIRST_FRAME_S, TIMED_FRAME_S)

    def when_quiet(self) -> None:
        """Called once nothing has changed for `QUIET_S`."""

    def show(self, stage: Stage) -> None:
        number = stage.showings.begin()
        stage.showings.news.followed_by(self.news)
        version = self.news.version
        self._draw_now()
        if stage.streams:
            mo.Thread(target=self.keep, args=(stage.showings, number, version), daemon=True).start()

    def keep(self, showings: Showings, number: int, version: int) -> None:
        """Draw all news after this version, until the next showing begins."""
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
        except Exception as error:  # marimo shows exceptions of cells, but not of their threads
            traceback.print_exc()
            mo.output.replace(layout.failed(f"{NOT_DRAWN} ({type(error).__name__}: {error})."))
