"""A notebook's sections: each shows the result of its controls while it runs, and calls the page's hooks.

One thread draws a section, again whenever one of its runs or hooks changes. Its `Stage` leaves or ends a run when the
next one begins, and when it is garbage-collected at the end of the session; so no thread may refer to it. With a live
viewer, results are drawn into the cell as they arrive; otherwise (script, export, test) once, at the end.

All pages of a process share a fraction of one core for drawing. Slider moves and the end of a run are drawn at once;
only the frames in between wait. A single page draws whenever it wants; a hundred pages, whose trainings compete for the
same cores, get fewer frames each.
"""

import sys
import threading
import time
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import marimo as mo

from lib import formatting
from lib.model.spec import MNIST
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.sweeps.experiments.exported_script import Takeaway, takeaway
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import BackgroundTask, Results, Subscription, View, Watched, join
from lib.sweeps.experiments.teacher import Guess, classroom
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine, shared_engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request, Urgency
from lib.ui import layout
from lib.ui.controls import SHARED, SHARED_TODAY, Controls, pin_button, settings_of
from lib.ui.export_menu import ExportMenu
from lib.ui.heading import plain_title
from lib.ui.opened import TEACHER, opened, role, streaming
from lib.ui.url_state import Setting, values_of
from lib.ui.views import mnist_training as view
from lib.ui.views.chart import Chart, pd
from lib.ui.views.pinned import HIDDEN, PIN, PIN_MEANS, WAITS
from lib.ui.views.predict_first import PAUSED
from lib.ui.widgets import Scripted

AT_ONCE_S = 0.12  # time for stored results or a warm worker's first points to arrive before an empty frame is drawn
STORE_S = 1.0  # longer than the store takes to answer, unless a whole class asks at once
ON_FIRST_SCREEN = 2  # sections that start with the page
SIGHT_S = 5.0  # a client that has not reported its visible sections by then is sent all of them

# Yields measurements and notes; ends when `Cancel` is set.
Work = Callable[[Engine, Store, Cancel, Request], Iterator[Any]]

# Frames start fast and slow down: drawing takes a core that the timed training needs.
FIRST_FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # draw rarely where time is the result: races from the start, other tasks soon after
SHARE = 0.15  # of one core, for all drawing
QUIET_S = 2.0  # follow-up work waits until the controls have been still this long
NOT_DRAWN = "This could not be drawn because of a bug. Reload the page and report the text in brackets"


class Hook:
    """Extends every section of a page. One instance per session holds its state; the defaults change nothing."""

    settings: dict[str, Setting] = {}  # noqa: RUF012 – page settings in addition to its controls'

    def attach(self, page: "Page") -> None:
        """Called once, after the page has read its address."""
        self.page = page

    def elements(self) -> dict[str, Any]:
        return {}

    def changed(self, experiment: Experiment) -> Experiment:
        """The experiment to run instead; may raise ValueError with a sentence."""
        return experiment

    def instead(self, section: "Section", experiment: Experiment) -> str:
        """HTML shown instead of the result, while the run goes on unseen; empty to show the result."""
        return ""

    def waits(self) -> str:
        """HTML shown instead of starting the run; empty to start it."""
        return ""

    def hides(self, experiment: Experiment) -> bool:
        """Whether this experiment's result must stay hidden, even as a pinned run."""
        return False

    def guess(self, experiment: Experiment) -> Guess | None:
        return None

    def extra_run(self, section: "Section", experiment: Experiment) -> Subscription | None:
        """An additional run, which is not drawn."""
        return None

    def below(self, section: "Section", experiment: Experiment, results: Results) -> str:
        """HTML below the result's sentence, for this viewer only."""
        return ""

    def knows(self, results: Results) -> None:
        """Called before each frame, once the training data are known."""

    def done(self, results: Results) -> None:
        """Called with the final results, after the controls have been still for a while."""

    def ended(self, section: "Section") -> None:
        """Called when a section's measurements are over and its controls have been still for a while."""

    def stopped(self, section: "Section") -> None:
        """Called after “Stop” has ended the section's runs."""

    def redraw(self) -> None:
        """Called when another section comes into view."""

    def close(self) -> None:
        """Called once, when the session ends."""


