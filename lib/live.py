"""Where marimo and the runs meet: a run streams into its cell, ends when a control moves, and can be stopped.

A `Stage` is an experiment's place on one viewer's page. It owns the run that it shows; a new experiment cancels the
old run, and so does the end of the session, when the stage is collected. Nothing that runs in a thread holds the stage.

Where there is nobody to stream to (a script, an export, a test) the run happens in the foreground.
"""

import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import marimo as mo

from lib import experiments, frame
from lib.backends import Way
from lib.backends.base import Parameters
from lib.engine import Engine, How, Trained, TrainingFailed, WorkerDied
from lib.experiments import Experiment
from lib.results import KEPT, Results
from lib.runs import Run
from lib.spec import Training
from lib.store import Store
from lib.turns import Claim, Urgency
from lib.updates import Item

# The first frames follow quickly, later ones ever more slowly: drawing takes a core for as long as a frame is due, and the
# training that is being timed wants that core.
FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # where seconds are what is asked for, it is drawn seldom from the start
AT_ONCE_S = 0.12  # what is kept, and a warm worker's first points, are shown without an empty frame before them
QUIET_S = 2.0  # what follows from a result waits until its controls have rested for so long


class Stage:
    """Where one viewer sees one experiment."""

    def __init__(self, engine: Engine, store: Store | None, viewer: Hashable = None) -> None:
        self.engine, self.store = engine, store
        self.viewer = viewer or object()
        self._run: Run | None = None
        self._asked = 0  # how often “Run again” had been pressed
        self._shown = [0]  # number of the latest showing; its painter alone may draw
        self._cancel = threading.Event()
        # Asked once: a cell that runs because of a state that a thread has set has no request, though somebody watches.
        self.streams = streaming()
        self.opening = True  # the next run comes with the page, in its order; later ones because a control was moved

    def run(self, experiment: Experiment, asked: int) -> Run:
        """The run of this experiment: the one that is there, or a new one, which ends the old one."""
        again = asked != self._asked
        same = self._run is not None and self._run.experiment == experiment
        if self._run is None or not same or again:
            claim = Claim(self.viewer, Urgency.IN_ORDER if self.opening else Urgency.NOW)
            self._run = Run.start(experiment, self.engine, self.store, self.begin(), claim, fresh=again)
            self._asked, self.opening = asked, False
        return self._run

    def begin(self) -> threading.Event:
        """For work that is no experiment: ends what ran before, and returns the event that will end this."""
        self._cancel.set()
        self._run, self._cancel = None, threading.Event()
        weakref.finalize(self, self._cancel.set)
        return self._cancel

    def stop(self) -> None:
        """Stop what runs; what is finished stays."""
        self._cancel.set()

    def next_showing(self) -> Callable[[], bool]:
        """Begin a showing; the answer says whether it is still the latest. It does not hold the stage."""
        self._shown[0] += 1
        shown, number = self._shown, self._shown[0]
        return lambda: shown[0] == number


def streaming() -> bool:
    """Whether somebody watches: a page in the editor or under `marimo run`."""
    meta = mo.app_meta()
    return meta.mode in ("edit", "run") and meta.request is not None


@dataclass(frozen=True)
class _View:
    """How one experiment is drawn, and who hears of its end."""

    experiment: Experiment
    engine: Engine
    controls: str
    target: float
    after: Callable[[Experiment, Results], str] | None
    on_done: Callable[[Results], None] | None

    def draw(self, results: Results) -> None:
        mo.output.replace(frame.draw(self.experiment, results, self.controls, self.target, self.after))

    def done_when_quiet(self, results: Results, latest: Callable[[], bool]) -> None:
        if results.state == KEPT:
            self.engine.warm(self.experiment.items[0].way)  # nothing needed it yet, but the next slider will
        time.sleep(QUIET_S)
        if self.on_done is not None and latest() and not mo.current_thread().should_exit:
            self.on_done(results)


def show(
    stage: Stage,
    make: Callable[[], Experiment],
    controls: mo.Html,
    asked: int = 0,
    target: float = 0.95,
    after: Callable[[Experiment, Results], str] | None = None,
    on_done: Callable[[Results], None] | None = None,
) -> None:
    """Run the experiment that `make` describes, and draw it into this cell until it is over.

    A ValueError of `make` is shown in place of the charts. `after` gives HTML to add below, `on_done` hears of the end.
    """
    try:
        experiment = make()
    except ValueError as error:
        stage.stop()
        stage.next_showing()
        mo.output.replace(frame.refused(controls.text, error))
        if not stage.streams:
            print(frame.sentence_of(error), file=sys.stderr)
        return
    view = _View(experiment, stage.engine, controls.text, target, after, on_done)
    if not stage.streams:
        results = _run_in_foreground(experiment, stage, target)
        view.draw(results)
        if on_done is not None:
            on_done(results)
        return
    first = stage.opening
    run = stage.run(experiment, asked)
    latest = stage.next_showing()
    with run.results.changed:
        run.results.changed.wait_for(lambda: run.results.worth_showing, AT_ONCE_S)
        drawn = run.results.version
    if first and not run.results.worth_showing:  # ten empty charts would keep the browser from the first full one
        mo.output.replace(frame.blank(experiment, run.results, view.controls, target))
    else:
        view.draw(run.results)
    mo.Thread(target=_paint, args=(view, run.results, drawn, latest, first), daemon=True).start()


