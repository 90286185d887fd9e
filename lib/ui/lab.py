"""A notebook's sections: each shows the result of its controls while it runs, and calls the page's hooks.

One thread draws a section, again whenever one of its runs or hooks changes.
"""

import sys
import threading
import time
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
from lib.sweeps.experiments.results import Results, Subscription, View, Watched, join
from lib.sweeps.experiments.teacher import Guess
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine, shared_engine
from lib.sweeps.workers.messages import State
from lib.sweeps.workers.queue import Request
from lib.ui import layout
from lib.ui.controls import SHARED, SHARED_TODAY, Controls, pin_button
from lib.ui.export_menu import ExportMenu
from lib.ui.heading import plain_title
from lib.ui.opened import opened, streaming
from lib.ui.stage import (
    FIRST_FRAME_S,
    LATER_FRAME_S,
    SLOWER,
    TIMED_FRAME_S,
    Painter,
    Stage,
    Work,
    button,
    end_script,
    put,
    stop_button,
)
from lib.ui.url_state import Setting, values_of
from lib.ui.views.chart import Chart, pd
from lib.ui.views.mnist_training import run_sentence
from lib.ui.views.pinned import HIDDEN, PIN, PIN_MEANS, WAITS

AT_ONCE_S = 0.12  # time for stored results or a warm worker's first points to arrive before an empty frame is drawn
STORE_S = 1.0  # longer than the store takes to answer, unless a whole class asks at once
ON_FIRST_SCREEN = 2  # sections that start with the page
SIGHT_S = 5.0  # a client that has not reported its visible sections by then is sent all of them


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
        self.sections = {prefix: Section(self, prefix, one) for prefix, one in panels.items()}
        parts = (*self.sections.values(), *hooks)
        self.settings = {name: setting for part in parts for name, setting in part.settings.items()} | SHARED
        self.address = opened(name, self.settings)
        self.in_sight = set([*panels][:ON_FIRST_SCREEN] if streaming() else panels)
        self._silent = threading.Timer(SIGHT_S, self.come_into_sight, [panels])
        self._silent.daemon = True
        self._silent.start()
        for part in parts:
            part.attach(self)

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
        for part in (*self.sections.values(), *self.hooks):
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
        section.show(_Trainings(section, lambda at: replace(jobs(at), draw=tuple(draw), say=say), below))

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
        section.show(_Measurements(section, ask, draw))

    def answer(self, panel: mo.ui.dictionary, draw: Callable[..., "Drawing"], *others: mo.ui.dictionary) -> None:
        """Draw into this cell without running any work, again at each change, until the cell runs again.

        Args:
            panel: From `controls`.
            draw: Called with `Shown` and the checked values of `others`; its ValueError is shown instead of the result.
            others: Panels of other sections.
        """
        section = self._section(panel)
        section.show(_Answers(section, draw, [self._section(one) for one in others]))

    def title(self, heading: str, question: str) -> mo.Html:
        return plain_title(self.page.name, heading, question, self.page.address, self.page.come_into_sight)

    def _section(self, panel: mo.ui.dictionary) -> "Section":
        return next(one for one in self.page.sections.values() if one.panel is panel)