class Page:
    """One viewer's page: its address, its sections, and their hooks.

    Args:
        name: The notebook's file name, without `.py`.
        hooks: Applied to every section, in this order.
        panels: Each section's controls, by the prefix of their settings in the address.
    """

    def __init__(self, name: str, hooks: Sequence[Hook], panels: dict[str, type[Controls]]) -> None:
        self.name, self.engine, self.store, self.hooks = name, shared_engine(), Store(), tuple(hooks)
        self.news = Watched()  # hooks report changes here, and every section redraws
        self.settings = settings_of(panels) | SHARED
        for hook in hooks:
            self.settings |= hook.settings
        self.address = opened(name, self.settings)
        self.sections = {prefix: Section(self, prefix, one) for prefix, one in panels.items()}
        self.in_sight = set([*panels][:ON_FIRST_SCREEN] if streaming() else panels)
        self._silent = threading.Timer(SIGHT_S, self.come_into_sight, [panels])
        self._silent.daemon = True
        self._silent.start()
        for hook in hooks:
            hook.attach(self)

    @property
    def today(self) -> str:
        """The reader's own program (see `controls.today`)."""
        return self.address.read(SHARED[SHARED_TODAY])

    def come_into_sight(self, prefixes: Iterable[str]) -> None:
        """Start the sections that the browser shows or is about to show; the others do nothing until then."""
        self._silent.cancel()
        new = set(prefixes) - self.in_sight
        self.in_sight |= new
        for part in (*(self.sections[one] for one in new & self.sections.keys()), *self.hooks * bool(new)):
            part.redraw()

    def close(self) -> None:
        for part in (*(section.stage for section in self.sections.values()), *self.hooks):
            part.close()


class Lab:
    """Owns a notebook's page, which closes when the notebook drops this object. Arguments as for `Page`."""

    def __init__(self, name: str, hooks: Sequence[Hook] = (), **panels: type[Controls]) -> None:
        self.page = Page(name, hooks, panels)
        weakref.finalize(self, self.page.close)

    def controls(self, prefix: str, _resets: int = 0) -> mo.ui.dictionary:
        """The section's panel, with the address's values. Assign it to a global: marimo reacts only to those."""
        return self.page.sections[prefix].make_panel()

    def show(
        self,
        panel: mo.ui.dictionary,
        jobs: Callable[[Any], Experiment],
        draw: Sequence[Callable],
        say: Callable[..., str],
        below: Callable[[Experiment, Results], str] | None = None,
    ) -> None:
        """Train what the panel's values ask for, and draw it into this cell until the cell runs again.

        Args:
            panel: From `controls`.
            jobs: Maps the checked values to an experiment; its ValueError is shown instead of the charts.
            draw: Chart builders, each called with the experiment and its results.
            say: Builds the sentence about the finished trainings.
            below: Builds HTML shown at the end.
        """
        section = self._section(panel)
        _Trainings(section, lambda at: replace(jobs(at), draw=tuple(draw), say=say), below).show(section.stage)

    def measure(
        self,
        panel: mo.ui.dictionary,
        tasks: Callable[[Any], Sequence[AnatomyTask]],
        draw: Callable[["Shown"], "Drawing"],
    ) -> None:
        """Measure what the panel's values ask for and the store lacks, and draw it until the cell runs again.

        Args:
            panel: From `controls`.
            tasks: Maps the checked values to tasks; its ValueError is shown instead of the result.
            draw: Draws what is known so far.
        """
        store = self.page.store

        def ask(at: Any) -> Asked:
            wanted = list(tasks(at))

            def make(again: bool) -> tuple[tuple, Work]:
                cached = [record for kind in {task.kind for task in wanted} for record in store.records(kind)]
                missing = wanted if again else [task for task in wanted if not task.complete(cached)]
                return (wanted, cached, not missing), partial(measure_tasks, missing)

            return Asked(tuple(wanted), make)

        self.work(panel, ask, draw)

    def work(
        self, panel: mo.ui.dictionary, ask: Callable[[Any], "Asked"], draw: Callable[["Shown"], "Drawing"]
    ) -> None:
        """Run the work that the panel's values ask for, and draw it into this cell until the cell runs again.

        Args:
            panel: From `controls`.
            ask: Maps the checked values to work; its ValueError is shown instead of the result.
            draw: Draws what is known so far.
        """
        section = self._section(panel)
        _Measurements(section, ask, draw).show(section.stage)

    def answer(self, panel: mo.ui.dictionary, draw: Callable[..., "Drawing"], *others: mo.ui.dictionary) -> None:
        """Draw into this cell without running any work, again at each change, until the cell runs again.

        Args:
            panel: From `controls`.
            draw: Called with `Shown` and the checked values of `others`; its ValueError is shown instead of the result.
            others: Panels of other sections.
        """
        section = self._section(panel)
        _Answers(section, draw, [self._section(one) for one in others]).show(section.stage)

    def title(self, heading: str, question: str) -> mo.Html:
        return plain_title(self.page.name, heading, question, self.page.address, self.page.come_into_sight)

    def _section(self, panel: mo.ui.dictionary) -> "Section":
        return next(one for one in self.page.sections.values() if one.panel is panel)


