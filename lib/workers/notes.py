"""What an engine's messages say to somebody who waits."""

from dataclasses import dataclass

from lib.workers.engine import Disturbed, Message, Ready, Restarted, Starting, Waiting

WAITING, STARTING, MEASURING = "Waiting", "Starting", "Measuring"


@dataclass(frozen=True)
class Note:
    """What is happening meanwhile, in words (empty: nothing to say), and whether it is measured or waited for."""

    text: str
    state: str = MEASURING


def note_of(message: Message, doing: str = "") -> Note | None:
    """What a message of the engine says to somebody who waits; `doing`: what begins when the waiting is over."""
    if isinstance(message, Ready):
        return Note(doing)
    if isinstance(message, Starting):
        return Note(f"{message.way.label}: its worker imports the library and loads the images", STARTING)
    if isinstance(message, Waiting):
        others = f"{message.place} before this" if message.place else f"{message.holder or 'another program'} measures"
        return Note(others, WAITING)
    if isinstance(message, Restarted | Disturbed) and message.why:
        return Note(message.why, STARTING if isinstance(message, Restarted) else MEASURING)
    return None