def _paint(view: _View, results: Results, drawn: int, latest: Callable[[], bool], first: bool) -> None:
    """After state number `drawn`, draw new states until the run is over or another showing took the place."""
    timed = view.experiment.ordered_by == "backend"
    seen, frame_s = drawn, TIMED_FRAME_S if timed else FRAME_S
    next_frame = time.monotonic() + frame_s
    while not (results.over and seen == results.version):
        with results.changed:
            results.changed.wait_for(lambda seen=seen: results.version != seen, 1.0)
            changed, seen, over = results.version != seen, results.version, results.over
        pause_s = next_frame - time.monotonic()
        if pause_s > 0 and not over:
            with results.changed:  # the end does not wait for its frame
                results.changed.wait_for(lambda: results.over, pause_s)
        if not latest() or mo.current_thread().should_exit:
            return
        if first and not results.worth_showing:
            if changed:
                mo.output.replace(frame.blank(view.experiment, results, view.controls, view.target))
        elif changed or not over:
            frame_s = frame_s if timed else min(SLOWER * frame_s, LATER_FRAME_S)
            next_frame = time.monotonic() + frame_s
            view.draw(results)
    view.done_when_quiet(results, latest)


def show_parameters(
    stage: Stage, item: Item | None, draw_network: Callable[[Item, Parameters], mo.Html], nothing: str
) -> None:
    """Draw one trained network into this cell.

    Its parameters come from the run that trained it (`remember`), or from training it again: they are the same, because
    training is deterministic.
    """
    latest = stage.next_showing()
    if item is None:
        stage.stop()
        mo.output.replace(frame.note(nothing))
        return
    cancel, engine, claim = stage.begin(), stage.engine, Claim(stage.viewer, Urgency.LATER)

    def work() -> None:
        output: mo.Html | None = None
        try:
            parameters = _parameters.get(item.training) or _train_for_parameters(engine, item.training, cancel, claim)
            if parameters is not None:
                output = draw_network(item, parameters)
        except (WorkerDied, TrainingFailed, OSError) as error:
            output = frame.failed(str(error))
        if output is not None and latest():
            mo.output.replace(output)

    if stage.streams:
        mo.Thread(target=work, daemon=True).start()
    else:
        work()


_parameters: OrderedDict[Training, Parameters] = OrderedDict()  # of the networks looked into last, for all viewers
_MAX_KEPT_PARAMETERS = 8


def remember(item: Item, parameters: Parameters) -> None:
    """Keep a network's parameters for who looks inside it; the oldest are forgotten."""
    _parameters[item.training] = parameters
    while len(_parameters) > _MAX_KEPT_PARAMETERS:
        _parameters.popitem(last=False)


def _train_for_parameters(
    engine: Engine, training: Training, cancel: threading.Event, claim: Claim
) -> Parameters | None:
    for message in engine.run(Way(), [training], cancel, how=How(want_parameters=True), claim=claim):
        if isinstance(message, Trained) and message.parameters is not None:
            remember(Item(training), message.parameters)
            return message.parameters
    return None


def _run_in_foreground(experiment: Experiment, stage: Stage, target: float) -> Results:
    """For scripts and exports: a line of progress on standard error, then the sentence and the table on standard output."""
    cancel = threading.Event()
    run = Run.start(experiment, stage.engine, stage.store, cancel, Claim(stage.viewer))
    script = mo.app_meta().mode == "script"
    watched = script and sys.stderr.isatty()
    try:
        while not run.wait(0.25):
            if watched:
                text = frame.progress_text(run.results)
                print(f"\r{experiment.name}: {text}\033[K", end="", file=sys.stderr, flush=True)
    finally:
        cancel.set()  # interrupted: the worker stops too
    if script:
        print(f"\r\033[K\n{experiment.name}" if watched else f"\n{experiment.name}")
        print(frame.table(experiment, run.results).to_string(index=False))
        print(experiments.sentence(experiment, run.results, target))
    return run.results