class Section:
    """One section of a page: its controls, the stage of its runs, and its drawing."""

    panel: Any = None  # a `mo.ui.dictionary`, from `make_panel`
    drawing: "Painter | None" = None  # from the last run of its cell

    def __init__(self, page: Page, prefix: str, declared: type[Controls]) -> None:
        self.page, self.prefix, self.declared = page, prefix, declared
        self.stage = Stage(page.engine, page.store, page.address, ExportMenu() if declared.EXPORTS else None)
        self._settings = declared.settings(prefix)
        self._pin = self._settings.get(f"{prefix}.pin")
        self.members = [one for one in self._settings.values() if one is not self._pin]
        self._rows: tuple[str, ...] = ()  # names of its elements, from top to bottom

    def make_panel(self) -> mo.ui.dictionary:
        """Its elements and buttons; changed values are written into the address, presses of buttons are not."""
        address = self.page.address
        elements = self.declared.elements(self.prefix, address)
        self._rows = tuple(elements)
        if self._pin is not None:
            elements["pin"] = mo.ui.button(
                label=PIN,
                value=address.read(self._pin),
                on_click=lambda pinned: "" if pinned else address.state(self.members),
                tooltip=PIN_MEANS,
            )
        saved = [name for name in elements if f"{self.prefix}.{name}" in self._settings]
        for hook in self.page.hooks:
            elements |= hook.elements()
        elements |= {name: button(says, does) for name, says, does in self.declared.RESULT_BUTTONS}
        if self.declared.AGAIN:
            elements["stop"] = button("Stop", "Stop; finished results are saved", press=self.stop)
            elements["again"] = button(*self.declared.AGAIN)
        self.panel = mo.ui.dictionary(
            elements, on_change=lambda now: address.save(self.prefix, {name: now[name] for name in saved})
        )
        return self.panel

    def checked(self) -> Controls:
        """The current values of its controls; raises ValueError with a sentence."""
        return self.declared.checked(self.prefix, self.panel.value)

    def value(self, name: str) -> Any:
        return self.panel.value[name]

    def pressed(self, name: str) -> bool:
        """Whether this button was pressed since the current work began; tells `Asked.make` which button it was."""
        return bool(self.stage.asked) and (name, self.value(name)) not in self.stage.asked[-1]

    def button(self, name: str) -> str:
        return self.panel[name].text

    def controls(self) -> str:
        return "".join(f"<div>{self.panel[name].text}</div>" for name in self._rows)

    def buttons(self) -> str:
        """HTML of the buttons next to the state line, which hides those that would do nothing."""
        names = ["stop", "again"] * bool(self.declared.AGAIN)
        return "".join(f'<span class="lab-{name}">{self.button(name)}</span>' for name in names)

    def menu(self) -> str:
        if not self.stage.streams:
            return ""
        pin = pin_button(self.panel["pin"]) if self._pin is not None else ""
        return pin + (self.stage.menu.text if self.stage.menu is not None else "")

    def redraw(self) -> None:
        if self.drawing is not None:
            self.drawing.news.tell()

    def stop(self) -> None:
        self.stage.stop()
        for hook in self.page.hooks:
            hook.stopped(self)


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
        opened_by = mo.app_meta().request
        self.viewer = (opened_by is not None and opened_by.meta.get("viewer")) or viewer or object()
        self.running: BackgroundTask | None = None
        self.asked: tuple = ()  # what the current run was started for; `began_with` is what was known then
        self.began_with: tuple = ()
        self.showings = Showings()
        self.curves = mo.ui.anywidget(Scripted("hear curves")) if menu is not None else None
        if menu is not None:
            weakref.finalize(self, menu.forget)  # the widget may outlive the session
        weakref.finalize(self, self.showings.close)  # stops the painter even if the watched run never ends
        self._end_task: Callable[[], object] = lambda: None
        self._own, self.pinned, self.unseen = _Slot(), _Slot(), _Slot()
        self._unseen_asked = 0
        self.said = [""]  # the last sentence, in a list that painters share, because they must not hold the stage
        # Read once: a cell that runs because a thread set a state has no request, even with a live viewer.
        self.streams, self.is_teacher = streaming(), role() == TEACHER
        self.opening = True  # the next run takes its turn in page order; later ones follow a control
        self._in_order = Request(self.viewer)

    @property
    def pauses(self) -> bool:
        return classroom().pauses and not self.is_teacher

    def run(self, experiment: Experiment, asked: int) -> Subscription:
        """This experiment's run: the current one, or a new one, which ends the current one.

        Args:
            experiment: What to run.
            asked: Presses of “Run again”; a new count starts a fresh run.
        """
        if not self.has(experiment, asked):
            self.pinned.forget_if_stopped()
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
        return self._beside(self.pinned, experiment)

    def run_unseen(self, experiment: Experiment, asked: int) -> Subscription | None:
        """An additional run that is not drawn; None without one.

        Args:
            experiment: What to run; a run of another experiment is left.
            asked: Presses of its button; a new count starts the run.
        """
        if asked != self._unseen_asked and not self.pauses:
            self._unseen_asked = asked
            self.unseen.forget_if_stopped()
            return self._beside(self.unseen, experiment if asked else None)  # 0: the controls were reset
        return self._beside(self.unseen, experiment if self.unseen.is_at(experiment) else None)

    def _beside(self, place: _Slot, experiment: Experiment | None) -> Subscription | None:
        own = self._own.joined
        if experiment is None or own is None:
            place.go_to(None)
        elif not place.is_at(experiment):
            request = Request(self.viewer, own.request.urgency)
            place.go_to(lambda: join(experiment, self.engine, self.store, request))
        return place.joined

    def close(self) -> None:
        self.stop()
        self.showings.close()

    def begin_if_new(
        self, asked: Hashable, presses: object, request: Request, make: Callable[[bool], tuple[tuple, Work]]
    ) -> BackgroundTask:
        """The task for `asked`: the current one, or a new one if `asked` or the presses have changed.

        It waits while the class is paused.

        Args:
            asked: What the controls ask for, compared by equality.
            presses: How often the button was pressed.
            request: Place in the queue of a new task.
            make: Called with whether the button was pressed since; returns what is known (`began_with`) and the work.
        """
        if self.running is None or self.asked != (asked, presses):
            self.began_with, work = make(bool(self.asked) and self.asked[-1] != presses)
            self.asked = (asked, presses)
            self.stop()
            cancel = Cancel()
            self._end_task = weakref.finalize(self, cancel.set)
            held = partial(_admitted, self.is_teacher, work, self.engine, self.store, cancel, request)
            self.running = BackgroundTask(held, cancel)
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
        for watching in (self._own, self.pinned, self.unseen):
            watching.leave()


