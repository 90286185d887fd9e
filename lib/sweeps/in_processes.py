"""A sweep's trainings in processes of this machine, or by an executor: as tasks whose results arrive whole."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from lib.backends.registry import DEFAULT, Runtime
from lib.hardware.cores import usable_cores
from lib.sweeps import dask_cluster
from lib.sweeps.events import Finished, Refused, Update, Void
from lib.sweeps.plan import Plan
from lib.sweeps.process_pool import (
    Died,
    Expected,
    LocalPool,
    OtherVersions,
    PoolTask,
    TaskFailed,
    local_pool,
    run_tasks,
)
from lib.sweeps.strategies import CACHE_BYTES, POOLED, STRATEGIES, Limits, parts, pool_groups
from lib.timing.disturbance import Turns
from lib.workers.messages import Item, TrainingFailed


@dataclass(frozen=True)
class _Where:
    """An executor, how many workers it has, what renews it, and who of it was refused."""

    executor: Executor | LocalPool
    n_workers: int
    renew: Callable[[], LocalPool] | None = None
    refused: Sequence[str] = ()


def train(plan: Plan, runtime: Runtime, todo: Sequence[Item], strategy: str) -> Iterator[Update]:
    """Train items of one runtime in other processes, and yield each item when it is finished.

    Args:
        plan: The sweep's.
        runtime: Of all of these items.
        todo: The items that are not cached.
        strategy: Key of a strategy that trains elsewhere: `processes`, `stacks` or `cluster`.

    Yields:
        `Refused` for each worker of a cluster that cannot be used, `Finished`, `Void` where a process died; in
        processes of this machine `Waiting` and `Disturbed` too.

    Raises:
        TrainingFailed: A task failed, or a worker has other versions; `NoCluster` where there is no cluster.
        ValueError: The strategy is `cluster`, but there is neither an executor nor a scheduler's address.
        MemoryError: A network does not fit into the memory.
    """
    try:
        with _where(plan, runtime, strategy) as where:
            yield from (Refused(why) for why in where.refused)
            yield from _as_tasks(plan, runtime, todo, strategy, where)
    except (OtherVersions, TaskFailed) as error:
        raise TrainingFailed(str(error)) from error


@contextmanager
def _where(plan: Plan, runtime: Runtime, strategy: str) -> Iterator[_Where]:
    executor = plan.options.executor
    if strategy in POOLED:
        pool = local_pool(runtime)
        yield _Where(pool, pool.n, lambda: local_pool(runtime, fresh=True))
    elif executor is not None:
        yield _Where(executor, getattr(executor, "_max_workers", None) or usable_cores())
    else:
        address = dask_cluster.address()
        if address is None:
            raise ValueError(
                f"strategy cluster: expected an executor or {dask_cluster.ADDRESS}, got neither; set it to a Dask"
                f" scheduler's address, {dask_cluster.LOCAL}"
            )
        with dask_cluster.connected(address, runtime, plan.facts.digest) as found:
            yield _Where(found.executor, found.n_workers, None, found.refused)


def _as_tasks(plan: Plan, runtime: Runtime, todo: Sequence[Item], strategy: str, where: _Where) -> Iterator[Update]:
    expected = Expected.here(runtime, plan.facts.digest)
    left = [_task(plan, group, expected) for group in _groups(plan, runtime, todo, strategy, where.n_workers)]
    executor = where.executor
    # What processes of this machine do is timed, so it takes turns; other machines disturb nobody here.
    turns = Turns(plan.engine.watch(runtime))
    with plan.engine.turn(plan.request) if strategy in POOLED else nullcontext() as turn:
        while left and not plan.cancel.is_set():
            if turn is not None:
                yield from turn.take(plan.cancel)
                turns.begin()
                executor = local_pool(runtime)  # a new one, if the last was ended for somebody who could not wait
            pause = turn.must_give_way if turn is not None else lambda: False
            for event in run_tasks(left, executor, where.n_workers, plan.cancel, where.renew, pause):
                if isinstance(event, Died):
                    yield Void(tuple(item for task in event.tasks for item in task.items))
                elif event is not None:
                    done, outcome = event
                    left = [task for task in left if task is not done]
                    for item, curve, parameters in zip(done.items, outcome.curves, outcome.parameters, strict=True):
                        timed = replace(plan.cached.joined(item, curve), warnings=turns.flags())
                        whole = plan.cached.put(item, timed, parameters)
                        yield Finished(item, whole, False, parameters, strategy)
            if turn is not None:
                turns.end()
                turn.give_back()
    if plan.cancel.is_set() and strategy in POOLED:
        local_pool(runtime, fresh=True)  # nobody wants what they are doing


def _task(plan: Plan, group: Sequence[Item], expected: Expected) -> PoolTask:
    start = tuple(plan.cached.start(item) for item in group)
    if not all(start):  # nothing to continue from, or no longer stored: from the beginning
        plan.cached.from_the_beginning(group)
        start = ()
    return PoolTask(
        group[0].runtime,
        tuple(item.training for item in group),
        expected,
        plan.cached.first_epoch(group[0]),
        start,
        len(group) > 1,
        plan.want_parameters,
        plan.cached.points,
    )


def _groups(plan: Plan, runtime: Runtime, todo: Sequence[Item], strategy: str, n_workers: int) -> Iterator[list[Item]]:
    """What each task trains: a group for a process of this machine, or a stack so small that its loss costs little."""
    alone = runtime.backend != DEFAULT
    at_most = max(1, len(todo) // (4 * n_workers))
    unlimited = Limits(1e9, CACHE_BYTES["cpu"], 1, plan.options.max_waste)
    # Those of a stack begin at the same epoch.
    for first_epoch in [None] if alone else sorted({plan.cached.first_epoch(item) for item in todo}):
        alike = [item.training for item in todo if first_epoch in (None, plan.cached.first_epoch(item))]
        if alone or strategy in POOLED:
            groups = pool_groups("processes" if alone else strategy, alike, n_workers, plan.limits(runtime))
        else:
            groups = [
                part.trainings[first : first + at_most]
                for part in parts(STRATEGIES["padded"], alike, unlimited)
                for first in range(0, len(part.trainings), at_most)
            ]
        yield from ([Item(training, runtime) for training in group] for group in groups)
