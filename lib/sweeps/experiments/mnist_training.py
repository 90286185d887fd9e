"""The first notebook's experiments: trainings that differ in one setting, random search, and readers' own data.

Own data may lead to other conclusions than MNIST. Does not depend on marimo.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.formatting import format_rate, listed
from lib.model.backends.base import Epoch
from lib.model.backends.registry import BACKENDS, Runtime, all_runtimes, unavailable, unsuited, versions
from lib.model.data.mnist import Facts
from lib.model.data.prepared import Prepared
from lib.model.spec import MNIST, DataSet, Network, Training
from lib.sweeps.experiments.lines import epoch_s
from lib.sweeps.storage.records import Curve, Key
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import AUTO, Continued, Finished, Options, Picked, ToTrain, updates
from lib.sweeps.workers.engine import Engine, read
from lib.sweeps.workers.messages import Item, Note, Progress, TrainingFailed, note_of
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Verdict, compared

if TYPE_CHECKING:
    import pandas as pd

# What lines may differ in, with the experiment's name, the label of a line, and the strategy of the sweep.
AXES: dict[str, tuple[str, Callable[[Item], str], str]] = {
    "learning rate": ("learning-rate", lambda item: format_rate(item.training.learning_rate), AUTO),
    "batch size": ("batch-size", lambda item: f"{item.training.batch_size}", "sequential"),
    "hidden layers": ("depth", lambda item: item.training.network.label, "sequential"),
    "backend": ("backend", lambda item: item.runtime.label, "sequential"),
}
MOST_NAMED = 16  # a search has hundreds of networks


@dataclass(frozen=True)
class Experiment:
    name: str
    items: tuple[Item, ...]
    labels: tuple[str, ...]
    ordered_by: str
    strategy: str = "sequential"  # of the sweep; sequential where lines are compared by their seconds
    target: float = field(default=0.95, compare=False)  # validation accuracy, 0 to 1, for the time to reach it
    draw: tuple[Callable[..., Any], ...] = field(default=(), compare=False)  # draw its charts from it and its results
    say: Callable[..., str] | None = field(default=None, compare=False)  # states the conclusion of finished trainings

    @classmethod
    def by(cls, axis: str, jobs: Iterable[Item], target: float = 0.95) -> "Experiment":
        """Build an experiment whose lines differ in one setting.

        Args:
            axis: A key of `AXES`.
            jobs: The trainings, in the order of the lines.
            target: Validation accuracy, 0 to 1.

        Raises:
            ValueError: There is no training, two lines have the same label, or a backend cannot run here; the message
                is a sentence to show.
        """
        items = tuple(jobs)
        name, label, strategy = AXES[axis]
        labels = [label(item) for item in items]
        if not labels or len(labels) != len(set(labels)):
            raise ValueError(f"{axis}: expected different values, got {', '.join(labels) or 'none'}; choose more")
        for runtime in {item.runtime: None for item in items}:
            if (gap := unavailable(runtime)) is not None:
                raise ValueError(
                    f"{runtime.label} cannot run here: {gap.reason}; {gap.remedy}, or choose another backend"
                )
        return cls(name, items, tuple(labels), axis, strategy, target)

    def kept(self, keep: Callable[[Item], bool]) -> "Experiment":
        """Return the experiment with only the lines that `keep` accepts."""
        places = [place for place, item in enumerate(self.items) if keep(item)]
        items, labels = (tuple(every[place] for place in places) for every in (self.items, self.labels))
        return replace(self, items=items, labels=labels)

    @property
    def data(self) -> DataSet:
        return self.items[0].training.data


def every_runtime() -> list[Runtime]:
    return [one for one in all_runtimes() if unavailable(one) is None and BACKENDS[one.backend].whole_epochs]


def missing_backends() -> list[tuple[Runtime, str, str]]:
    return [(runtime, gap.reason, gap.remedy) for runtime in all_runtimes() if (gap := unavailable(runtime))]


def settings_of(items: Sequence[Item]) -> list[tuple[str, str]]:
    """Return each setting's name with its value, its range, or its different values."""
    trainings = [item.training for item in items]
    return [
        ("learning rate", _range([one.learning_rate for one in trainings], format_rate)),
        ("batch size", _range([one.batch_size for one in trainings], "{:,}".format)),
        ("epochs", _range([one.epochs for one in trainings], str)),
        ("hidden layers", _each(one.network.label for one in trainings)),
        ("trained by", _each(item.runtime.label for item in items)),
        ("number of trainings", f"{len(items):,}"),
    ]


