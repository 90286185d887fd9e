"""Many trainings as a stream: cached curves are served at once, the rest is trained by one of several strategies.

    for row in sweep([Training(learning_rate=rate) for rate in (0.01, 0.1, 1.0)]):
        print(row["learning_rate"], row["validation_accuracy"])

`sweep` yields a flat row for each training when it is finished. `updates` yields every event: progress, places in the
queue, and the strategy with the reason for it. Both resume an earlier sweep: a longer training continues from stored
parameters, equal trainings run once, and finished ones stay stored whatever happens to the rest.

`STRATEGIES` lists the strategies, and `parts` divides trainings into jobs. `pick` returns the strategy expected to be
quickest, by a rule for each device based on recorded measurements (`SPEEDS`). A sweep of a few seconds trains one
network after another.
"""

import math
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from lib.model.backends.base import Epoch, Event, FirstCall, Parameters, Steps
from lib.model.backends.packing import MAX_WASTE, Shape, arrange, chunks, stacks
from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime, device_count, unavailable, unsuited, versions
from lib.model.data import prepared
from lib.model.hardware.machine import usable_cores, usable_memory_bytes
from lib.model.spec import Training
from lib.sweeps.storage.records import Curve, Key
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine, shared_engine
from lib.sweeps.workers.messages import (
    CardLost,
    Checkpoint,
    Item,
    Job,
    Message,
    Progress,
    Ready,
    Restarted,
    Trained,
    Waiting,
)
from lib.sweeps.workers.queue import AnyRequest, Cancel, Request
from lib.sweeps.workers.worker import ADDRESS, cluster, expected_here, submitted
from lib.timing.measurement import Turns

AUTO = "auto"
# For many networks of any shapes: it compiles its program once for all, and each core trains one network.
QUICKEST = "numba"
SIDE_BY_SIDE = 16  # trainings whose parameters one worker holds at the same time
# Parameters per device of a stack: on a CPU, as much as a core's caches hold; a graphics card needs more work at once.
CACHE_BYTES = MappingProxyType({"cpu": 4 * 2**20, "gpu": 512 * 2**20})
MEMORY_SHARE = 0.5  # of the free memory, for a stack
WORTH_S = 1.5  # of sequential training: a shorter sweep gains less than starting another strategy may cost
PROCESSES_START_S = 4.0  # to import the library and load the images
STACK_START_S = 0.5  # to compile a stack, whose program also depends on the number of networks
CORE_BATCH = 32  # a training uses sqrt(batch size / CORE_BATCH) cores
STACKED_ON_CORES = 1.6  # one core's seconds for a network in a stack, relative to the same network alone
PROCESSES_SIDE_BY_SIDE = 1.2  # … for a network in one of several processes, which share the memory


# Per graphics card or CPU core: seconds per step without arithmetic, and FLOP/s. JAX, one call per epoch: AMD EPYC
# 2 cores, Xeon 16 cores and H100 of recorded/, Intel 2 cores of benchmarks/RESULTS.md.
SPEEDS = MappingProxyType({"cpu": (15e-6, 150e9), "gpu": (28e-6, 15e12)})


@dataclass(frozen=True)
class Strategy:
    key: str
    label: str
    color: str  # the same on every page
    says: str
    stacked: bool = False  # several trainings in one compiled program
    padded: bool = False  # … even of different widths and depths
    all_devices: bool = False
    processes: bool = False  # several single-core, single-threaded workers
    parallel: bool = False  # one worker, one core per training, if the backend can


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.key: strategy
        for strategy in (
            Strategy("sequential", "one after another", "#0072b2", "one training after another, each on all cores"),
            Strategy(
                "cores",
                "a core each",
                "#5b7f2a",
                "one process, with one training and one thread per core",
                parallel=True,
            ),
            Strategy(
                "processes",
                "processes",
                "#009e73",
                "one process per core, with one training and one thread each",
                processes=True,
            ),
            Strategy(
                "stacks",
                "stacks in processes",
                "#8a6bbd",
                "one process per core, each with one thread and its own padded program",
                stacked=True,
                padded=True,
                processes=True,
            ),
            Strategy(
                "vmap", "vmap", "#cc79a7", "all trainings of one shape in one program, on one device", stacked=True
            ),
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
                "the same, split across all devices",
                stacked=True,
                padded=True,
                all_devices=True,
            ),
            Strategy("cluster", "cluster", "#3795d3", "by an executor, on other machines"),
        )
    }
)


