"""Results that one thread fills and others watch: runs shared by all viewers of equal experiments, and other tasks.

A run ends when its last viewer leaves. A run served entirely from the store is kept and shown immediately to later
viewers of the same experiment, which is the usual case in a class.

Column names carry the units. Rows are dicts for charts, which redraw many times a second, and pandas frames for
exports. Lines are thinned to means over fixed groups of steps, so drawn points do not move while a line grows.
"""

import copy
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from lib.model.backends.base import Epoch, FirstCall, Parameters, Steps
from lib.model.backends.fingerprint import source_digest
from lib.model.data.mnist import Facts
from lib.model.spec import MNIST, Training
from lib.sweeps.experiments.lines import TrainedEpochs
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.measuring import words
from lib.sweeps.storage.records import Curve, Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Continued, Finished, Options, Picked, ToTrain, Update, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import (
    Item,
    Note,
    Progress,
    Ready,
    Restarted,
    State,
    TrainingFailed,
    Waiting,
)
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request
from lib.timing.diagnosis import CardFacts
from lib.timing.measurement import disturbances

if TYPE_CHECKING:
    import pandas as pd

POINTS_PER_LINE = 150


class Watched:
    """An object that one thread changes and others watch: they wait for a change or for the end.

    `version` grows with each change, under the lock of `changed`. `ended` shares that lock, so that waiting for the end
    does not wake up on every change.
    """

    def __init__(self, state: State = State.MEASURING) -> None:
        lock = threading.RLock()
        self.changed, self.ended = threading.Condition(lock), threading.Condition(lock)
        self.state, self.version = state, 0
        self._followers: weakref.WeakSet[Watched] = weakref.WeakSet()

    @property
    def over(self) -> bool:
        return self.state.over

    def wait_for_news(self, version: int, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds (None: forever) for a version other than this; return whether it came."""
        with self.changed:
            return self.changed.wait_for(lambda: self.version != version, timeout_s)

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds (None: forever) for the end; return whether it is over."""
        with self.changed:
            return self.ended.wait_for(lambda: self.over, timeout_s)

    def followed_by(self, other: "Watched") -> None:
        """Make `other` change whenever this does, so that a page can watch one object for several.

        `other` is held weakly. It must not be followed by this object in turn.
        """
        with self.changed:
            self._followers.add(other)

    def left_by(self, other: "Watched") -> None:
        with self.changed:
            self._followers.discard(other)

    def tell(self) -> None:
        """Count a change, and wake all waiting threads."""
        with self.changed:
            self.version += 1
            self.changed.notify_all()
            if self.over:
                self.ended.notify_all()
            for follower in list(self._followers):
                follower.tell()


@dataclass
class Line(TrainedEpochs):
    item: Item
    losses: list[np.ndarray] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    n_steps: int = 0
    train_s: float = 0.0
    first_call_s: float = 0.0
    began: float | None = None
    curve: Curve | None = None
    cached: bool = False
    cached_epochs: int = 0  # trained earlier, and continued by this run
    ended: State | None = None  # how the run ended; None while it goes on
    training: Training = field(init=False)

    def __post_init__(self) -> None:
        self.training = self.item.training

    @property
    def total_steps(self) -> int:
        return self.training.steps_per_epoch() * self.training.epochs

    @property
    def state(self) -> State:
        """The line's state. If the run ended first, the run's state, or `NOT_RUN` if the line had not begun."""
        if self.curve is None:
            begun = self.began is not None or self.n_steps > 0
            return (self.ended or State.TRAINING) if begun else (State.NOT_RUN if self.ended else State.WAITING)
        if self.diverged_step is not None:
            return State.DIVERGED
        return State.SAVED if self.cached else State.DONE

    @property
    def n_new_steps(self) -> int:
        return self.n_steps - sum(epoch.steps for epoch in self.epochs[: self.cached_epochs])

    def add(self, event: FirstCall | Steps | Epoch) -> None:
        if isinstance(event, FirstCall):
            self.first_call_s, self.began = event.first_call_s, time.monotonic()
        elif isinstance(event, Steps):
            self.losses.append(event.losses)
            self.n_steps += len(event.losses)
            self.train_s += event.train_s
        else:
            self.epochs.append(event)

    def go_on(self, curve: Curve) -> None:
        self.cached_epochs = len(curve.epochs)
        self._take(curve)

    def finish(self, curve: Curve, cached: bool) -> None:
        """Replace the events so far with the whole curve; `cached` if it came from the store."""
        self.curve, self.cached, self.first_call_s = curve, cached, curve.first_call_s
        self._take(curve)

    def _take(self, curve: Curve) -> None:
        self.losses, self.n_steps, self.epochs = [curve.losses], len(curve.losses), list(curve.epochs)
        self.train_s = sum(epoch.train_s for epoch in curve.epochs)

    def thinned(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Average the losses over groups of steps, without groups whose mean is not finite.

        Args:
            points: Most groups in the whole training. Groups have equal size; an incomplete one is left out. A short
                line has two smaller groups, so that it is visible.

        Returns:
            Two arrays (groups,): the middle step of each group, and its mean loss.
        """
        losses = np.concatenate(self.losses) if self.losses else np.empty(0, np.float32)
        width = max(1, -(-self.total_steps // points))
        if 2 <= len(losses) < 2 * width:  # a line needs two points to be visible; show it early
            width = len(losses) // 2
        full = len(losses) // width * width
        means = losses[:full].reshape(-1, width).mean(axis=1, dtype=float)
        steps = np.arange(len(means)) * width + (width + 1) / 2
        finite = np.isfinite(means)
        return steps[finite], means[finite]


class Results(Watched):
    """The lines of one run, and the run's state.

    Args:
        items: The trainings; equal ones get separate lines.
        labels: One per item.
    """

    def __init__(self, items: Sequence[Item], labels: Sequence[str]) -> None:
        super().__init__(State.WAITING)
        self.items, self.labels = tuple(items), tuple(labels)
        self.lines = [Line(item) for item in items]
        self.place: int | None = 0  # in the queue; None while another program holds the turn
        self.other = ""  # names that program
        self.notices: tuple[str, ...] = ()  # sentences to show about how the run went
        self.disturbed: tuple[str, ...] = ()  # other loads on the machine, which lengthened the times
        self.starting = ""
        self.preparing = False  # a worker has the trainings but no step yet: it may be compiling
        self.failure = ""
        self.to_train: tuple[Item, ...] | None = None  # None until the store was checked
        self.parameters: tuple[Item, Parameters] | None = None  # of the best item so far, if it came with them
        self.data: Facts | None = None
        self.cards: set[CardFacts] = set()  # as the workers' libraries name them
        self.picked: Picked | None = None  # the sweep's strategy

    def add(self, update: Update) -> None:
        with self.changed:
            if isinstance(update, Waiting):
                self.place, self.other, self.state = update.place, update.other, State.WAITING
                self.preparing = False
            elif isinstance(update, Note):
                self.starting = update.text
            elif isinstance(update, Restarted):
                self._notice(update.why)
                self.lines = [Line(line.item) if line.item in update.items else line for line in self.lines]
            elif isinstance(update, Continued):
                for line in self._lines_of(update.item):
                    line.go_on(update.curve)
            elif isinstance(update, Picked):
                self.picked = update
            elif isinstance(update, Progress):
                self.state, self.starting, self.preparing = State.TRAINING, "", False
                for line in self._lines_of(update.item):
                    line.add(update.event)
            elif isinstance(update, Finished):
                for line in self._lines_of(update.item):
                    line.finish(update.curve, update.cached)
                self.disturbed = tuple(disturbances([*self.disturbed, *update.curve.warnings]))
                self._notice(*(warning for warning in update.curve.warnings if not disturbances([warning])))
                if self.best() == update.item:
                    self.parameters = (update.item, update.parameters) if update.parameters else None
            elif isinstance(update, ToTrain):
                self.to_train = update.items
            elif isinstance(update, Ready):
                self.starting, self.data = "", update.data
                self.preparing = bool(self.to_train)
                self.cards |= {update.card} if update.card is not None else set()
            self.tell()

    def end(self, state: State, failure: str = "") -> None:
        """End the run; `DONE` becomes `SAVED` if everything was cached.

        Args:
            state: `DONE`, `STOPPED` or `FAILED`.
            failure: A sentence if it failed or was stopped from outside.
        """
        with self.changed:
            for line in self.lines:
                line.ended = state
            cached = state is State.DONE and all(line.cached for line in self.lines)
            self.state = State.SAVED if cached else state
            self.failure, self.starting, self.preparing = failure, "", False
            self.tell()

    def stopped(self) -> "Results":
        """Return a copy of the current results, marked as stopped, for a viewer who leaves a run that goes on."""
        with self.changed:
            found = copy.copy(self)
            found.lines = [replace(line, losses=list(line.losses), epochs=list(line.epochs)) for line in self.lines]
            found.end(State.STOPPED)
            return found

    def _notice(self, *texts: str) -> None:
        self.notices = tuple(dict.fromkeys([*self.notices, *filter(None, texts)]))

    def _lines_of(self, item: Item) -> list[Line]:
        return [line for line in self.lines if line.item == item]

    @property
    def worth_showing(self) -> bool:
        """Whether charts have something new to draw: two steps of a new training, or the final results."""
        return self.over or any(line.n_new_steps >= 2 for item in self.to_train or () for line in self._lines_of(item))

    @property
    def share_done(self) -> float:
        """Share of all steps done, 0 to 1, weighted by each line's step time: measured, or guessed from arithmetic."""
        if (left_s := self.left_s) is None:
            return 0.0
        return 1.0 - left_s / sum(self._step_cost_s(line) * line.total_steps for line in self.lines)

    @property
    def left_s(self) -> float | None:
        """Seconds of remaining steps, from the step times so far; None before the first step."""
        if not any(line.n_steps for line in self.lines):
            return None
        return sum(
            self._step_cost_s(line) * (line.total_steps - line.n_steps) for line in self.lines if line.curve is None
        )

    def _step_cost_s(self, line: Line) -> float:
        """Return seconds per step: measured, or guessed from the arithmetic at 50 GFLOP/s plus 20 μs."""
        if line.n_steps and line.train_s:
            return line.train_s / line.n_steps
        return 20e-6 + line.training.network.step_flops(line.training.batch_size) / 50e9

    def steps_frame(self, points: int = POINTS_PER_LINE) -> "pd.DataFrame":
        """Return the loss by step: a row per point of the thinned lines, at most `points` per line.

        Columns: `line` (from 0), `label`, `step`, `epoch` (the step in epochs) and `loss`.
        """
        import pandas as pd  # here, because bare machines without it measure steps, too

        with self.changed:
            parts = []
            for index, line in enumerate(self.lines):
                steps, losses = line.thinned(points)
                parts.append(
                    pd.DataFrame(
                        {
                            "line": index,
                            "label": self.labels[index],
                            "step": steps,
                            "epoch": steps / max(1, line.training.steps_per_epoch()),
                            "loss": losses,
                        }
                    )
                )
        return pd.concat(parts, ignore_index=True)

    def epochs_frame(self) -> "pd.DataFrame":
        import pandas as pd  # as in `steps_frame`

        return pd.DataFrame(
            self.epochs_rows(),
            columns=["line", "label", "epoch", "accuracy", "validation_loss", "train_s", "evaluation_s", "spent_s"],
        )

    def epochs_rows(self) -> list[dict[str, Any]]:
        """Return a row per epoch, in the order of the lines.

        Columns: `line` (from 0), `label`, `epoch` (from 1), `accuracy`, `validation_loss`; seconds of training
        (`train_s`), of evaluation (`evaluation_s`), and of both since the line began (`spent_s`).
        """
        rows = []
        with self.changed:
            for index, line in enumerate(self.lines):
                spent_s = 0.0
                for epoch in line.epochs:
                    spent_s += epoch.train_s + epoch.evaluation_s
                    rows.append(
                        {
                            "line": index,
                            "label": self.labels[index],
                            "epoch": epoch.epoch + 1,
                            "accuracy": epoch.validation_accuracy,
                            "validation_loss": epoch.validation_loss,
                            "train_s": epoch.train_s,
                            "evaluation_s": epoch.evaluation_s,
                            "spent_s": spent_s,
                        }
                    )
        return rows

    def summary_frame(self) -> "pd.DataFrame":
        import pandas as pd  # as in `steps_frame`

        return pd.DataFrame(self.summary_rows())

    def summary_rows(self) -> list[dict[str, Any]]:
        """Return a row per training: its settings, its results so far, and how it was measured.

        Epoch times are the median and quartiles of `Line.epoch_s`; unknown values are missing.
        """
        rows = []
        with self.changed:
            for index, line in enumerate(self.lines):
                training, seconds = line.training, line.epoch_s
                quartiles = np.percentile(seconds, [25, 50, 75]) if len(seconds) else [np.nan] * 3
                rows.append(
                    {
                        "line": index,
                        "label": self.labels[index],
                        "backend": line.item.runtime.label,
                        "hidden_layers": training.network.label,
                        "learning_rate": training.learning_rate,
                        "batch_size": training.batch_size,
                        "epochs": len(line.epochs),
                        "parameters": training.network.n_parameters,
                        "steps": line.n_steps,
                        "accuracy": line.accuracy if line.accuracy is not None else np.nan,
                        "loss": line.epochs[-1].validation_loss if line.epochs else np.nan,
                        "epoch_q1_s": quartiles[0],
                        "epoch_median_s": quartiles[1],
                        "epoch_q3_s": quartiles[2],
                        "timed_epochs": len(seconds),
                        "train_s": line.train_s,
                        "first_call_s": line.first_call_s,
                        "diverged_step": line.diverged_step,
                        "state": line.state.lower(),
                        "measured_at": line.curve.measured_at if line.curve else "",
                    }
                )
        return rows

    def best(self) -> Item | None:
        """Return the finished item with the highest validation accuracy that did not diverge; None if there is none."""
        with self.changed:
            finished = [line for line in self.lines if line.curve is not None and line.diverged_step is None]
            best = max(finished, key=lambda line: line.accuracy or 0.0, default=None)
            return None if best is None else best.item


T = TypeVar("T")

# Below this, lines that start immediately are worth more than a strategy that saves a second.
WORTH_S = 4.0
MAX_SAVED_RUNS = 512
MAX_SAVED_STEPS = 2**24  # over all saved runs: the losses, four bytes each, dominate their memory


def in_background(
    work: Callable[[], None], end: Callable[[State, str], None], cancel: Cancel, name: str
) -> threading.Thread:
    """Start a daemon thread that does the work and reports how it ended.

    Unexpected errors are raised again in the thread, so that the terminal shows them.

    Args:
        work: Must return early when `cancel` is set.
        end: Called in the thread with `DONE`, `STOPPED` or `FAILED`, and a sentence if it failed or was stopped from
            outside, else an empty string.
        cancel: If set when the work returns, the work counts as stopped.
        name: Name of the thread.
    """

    def run() -> None:
        try:
            work()
            end(State.STOPPED if cancel.is_set() else State.DONE, cancel.why)
        except (TrainingFailed, MemoryError, OSError) as error:
            end(State.FAILED, str(error))
        except Exception as error:
            end(
                State.FAILED,
                f"The run failed because of a bug in this program ({type(error).__name__}: {error}); the terminal has"
                " the details.",
            )
            raise

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


@dataclass(frozen=True)
class View(Generic[T]):
    """A snapshot of a background task: its items so far, its state, and texts to show.

    `problem` is a sentence if all or part of it failed; `note` describes the current activity. Either may be empty.
    """

    items: list[T]
    state: State
    problem: str
    note: str
    version: int

    @property
    def over(self) -> bool:
        return self.state.over


class BackgroundTask(Watched, Generic[T]):
    """Collects what `make` yields, in a thread that holds a reference to neither page nor stage.

    Args:
        make: Yields items, and notes on the current activity; must end when `cancel` is set.
        cancel: Ends the task.
    """

    def __init__(self, make: Callable[[], Iterator[T | Note]], cancel: Cancel) -> None:
        super().__init__()
        self._items: list[T] = []
        self._problems: list[str] = []
        self._note = ""

        def work() -> None:
            for item in make():
                self._take(item)

        self.thread = in_background(work, self._end, cancel, "background task")

    def view(self) -> View[T]:
        with self.changed:
            return View(list(self._items), self.state, " ".join(self._problems), self._note, self.version)

    def _take(self, item: T | Note) -> None:
        with self.changed:
            if isinstance(item, Note):
                self.state, self._note = item.state, item.text
            else:
                self._items.append(item)
                self.state, self._note = State.MEASURING, ""
                if isinstance(item, Record) and item.kind == Kind.FAILURE:
                    self._problems = list(dict.fromkeys([*self._problems, words(item)]))
            self.tell()

    def _end(self, state: State, problem: str) -> None:
        with self.changed:
            self._problems += [problem] if problem else []
            self.state = State.FAILED if self._problems and state is State.DONE else state
            self._note = ""
            self.tell()


@dataclass(eq=False)
class Run:
    experiment: Experiment
    requests: list[Request] = field(default_factory=list)  # of all its viewers
    cancel: Cancel = field(default_factory=Cancel)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.results = Results(self.experiment.items, self.experiment.labels)


class Subscription:
    """One viewer's subscription to a run that may be shared.

    Args:
        run: The watched run.
        request: The viewer's request, one of the run's.
    """

    def __init__(self, run: Run, request: Request) -> None:
        self.run, self.request = run, request
        self._stopped: Results | None = None

    @property
    def results(self) -> Results:
        """The run's results, frozen once the viewer has left."""
        return self._stopped or self.run.results

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds (None: forever) until the run is over or left; return whether it is."""
        with self.run.results.changed:
            return self.run.results.ended.wait_for(lambda: self.results.over, timeout_s)

    def leave(self) -> None:
        """Stop watching; the run ends when its last viewer leaves. Idempotent."""
        with _guard:
            if self._stopped is not None or self.run.results.over:
                return
            with self.run.results.changed:  # held during assignment, because `stopped` wakes watching threads
                self._stopped = self.run.results.stopped()
            self.run.requests.remove(self.request)
            is_last = not self.run.requests  # from here on, `join` refuses this run
        if is_last:  # outside the guard: cancelling waits for the queue, and would block joining any run
            self.run.cancel.set()


_guard = threading.Lock()
_under_way: dict[Hashable, Run] = {}
_saved: OrderedDict[Hashable, Run] = OrderedDict()  # runs whose trainings were all cached, most recently used last


def join(
    experiment: Experiment, engine: Engine, store: Store | None, request: Request, fresh: bool = False
) -> Subscription:
    """Subscribe to this experiment's run: the running or saved one, or a new one. Returns immediately.

    Args:
        experiment: What to train; equal experiments share a run.
        engine: Its workers train.
        store: Where curves are looked up and stored; None disables caching.
        request: Viewer and priority in the queue.
        fresh: Train even if cached or already running.
    """
    key = (experiment, engine, store.identity if store is not None else None, source_digest())
    data = engine.known_facts()
    # None: do not save the run.
    saved = (key, data.digest) if store is not None and data is not None and experiment.data == MNIST else None
    with _guard:
        if not fresh and saved in _saved:
            _saved.move_to_end(saved)
            return Subscription(_saved[saved], request)
        there = None if fresh else _under_way.get(key)
        run = there if there is not None and there.requests else Run(experiment)
        joined = Subscription(run, request)
        try:
            ALLOWANCE.admit(request, lambda: joined.results.over)
        except TrainingFailed as error:  # report it in a private run, so that a shared one goes on
            joined = Subscription(Run(experiment), request)
            joined.results.end(State.FAILED, str(error))
            return joined
        run.requests.append(request)
        if run is there:
            return joined
        _under_way[key] = run
    # The thread must not reference the viewer's stage: garbage-collecting the stage is what leaves an unwatched run.
    in_background(
        lambda: _fill(run, engine, store, fresh),
        lambda *how: _end(run, key, saved, *how),
        run.cancel,
        f"run {experiment.name}",
    )
    return joined


def _fill(run: Run, engine: Engine, store: Store | None, fresh: bool) -> None:
    options = Options(run.experiment.strategy, worth_s=WORTH_S, fresh=fresh, processes=False)
    for update in updates(run.experiment.items, engine, store, run.cancel, options, run.requests):
        run.results.add(update)


def _end(run: Run, key: Hashable, saved: Hashable, state: State, failure: str) -> None:
    """Close the run to new viewers and end its results; save it, or drop saved runs with trainings that it repeated."""
    with _guard:
        if _under_way.get(key) is run:
            del _under_way[key]
    run.results.end(state, failure)
    with _guard:
        if run.results.state is not State.SAVED:
            trained = {line.item for line in run.results.lines if not line.cached}
            for other in [one for one, it in _saved.items() if not trained.isdisjoint(it.experiment.items)]:
                del _saved[other]
        elif saved is not None:
            run.requests.clear()  # so that a saved run keeps no pages alive
            _saved[saved] = run
            while len(_saved) > MAX_SAVED_RUNS or sum(map(_n_steps, _saved.values())) > MAX_SAVED_STEPS:
                _saved.popitem(last=False)


def _n_steps(run: Run) -> int:
    return sum(line.n_steps for line in run.results.lines)
