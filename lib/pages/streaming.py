"""Where marimo and the runs meet: a run streams into its cell, ends when a control moves, and can be stopped.

Where nobody watches (a script, an export, a test) the run happens in the foreground.
"""

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import marimo as mo
import pandas as pd

from lib import formatting
from lib.experiments.background import BackgroundTask, View, Watchable
from lib.experiments.exported_rows import Takeaway, takeaway
from lib.experiments.mnist_training import Experiment
from lib.experiments.predict_first import Guess
from lib.experiments.results import Results
from lib.experiments.runs import Seat, join
from lib.pages import layout
from lib.pages.pacing import Pacer
from lib.pages.stage import Showing, Stage
from lib.spec import MNIST
from lib.views import mnist_training_sentences
from lib.views.chart import Chart
from lib.views.pinned import HIDDEN, WAITS
from lib.workers.engine import Engine
from lib.workers.notes import State
from lib.workers.queue import Request

# The first frames follow quickly, later ones ever more slowly: drawing takes a core for as long as a frame is due, and
# the training that is being timed wants that core.
FIRST_FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # where seconds are what is asked for, it is drawn seldom: a race from the start, other tasks soon
AT_ONCE_S = 0.12  # stored results, and a warm worker's first points, are shown without an empty frame before them
STORE_S = 1.0  # more than the store takes to answer, unless a whole class asks
QUIET_S = 2.0  # what follows from a result waits until its controls have rested for so long


def refuse(stage: Stage, controls: str, error: ValueError) -> None:
    """Stop what runs, and show what is wrong with the controls in its place; a script ends with exit status 2.

    Args:
        stage: What is stopped.
        controls: HTML of the controls.
        error: Its text is a sentence for the person.
    """
    stage.stop()
    stage.next_showing()
    mo.output.replace(layout.refused(controls, error))
    end_script(formatting.sentence(error), 2)


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


def paint_figures(
    now: View, figures: Mapping[str, Chart | str], line: str, sentence: str, below: str, controls: str
) -> int:
    """Put figures by their captions, state line, sentence and what is below into the cell, as `painted` does."""
    drawn = "".join(
        layout.figure(caption, shown) if isinstance(shown, Chart) else layout.framed(caption, shown)
        for caption, shown in figures.items()
    )
    result = f'<div class="lab-figures">{drawn}</div>{line}{layout.sentence(sentence)}{below}'
    return painted(now, layout.page(controls, result).text, sentence)


def paint_while_it_runs(
    stage: Stage, task: BackgroundTask, paint: Callable[[], int], news: Watchable | None = None
) -> None:
    """Paint now and at every change, until the end is painted or another showing has begun.

    Where nobody watches, it is painted once, at the end; a script whose task failed ends with exit status 1.

    Args:
        stage: Where it is shown.
        task: What is watched.
        paint: Draws the present state, and returns the version that it drew.
        news: What is watched in place of the task, and follows it and others.
    """
    if not stage.streams:
        task.wait_for_end()
    paint_at_changes(stage, news or task, paint)
    if not stage.streams and (now := task.view()).state is State.FAILED:
        end_script(now.problem, 1)


def paint_at_changes(stage: Stage, watched: Watchable, paint: Callable[[], int]) -> None:
    """Paint now and, where somebody watches, at every change, as `paint_while_it_runs` does; it may never end."""
    showing, version = stage.next_showing(), paint()
    if stage.streams:
        frames_s = slower(FIRST_FRAME_S, TIMED_FRAME_S)
        mo.Thread(target=_keep_painting, args=(watched, paint, showing, version, frames_s), daemon=True).start()


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


_pacer = Pacer()


