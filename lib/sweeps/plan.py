"""What a sweep has to do, and by what means: made once, before anything is trained."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from lib.backends.registry import Runtime
from lib.backends.stacked.packing import MAX_WASTE
from lib.hardware.optional import free_memory_bytes
from lib.spec import Training
from lib.storage.store import Store
from lib.sweeps import cost_model
from lib.sweeps.cached import Cached
from lib.sweeps.events import Item
from lib.sweeps.strategies import AUTO, CACHE_BYTES, MEMORY_SHARE, STRATEGIES, Limits
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.queue import AnyRequest

MAX_PARAMETERS = 2_000_000  # larger networks' parameters stay in the worker: 8 MB each are enough to send
MAX_PARAMETER_BYTES = 256 * 2**20  # … and those of more networks than this, which is what the store holds
MANY = 64  # more trainings than that keep thinned losses: nobody looks at each step of a thousand


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
                f"strategy: expected {AUTO} or one of {', '.join(STRATEGIES)}, got {self.strategy!r}; choose one of"
                " these"
            )


@dataclass(frozen=True)
class Plan:
    """Items, each once, and what their training needs."""

    items: tuple[Item, ...]
    indices: tuple[int, ...]  # of the items that are not equal to an earlier one
    engine: Engine
    cancel: Cancel
    options: Options
    request: AnyRequest
    cached: Cached
    want_parameters: bool

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        indices: Sequence[int],
        engine: Engine,
        store: Store | None,
        cancel: Cancel,
        options: Options,
        request: AnyRequest,
    ) -> "Plan":
        networks = [items[index].training.network for index in indices]
        n_bytes, largest = sum(n.parameter_bytes for n in networks), max(n.n_parameters for n in networks)
        want_parameters = n_bytes <= MAX_PARAMETER_BYTES and largest <= MAX_PARAMETERS
        cached = Cached(items, store, options.fresh, thin=len(indices) > MANY)
        return cls(tuple(items), tuple(indices), engine, cancel, options, request, cached, want_parameters)

    @property
    def trainings(self) -> list[Training]:
        return [item.training for item in self.items]

    def limits(self, runtime: Runtime) -> Limits:
        """What a stack may use on this runtime's device."""
        free_bytes = MEMORY_SHARE * free_memory_bytes()
        limits = cost_model.limits_of(runtime, free_bytes, CACHE_BYTES[runtime.device])
        return replace(limits, max_waste=self.options.max_waste)