def _range(found: Sequence[Any], written: Callable[[Any], str]) -> str:
    low, high = min(found), max(found)
    return written(low) if low == high else f"{written(low)} to {written(high)}"


def _each(names: Iterable[str]) -> str:
    different = list(dict.fromkeys(names))
    return " / ".join(different) if len(different) <= MOST_NAMED else f"{len(different):,} different"


DIMENSIONS = ("learning_rate", "batch_size", "width", "depth")


@dataclass(frozen=True)
class Space:
    """The search space: learning rates are uniform on a log scale, other settings come from their lists.

    Random search beats a grid when few settings matter: Bergstra and Bengio, “Random search for hyper-parameter
    optimization”, 2012.

    Raises:
        ValueError: A list is empty.
    """

    rates: tuple[float, float] = (0.01, 1.0)  # the smaller first
    batch_sizes: tuple[int, ...] = (32, 128, 512)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "widths", "depths"):
            if not getattr(self, name):
                raise ValueError(
                    f"{name.replace('_', ' ')}: expected at least one, got none; choose some from the list"
                )

    @property
    def size(self) -> int:
        """Number of different settings; learning rates are rounded to three digits."""
        rates = _place(self.rates[1]) - _place(self.rates[0]) + 1
        return rates * len(set(self.batch_sizes)) * len(set(self.widths)) * len(set(self.depths))


def _place(rate: float) -> int:
    """Return a rate's rank among all rates with three significant digits."""
    digits, exponent = f"{rate:.2e}".split("e")
    return 900 * int(exponent) + round(100 * float(digits))


def draw(space: Space, settings: int, epochs: int, seed: int) -> list[Training]:
    """Draw distinct random settings as trainings; with the same seed, a longer draw begins with the shorter one.

    All layers of a network have the same width, so a setting is four numbers. All trainings use the same seed, so only
    the setting differs.

    Args:
        space: The search space.
        settings: Number of settings.
        epochs: Epochs per training.
        seed: Seed of the draw, not of the trainings.

    Raises:
        ValueError: The space has fewer different settings.
    """
    if settings > space.size:
        raise ValueError(
            f"settings: expected at most {space.size:,}, because these ranges contain no more, got"
            f" {settings:,}; widen a range"
        )
    rng = np.random.default_rng(seed)
    low, high = np.log(space.rates)
    found: dict[Training, None] = {}
    while len(found) < settings:
        rate = float(f"{np.exp(rng.uniform(low, high)):.2e}")
        size, width, depth = (int(rng.choice(of)) for of in (space.batch_sizes, space.widths, space.depths))
        found[Training(Network((width,) * depth), rate, size, epochs)] = None
    return list(found)


def search(
    trainings: Sequence[Training],
    runtime: Runtime,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    strategy: str | None = None,
) -> Iterator[Finished | Picked | Note]:
    """Train the settings; without a strategy, only look up stored ones.

    Raises what `lib.sweeps.sweep.updates` raises.

    Args:
        trainings: At least one.
        runtime: Trains them.
        engine: Its workers train.
        store: Where curves are looked up and stored.
        cancel: Ends the search early.
        request: Viewer and priority in the queue.
        strategy: Key of a strategy, or `auto`; None trains nothing.

    Yields:
        `Finished` for each setting, `Picked`, and notes on progress.
    """
    items, options = [Item(training, runtime) for training in trainings], Options(strategy or AUTO)
    total = sum(training.epochs for training in trainings)
    done, began = 0, time.monotonic()
    for update in updates(items, engine, store, cancel, options, request):
        if isinstance(update, Finished | Picked):
            yield update
        if isinstance(update, Continued) or (isinstance(update, Finished) and update.cached):
            done += len(update.curve.epochs)
        elif isinstance(update, Progress) and isinstance(update.event, Epoch):
            done += 1
            yield Note(_how_far(done, total, time.monotonic() - began))
        elif isinstance(update, ToTrain):
            if strategy is None:
                return
            began = time.monotonic()
        elif not isinstance(update, Finished | Picked) and (note := note_of(update)) is not None:  # type: ignore[arg-type]
            yield note


