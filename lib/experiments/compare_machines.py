"""Machines side by side: what each takes for a piece of work, what that costs, which is best, and how sure that is.

Which is faster is decided as everywhere (`lib.timing.comparison`): by the variation between repetitions of the race.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lib.backends.registry import DEFAULT, PRECISIONS, Runtime
from lib.experiments.recorded_machines import EXPERIMENTS, NETWORK, Machine, Seconds, exactly
from lib.experiments.time_to_accuracy import EPOCHS as TRIED
from lib.experiments.time_to_accuracy import RATES, Learned, Needed, needed
from lib.spec import Network, Training
from lib.timing.comparison import Comparison, Estimate, Verdict, between

ARTICLE_RUNTIME = "keras-tensorflow"
# The methods of `lib.experiments.parallel_sweeps` by what trains in them.
SWEEPS = {
    (DEFAULT, "cpu"): ("sequential", "processes", "vmap", "sharded", "stacks"),
    (DEFAULT, "gpu"): ("sequential-gpu", "vmap-gpu"),
    ("keras-tensorflow", "cpu"): ("keras-sequential", "keras-processes"),
}
TITLES = {
    "learning-rate": "learning rates, 4 × 3 epochs",
    "batch-size": "batch sizes 1, 32, 256 × 3 epochs",
    "depth": "depths, 4 × 3 epochs",
}


@dataclass(frozen=True)
class Best:
    """The fastest runtime of a machine for one piece of work, and the seconds that it takes."""

    machine: Machine
    runtime: Runtime
    seconds: Seconds

    def cost(self, prices: Mapping[str, float]) -> Seconds | None:
        """Dollars for the work, with their quartiles; None where the machine has no price, or a price of zero.

        Args:
            prices: Dollars per hour, by the machine's name.
        """
        price = prices.get(self.machine.name)
        return self.seconds.times(price / 3600) if price else None


Measure = Callable[[Machine, Runtime], Seconds | None]


@dataclass(frozen=True)
class Work:
    """A piece of work that machines are compared by; `of` gives its seconds, None where they are not known."""

    name: str
    of: Measure


def works(learned: Learned, target: float) -> list[Work]:
    """The pieces of work that machines are compared by, in the order of the table.

    Args:
        learned: Validation accuracies after each epoch, by training.
        target: Validation accuracy to reach, 0 to 1.
    """
    return [
        *(
            Work(f"an epoch at batch size {size:,}", lambda machine, runtime, size=size: machine.epoch(runtime, size))
            for size in (1, 32, 512, 4096)
        ),
        *(
            Work(TITLES[name], lambda machine, runtime, name=name: machine.experiment(name, runtime))
            for name in EXPERIMENTS
        ),
        Work("the sweep of five learning rates", _sweep),
        Work(f"to {target:.0%} accuracy", lambda machine, runtime: quickest_to(machine, runtime, learned, target)),
    ]


def _sweep(machine: Machine, runtime: Runtime) -> Seconds | None:
    """By the quickest of the strategies that were timed whole with this runtime."""
    return _quickest(machine.sweep(method) for method in SWEEPS.get((runtime.backend, runtime.device), ()))


def _quickest(times: Iterable[Seconds | None]) -> Seconds | None:
    return min((one for one in times if one is not None), key=lambda one: one.middle, default=None)


def best_runtime(machine: Machine, of: Measure, device: str | None = None) -> Best | None:
    """The fastest of a machine's float32 runtimes by median, on one device or on any; None where none has the figure.

    Args:
        machine: Whose runtimes are compared.
        of: Seconds of the work by a machine and runtime; None where they are not known.
        device: One of `ALL_DEVICES`; None for any.
    """
    known = [
        Best(machine, runtime, seconds)
        for runtime in machine.runtimes
        if runtime.precision == PRECISIONS[0]
        and device in (None, runtime.device)
        and (seconds := of(machine, runtime)) is not None
    ]
    return min(known, key=lambda best: best.seconds.middle, default=None)


def learned_from(machines: Sequence[Machine]) -> dict[Training, tuple[float, ...]]:
    """Validation accuracy after each epoch, by training: for each, the longest curve that any machine has.

    All runtimes and machines take the same steps, so it does not matter which one trained it.
    """
    found = {}
    for machine in machines:
        for row in machine.curves:
            values = json.loads(str(row["training"]))
            network = Network(tuple(values.pop("network")["hidden"]))
            accuracies = tuple(epoch["validation_accuracy"] for epoch in json.loads(str(row["epochs"])))
            training = Training(network, **values)
            if len(accuracies) > len(found.get(training, ())):
                found[training] = accuracies
    return found


def epochs_needed(learned: Learned, batch_size: int, target: float) -> Needed | None:
    """Epochs that the article's network needs to reach the target, over the judged seeds.

    None where a training of this batch size is missing. Curves are cut at the number of epochs that is tried.
    """
    cut = {t: a[: TRIED[t.batch_size]] for t, a in learned.items() if t.batch_size in TRIED}
    return needed(cut, NETWORK, batch_size, target)


def to_target(machine: Machine, runtime: Runtime, batch_size: int, learned: Learned, target: float) -> Seconds | None:
    """Seconds to an accuracy at one batch size: epochs of the judged runs, times an epoch with its evaluation.

    None where the epoch was not measured, the epochs were not counted, or no run reached the accuracy. The ends are the
    fewest epochs at the first quartile and the most epochs at the third; the relative errors of the epoch and of the
    number of epochs are added in quadrature.
    """
    epoch, counted = machine.epoch(runtime, batch_size), epochs_needed(learned, batch_size, target)
    if epoch is None or counted is None or not counted.reached:
        return None
    one = epoch.plus(exactly(machine.beside(runtime, batch_size, "evaluation_s")))
    least, middle, most = (counted.reached[i] for i in (0, len(counted.reached) // 2, -1))
    epochs = Estimate.of(counted.reached)  # their number varies too, from seed to seed
    error, n = math.hypot(one.estimate.error, epochs.error), min(one.estimate.n, epochs.n)
    estimate = replace(one.estimate.times(middle), error=error, n=n)
    return Seconds(one.low * least, one.middle * middle, one.high * most, epoch.n, estimate)


def quickest_to(machine: Machine, runtime: Runtime, learned: Learned, target: float) -> Seconds | None:
    """Seconds to an accuracy at the batch size with the smallest median; None where no batch size has a figure."""
    return _quickest(to_target(machine, runtime, size, learned, target) for size in RATES)


@dataclass(frozen=True)
class Judged:
    """One piece of work: each machine that has figures for it, fastest first, and the cheapest with a price."""

    work: Work
    by_speed: tuple[Best, ...]
    cheapest: Best | None

    @property
    def ahead(self) -> Comparison | None:
        """The second's time over the fastest's; None where there is no second."""
        if len(self.by_speed) < 2:
            return None
        first, second = (best.seconds.estimate for best in self.by_speed[:2])
        return between(second.on_another_day(), first)  # machines are seldom recorded side by side

    @property
    def surely(self) -> bool:
        """Whether the second is slower than the fastest beyond doubt."""
        return self.ahead is not None and self.ahead.verdict is Verdict.SLOWER


def judge(machines: Sequence[Machine], work: Work, prices: Mapping[str, float]) -> Judged | None:
    """Rank the machines by one piece of work; None where none of them has figures for it."""
    bests = (best_runtime(machine, work.of) for machine in machines)
    found = sorted(filter(None, bests), key=lambda best: best.seconds.middle)
    if not found:
        return None
    priced = [(cost.middle, best) for best in found if (cost := best.cost(prices)) is not None]
    return Judged(work, tuple(found), min(priced, key=lambda one: one[0])[1] if priced else None)
