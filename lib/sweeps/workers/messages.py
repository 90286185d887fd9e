"""The messages between engine and workers, and from the engine to a run's viewers.

A worker receives each `Job`, and (job id, order): an `End` stops or pauses the job, None resumes it. A worker first
sends `Ready` or `TrainingFailed`, then (job id, message): `Progress`, `Checkpoint`, `Trained` or `Measured` as they
occur, None as a sign of life at a point where the job can stop, and finally `TrainingFailed` or an `End`.

`Note`s put these messages into words for waiting viewers, with the matching `State`.
"""

import itertools
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, TypeVar

from lib.model.backends.base import Event, Parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import MNIST, DataSet, Training
from lib.timing.diagnosis import CardFacts
from lib.timing.measurement import Measurement
from lib.timing.profiling.request import Examination


class TrainingFailed(RuntimeError):
    """The job could not be done, or its worker ended; the text says why and what to do."""


class CardLost(TrainingFailed):
    """The graphics card no longer answers the worker, which has ended; the text says what to do."""


@dataclass(frozen=True)
class Item:
    training: Training
    runtime: Runtime = field(default_factory=Runtime)


_ids = itertools.count(1)


@dataclass(frozen=True)
class Job:
    """Distinct trainings for one runtime (in a stack, all of one batch size), or an examination."""

    runtime: Runtime
    trainings: tuple[Training, ...] = ()
    devices: int = 0  # for a stack, i.e. all trainings in one program; 0: train each separately
    parallel: int = 1  # separate trainings at the same time, one core each; 1: interleave them if the backend can
    first_epoch: int = 0
    start: Mapping[int, Parameters] = field(default_factory=dict)  # by index; others start from their seed
    want_parameters: bool = False  # at the end, and every few seconds
    probe_s: float = 0.0  # end after this many seconds of steps, to measure their speed; 0: train to the end
    examination: Examination | None = None  # instead of training
    id: int = field(default_factory=lambda: next(_ids))

    @property
    def data(self) -> DataSet:
        """The data set, which all trainings of the job share."""
        return self.trainings[0].data if self.trainings else MNIST

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(Item(training, self.runtime) for training in self.trainings)


@dataclass(frozen=True)
class Progress:
    item: Item
    event: Event


@dataclass(frozen=True)
class Checkpoint:
    """A running training's parameters after its latest epoch, from which it can be resumed."""

    item: Item
    parameters: Parameters


@dataclass(frozen=True)
class Trained:
    """A training is done; `parameters` are those after its last epoch, or None if not wanted."""

    item: Item
    parameters: Parameters | None


@dataclass(frozen=True)
class Measured:
    """One row of an examination; `work` is the amount per measured step: operations, bytes, calls or training steps."""

    name: str
    measurement: Measurement
    work: float


class End(Enum):
    """Why a worker stops sending messages about a job; `PAUSED` and `STOPPED` are also orders to it."""

    DONE = auto()
    PAUSED = auto()
    STOPPED = auto()


@dataclass(frozen=True)
class Waiting:
    """A run waits for its turn: `place` runs are ahead; None if another program, named in `other`, holds the turn."""

    place: int | None
    other: str = ""


@dataclass(frozen=True)
class Ready:
    """The worker is ready and has loaded `data`; precedes the first progress."""

    data: Facts
    card: CardFacts | None = None  # the graphics card in use; None: the CPU, or no worker yet
    pid: int = 0


@dataclass(frozen=True)
class Restarted:
    """These items start over, for example because their worker was replaced: discard their events so far.

    `why` is a sentence for the user, or empty.
    """

    why: str = ""
    items: tuple[Item, ...] = ()


T = TypeVar("T")


class State(StrEnum):
    """State of a run or of one of its lines; pages show the values."""

    NOT_RUNNING = "Not running"
    WAITING = "Waiting"
    STARTING = "Starting"
    MEASURING = "Measuring"
    TRAINING = "Training"
    DONE = "Done"
    SAVED = "Saved result"
    STOPPED = "Stopped"
    FAILED = "Failed"
    DIVERGED = "Diverged"
    NOT_RUN = "Not run"  # a line whose run ended before its turn

    @property
    def over(self) -> bool:
        return self in (State.DONE, State.SAVED, State.STOPPED, State.FAILED)

    @property
    def under_way(self) -> bool:
        return self in (State.WAITING, State.STARTING, State.MEASURING, State.TRAINING)


@dataclass(frozen=True)
class Note:
    """A message for a waiting viewer, possibly empty, with the matching state."""

    text: str
    state: State = State.MEASURING


Message = Measured | Checkpoint | Waiting | Ready | Restarted | Progress | Trained | Note


def note_of(message: Message, doing: str = "") -> Note | None:
    """Return an engine's message in words for a waiting viewer; None if there is nothing to say.

    Args:
        message: Any message of the engine.
        doing: The text once the worker is ready.
    """
    if isinstance(message, Ready):
        return Note(doing)
    if isinstance(message, Note):
        return message
    if isinstance(message, Waiting):
        return Note(f"{message.place} ahead of this" if message.place else message.other, State.WAITING)
    if isinstance(message, Restarted) and message.why:
        return Note(message.why, State.STARTING)
    return None


def noted(messages: Generator[Any, None, T], doing: str = "") -> Generator[Note, None, T]:
    """Yield the messages as notes (`note_of`); returns the value of `messages`."""
    while True:
        try:
            message = next(messages)
        except StopIteration as end:
            return end.value
        if (note := note_of(message, doing)) is not None:
            yield note