def until_the_class_goes_on(is_teacher: bool, cancel: Cancel) -> Iterator[Note]:
    """While the teacher has paused the class, wait, with a note before and after; yield nothing for the teacher."""
    if classroom().pauses and not is_teacher:
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


def button(label: str, tooltip: str, *, press: Callable[[], None] = lambda: None) -> mo.ui.button:
    """A button that counts its presses."""
    return mo.ui.button(label=label, value=0, on_click=lambda n: press() or n + 1, tooltip=tooltip)


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

    def next_frame_s(self, frame_s: float) -> float:
        """Seconds until the next frame, after a wait of `frame_s` for this one, or 0 for the first.

        They grow, because drawing takes a core that the measurement needs.
        """
        return min(max(FIRST_FRAME_S, SLOWER * frame_s), TIMED_FRAME_S)

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
        frame_s = 0.0
        while True:
            self._wait(version)
            if not showings.is_latest(number):
                return
            self.rest(pacer.turn_in_s(time.monotonic()))
            version = self.news.version
            showings.draw(number, partial(pacer.draw, self._draw_or_say))
            frame_s = self.next_frame_s(frame_s)
            self.rest(frame_s)

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


class _SectionPainter(Painter, ABC):
    """Draws a section with the control values of one run of its cell."""

    def __init__(self, section: Section) -> None:
        super().__init__(self.draw)
        section.drawing = self
        self._section, self._values, self._controls = section, dict[str, Any](section.panel.value), section.controls()
        self._buttons, self._menu = section.buttons(), section.menu()
        self._stage, self._hooks = section.stage, section.page.hooks
        section.page.news.followed_by(self.news)

    @abstractmethod
    def _draw_asked(self, at: Any) -> None:
        """Draw the current state for the checked values; raises ValueError with a sentence."""

    def draw(self) -> None:
        section = self._section
        if section.prefix not in section.page.in_sight:
            return mo.output.replace(layout.page(self._controls, layout.out_of_sight(section.prefix)))
        if waiting := "".join(hook.waits() for hook in self._hooks):
            return mo.output.replace(layout.page(self._controls, waiting))
        try:
            self._draw_asked(section.declared.checked(section.prefix, self._values))
        except ValueError as error:
            self._stage.stop()
            mo.output.replace(layout.refused(self._controls, error))
            end_script(formatting.sentence(error), 2)


