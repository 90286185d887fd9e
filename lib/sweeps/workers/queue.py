"""Whose turn it is to train: one at a time in this process (`Queue`) and on this machine
(`lib.sweeps.workers.machine_lock`).

Viewers take turns: a run that trains for longer than `QUANTUM_S` lets the other viewers go first. Of one viewer's own
runs the one whose control was moved last goes first, and at once; those that opened with the page follow in the page's
order; those that merely follow from another result come last. A run that gives way resumes later where it stopped.

A run that several viewers want waits in the queue of each, and its turn counts for each of them.
"""

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import TrainingFailed

QUANTUM_S = 3.0
MAX_WAITING = 4  # of one viewer's runs, where many share a server


class Urgency(IntEnum):
    """How much of a hurry the viewer is in."""

    NOW = 0  # a control was moved: somebody looks at it
    IN_ORDER = 1  # it opened with the page
    LATER = 2  # it follows from another result


_count = itertools.count(1)  # of requests, tickets and turns, in one order


@dataclass(frozen=True)
class Request:
    """Who asks for a turn, and how urgently. By default each request is by a viewer of its own.

    Requests are in the order in which they were made, no matter when their runs ask for a turn.
    """

    viewer: Hashable = field(default_factory=object)
    urgency: Urgency = Urgency.IN_ORDER
    number: int = field(default_factory=lambda: next(_count))

    @property
    def order(self) -> tuple[int, int]:
        """A key to sort the same viewer's requests by: the smallest goes first."""
        return self.urgency, -self.number if self.urgency is Urgency.NOW else self.number

    @property
    def each(self) -> tuple["Request", ...]:
        """The requests of all viewers of the run: this one."""
        return (self,)


class SharedRequest:
    """The requests of all who want one run; viewers may come and go while it waits and while it runs."""

    def __init__(self, *requests: Request) -> None:
        self.each: tuple[Request, ...] = requests  # replaced whole: other threads read it

    def add(self, request: Request) -> None:
        """Add the request of one more viewer."""
        self.each = (*self.each, request)

    def discard(self, request: Request) -> None:
        """Remove a viewer's request; nothing happens where it is not there."""
        self.each = tuple(one for one in self.each if one is not request)


AnyRequest = Request | SharedRequest


def orders(request: AnyRequest) -> dict[Hashable, tuple[int, int]]:
    """A run's order among each viewer's own, by viewer: the smallest goes first."""
    found: dict[Hashable, tuple[int, int]] = {}
    for one in request.each:
        found[one.viewer] = min(one.order, found.get(one.viewer, one.order))
    return found


