"""What a sweep has to do, and what is known of it: worked out once, before anything is trained."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np

from lib.model.backends.base import Epoch, Event, FirstCall, Parameters, Steps
from lib.model.backends.environment_variables import device_count
from lib.model.backends.packing import MAX_WASTE
from lib.model.backends.registry import Runtime, versions
from lib.model.data.mnist import Facts
from lib.model.hardware.machine import usable_memory_bytes
from lib.sweeps import cost_model
from lib.sweeps.storage.records import Curve, Key
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import AUTO, CACHE_BYTES, MEMORY_SHARE, STRATEGIES, Limits
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import AnyRequest

MAX_PARAMETERS = 2_000_000  # larger networks' parameters stay in the worker: 8 MB each are enough to send
MAX_PARAMETER_BYTES = 256 * 2**20  # … and those of more networks than this, which is what the store holds
MANY = 64  # the losses of more trainings than that are thinned: nobody looks at each step of a thousand
POINTS = 1_000  # of the losses of a training among many


@dataclass(frozen=True)
class Options:
    """How a sweep is made.

    Raises:
        ValueError: `strategy` is neither `auto` nor a key of `STRATEGIES`.
    """

    strategy: str = AUTO
    executor: Executor | None = None  # other processes; with it the strategy is `cluster`
    max_waste: float = MAX_WASTE  # share of the arithmetic that padding may waste
    worth_s: float = cost_model.WORTH_S  # a sweep expected to take fewer seconds is made one after another
    fresh: bool = False  # train even what is cached
    # Store losses as the means of so many groups of steps, and no parameters; 0: all losses, or `POINTS` among many.
    points: int = 0
    processes: bool = True  # whether `auto` may choose several, whose start delays the first lines by seconds

    def __post_init__(self) -> None:
        if self.strategy != AUTO and self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy: expected {AUTO} or one of {', '.join(STRATEGIES)}, got {self.strategy!r}; choose one of"
                " these"
            )


@dataclass(frozen=True)
class Plan:
    """A sweep's items, each once, and what it takes to train them."""

    items: tuple[Item, ...]
    engine: Engine
    cancel: Cancel
    options: Options
    request: AnyRequest
    facts: Facts  # of the images
    cached: "Cached"
    want_parameters: bool

    @classmethod
    def of(
        cls,
        items: Iterable[Item],
        engine: Engine,
        store: Store | None,
        cancel: Cancel,
        options: Options,
        request: AnyRequest,
        facts: Facts,
    ) -> "Plan":
        """The plan for these items, at least one; equal ones become one.

        Args:
            items: What is to be trained.
            engine: Its workers train.
            store: Where curves are looked up and stored; None: nothing is cached.
            cancel: Ends the sweep early.
            options: How the sweep is made.
            request: For whom, and how urgently, turns are wanted.
            facts: Of the images that are trained on.
        """
        items = tuple(dict.fromkeys(items))
        networks = [item.training.network for item in items]
        n_bytes, largest = sum(n.parameter_bytes for n in networks), max(n.n_parameters for n in networks)
        want_parameters = not options.points and n_bytes <= MAX_PARAMETER_BYTES and largest <= MAX_PARAMETERS
        points = options.points or (POINTS if len(items) > MANY else 0)
        cached = Cached(store, facts.digest, options.fresh, points)
        return cls(items, engine, cancel, options, request, facts, cached, want_parameters)

    def limits(self, runtime: Runtime) -> Limits:
        """What a stack may use on this runtime's device: a share of the memory that a training can have there."""
        free_bytes, cache_bytes = MEMORY_SHARE * usable_memory_bytes(runtime.device), CACHE_BYTES.get(runtime.device, 0)
        return Limits(free_bytes, cache_bytes, max(1, device_count(runtime.device)), self.options.max_waste)


