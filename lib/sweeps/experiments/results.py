"""What one thread fills and others watch; the results of a run so far, as rows.

Rows have units in their columns' names: dicts for what is drawn, many times a second in front of a class, and pandas
frames of them for what is taken away. A line is thinned to means over fixed groups of steps, which do not move while
the line grows.
"""

import copy
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from lib.model.backends.base import Epoch, FirstCall, Parameters, Steps
from lib.model.data.mnist import Facts
from lib.model.spec import Training
from lib.sweeps.experiments.lines import TrainedEpochs
from lib.sweeps.storage.records import Curve
from lib.sweeps.strategies import Picked
from lib.sweeps.sweep import Continued, Finished, ToTrain, Update, Void
from lib.sweeps.workers.messages import Disturbed, Item, Progress, Ready, Restarted, Starting, State, Waiting
from lib.timing.diagnosis import CardFacts
from lib.timing.measurement import disturbances

POINTS_PER_LINE = 150


class Watched:
    """What one thread changes and others watch: they wait for a change, or for the end.

    `version` grows with each change, and `changed` is held while it changes. `ended` shares the lock of `changed`:
    whoever waits for the end is not woken by every change before it.
    """

    def __init__(self, state: State) -> None:
        lock = threading.RLock()
        self.changed, self.ended = threading.Condition(lock), threading.Condition(lock)
        self.state, self.version = state, 0
        self._followers: weakref.WeakSet[Watched] = weakref.WeakSet()

    @property
    def over(self) -> bool:
        """Whether no more changes come."""
        return self.state.over

    def over_at(self, version: int) -> bool:
        """Whether it is over, and no change came after this version."""
        with self.changed:
            return self.over and self.version == version

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
        """Have the other one change no more with this."""
        with self.changed:
            self._followers.discard(other)

    def _tell(self) -> None:
        """Count a change, and wake all who wait. To be called with `changed` held."""
        self.version += 1
        self.changed.notify_all()
        if self.over:
            self.ended.notify_all()
        for follower in list(self._followers):
            with follower.changed:
                follower._tell()


class News(Watched):
    """What changes and never ends, such as all that is drawn together."""

    def __init__(self) -> None:
        super().__init__(State.MEASURING)

    def tell(self) -> None:
        """Wake all who watch."""
        with self.changed:
            self._tell()


@dataclass
class Line(TrainedEpochs):
    """One item's progress: its losses, epochs and seconds so far, and its curve once it is finished."""

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
        """Steps of the whole training."""
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
        """How many steps have come since the line began, or went on from a shorter one that is cached."""
        return self.n_steps - sum(epoch.steps for epoch in self.epochs[: self.cached_epochs])

    def add(self, event: FirstCall | Steps | Epoch) -> None:
        """Add an event of the training."""
        if isinstance(event, FirstCall):
            self.first_call_s, self.began = event.first_call_s, time.monotonic()
        elif isinstance(event, Steps):
            self.losses.append(event.losses)
            self.n_steps += len(event.losses)
            self.train_s += event.train_s
        else:
            self.epochs.append(event)

    def go_on(self, curve: Curve) -> None:
        """Begin where a shorter training, which is cached, had ended."""
        self.cached_epochs = len(curve.epochs)
        self.losses, self.n_steps = [curve.losses], len(curve.losses)
        self.epochs = list(curve.epochs)
        self.train_s = sum(epoch.train_s for epoch in curve.epochs)

    def finish(self, curve: Curve, cached: bool) -> None:
        """Replace what came so far by the whole curve; `cached` if it came from the store."""
        self.curve, self.cached = curve, cached
        self.losses, self.n_steps = [curve.losses], len(curve.losses)
        self.epochs, self.first_call_s = list(curve.epochs), curve.first_call_s
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
        """Add an update of the sweep, and wake all who watch."""
        with self.changed:
            if isinstance(update, Waiting):
                self.place, self.other, self.state = update.place, update.other, State.WAITING
                self.preparing = False
            elif isinstance(update, Disturbed | Restarted):
                self._notice(update.why)
            elif isinstance(update, Starting):
                self.starting = update.runtime.label
            elif isinstance(update, Void):
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
            self._tell()

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
            self._tell()

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
        """The lines of an item: equal items have lines of their own, and one training."""
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

    def steps_frame(self, points: int = POINTS_PER_LINE) -> pd.DataFrame:
        """Loss by step: a row for each point of the thinned lines.

        Args:
            points: At most so many for each line.

        Returns:
            `line` (from 0), `label`, `step`, `epoch` (the step in epochs) and `loss`.
        """
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

    def epochs_frame(self) -> pd.DataFrame:
        """A row for each epoch: accuracy and loss on the validation images, and seconds; see `epochs_rows`."""
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

    def summary_frame(self) -> pd.DataFrame:
        """A row for each training: what it was, its results, and how it was measured; see `summary_rows`."""
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