@dataclass(frozen=True)
class Picked:
    """The key of the chosen strategy, and why; `expected_s` is by strategy key, or empty if the user chose."""

    strategy: str
    why: str
    expected_s: Mapping[str, float] = field(default_factory=dict)


POOLED = tuple(key for key, strategy in STRATEGIES.items() if strategy.processes)


def quickest_runtime(zeros: float | None = None) -> Runtime:
    """Return the fastest runtime for many networks on this CPU: `QUICKEST` if installed and suited to the data, else
    the default.

    Args:
        zeros: The share of inputs that are zero; None: as in MNIST.
    """
    runtime = Runtime(QUICKEST)
    return runtime if unavailable(runtime) is None and unsuited(runtime, zeros) is None else Runtime()


def backends_for(strategy: Strategy) -> tuple[str, ...]:
    """Keys of the backends that support a strategy.

    >>> backends_for(STRATEGIES["padded"])
    ('jax-epoch',)
    """
    if strategy.stacked:
        return (DEFAULT,)
    return tuple(key for key, backend in BACKENDS.items() if backend.parallel or not strategy.parallel)


@dataclass(frozen=True)
class Part:
    """Trainings that a worker gets as one job: separate ones (`devices` 0), or a stack on this many devices."""

    trainings: tuple[Training, ...]
    devices: int = 0


@dataclass(frozen=True)
class Limits:
    memory_bytes: float
    cache_bytes: float  # of parameters per device
    n_devices: int = 1
    max_waste: float = MAX_WASTE


def by_shape(trainings: Iterable[Training]) -> list[tuple[Training, ...]]:
    """Group trainings by network and batch size, in order of first appearance.

    >>> [len(group) for group in by_shape([Training(batch_size=1), Training(), Training(batch_size=1, seed=2)])]
    [2, 1]
    """
    groups: dict[tuple, list[Training]] = {}
    for training in trainings:
        groups.setdefault((training.network, training.batch_size), []).append(training)
    return [tuple(group) for group in groups.values()]


def parts(strategy: Strategy, trainings: Iterable[Training], limits: Limits, n_processes: int = 1) -> list[Part]:
    """Divide trainings into the parts of a strategy, in training order.

    Args:
        strategy: Any but `cluster`, which divides like one of the others.
        trainings: In any order.
        limits: For stacks: memory for all together, cache for each; otherwise unused.
        n_processes: For strategies with processes. The longest part comes first, so that it does not finish alone at
            the end; the number of stacks is a multiple of this if there are enough trainings.

    Raises:
        MemoryError: A network does not fit into memory; the text is a sentence for the user.
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
        Part(chunk, n_devices if len(chunk) > 1 else 0)  # a single network gains nothing from a stack
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
    """FLOPs per step of a part, including padding."""
    first = part.trainings[0]
    if not part.devices:
        return first.network.step_flops(first.batch_size)
    shape = Shape.of([training.network for training in part.trainings])
    grid = arrange([training.seed for training in part.trainings], part.devices)
    return shape.step_flops * first.batch_size * grid.n_places


def steps_of(part: Part) -> int:
    """Steps of the part's program: the sum over separate trainings, or those of the longest in a stack."""
    steps = [training.epochs * training.steps_per_epoch() for training in part.trainings]
    return max(steps) if part.devices else sum(steps)


