"""Many trainings as a stream: what is cached is served at once, the rest is trained by one of the strategies.

    for row in sweep([Training(learning_rate=rate) for rate in (0.01, 0.1, 1.0)]):
        print(row["learning_rate"], row["validation_accuracy"])

`sweep` yields a flat row for each training when it is finished. `updates` yields every event, for progress, places in
the queue, and which strategy was picked and why. Both resume an earlier sweep: a training with more epochs continues
from the parameters that are stored, equal trainings are made once, and what is finished stays stored whatever happens
to the rest.
"""

import math
import threading
from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime
from lib.model.data import prepared
from lib.model.spec import Training
from lib.sweeps import cost_model, dask_cluster, in_workers
from lib.sweeps.events import Continued, Finished, Picked, ToTrain, Update, Void
from lib.sweeps.plan import Options, Plan
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import AUTO, STRATEGIES, Limits, backends_for, quickest_runtime
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine, shared_engine
from lib.sweeps.workers.messages import CardLost, Disturbed, Item, Progress, Ready, Waiting
from lib.sweeps.workers.queue import AnyRequest, Request, more_urgent

AT_WORK = {Progress: True, Waiting: False}  # whether the event shows that its trainings have their turn


def sweep(
    trainings: Sequence[Training | Item],
    strategy: str = AUTO,
    executor: Executor | None = None,
    *,
    store: Store | None = None,
    cancel: Cancel | None = None,
) -> Iterator[dict[str, object]]:
    """Yield a flat row for each training when it is finished; `row` says what is in it.

    Args:
        trainings: At least one; an `Item` names its backend and device too, others are made by the one that is
            quickest for many (`quickest_runtime`), or by JAX where that cannot use the strategy. Equal ones are trained
            once, and have a row each.
        strategy: A key of `lib.sweeps.strategies.STRATEGIES`, or `auto`: the one expected to end first.
        executor: Other processes, in which JAX' trainings are made; their strategy is then `cluster`.
        store: Where curves are looked up and stored; None: the one in the cache folder.
        cancel: Ends the sweep early, from any thread; None: it runs to its end.

    Raises:
        ValueError: There are no trainings, or the strategy is unknown or not for this backend.
        DataError: What somebody brought to train on is no longer there.
        WorkerDied, TrainingFailed: A worker ended, or a backend failed; `NoCluster` where there is no cluster.
        MemoryError: A network does not fit into the memory.

    Errors carry a sentence for the person, and the rows that came before stay stored.
    """
    options = Options(strategy, executor)
    items = [one if isinstance(one, Item) else Item(one, _usual_runtime(one, options)) for one in trainings]
    found = updates(items, shared_engine(), store or Store(), cancel or Cancel(), options)
    wanted = Counter(items)
    return (row(update) for update in found if isinstance(update, Finished) for _ in range(wanted[update.item]))


def _usual_runtime(training: Training, options: Options) -> Runtime:
    """What makes a training whose backend nobody has named."""
    elsewhere = options.executor is not None or dask_cluster.address() is not None
    digest = training.data.digest
    quickest = quickest_runtime(prepared.known(digest).about.zeros if digest else None)
    able = options.strategy == AUTO or quickest.backend in backends_for(STRATEGIES[options.strategy])
    return quickest if able and not elsewhere else Runtime()


def row(finished: Finished) -> dict[str, object]:
    """A finished training as a flat row, with units in the names.

    Accuracy and loss are those on the validation images after the last epoch. Where networks were trained together,
    seconds are this one's equal share.
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
    """Yield what happens until every item is `Finished`, or `cancel` is set. Raises what `sweep` raises.

    Args:
        items: At least one. Equal items are trained once, and their events come once.
        engine: Its workers train. What another sweep of this engine trains already is followed instead of trained
            again.
        store: Where curves are looked up and stored; None: nothing is cached.
        cancel: Ends the sweep early, from any thread.
        options: How it is made; None: by default.
        request: For whom, and how urgently, turns are wanted; None: a viewer of its own.

    Yields:
        The engine's messages, `Ready` among the first, and the events of `lib.sweeps.events`.
    """
    if not items:
        raise ValueError("sweep: expected at least one training, got none; add some")
    which, *others = {item.training.data: None for item in items}
    if others:
        raise ValueError("sweep: expected trainings on one data set, got several; make a sweep for each")
    facts = yield from engine.data_facts(cancel, which)
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
        keys = [(engine, shared, plan.cached.points, plan.cached.key(item)) for item in todo]
        found = dict(zip(todo, share(keys, plan.request, plan.options.fresh), strict=True))
        mine = {item: one for item, (one, is_mine) in found.items() if is_mine}
        try:
            yield from _announced(plan, _train(plan, list(mine)), mine)
        finally:
            tell(mine.values(), over=True)
        todo = yield from _follow(plan, {item: one for item, (one, is_mine) in found.items() if not is_mine})


@dataclass(eq=False)
class TrainingUnderWay:
    """A training that one sweep of this process makes: all who want it follow it, from its first event on."""

    request: AnyRequest  # of the sweep that makes it
    events: list[Update] = field(default_factory=list)
    at_work: bool = False  # it has its turn
    over: bool = False  # done, or abandoned: then a follower makes it

    def is_late_for(self, request: AnyRequest) -> bool:
        """Whether its sweep waits for a turn that comes after the request's own, which then makes it itself."""
        return not self.at_work and not self.over and more_urgent(request, self.request)