class Section:
    """One section of a page: its controls, the stage of its runs, and its drawing."""

    stage: Stage

    def __init__(self, page: Page, prefix: str, declared: type[Controls]) -> None:
        self.page, self.prefix, self.declared = page, prefix, declared
        self.panel: mo.ui.dictionary | None = None
        self.members, self.settings = declared.members(prefix), declared.settings(prefix)
        self._pin = declared.pin(prefix)
        self._rows: tuple[str, ...] = ()  # names of its elements, from top to bottom
        self.drawing: _SectionPainter | None = None  # from the last run of its cell

    def attach(self, page: Page) -> None:
        menu = ExportMenu() if self.declared.EXPORTS else None
        self.stage = Stage(page.engine, page.store, page.address, menu)

    def make_panel(self) -> mo.ui.dictionary:
        """Its elements and buttons; changed values are written into the address, presses of buttons are not."""
        address, members = self.page.address, self.members
        elements = self.declared.elements(self.prefix, address)
        self._rows = tuple(elements)
        if self._pin is not None:
            elements["pin"] = mo.ui.button(
                label=PIN,
                value=address.read(self._pin),
                on_click=lambda pinned: "" if pinned else address.state(members),
                tooltip=PIN_MEANS,
            )
        saved = [name for name in elements if f"{self.prefix}.{name}" in self.settings]
        save = address.save(self.prefix)
        for hook in self.page.hooks:
            elements |= hook.elements()
        elements |= {name: button(says, does) for name, says, does in self.declared.RESULT_BUTTONS}
        if self.declared.AGAIN:
            elements |= {"stop": stop_button(self.stop), "again": button(*self.declared.AGAIN)}
        self.panel = mo.ui.dictionary(elements, on_change=lambda now: save({name: now[name] for name in saved}))
        return self.panel

    def checked(self) -> Controls:
        """The current values of its controls; raises ValueError with a sentence."""
        assert self.panel is not None, "make_panel comes first"
        return self.declared.checked(self.prefix, self.panel.value)

    def value(self, name: str) -> Any:
        return self.panel.value[name] if self.panel is not None else None

    def pressed(self, name: str) -> bool:
        """Whether this button was pressed since the current work began; tells `Asked.make` which button it was."""
        return bool(self.stage.asked) and (name, self.value(name)) not in self.stage.asked[-1]

    def button(self, name: str) -> str:
        return self.panel[name].text if self.panel is not None else ""

    def controls(self) -> str:
        assert self.panel is not None, "make_panel comes first"
        return "".join(f"<div>{self.panel[name].text}</div>" for name in self._rows)

    def buttons(self) -> str:
        """HTML of the buttons next to the state line, which hides those that would do nothing."""
        names = ["stop", "again"] * bool(self.declared.AGAIN)
        return "".join(f'<span class="lab-{name}">{self.button(name)}</span>' for name in names)

    def menu(self) -> str:
        stage = self.stage
        if self.panel is None or not stage.streams:
            return ""
        pin = pin_button(self.panel["pin"]) if self._pin is not None else ""
        return pin + (stage.menu.text if stage.menu is not None else "")

    def show(self, drawing: "_SectionPainter") -> None:
        """Draw until the next call; without a live viewer, draw once, at the end."""
        self.drawing = drawing
        drawing.show(self.stage)

    def redraw(self) -> None:
        if self.drawing is not None:
            self.drawing.news.tell()

    def stop(self) -> None:
        self.stage.stop()
        for hook in self.page.hooks:
            hook.stopped(self)

    def close(self) -> None:
        self.stage.close()


class _SectionPainter(Painter, ABC):
    """Draws a section with the control values of one run of its cell."""

    def __init__(self, section: Section) -> None:
        super().__init__(self.draw)
        assert section.panel is not None, "make_panel comes first"
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
            return self._in_foreground(experiment)
        if self._stage.pauses and not self._stage.has(experiment, self._values["again"]):
            mo.output.replace(layout.page(self._controls, layout.paused(), self._buttons))
        else:
            self._draw_run(experiment, kept)

    def _in_foreground(self, experiment: Experiment) -> None:
        results = _in_foreground(experiment, self._stage)
        for hook in self._hooks:
            hook.knows(results)
        self._view(experiment).draw(results, self._below(experiment, results))
        self._tell(results)

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
        if joined.results.data is not None:
            for hook in self._hooks:
                hook.knows(joined.results)
        max_age_s = 0.0 if joined is not self._joined else _first_frame_s(experiment)
        self._joined = joined
        self._view(experiment, pinned, lead).draw(joined.results, self._below(experiment, joined.results), max_age_s)

    def _wait_for_first_points(self, experiment: Experiment, joined: Subscription) -> None:
        with joined.results.changed:
            if experiment.data == MNIST and self._stage.engine.known_facts() is not None:  # only the store must answer
                joined.results.changed.wait_for(lambda: joined.results.over or joined.results.to_train, STORE_S)
            joined.results.changed.wait_for(lambda: joined.results.worth_showing, AT_ONCE_S)

    def _pinned(self, kept: Experiment | None) -> tuple[Subscription | None, str]:
        stage = self._stage
        if kept is not None and any(hook.hides(kept) for hook in self._hooks):
            return stage.pin(None), layout.difference_line(HIDDEN)
        if kept is not None and stage.pauses and not stage.pins(kept):
            return stage.pin(None), layout.difference_line(WAITS)
        return stage.pin(kept), ""

    def _view(self, experiment: Experiment, pinned: Subscription | None = None, lead: str = "") -> "Framed":
        stage, menu = self._stage, self._menu
        if menu and stage.curves is not None and experiment.ordered_by != "backend":  # those have no curves
            menu += stage.curves.text
        guess = next((found for hook in self._hooks if (found := hook.guess(experiment)) is not None), None)
        return Framed(experiment, self._controls, stage.said, self._buttons, menu, guess, pinned, lead)

    def _below(self, experiment: Experiment, results: Results) -> str:
        below = "".join(hook.below(self._section, experiment, results) for hook in self._hooks)
        return below + (self._more_below(experiment, results) if self._more_below is not None else "")

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

    def frames_s(self) -> Iterator[float]:
        joined, frame_s = None, FIRST_FRAME_S
        while True:
            if joined is not self._joined and self._joined is not None:
                joined, frame_s = self._joined, _first_frame_s(self._joined.run.experiment)
            elif frame_s < LATER_FRAME_S and joined is not None and joined.results.worth_showing:
                frame_s = min(SLOWER * frame_s, LATER_FRAME_S)
            yield frame_s

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
            words += f", measured {max(one.measured_at for one in self.records)[:16]} UTC"
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


