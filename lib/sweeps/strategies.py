"""How to make a sweep: one table of strategies, how each divides trainings into parts, and which is expected to be
quickest. Pure: it trains nothing.

That is a rule for each device, which rests on recorded measurements (`SPEEDS`). A sweep that is over in seconds anyway
is made one training after another.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from lib.model.backends.packing import MAX_WASTE, Shape, arrange, chunks, stacks
from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime, unavailable, unsuited
from lib.model.hardware.machine import usable_cores
from lib.model.spec import Training

AUTO = "auto"
# Of many networks, whatever their shapes: its program is compiled once for all, and each core trains one of them.
QUICKEST = "numba"
SIDE_BY_SIDE = 16  # trainings whose parameters one worker holds at the same time
# Parameters of a stack, a device: what the caches of a core hold still gains; a graphics card wants more work at once.
CACHE_BYTES = MappingProxyType({"cpu": 4 * 2**20, "gpu": 512 * 2**20})
MEMORY_SHARE = 0.5  # of the free memory, for a stack
WORTH_S = 1.5  # a sweep that one after another is over sooner gains less than another strategy's start may cost
PROCESSES_START_S = 4.0  # until they have imported their library and loaded the images
STACK_START_S = 0.5  # compiling a stack, whose program depends on the number of networks too
CORE_BATCH = 32  # a training uses the square root of as many cores as its batch is larger than this
STACKED_ON_CORES = 1.6  # a core's seconds for a network in a stack over those for the same network alone
PROCESSES_SIDE_BY_SIDE = 1.2  # … in one of several processes: they share the memory


# Of a card, or of a processor's core: seconds of a step without arithmetic, and arithmetic a second. JAX, one call an
# epoch: AMD EPYC 2 cores, Xeon 16 cores and H100 of recorded/, Intel 2 cores of benchmarks/RESULTS.md.
SPEEDS = MappingProxyType({"cpu": (15e-6, 150e9), "gpu": (28e-6, 15e12)})


@dataclass(frozen=True)
class Strategy:
    key: str
    label: str
    color: str  # one on every page, as the backends'
    says: str
    stacked: bool = False  # several trainings in one compiled program
    padded: bool = False  # … of different widths and depths too
    all_devices: bool = False
    processes: bool = False  # in several workers, of a core and a thread each
    parallel: bool = False  # a core each in one worker, by backends that can


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.key: strategy
        for strategy in (
            Strategy("sequential", "one after another", "#0072b2", "one training after another, all cores for each"),
            Strategy(
                "cores",
                "a core each",
                "#5b7f2a",
                "in one process, one training and one thread for each core",
                parallel=True,
            ),
            Strategy(
                "processes",
                "processes",
                "#009e73",
                "one process per core, one training and one thread each",
                processes=True,
            ),
            Strategy(
                "stacks",
                "stacks in processes",
                "#8a6bbd",
                "one process per core and one thread each, and in each a padded program of its own",
                stacked=True,
                padded=True,
                processes=True,
            ),
            Strategy("vmap", "vmap", "#cc79a7", "all of one shape in one program, on one device", stacked=True),
            Strategy(
                "padded",
                "padded vmap",
                "#b07d00",
                "different shapes in one program, padded with zeros",
                stacked=True,
                padded=True,
            ),
            Strategy(
                "sharded",
                "sharded vmap",
                "#d55e00",
                "the same, divided among all devices",
                stacked=True,
                padded=True,
                all_devices=True,
            ),
            Strategy("cluster", "cluster", "#3795d3", "by whatever executor, on other machines"),
        )
    }
)


@dataclass(frozen=True)
class Picked:
    """The key of the strategy by which they will be trained, and why.

    `expected_s` are the seconds expected by key of strategy; empty where the strategy was given.
    """

    strategy: str
    why: str
    expected_s: Mapping[str, float] = field(default_factory=dict)


POOLED = tuple(key for key, strategy in STRATEGIES.items() if strategy.processes)


def quickest_runtime(zeros: float | None = None) -> Runtime:
    """What trains many networks soonest on this machine's processor: `QUICKEST`, where it is installed and the data
    suit it, else the default.

    Args:
        zeros: The share of the inputs that are zero; None: as of MNIST's.
    """
    runtime = Runtime(QUICKEST)
    return runtime if unavailable(runtime) is None and unsuited(runtime, zeros) is None else Runtime()


def backends_for(strategy: Strategy) -> tuple[str, ...]:
    """Keys of the backends whose trainings a strategy makes.

    >>> backends_for(STRATEGIES["padded"])
    ('jax-epoch',)
    """
    if strategy.stacked:
        return (DEFAULT,)
    return tuple(key for key, backend in BACKENDS.items() if backend.parallel or not strategy.parallel)


@dataclass(frozen=True)
class Part:
    """Trainings that a worker is given at once: each by itself but side by side, or as a stack on `devices` devices."""

    trainings: tuple[Training, ...]
    devices: int = 0


@dataclass(frozen=True)
class Limits:
    memory_bytes: float
    cache_bytes: float  # of parameters, a device
    n_devices: int = 1
    max_waste: float = MAX_WASTE


def by_shape(trainings: Iterable[Training]) -> list[tuple[Training, ...]]:
    """Trainings in groups that share network and batch size, in order of first appearance.

    >>> [len(group) for group in by_shape([Training(batch_size=1), Training(), Training(batch_size=1, seed=2)])]
    [2, 1]
    """
    groups: dict[tuple, list[Training]] = {}
    for training in trainings:
        groups.setdefault((training.network, training.batch_size), []).append(training)
    return [tuple(group) for group in groups.values()]


def parts(strategy: Strategy, trainings: Iterable[Training], limits: Limits, n_processes: int = 1) -> list[Part]:
    """The parts that a strategy divides trainings into, in the order in which they are trained.

    Args:
        strategy: Any but `cluster`, which divides as one of the others.
        trainings: In any order.
        limits: What stacks may use: the memory all together, the caches each; unused where there are none.
        n_processes: Of a strategy by processes. The longest part is first, so that none is left over at the end; of
            stacks there are as many as processes, or a multiple of it, if there are enough trainings.

    Raises:
        MemoryError: A network does not fit into the memory; the text is a sentence for the person.
    """
    if strategy.processes:
        found = _even(trainings, limits, n_processes) if strategy.stacked else [Part((one,)) for one in trainings]
        return sorted(found, key=_cost, reverse=True)
    if not strategy.stacked:
        return [
            Part(group[first : first + SIDE_BY_SIDE])
            for group in ([tuple(trainings)] if strategy.parallel else by_shape(trainings))
            for first in range(0, len(group), SIDE_BY_SIDE)
        ]
    n_devices = limits.n_devices if strategy.all_devices else 1
    return [
        Part(chunk, n_devices if len(chunk) > 1 else 0)  # one alone gains nothing from a program for many
        for group in stacks(trainings, limits.max_waste if strategy.padded else 0.0)
        for chunk in chunks(group, limits.memory_bytes, limits.cache_bytes, n_devices)
    ]


def _even(trainings: Iterable[Training], limits: Limits, n_processes: int) -> list[Part]:
    found = []
    for group in stacks(trainings, limits.max_waste):
        n_parts = len(chunks(group, limits.memory_bytes / n_processes, limits.cache_bytes, 1))
        n_parts = min(len(group), -(-n_parts // n_processes) * n_processes)
        ends = [len(group) * part // n_parts for part in range(n_parts + 1)]
        found += [Part(group[first:end], int(end - first > 1)) for first, end in pairwise(ends)]
    return found


def _cost(part: Part) -> float:
    steps = part.trainings[0].steps_per_epoch() * max(training.epochs for training in part.trainings)
    return steps * (1e8 + sum(training.network.step_flops(training.batch_size) for training in part.trainings))


def step_flops(part: Part) -> float:
    """Arithmetic of one step of a part, padding included."""
    first = part.trainings[0]
    if not part.devices:
        return first.network.step_flops(first.batch_size)
    shape = Shape.of([training.network for training in part.trainings])
    n_places = arrange([training.seed for training in part.trainings], part.devices).n_places
    return shape.step_flops * first.batch_size * n_places


def steps_of(part: Part) -> int:
    """Steps that the part's program makes: of all its trainings one by one, or of the longest of a stack."""
    steps = [training.epochs * training.steps_per_epoch() for training in part.trainings]
    return max(steps) if part.devices else sum(steps)


