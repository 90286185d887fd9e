"""The messages between engine and workers, and those that the engine passes on to whoever watches a run.

To a worker go each `Job`, and (job id, order): an `End` that ends or pauses it, or None to go on with it. From it comes
first `Ready` or `TrainingFailed`, and then (job id, message): `Progress`, `Checkpoint`, `Trained` or `Measured` as they
happen, None where it merely shows that it lives and can be stopped, and at last `TrainingFailed` or an `End`.

For somebody who waits there are `Note`s: the same in words, with the `State` that goes with them.
"""

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


class WorkerDied(RuntimeError):
    """A worker ended while it trained; the text says what that means and what to do."""


class TrainingFailed(RuntimeError):
    """The backend could not do what was asked; the text says why."""


class CardLost(TrainingFailed):
    """The graphics card no longer answers the worker, which has ended; the text says what to do."""


@dataclass(frozen=True)
class Item:
    training: Training
    runtime: Runtime = field(default_factory=Runtime)


@dataclass(frozen=True)
class How:
    """How a job's trainings are made, beyond what they are."""

    devices: int = 0  # that a stack is divided among: all trainings in one program; 0: each by itself
    parallel: int = 1  # each by itself, so many at a time, a core each; 1: they take turns where the backend allows it
    first_epoch: int = 0
    start: Mapping[int, Parameters] = field(default_factory=dict)  # by index, where it is not their seed
    want_parameters: bool = False  # at the end, and every few seconds
    probe_s: float = 0.0  # end after so many seconds of steps: to see how fast they go


@dataclass(frozen=True)
class Job:
    """Different trainings for one runtime, of one batch size if they are a stack; or something else to measure."""

    id: int
    runtime: Runtime
    trainings: tuple[Training, ...]
    how: How = field(default_factory=How)
    examination: Examination | None = None  # something to measure instead of training

    @property
    def data(self) -> DataSet:
        """What its trainings, all on the same data, are trained on."""
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
    """A training's parameters after its latest epoch, while it goes on: it can be continued from them."""

    item: Item
    parameters: Parameters


@dataclass(frozen=True)
class Trained:
    """A training is done; `parameters` are those after its last epoch, None where they were not wanted."""

    item: Item
    parameters: Parameters | None


@dataclass(frozen=True)
class Measured:
    """One row of an examination.

    `work` is what one measured step stands for: operations, bytes, calls, or training steps.
    """

    name: str
    measurement: Measurement
    work: float


class End(Enum):
    """Why a worker stops answering about a job: it is done, was paused, or was cancelled; the last two are orders."""

    DONE = auto()
    PAUSED = auto()
    STOPPED = auto()


@dataclass(frozen=True)
class Waiting:
    """A run waits for its turn.

    `place` others come first; None where another program on this machine holds the turn: `other` says which, in words.
    """

    place: int | None
    other: str = ""


@dataclass(frozen=True)
class Disturbed:
    """What follows is timed beside another program's measurement, because it did not give way; `why` says which."""

    why: str


@dataclass(frozen=True)
class Starting:
    runtime: Runtime


@dataclass(frozen=True)
class Ready:
    """The worker that will train is ready; comes before the first progress, and says what data it has."""

    data: Facts
    card: CardFacts | None = None  # that its library computes on; None: the processor, or no worker yet
    pid: int = 0


@dataclass(frozen=True)
class Restarted:
    """These items begin again, because their worker was replaced, for example: their events so far are void.

    `why` is a sentence for the person; empty where there is nothing to know.
    """

    why: str = ""
    items: tuple[Item, ...] = ()


Message = Measured | Checkpoint | Waiting | Disturbed | Starting | Ready | Restarted | Progress | Trained


T = TypeVar("T")


class State(StrEnum):
    """State of a run, or of one line of it; the values are the words that a page shows."""

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
    NOT_RUN = "Not run"  # of one line: its run was over before its turn came

    @property
    def over(self) -> bool:
        return self in (State.DONE, State.SAVED, State.STOPPED, State.FAILED)

    @property
    def under_way(self) -> bool:
        return self in (State.WAITING, State.STARTING, State.MEASURING, State.TRAINING)


@dataclass(frozen=True)
class Note:
    """What is happening meanwhile, in words (empty: nothing to say), and the state that goes with it."""

    text: str
    state: State = State.MEASURING


def note_of(message: Message, doing: str = "") -> Note | None:
    """An engine's message in words, for somebody who waits; None where it says nothing to them.

    Args:
        message: Of whatever kind.
        doing: The words for what begins when the waiting is over.
    """
    if isinstance(message, Ready):
        return Note(doing)
    if isinstance(message, Starting):
        return Note(f"{message.runtime.label}: its worker imports the library and loads the images", State.STARTING)
    if isinstance(message, Waiting):
        return Note(f"{message.place} before this" if message.place else message.other, State.WAITING)
    if isinstance(message, Restarted | Disturbed) and message.why:
        return Note(message.why, State.STARTING if isinstance(message, Restarted) else State.MEASURING)
    return None


def noted(messages: Generator[Any, None, T], doing: str = "") -> Generator[Note, None, T]:
    """Yield the notes that these messages make, by `note_of`; the generator's value is that of `messages`."""
    while True:
        try:
            message = next(messages)
        except StopIteration as end:
            return end.value
        if (note := note_of(message, doing)) is not None:
            yield note
