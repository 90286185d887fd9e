"""What a sweep is made of and what it tells while it runs: items in, updates out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib.backends.base import Parameters
from lib.backends.registry import Runtime
from lib.spec import Training
from lib.storage.records import Curve
from lib.workers.engine import Message


@dataclass(frozen=True)
class Item:
    """One training, and the backend and device that it is given to."""

    training: Training
    runtime: Runtime = field(default_factory=Runtime)


@dataclass(frozen=True)
class Finished:
    """Item `index` is done; `kept` where its curve came from the store, without its parameters."""

    index: int
    curve: Curve
    cached: bool
    parameters: Parameters | None = None
    strategy: str = ""


@dataclass(frozen=True)
class ToTrain:
    """The items that are not kept, and will be trained now."""

    indices: tuple[int, ...]


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
    """Item `index` goes on after so many epochs, which are kept; these are its curve so far."""

    index: int
    curve: Curve


@dataclass(frozen=True)
class Refused:
    """A worker of a cluster is not used; why."""

    why: str


@dataclass(frozen=True)
class Void:
    """What these items have streamed so far is void: their worker was replaced and they begin again."""

    indices: tuple[int, ...]


Update = Message | Finished | ToTrain | Choosing | Picked | Continued | Refused | Void
