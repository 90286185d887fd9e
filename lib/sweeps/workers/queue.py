"""Whose turn it is to train, one at a time: in this process (`Queue`), on this machine (`MachineLock`), and how many
turns a viewer may wait for (`Allowance`). What ends a run, and wakes whoever waits: `Cancel`.

Viewers take turns: a run that trains for longer than `QUANTUM_S` lets the other viewers go first. Of one viewer's own
runs the one whose control was moved last goes first, and at once; those that opened with the page follow in the page's
order; those that merely follow from another result come last. A run that gives way resumes later where it stopped.

A run that several viewers want waits in the queue of each, and its turn counts for each of them.

A program that holds the machine's turn says so in a file beside the lock: which program, and since when. It gives the
turn back when another asks for it. One that does not, because it sleeps in a debugger, holds nobody up for longer than
`PATIENCE_S`: others then go on beside it, and their times are marked. A page of the editor also ends its runs when
another page asks for that, and takes no turn while no browser shows it.
"""

import itertools
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from lib.cache_folder import APP_NAME, user_cache_dir
from lib.model.hardware.optional import FileLock, Timeout
from lib.sweeps.workers.messages import TrainingFailed

QUANTUM_S = 3.0
MAX_WAITING = 4  # of one viewer's runs, where many share a server
SERVED = "MNIST_NOTEBOOKS_SERVED"  # environment variable: how the notebooks are served: “app”, “edit” or “run”
POLL_S = 0.02
ASKED_S = 3.0  # a program counts as one that waits for so long after it asked
PATIENCE_S = 60.0
START_S = 30.0  # longer than a page takes from its process to its lock: it may be left meanwhile
END_IT = "“End it”"  # in words for whoever waits: there a page shows a button


class Cancel(threading.Event):
    """An event that calls functions when it is set, so that nobody has to poll it.

    `why` is a sentence for the person where somebody else set it, else empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], object]] = []
        self.why = ""
        self._guard = threading.RLock()  # a signal's handler may set it, in whatever its thread is at

    def set(self, why: str = "") -> None:
        """Set the event, and call what was registered by `calling`. From any thread, any number of times."""
        with self._guard:
            self.why = self.why if self.is_set() else why
            super().set()
            calls = list(self._calls)
        for call in calls:
            call()

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Within the block, call this function when the event is set; at once where it is set already.

        Args:
            call: Without arguments; it runs in whichever thread sets the event.
        """
        with self._guard:
            self._calls.append(call)
            already = self.is_set()
        if already:
            call()
        try:
            yield
        finally:
            with self._guard:
                self._calls.remove(call)


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
    """Whether `one` outranks `other` for every viewer of `other`."""
    mine, theirs = orders(one), orders(other)
    return theirs.keys() <= mine.keys() and all(mine[viewer] < order for viewer, order in theirs.items())


@dataclass(frozen=True, eq=False)
class Ticket:
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
        with self._changed:
            return self._holder is ticket

    def lengths(self) -> tuple[int, int]:
        """How many hold the turn, 0 or 1, and how many wait for it."""
        with self._changed:
            return int(self._holder is not None), len(self._waiting)

    def held_s(self) -> float:
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


@dataclass(frozen=True)
class Holder:
    """The program that holds the turn, and since when."""

    program: str
    pid: int
    since: float  # seconds since 1970
    is_page: bool = False  # of the editor
    heeds: bool = False  # ends its runs when another page asks for it, as pages of older versions do not

    @classmethod
    def me(cls) -> "Holder":
        """This program, from now on."""
        is_page = _in_editor()
        return cls(Path(sys.argv[0]).name or "python", os.getpid(), time.time(), is_page, heeds=is_page)

    def __str__(self) -> str:
        since = f"since {datetime.fromtimestamp(self.since):%H:%M:%S}"
        if self.is_page:
            return f"the page “{Path(self.program).stem.replace('_', ' ')}” in another tab, {since}"
        return f"{self.program} (process {self.pid}), {since}"

    @property
    def waited_for(self) -> str:
        """In words for whoever waits: what measures, and how to end it."""
        if self.heeds and _in_editor():
            how = f"press {END_IT}"
        else:
            how = "close that tab" if self.is_page else "end that program"
        return f"{self} is measuring; to end it, {how}"

    @property
    def disturbs(self) -> str:
        """The warning on times that are taken beside it."""
        return f"timed beside another measurement, by {self}, which did not give way: end it, and measure again"


