"""How to make a sweep: one table of strategies, and how each divides trainings into parts. Pure: it trains nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from lib.model.backends.packing import MAX_WASTE, chunks, stacks
from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime, unavailable, unsuited
from lib.model.spec import Training

AUTO = "auto"
# Of many networks, whatever their shapes: its program is compiled once for all, and each core trains one of them.
QUICKEST = "numba"
SIDE_BY_SIDE = 16  # trainings whose parameters one worker holds at the same time
# Parameters of a stack, a device: what the caches of a core hold still gains; a graphics card wants more work at once.
CACHE_BYTES = MappingProxyType({"cpu": 4 * 2**20, "gpu": 512 * 2**20})
MEMORY_SHARE = 0.5  # of the free memory, for a stack


@dataclass(frozen=True)
class Strategy:
    """One way to make a sweep."""

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
    """What a stack may use."""

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
    """Stacks of even sizes."""
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