_changed = threading.Condition()
_under_way: dict[Hashable, TrainingUnderWay] = {}


def share(keys: Sequence[Hashable], request: AnyRequest, anew: bool = False) -> list[tuple[TrainingUnderWay, bool]]:
    """The training under way of each key, and whether the caller has to make it, because nobody does yet.

    Args:
        keys: What each training depends on.
        request: For whom, and how urgently, they are wanted.
        anew: Whether the caller makes all of them, even what others make already.

    Returns:
        In the order of the keys; the caller must tell when its own are over.
    """
    found = []
    with _changed:
        for key in keys:
            there = None if anew else _under_way.get(key)
            is_mine = there is None or there.is_late_for(request)
            if there is None or is_mine:
                there = _under_way[key] = TrainingUnderWay(request)
            found.append((there, is_mine))
    return found


def tell(
    trainings: Collection[TrainingUnderWay], *news: Update, at_work: bool | None = None, over: bool = False
) -> None:
    """Add events to these trainings, for all who follow them now or later.

    Args:
        trainings: What the events are about.
        news: The events.
        at_work: Whether they show that the trainings have their turn, or wait for it; None: neither.
        over: Whether no more come.
    """
    with _changed:
        for one in trainings:
            one.events += news
            one.at_work, one.over = one.at_work if at_work is None else at_work, one.over or over
        for key in [key for key, one in _under_way.items() if one.over] if over else ():
            del _under_way[key]
        _changed.notify_all()


def _wake() -> None:
    with _changed:
        _changed.notify_all()


def _missing(plan: Plan, items: Sequence[Item]) -> Generator[Update, None, list[Item]]:
    """Yield what is cached as `Finished`; the generator's value is the items that are not."""
    found = plan.cached.curves(items)
    yield from (Finished(item, curve, cached=True) for item, curve in found.items())
    return [item for item in items if item not in found]


def _announced(plan: Plan, updates: Iterator[Update], mine: Mapping[Item, TrainingUnderWay]) -> Iterator[Update]:
    """Yield the updates as they are, and pass each on to all sweeps that follow the items concerned."""
    for update in updates:
        if isinstance(update, Disturbed):
            plan.cached.warnings = (update.why,)
        if isinstance(update, Void):
            concerned = [mine[item] for item in update.items]
        elif isinstance(update, Progress | Continued | Finished):
            concerned = [mine[update.item]]
        else:
            concerned = list(mine.values())
        tell(concerned, update, at_work=AT_WORK.get(type(update)), over=isinstance(update, Finished))
        yield update


def _follow(plan: Plan, others: dict[Item, TrainingUnderWay]) -> Generator[Update, None, list[Item]]:
    """Yield the events of items that other sweeps train.

    The generator's value is the items that the other sweep abandoned, or that this one can train sooner.
    """
    heard, given_up = dict.fromkeys(others, 0), []

    def has_news(item: Item, one: TrainingUnderWay) -> bool:
        return one.over or one.is_late_for(plan.request) or len(one.events) > heard[item]

    while others and not plan.cancel.is_set():
        with plan.cancel.calling(_wake), _changed:
            _changed.wait_for(lambda: plan.cancel.is_set() or any(has_news(*one) for one in others.items()))
        for item, one in list(others.items()):
            over, news = one.over or one.is_late_for(plan.request), one.events[heard[item] :]
            heard[item] += len(news)
            yield from (Void((item,)) if isinstance(update, Void) else update for update in news)
            if over:
                del others[item]
                if not (one.events and isinstance(one.events[-1], Finished)):
                    given_up.append(item)
                    yield Void((item,))
    return given_up


def _train(plan: Plan, items: Sequence[Item]) -> Iterator[Update]:
    """Train what is still missing: another run may have trained some of it since the store was asked.

    The default backend's items are first. A card that no longer answers ends its own runtime's items; the others are
    trained before its error is raised.
    """
    todo = yield from _missing(plan, items)
    for item in todo:
        if (curve := plan.cached.go_on(item)) is not None:
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
    """Train items of one runtime."""
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
    yield from in_workers.train(plan, runtime, alike, picked.strategy, limits)


def _picked(plan: Plan, runtime: Runtime, todo: Sequence[Training], limits: Limits) -> Picked:
    options = plan.options
    if options.strategy != AUTO and (options.executor is None or runtime.backend != DEFAULT):
        return Picked(options.strategy, STRATEGIES[options.strategy].says)
    if runtime.backend != DEFAULT:  # stacks nothing
        strategy = "cores" if BACKENDS[runtime.backend].parallel and len(todo) > 1 else "sequential"
        return Picked(strategy, STRATEGIES[strategy].says)
    if options.executor is not None:
        return Picked("cluster", "an executor was given")
    if dask_cluster.address() is not None:
        return Picked("cluster", f"{dask_cluster.ADDRESS} is set")
    running = plan.engine.processes(runtime)
    return cost_model.pick(todo, limits, runtime.device, options.worth_s, options.processes, running)
