"""An experiment: trainings that differ in one thing, and how they are drawn. Knows nothing of marimo."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime, all_runtimes, unavailable
from lib.formatting import format_rate
from lib.model.spec import DataSet
from lib.sweeps.workers.messages import Item
from lib.sweeps.strategies import AUTO

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
    """What is trained, the label of each line, and what the lines differ in (for the charts)."""

    name: str
    items: tuple[Item, ...]
    labels: tuple[str, ...]
    ordered_by: str
    n_compared: int  # the lines after these are the same trainings by the default runtime, for their seconds
    strategy: str = "sequential"  # of the sweep: where seconds are shown side by side, each is trained by itself
    target: float = field(default=0.95, compare=False)  # validation accuracy, 0 to 1, where seconds to it are shown
    draw: tuple[Callable[..., Any], ...] = field(default=(), compare=False)  # its charts, of itself and its results
    say: Callable[..., str] | None = field(default=None, compare=False)  # what its finished trainings show

    @classmethod
    def by(cls, axis: str, jobs: Iterable[Item], target: float = 0.95) -> "Experiment":
        """The trainings as lines that differ in one thing.

        Args:
            axis: A key of `AXES`.
            jobs: In the order of the lines; where they are trained by another backend than the default, the same
                trainings by the default follow, for comparison.
            target: Validation accuracy, 0 to 1.

        Raises:
            ValueError: There is no training, two lines have the same label, or a backend cannot run here; the text is
                a sentence for the person.
        """
        compared = tuple(jobs)
        name, label, strategy = AXES[axis]
        labels = [label(item) for item in compared]
        if not labels or len(labels) != len(set(labels)):
            raise ValueError(f"{axis}: expected different values, got {', '.join(labels) or 'none'}; choose some more")
        for runtime in {item.runtime: None for item in compared}:
            if (gap := unavailable(runtime)) is not None:
                raise ValueError(
                    f"{runtime.label} cannot run here: {gap.reason}; {gap.remedy}, or choose another backend"
                )
        items = compared
        if axis != "backend" and any(item.runtime != Runtime() for item in compared):
            items += tuple(Item(item.training, Runtime()) for item in compared)
            labels += [f"{one} ({BACKENDS[DEFAULT].label})" for one in labels]
            strategy = "sequential"
        return cls(name, items, tuple(labels), axis, len(compared), strategy, target)

    def kept(self, keep: Callable[[Item], bool]) -> "Experiment":
        """Without the lines whose training is not to be kept."""
        places = [place for place, item in enumerate(self.items) if keep(item)]
        items, labels = (tuple(every[place] for place in places) for every in (self.items, self.labels))
        return replace(self, items=items, labels=labels, n_compared=sum(place in self.compared for place in places))

    @property
    def data(self) -> DataSet:
        """What all of its trainings are trained on."""
        return self.items[0].training.data

    @property
    def compared(self) -> range:
        """Positions of the lines that the experiment is about."""
        return range(self.n_compared)


def every_runtime() -> list[Runtime]:
    """The runtimes that can run here and train whole epochs."""
    return [one for one in all_runtimes() if unavailable(one) is None and BACKENDS[one.backend].whole_epochs]


def missing_backends() -> list[tuple[Runtime, str, str]]:
    """The runtimes that cannot run here, each with the reason and the remedy."""
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
