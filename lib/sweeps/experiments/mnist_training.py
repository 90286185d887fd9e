"""The first notebook's experiments, and how they are drawn: trainings that differ in one thing; a random search, whose
settings are drawn from ranges; and data that a reader brings, which may change what MNIST's results say.

Knows nothing of marimo.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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

# What lines may differ in: the experiment's name, what a line is called, and the strategy of its sweep.
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
    strategy: str = "sequential"  # of the sweep: where seconds are shown side by side, each is trained by itself
    target: float = field(default=0.95, compare=False)  # validation accuracy, 0 to 1, where seconds to it are shown
    draw: tuple[Callable[..., Any], ...] = field(default=(), compare=False)  # its charts, of itself and its results
    say: Callable[..., str] | None = field(default=None, compare=False)  # what its finished trainings show

    @classmethod
    def by(cls, axis: str, jobs: Iterable[Item], target: float = 0.95) -> "Experiment":
        """The trainings as lines that differ in one thing.

        Args:
            axis: A key of `AXES`.
            jobs: In the order of the lines.
            target: Validation accuracy, 0 to 1.

        Raises:
            ValueError: There is no training, two lines have the same label, or a backend cannot run here; the text is
                a sentence for the person.
        """
        items = tuple(jobs)
        name, label, strategy = AXES[axis]
        labels = [label(item) for item in items]
        if not labels or len(labels) != len(set(labels)):
            raise ValueError(f"{axis}: expected different values, got {', '.join(labels) or 'none'}; choose some more")
        for runtime in {item.runtime: None for item in items}:
            if (gap := unavailable(runtime)) is not None:
                raise ValueError(
                    f"{runtime.label} cannot run here: {gap.reason}; {gap.remedy}, or choose another backend"
                )
        return cls(name, items, tuple(labels), axis, strategy, target)

    def kept(self, keep: Callable[[Item], bool]) -> "Experiment":
        """Without the lines whose training is not to be kept."""
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
    """What is trained: each quantity with its value, or from the least to the greatest."""
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
    """What settings are drawn from: learning rates evenly on a logarithmic scale, the others from their lists.

    Random beats a grid where few of the settings matter: Bergstra and Bengio, “Random search for hyper-parameter
    optimization”, 2012.

    Raises:
        ValueError: The rates are not in order and above 0, or a list is empty.
    """

    rates: tuple[float, float] = (0.01, 1.0)
    batch_sizes: tuple[int, ...] = (32, 128, 512)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        if not 0 < self.rates[0] <= self.rates[1]:
            raise ValueError(
                f"learning rates: expected the smaller first, above 0, got {self.rates[0]:g} to {self.rates[1]:g}; swap"
                " them"
            )
        for name in ("batch_sizes", "widths", "depths"):
            if not getattr(self, name):
                raise ValueError(
                    f"{name.replace('_', ' ')}: expected at least one, got none; choose some from the list"
                )

    @property
    def size(self) -> int:
        """How many different settings can be drawn; learning rates are rounded to three digits."""
        rates = _place(self.rates[1]) - _place(self.rates[0]) + 1
        return rates * len(set(self.batch_sizes)) * len(set(self.widths)) * len(set(self.depths))


def _place(rate: float) -> int:
    """Where a rate stands among all that have three digits, in order."""
    digits, exponent = f"{rate:.2e}".split("e")
    return 900 * int(exponent) + round(100 * float(digits))


def draw(space: Space, settings: int, epochs: int, seed: int) -> list[Training]:
    """Different trainings with random settings, the same for the same seed; a longer draw begins with the shorter one.

    All layers have one width, so that a setting is four numbers. All start from the same seed: only the setting
    differs.

    Args:
        space: What is drawn from.
        settings: How many.
        epochs: Of each training.
        seed: Of the draw, not of the trainings.

    Raises:
        ValueError: There are not so many different settings in the space.
    """
    if settings > space.size:
        raise ValueError(
            f"settings: expected at most {space.size:,}, for these ranges hold no more different ones, got"
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
    """Train the settings; without a strategy only find those that are stored.

    Raises what `lib.sweeps.sweep.updates` raises.

    Args:
        trainings: At least one.
        runtime: What trains them.
        engine: Its workers train.
        store: Where curves are looked up and stored.
        cancel: Ends it early.
        request: For whom, and how urgently, turns are wanted.
        strategy: Key of a strategy, or `auto`; None: nothing is trained.

    Yields:
        `Finished` for each setting, `Picked`, and notes that say how far it is.
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


cached = partial(search, strategy=None)


def _how_far(done: int, total: int, spent_s: float) -> str:
    left_s = spent_s / done * (total - done)
    return f"{done:,} of {total:,} epochs" + (f", about {left_s:.0f} s left" if spent_s > 1 and done < total else "")