def _how_far(done: int, total: int, spent_s: float) -> str:
    left_s = spent_s / done * (total - done)
    return f"{done:,} of {total:,} epochs" + (f", about {left_s:.0f} s left" if spent_s > 1 and done < total else "")


def search_frame(found: Mapping[Training, Curve]) -> "pd.DataFrame":
    """Return one row per finished setting.

    Columns: `line` (from 0, in the order of `found`), those of `DIMENSIONS`, `epochs` (trained), `accuracy` (on the
    validation rows), `diverged`, `train_s`, and `chance`, the accuracy up to which a network has learned nothing.
    """
    import pandas as pd  # here, because bare machines without it measure steps, too

    rows = [
        {
            "line": line,
            "learning_rate": training.learning_rate,
            "batch_size": training.batch_size,
            "width": max(training.network.hidden, default=0),
            "depth": len(training.network.hidden),
            "epochs": len(curve.epochs),
            "accuracy": curve.epochs[-1].validation_accuracy,
            "diverged": curve.epochs[-1].diverged_step is not None,
            "train_s": sum(epoch.train_s for epoch in curve.epochs),
            "chance": training.data.chance,
        }
        for line, (training, curve) in enumerate(found.items())
    ]
    columns = ["line", *DIMENSIONS, "epochs", "accuracy", "diverged", "train_s", "chance"]
    return pd.DataFrame(rows, columns=columns)