class _Trainings(_SectionPainter):
    def __init__(
        self, section: Section, jobs: Callable[[Any], Experiment], below: Callable[[Experiment, Results], str] | None
    ) -> None:
        super().__init__(section)
        # Cached: if a faster runtime is found meanwhile, only the next run of the cell uses it.
        self._jobs, self._more_below = cache(jobs), below
        self._joined: Subscription | None = None
        self._told: Results | None = None  # results that the hooks have been notified of

    def _asked(self, at: Any) -> tuple[Experiment, Experiment | None]:
        section, values = self._section, self._values
        made = [self._jobs(at)]
        if (pinned := values_of(values["pin"] or "", section.members)) is not None:
            made.append(self._jobs(section.declared(pinned)))
        for hook in self._hooks:
            made = [hook.changed(one) for one in made]
        return made[0], made[1] if pinned is not None else None

    def _draw_asked(self, at: Any) -> None:
        experiment, kept = self._asked(at)
        if not self._stage.streams:
            results = _in_foreground(experiment, self._stage)
            self._put_frame(experiment, results)
            self._tell(results)
        elif self._stage.pauses and not self._stage.has(experiment, self._values["again"]):
            mo.output.replace(layout.page(self._controls, layout.paused(), self._buttons))
        else:
            self._draw_run(experiment, kept)

    def _draw_run(self, experiment: Experiment, kept: Experiment | None) -> None:
        joined = self._stage.run(experiment, self._values["again"])
        joined.run.results.followed_by(self.news)
        if question := "".join(hook.instead(self._section, experiment) for hook in self._hooks):
            mo.output.replace(layout.page(self._controls, question, self._buttons))
            return
        pinned, lead = self._pinned(kept)
        for beside in (pinned, *(hook.extra_run(self._section, experiment) for hook in self._hooks)):
            if beside is not None:
                beside.run.results.followed_by(self.news)
        if joined is not self._joined:
            self._wait_for_first_points(experiment, joined)
        if self._stage.menu is not None:
            self._stage.menu.now = partial(_takeaway, experiment, self._stage.engine, joined)
        max_age_s = 0.0 if joined is not self._joined else _first_frame_s(experiment)
        self._joined = joined
        self._put_frame(experiment, joined.results, pinned, lead, max_age_s)

    def _wait_for_first_points(self, experiment: Experiment, joined: Subscription) -> None:
        with joined.results.changed:
            if experiment.data == MNIST and self._stage.engine.known_facts() is not None:  # only the store must answer
                joined.results.changed.wait_for(lambda: joined.results.over or joined.results.to_train, STORE_S)
            joined.results.changed.wait_for(lambda: joined.results.worth_showing, AT_ONCE_S)

    def _pinned(self, kept: Experiment | None) -> tuple[Subscription | None, str]:
        stage = self._stage
        if kept is not None and any(hook.hides(kept) for hook in self._hooks):
            return stage.pin(None), view.difference_line(HIDDEN)
        if kept is not None and stage.pauses and not stage.pinned.is_at(kept):
            return stage.pin(None), view.difference_line(WAITS)
        return stage.pin(kept), ""

    def _put_frame(
        self,
        experiment: Experiment,
        results: Results,
        pinned: Subscription | None = None,
        lead: str = "",
        max_age_s: float = 0.0,
    ) -> None:
        """Put the charts into the cell, with this viewer's own HTML around them; `lead` is HTML above."""
        stage, menu = self._stage, self._menu
        if results.data is not None:
            for hook in self._hooks:
                hook.knows(results)
        guess = next((found for hook in self._hooks if (found := hook.guess(experiment)) is not None), None)
        frame, details = shared_frame(experiment, results, stage.said, guess, pinned, max_age_s)
        if menu and stage.curves is not None and experiment.ordered_by != "backend":  # those have no curves
            menu += stage.curves.text
        below = "".join(hook.below(self._section, experiment, results) for hook in self._hooks)
        if self._more_below is not None:
            below += self._more_below(experiment, results)
        result = f"<div>{lead}</div>{frame.replace(view.BELOW, below)}"
        mo.output.replace(layout.page(self._controls, result, self._buttons, details + menu))

    def rest(self, at_most_s: float) -> None:
        """Wait until the run ends or, before there is anything to show, until its first points arrive."""
        if self._joined is None:
            return
        results = self._joined.results
        if results.worth_showing:
            self._joined.wait_for_end(at_most_s)
        else:
            with results.changed:
                results.changed.wait_for(lambda: results.worth_showing, at_most_s)

    def next_frame_s(self, frame_s: float) -> float:
        if self._joined is None:
            return FIRST_FRAME_S
        grown_s = SLOWER * frame_s if self._joined.results.worth_showing else 0.0
        return max(_first_frame_s(self._joined.run.experiment), min(grown_s, LATER_FRAME_S))

    def when_quiet(self) -> None:
        if self._joined is not None and self._joined.results.over and self._joined.results is not self._told:
            if self._joined.results.state is State.SAVED:
                # Cached results needed no worker, but the next slider move will.
                self._stage.engine.warm(self._joined.run.experiment.items[0].runtime)
            self._tell(self._joined.results)

    def _tell(self, results: Results) -> None:
        self._told = results
        for hook in self._hooks:
            hook.done(results)