def evaluation_flops(part: Part) -> float:
    """FLOPs of all evaluations of a part: per validation image, a third of a step's FLOPs per training image."""
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
    """Return the strategy by which JAX is expected to finish first; `sequential` for a short sweep.

    On a graphics card, a step takes hardly longer for many networks than for one, so the largest stacks win. On a CPU,
    small batches leave cores idle; a stack divided among the cores, or one process per core, uses them.

    Args:
        trainings: At least one.
        limits: For a stack on the device.
        device: "cpu" or "gpu".
        worth_s: Seconds of work below which only `sequential` is considered.
        processes: Whether the strategy may use several processes.
        running: Processes that are already running.

    Returns:
        The strategy, with the expected seconds of each one considered.

    Raises:
        MemoryError: A network does not fit into the memory of `limits`.
    """
    nominal = nominal_s(trainings)
    if len(trainings) == 1 or nominal < worth_s:
        what = "one training" if len(trainings) == 1 else f"about {nominal:.1f} s of work"
        return Picked("sequential", f"{what}: no other strategy would repay its startup", {"sequential": nominal})
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
    """Seconds of a part's steps in one worker, plus compilation for a stack."""
    gain = max(1.0, part.devices)
    if device == "cpu" and part.devices:
        gain = part.devices / STACKED_ON_CORES
    elif device == "cpu":
        gain = min(n_cores, max(1.0, math.sqrt(part.trainings[0].batch_size / CORE_BATCH)))
    return (STACK_START_S if part.devices else 0.0) + _steps_s(part, device, gain)


def makespan(cost_s: Sequence[float], n: int) -> float:
    """Seconds until the last of `n` processes is done, if the first free process always takes the longest task left.

    The rule is “longest processing time first”: Graham, “Bounds on multiprocessing timing anomalies”, 1969.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7.0
    """
    ends = [0.0] * n
    for seconds in sorted(cost_s, reverse=True):
        ends[ends.index(min(ends))] += seconds
    return max(ends)


MAX_PARAMETERS = 2_000_000  # per network, 8 MB: larger networks' parameters are not sent from the worker
MAX_PARAMETER_BYTES = 256 * 2**20  # … nor those of a sweep with more than this in total, which is the store's capacity
MANY = 64  # trainings above which losses are thinned: a viewer cannot inspect every step of a thousand
POINTS = 1_000  # losses kept per training in a sweep of more than `MANY`
TASKS_A_WORKER = 4  # minimum for a cluster: small tasks, so that losing one costs little
STACK_BYTES = 1e9  # memory of a stack on a cluster


@dataclass(frozen=True)
class Finished:
    """An item is done. If `cached`, its curve came from the store: without parameters, and with an empty `strategy`.

    `parameters` are those after the last epoch, if wanted; `strategy` is a key.
    """

    item: Item
    curve: Curve
    cached: bool
    parameters: Parameters | None = None
    strategy: str = ""


@dataclass(frozen=True)
class ToTrain:
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Continued:
    """An item continues a shorter cached training, whose curve is `curve`."""

    item: Item
    curve: Curve


Update = Message | Finished | ToTrain | Picked | Continued


@dataclass(frozen=True)
class Options:
    """How to run a sweep.

    Raises:
        ValueError: `strategy` is neither `auto` nor a key of `STRATEGIES`.
    """

    strategy: str = AUTO
    executor: Executor | None = None  # if given, its processes train the default backend's items (`cluster`)
    max_waste: float = MAX_WASTE  # share of the FLOPs that padding may waste
    worth_s: float = WORTH_S  # a sweep expected to take less time is sequential
    fresh: bool = False  # train even if cached
    # Store losses as means of this many groups of steps, and no parameters; 0: all losses, or `POINTS` if `MANY`.
    points: int = 0
    processes: bool = True  # whether `auto` may choose processes, whose start delays the first results by seconds

    def __post_init__(self) -> None:
        if self.strategy != AUTO and self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy: expected {AUTO} or one of {', '.join(STRATEGIES)}, got {self.strategy!r}; choose one of"
                " these"
            )


