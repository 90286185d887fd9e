"""A sweep's trainings in processes of this machine, or by an executor: as tasks whose results come back whole."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from lib.backends.registry import DEFAULT, Runtime
from lib.data.mnist import Facts
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
from lib.workers.engine import TrainingFailed


@dataclass(frozen=True)
class _Where:
    """An executor, how many workers it has, what renews it, and who of it was refused."""

    executor: Executor | LocalPool
    n_workers: int
    renew: Callable[[], LocalPool] | None = None
    refused: Sequence[str] = ()


def train(plan: Plan, runtime: Runtime, todo: Sequence[int], strategy: str, facts: Facts) -> Iterator[Update]:
    """Raises TrainingFailed where a task fails or a worker has other versions."""
    try:
        with _where(plan, runtime, strategy, facts) as where:
            yield from (Refused(why) for why in where.refused)
            yield from _as_tasks(plan, runtime, todo, strategy, facts, where)
    except (OtherVersions, TaskFailed) as error:
        raise TrainingFailed(str(error)) from error


@contextmanager
def _where(plan: Plan, runtime: Runtime, strategy: str, facts: Facts) -> Iterator[_Where]:
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
        with dask_cluster.connected(address, runtime, facts.digest) as found:
            yield _Where(found.executor, found.n_workers, None, found.refused)


def _as_tasks(
    plan: Plan, runtime: Runtime, todo: Sequence[int], strategy: str, facts: Facts, where: _Where
) -> Iterator[Update]:
    groups = _groups(plan, runtime, todo, strategy, where.n_workers)
    expected = Expected.here(runtime, facts.digest)
    tasks = [_task(plan, runtime, group, expected) for group in groups]
    executor, left = where.executor, set(range(len(groups)))
    # Processes of this machine are timed work, and take turns like all of it; elsewhere nobody is disturbed.
    with plan.engine.turn(plan.request) if strategy in POOLED else nullcontext() as turn:
        while left and not plan.cancel.is_set():
            if turn is not None:
                yield from turn.take(plan.cancel)
                executor = local_pool(runtime)  # another one, if the last was ended for somebody who could not wait
            order = sorted(left)
            pause = turn.must_give_way if turn is not None else lambda: False
            chosen = [tasks[t] for t in order]
            for event in run_tasks(chosen, executor, where.n_workers, plan.cancel, where.renew, pause):
                if isinstance(event, Died):
                    yield Void(tuple(i for t in event.tasks for i in groups[order[t]]))
                elif event is not None:
                    position, outcome = event
                    left.discard(order[position])
                    results = zip(groups[order[position]], outcome.curves, outcome.parameters, strict=True)
                    for index, curve, parameters in results:
                        whole = plan.cached.joined(index, curve)
                        whole = plan.cached.put(index, whole, parameters, facts.digest)
                        yield Finished(index, whole, False, parameters, strategy)
            if turn is not None:
                turn.give_back()
    if plan.cancel.is_set() and strategy in POOLED:
        local_pool(runtime, fresh=True)  # nobody wants what they are at


def _task(plan: Plan, runtime: Runtime, group: tuple[int, ...], expected: Expected) -> PoolTask:
    start = tuple(plan.cached.start(i, expected.data_digest) for i in group)
    if not all(start):  # nothing to go on from, or forgotten meanwhile: from the beginning
        plan.cached.from_the_beginning(group)
        start = ()
    trainings, first_epoch = tuple(plan.items[i].training for i in group), plan.cached.first_epoch(group[0])
    return PoolTask(
        runtime, trainings, expected, first_epoch, start, len(group) > 1, plan.want_parameters, plan.cached.points
    )


def _groups(plan: Plan, runtime: Runtime, todo: Sequence[int], strategy: str, n_workers: int) -> list[tuple[int, ...]]:
    """For processes of this machine, or, for a cluster, stacks, so many that a dead worker costs little."""
    if runtime.backend != DEFAULT:
        return pool_groups("processes", plan.trainings, todo, n_workers, plan.limits(runtime))
    groups: list[tuple[int, ...]] = []
    at_most = max(1, len(todo) // (4 * n_workers))
    for first_epoch in sorted({plan.cached.first_epoch(index) for index in todo}):
        alike = [index for index in todo if plan.cached.first_epoch(index) == first_epoch]
        if strategy in POOLED:
            groups += pool_groups(strategy, plan.trainings, alike, n_workers, plan.limits(runtime))
            continue
        unlimited = Limits(1e9, CACHE_BYTES["cpu"], 1, plan.options.max_waste)
        for part in parts(STRATEGIES["padded"], plan.trainings, alike, unlimited):
            groups += [part.indices[k : k + at_most] for k in range(0, len(part.indices), at_most)]
    return groups
