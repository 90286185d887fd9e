"""The four experiments of the notebook: from the values of the controls to trainings.

Knows nothing of marimo: the notebook, the script and the benchmarks all use these functions. Each builder raises
ValueError with one sentence where its values make no experiment, or where the backend cannot run here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.backends.registry import BACKENDS, DEFAULT, Runtime, all_runtimes, unavailable
from lib.formatting import format_rate
from lib.spec import MAX_RATE, MIN_RATE, Network, Training
from lib.workers.messages import Item
from lib.sweeps.strategies import AUTO

MAX_LINES = 16


@dataclass(frozen=True)
class Experiment:
    """What is trained, what each line is called, and what the lines differ in (for the charts)."""

    name: str
    items: tuple[Item, ...]
    labels: tuple[str, ...]
    ordered_by: str
    n_compared: int  # the lines after these are the same trainings by the default runtime, for their seconds
    strategy: str = "sequential"  # of the sweep: where seconds are shown side by side, each is trained by itself

    @property
    def compared(self) -> range:
        """Positions of the lines that the experiment is about."""
        return range(self.n_compared)


def rates_between(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` learning rates evenly spaced on a log scale, to two digits; ends included.

    Raises ValueError where the ends are not in order, outside the limits of `lib.spec` or equal, or there are fewer
    than 2 or more than `MAX_LINES` rates.

    >>> rates_between(0.001, 1, 4)
    (0.001, 0.01, 0.1, 1.0)
    """
    if not MIN_RATE <= low <= high <= MAX_RATE:
        raise ValueError(
            f"learning rates: expected {MIN_RATE:g} to {MAX_RATE:g}, got {low:g} to {high:g}; move the range inside"
        )
    if not 2 <= count <= MAX_LINES:
        raise ValueError(f"number of learning rates: expected 2 to {MAX_LINES}, got {count}; choose one in between")
    if low == high:
        raise ValueError(f"learning rates: expected a range, got only {low:g}; move the two ends of the slider apart")
    return tuple(dict.fromkeys(float(f"{rate:.2g}") for rate in np.geomspace(low, high, count)))


def learning_rate(
    rates: Sequence[float], *, epochs: int, batch_size: int, hidden: str, backend: str = DEFAULT
) -> Experiment:
    """One network by several learning rates, all different; `hidden` as `Network.parse` reads it."""
    network = Network.parse(hidden)
    trainings = [Training(network, rate, batch_size, epochs) for rate in rates]
    return _experiment(
        "learning-rate", trainings, [format_rate(rate) for rate in rates], "learning rate", backend, AUTO
    )


def batch_size(sizes: Sequence[int], *, epochs: int, rate: float, hidden: str, backend: str = DEFAULT) -> Experiment:
    """One network by several batch sizes, in their order; `hidden` as `Network.parse` reads it."""
    if not sizes:
        raise ValueError("batch sizes: expected at least one, got none; choose some from the list")
    network = Network.parse(hidden)
    trainings = [Training(network, rate, size, epochs) for size in sorted(set(sizes))]
    return _experiment("batch-size", trainings, [f"{t.batch_size}" for t in trainings], "batch size", backend)


def depth(
    chosen: Sequence[str], *, own: str = "", epochs: int, rate: float, batch_size: int, backend: str = DEFAULT
) -> Experiment:
    """Several networks: those `chosen`, as `Network.parse` reads each, and `own`, as `parse_networks` reads them."""
    networks = list(dict.fromkeys([*map(Network.parse, chosen), *parse_networks(own)]))
    if not networks:
        raise ValueError(
            "hidden layers: expected at least one network, got none; choose one or write its widths, such as 256,"
            " 128, 64"
        )
    if len(networks) > MAX_LINES:
        raise ValueError(f"networks: expected at most {MAX_LINES}, got {len(networks)}; remove some")
    trainings = [Training(network, rate, batch_size, epochs) for network in networks]
    return _experiment("depth", trainings, [network.label for network in networks], "hidden layers", backend)


def parse_networks(text: str) -> list[Network]:
    """Networks separated by semicolons; `none` is the one without a hidden layer. Raises as `Network.parse` does.

    >>> [network.hidden for network in parse_networks("256, 64; none")]
    [(256, 64), ()]
    """
    parts = map(str.strip, text.split(";"))
    return [Network.parse("" if part.lower() == "none" else part) for part in parts if part]


def backends(*, batch_size: int, epochs: int, rate: float, hidden: str) -> Experiment:
    """The same training by every runtime that can run here; `hidden` as `Network.parse` reads it."""
    training = Training(Network.parse(hidden), rate, batch_size, epochs)
    runtimes = [
        runtime for runtime in all_runtimes() if unavailable(runtime) is None and BACKENDS[runtime.backend].whole_epochs
    ]
    items = tuple(Item(training, runtime) for runtime in runtimes)
    return Experiment("backend", items, tuple(runtime.label for runtime in runtimes), "backend", len(items))


def missing_backends() -> list[tuple[Runtime, str, str]]:
    """The runtimes that cannot run here, each with the reason and the remedy."""
    return [(runtime, gap.reason, gap.remedy) for runtime in all_runtimes() if (gap := unavailable(runtime))]


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
