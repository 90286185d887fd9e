"""What can be taken away from an experiment, and the rows behind its charts as files.

Rows are flat: each says what was trained, by what, on which machine and data, with units in the names of its columns.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import pandas as pd

from lib.formatting import format_rate, percent, seconds
from lib.model.data.mnist import Facts
from lib.model.hardware.machine import this_machine
from lib.model.spec import MNIST, Training
from lib.sweeps.experiments.mnist_training import settings_of
from lib.sweeps.experiments.results import Line, Results
from lib.sweeps.random_search import losses_frame, search_frame
from lib.sweeps.storage.records import Curve
from lib.sweeps.workers.messages import Item

PARQUET_NEEDS = "pyarrow"  # what pandas writes Parquet with; nothing else here needs its 150 MB
WITHOUT_PARQUET = f"Parquet needs {PARQUET_NEEDS}, which is not installed here: pip install {PARQUET_NEEDS}."
ABOUT = ("backend", "hidden_layers", "learning_rate", "batch_size", "parameters", "measured_at")


@dataclass(frozen=True)
class Takeaway:
    """What can be taken away from what an experiment shows now.

    Args:
        experiment: What it is about, for a sentence, such as “learning rate”.
        labels: One for each line.
        lines: Its trainings, finished or not.
        rows: Makes the rows of each kind, by its name for people.
        data: What was trained on; None where that is not known.
        sentence: What the experiment says; empty while it says nothing.
    """

    experiment: str
    labels: Sequence[str]
    lines: Sequence[Line]
    rows: Mapping[str, Callable[[], pd.DataFrame]]
    data: Facts | None
    sentence: str

    @property
    def own_data(self) -> bool:
        """Whether it was trained on data that somebody brought: a file that trains again could not find them."""
        return any(line.item.training.data != MNIST for line in self.lines)

    def best_first(self) -> list[int]:
        """Places of the finished lines: what did not diverge first, then by accuracy; one training by several runtimes,
        whose accuracies differ by rounding alone, by the seconds of its epochs."""
        finished = {place: line for place, line in enumerate(self.lines) if line.curve is not None}
        reached: dict[Training, float] = {}
        for line in finished.values():
            reached[line.item.training] = max(line.accuracy or 0.0, reached.get(line.item.training, 0.0))

        def order(place: int) -> tuple[bool, float, float]:
            line = finished[place]
            return line.diverged_step is not None, -reached[line.item.training], float(np.median(line.epoch_s))

        return sorted(finished, key=order)

    def described(self, place: int) -> str:
        """A finished line's label, with what it came to."""
        line = self.lines[place]
        end = "diverged" if line.diverged_step is not None else percent(line.accuracy or 0.0)
        return f"{self.labels[place]}: {end}, {seconds(float(np.median(line.epoch_s)))} an epoch"

    @property
    def settings(self) -> str:
        """What was trained, in a sentence; empty without a line."""
        if not self.lines:
            return ""
        found = settings_of([line.item for line in self.lines])
        return f"{'; '.join(f'{name} {value}' for name, value in found)}."


def takeaway(about: str, results: Results, data: Facts | None, sentence: str) -> Takeaway:
    """Of a run, as its charts show it.

    Args:
        about: What the experiment is about.
        results: Of the run, so far.
        data: What was trained on, where the run itself does not say so.
        sentence: What the page says of it.
    """
    frames = {
        "each epoch": lambda: _with_settings(results, results.epochs_frame()),
        "loss by step, as drawn": lambda: _with_settings(results, results.steps_frame()),
        "each training": results.summary_frame,
    }
    rows = {name: lambda make=make: _placed(make(), results.data or data) for name, make in frames.items()}
    return Takeaway(about, results.labels, results.lines, rows, results.data or data, sentence)


def takeaway_of_search(found: Mapping[Training, Curve], data: Facts | None) -> Takeaway:
    """Of a random search: a line for each setting that is trained."""
    lines = [Line(Item(training)) for training in found]
    for line, curve in zip(lines, found.values(), strict=True):
        line.finish(curve, cached=True)
    labels = [
        f"{one.network.label}, rate {format_rate(one.learning_rate)}, batch size {one.batch_size}" for one in found
    ]
    rows = {
        "each setting": lambda: _placed(search_frame(found), data),
        "loss by step, averaged": lambda: _placed(losses_frame(found), data),
    }
    return Takeaway("a random search", labels, lines, rows, data, "")


def _with_settings(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
    return rows.merge(results.summary_frame()[["line", *ABOUT]], on="line", how="left")


def _placed(rows: pd.DataFrame, data: Facts | None) -> pd.DataFrame:
    known = data or Facts("", "")
    return rows.assign(machine=this_machine().line, data=known.source, data_digest=known.digest)


def as_csv(rows: pd.DataFrame) -> bytes:
    """UTF-8, with the names of the columns in the first line."""
    return rows.to_csv(index=False, lineterminator="\n").encode()


def can_write_parquet() -> bool:
    """Whether what pandas writes Parquet with is installed."""
    return find_spec(PARQUET_NEEDS) is not None


def as_parquet(rows: pd.DataFrame) -> bytes:
    """Raises ValueError, a sentence, where `PARQUET_NEEDS` is not installed."""
    if not can_write_parquet():
        raise ValueError(WITHOUT_PARQUET)
    file = io.BytesIO()
    rows.to_parquet(file, engine=PARQUET_NEEDS, index=False)
    return file.getvalue()
