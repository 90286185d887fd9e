"""What one thread fills and others watch: equal experiments once for all who want them, other tasks for one viewer.

A run ends when nobody watches it any more. One that found everything in the store is kept, and whoever asks for the
same sees it at once: in a class, most do.

Rows have units in their columns' names: dicts for what is drawn, many times a second in front of a class, and pandas
frames of them for what is taken away. A line is thinned to means over fixed groups of steps, which do not move while
the line grows.
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
    Disturbed,
    Item,
    Note,
    Progress,
    Ready,
    Restarted,
    Starting,
    State,
    TrainingFailed,
    Waiting,
    WorkerDied,
)
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request, SharedRequest
from lib.timing.diagnosis import CardFacts
from lib.timing.measurement import disturbances

if TYPE_CHECKING:
    import pandas as pd

POINTS_PER_LINE = 150


class Watched:
    """What one thread changes and others watch: they wait for a change, or for the end.

    `version` grows with each change, and `changed` is held while it changes. `ended` shares the lock of `changed`:
    whoever waits for the end is not woken by every change before it.
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
        """Wait until the version is no longer this one, at most `timeout_s` seconds (None: no limit); whether it is."""
        with self.changed:
            return self.changed.wait_for(lambda: self.version != version, timeout_s)

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, at most `timeout_s` seconds (None: without limit); whether it is."""
        with self.changed:
            return self.ended.wait_for(lambda: self.over, timeout_s)

    def followed_by(self, other: "Watched") -> None:
        """Have the other one change whenever this does: who shows several things watches one that follows all.

        It is held weakly, and must not be followed by this one.
        """
        with self.changed:
            self._followers.add(other)

    def left_by(self, other: "Watched") -> None:
        with self.changed:
            self._followers.discard(other)

    def tell(self) -> None:
        """Count a change, and wake all who wait."""
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
    cached_epochs: int = 0  # that were trained earlier, and continued
    ended: State | None = None  # how the run ended, where it ended before this did
    training: Training = field(init=False)

    def __post_init__(self) -> None:
        self.training = self.item.training

    @property
    def total_steps(self) -> int:
        training = self.item.training
        return training.steps_per_epoch() * training.epochs

    @property
    def state(self) -> State:
        """State of this line; where its run ended before it did, that of the run, or `NOT_RUN` if it had not begun."""
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
        """Replace what came so far by the whole curve; `cached` if it came from the store."""
        self.curve, self.cached, self.first_call_s = curve, cached, curve.first_call_s
        self._take(curve)

    def _take(self, curve: Curve) -> None:
        self.losses, self.n_steps, self.epochs = [curve.losses], len(curve.losses), list(curve.epochs)
        self.train_s = sum(epoch.train_s for epoch in curve.epochs)

    def thinned(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Middle step and mean loss of each group of steps, without groups whose mean is not finite.

        Args:
            points: At most so many groups in the whole training; they have equally many steps, and an incomplete one is
                left out. A short line has two groups at once, so that it can be seen.

        Returns:
            Two arrays (groups,): the middle of each group as a number of steps, and its mean.
        """
        losses = np.concatenate(self.losses) if self.losses else np.empty(0, np.float32)
        width = max(1, -(-self.total_steps // points))
        if width == 1:
            steps, means = np.arange(len(losses)) + 1.0, losses.astype(float)
        else:
            if 2 <= len(losses) < 2 * width:  # a line can be seen from two points on, and the first must not wait
                width = len(losses) // 2
            full = len(losses) // width * width
            means = losses[:full].reshape(-1, width).mean(axis=1, dtype=float)
            steps = (np.arange(len(means)) + 0.5) * width
        finite = np.isfinite(means)
        return steps[finite], means[finite]


class Results(Watched):
    """The lines of one run, and what is happening to it.

    Args:
        items: What is trained; equal ones have lines of their own.
        labels: One for each item.
    """

    def __init__(self, items: Sequence[Item], labels: Sequence[str]) -> None:
        super().__init__(State.WAITING)
        self.items, self.labels = tuple(items), tuple(labels)
        self.lines = [Line(item) for item in items]
        self._places: dict[Item, list[int]] = {}
        for place, item in enumerate(items):
            self._places.setdefault(item, []).append(place)
        self.place: int | None = 0  # in the queue; None where another program holds the turn
        self.other = ""  # … and which that is, in words
        self.notices: tuple[str, ...] = ()  # what the person should know of how it went
        self.disturbed: tuple[str, ...] = ()  # what else was at work meanwhile, so that seconds are too long
        self.starting = ""
        self.preparing = False  # a worker has the trainings, and has made none of their steps: it may be compiling
        self.failure = ""
        self.to_train: tuple[Item, ...] | None = None  # known once the store was asked
        self.parameters: tuple[Item, Parameters] | None = None  # of the best item so far, where they came with it
        self.data: Facts | None = None
        self.cards: set[CardFacts] = set()  # as the workers' libraries name them
        self.picked: Picked | None = None  # how the sweep is made

    def add(self, update: Update) -> None:
        with self.changed:
            if isinstance(update, Waiting):
                self.place, self.other, self.state = update.place, update.other, State.WAITING
                self.preparing = False
            elif isinstance(update, Disturbed):
                self._notice(update.why)
            elif isinstance(update, Starting):
                self.starting = update.runtime.label
            elif isinstance(update, Restarted):
                self._notice(update.why)
                for item in update.items:
                    for place in self._places[item]:
                        self.lines[place] = Line(item)
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
                self._note_warnings(update.curve.warnings)
                self._keep_the_best_parameters(update)
            elif isinstance(update, ToTrain):
                self.to_train = update.items
            elif isinstance(update, Ready):
                self.starting, self.data = "", update.data
                self.preparing = bool(self.to_train)
                self.cards |= {update.card} if update.card is not None else set()
            self.tell()

    def end(self, state: State, failure: str = "") -> None:
        """End the run with this state, which becomes `SAVED` if it is `DONE` and all was cached.

        Args:
            state: `DONE`, `STOPPED` or `FAILED`.
            failure: A sentence, where it failed or somebody else stopped it.
        """
        with self.changed:
            for line in self.lines:
                line.ended = state
            all_cached = all(line.cached for line in self.lines)
            self.state = State.SAVED if state is State.DONE and all_cached else state
            self.failure, self.starting, self.preparing = failure, "", False
            self.tell()

    def stopped(self) -> "Results":
        """A copy of what there is now, as stopped, for a viewer who leaves while the run goes on."""
        with self.changed:
            found = copy.copy(self)
            found.lines = [replace(line, losses=list(line.losses), epochs=list(line.epochs)) for line in self.lines]
            found.end(State.STOPPED)
            return found

    def _notice(self, text: str) -> None:
        self.notices = tuple(dict.fromkeys([*self.notices, *filter(None, [text])]))

    def _note_warnings(self, warnings: Sequence[str]) -> None:
        self.disturbed = tuple(disturbances([*self.disturbed, *warnings]))
        for warning in warnings:
            if not disturbances([warning]):
                self._notice(warning)

    def _keep_the_best_parameters(self, update: Finished) -> None:
        if self._best() == update.item:
            self.parameters = (update.item, update.parameters) if update.parameters else None

    def _lines_of(self, item: Item) -> list[Line]:
        return [self.lines[place] for place in self._places[item]]

    @property
    def worth_showing(self) -> bool:
        """Whether a chart has something to show: a first new line of what is trained, or all that there will be."""
        return self.over or any(line.n_new_steps >= 2 for item in self.to_train or () for line in self._lines_of(item))

    @property
    def share_done(self) -> float:
        """Share of the work that is done, 0 to 1: of all steps, weighted by how long a step takes.

        That is measured where it is known, and else guessed from the arithmetic.
        """
        costs = [self._step_cost_s(line) for line in self.lines]
        total = sum(cost * line.total_steps for cost, line in zip(costs, self.lines, strict=True))
        done = sum(
            cost * (line.total_steps if line.curve is not None else line.n_steps)
            for cost, line in zip(costs, self.lines, strict=True)
        )
        return done / total if total else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds of steps that are left, from the step times so far; None before the first step."""
        if not any(line.n_steps for line in self.lines):
            return None
        left = sum(
            self._step_cost_s(line) * (line.total_steps - line.n_steps) for line in self.lines if line.curve is None
        )
        return left

    def _step_cost_s(self, line: Line) -> float:
        """A step's seconds: measured, or guessed from the arithmetic at 50 GFLOP/s and 20 μs per step."""
        if line.n_steps and line.train_s:
            return line.train_s / line.n_steps
        training = line.item.training
        return 20e-6 + training.network.step_flops(training.batch_size) / 50e9

    def steps_frame(self, points: int = POINTS_PER_LINE) -> "pd.DataFrame":
        """Loss by step: a row for each point of the thinned lines.

        Args:
            points: At most so many for each line.

        Returns:
            `line` (from 0), `label`, `step`, `epoch` (the step in epochs) and `loss`.
        """
        import pandas as pd  # here, because steps are also measured on machines that have NumPy alone

        with self.changed:
            parts = []
            for index, line in enumerate(self.lines):
                steps, losses = line.thinned(points)
                per_epoch = max(1, line.item.training.steps_per_epoch())
                parts.append(
                    pd.DataFrame(
                        {
                            "line": index,
                            "label": self.labels[index],
                            "step": steps,
                            "epoch": steps / per_epoch,
                            "loss": losses,
                        }
                    )
                )
        return pd.concat(parts, ignore_index=True)

    def epochs_frame(self) -> "pd.DataFrame":
        import pandas as pd  # as in `steps_frame`

        columns = ["line", "label", "epoch", "accuracy", "validation_loss", "train_s", "evaluation_s", "spent_s"]
        return pd.DataFrame(self.epochs_rows(), columns=columns)

    def epochs_rows(self) -> list[dict[str, Any]]:
        """A row for each epoch, in the order of the lines.

        Returns:
            `line` and `label`; `epoch` (from 1), `accuracy`, `validation_loss`; seconds of training (`train_s`), of
            evaluation (`evaluation_s`), and of both since the line began (`spent_s`).
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
        """A row for each training: what it was, its results, and how it was measured.

        Seconds of an epoch are the median and the quartiles over the epochs of `Line.epoch_s`; what is not known yet is
        missing.
        """
        rows = []
        with self.changed:
            for index, line in enumerate(self.lines):
                training, seconds = line.item.training, line.epoch_s
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
        """The finished item with the highest validation accuracy that did not diverge; None where there is none."""
        with self.changed:
            return self._best()

    def _best(self) -> Item | None:
        finished = [line for line in self.lines if line.curve is not None and line.diverged_step is None]
        best = max(finished, key=lambda line: line.accuracy or 0.0, default=None)
        return None if best is None else best.item


T = TypeVar("T")

# Below that, lines that begin at once are worth more than a strategy that saves a second.
WORTH_S = 4.0
MAX_SAVED_RUNS = 512
MAX_SAVED_STEPS = 2**24  # of all of them together: their losses, of four bytes each, are what takes memory


def in_background(
    work: Callable[[], None], end: Callable[[State, str], None], cancel: Cancel, name: str
) -> threading.Thread:
    """Do the work in a thread, and report how it ended.

    An unexpected error is raised again in the thread, so that the terminal shows it.

    Args:
        work: Without arguments; it ends early when `cancel` is set.
        end: Called in the thread, with `DONE`, `STOPPED` or `FAILED`, and a sentence where it failed or somebody else
            stopped it, else an empty text.
        cancel: Where it is set when the work returns, the work was stopped.
        name: Of the thread.

    Returns:
        The thread, which is running and does not hold up the end of the program.
    """

    def run() -> None:
        try:
            work()
            end(State.STOPPED if cancel.is_set() else State.DONE, cancel.why)
        except (WorkerDied, TrainingFailed, MemoryError, OSError) as error:
            end(State.FAILED, str(error))
        except Exception as error:
            fault = (
                f"The run ended by a fault of this program ({type(error).__name__}: {error}); the terminal has the"
                " details."
            )
            end(State.FAILED, fault)
            raise

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


@dataclass(frozen=True)
class View(Generic[T]):
    """A background task at one moment: its items so far, its state, and what there is to say.

    `problem` is a sentence where it failed, or a part of it did; `note` says what is happening meanwhile. Either may be
    empty.
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
    """Collects what `make` yields, in a thread, until it ends or `cancel` is set.

    The thread holds neither page nor stage.

    Args:
        make: Yields items, and notes on what is happening meanwhile; it ends itself when `cancel` is set.
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
    request: SharedRequest = field(default_factory=SharedRequest)
    cancel: Cancel = field(default_factory=Cancel)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.results = Results(self.experiment.items, self.experiment.labels)


class Seat:
    """One viewer's place at a run that others may watch too.

    Args:
        run: The run that is watched.
        request: The viewer's, which is among those of the run.
    """

    def __init__(self, run: Run, request: Request) -> None:
        self.run, self.request = run, request
        self._stopped: Results | None = None

    @property
    def results(self) -> Results:
        """The run's results; once the viewer has left, those of that moment."""
        return self._stopped or self.run.results

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is over or left, at most `timeout_s` seconds (None: without limit); whether it is."""
        with self.run.results.changed:
            return self.run.results.ended.wait_for(lambda: self.results.over, timeout_s)

    def leave(self) -> None:
        """Watch the run no longer; it ends when nobody is left. A second call does nothing."""
        with _guard:
            if self._stopped is not None or self.run.results.over:
                return
            with self.run.results.changed:  # held until it is set: to stop them wakes who draws them
                self._stopped = self.run.results.stopped()
            self.run.request.discard(self.request)
            is_last = not self.run.request.each  # nobody can join it any more
        if is_last:  # outside: it waits for the queue, and all who come to any run would wait for that
            self.run.cancel.set()


_guard = threading.Lock()
_under_way: dict[Hashable, Run] = {}
_saved: OrderedDict[Hashable, Run] = OrderedDict()  # whose trainings were all stored, the latest asked for last


def join(experiment: Experiment, engine: Engine, store: Store | None, request: Request, fresh: bool = False) -> Seat:
    """A seat at the run of this experiment: one that is under way or was saved, or a new one. Returns at once.

    Args:
        experiment: What is trained; runs of equal ones are shared.
        engine: Its workers train.
        store: Where curves are looked up and stored; None: nothing is cached.
        request: For whom, and how urgently, turns are wanted.
        fresh: Train even what is cached, and what others train already.
    """
    key = (experiment, engine, store.identity if store is not None else None, source_digest())
    data = engine.known_facts()
    public = store is not None and data is not None and experiment.data == MNIST
    saved = (key, data.digest) if public and data is not None else None  # None: it is not kept
    with _guard:
        if not fresh and saved in _saved:
            _saved.move_to_end(saved)
            return Seat(_saved[saved], request)
        there = None if fresh else _under_way.get(key)
        joins = there is not None and bool(there.request.each) and not there.results.over
        run = there if there is not None and joins else Run(experiment)
        seat = Seat(run, request)
        try:
            ALLOWANCE.admit(request, lambda: seat.results.over)
        except TrainingFailed as error:  # a run of the viewer's own says so: the others' goes on
            seat = Seat(Run(experiment), request)
            seat.results.end(State.FAILED, str(error))
            return seat
        run.request.add(request)
        if joins:
            return seat
        _under_way[key] = run
    # The thread must not hold the stage whose viewer asked: its collection is what leaves a run that nobody sees.
    in_background(
        lambda: _fill(run, engine, store, fresh),
        lambda *how: _end(run, key, saved, *how),
        run.cancel,
        f"run {experiment.name}",
    )
    return seat


def _fill(run: Run, engine: Engine, store: Store | None, fresh: bool) -> None:
    options = Options(run.experiment.strategy, worth_s=WORTH_S, fresh=fresh, processes=False)
    for update in updates(run.experiment.items, engine, store, run.cancel, options, run.request):
        run.results.add(update)


def _end(run: Run, key: Hashable, saved: Hashable, state: State, failure: str) -> None:
    """Let nobody join the run any more, end its results, and keep it, or what it has not trained anew of those kept."""
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
            run.request.each = ()  # nobody's pages are held by it
            _saved[saved] = run
            _saved.move_to_end(saved)
            while len(_saved) > MAX_SAVED_RUNS or sum(map(_n_steps, _saved.values())) > MAX_SAVED_STEPS:
                _saved.popitem(last=False)


def _n_steps(run: Run) -> int:
    return sum(line.n_steps for line in run.results.lines)
