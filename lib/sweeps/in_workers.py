"""A sweep's items in the engine's workers: part after part, by themselves side by side or as a stack."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lib.backends.registry import Runtime
from lib.hardware.cores import usable_cores
from lib.storage.records import Curve
from lib.sweeps.events import Continued, Finished, Update, Void
from lib.sweeps.plan import Plan
from lib.sweeps.process_pool import Collected
from lib.sweeps.strategies import STRATEGIES, Limits, Part, parts
from lib.timing.disturbance import Turns
from lib.workers.messages import Checkpoint, How, Item, Progress, Ready, Restarted, Trained, Waiting


def train(plan: Plan, runtime: Runtime, todo: Sequence[Item], strategy: str, limits: Limits) -> Iterator[Update]:
    """Train items of one runtime in its worker of the engine, part after part; one part begins at one epoch.

    Args:
        plan: The sweep's.
        runtime: Of all of these items.
        todo: The items that are not cached.
        strategy: Key of a strategy that trains in the engine's workers.
        limits: What a stack may use.

    Yields:
        The engine's messages, without `Checkpoint` and `Trained`; `Finished` for each item, `cached` if another run
        trained it meanwhile; `Void` where items begin again, and then `Continued` for those that go on from cached
        epochs.

    Raises:
        WorkerDied, TrainingFailed: From the engine.
        MemoryError: A network does not fit into the memory of `limits`.
    """
    for first_epoch in sorted({plan.cached.first_epoch(item) for item in todo}):
        alike = [item.training for item in todo if plan.cached.first_epoch(item) == first_epoch]
        for part in parts(STRATEGIES[strategy], alike, limits):
            if not plan.cancel.is_set():
                yield from _train_part(plan, runtime, part, first_epoch, strategy)


def _train_part(plan: Plan, runtime: Runtime, part: Part, first_epoch: int, strategy: str) -> Iterator[Update]:
    cached, items = plan.cached, tuple(Item(training, runtime) for training in part.trainings)
    start = {}
    if first_epoch:
        start = {position: known for position, item in enumerate(items) if (known := cached.start(item)) is not None}
        if len(start) < len(items):  # deleted meanwhile, to make room: from the beginning
            cached.from_the_beginning(items)
            yield Void(items)
            start, first_epoch = {}, 0
    collected = {item: cached.collected(item) for item in items}
    cores = usable_cores() if STRATEGIES[strategy].parallel else 1
    how = How(part.devices, cores, first_epoch, start, plan.want_parameters)
    messages = plan.engine.run(runtime, part.trainings, plan.cancel, how, plan.request)
    together = len(items) if part.devices else 1
    turns = Turns(plan.engine.watch(runtime))

    def curve_of(item: Item) -> Curve:
        return replace(collected[item].curve(together), warnings=turns.flags())

    for message in messages:
        if isinstance(message, Ready):
            cached.digest = message.data.digest
            if not any(one.epochs for one in collected.values()) and (curves := cached.all_curves(items)):
                # While it waited for its turn, another viewer may have trained the same.
                messages.close()  # type: ignore[attr-defined]
                yield from (Finished(item, curve, cached=True) for item, curve in zip(items, curves, strict=True))
                return
            turns.begin()
            yield message
        elif isinstance(message, Restarted):
            turns = Turns(plan.engine.watch(runtime))
            collected = {item: cached.collected(item) for item in items}
            yield message
            yield Void(items)
            yield from (Continued(item, curve) for item in items if (curve := cached.begun(item)) is not None)
        elif isinstance(message, Checkpoint):
            cached.put(message.item, curve_of(message.item), message.parameters)
        elif isinstance(message, Trained):
            curve = curve_of(message.item)
            collected[message.item] = Collected()  # a thousand curves are not held until the last is done
            curve = cached.put(message.item, curve, message.parameters)
            yield Finished(message.item, curve, False, message.parameters, strategy)
        else:
            if isinstance(message, Waiting):
                turns.end()
            if isinstance(message, Progress):
                collected[message.item].add(message.event)
            yield message