@dataclass(frozen=True)
class _Seen:
    """Everything besides the results that a frame depends on; viewers share a frame if these are equal."""

    target: float
    draw: tuple[Callable, ...]
    say: Callable | None
    guess: Guess | None
    pinned: "weakref.ref[Results] | None"  # weak: two runs pinned to each other would keep each other alive


_frames: weakref.WeakKeyDictionary[Results, dict[_Seen, _Frame]] = weakref.WeakKeyDictionary()
_frames_guard = threading.Lock()
MAX_FRAMES = 8  # per run, for viewers with other guesses or targets; 70 KB each, as long as the run is kept
BELOW = "<!-- below -->"  # placeholder in a shared frame for one viewer's HTML


@dataclass(frozen=True)
class Framed:
    """How one experiment is drawn for a viewer.

    Args:
        experiment: The trainings and how to draw them.
        controls: HTML left of the result.
        said: The last sentence, in a list of one that all painters of a stage share.
        buttons: HTML next to the state line.
        menu: HTML behind “⋯”, in addition to what every result has there.
        guess: The viewer's guess.
        pinned: The run whose charts are shown next to this one's.
        lead: HTML above the frame.
    """

    experiment: Experiment
    controls: str
    said: list[str]
    buttons: str = ""
    menu: str = ""
    guess: Guess | None = None
    pinned: Subscription | None = None
    lead: str = ""

    def draw(self, results: Results, below: str = "", max_age_s: float = 0.0) -> int:
        """Draw into the cell, with this viewer's HTML `below`, and return the version of the results drawn.

        Viewers of a shared run reuse one frame until it is `max_age_s` old.
        """
        beside = (self.pinned.run.experiment, self.pinned.results) if self.pinned is not None else None
        version = (results.version, 0 if beside is None else beside[1].version)
        with _frames_guard:
            known = _frames.setdefault(results, {})
            drawn = known.setdefault(self._seen(beside), _Frame())
            if len(known) > MAX_FRAMES:
                del known[next(iter(known))]
        with drawn.guard:
            worth = results.worth_showing
            recent = time.monotonic() - drawn.drawn_at < max_age_s and worth == drawn.worth and not results.over
            as_here = drawn.sentence or drawn.said == self.said[0]
            if not as_here or (drawn.version != version and not recent):
                drawn.version, drawn.said = version, self.said[0]
                drawn.state = layout.state_of(results)
                blank = not worth and "altair" not in sys.modules  # else importing it delays empty axes by a second
                drawn.html = layout.result(
                    self.experiment, results, drawn.state, BELOW, drawn.said, blank, self.guess, beside
                )
                drawn.details = layout.details(self.experiment, results)
                drawn.sentence = layout.told(self.experiment, results, self.guess)
                drawn.drawn_at, drawn.worth = time.monotonic(), worth
            frame, menu, version, sentence = drawn.html, drawn.details + self.menu, drawn.version, drawn.sentence
            if results.version == version[0] and results.over:
                frame = frame.replace(drawn.state, layout.state_of(results))
        result = f"<div>{self.lead}</div>{frame.replace(BELOW, below)}"
        mo.output.replace(layout.page(self.controls, result, self.buttons, menu))
        self.said[0] = sentence or self.said[0]
        return version[0]

    def _seen(self, beside: tuple[Experiment, Results] | None) -> _Seen:
        experiment, pinned = self.experiment, weakref.ref(beside[1]) if beside is not None else None
        return _Seen(experiment.target, experiment.draw, experiment.say, self.guess, pinned)


def _takeaway(experiment: Experiment, engine: Engine, joined: Subscription) -> Takeaway:
    said = run_sentence(experiment, joined.results)
    return takeaway(experiment.ordered_by, joined.results, engine.known_facts(), said)


def _in_foreground(experiment: Experiment, stage: Stage) -> Results:
    """Run for scripts and exports: progress on standard error, then table and sentence on standard output."""
    joined = join(experiment, stage.engine, stage.store, Request(stage.viewer))
    script = mo.app_meta().mode == "script"
    watched = script and sys.stderr.isatty()
    try:
        while not joined.wait_for_end(0.25):
            if watched:
                text = layout.progress_text(joined.results)
                print(f"\r{experiment.name}: {text}\033[K", end="", file=sys.stderr, flush=True)
    finally:
        joined.leave()  # on interrupt, the worker stops too
    if script:
        print(f"\r\033[K\n{experiment.name}" if watched else f"\n{experiment.name}")
        print(pd.DataFrame(layout.table(experiment, joined.results)).to_string(index=False))
        if joined.results.state is State.FAILED:
            end_script(joined.results.failure, 1)
        print(run_sentence(experiment, joined.results))
    return joined.results
