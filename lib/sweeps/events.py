"""What happens in a sweep: events that say which items they are about, beside the engine's own messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib.model.backends.base import Parameters
from lib.sweeps.storage.records import Curve
from lib.sweeps.workers.messages import Item, Message


@dataclass(frozen=True)
class Finished:
    """An item is done; `cached` if its curve came from the store, which comes without parameters.

    `parameters` are those after the last epoch, where they were wanted; `strategy` is the key of what trained it, empty
    for what was cached.
    """

    item: Item
    curve: Curve
    cached: bool
    parameters: Parameters | None = None
    strategy: str = ""


@dataclass(frozen=True)
class ToTrain:
    """The items that are not cached, and will be trained now."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Picked:
    """The key of the strategy by which they will be trained, and why.

    `expected_s` are the seconds expected by key of strategy; empty where the strategy was given.
    """

    strategy: str
    why: str
    expected_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Continued:
    """An item continues a shorter training that is cached; `curve` is that training's."""

    item: Item
    curve: Curve


@dataclass(frozen=True)
class WorkerRefused:
    """A worker of a cluster is not used; `why` is a sentence."""

    why: str


@dataclass(frozen=True)
class Void:
    """All earlier events of these items are void, because they begin again: their worker was replaced, for example."""

    items: tuple[Item, ...]


Update = Message | Finished | ToTrain | Picked | Continued | WorkerRefused | Void