def sweep(
    trainings: Sequence[Training | Item],
    strategy: str = AUTO,
    executor: Executor | None = None,
    *,
    store: Store | None = None,
    cancel: Cancel | None = None,
) -> Iterator[dict[str, object]]:
    """Yield a flat row (see `row`) for each training when it is finished.

    Args:
        trainings: At least one. An `Item` specifies its backend and device; other trainings use `quickest_runtime`, or
            JAX if that does not support the strategy. Equal ones are trained once, and get a row each.
        strategy: A key of `STRATEGIES`, or `auto`: the one expected to finish first.
        executor: Other processes to train JAX's items in, by the strategy `cluster`.
        store: Where curves are looked up and stored; None: the one in the cache folder.
        cancel: Ends the sweep early, from any thread; None: run to the end.

    Raises:
        ValueError: There are no trainings, or the strategy is unknown or not for this backend.
        DataError: A user's data set no longer exists.
        TrainingFailed: A worker ended, a backend failed, or there is no cluster.
        MemoryError: A network does not fit into memory.

    Each error's text is a sentence for the user; rows already yielded stay stored.
    """
    options = Options(strategy, executor)
    items = [one if isinstance(one, Item) else Item(one, _usual_runtime(one, options)) for one in trainings]
    found = updates(items, shared_engine(), store or Store(), cancel or Cancel(), options)
    wanted = Counter(items)
    return (row(update) for update in found if isinstance(update, Finished) for _ in range(wanted[update.item]))


def _usual_runtime(training: Training, options: Options) -> Runtime:
    elsewhere = options.executor is not None or bool(os.environ.get(ADDRESS))
    own = training.data.digest
    quickest = quickest_runtime(prepared.known(own).about.zeros if own else None)
    able = options.strategy == AUTO or quickest.backend in backends_for(STRATEGIES[options.strategy])
    return quickest if able and not elsewhere else Runtime()


def row(finished: Finished) -> dict[str, object]:
    """Return a finished training as a flat row, with units in the names.

    Accuracy and loss are on the validation images after the last epoch. If networks were trained together, seconds are
    an equal share of the total.
    """
    training, runtime, curve = finished.item.training, finished.item.runtime, finished.curve
    last = curve.epochs[-1]
    return {
        **runtime.subject,
        "hidden_layers": training.network.label,
        "learning_rate": training.learning_rate,
        "batch_size": training.batch_size,
        "epochs": len(curve.epochs),
        "seed": training.seed,
        "validation_loss": last.validation_loss,
        "validation_accuracy": last.validation_accuracy,
        "diverged": last.diverged_step is not None,
        "train_s": sum(epoch.train_s for epoch in curve.epochs),
        "evaluation_s": sum(epoch.evaluation_s for epoch in curve.epochs),
        "first_call_s": curve.first_call_s,
        "trained_together": curve.together,
        "strategy": finished.strategy,
        "from_store": finished.cached,
        "measured_at": curve.measured_at,
        "machine": curve.machine,
    }


def updates(
    items: Sequence[Item],
    engine: Engine,
    store: Store | None,
    cancel: Cancel,
    options: Options | None = None,
    request: AnyRequest | None = None,
) -> Generator[Update, None, None]:
    """Yield events until every item is `Finished` or `cancel` is set. Raises what `sweep` raises.

    Args:
        items: At least one. Equal items are trained once, and their events come once.
        engine: Its workers train.
        store: Where curves are looked up and stored; None: nothing is cached.
        cancel: Ends the sweep early, from any thread.
        options: None: the defaults.
        request: Viewer and urgency; None: a new viewer.

    Yields:
        The engine's messages, with a `Ready` near the start, and this module's events.
    """
    if not items:
        raise ValueError("sweep: expected at least one training, got none; add some")
    which, *others = {item.training.data: None for item in items}
    if others:
        raise ValueError("sweep: expected trainings on one data set, got several; run one sweep for each")
    facts = yield from engine.data_facts(cancel, which)
    if facts is None:
        return
    yield Ready(facts)
    request = Request() if request is None else request
    plan = Plan(items, engine, store, cancel, options or Options(), request, facts.digest)
    todo = yield from plan.missing(plan.items)
    yield ToTrain(tuple(todo))
    yield from _train(plan, todo)