def more_urgent(one: AnyRequest, other: AnyRequest) -> bool:
    """Whether the one goes before the other for all of the other's viewers."""
    mine, theirs = orders(one), orders(other)
    return theirs.keys() <= mine.keys() and all(mine[viewer] < order for viewer, order in theirs.items())


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the queue, from `Queue.join`."""

    request: AnyRequest
    number: int


class Queue:
    """The queue of this process.

    Safe to use from any thread; places are worked out when the queue changes, and a thread that waits sleeps.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Ticket] = []
        self._places: dict[Ticket, int] = {}  # of those that wait: how many come first
        self._holder: Ticket | None = None
        self._held_since = 0.0
        self._served: dict[Hashable, int] = {}  # when each viewer's last turn ended

    def join(self, request: AnyRequest) -> Ticket:
        """A new place in the queue; the ticket must `leave` in the end."""
        with self._changed:
            ticket = Ticket(request, next(_count))
            self._waiting.append(ticket)
            self._work_out()
            return ticket

    def take(self, ticket: Ticket) -> int:
        """Take the turn if it is this ticket's: 0, else how many come first."""
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
        """Sleep until the ticket's place is no longer `place`, or `cancel` is set."""
        with cancel.calling(self._wake), self._changed:
            self._changed.wait_for(lambda: cancel.is_set() or self._places.get(ticket) != place)

    def give_back(self, ticket: Ticket) -> None:
        """End the turn, if the ticket holds it, and stay in the queue for the next one."""
        with self._changed:
            if self._holder is ticket:
                self._end_turn(ticket)
                self._waiting.append(ticket)
                self._work_out()

    def leave(self, ticket: Ticket) -> None:
        """Leave the queue, and end the turn if the ticket holds it. Once for each ticket."""
        with self._changed:
            if self._holder is ticket:
                self._end_turn(ticket)
            else:
                self._waiting.remove(ticket)
            here = {viewer for other in self._all() for viewer in orders(other.request)}
            self._served = {viewer: ended for viewer, ended in self._served.items() if viewer in here}
            self._work_out()

    def holds(self, ticket: Ticket) -> bool:
        """Whether the turn is this ticket's."""
        with self._changed:
            return self._holder is ticket

    def lengths(self) -> tuple[int, int]:
        """How many hold the turn, 0 or 1, and how many wait for it."""
        with self._changed:
            return int(self._holder is not None), len(self._waiting)

    def held_s(self) -> float:
        """Seconds since the present turn began."""
        with self._changed:
            return time.monotonic() - self._held_since

    def must_give_way(self, ticket: Ticket, quantum_s: float = QUANTUM_S) -> bool:
        """Whether the ticket that holds the turn should give it back.

        At once to a run that is more urgent for all of its viewers; to runs of other viewers once it has held the turn
        for `quantum_s`.
        """
        with self._changed:
            long_held = time.monotonic() - self._held_since > quantum_s
            return any(self._goes_before(other, ticket, long_held) for other in self._waiting)

    def _goes_before(self, other: Ticket, ticket: Ticket, long_held: bool) -> bool:
        if orders(ticket.request).keys() <= orders(other.request).keys():
            return more_urgent(other.request, ticket.request)
        return long_held

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _end_turn(self, ticket: Ticket) -> None:
        self._holder = None
        self._served |= dict.fromkeys(orders(ticket.request), next(_count))

    def _all(self) -> list[Ticket]:
        return self._waiting + ([self._holder] if self._holder else [])

    def _work_out(self) -> None:
        """Work out the places of the waiting tickets, assuming that nobody else comes, and wake all who wait."""
        queues: dict[Hashable, list[tuple[tuple[int, int], Ticket]]] = {}
        for ticket in self._waiting:
            for viewer, order in orders(ticket.request).items():
                queues.setdefault(viewer, []).append((order, ticket))
        last = {v: max(self._served.get(v, 0), min(t.number for _, t in queue)) for v, queue in queues.items()}
        for queue in queues.values():
            queue.sort(key=lambda place: place[0], reverse=True)
        turn = itertools.count(max(last.values(), default=0) + 1)
        if self._holder is not None:
            last |= dict.fromkeys(orders(self._holder.request).keys() & last.keys(), next(turn))
        self._places, first = {}, int(self._holder is not None)
        while queues:
            viewer = min(queues, key=last.__getitem__)
            _, ticket = queues[viewer].pop()
            if ticket not in self._places:
                self._places[ticket] = first + len(self._places)
                last |= dict.fromkeys(orders(ticket.request).keys() & last.keys(), next(turn))
            if not queues[viewer]:
                del queues[viewer]
        for ticket in self._waiting:  # those that all viewers have left, and that will leave the queue
            self._places.setdefault(ticket, first + len(self._places))
        self._changed.notify_all()


class Allowance:
    """How many runs a viewer may have asked for that are not over: one that has its turn, and `most` that wait.

    What opens with a page does not count: it is the page that asks, in its order, and few times.

    Args:
        most: None for any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._guard = threading.Lock()
        self._under_way: list[tuple[Hashable, Callable[[], bool]]] = []

    def admit(self, request: Request, is_over: Callable[[], bool]) -> None:
        """Count a run for this viewer, whoever else wants it.

        Args:
            request: The viewer's own.
            is_over: Whether the run has ended, or the viewer has left it; it then no longer counts.

        Raises:
            TrainingFailed: So many of the viewer's runs wait already that this one is refused.
        """
        if self.most is None or request.urgency is not Urgency.NOW:
            return
        with self._guard:
            self._under_way = [(viewer, over) for viewer, over in self._under_way if not over()]
            if sum(viewer == request.viewer for viewer, _ in self._under_way) > self.most:
                raise TrainingFailed(
                    f"Expected at most {self.most} of your runs to wait, got one more; stop one of them or let one"
                    " finish, then ask again."
                )
            self._under_way.append((request.viewer, is_over))


ALLOWANCE = Allowance()  # of this process; a class site sets its limit
