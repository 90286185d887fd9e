"""Whose turn it is to train: one at a time in this process (`Turns`) and on this machine (`MachineTurn`).

Between viewers turns go round: who is still training after `QUANTUM_S` lets the other viewers go first. Of one viewer's own
runs the control that was moved last goes first, and at once; what opened with the page follows in the page's order; what
merely follows from a result comes last. A run that gives way goes on later where it stopped.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from lib.bare import FileLock, Timeout

QUANTUM_S = 3.0
POLL_S = 0.02


class Urgency(IntEnum):
    """How much of a hurry the viewer is in."""

    NOW = 0  # a control was moved: somebody looks at it
    IN_ORDER = 1  # it opened with the page
    LATER = 2  # it follows from another result


_count = itertools.count(1)  # of claims, tickets and turns: what came before what


@dataclass(frozen=True)
class Claim:
    """Who asks, and how urgently. By default everyone is a viewer of their own.

    Claims are in the order in which they were made, whenever their runs come to want a turn.
    """

    viewer: Hashable = field(default_factory=object)
    urgency: Urgency = Urgency.IN_ORDER
    number: int = field(default_factory=lambda: next(_count))

    @property
    def order(self) -> tuple[int, int]:
        """Among the same viewer's claims the smallest comes first."""
        return self.urgency, -self.number if self.urgency is Urgency.NOW else self.number


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the queue."""

    claim: Claim
    number: int

    @property
    def viewer(self) -> Hashable:
        return self.claim.viewer

    @property
    def order(self) -> tuple[int, int]:
        return self.claim.order


class Turns:
    """The queue of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Ticket] = []
        self._holder: Ticket | None = None
        self._held_since = 0.0
        self._served: dict[Hashable, int] = {}  # when each viewer's last turn ended

    def join(self, claim: Claim) -> Ticket:
        """Get in line."""
        with self._changed:
            ticket = Ticket(claim, next(_count))
            self._waiting.append(ticket)
            return ticket

    def take(self, ticket: Ticket, timeout_s: float) -> int:
        """How many come first; 0: the turn is this ticket's. Waits for a change, but not longer than the time-out."""
        with self._changed:
            if place := self._place(ticket):
                self._changed.wait(timeout_s)
                place = self._place(ticket)
            if place == 0 and self._holder is not ticket:
                self._waiting.remove(ticket)
                self._holder, self._held_since = ticket, time.monotonic()
            return place

    def give_back(self, ticket: Ticket) -> None:
        """End the turn, and stay in line for the next one."""
        with self._changed:
            if self._holder is ticket:
                self._end_turn(ticket)
                self._waiting.append(ticket)
                self._changed.notify_all()

    def leave(self, ticket: Ticket) -> None:
        """Want no more turns."""
        with self._changed:
            if self._holder is ticket:
                self._end_turn(ticket)
            else:
                self._waiting.remove(ticket)
            if all(other.viewer != ticket.viewer for other in self._all()):
                self._served.pop(ticket.viewer, None)
            self._changed.notify_all()

    def holds(self, ticket: Ticket) -> bool:
        """Whether the turn is this ticket's."""
        with self._changed:
            return self._holder is ticket

    def held_s(self) -> float:
        """Seconds since the present turn began."""
        with self._changed:
            return time.monotonic() - self._held_since

    def must_give_way(self, ticket: Ticket, quantum_s: float = QUANTUM_S) -> bool:
        """Whether the holder should give its turn back: at once to the same viewer's more urgent run, in time to others."""
        with self._changed:
            long_held = time.monotonic() - self._held_since > quantum_s
            return any(
                other.order < ticket.order if other.viewer == ticket.viewer else long_held for other in self._waiting
            )

    def _end_turn(self, ticket: Ticket) -> None:
        self._holder = None
        self._served[ticket.viewer] = next(_count)

    def _all(self) -> list[Ticket]:
        return self._waiting + ([self._holder] if self._holder else [])

    def _place(self, ticket: Ticket) -> int:
        if self._holder is ticket:
            return 0
        return self._line().index(ticket) + (self._holder is not None)

    def _line(self) -> list[Ticket]:
        """The waiting tickets in the order of their turns, if nobody else comes."""
        queues: dict[Hashable, list[Ticket]] = {}
        for ticket in sorted(self._waiting, key=lambda ticket: ticket.order):
            queues.setdefault(ticket.viewer, []).append(ticket)
        last = {v: max(self._served.get(v, 0), min(ticket.number for ticket in queue)) for v, queue in queues.items()}
        turn = itertools.count(max(last.values(), default=0) + 1)
        if self._holder is not None and self._holder.viewer in last:
            last[self._holder.viewer] = next(turn)
        line = []
        while queues:
            viewer = min(queues, key=last.__getitem__)
            line.append(queues[viewer].pop(0))
            last[viewer] = next(turn)
            if not queues[viewer]:
                del queues[viewer]
        return line


class MachineTurn:
    """The turn between programs of this machine: a lock file, and a file whose age tells the holder that somebody waits."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir())
        self._lock = FileLock(folder / "less-overhead-timing.lock", mode=0o666, thread_local=False)
        self._waiting = folder / "less-overhead-timing.waiting"

    def __enter__(self) -> "MachineTurn":
        while not self.take():
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """True once it is ours, however often it is asked. Where no lock file can be had: better unprotected than not at all."""
        if self._lock.is_locked:  # the lock counts, and one release must be enough
            return True
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            with suppress(OSError):
                self._waiting.touch()
            return False
        except OSError:
            return True
        return True

    def release(self) -> None:
        """Give it back; the next one looks every `POLL_S`, so wait a little longer before asking again."""
        if self._lock.is_locked:
            asked = self.wanted()
            self._lock.release()
            if asked:
                with suppress(OSError):
                    self._waiting.unlink()
                time.sleep(5 * POLL_S)

    def wanted(self) -> bool:
        """Whether another program asked for it lately."""
        try:
            return time.time() - self._waiting.stat().st_mtime < QUANTUM_S
        except OSError:
            return False