class Plan:
    """A sweep's distinct items: their stored curves, the epochs they continue from, and how results are stored.

    Args:
        items: At least one; duplicates are dropped.
        engine: Its workers train.
        store: Where curves are looked up and stored; None: nothing is cached.
        cancel: Ends the sweep early.
        options: How to run the sweep.
        request: Viewer and urgency.
        digest: Of the training data.
    """

    def __init__(
        self,
        items: Sequence[Item],
        engine: Engine,
        store: Store | None,
        cancel: Cancel,
        options: Options,
        request: AnyRequest,
        digest: str,
    ) -> None:
        self.items = tuple(dict.fromkeys(items))
        self.engine, self.store, self.cancel, self.options, self.request = engine, store, cancel, options, request
        self.digest = digest
        networks = [item.training.network for item in self.items]
        few = sum(one.parameter_bytes for one in networks) <= MAX_PARAMETER_BYTES
        small = max(one.n_parameters for one in networks) <= MAX_PARAMETERS
        self.want_parameters = not options.points and few and small
        self.points = options.points or (POINTS if len(self.items) > MANY else 0)
        self.begun: dict[Item, Curve] = {}  # the curves that items continue from
        self.start: dict[Item, Parameters] = {}  # … and the parameters after these

    def limits(self, runtime: Runtime) -> Limits:
        """Limits for a stack on this runtime's device: a share of the memory that is usable there."""
        return Limits(
            memory_bytes=MEMORY_SHARE * usable_memory_bytes(runtime.device),
            cache_bytes=CACHE_BYTES.get(runtime.device, 0),
            n_devices=max(1, device_count(runtime.device)),
            max_waste=self.options.max_waste,
        )

    def key(self, item: Item) -> Key:
        return Key(item.training, item.runtime, self.digest, versions(item.runtime))

    def missing(self, items: Iterable[Item]) -> Generator[Finished, None, list[Item]]:
        """Yield items whose complete curve is stored as `Finished`, unless the options ask for fresh training.

        Returns the others.
        """
        if self.store is None or self.options.fresh:
            return list(items)
        keys = {item: self.key(item) for item in items}
        found = self.store.get_all(keys.values())
        yield from (Finished(item, found[key], cached=True) for item, key in keys.items() if key in found)
        return [item for item, key in keys.items() if key not in found]

    def resume(self, item: Item) -> Curve | None:
        """Return the curve that an item continues from, and note it in `begun`.

        None if no shorter curve is stored with all losses and parameters, or the options ask for fresh training.
        """
        known = None if self.store is None or self.options.fresh else self.store.begun(self.key(item))
        if known is not None:
            self.begun[item], self.start[item] = known
        return self.begun.get(item)

    def first_epoch(self, item: Item) -> int:
        return len(self.begun[item].epochs) if item in self.begun else 0

    def curve(self, item: Item, events: Sequence[Event], together: int, warnings: tuple[str, ...]) -> Curve:
        """Return the curve so far: the cached epochs that the item continues from, then these events.

        `together` is the number of networks that shared the seconds.
        """
        begun = self.begun.get(item, Curve(0.0, (), np.empty(0, np.float32)))
        first_call_s = [event.first_call_s for event in events if isinstance(event, FirstCall)]
        losses = [event.losses for event in events if isinstance(event, Steps)]
        return Curve(
            first_call_s[-1] if first_call_s else begun.first_call_s,
            (*begun.epochs, *(event for event in events if isinstance(event, Epoch))),
            np.concatenate([begun.losses, *losses]),
            together=together,
            warnings=warnings,
        )

    def put(self, item: Item, curve: Curve, parameters: Parameters | None) -> Curve:
        """Store an item's curve, thinned if needed, and return it as stored, with time and machine filled in.

        Adds the warnings of the curve that it continues.
        """
        earlier = self.begun[item].warnings if item in self.begun else ()
        warnings = tuple(dict.fromkeys((*earlier, *curve.warnings)))
        curve = replace(curve.thinned(self.points) if self.points else curve, warnings=warnings)
        return curve if self.store is None else self.store.put(self.key(item), curve, parameters)


