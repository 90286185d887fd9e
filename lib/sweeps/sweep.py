"""Many trainings: what is kept is served at once, the rest is trained by one of the strategies, and all of it streams.

    for row in sweep([Training(learning_rate=rate) for rate in (0.01, 0.1, 1.0)]):
        print(row["learning_rate"], row["validation_accuracy"])

`sweep` yields a flat row a training, as they come. `updates` is the same in detail, for who wants to watch: progress,
places in the queue, what was picked and why. Both go on where an earlier sweep was left: a training with more epochs
continues from the parameters that are kept, equal trainings are made once, and what is finished is kept whatever
happens to the rest.
"""

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from lib.backends.registry import DEFAULT, Runtime
from lib.spec import Training
from lib.storage.store import Store
from lib.sweeps import cost_model, dask_cluster, in_processes, in_workers
from lib.sweeps.events import Continued, Finished, Picked, ToTrain, Update, Void
from lib.sweeps.plan import Options, Plan
from lib.sweeps.strategies import AUTO, STRATEGIES, Limits
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine, shared_engine
from lib.workers.flights import Flight
from lib.workers.messages import Disturbed, Item, Progress, Ready
from lib.workers.queue import AnyRequest, Request


def sweep(
    trainings: Sequence[Training | Item],
    strategy: str = AUTO,
    executor: Executor | None = None,
    *,
    store: Store | None = None,
    cancel: Cancel | None = None,
) -> Iterator[dict[str, object]]:
    """A flat row a training, as they come: `lib.sweeps.sweep.row` says what is in it. See the module's text.

    Raises ValueError for an empty sweep or an unknown strategy; `WorkerDied`, `TrainingFailed`, `NoCluster` and
    MemoryError with a sentence for the person: the rows before it are kept.
    """
    items = [one if isinstance(one, Item) else Item(one) for one in trainings]
    options = Options(strategy, executor)
    found = updates(items, shared_engine(), store or Store(), cancel or Cancel(), options)
    wanted = Counter(items)
    return (row(update) for update in found if isinstance(update, Finished) for _ in range(wanted[update.item]))


def row(finished: Finished) -> dict[str, object]:
    """A finished training as a flat row, units in the names.

    Seconds are a share where networks were trained together.
    """
    training, runtime, curve = finished.item.training, finished.item.runtime, finished.curve
    last = curve.epochs[-1]
    return {
        "backend": runtime.backend,
        "device": runtime.device,
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
) -> Iterator[Update]:
    """Yield what happens until every item is `Finished`, or `cancel` is set. Raises as `sweep` does.

    Equal items are trained once, and their events come once.
    """
    if not items:
        raise ValueError("sweep: expected at least one training, got none; add some")
    facts = yield from engine.data_facts(cancel)
    if facts is None:
        return
    yield Ready(facts)
    plan = Plan.of(items, engine, store, cancel, options or Options(), request or Request(), facts)
    todo = yield from _missing(plan, plan.items)
    yield ToTrain(tuple(todo))
    while todo and not cancel.is_set():
        # What is stored serves all who share the store, so what will be stored does. Without one, each measures for
        # itself.
        shared = store.path if store else plan
        keys = [(shared, plan.cached.points, plan.cached.key(item)) for item in todo]
        boarded, own = engine.flights.board(keys, plan.options.fresh)
        mine = {item: flight for item, flight, is_mine in zip(todo, boarded, own, strict=True) if is_mine}
        try:
            yield from _announced(plan, _train(plan, list(mine)), mine)
        finally:
            engine.flights.end(list(mine.values()))
        todo = yield from _follow(plan, {i: f for i, f in zip(todo, boarded, strict=True) if i not in mine})


def _missing(plan: Plan, items: Sequence[Item]) -> Generator[Update, None, list[Item]]:
    """Serve those that are cached. Generator: its value are the others."""
    missing = []
    for item in items:
        if (curve := plan.cached.curve(item)) is not None:
            yield Finished(item, curve, cached=True)
        else:
            missing.append(item)
    return missing


