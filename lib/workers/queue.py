"""Whose turn it is to train: one at a time in this process (`Queue`) and on this machine (`lib.workers.machine_lock`).

Between viewers turns go round: who is still training after `QUANTUM_S` lets the other viewers go first. Of one viewer's
own runs the control that was moved last goes first, and at once; what opened with the page follows in the page's order;
what merely follows from a result comes last. A run that gives way goes on later where it stopped.

A run that several viewers want waits in the line of each, and its turn counts for each of them.
"""

import itertools
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from lib.workers.cancel import Cancel

QUANTUM_S = 3.0


class Urgency(IntEnum):
    """How much of a hurry the viewer is in."""

    NOW = 0  # a control was moved: somebody looks at it
    IN_ORDER = 1  # it opened with the page
    LATER = 2  # it follows from another result


_count = itertools.count(1)  # of requests, tickets and turns: what came before what


@dataclass(frozen=True)
class Request:
    """Who asks, and how urgently. By default everyone is a viewer of their own.

    Requests are in the order in which they were made, whenever their runs come to want a turn.
    """

    viewer: Hashable = field(default_factory=object)
    urgency: Urgency = Urgency.IN_ORDER
    number: int = field(default_factory=lambda: next(_count))

    @property
    def order(self) -> tuple[int, int]:
        """Among the same viewer's requests the smallest comes first."""
        return self.urgency, -self.number if self.urgency is Urgency.NOW else self.number

    @property
    def each(self) -> tuple["Request", ...]:
        return (self,)


class SharedRequest:
    """The requests of all who want one run. They may come and go while it waits and while it runs."""

    def __init__(self, *requests: Request) -> None:
        self.each: tuple[Request, ...] = requests  # replaced whole: other threads read it

    def add(self, request: Request) -> None:
        self.each = (*self.each, request)

    def discard(self, request: Request) -> None:
        self.each = tuple(one for one in self.each if one is not request)


AnyRequest = Request | SharedRequest


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the queue."""

    request: AnyRequest
    number: int

    def orders(self) -> dict[Hashable, tuple[int, int]]:
        """Each viewer that it is for, and what it is among that viewer's own runs: the smallest comes first."""
        found: dict[Hashable, tuple[int, int]] = {}
        for request in self.request.each:
            found[request.viewer] = min(request.order, found.get(request.viewer, request.order))
        return found


class Queue:
    """The queue of this process.

    Safe to use from any thread; the line is worked out when it changes, and who waits sleeps.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Ticket] = []
        self._places: dict[Ticket, int] = {}  # of those that wait: how many come first
        self._holder: Ticket | None = None
        self._held_since = 0.0
        self._served: dict[Hashable, int] = {}  # when each viewer's last turn ended

    def join(self, request: AnyRequest) -> Ticket:
        """Get in line."""
        with self._changed:
            ticket = Ticket(request, next(_count))
            self._waiting.append(ticket)
            self._work_out()
            return ticket

    def take(self, ticket: Ticket) -> int:
        """How many come first; 0: the turn is this ticket's."""
        with self._changed:
            if self._holder is ticket:
                return 0
            if place := self._places[ticket]:
                return place
            self._waiting.remove(ticket)
            self._holder, self._held_since = ticket, time.monotonic()
            self._work_out()
            return 0

    def wait(self, ticket: Ticket, place: int, cancel: Cancel) -> None:
        """Sleep until the ticket's place is another one, or `cancel` is set."""
        with cancel.calling(self._wake), self._changed:
            self._changed.wait_for(lambda: cancel.is_set() or self._places.get(ticket) != place)

    def give_back(self, ticket: Ticket) -> None:
        """End the turn, and stay in line for the next one."""
        with self._changed:
            if self._holder is ticket:
                self._end_turn(ticket)
                self._waiting.append(ticket)
                self._work_out()

    def leave(self, ticket: Ticket) -> None:
        """Want no more turns."""
        with self._changed:
            if self._holder is ticket:
                self._end_turn(ticket)
            else:
                self._waiting.remove(ticket)
            here = {viewer for other in self._all() for viewer in other.orders()}
            self._served = {viewer: ended for viewer, ended in self._served.items() if viewer in here}
            self._work_out()

    def holds(self, ticket: Ticket) -> bool:
        """Whether the turn is this ticket's."""
        with self._changed:
            return self._holder is ticket

    def held_s(self) -> float:
        """Seconds since the present turn began."""
        with self._changed:
            return time.monotonic() - self._held_since

    def must_give_way(self, ticket: Ticket, quantum_s: float = QUANTUM_S) -> bool:
        """Whether the holder should give its turn back: at once to a more urgent run of all its viewers, in time to
        others."""
        with self._changed:
            long_held = time.monotonic() - self._held_since > quantum_s
            return any(self._goes_before(other, ticket, long_held) for other in self._waiting)

    def _goes_before(self, other: Ticket, ticket: Ticket, long_held: bool) -> bool:
        theirs, mine = other.orders(), ticket.orders()
        if mine.keys() <= theirs.keys():
            return all(theirs[viewer] < order for viewer, order in mine.items())
        return long_held

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _end_turn(self, ticket: Ticket) -> None:
        self._holder = None
        self._served |= dict.fromkeys(ticket.orders(), next(_count))

    def _all(self) -> list[Ticket]:
        return self._waiting + ([self._holder] if self._holder else [])

    def _work_out(self) -> None:
        """The waiting tickets' places, if nobody else comes; wakes those that wait for another one."""
        queues: dict[Hashable, list[tuple[tuple[int, int], Ticket]]] = {}
        for ticket in self._waiting:
            for viewer, order in ticket.orders().items():
                queues.setdefault(viewer, []).append((order, ticket))
        last = {v: max(self._served.get(v, 0), min(t.number for _, t in queue)) for v, queue in queues.items()}
        for queue in queues.values():
            queue.sort(key=lambda place: place[0], reverse=True)
        turn = itertools.count(max(last.values(), default=0) + 1)
        if self._holder is not None:
            last |= dict.fromkeys(self._holder.orders().keys() & last.keys(), next(turn))
        self._places, first = {}, int(self._holder is not None)
        while queues:
            viewer = min(queues, key=last.__getitem__)
            _, ticket = queues[viewer].pop()
            if ticket not in self._places:
                self._places[ticket] = first + len(self._places)
                last |= dict.fromkeys(ticket.orders().keys() & last.keys(), next(turn))
            if not queues[viewer]:
                del queues[viewer]
        for ticket in self._waiting:  # one that everybody has left, and that will leave
            self._places.setdefault(ticket, first + len(self._places))
        self._changed.notify_all()