@dataclass
class Collected:
    """The events of one training, collected until it is finished."""

    first_call_s: float = 0.0
    losses: list[np.ndarray] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)

    def add(self, event: Event) -> None:
        if isinstance(event, FirstCall):
            self.first_call_s = event.first_call_s
        elif isinstance(event, Steps):
            self.losses.append(event.losses)
        else:
            self.epochs.append(event)

    def curve(self, together: int, warnings: tuple[str, ...]) -> Curve:
        """The curve of all events so far; `together`: networks that were trained in the same seconds."""
        losses = np.concatenate(self.losses) if self.losses else np.empty(0, np.float32)
        return Curve(self.first_call_s, tuple(self.epochs), losses, together=together, warnings=warnings)


class Cached:
    """What the store has of a sweep's items, where they continue from, and how results are stored.

    Args:
        store: None: nothing is cached.
        digest: Of the images that are trained on.
        fresh: Serve nothing, and continue nothing that was trained earlier.
        points: Store losses as the means of so many groups of steps; 0: all of them.
    """

    def __init__(self, store: Store | None, digest: str, fresh: bool = False, points: int = 0) -> None:
        self.store, self.digest, self.fresh, self.points = store, digest, fresh, points
        self.warnings: tuple[str, ...] = ()  # what disturbed the sweep
        self._keys: dict[tuple[Item, str], Key] = {}
        self.begun: dict[Item, Curve] = {}  # of what continues: its curve so far

    def key(self, item: Item) -> Key:
        """The key that an item's curve is stored under; made once for each item."""
        known = (item, self.digest)
        if known not in self._keys:
            self._keys[known] = Key(item.training, item.runtime, self.digest, versions(item.runtime))
        return self._keys[known]

    def curves(self, items: Sequence[Item]) -> dict[Item, Curve]:
        """The whole curves of those items for which one is stored and may be served."""
        if self.store is None or self.fresh:
            return {}
        found = self.store.get_all([self.key(item) for item in items])
        return {item: found[self.key(item)] for item in items if self.key(item) in found}

    def go_on(self, item: Item) -> Curve | None:
        """The curve that an item continues from, where fewer epochs are stored with their parameters.

        The item then begins where that curve ends. None where there is no such curve with every loss, or `fresh` is
        set.
        """
        if self.store is None or self.fresh:
            return None
        curve, known = self.store.begun(self.key(item)), self.store.parameters(self.key(item))
        if curve is None or known is None or len(curve.epochs) < known[0]:
            return None
        self.begun[item] = curve.cut(known[0])
        return self.begun[item]

    def first_epoch(self, item: Item) -> int:
        """The epoch, from 0, that the item begins with."""
        return len(self.begun[item].epochs) if item in self.begun else 0

    def start(self, item: Item) -> Parameters | None:
        """The parameters that the item continues from; None if it does not, or if they are no longer stored."""
        if item not in self.begun or self.store is None:
            return None
        known = self.store.parameters(self.key(item))
        return known[1] if known is not None and known[0] == self.first_epoch(item) else None

    def collected(self, item: Item) -> Collected:
        """What a training's events are added to; it holds the cached epochs of an item that continues."""
        curve = self.begun.get(item)
        return Collected() if curve is None else Collected(curve.first_call_s, [curve.losses], list(curve.epochs))

    def put(self, item: Item, curve: Curve, parameters: Parameters | None) -> Curve:
        """Store an item's curve, thinned, and return it as it is stored.

        It keeps its warnings, and gets those of the sweep and of the curve that it continues.

        Args:
            item: What was trained.
            curve: All of its epochs.
            parameters: Those after the last epoch; None: none are stored.

        Returns:
            With a store, the curve has the time and machine filled in.
        """
        earlier = self.begun[item].warnings if item in self.begun else ()
        warnings = tuple(dict.fromkeys((*earlier, *self.warnings, *curve.warnings)))
        curve = replace(curve.thinned(self.points) if self.points else curve, warnings=warnings)
        return curve if self.store is None else self.store.put(self.key(item), curve, parameters)