def search_frame(found: Mapping[Training, Curve]) -> "pd.DataFrame":
    """A row for each finished setting: its four numbers, epochs, validation accuracy, whether it diverged, and seconds.

    Columns: `line` (from 0, in the order of `found`), those of `DIMENSIONS`, `epochs` (as many as were trained),
    `accuracy`, `diverged`, `train_s`, and `chance`, the accuracy up to which a network did not learn.
    """
    import pandas as pd  # here, because steps are also measured on machines that have NumPy alone

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
    """Losses of all settings at common places: a row for each place, with `model`, `step` and `loss`.

    Each loss is the mean over its part of the training, or that of a neighbouring step where it has none; one that is
    not finite stays so, and what was not trained is missing.

    Args:
        found: Curves by training.
        points: Rows of the training with the most epochs; a shorter one has its share of them.

    Returns:
        `model` is the place in `found`, from 0; `step` the middle of the part, in epochs.
    """
    import pandas as pd  # as in `search_frame`

    longest = max((training.epochs for training in found), default=1)
    parts = []
    for number, curve in enumerate(found.values()):
        n_epochs = len(curve.epochs)
        n_points = max(1, round(points * n_epochs / longest))
        edges = np.linspace(0, len(curve.losses), n_points + 1).round().astype(int)
        # A part without a step has the loss of the next one, or of the last.
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
    """Read what was brought, or a set of scikit-learn's, in a process of its own, and save it ready to be trained on.

    Args:
        files: Name, and content or path, of each file.
        built_in: Name of scikit-learn's set, where there are no files.
        label: The column of labels of a table; empty to have it guessed.
        cancel: Ends the reading.
        request: For whom; None: a viewer of its own.
        niceness: Of the process, above this one's.

    Raises:
        TrainingFailed: It cannot be trained on; the text says why.
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
    """The same training on these data; as it is where there are none.

    Raises:
        ValueError: Its batch size is larger than the data.
    """
    if own is None:
        return training
    return replace(training, network=own.network(training.network.hidden), data=own.data_set)


def experiment_on(own: Prepared | None, experiment: Experiment) -> Experiment:
    """The same experiment on these data; as it is where there are none.

    Lines of a runtime that they do not suit are left out where runtimes are compared, else trained by the default.

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
    """The batch sizes for which these data have enough rows.

    Raises:
        ValueError: None of them fits.
    """
    most = MNIST.n_train if own is None else own.about.n_train
    if batch_sizes and min(batch_sizes) > most:
        raise ValueError(
            f"batch sizes: expected one of at most {most:,} (the number of training rows), got only larger ones; choose"
            " a smaller one"
        )
    return tuple(size for size in batch_sizes if size <= most)


def winners(experiment: Experiment, curves: Sequence[Curve], n_validation: int) -> list[str]:
    """Labels of who wins: the quickest epochs where backends are compared, else the highest accuracy.

    They are those that nothing measured shows to be worse than the best; several where it is undecided.

    Times are judged by `lib.timing.comparison`. Of accuracies, those within a standard error of the best count as equal
    to it (the one-standard-error rule: Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).

    Args:
        experiment: What was trained.
        curves: Of each line, in their order.
        n_validation: Rows that the accuracies are of.
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
    """What is stored for MNIST at the same settings: a curve for each line; None where one is missing.

    Args:
        experiment: On other data.
        store: Where results are looked up; nothing is trained.
        mnist: Which images MNIST's results are of; None while that is not known.
    """
    if mnist is None:
        return None
    items = moved_to_mnist(experiment).items
    found = [store.get(Key(one.training, one.runtime, mnist.digest, versions(one.runtime))) for one in items]
    curves = [curve for curve in found if curve is not None]
    return curves if len(curves) == len(items) else None


def moved_to_mnist(experiment: Experiment) -> Experiment:
    """The lines that an experiment on other data is about, at the same settings on MNIST."""
    items = tuple(
        Item(replace(one.training, network=Network(one.training.network.hidden), data=MNIST), one.runtime)
        for one in experiment.items
    )
    return replace(experiment, items=items)


def both_winners(
    experiment: Experiment, curves: Sequence[Curve | None], store: Store, mnist: Facts | None
) -> tuple[list[str], list[str] | None] | None:
    """Who wins on the data of this experiment, and who on MNIST at the same settings, where that is stored.

    None while a line is not finished; `curves` are those of the lines that the experiment is about.
    """
    if any(curve is None for curve in curves):
        return None
    own = winners(experiment, [curve for curve in curves if curve is not None], experiment.data.n_validation)
    stored = on_mnist(experiment, store, mnist)
    return own, winners(experiment, stored, MNIST.n_validation) if stored is not None else None