@dataclass(frozen=True)
class Asked:
    """A section's work.

    Args:
        about: Identifies the work, by equality.
        make: Called with whether a button was pressed since; returns what is known now, and the work still to do.
    """

    about: Hashable
    make: Callable[[bool], tuple[tuple, Work]]


def nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Shown:
    """What a section draws from: the checked values, the results so far, and what `Asked.make` already knew."""

    at: Any
    now: View
    known: tuple
    section: Section

    @property
    def tasks(self) -> list[Any]:
        return self.known[0]

    @property
    def records(self) -> list[Record]:
        return [*self.known[1], *self.now.items]

    def state_line(self, n_done: int, n_wanted: int, of: str) -> str:
        """HTML of the progress; `of` is the plural noun for the tasks."""
        now, complete = self.now, self.known[2]
        words = now.note or f"{n_done} of {n_wanted} {of}"
        if complete and self.records:
            words += f", measured {formatting.minute(max(one.measured_at for one in self.records))}"
        return layout.state_line(layout.saved_or(now.state, complete), n_done, n_wanted, words, now.problem)


@dataclass(frozen=True)
class Drawing:
    """HTML next to the controls, the sentence a script prints, HTML below the frame, HTML below the controls, and the
    frame's CSS class (see `layout.page`).
    """

    result: str
    sentence: str
    below: str = ""
    controls: str = ""
    frame: str = "lab"

    @classmethod
    def of(cls, figures: Mapping[str, Chart | str], line: str, sentence: str, below: str = "") -> "Drawing":
        return cls(layout.sentence(sentence) + layout.figures(figures) + line + below, sentence)


