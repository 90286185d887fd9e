"""A sweep's trainings in the engine's workers: part after part, by themselves side by side or as a stack."""

from collections.abc import Iterator, Sequence

from lib.backends.registry import Runtime
from lib.sweeps.events import Continued, Finished, Update, Void
from lib.sweeps.plan import Plan
from lib.sweeps.process_pool import Collected
from lib.sweeps.strategies import STRATEGIES, Limits, Part, parts
from lib.workers.engine import Checkpoint, How, Progress, Ready, Restarted, Trained


def train(plan: Plan, runtime: Runtime, todo: Sequence[int], strategy: str, limits: Limits) -> Iterator[Update]:
    """Those that go on after so many epochs by themselves."""
    for first_epoch in sorted({plan.cached.first_epoch(index) for index in todo}):
        alike = [index for index in todo if plan.cached.first_epoch(index) == first_epoch]
        for part in parts(STRATEGIES[strategy], plan.trainings, alike, limits):
            if not plan.cancel.is_set():
                yield from _train_part(plan, runtime, part, first_epoch, strategy)


def _train_part(plan: Plan, runtime: Runtime, part: Part, first_epoch: int, strategy: str) -> Iterator[Update]:
    digest, indices, cached = "", part.indices, plan.cached
    facts = yield from plan.engine.data_facts(plan.cancel)
    start = {}
    if first_epoch and facts is not None:
        start = {p: s for p, i in enumerate(indices) if (s := cached.start(i, facts.digest)) is not None}
        if len(start) < len(indices):  # forgotten meanwhile, to make room: from the beginning
            cached.from_the_beginning(indices)
            yield Void(indices)
            start, first_epoch = {}, 0
    collected = [cached.collected(index, first_epoch) for index in indices]
    how = How(part.devices, True, first_epoch, start, plan.want_parameters)
    messages = plan.engine.run(runtime, [plan.items[i].training for i in indices], plan.cancel, how, plan.request)
    together = len(indices) if part.devices else 1
    for message in messages:
        if isinstance(message, Ready):
            digest = message.data.digest
            if not any(part.epochs for part in collected) and (kept := cached.all_curves(indices, digest)):
                # Its turn has come; meanwhile another viewer may have trained the very same.
                messages.close()  # type: ignore[attr-defined]
                yield from (Finished(i, curve, cached=True) for i, curve in zip(indices, kept, strict=True))
                return
            yield message
        elif isinstance(message, Restarted):
            collected = [cached.collected(index, first_epoch) for index in indices]
            yield message
            yield Void(indices)
            yield from (Continued(i, curve) for i in indices if (curve := cached.begun(i)) is not None)
        elif isinstance(message, Progress):
            collected[message.index].add(message.event)
            yield Progress(indices[message.index], message.event)
        elif isinstance(message, Checkpoint) and not cached.fresh:  # a whole curve is not replaced by half of one
            curve = collected[message.index].curve(together)
            cached.put(indices[message.index], curve, message.parameters, digest)
        elif isinstance(message, Trained):
            index, curve = indices[message.index], collected[message.index].curve(together)
            collected[message.index] = Collected()  # a thousand curves are not held until the last is done
            curve = cached.put(index, curve, message.parameters, digest)
            yield Finished(index, curve, False, message.parameters, strategy)
        elif not isinstance(message, Checkpoint):
            yield message
