"""What the store has of a sweep's trainings, what goes on from there, and how results are put back.

Each key is made once.
"""

from collections.abc import Sequence
from dataclasses import replace

from lib.backends.base import Parameters
from lib.backends.registry import versions
from lib.storage.records import Curve, Key
from lib.storage.store import Store
from lib.sweeps.events import Item
from lib.sweeps.process_pool import Collected

POINTS = 1_000  # of the losses of a training among many


class Cached:
    """Of one sweep.

    `fresh`: nothing is served and nothing goes on; `thin`: losses are kept as means of `POINTS` groups.
    """

    def __init__(self, items: Sequence[Item], store: Store | None, fresh: bool = False, thin: bool = False) -> None:
        self.store, self.fresh, self.points = store, fresh, POINTS if thin else 0
        self.warnings: tuple[str, ...] = ()  # what disturbed the sweep
        self._items = items
        self._keys: dict[tuple[int, str], Key] = {}
        self._begun: dict[int, tuple[Curve, int]] = {}  # curve so far, and epochs: what goes on from kept parameters

    def key(self, index: int, digest: str) -> Key:
        """Under what an item's curve is kept, trained on the data of this digest."""
        if (index, digest) not in self._keys:
            item = self._items[index]
            self._keys[index, digest] = Key(item.training, item.runtime, digest, versions(item.runtime.backend))
        return self._keys[index, digest]

    def curve(self, index: int, digest: str) -> Curve | None:
        """The whole curve, where it is kept and may be served."""
        return None if self.store is None or self.fresh else self.store.get(self.key(index, digest))

    def all_curves(self, indices: Sequence[int], digest: str) -> list[Curve]:
        """The curves of all of them, or nothing."""
        found = [self.curve(index, digest) for index in indices]
        return [curve for curve in found if curve is not None] if all(found) else []

    def go_on(self, index: int, digest: str) -> Curve | None:
        """Where fewer epochs are kept, with their parameters: that curve, and the training begins there."""
        if self.store is None or self.fresh:
            return None
        key = self.key(index, digest)
        curve, known = self.store.begun(key), self.store.parameters(key)
        if curve is None or known is None or len(curve.epochs) < known[0] or curve.every != 1:
            return None
        self._begun[index] = (curve.cut(known[0]), known[0])
        return self._begun[index][0]

    def begun(self, index: int) -> Curve | None:
        """The curve that it goes on from."""
        return self._begun[index][0] if index in self._begun else None

    def first_epoch(self, index: int) -> int:
        return self._begun[index][1] if index in self._begun else 0

    def start(self, index: int, digest: str) -> Parameters | None:
        """The parameters that it goes on from; None where there are none, or no longer."""
        if index not in self._begun or self.store is None:
            return None
        known = self.store.parameters(self.key(index, digest))
        return known[1] if known is not None and known[0] == self.first_epoch(index) else None

    def from_the_beginning(self, indices: Sequence[int]) -> None:
        """Forget what these would have gone on from."""
        for index in indices:
            self._begun.pop(index, None)

    def collected(self, index: int, first_epoch: int) -> Collected:
        """What events are added to: what goes on begins with what is kept."""
        curve = self.begun(index)
        if not first_epoch or curve is None:
            return Collected()
        return Collected(curve.first_call_s, [curve.losses], list(curve.epochs))

    def joined(self, index: int, curve: Curve) -> Curve:
        """A curve that went on, with its beginning."""
        if (begun := self.begun(index)) is None:
            return curve
        collected = Collected(begun.first_call_s, [begun.losses, curve.losses], [*begun.epochs, *curve.epochs])
        return collected.curve(curve.together)

    def put(self, index: int, curve: Curve, parameters: Parameters | None, digest: str) -> Curve:
        """Keep it, as far as there is a store; as it was kept."""
        curve = replace(curve.thinned(self.points) if self.points else curve, warnings=self.warnings)
        return curve if self.store is None else self.store.put(self.key(index, digest), curve, parameters)
