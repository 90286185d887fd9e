"""Many trainings: what is kept is served at once, the rest is trained by one of the strategies, and all of it streams.

    for row in sweep([Training(learning_rate=rate) for rate in (0.01, 0.1, 1.0)]):
        print(row["learning_rate"], row["validation_accuracy"])

`sweep` yields a flat row a training, as they come. `updates` is the same in detail, for who wants to watch: progress, places in
the queue, what was picked and why. Both go on where an earlier sweep was left: a training with more epochs continues from the
parameters that are kept, equal trainings are made once, and what is finished is kept whatever happens to the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from lib.backends.base import Parameters
from lib.backends.registry import DEFAULT, Way, versions
from lib.backends.stacked.packing import MAX_WASTE
from lib.data.mnist import Facts
from lib.hardware.cores import usable_cores
from lib.hardware.optional import free_memory_bytes
from lib.spec import Training
from lib.storage.records import Curve, Key
from lib.storage.store import Store
from lib.sweeps import cost_model, dask_cluster
from lib.sweeps.events import Continued, Finished, Item, Picked, Refused, ToTrain, Update, Void
from lib.sweeps.process_pool import Collected, Died, Expected, OtherVersions, Task, TaskFailed, local_pool, run_tasks
from lib.sweeps.strategies import AUTO, CACHE_BYTES, MEMORY_SHARE, POOLED, STRATEGIES, Limits, Part, parts, pool_groups
from lib.workers.cancel import Cancel
from lib.workers.engine import (
    Disturbed,
    Engine,
    How,
    Kept,
    Progress,
    Ready,
    Restarted,
    Trained,
    TrainingFailed,
    shared_engine,
)
from lib.workers.flights import Flight
from lib.workers.queue import AnyClaim, Claim

MAX_PARAMETERS = 2_000_000  # larger networks' parameters stay in the worker: 8 MB each are enough to send
MAX_PARAMETER_BYTES = 256 * 2**20  # … and those of more networks than this, which is what the store holds
MANY = 64  # more trainings than that keep thinned losses: nobody looks at each step of a thousand
POINTS = 1_000


@dataclass(frozen=True)
class Options:
    """How a sweep is made."""

    strategy: str = AUTO
    executor: Executor | None = None  # other processes; with it the strategy is `cluster`
    max_waste: float = MAX_WASTE  # share of the arithmetic that padding may waste
    worth_s: float = cost_model.WORTH_S  # a sweep of fewer seconds is made one after another without measuring
    fresh: bool = False  # train even what is kept
    streams: bool = False  # somebody watches lines grow: `auto` does not choose processes, whose results come whole

    def __post_init__(self) -> None:
        if self.strategy != AUTO and self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy: expected {AUTO} or one of {', '.join(STRATEGIES)}, got {self.strategy!r}; choose one of these"
            )


def sweep(
    trainings: Sequence[Training | Item],
    strategy: str = AUTO,
    executor: Executor | None = None,
    *,
    store: Store | None = None,
    cancel: Cancel | None = None,
) -> Iterator[dict[str, object]]:
    """A flat row a training, as they come: `lib.sweeps.sweep.row` says what is in it. See the module's text.

    Raises ValueError for an empty sweep or an unknown strategy; `WorkerDied`, `TrainingFailed`, `NoCluster` and MemoryError with
    a sentence for the person: the rows before it are kept.
    """
    items = [one if isinstance(one, Item) else Item(one) for one in trainings]
    options = Options(strategy, executor)
    found = updates(items, shared_engine(), store or Store(), cancel or Cancel(), options)
    return (row(items[update.index], update) for update in found if isinstance(update, Finished))


def row(item: Item, finished: Finished) -> dict[str, object]:
    """A finished training as a flat row, units in the names. Seconds are a share where networks were trained together."""
    training, curve = item.training, finished.curve
    last = curve.epochs[-1]
    return {
        "backend": item.way.backend, "device": item.way.device, "hidden_layers": training.network.label,
        "learning_rate": training.learning_rate, "batch_size": training.batch_size, "epochs": len(curve.epochs), "seed": training.seed,
        "validation_loss": last.validation_loss, "validation_accuracy": last.validation_accuracy,
        "diverged": last.diverged_step is not None, "train_s": sum(epoch.train_s for epoch in curve.epochs),
        "evaluation_s": sum(epoch.evaluation_s for epoch in curve.epochs), "first_call_s": curve.first_call_s,
        "trained_together": curve.together, "strategy": finished.strategy, "from_store": finished.kept,
        "measured_at": curve.measured_at, "machine": curve.machine,
    }  # fmt: skip


def updates(
    items: Sequence[Item],
    engine: Engine,
    store: Store | None,
    cancel: Cancel,
    options: Options | None = None,
    claim: AnyClaim | None = None,
) -> Iterator[Update]:
    """Yield what happens until every item is `Finished`, or `cancel` is set. Raises as `sweep` does."""
    if not items:
        raise ValueError("sweep: expected at least one training, got none; add some")
    first: dict[Item, int] = {}
    twins: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        if first.setdefault(item, index) != index:
            twins.setdefault(first[item], []).append(index)
    run = _Sweep(items, sorted(first.values()), engine, store, cancel, options or Options(), claim or Claim())
    for update in run.updates():
        if isinstance(update, ToTrain | Void):
            update = replace(update, indices=(*update.indices, *(t for i in update.indices for t in twins.get(i, ()))))
        yield update
        if isinstance(update, (Progress, Finished, Continued)):  # equal trainings are made once and told of twice
            yield from (replace(update, index=twin) for twin in twins.get(update.index, ()))


class _Sweep:
    """One sweep under way."""

    def __init__(
        self,
        items: Sequence[Item],
        indices: list[int],
        engine: Engine,
        store: Store | None,
        cancel: Cancel,
        options: Options,
        claim: AnyClaim,
    ) -> None:
        self.items, self.indices = items, indices
        self.engine, self.store, self.cancel, self.options, self.claim = engine, store, cancel, options, claim
        self.trainings = [item.training for item in items]
        self.begun: dict[int, tuple[Curve, int]] = {}  # curve so far, and epochs: what goes on from kept parameters
        n_bytes = sum(self.trainings[i].network.parameter_bytes for i in indices)
        largest = max(self.trainings[i].network.n_parameters for i in indices)
        self.want_parameters = n_bytes <= MAX_PARAMETER_BYTES and largest <= MAX_PARAMETERS
        self.points = POINTS if len(indices) > MANY else 0
        self.strategy = ""
        self.warnings: tuple[str, ...] = ()  # what disturbed it

    def updates(self) -> Iterator[Update]:
        facts = yield from self.engine.data_facts(self.cancel)
        if facts is None:
            return
        yield Ready(facts)
        todo = yield from self._missing(self.indices, facts.digest)
        yield ToTrain(tuple(todo))
        while todo and not self.cancel.is_set():
            # What is kept serves all who share the store, so what will be kept does. Without one, each measures for itself.
            keys = [
                (self.store.path if self.store else self, self.points, key_of(self.items[i], facts.digest))
                for i in todo
            ]
            flights, own = self.engine.flights.board(keys, self.options.fresh)
            mine = {i: flight for i, flight, is_mine in zip(todo, flights, own, strict=True) if is_mine}
            try:
                yield from self._told(self._train(list(mine), facts), mine)
            finally:
                self.engine.flights.end(list(mine.values()))
            todo = yield from self._follow(
                {i: flight for i, flight in zip(todo, flights, strict=True) if i not in mine}
            )

    def _missing(self, indices: Sequence[int], digest: str) -> Iterator[Update]:
        """Tells of those that are kept. Generator: its value are the others."""
        missing = []
        for index in indices:
            if (curve := self._kept(index, digest)) is not None:
                yield Finished(index, curve, kept=True)
            else:
                missing.append(index)
        return missing

    def _told(self, updates: Iterator[Update], mine: Mapping[int, Flight[Update]]) -> Iterator[Update]:
        """The same updates, told to all who follow these trainings."""
        for update in updates:
            if isinstance(update, Disturbed):
                self.warnings = (update.why,)
            if isinstance(update, Void):
                concerned = [mine[index] for index in update.indices]
            elif isinstance(update, Progress | Continued | Finished):
                concerned = [mine[update.index]]
            else:
                concerned = list(mine.values())
            self.engine.flights.tell(concerned, update)
            if isinstance(update, Finished):
                self.engine.flights.end(concerned)
            yield update

    def _follow(self, flights: dict[int, Flight[Update]]) -> Iterator[Update]:
        """What others tell of trainings that they make. Generator: its value are those that they gave up."""
        heard, given_up = dict.fromkeys(flights, 0), []
        while flights and not self.cancel.is_set():
            self.engine.flights.wait_for(
                lambda: any(flight.over or len(flight.told) > heard[i] for i, flight in flights.items()), self.cancel
            )
            for index, flight in list(flights.items()):
                over, news = flight.over, flight.told[heard[index] :]
                heard[index] += len(news)
                yield from (_as_of(index, update) for update in news)
                if over:
                    del flights[index]
                    if not (flight.told and isinstance(flight.told[-1], Finished)):
                        given_up.append(index)
                        yield Void((index,))
        return given_up

    def _train(self, indices: list[int], facts: Facts) -> Iterator[Update]:
        """What is still missing: another run may have trained it since the store was asked."""
        todo = yield from self._missing(indices, facts.digest)
        for index in todo:
            yield from self._go_on(index, facts.digest)
        usual = [index for index in todo if self.items[index].way.backend == DEFAULT]
        yield from self._train_usual(usual, facts)
        for way in dict.fromkeys(self.items[i].way for i in todo if i not in set(usual)):
            yield from self._train_by(way, [i for i in todo if self.items[i].way == way], facts)

    def _kept(self, index: int, digest: str) -> Curve | None:
        if self.store is None or self.options.fresh:
            return None
        return self.store.get(key_of(self.items[index], digest))

    def _go_on(self, index: int, digest: str) -> Iterator[Continued]:
        """Where fewer epochs are kept, with their parameters: begin there."""
        if self.store is None or self.options.fresh:
            return
        key = key_of(self.items[index], digest)
        curve, known = self.store.begun(key), self.store.parameters(key)
        if curve is not None and known is not None and len(curve.epochs) >= known[0] and curve.every == 1:
            self.begun[index] = (curve.cut(known[0]), known[0])
            yield Continued(index, self.begun[index][0])

    def _train_by(self, way: Way, todo: list[int], facts: Facts) -> Iterator[Update]:
        """Other backends are there to be compared: one after another, or each in a process of its own."""
        asked = STRATEGIES.get(self.options.strategy, STRATEGIES["sequential"])
        if asked.elsewhere and not asked.stacked:
            self.strategy = self.options.strategy
            yield from self._elsewhere(way, todo, facts)
            return
        if self.options.strategy not in (AUTO, "sequential"):
            raise ValueError(
                f"strategy {self.options.strategy}: expected trainings by {Way(DEFAULT).label}, got {way.label}; "
                "choose sequential or processes"
            )
        self.strategy = "sequential"
        yield from self._in_workers(way, todo, Limits(float("inf"), float("inf")))

    def _train_usual(self, todo: list[int], facts: Facts) -> Iterator[Update]:
        """By JAX, one call an epoch, with every strategy to choose from."""
        for way in dict.fromkeys(self.items[index].way for index in todo):
            mine = [index for index in todo if self.items[index].way == way]
            limits = self._limits(way)
            picked = yield from self._pick(way, mine, limits)
            if picked is None or self.cancel.is_set():
                return
            self.strategy = picked.strategy
            yield picked
            if STRATEGIES[picked.strategy].elsewhere:
                yield from self._elsewhere(way, mine, facts)
            else:
                yield from self._in_workers(way, mine, limits)

    def _pick(self, way: Way, todo: list[int], limits: Limits) -> Iterator[Update]:
        """Generator: its value is what was picked."""
        asked = self.options.strategy
        if self.options.executor is not None:
            return Picked("cluster", "an executor was given")
        if asked != AUTO:
            return Picked(asked, "as asked")
        if dask_cluster.address() is not None:
            return Picked("cluster", f"{dask_cluster.ADDRESS} is set")
        return (
            yield from cost_model.pick(
                self.trainings,
                todo,
                limits,
                way,
                self.engine,
                self.store,
                self.cancel,
                self.claim,
                self.options.worth_s,
                with_processes=not self.options.streams,
            )
        )

    def _in_workers(self, way: Way, todo: list[int], limits: Limits) -> Iterator[Update]:
        """Part after part in the engine's worker; those that go on after so many epochs by themselves."""
        for first_epoch in sorted({self._first_epoch(index) for index in todo}):
            alike = [index for index in todo if self._first_epoch(index) == first_epoch]
            for part in parts(STRATEGIES[self.strategy], self.trainings, alike, limits):
                if not self.cancel.is_set():
                    yield from self._train_part(way, part, first_epoch)

    def _first_epoch(self, index: int) -> int:
        return self.begun[index][1] if index in self.begun else 0

    def _start(self, index: int, digest: str) -> Parameters | None:
        if index not in self.begun or self.store is None:
            return None
        known = self.store.parameters(key_of(self.items[index], digest))
        return known[1] if known is not None and known[0] == self.begun[index][1] else None

    def _train_part(self, way: Way, part: Part, first_epoch: int) -> Iterator[Update]:
        digest = ""
        indices = part.indices
        facts = yield from self.engine.data_facts(self.cancel)
        start = {}
        if first_epoch and facts is not None:
            start = {p: s for p, i in enumerate(indices) if (s := self._start(i, facts.digest)) is not None}
            if len(start) < len(indices):  # forgotten meanwhile, to make room: from the beginning
                for index in indices:
                    self.begun.pop(index, None)
                yield Void(indices)
                start, first_epoch = {}, 0
        collected = [self._collected(index, first_epoch) for index in indices]
        how = How(part.devices, True, first_epoch, start, self.want_parameters)
        messages = self.engine.run(way, [self.trainings[i] for i in indices], self.cancel, how, self.claim)
        for message in messages:
            if isinstance(message, Ready):
                digest = message.data.digest
                if not any(part.epochs for part in collected) and (kept := self._all_kept(indices, digest)):
                    # Its turn has come; meanwhile another viewer may have trained the very same.
                    messages.close()  # type: ignore[attr-defined]
                    yield from (Finished(i, curve, kept=True) for i, curve in zip(indices, kept, strict=True))
                    return
                yield message
            elif isinstance(message, Restarted):
                collected = [self._collected(index, first_epoch) for index in indices]
                yield message
                yield Void(indices)
                yield from (Continued(i, self.begun[i][0]) for i in indices if i in self.begun)
            elif isinstance(message, Progress):
                collected[message.index].add(message.event)
                yield Progress(indices[message.index], message.event)
            elif isinstance(message, Kept) and not self.options.fresh:  # a whole curve is not replaced by half of one
                curve = collected[message.index].curve(len(indices) if part.devices else 1)
                self._keep(indices[message.index], curve, message.parameters, digest)
            elif isinstance(message, Trained):
                index = indices[message.index]
                curve = collected[message.index].curve(len(indices) if part.devices else 1)
                collected[message.index] = Collected()  # a thousand curves are not held until the last is done
                curve = self._keep(index, curve, message.parameters, digest)
                yield Finished(index, curve, False, message.parameters, self.strategy)
            elif not isinstance(message, Kept):
                yield message

    def _all_kept(self, indices: Sequence[int], digest: str) -> list[Curve]:
        """The curves of all of them, or nothing."""
        found = [self._kept(index, digest) for index in indices]
        return [curve for curve in found if curve is not None] if all(found) else []

    def _collected(self, index: int, first_epoch: int) -> Collected:
        """What goes on begins with what is kept."""
        if not first_epoch or index not in self.begun:
            return Collected()
        curve, _ = self.begun[index]
        return Collected(curve.first_call_s, [curve.losses], list(curve.epochs))

    def _keep(self, index: int, curve: Curve, parameters: Parameters | None, digest: str) -> Curve:
        curve = replace(curve.thinned(self.points) if self.points else curve, warnings=self.warnings)
        return curve if self.store is None else self.store.put(key_of(self.items[index], digest), curve, parameters)

    def _elsewhere(self, way: Way, todo: list[int], facts: Facts) -> Iterator[Update]:
        """In processes of this machine, or by an executor, as tasks whose results come back whole."""
        try:
            with self._executor(way, facts) as (executor, n_workers, renew, refused):
                yield from (Refused(why) for why in refused)
                yield from self._as_tasks(way, todo, facts, executor, n_workers, renew)
        except (OtherVersions, TaskFailed) as error:
            raise TrainingFailed(str(error)) from error

    @contextmanager
    def _executor(self, way: Way, facts: Facts):
        """An executor, how many workers it has, what renews it, and who of it was refused."""
        if self.strategy in POOLED:
            pool = local_pool(way)
            with nullcontext():
                yield pool, pool.n, lambda: local_pool(way, fresh=True), ()
        elif self.options.executor is not None:
            n = getattr(self.options.executor, "_max_workers", None) or usable_cores()
            yield self.options.executor, n, None, ()
        else:
            address = dask_cluster.address()
            if address is None:
                raise ValueError(
                    f"strategy cluster: expected an executor or {dask_cluster.ADDRESS}, got neither; set it to a Dask scheduler's address, "
                    f"{dask_cluster.LOCAL}"
                )
            with dask_cluster.connected(address, way, facts.digest) as found:
                yield found.executor, found.n_workers, None, found.refused

    def _as_tasks(self, way: Way, todo: list[int], facts: Facts, executor, n_workers: int, renew) -> Iterator[Update]:
        groups = self._task_groups(way, todo, n_workers)
        expected = Expected.here(way, facts.digest)
        tasks = [self._task(way, group, expected) for group in groups]
        left = set(range(len(groups)))
        # Processes of this machine are timed work, and take turns like all of it; elsewhere nobody is disturbed.
        with self.engine.turn(self.claim) if self.strategy in POOLED else nullcontext() as turn:
            while left and not self.cancel.is_set():
                if turn is not None:
                    yield from turn.take(self.cancel)
                    executor = local_pool(way)  # another one, if the last was ended for somebody who could not wait
                order = sorted(left)
                pause = turn.must_give_way if turn is not None else lambda: False
                chosen = [tasks[t] for t in order]
                for told in run_tasks(chosen, executor, n_workers, self.cancel, renew, pause):
                    if isinstance(told, Died):
                        yield Void(tuple(i for t in told.tasks for i in groups[order[t]]))
                    elif told is not None:
                        position, outcome = told
                        left.discard(order[position])
                        for index, curve, parameters in zip(
                            groups[order[position]], outcome.curves, outcome.parameters, strict=True
                        ):
                            whole = self._joined(index, curve)
                            whole = self._keep(index, whole, parameters, facts.digest)
                            yield Finished(index, whole, False, parameters, self.strategy)
                if turn is not None:
                    turn.give_back()
        if self.cancel.is_set() and self.strategy in POOLED:
            local_pool(way, fresh=True)  # nobody wants what they are at

    def _task(self, way: Way, group: tuple[int, ...], expected: Expected) -> Task:
        start = tuple(self._start(i, expected.data_digest) for i in group)
        if not all(start):  # nothing to go on from, or forgotten meanwhile: from the beginning
            for index in group:
                self.begun.pop(index, None)
            start = ()
        trainings = tuple(self.trainings[i] for i in group)
        first_epoch = self._first_epoch(group[0])
        return Task(way, trainings, expected, first_epoch, start, len(group) > 1, self.want_parameters, self.points)

    def _task_groups(self, way: Way, todo: list[int], n_workers: int) -> list[tuple[int, ...]]:
        """For processes of this machine, or, for a cluster, stacks, so many that a dead worker costs little."""
        if way.backend != DEFAULT:
            return pool_groups("processes", self.trainings, todo, n_workers, self._limits(way))
        groups: list[tuple[int, ...]] = []
        at_most = max(1, len(todo) // (4 * n_workers))
        for first_epoch in sorted({self._first_epoch(index) for index in todo}):
            alike = [index for index in todo if self._first_epoch(index) == first_epoch]
            if self.strategy in POOLED:
                groups += pool_groups(self.strategy, self.trainings, alike, n_workers, self._limits(way))
                continue
            for part in parts(
                STRATEGIES["padded"], self.trainings, alike, Limits(1e9, CACHE_BYTES["cpu"], 1, self.options.max_waste)
            ):
                groups += [part.indices[k : k + at_most] for k in range(0, len(part.indices), at_most)]
        return groups

    def _limits(self, way: Way) -> Limits:
        free_bytes = MEMORY_SHARE * free_memory_bytes()
        limits = cost_model.limits_of(way, free_bytes, CACHE_BYTES[way.device])
        return replace(limits, max_waste=self.options.max_waste)

    def _joined(self, index: int, curve: Curve) -> Curve:
        """A curve that went on, with its beginning."""
        if index not in self.begun:
            return curve
        begun, _ = self.begun[index]
        collected = Collected(begun.first_call_s, [begun.losses, curve.losses], [*begun.epochs, *curve.epochs])
        return collected.curve(curve.together)


def _as_of(index: int, update: Update) -> Update:
    """What another sweep told of a training, by its index in this one."""
    if isinstance(update, Void):
        return Void((index,))
    return replace(update, index=index) if isinstance(update, Progress | Continued | Finished) else update


def key_of(item: Item, data_digest: str) -> Key:
    """Under what an item's curve is kept."""
    return Key(item.training, item.way, data_digest, versions(item.way.backend))
