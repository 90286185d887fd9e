"""Machines side by side: what each takes for a piece of work and what that costs, which is best for what, and how sure
that is.

Which is faster is told as everywhere (`lib.timing.comparison`), from one repetition of the race to the next.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lib.backends.registry import DEFAULT, Runtime
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
    """The runtime that a machine is quickest by, for one piece of work."""

    machine: Machine
    runtime: Runtime
    seconds: Seconds

    def cost(self, prices: Mapping[str, float]) -> Seconds | None:
        """Dollars; None where the machine has no price."""
        price = prices.get(self.machine.name)
        return self.seconds.times(price / 3600) if price else None


Measure = Callable[[Machine, Runtime], Seconds | None]


@dataclass(frozen=True)
class Work:
    """A piece of work that machines are asked for."""

    name: str
    of: Measure


def works(learned: Learned, target: float) -> list[Work]:
    """What the machines are compared by."""
    epochs = [
        Work(f"an epoch at batch size {size:,}", lambda machine, runtime, size=size: machine.epoch(runtime, size))
        for size in (1, 32, 512, 4096)
    ]
    whole = [
        Work(TITLES[name], lambda machine, runtime, name=name: machine.experiment(name, runtime))
        for name in EXPERIMENTS
    ]
    return [
        *epochs,
        *whole,
        Work("the sweep of five learning rates", _sweep),
        Work(f"to {target:.0%} accuracy", lambda m, runtime: quickest_to(m, runtime, learned, target)),
    ]


def _sweep(machine: Machine, runtime: Runtime) -> Seconds | None:
    """By the quickest of the strategies that were timed whole with this runtime."""
    methods = SWEEPS.get((runtime.backend, runtime.device), ())
    known = [one for method in methods if (one := machine.sweep(method)) is not None]
    return min(known, key=lambda one: one.middle, default=None)


def best_runtime(machine: Machine, of: Measure, device: str | None = None) -> Best | None:
    """The quickest of a machine's runtimes, on one device or on any."""
    known = [
        Best(machine, runtime, seconds)
        for runtime in machine.runtimes
        if device in (None, runtime.device) and (seconds := of(machine, runtime)) is not None
    ]
    return min(known, key=lambda best: best.seconds.middle, default=None)


def learned_from(machines: Sequence[Machine]) -> dict[Training, tuple[float, ...]]:
    """Accuracy after each epoch, from all curves on MNIST.

    All runtimes and machines take the same steps, so one that counted will do.
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
    """Of the article's network, over the judged seeds."""
    cut = {t: a[: TRIED[t.batch_size]] for t, a in learned.items() if t.batch_size in TRIED}
    return needed(cut, NETWORK, batch_size, target)


def to_target(machine: Machine, runtime: Runtime, batch_size: int, learned: Learned, target: float) -> Seconds | None:
    """Seconds to an accuracy at one batch size: epochs of the judged runs, times an epoch with its evaluation."""
    epoch, counted = machine.epoch(runtime, batch_size), epochs_needed(learned, batch_size, target)
    if epoch is None or counted is None or not counted.reached:
        return None
    evaluation = exactly(machine.beside(runtime, batch_size, "evaluation_s"))
    one = epoch.plus(evaluation)
    least, most = counted.reached[0], counted.reached[-1]
    middle = counted.reached[len(counted.reached) // 2]
    # How many epochs it takes varies too, from seed to seed.
    epochs = Estimate.of(counted.reached)
    estimate = Estimate(
        one.estimate.seconds * middle, math.hypot(one.estimate.error, epochs.error), min(one.estimate.n, epochs.n)
    )
    return Seconds(one.low * least, one.middle * middle, one.high * most, epoch.n, estimate)


def quickest_to(machine: Machine, runtime: Runtime, learned: Learned, target: float) -> Seconds | None:
    """At the batch size where that is quickest."""
    known = [s for size in RATES if (s := to_target(machine, runtime, size, learned, target)) is not None]
    return min(known, key=lambda one: one.middle, default=None)


@dataclass(frozen=True)
class Judged:
    """One piece of work: all machines that were asked, the quickest first, and the cheapest of those with a price."""

    work: Work
    by_speed: tuple[Best, ...]
    cheapest: Best | None

    @property
    def ahead(self) -> Comparison | None:
        """The second's time over the quickest's; None where there is no second."""
        return between(*(best.seconds.estimate for best in self.by_speed[1::-1])) if len(self.by_speed) > 1 else None

    @property
    def surely(self) -> bool:
        """Whether the quickest is told from the next."""
        return self.ahead is not None and self.ahead.verdict is Verdict.SLOWER


def judge(machines: Sequence[Machine], work: Work, prices: Mapping[str, float]) -> Judged | None:
    """None where no machine was asked."""
    found = [best for machine in machines if (best := best_runtime(machine, work.of)) is not None]
    if not found:
        return None
    found.sort(key=lambda best: best.seconds.middle)
    priced = [(cost.middle, best) for best in found if (cost := best.cost(prices)) is not None]
    return Judged(work, tuple(found), min(priced, key=lambda one: one[0])[1] if priced else None)