def _in_editor() -> bool:
    return os.environ.get(SERVED) in ("app", "edit")


def folder() -> Path:
    """Where the lock lies: a folder of this person's on this machine.

    A home may be shared by machines, and a temporary folder by persons.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / APP_NAME if given else user_cache_dir(APP_NAME) / f"turn-{platform.node()}"


def note_left(pages: Iterable[int | None], others: Iterable[int | None]) -> None:
    """Note which pages of the editor no browser shows, by process ids, and of which others that is no longer so."""
    with suppress(OSError):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        for pid in pages:
            (folder() / f"left-{pid}").touch()
        for pid in others:
            (folder() / f"left-{pid}").unlink(missing_ok=True)


class MachineLock:
    """A lock file; a file that says who holds it; and a file whose age tells the holder that somebody waits.

    As a context manager it waits for the turn, and gives it back at the end.

    Args:
        patience_s: Seconds after which a holder that does not give way is no longer waited for.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._folder = folder()
        self._lock = FileLock(self._folder / "timing.lock", thread_local=False)
        self._holder, self._waiting = self._folder / "holder.json", self._folder / "waiting"
        self._to_end, self._left = (self._folder / f"{what}-{os.getpid()}" for what in ("end", "left"))
        self._made_at = time.time()
        self._asked: tuple[Holder | None, float, float] | None = None  # which holder, since when, and when last
        self._overtaken: Holder | None = None  # whom it lost its patience with
        self.beside: Holder | None = None  # who holds it, where this program runs beside it

    def __enter__(self) -> "MachineLock":
        while not self.take():
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Ask for the turn, without waiting; True if this program may go on, as it may when it holds the turn already.

        Also True where no lock file can be made (better unprotected than not at all), and where a holder did not give
        way: `beside` then names it.
        """
        if self._lock.is_locked or self.beside:  # the lock counts, and one release must be enough
            return True
        if self.is_left():
            return False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            return self._ask()
        except OSError:
            return True
        self.is_to_end()  # a request that came too late for the turn before
        with suppress(OSError):
            self._holder.write_text(json.dumps(asdict(Holder.me())))
        return True

    def release(self) -> None:
        """Give the turn back, and wait long enough for another that asked for it: it looks every `POLL_S`."""
        self.beside = None
        if self._lock.is_locked:
            asked = self.wanted()
            with suppress(OSError):
                self._holder.unlink()
            self._lock.release()
            if asked:
                with suppress(OSError):
                    self._waiting.unlink()
                time.sleep(5 * POLL_S)

    def holder(self) -> Holder | None:
        """The program that holds the turn; None where that is not known."""
        try:
            return Holder(**json.loads(self._holder.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_left(self) -> bool:
        """Whether this program is a page that no browser shows at present."""
        try:
            return self._left.stat().st_mtime > self._made_at - START_S  # else of another that had this process id
        except OSError:
            return False

    def is_to_end(self) -> bool:
        """Whether another page has asked that this program's runs end; a request is told once."""
        try:
            self._to_end.unlink()
        except OSError:
            return False
        return True

    def end_holder(self) -> None:
        """Ask the page that holds the turn to end its runs; only pages of the editor may, and only they do so."""
        holder = self.holder()
        if _in_editor() and holder is not None and holder.heeds:
            with suppress(OSError):
                (self._folder / f"end-{holder.pid}").touch()

    def wanted(self) -> bool:
        """Whether another program has asked for the turn within the last `ASKED_S`."""
        try:
            return time.time() - self._waiting.stat().st_mtime < ASKED_S
        except OSError:
            return False

    def _ask(self) -> bool:
        """Tell the holder that somebody waits; True where it has not given way for too long."""
        with suppress(OSError):
            self._waiting.touch()
        now, holder = time.monotonic(), self.holder()
        asked = self._asked
        since = asked[1] if asked is not None and asked[0] == holder and now - asked[2] < ASKED_S else now
        self._asked = (holder, since, now)
        if now - since > self._patience_s:
            self._overtaken = holder or Holder("another program", 0, time.time())
        if self._overtaken is not None and holder in (self._overtaken, None):
            self.beside = self._overtaken
        return self.beside is not None