class _Measurements(_SectionPainter):
    def __init__(self, section: Section, ask: Callable[[Any], Asked], draw: Callable[[Shown], Drawing]) -> None:
        super().__init__(section)
        self._ask, self._drawn, self._running = ask, draw, None

    def _draw_asked(self, at: Any) -> None:
        stage, asked = self._stage, self._ask(at)
        buttons = ("again", "mnist", *(name for name, *_ in self._section.declared.RESULT_BUTTONS))
        presses = tuple((name, value) for name, value in self._values.items() if name in buttons)
        running = stage.begin_if_new(asked.about, presses, stage.request(), asked.make)
        running.followed_by(self.news)
        if not stage.streams:
            running.wait_for_end()
        self._running, now = running, running.view()
        drawing = self._drawn(Shown(at, now, stage.began_with, self._section))
        controls = self._controls + drawing.controls
        framed = layout.page(controls, drawing.result, self._buttons, self._menu, drawing.frame)
        put(now, framed.text + drawing.below, drawing.sentence)
        if not stage.streams and now.state is State.FAILED:
            end_script(now.problem, 1)

    def rest(self, at_most_s: float) -> None:
        if self._running is not None:
            self._running.wait_for_end(at_most_s)

    def when_quiet(self) -> None:
        if self._running is not None and self._running.over:
            for hook in self._hooks:
                hook.ended(self._section)


class _Answers(_SectionPainter):
    def __init__(self, section: Section, draw: Callable[..., Drawing], others: Sequence[Section]) -> None:
        super().__init__(section)
        self._drawn, self._others = draw, others

    def _draw_asked(self, at: Any) -> None:
        shown = Shown(at, View([], State.DONE, "", "", 0), (), self._section)
        drawing = self._drawn(shown, *(one.checked() for one in self._others))
        content = layout.page(self._controls, drawing.result, self._buttons).text + drawing.below
        put(shown.now, content, drawing.sentence)


def _first_frame_s(experiment: Experiment) -> float:
    return TIMED_FRAME_S if experiment.ordered_by == "backend" else FIRST_FRAME_S


