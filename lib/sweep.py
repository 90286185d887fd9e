"""Many trainings: what is kept is served at once, the rest is grouped by shape and trained, and all of it streams.

Trainings of one shape share a compiled program and advance side by side, so that all their lines grow together.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from lib.backends import Way, versions
from lib.backends.base import Epoch, FirstCall, Parameters, Steps
from lib.engine import Engine, Message, Progress, Ready, Restarted, Trained
from lib.spec import Training
from lib.store import Curve, Key, Store
from lib.turns import Claim


@dataclass(frozen=True)
class Item:
    """One training, and the backend and device that it is given to."""

    training: Training
    way: Way = field(default_factory=Way)


@dataclass(frozen=True)
class Finished:
    """Item `index` is done; `kept` where its curve came from the store, without its parameters."""

    index: int
    curve: Curve
    kept: bool
    parameters: Parameters | None = None


@dataclass(frozen=True)
class ToTrain:
    """The items that are not kept, and will be trained now."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class Void:
    """What these items have streamed so far is void: their worker was replaced and they begin again."""

    indices: tuple[int, ...]


Update = Message | Finished | ToTrain | Void

MAX_PARAMETERS = 2_000_000  # larger networks' parameters stay in the worker: 8 MB each are enough to send


def grouped(items: Sequence[Item]) -> list[tuple[int, ...]]:
    """Indices of the items that share backend, device and shapes, in order of first appearance.

    >>> grouped([Item(Training(batch_size=1)), Item(Training()), Item(Training(batch_size=1, seed=2))])
    [(0, 2), (1,)]
    """
    groups: dict[tuple, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault((item.way, item.training.network, item.training.batch_size), []).append(index)
    return [tuple(indices) for indices in groups.values()]


def sweep(
    items: Sequence[Item],
    engine: Engine,
    store: Store | None,
    cancel: threading.Event,
    fresh: bool = False,
    claim: Claim | None = None,
) -> Iterator[Update]:
    """Yield what happens until every item is `Finished`, or `cancel` is set. `fresh` trains even what is kept.

    Raises `WorkerDied` or `TrainingFailed`, with a sentence for the person.
    """
    todo = set(range(len(items)))
    if store is not None and not fresh:
        facts = yield from engine.data_facts(cancel)
        if facts is None:
            return
        yield Ready(facts)
        for index in sorted(todo):
            if (curve := store.get(_key(items[index], facts.digest))) is not None:
                yield Finished(index, curve, kept=True)
                todo.discard(index)
    yield ToTrain(tuple(sorted(todo)))
    for group in grouped(items):
        indices = tuple(index for index in group if index in todo)
        if indices and not cancel.is_set():
            yield from _train_group(items, indices, engine, store, cancel, fresh, claim or Claim())


def _train_group(
    items: Sequence[Item],
    indices: tuple[int, ...],
    engine: Engine,
    store: Store | None,
    cancel: threading.Event,
    fresh: bool,
    claim: Claim,
) -> Iterator[Update]:
    way = items[indices[0]].way
    parts = [_Collected() for _ in indices]
    digest = ""
    trainings = [items[index].training for index in indices]
    small = trainings[0].network.n_parameters <= MAX_PARAMETERS
    messages = engine.run(way, trainings, cancel, want_parameters=small, claim=claim)
    for message in messages:
        if isinstance(message, Ready):
            digest = message.data.digest
            if store is not None and not fresh and not any(part.epochs for part in parts):
                # Its turn has come; meanwhile another viewer may have trained the very same.
                kept = [store.get(_key(items[index], digest)) for index in indices]
                if all(curve is not None for curve in kept):
                    messages.close()  # type: ignore[attr-defined]
                    yield from (Finished(i, c, kept=True) for i, c in zip(indices, kept, strict=True) if c is not None)
                    return
            yield message
        elif isinstance(message, Restarted):
            parts = [_Collected() for _ in indices]
            yield Void(indices)
        elif isinstance(message, Progress):
            parts[message.index].add(message.event)
            yield Progress(indices[message.index], message.event)
        elif isinstance(message, Trained):
            index, curve = indices[message.index], parts[message.index].curve()
            if store is not None:
                curve = store.put(_key(items[index], digest), curve)
            yield Finished(index, curve, kept=False, parameters=message.parameters)
        else:
            yield message


def _key(item: Item, data_digest: str) -> Key:
    return Key(item.training, item.way, data_digest, versions(item.way.backend))


class _Collected:
    """The events of one training, until it is finished."""

    def __init__(self) -> None:
        self.first_call_s = 0.0
        self.losses: list[np.ndarray] = []
        self.epochs: list[Epoch] = []

    def add(self, event: FirstCall | Steps | Epoch) -> None:
        if isinstance(event, FirstCall):
            self.first_call_s = event.first_call_s
        elif isinstance(event, Steps):
            self.losses.append(event.losses)
        else:
            self.epochs.append(event)

    def curve(self) -> Curve:
        losses = np.concatenate(self.losses) if self.losses else np.empty(0, np.float32)
        return Curve(self.first_call_s, tuple(self.epochs), losses)
