"""The four experiments of the notebook: from the values of the controls to trainings.

Knows nothing of marimo: the notebook, the script and the benchmarks all use these functions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lib.backends.registry import BACKENDS, DEFAULT, Runtime, all_runtimes, unavailable
from lib.experiments.axes import batch_sizes_of, networks_of
from lib.formatting import format_rate
from lib.spec import DataSet, Network, Training
from lib.workers.messages import Item
from lib.sweeps.strategies import AUTO

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

    @property
    def data(self) -> DataSet:
        """What all of its trainings are trained on."""
        return self.items[0].training.data

    @property
    def compared(self) -> range:
        """Positions of the lines that the experiment is about."""
        return range(self.n_compared)


def learning_rate(
    rates: Sequence[float], *, epochs: int, batch_size: int, hidden: str, backend: str = DEFAULT
) -> Experiment:
    """One network trained with several learning rates.

    Args:
        rates: In the order of the lines.
        epochs: Of each training.
        batch_size: Images per step.
        hidden: Widths of the hidden layers, as `Network.parse` reads them.
        backend: A key of `BACKENDS`; with any but the default, the same trainings by the default follow, for
            comparison.

    Raises:
        ValueError: A value is out of its limits, two rates have the same label, or the backend cannot run here; the
            text is a sentence for the person.
    """
    network = Network.parse(hidden)
    trainings = [Training(network, rate, batch_size, epochs) for rate in rates]
    return _experiment(
        "learning-rate", trainings, [format_rate(rate) for rate in rates], "learning rate", backend, AUTO
    )


def batch_size(sizes: Sequence[int], *, epochs: int, rate: float, hidden: str, backend: str = DEFAULT) -> Experiment:
    """One network trained with several batch sizes, smallest first.

    Args:
        sizes: Images per step, in any order; equal ones are trained once.
        epochs: Of each training.
        rate: Learning rate.
        hidden: Widths of the hidden layers, as `Network.parse` reads them.
        backend: A key of `BACKENDS`; with any but the default, the same trainings by the default follow, for
            comparison.

    Raises:
        ValueError: There is no size, a value is out of its limits, or the backend cannot run here; the text is a
            sentence for the person.
    """
    network = Network.parse(hidden)
    trainings = [Training(network, rate, size, epochs) for size in batch_sizes_of(sizes)]
    return _experiment("batch-size", trainings, [f"{t.batch_size}" for t in trainings], "batch size", backend)


def depth(
    chosen: Sequence[str], *, own: str = "", epochs: int, rate: float, batch_size: int, backend: str = DEFAULT
) -> Experiment:
    """Several networks trained alike; equal ones once.

    Args:
        chosen: Networks, each as `Network.parse` reads it.
        own: Further ones, as `parse_networks` reads them; empty for none.
        epochs: Of each training.
        rate: Learning rate.
        batch_size: Images per step.
        backend: A key of `BACKENDS`; with any but the default, the same trainings by the default follow, for
            comparison.

    Raises:
        ValueError: There is no network or more than `MAX_LINES`, one cannot be read, a value is out of its limits, or
            the backend cannot run here; the text is a sentence for the person.
    """
    networks = networks_of(chosen, own)
    trainings = [Training(network, rate, batch_size, epochs) for network in networks]
    return _experiment("depth", trainings, [network.label for network in networks], "hidden layers", backend)


def backends(*, batch_size: int, epochs: int, rate: float, hidden: str) -> Experiment:
    """The same training by every runtime that can run here and trains whole epochs.

    Args:
        batch_size: Images per step.
        epochs: Of the training.
        rate: Learning rate.
        hidden: Widths of the hidden layers, as `Network.parse` reads them.

    Raises:
        ValueError: A value is out of its limits; the text is a sentence for the person.
    """
    training = Training(Network.parse(hidden), rate, batch_size, epochs)
    runtimes = [
        runtime for runtime in all_runtimes() if unavailable(runtime) is None and BACKENDS[runtime.backend].whole_epochs
    ]
    items = tuple(Item(training, runtime) for runtime in runtimes)
    return Experiment("backend", items, tuple(runtime.label for runtime in runtimes), "backend", len(items))


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


def _experiment(
    name: str, trainings: list[Training], labels: list[str], ordered_by: str, backend: str, strategy: str = "sequential"
) -> Experiment:
    if len(labels) != len(set(labels)):
        raise ValueError(f"{ordered_by}: expected different values, got {', '.join(labels)}; widen the range")
    runtime = Runtime(backend)
    if (gap := unavailable(runtime)) is not None:
        raise ValueError(f"{runtime.label} cannot run here: {gap.reason}; {gap.remedy}, or choose another backend")
    items = tuple(Item(training, runtime) for training in trainings)
    if backend != DEFAULT:  # the same trainings by the default runtime, for the seconds side by side
        items += tuple(Item(training, Runtime()) for training in trainings)
        labels = labels + [f"{label} ({BACKENDS[DEFAULT].label})" for label in labels]
        strategy = "sequential"
    return Experiment(name, items, tuple(labels), ordered_by, len(trainings), strategy)
