"""A sweep's items in the engine's workers, or by an executor: how they are divided, and their curves as they come."""

from collections.abc import Generator, Iterator, Sequence

from lib.model.backends.registry import DEFAULT, Runtime
from lib.model.hardware.machine import usable_cores
from lib.sweeps import executor
from lib.sweeps.dask_cluster import cluster
from lib.sweeps.events import Continued, Finished, Update, Void, WorkerRefused
from lib.sweeps.plan import Collected, Plan
from lib.sweeps.storage.records import Curve
from lib.sweeps.strategies import CACHE_BYTES, STRATEGIES, Limits, Part, Strategy, parts
from lib.sweeps.workers.messages import (
    Checkpoint,
    How,
    Item,
    Job,
    Message,
    Progress,
    Ready,
    Restarted,
    Trained,
    Waiting,
)
from lib.timing.disturbance import Turns

TASKS_A_WORKER = 4  # of a cluster, at least: so small that the loss of one costs little
STACK_BYTES = 1e9  # that a stack may take there


def train(plan: Plan, runtime: Runtime, todo: Sequence[Item], key: str, limits: Limits) -> Iterator[Update]:
    """Train items of one runtime by a strategy; those of one part begin at one epoch.

    Args:
        plan: The sweep's.
        runtime: Of all of these items.
        todo: The items that are not cached.
        key: Of the strategy.
        limits: What stacks on this machine may use.

    Yields:
        The engine's messages, without `Checkpoint` and `Trained`; `Finished` for each item, `cached` if another run
        trained it meanwhile; `Void` where items begin again, and then `Continued` for those that go on from cached
        epochs; `WorkerRefused` for each worker of a cluster that cannot be used.

    Raises:
        WorkerDied, TrainingFailed: From the engine, or from an executor; `NoCluster` where there is no cluster.
        ValueError: The strategy is `cluster`, but there is neither an executor nor a scheduler's address.
        MemoryError: A network does not fit into the memory of `limits`.
    """
    if key == "cluster":
        yield from _by_executor(plan, runtime, todo)
        return
    strategy, n_cores = STRATEGIES[key], usable_cores()
    divided = _divided(plan, todo, strategy, limits, n_cores)
    for made in [divided] if strategy.processes else [[part] for part in divided]:
        if plan.cancel.is_set():
            return
        hows = yield from _hows(plan, runtime, made, n_cores if strategy.parallel else 1)
        if strategy.processes:
            asked = [(part.trainings, how) for part, how in zip(made, hows, strict=True)]
            messages = plan.engine.run_each(runtime, asked, plan.cancel, plan.request)
        else:
            messages = plan.engine.run(runtime, made[0].trainings, plan.cancel, hows[0], plan.request)
        yield from _collected(plan, runtime, made, key, messages)


def _by_executor(plan: Plan, runtime: Runtime, todo: Sequence[Item]) -> Iterator[Update]:
    with cluster(plan.options.executor, runtime, plan.facts.digest) as found:
        yield from (WorkerRefused(why) for why in found.refused)
        n_tasks = TASKS_A_WORKER * found.n_workers
        limits = Limits(STACK_BYTES * n_tasks, CACHE_BYTES["cpu"], 1, plan.options.max_waste)
        strategy = STRATEGIES["stacks" if runtime.backend == DEFAULT else "processes"]
        made = _divided(plan, todo, strategy, limits, n_tasks)
        hows = yield from _hows(plan, runtime, made, 1)
        jobs = [Job(0, runtime, part.trainings, how) for part, how in zip(made, hows, strict=True)]
        expected = executor.Expected.here(runtime, plan.facts.digest)
        messages = executor.messages(found.executor, found.n_workers, jobs, expected, plan.cancel)
        yield from _collected(plan, runtime, made, "cluster", messages)


def _divided(plan: Plan, todo: Sequence[Item], strategy: Strategy, limits: Limits, n_processes: int) -> list[Part]:
    found = []
    for first_epoch in sorted({plan.cached.first_epoch(item) for item in todo}):
        alike = [item.training for item in todo if plan.cached.first_epoch(item) == first_epoch]
        found += parts(strategy, alike, limits, n_processes)
    return found


def _hows(plan: Plan, runtime: Runtime, made: Sequence[Part], cores: int) -> Generator[Void, None, list[How]]:
    """How each part is trained, from where it was left; from the beginning where its parameters are gone."""
    found = []
    for part in made:
        items = tuple(Item(training, runtime) for training in part.trainings)
        first_epoch = plan.cached.first_epoch(items[0])
        start = {place: known for place, item in enumerate(items) if (known := plan.cached.start(item)) is not None}
        if first_epoch and len(start) < len(items):  # deleted meanwhile, to make room
            plan.cached.begun = {item: curve for item, curve in plan.cached.begun.items() if item not in items}
            yield Void(items)
            first_epoch, start = 0, {}
        found.append(How(part.devices, cores, first_epoch, start, plan.want_parameters))
    return found


def _collected(
    plan: Plan, runtime: Runtime, made: Sequence[Part], key: str, messages: Iterator[Message]
) -> Iterator[Update]:
    """The messages about these parts, with a `Finished` in place of each `Trained`."""
    together = {
        Item(one, runtime): len(part.trainings) if part.devices else 1 for part in made for one in part.trainings
    }
    cached, items = plan.cached, tuple(together)
    collected = {item: cached.collected(item) for item in items}
    turns = Turns(plan.engine.watch(runtime))

    def curve_of(item: Item) -> Curve:
        return collected[item].curve(together[item], turns.flags())

    for message in messages:
        if isinstance(message, Ready):
            cached.digest = message.data.digest
            if not any(one.epochs for one in collected.values()) and len(curves := cached.curves(items)) == len(items):
                # While it waited for its turn, another viewer may have trained the same.
                messages.close()  # type: ignore[attr-defined]
                yield from (Finished(item, curve, cached=True) for item, curve in curves.items())
                return
            turns.begin()
            yield message
        elif isinstance(message, Restarted):
            again = tuple(Item(training, runtime) for training in message.trainings)
            turns = Turns(plan.engine.watch(runtime)) if len(again) == len(items) else turns
            collected |= {item: cached.collected(item) for item in again}
            yield message
            yield Void(again)
            yield from (Continued(item, curve) for item in again if (curve := cached.begun.get(item)) is not None)
        elif isinstance(message, Checkpoint):
            cached.put(message.item, curve_of(message.item), message.parameters)
        elif isinstance(message, Trained):
            curve = curve_of(message.item)
            collected[message.item] = Collected()  # a thousand curves are not held until the last is done
            curve = cached.put(message.item, curve, message.parameters)
            yield Finished(message.item, curve, False, message.parameters, key)
        else:
            if isinstance(message, Waiting):
                turns.end()
            if isinstance(message, Progress):
                collected[message.item].add(message.event)
            yield message
