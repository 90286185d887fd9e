"""What happens in a sweep: events that say which items they are about, beside the engine's own messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib.backends.base import Parameters
from lib.storage.records import Curve
from lib.workers.messages import Item, Message


@dataclass(frozen=True)
class Finished:
    """An item is done; `cached` where its curve came from the store, without its parameters."""

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
class Choosing:
    """A few steps by each strategy are being measured, to pick one."""


@dataclass(frozen=True)
class Picked:
    """How they will be trained, and why; `expected_s` by strategy, where it was asked to choose."""

    strategy: str
    why: str
    expected_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Continued:
    """An item goes on after so many epochs, which are cached; these are its curve so far."""

    item: Item
    curve: Curve


@dataclass(frozen=True)
class Refused:
    """A worker of a cluster is not used; why."""

    why: str


@dataclass(frozen=True)
class Void:
    """What these items have streamed so far is void: their worker was replaced and they begin again."""

    items: tuple[Item, ...]


Update = Message | Finished | ToTrain | Choosing | Picked | Continued | Refused | Void