def _announced(plan: Plan, updates: Iterator[Update], mine: Mapping[Item, Flight[Update]]) -> Iterator[Update]:
    """The same updates, for all who follow these trainings too."""
    for update in updates:
        if isinstance(update, Disturbed):
            plan.cached.warnings = (update.why,)
        if isinstance(update, Void):
            concerned = [mine[item] for item in update.items]
        elif isinstance(update, Progress | Continued | Finished):
            concerned = [mine[update.item]]
        else:
            concerned = list(mine.values())
        plan.engine.flights.tell(concerned, update)
        if isinstance(update, Finished):
            plan.engine.flights.end(concerned)
        yield update


def _follow(plan: Plan, flights: dict[Item, Flight[Update]]) -> Generator[Update, None, list[Item]]:
    """What others report of trainings that they make. Generator: its value are those that they gave up."""
    heard, given_up = dict.fromkeys(flights, 0), []
    while flights and not plan.cancel.is_set():
        plan.engine.flights.wait_for(
            lambda: any(flight.over or len(flight.events) > heard[item] for item, flight in flights.items()),
            plan.cancel,
        )
        for item, flight in list(flights.items()):
            over, news = flight.over, flight.events[heard[item] :]
            heard[item] += len(news)
            yield from (Void((item,)) if isinstance(update, Void) else update for update in news)
            if over:
                del flights[item]
                if not (flight.events and isinstance(flight.events[-1], Finished)):
                    given_up.append(item)
                    yield Void((item,))
    return given_up


def _train(plan: Plan, items: Sequence[Item]) -> Iterator[Update]:
    """What is still missing: another run may have trained it since the store was asked.

    JAX, one call an epoch, first.
    """
    todo = yield from _missing(plan, items)
    for item in todo:
        if (curve := plan.cached.go_on(item)) is not None:
            yield Continued(item, curve)
    for runtime in sorted({item.runtime: None for item in todo}, key=lambda runtime: runtime.backend != DEFAULT):
        alike = [item for item in todo if item.runtime == runtime]
        if plan.cancel.is_set():
            return
        if runtime.backend != DEFAULT:
            strategy, limits = _of_others(plan, runtime), Limits(math.inf, math.inf)
        else:
            limits = plan.limits(runtime)
            picked = yield from _pick(plan, runtime, [item.training for item in alike], limits)
            if picked is None or plan.cancel.is_set():
                return
            yield picked
            strategy = picked.strategy
        if STRATEGIES[strategy].elsewhere:
            yield from in_processes.train(plan, runtime, alike, strategy)
        else:
            yield from in_workers.train(plan, runtime, alike, strategy, limits)


def _of_others(plan: Plan, runtime: Runtime) -> str:
    """Other backends are there to be compared: one after another, or each in a process of its own."""
    asked = STRATEGIES.get(plan.options.strategy, STRATEGIES["sequential"])
    if (asked.elsewhere and not asked.stacked) or asked.key == "sequential":
        return asked.key
    raise ValueError(
        f"strategy {plan.options.strategy}: expected trainings by {Runtime(DEFAULT).label}, got {runtime.label}; "
        "choose sequential or processes"
    )


def _pick(
    plan: Plan, runtime: Runtime, todo: Sequence[Training], limits: Limits
) -> Generator[Update, None, Picked | None]:
    """Generator: its value is what was picked."""
    options = plan.options
    if options.executor is not None:
        return Picked("cluster", "an executor was given")
    if options.strategy != AUTO:
        return Picked(options.strategy, "as asked")
    if dask_cluster.address() is not None:
        return Picked("cluster", f"{dask_cluster.ADDRESS} is set")
    return (
        yield from cost_model.pick(
            todo,
            limits,
            runtime,
            plan.engine,
            plan.cached.store,
            plan.cancel,
            plan.request,
            options.worth_s,
            with_processes=not options.streams,
        )
    )