def _train(plan: Plan, todo: Sequence[Item]) -> Iterator[Update]:
    """Train the default backend's items first.

    A lost card ends its own runtime's items; its error is raised after the others are trained.
    """
    for item in todo:
        if (curve := plan.resume(item)) is not None:
            yield Continued(item, curve)
    lost: CardLost | None = None
    for runtime in sorted({item.runtime: None for item in todo}, key=lambda runtime: runtime.backend != DEFAULT):
        if plan.cancel.is_set():
            return
        try:
            yield from _train_alike(plan, runtime, [item for item in todo if item.runtime == runtime])
        except CardLost as error:
            lost = error
    if lost is not None:
        raise lost


def _train_alike(plan: Plan, runtime: Runtime, alike: Sequence[Item]) -> Iterator[Update]:
    asked = STRATEGIES.get(plan.options.strategy)
    if asked is not None and runtime.backend not in (able := backends_for(asked)):
        expected = " or ".join(BACKENDS[key].label for key in able)
        raise ValueError(
            f"strategy {asked.key}: expected trainings by {expected}, got {runtime.label};"
            " choose sequential or processes"
        )
    limits = plan.limits(runtime) if runtime.backend == DEFAULT else Limits(math.inf, math.inf)
    picked = _picked(plan, runtime, [item.training for item in alike], limits)
    yield picked
    yield from train(plan, runtime, alike, picked.strategy, limits)


def _picked(plan: Plan, runtime: Runtime, todo: Sequence[Training], limits: Limits) -> Picked:
    options, key = plan.options, plan.options.strategy
    if key == AUTO and runtime.backend != DEFAULT:  # cannot stack
        key = "cores" if BACKENDS[runtime.backend].parallel and len(todo) > 1 else "sequential"
    if key != AUTO and (options.executor is None or runtime.backend != DEFAULT):
        return Picked(key, STRATEGIES[key].says)
    if options.executor is not None:
        return Picked("cluster", "an executor was given")
    if os.environ.get(ADDRESS):
        return Picked("cluster", f"{ADDRESS} is set")
    return pick(
        todo, limits, runtime.device, options.worth_s, options.processes, running=plan.engine.processes(runtime)
    )


def train(plan: Plan, runtime: Runtime, todo: Sequence[Item], key: str, limits: Limits) -> Iterator[Update]:
    """Train items of one runtime by a strategy; all items of a part start at the same epoch.

    Args:
        plan: The sweep's.
        runtime: Of all these items.
        todo: The items that are not cached.
        key: Of the strategy.
        limits: For stacks on this machine.

    Yields:
        The engine's messages, without `Checkpoint` and `Trained`; `Finished` for each item, `cached` if another run
        has trained it in the meantime; after `Restarted`, `Continued` for items that resume from cached epochs.

    Raises:
        TrainingFailed: From the engine, or from an executor.
        ValueError: The strategy is `cluster`, but there is neither an executor nor a scheduler's address.
        MemoryError: A network does not fit into the memory of `limits`.
    """
    if key == "cluster":
        yield from _by_executor(plan, runtime, todo)
        return
    strategy, n_cores = STRATEGIES[key], usable_cores()
    divided = _divided(plan, todo, strategy, limits, n_cores)
    for made in [divided] if strategy.processes else [[part] for part in divided]:
        with plan.engine.turn(plan.request) as turn:
            yield from plan.engine.take(turn, plan.cancel)
            if plan.cancel.is_set():
                return
            # Another run may have trained some of them meanwhile.
            missing = yield from plan.missing(Item(one, runtime) for part in made for one in part.trainings)
            if jobs := _jobs(plan, runtime, made, missing, n_cores if strategy.parallel else 1):
                n_workers = min(len(jobs), n_cores) if strategy.processes else 0
                yield from _collected(plan, jobs, key, plan.engine.run(jobs, plan.cancel, turn, n_workers))