def _keep_painting(
    watched: Watchable,
    paint: Callable[[], int],
    showing: Showing,
    painted: int,
    frames_s: Iterator[float],
    rest: Callable[[float], object] | None = None,
) -> None:
    """After version `painted`, paint what is new.

    Not before the frame is over: drawing takes a core that the measurement wants. `rest` waits for so many seconds, or
    for what no frame holds up; that is the end, unless it is given.
    """
    rest = rest or watched.wait_for_end
    while not watched.over_at(painted):
        news = watched.wait_for_news(painted, 1.0)
        if not showing.is_latest or mo.current_thread().should_exit:
            return
        if news:
            rest(_pacer.turn_in_s(time.monotonic()))  # the end waits neither for its turn
            painted = showing.draw(partial(_pacer.draw, paint)) or painted
            rest(next(frames_s))  # nor for its frame


@dataclass
class _Frame:
    """What was drawn last of some results, for all who see them."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    html: str = ""
    sentence: str = ""
    said: str = ""  # the sentence before, whose space it keeps where it has none
    version: tuple[int, ...] = (-1,)  # of the results, of those that are pinned beside them, and of those unseen
    state: str = ""  # its state line, which says how long ago it was saved: a minute later it is another
    drawn_at: float = 0.0
    worth: bool = False  # whether there was something to show


@dataclass(frozen=True)
class _Seen:
    """All that a frame depends on beside the results that it draws: who sees the same shares it."""

    target: float
    guess: Guess | None
    pinned: "weakref.ref[Results] | None"  # two runs may be pinned beside each other, and keep each other otherwise


_frames: weakref.WeakKeyDictionary[Results, dict[_Seen, _Frame]] = weakref.WeakKeyDictionary()
_frames_guard = threading.Lock()
MAX_FRAMES = 8  # of one run, for as many who guess or aim at something else; 70 KB each, for as long as the run is kept


@dataclass(frozen=True)
class _View:
    """How one experiment is drawn, and who hears of its end."""

    experiment: Experiment
    engine: Engine
    controls: str
    target: float
    after: Callable[[Experiment, Results], str] | None
    on_done: Callable[[Results], None] | None
    said: list[str]  # the last sentence
    menu: str = ""
    guess: Guess | None = None
    pinned: Seat | None = None
    lead: str = ""  # HTML above the frame, for this viewer alone
    unseen: Seat | None = None
    offer: Callable[[Experiment, Results], str] | None = None
    on_data: Callable[[Results], None] = lambda _: None

    def draw(self, results: Results, max_age_s: float = 0.0, opening: bool = False) -> int:
        """Draw, tell which data it is once that is known, and return the version that is drawn.

        Of a run that several watch, one draws a frame, and all show it whose own is not due for `max_age_s`.
        """
        beside = (self.pinned.run.experiment, self.pinned.results) if self.pinned is not None else None
        unseen = self.unseen.results if self.unseen is not None else None
        version = (results.version, *(0 if one is None else one.version for one in (beside and beside[1], unseen)))
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
                # Ten empty charts would keep the browser from the first full one.
                blank = opening and not results.worth_showing
                after = self.after(self.experiment, results) if self.after is not None else ""
                drawn.html = layout.result(
                    self.experiment, results, self.target, drawn.state, after, drawn.said, blank, self.guess, beside
                )
                drawn.sentence = layout.told(self.experiment, results, self.target, self.guess)
                drawn.drawn_at, drawn.worth = time.monotonic(), worth
            frame, version, sentence = drawn.html, drawn.version, drawn.sentence
            if results.version == version[0] and results.over:
                frame = frame.replace(drawn.state, layout.state_of(results))
        frame = frame.replace(OFFERED, self._offered(results, unseen))
        if results.data is not None:
            self.on_data(results)
        mo.output.replace(layout.page(self.controls, self.lead + frame, self.menu))
        self.said[0] = sentence or self.said[0]
        return version[0]

    def _offered(self, results: Results, unseen: Results | None) -> str:
        """HTML for this viewer alone: how the unseen run is, or the button that begins it."""
        if unseen is not None and unseen.state.under_way:
            return layout.state_of(unseen)
        return self.offer(self.experiment, results) if self.offer is not None else ""

    def _seen(self, beside: tuple[Experiment, Results] | None) -> _Seen:
        return _Seen(self.target, self.guess, weakref.ref(beside[1]) if beside is not None else None)

    def done_when_quiet(self, results: Results, showing: Showing) -> None:
        if results.state is State.SAVED:
            self.engine.warm(self.experiment.items[0].runtime)  # nothing needed it yet, but the next slider will
        time.sleep(QUIET_S)
        if self.on_done is not None and showing.is_latest and not mo.current_thread().should_exit:
            self.on_done(results)


OFFERED = "<!-- offered -->"  # where what comes after a result has room for a viewer's own button


@dataclass(frozen=True)
class Unseen:
    """A run beside an experiment's that is not drawn, but that what comes after its result tells of.

    `make` gives what is to run beside an experiment; `asked` is how often its button was pressed; `offer` gives the
    button's HTML, which takes the place of `OFFERED`, and is empty where there is nothing to offer.
    """

    make: Callable[[Experiment], Experiment]
    asked: int
    offer: Callable[[Experiment, Results], str]


class First(Protocol):
    """What comes before the result of an experiment in front of a class."""

    def question(self, experiment: Experiment) -> str:
        """HTML of what is to be answered before the result is seen; empty where it may be."""
        ...

    def hides(self, experiment: Experiment) -> bool:
        """Whether the result of this experiment may not be seen yet, also where another one is asked for."""
        ...

    def guess(self, experiment: Experiment) -> Guess | None:
        """What the viewer has guessed; None for nothing."""
        ...


def show(
    stage: Stage,
    make: Callable[[], Experiment],
    controls: mo.Html,
    asked: int = 0,
    target: float = 0.95,
    after: Callable[[Experiment, Results], str] | None = None,
    on_done: Callable[[Results], None] | None = None,
    on_data: Callable[[Results], None] = lambda _: None,
    first: First | None = None,
    pinned: Callable[[], Experiment | None] = lambda: None,
    unseen: Unseen | None = None,
) -> None:
    """Run the experiment that `make` describes, and draw it into this cell until it is over.

    Args:
        stage: Where it runs.
        make: Its ValueError is shown in place of the charts.
        controls: The panel.
        asked: How often “Run again” was pressed.
        target: Validation accuracy, 0 to 1.
        after: Gives HTML to add below the sentence; None for none.
        on_done: Called with the results at the end, after the controls have rested for a while.
        on_data: Called with each state that is drawn, once it is known which data are trained on.
        first: What comes before the result, in front of a class; None for nothing.
        pinned: Gives the experiment whose run stays beside this one, and raises as `make` does; None for none.
        unseen: What may run beside it unseen; None for nothing.
    """
    try:
        experiment, kept = make(), pinned()
    except ValueError as error:
        return refuse(stage, controls.text, error)
    menu = stage.menu.text if stage.menu is not None and stage.streams else ""  # what nobody can ask is not offered
    if stage.streams and stage.curves is not None and experiment.ordered_by != "backend":  # that one has no curves
        menu += stage.curves.text
    guess = first.guess(experiment) if first is not None else None
    view = _View(
        experiment, stage.engine, controls.text, target, after, on_done, stage.said, menu, guess, on_data=on_data
    )
    if not stage.streams:
        results = _run_in_foreground(experiment, stage, target)
        view.draw(results)
        if on_done is not None:
            on_done(results)
        return
    opening = stage.opening
    if stage.pauses and not stage.has(experiment, asked):
        return _show_instead(stage, controls, layout.paused())
    seat = stage.run(experiment, asked)
    if first is not None and (question := first.question(experiment)):
        return _show_instead(stage, controls, question)
    beside, lead = _pinned(stage, kept, first)
    view = replace(view, pinned=beside, lead=lead)
    if unseen is not None:
        view = replace(view, unseen=stage.run_unseen(unseen.make(experiment), unseen.asked), offer=unseen.offer)
    if stage.menu is not None:
        stage.menu.now = partial(_takeaway, experiment, stage.engine, seat, target)
    showing = stage.next_showing()
    with seat.changed:
        if experiment.data == MNIST and stage.engine.known_facts() is not None:  # so that only the store is to be asked
            seat.changed.wait_for(lambda: seat.results.over or seat.results.to_train, STORE_S)
        seat.changed.wait_for(lambda: seat.results.worth_showing, AT_ONCE_S)
    drawn = view.draw(seat.results, FIRST_FRAME_S, opening)
    mo.Thread(target=_paint, args=(view, seat, drawn, showing, opening), daemon=True).start()


def _pinned(stage: Stage, kept: Experiment | None, first: First | None) -> tuple[Seat | None, str]:
    """The seat at the run that is pinned, and HTML that says why it is not shown, where it may not be seen yet."""
    if kept is not None and first is not None and first.hides(kept):
        return stage.pin(None), layout.difference_line(HIDDEN)
    if kept is not None and stage.pauses and not stage.pins(kept):
        return stage.pin(None), layout.difference_line(WAITS)
    return stage.pin(kept), ""


def _takeaway(experiment: Experiment, engine: Engine, seat: Seat, target: float) -> Takeaway:
    said = mnist_training_sentences.sentence(experiment, seat.results, target)
    return takeaway(experiment.ordered_by, seat.results, engine.known_facts(), said)


def _show_instead(stage: Stage, controls: mo.Html, content: str) -> None:
    """Show HTML in place of a result: what runs goes on unseen."""
    stage.next_showing()
    mo.output.replace(layout.page(controls.text, content))


def _paint(view: _View, seat: Seat, seen: int, showing: Showing, opening: bool) -> None:
    """After state number `seen`, draw new states until the run is over or another showing took the place."""
    frame_s = TIMED_FRAME_S if view.experiment.ordered_by == "backend" else FIRST_FRAME_S

    def frames_s() -> Iterator[float]:
        nonlocal frame_s
        while True:
            if frame_s < LATER_FRAME_S and seat.results.worth_showing:
                frame_s = min(SLOWER * frame_s, LATER_FRAME_S)
            yield frame_s

    begun = False  # whether the first points are drawn

    def draw() -> int:
        nonlocal begun
        begun = seat.results.worth_showing
        return view.draw(seat.results, frame_s, opening)

    def rest(at_most_s: float) -> None:
        """The first points are no less urgent than the end: somebody waits for them."""
        if begun:
            seat.wait_for_end(at_most_s)
        else:
            with seat.changed:
                seat.changed.wait_for(lambda: seat.results.worth_showing, at_most_s)

    _keep_painting(seat, draw, showing, seen, frames_s(), rest)
    for beside in filter(None, (view.pinned, view.unseen)):  # it may take longer than what stands beside it
        draw_beside = partial(_draw_beside, view, seat, beside)
        _keep_painting(beside, draw_beside, showing, -1, frames_s())
    if seat.results.over:
        view.done_when_quiet(seat.results, showing)


def _draw_beside(view: _View, seat: Seat, beside: Seat) -> int:
    view.draw(seat.results)
    return beside.results.version


def _run_in_foreground(experiment: Experiment, stage: Stage, target: float) -> Results:
    """For scripts and exports: progress on standard error, then sentence and table on standard output."""
    seat = join(experiment, stage.engine, stage.store, Request(stage.viewer))
    script = mo.app_meta().mode == "script"
    watched = script and sys.stderr.isatty()
    try:
        while not seat.wait_for_end(0.25):
            if watched:
                text = layout.progress_text(seat.results)
                print(f"\r{experiment.name}: {text}\033[K", end="", file=sys.stderr, flush=True)
    finally:
        seat.leave()  # interrupted: the worker stops too
    if script:
        print(f"\r\033[K\n{experiment.name}" if watched else f"\n{experiment.name}")
        print(pd.DataFrame(layout.table(experiment, seat.results)).to_string(index=False))
        if seat.results.state is State.FAILED:
            end_script(seat.results.failure, 1)
        print(mnist_training_sentences.sentence(experiment, seat.results, target))
    return seat.results