@dataclass
class _Frame:
    """The last frame drawn from some results, shared by their viewers."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    html: str = ""
    details: str = ""
    sentence: str = ""
    said: str = ""  # the previous sentence, whose space is reserved while there is none
    version: tuple[int, ...] = (-1,)  # of the results and of the pinned run's results
    state: str = ""  # the state line, replaced on reuse because it says how long ago results were saved
    drawn_at: float = 0.0
    worth: bool = False  # whether there was anything to show


_frames: weakref.WeakKeyDictionary[Results, dict[tuple, _Frame]] = weakref.WeakKeyDictionary()
_frames_guard = threading.Lock()
MAX_FRAMES = 8  # per run, for viewers with other guesses or targets; 70 KB each, as long as the run is kept


def shared_frame(
    experiment: Experiment,
    results: Results,
    said: list[str],
    guess: Guess | None = None,
    pinned: Subscription | None = None,
    max_age_s: float = 0.0,
) -> tuple[str, str]:
    """HTML of an experiment's result, with `view.BELOW` in it, and of its details for the menu.

    Viewers of a shared run reuse one frame until it is `max_age_s` old.

    Args:
        experiment: The trainings and how to draw them.
        results: The results so far.
        said: The last sentence, in a list of one that all painters of a stage share.
        guess: The viewer's guess.
        pinned: The run whose charts are shown next to this one's.
        max_age_s: 0 draws all that is new.
    """
    beside = (pinned.run.experiment, pinned.results) if pinned is not None else None
    version = (results.version, 0 if beside is None else beside[1].version)
    # Weak, because two runs pinned to each other would keep each other alive.
    pinned_to = weakref.ref(beside[1]) if beside is not None else None
    seen = (experiment.target, experiment.draw, experiment.say, guess, pinned_to)  # viewers with equal ones share
    with _frames_guard:
        known = _frames.setdefault(results, {})
        drawn = known.setdefault(seen, _Frame())
        if len(known) > MAX_FRAMES:
            del known[next(iter(known))]
    with drawn.guard:
        worth = results.worth_showing
        recent = time.monotonic() - drawn.drawn_at < max_age_s and worth == drawn.worth and not results.over
        as_here = drawn.sentence or drawn.said == said[0]
        if not as_here or (drawn.version != version and not recent):
            drawn.version, drawn.said = version, said[0]
            drawn.state = view.state_of(results)
            blank = not worth and "altair" not in sys.modules  # else importing it delays empty axes by a second
            drawn.html = view.result(experiment, results, drawn.state, drawn.said, blank, guess, beside)
            drawn.details = view.details(experiment, results)
            drawn.sentence = view.told(experiment, results, guess)
            drawn.drawn_at, drawn.worth = time.monotonic(), worth
        said[0] = drawn.sentence or said[0]
        html, details = drawn.html, drawn.details
        if results.version == drawn.version[0] and results.over:
            html = html.replace(drawn.state, view.state_of(results))
    return html, details


def _takeaway(experiment: Experiment, engine: Engine, joined: Subscription) -> Takeaway:
    said = view.run_sentence(experiment, joined.results)
    return takeaway(experiment.ordered_by, joined.results, engine.known_facts(), said)


def _in_foreground(experiment: Experiment, stage: Stage) -> Results:
    """Run for scripts and exports: progress on standard error, then table and sentence on standard output."""
    joined = join(experiment, stage.engine, stage.store, Request(stage.viewer))
    script = mo.app_meta().mode == "script"
    watched = script and sys.stderr.isatty()
    try:
        while not joined.wait_for_end(0.25):
            if watched:
                text = view.progress_text(joined.results)
                print(f"\r{experiment.name}: {text}\033[K", end="", file=sys.stderr, flush=True)
    finally:
        joined.leave()  # on interrupt, the worker stops too
    if script:
        print(f"\r\033[K\n{experiment.name}" if watched else f"\n{experiment.name}")
        print(pd.DataFrame(view.summary(experiment, joined.results)).to_string(index=False))
        if joined.results.state is State.FAILED:
            end_script(joined.results.failure, 1)
        print(view.run_sentence(experiment, joined.results))
    return joined.results