def evaluation_flops(part: Part) -> float:
    """Arithmetic of all evaluations of a part: a third of a step's, on the validation images."""
    an_epoch = step_flops(part) / part.trainings[0].batch_size / 3 * part.trainings[0].data.n_validation
    epochs = [training.epochs for training in part.trainings]
    return an_epoch * (max(epochs) if part.devices else sum(epochs))


def nominal_s(trainings: Sequence[Training]) -> float:
    return sum(_steps_s(Part((training,)), "cpu") for training in trainings)


def _steps_s(part: Part, device: str, gain: float = 1.0) -> float:
    step_s, flops_per_s = SPEEDS[device]
    return steps_of(part) * (step_s + step_flops(part) / (flops_per_s * gain))


def pick(
    trainings: Sequence[Training],
    limits: Limits,
    device: str,
    worth_s: float = WORTH_S,
    processes: bool = True,
    running: int = 0,
) -> Picked:
    """The strategy by which JAX is expected to end first; a short sweep's is `sequential`.

    On a graphics card a step takes hardly longer for many networks than for one, so the largest stacks win. On a
    processor a stack, divided among the cores, or a process for each of them use cores that a small batch leaves idle.

    Args:
        trainings: At least one.
        limits: What a stack may use on the device.
        device: "cpu" or "gpu".
        worth_s: Seconds of work below which nothing else is considered.
        processes: Whether several may be picked.
        running: So many of them need not be started.

    Returns:
        With the seconds expected of each strategy considered.

    Raises:
        MemoryError: A network does not fit into the memory of `limits`.
    """
    nominal = nominal_s(trainings)
    if len(trainings) == 1 or nominal < worth_s:
        what = "one training" if len(trainings) == 1 else f"about {nominal:.1f} s of work"
        return Picked("sequential", f"{what}: nothing else would pay for its start", {"sequential": nominal})
    expected, seen, n = dict[str, float](), list[set[Part]](), usable_cores()
    for key in ("sequential", "vmap", "padded", "sharded"):
        plan = parts(STRATEGIES[key], trainings, limits)
        if set(plan) not in seen and (key == "sequential" or any(part.devices for part in plan)):
            seen.append(set(plan))
            expected[key] = sum(_part_s(part, device, n) for part in plan)
    n = min(n, len(trainings))
    if processes and device == "cpu" and n > 1:
        each_s = [_steps_s(Part((training,)), "cpu") * PROCESSES_SIDE_BY_SIDE for training in trainings]
        expected["processes"] = makespan(each_s, n) + (PROCESSES_START_S if running < n else 0.0)
    best, *others = sorted(expected, key=expected.__getitem__)
    said = [f"{STRATEGIES[key].label}: about {expected[key]:.1f} s" for key in (best, *others)]
    return Picked(best, "; ".join([f"{said[0]} expected", *said[1:]]), expected)


def _part_s(part: Part, device: str, n_cores: int) -> float:
    """Seconds of a part's steps in one worker, with its start if it is a stack."""
    gain = max(1.0, part.devices)
    if device == "cpu" and part.devices:
        gain = part.devices / STACKED_ON_CORES
    elif device == "cpu":
        gain = min(n_cores, max(1.0, math.sqrt(part.trainings[0].batch_size / CORE_BATCH)))
    return (STACK_START_S if part.devices else 0.0) + _steps_s(part, device, gain)


def makespan(cost_s: Sequence[float], n: int) -> float:
    """Seconds until the last of `n` processes is done, if the longest task always goes next to the first that is free.

    The rule is “longest processing time first”: Graham, “Bounds on multiprocessing timing anomalies”, 1969.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7.0
    """
    ends = [0.0] * n
    for seconds in sorted(cost_s, reverse=True):
        ends[ends.index(min(ends))] += seconds
    return max(ends)