def _by_executor(plan: Plan, runtime: Runtime, todo: Sequence[Item]) -> Iterator[Update]:
    with cluster(plan.options.executor, runtime, plan.digest) as (others, n_workers):
        n_tasks = TASKS_A_WORKER * n_workers
        limits = Limits(STACK_BYTES * n_tasks, CACHE_BYTES["cpu"], 1, plan.options.max_waste)
        strategy = STRATEGIES["stacks" if runtime.backend == DEFAULT else "processes"]
        jobs = _jobs(plan, runtime, _divided(plan, todo, strategy, limits, n_tasks), todo)
        messages = submitted(others, jobs, expected_here(runtime, plan.digest), plan.cancel)
        yield from _collected(plan, jobs, "cluster", messages)


def _divided(plan: Plan, todo: Sequence[Item], strategy: Strategy, limits: Limits, n_processes: int) -> list[Part]:
    found = []
    for first_epoch in sorted({plan.first_epoch(item) for item in todo}):
        alike = [item.training for item in todo if plan.first_epoch(item) == first_epoch]
        found += parts(strategy, alike, limits, n_processes)
    return found


def _jobs(plan: Plan, runtime: Runtime, made: Iterable[Part], todo: Iterable[Item], cores: int = 1) -> list[Job]:
    """Return a job for each part with an item that is still to do."""
    found, todo = [], set(todo)
    for part in made:
        if items := [item for one in part.trainings if (item := Item(one, runtime)) in todo]:
            found.append(
                Job(
                    runtime,
                    tuple(item.training for item in items),
                    devices=part.devices,
                    parallel=cores,
                    first_epoch=plan.first_epoch(items[0]),
                    start={place: plan.start[item] for place, item in enumerate(items) if item in plan.start},
                    want_parameters=plan.want_parameters,
                )
            )
    return found


def _collected(plan: Plan, jobs: Sequence[Job], key: str, messages: Iterator[Message]) -> Iterator[Update]:
    """Pass on the messages about these jobs, with `Finished` in place of `Trained`; store curves and checkpoints."""
    runtime = jobs[0].runtime
    together = {item: len(job.items) if job.devices else 1 for job in jobs for item in job.items}
    events: dict[Item, list[Event]] = {item: [] for item in together}
    turns = Turns(runtime.on_gpu)

    def curve_of(item: Item) -> Curve:
        return plan.curve(item, events[item], together[item], turns.flags())

    for message in messages:
        if isinstance(message, Ready):
            plan.digest = message.data.digest
            turns.begin()
            yield message
        elif isinstance(message, Restarted):
            turns = Turns(runtime.on_gpu) if len(message.items) == len(together) else turns
            events |= {item: [] for item in message.items}
            yield message
            yield from (Continued(item, plan.begun[item]) for item in message.items if item in plan.begun)
        elif isinstance(message, Checkpoint):
            plan.put(message.item, curve_of(message.item), message.parameters)
        elif isinstance(message, Trained):
            curve = curve_of(message.item)
            events[message.item] = []  # free memory: a sweep may have a thousand curves
            curve = plan.put(message.item, curve, message.parameters)
            yield Finished(message.item, curve, False, message.parameters, key)
        else:
            if isinstance(message, Waiting):
                turns.end()
            if isinstance(message, Progress):
                events[message.item].append(message.event)
            yield message
