"""The engine's messages in words, for somebody who waits, and the states of a run that everybody distinguishes."""

from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from lib.sweeps.workers.messages import Disturbed, Message, Ready, Restarted, Starting, Waiting

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
        """Whether a run in this state has ended."""
        return self in (State.DONE, State.SAVED, State.STOPPED, State.FAILED)

    @property
    def under_way(self) -> bool:
        """Whether a run in this state goes on."""
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
        other = message.holder.waited_for if message.holder else "another program measures"
        return Note(f"{message.place} before this" if message.place else other, State.WAITING)
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