def losses_frame(found: Mapping[Training, Curve], points: int = 60) -> "pd.DataFrame":
    """Return the losses of all settings, averaged over common intervals.

    An interval without a step takes the loss of a neighbouring step. Losses that are not finite stay so; epochs that
    were not trained have no rows.

    Args:
        found: Curves by training.
        points: Rows of the training with the most epochs; shorter ones have proportionally fewer.

    Returns:
        A row per interval: `model` (index in `found`), `step` (middle of the interval, in epochs) and `loss`.
    """
    import pandas as pd  # as in `search_frame`

    longest = max((training.epochs for training in found), default=1)
    parts = []
    for number, curve in enumerate(found.values()):
        n_points = max(1, round(points * len(curve.epochs) / longest))
        edges = np.linspace(0, len(curve.losses), n_points + 1).round().astype(int)
        # An interval without a step takes the loss of the next step, or of the last.
        sums = np.add.reduceat(curve.losses.astype(float), np.minimum(edges[:-1], len(curve.losses) - 1))
        counts = np.maximum(np.diff(edges), 1)
        steps = (np.arange(n_points) + 0.5) * longest / points
        parts.append(pd.DataFrame({"model": number, "step": steps, "loss": sums / counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["model", "step", "loss"])


def bring(
    files: Sequence[tuple[str, bytes | Path]],
    built_in: str,
    label: str,
    cancel: Cancel,
    request: Request | None = None,
    niceness: int = 0,
) -> Iterator[Prepared | Note]:
    """Read a reader's files, or a data set of scikit-learn's, in a separate process, and save them ready for training.

    Args:
        files: Name, and content or path, of each file.
        built_in: Name of scikit-learn's data set, used if there are no files.
        label: A table's label column; empty to guess it.
        cancel: Ends the reading.
        request: The viewer's request; None: a new viewer.
        niceness: Of the process, relative to this one.

    Raises:
        TrainingFailed: The data cannot be trained on; the message says why.
    """
    what = listed([name for name, _ in files]) if files else built_in.replace("_", " ")
    with tempfile.TemporaryDirectory(prefix="own-") as folder:
        named = []
        for number, (name, content) in enumerate(files):
            path = content if isinstance(content, Path) else Path(folder) / str(number)
            if not isinstance(content, Path):
                path.write_bytes(content)
            named.append((name, str(path)))
        try:
            found = yield from read(
                "lib.model.data.reading",
                named,
                built_in,
                label,
                cancel=cancel,
                request=request,
                niceness=niceness,
                doing=f"reading {what}",
            )
        except TrainingFailed as why:
            raise TrainingFailed(f"{what} cannot be trained on: {why}.") from None
        if isinstance(found, Prepared):
            yield found


def on(own: Prepared | None, training: Training) -> Training:
    """Return the training moved to these data; unchanged if there are none.

    Raises:
        ValueError: The batch size is larger than the data.
    """
    if own is None:
        return training
    return replace(training, network=own.network(training.network.hidden), data=own.data_set)


def experiment_on(own: Prepared | None, experiment: Experiment) -> Experiment:
    """Return the experiment moved to these data; unchanged if there are none.

    Lines whose runtime does not suit the data are dropped where backends are compared, else moved to the default.

    Raises:
        ValueError: As `on`.
    """
    moved = replace(experiment, items=tuple(Item(on(own, one.training), one.runtime) for one in experiment.items))
    unsuited = {runtime for runtime, _, _ in not_used(own, [item.runtime for item in moved.items])}
    if experiment.ordered_by == "backend":
        return moved.kept(lambda item: item.runtime not in unsuited)
    items = (replace(one, runtime=Runtime()) if one.runtime in unsuited else one for one in moved.items)
    return replace(moved, items=tuple(items))


def not_used(own: Prepared | None, runtimes: Iterable[Runtime]) -> list[tuple[Runtime, str, str]]:
    zeros = own.about.zeros if own is not None else None
    return [(one, gap.reason, gap.remedy) for one in dict.fromkeys(runtimes) if (gap := unsuited(one, zeros))]


def that_fit(own: Prepared | None, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes for which these data have enough training rows.

    Raises:
        ValueError: None fits.
    """
    most = MNIST.n_train if own is None else own.about.n_train
    if batch_sizes and min(batch_sizes) > most:
        raise ValueError(
            f"batch sizes: expected one of at most {most:,} (the number of training rows), got only larger ones; choose"
            " a smaller one"
        )
    return tuple(size for size in batch_sizes if size <= most)


def winners(experiment: Experiment, curves: Sequence[Curve], n_validation: int) -> list[str]:
    """Return the labels of the winners: the fastest epochs where backends are compared, else the highest accuracy.

    Several lines win if the measurements do not show them to be worse than the best. `lib.timing.comparison` judges
    times. Accuracies within a standard error of the best count as equal to it (the one-standard-error rule: Breiman et
    al., Classification and Regression Trees, 1984, section 3.4.3).

    Args:
        experiment: The trained experiment.
        curves: One per line, in order.
        n_validation: Number of rows behind each accuracy.
    """
    labels = experiment.labels
    if experiment.name == "backend":
        times = [epoch_s(curve.epochs) for curve in curves]
        best = min(range(len(times)), key=lambda one: float(np.median(times[one])))
        tied = [
            one == best or compared(times[best], times[one], paired=False).verdict is not Verdict.FASTER
            for one in range(len(times))
        ]
        return [label for label, is_tied in zip(labels, tied, strict=True) if is_tied]
    diverged = [curve.epochs[-1].diverged_step is not None for curve in curves]
    found = np.where(diverged, 0.0, [curve.epochs[-1].validation_accuracy for curve in curves])
    top = float(found.max())
    error = (top * (1 - top) / n_validation) ** 0.5
    return [labels[place] for place in np.flatnonzero(found >= top - error)]


def on_mnist(experiment: Experiment, store: Store, mnist: Facts | None) -> list[Curve] | None:
    """Return the stored curve of each line at the same settings on MNIST; None if one is missing.

    Args:
        experiment: An experiment on other data.
        store: Where results are looked up; nothing is trained.
        mnist: The images of MNIST's results; None while unknown.
    """
    if mnist is None:
        return None
    items = moved_to_mnist(experiment).items
    found = [store.get(Key(one.training, one.runtime, mnist.digest, versions(one.runtime))) for one in items]
    curves = [curve for curve in found if curve is not None]
    return curves if len(curves) == len(items) else None


def moved_to_mnist(experiment: Experiment) -> Experiment:
    """Return an experiment on other data with the same settings on MNIST."""
    items = tuple(
        Item(replace(one.training, network=Network(one.training.network.hidden), data=MNIST), one.runtime)
        for one in experiment.items
    )
    return replace(experiment, items=items)


def both_winners(
    experiment: Experiment, curves: Sequence[Curve | None], store: Store, mnist: Facts | None
) -> tuple[list[str], list[str] | None] | None:
    """Return the winners on this experiment's data, and on MNIST at the same settings if stored, else None.

    `curves` has one entry per line. Return None while a line is unfinished.
    """
    if any(curve is None for curve in curves):
        return None
    own = winners(experiment, [curve for curve in curves if curve is not None], experiment.data.n_validation)
    stored = on_mnist(experiment, store, mnist)
    return own, winners(experiment, stored, MNIST.n_validation) if stored is not None else None
