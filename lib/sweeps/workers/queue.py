"""Decides which run may train, one at a time: within this process (`Queue`) and across this machine (`MachineLock`).

`Allowance` limits how many runs a viewer may queue. `Cancel` ends a run and wakes waiting threads.

Viewers take turns: a run that has trained for `QUANTUM_S` lets other viewers go first. Among one viewer's runs, the one
whose control was moved last goes first, immediately; then the runs that opened with the page, in page order; last, the
runs that follow from another result. A run that gives way later resumes where it stopped.

A run shared by several viewers waits in each viewer's queue, and its turn counts for all of them.

The program that holds the machine's turn names itself and the time in a file next to the lock, and gives the turn back
when another program asks. A page of the editor also ends its runs when another page asks, and takes no turn while no
browser shows it.
"""

import itertools
import json
import math
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

from filelock import FileLock, Timeout

from lib.cache_folder import APP_NAME, user_cache_dir
from lib.sweeps.workers.messages import TrainingFailed

QUANTUM_S = 3.0
MAX_WAITING = 4  # runs per viewer on a shared server
SERVED = "MNIST_NOTEBOOKS_SERVED"  # environment variable: how the notebooks are served: “app”, “edit” or “run”
POLL_S = 0.02
ASKED_S = 3.0  # a program counts as waiting for this long after it last asked
START_S = 30.0  # longer than from a page's process start to its lock: the browser may leave in between
END_IT = "“End it”"  # pages show a button in its place


class Cancel(threading.Event):
    """An event that calls functions when set, so that no thread has to poll it.

    `why` is a sentence for the user if someone else ended the run, else empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], object]] = []
        self.why = ""
        self._guard = threading.RLock()  # re-entrant, because a signal handler may set it at any point of its thread

    def set(self, why: str = "") -> None:
        """Set the event and call the functions registered by `calling`. From any thread, any number of times."""
        with self._guard:
            self.why = self.why if self.is_set() else why
            super().set()
            calls = list(self._calls)
        for call in calls:
            call()

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Within the block, call `call()` when the event is set, or at once if it already is.

        Args:
            call: Runs in the thread that sets the event.
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
    NOW = 0  # a control was moved: the viewer is watching
    IN_ORDER = 1  # opened with the page
    LATER = 2  # follows from another result


_count = itertools.count(1)  # one sequence for requests, tickets and turns


@dataclass(frozen=True)
class Request:
    """A viewer's request for a turn, and its urgency. By default each request has a new viewer.

    Requests are ordered by creation, no matter when their runs ask for a turn.
    """

    viewer: Hashable = field(default_factory=object)
    urgency: Urgency = Urgency.IN_ORDER
    number: int = field(default_factory=lambda: next(_count))

    @property
    def order(self) -> tuple[int, int]:
        """Sort key among one viewer's requests: the smallest goes first."""
        return self.urgency, -self.number if self.urgency is Urgency.NOW else self.number


# Of one viewer, or of all viewers of one run, who may join and leave while it waits and while it runs.
AnyRequest = Request | list[Request]


def orders(request: AnyRequest) -> dict[Hashable, tuple[int, int]]:
    """The run's sort key among each viewer's own runs, by viewer: the smallest goes first."""
    found: dict[Hashable, tuple[int, int]] = {}
    for one in [request] if isinstance(request, Request) else list(request):  # a copy: other threads change it
        found[one.viewer] = min(one.order, found.get(one.viewer, one.order))
    return found


@dataclass(frozen=True, eq=False)
class Ticket:
    request: AnyRequest
    number: int


class Queue:
    """The queue of this process.

    Thread-safe. Places are computed when the queue changes; waiting threads sleep.

    Args:
        at_end: Called at the end of each turn, before the next one begins; must return at once.
    """

    def __init__(self, at_end: Callable[[], object] = lambda: None) -> None:
        self._at_end = at_end
        self._changed = threading.Condition()
        self._waiting: list[Ticket] = []
        self._places: dict[Ticket, int] = {}  # tickets ahead of each waiting one
        self._holder: Ticket | None = None
        self._held_since = 0.0
        self._served: dict[Hashable, int] = {}  # when each viewer's last turn ended

    def join(self, request: AnyRequest) -> Ticket:
        """Add a ticket to the queue; it must eventually `leave`."""
        with self._changed:
            ticket = Ticket(request, next(_count))
            self._waiting.append(ticket)
            self._compute_places()
            return ticket

    def take(self, ticket: Ticket) -> int:
        """Take the turn if it is this ticket's, and return 0; else return how many tickets are ahead."""
        with self._changed:
            if self._holder is ticket:
                return 0
            if place := self._places[ticket]:
                return place
            self._waiting.remove(ticket)
            self._holder, self._held_since = ticket, time.monotonic()
            self._compute_places()
            return 0

    def wait(self, ticket: Ticket, place: int, cancel: Cancel) -> None:
        """Sleep until the ticket's place is no longer `place`, or `cancel` is set."""
        with cancel.calling(self._wake), self._changed:
            self._changed.wait_for(lambda: cancel.is_set() or self._places.get(ticket) != place)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def give_back(self, ticket: Ticket) -> None:
        """End the turn if the ticket holds it, and queue again."""
        with self._changed:
            if self._holder is ticket:
                self._at_end()
                self._holder = None
                self._served |= dict.fromkeys(orders(ticket.request), next(_count))
                self._waiting.append(ticket)
                self._compute_places()

    def leave(self, ticket: Ticket) -> None:
        """Leave the queue, and end the turn if the ticket holds it. Call once per ticket."""
        with self._changed:
            self.give_back(ticket)
            self._waiting.remove(ticket)
            others = self._waiting + ([self._holder] if self._holder else [])
            here = {viewer for other in others for viewer in orders(other.request)}
            self._served = {viewer: ended for viewer, ended in self._served.items() if viewer in here}
            self._compute_places()

    def lengths(self) -> tuple[int, int]:
        """Return how many tickets hold the turn (0 or 1), and how many wait."""
        with self._changed:
            return int(self._holder is not None), len(self._waiting)

    def must_give_way(
        self, ticket: Ticket, quantum_s: float = QUANTUM_S, wanted: Callable[[], bool] = lambda: False
    ) -> bool:
        """Whether the ticket that holds the turn should give it back.

        It yields immediately to a run that is more urgent for all its viewers, to other viewers' runs after
        `quantum_s`, and to another program that `wanted` the turn after `QUANTUM_S`.
        """
        with self._changed:
            held_s = time.monotonic() - self._held_since
            return (held_s > QUANTUM_S and wanted()) or any(
                _goes_before(other, ticket, held_s > quantum_s) for other in self._waiting
            )

    def _compute_places(self) -> None:
        """Compute the places of the waiting tickets as if no more arrived, and wake all waiting threads.

        In each round, every viewer has one turn; the one whose last turn ended first begins.
        """
        queues: dict[Hashable, list[tuple[tuple[int, int], int, Ticket]]] = {}
        for ticket in self._waiting:
            for viewer, order in orders(ticket.request).items():
                queues.setdefault(viewer, []).append((order, ticket.number, ticket))
        rounds: dict[Ticket, tuple[int, float]] = {}
        for viewer, queue in queues.items():
            last: float = max(self._served.get(viewer, 0), min(number for _, number, _ in queue))
            if self._holder is not None and viewer in orders(self._holder.request):
                last = math.inf
            for number, (*_, ticket) in enumerate(sorted(queue)):
                rounds[ticket] = min((number, last), rounds.get(ticket, (number, last)))
        # Runs without viewers, which are about to leave the queue, come last.
        waiting = sorted(self._waiting, key=lambda ticket: rounds.get(ticket, (len(rounds), 0)))
        self._places = {ticket: place for place, ticket in enumerate(waiting, int(self._holder is not None))}
        self._changed.notify_all()


def _goes_before(other: Ticket, holder: Ticket, long_held: bool) -> bool:
    theirs, held = orders(other.request), orders(holder.request)
    if held.keys() <= theirs.keys():  # all of the holder's viewers wait for the other run too
        return all(theirs[viewer] < order for viewer, order in held.items())
    return long_held


class Allowance:
    """Limits the unfinished runs of each viewer: one that has its turn, and `most` that wait.

    Runs that open with a page do not count: there are few, and the page requests them in order.

    Args:
        most: None: unlimited.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._guard = threading.Lock()
        self._under_way: list[tuple[Hashable, Callable[[], bool]]] = []

    def admit(self, request: Request, is_over: Callable[[], bool]) -> None:
        """Count a run for this viewer, even if other viewers share it.

        Args:
            request: The viewer's own.
            is_over: Whether the run has ended or the viewer has left it; it then no longer counts.

        Raises:
            TrainingFailed: Too many of the viewer's runs are already waiting.
        """
        if self.most is None or request.urgency is not Urgency.NOW:
            return
        with self._guard:
            self._under_way = [(viewer, over) for viewer, over in self._under_way if not over()]
            if sum(viewer == request.viewer for viewer, _ in self._under_way) > self.most:
                raise TrainingFailed(
                    f"Expected at most {self.most} of your runs to wait, got one more; stop one or let one finish, then"
                    " try again."
                )
            self._under_way.append((request.viewer, is_over))


ALLOWANCE = Allowance()  # for this process; a class site sets its limit


@dataclass(frozen=True)
class Holder:
    """The program that holds the machine's turn."""

    program: str
    pid: int
    since: float  # seconds since 1970
    is_page: bool = False  # of the editor: it ends its runs when another page asks

    @property
    def waited_for(self) -> str:
        """A message for a waiting viewer: what is measuring, and how to end it."""
        measures = f"since {datetime.fromtimestamp(self.since):%H:%M:%S} is measuring; to end it,"
        if not self.is_page:
            return f"{self.program} (process {self.pid}), {measures} end that program"
        how = f"press {END_IT}" if _in_editor() else "close that tab"
        return f"the page “{Path(self.program).stem.replace('_', ' ')}” in another tab, {measures} {how}"


def _in_editor() -> bool:
    return os.environ.get(SERVED) in ("app", "edit")


def folder() -> Path:
    """The folder of the lock: one per user and machine.

    Several machines may share a home directory, and several users a temporary folder.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / APP_NAME if given else user_cache_dir(APP_NAME) / f"turn-{platform.node()}"


def note_left(pages: Iterable[int | None], others: Iterable[int | None]) -> None:
    """Mark the editor pages, by process id, that no browser shows, and unmark `others`."""
    with suppress(OSError):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        for pid in pages:
            (folder() / f"left-{pid}").touch()
        for pid in others:
            (folder() / f"left-{pid}").unlink(missing_ok=True)


class MachineLock:
    """A lock file, a file that names the holder, and a file whose age tells the holder that another program waits.

    As a context manager, it waits for the turn and gives it back at the end.
    """

    def __init__(self) -> None:
        self._folder = folder()
        self._lock = FileLock(self._folder / "timing.lock", thread_local=False)
        self._holder, self._waiting = self._folder / "holder.json", self._folder / "waiting"
        self._to_end, self._left = (self._folder / f"{what}-{os.getpid()}" for what in ("end", "left"))
        self._made_at = time.time()
        self._not_before = 0.0  # when this program may take the turn again, in seconds of the monotonic clock

    def __enter__(self) -> "MachineLock":
        while not self.take():
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Ask for the turn without waiting; True if this program may proceed, or already holds the turn.

        Also True if no lock file can be created: running unprotected beats not running.
        """
        if self._lock.is_locked:  # the lock counts acquisitions, and one release must be enough
            return True
        if self.is_left() or time.monotonic() < self._not_before:
            return False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            with suppress(OSError):
                self._waiting.touch()  # tells the holder that this program waits
            return False
        except OSError:
            return True
        self.is_to_end()  # discard a request that arrived too late for the previous turn
        me = Holder(Path(sys.argv[0]).name or "python", os.getpid(), time.time(), _in_editor())
        with suppress(OSError):
            self._holder.write_text(json.dumps(asdict(me)))
        return True

    def release(self) -> None:
        """Give the turn back, and if another program asked, leave it time to take it: it polls every `POLL_S`."""
        if self._lock.is_locked:
            if self.wanted():
                with suppress(OSError):
                    self._waiting.unlink()
                self._not_before = time.monotonic() + 5 * POLL_S
            with suppress(OSError):
                self._holder.unlink()
            self._lock.release()

    def holder(self) -> Holder | None:
        """Return the program that holds the turn; None if unknown."""
        try:
            return Holder(**json.loads(self._holder.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_left(self) -> bool:
        """Whether this program is a page that no browser currently shows."""
        try:
            return self._left.stat().st_mtime > self._made_at - START_S  # older: of an earlier process with this id
        except OSError:
            return False

    def is_to_end(self) -> bool:
        """Whether another page has asked to end this program's runs; True once per request."""
        try:
            self._to_end.unlink()
        except OSError:
            return False
        return True

    def end_holder(self) -> None:
        """Ask the page that holds the turn to end its runs; only editor pages may ask, and only they comply."""
        holder = self.holder()
        if _in_editor() and holder is not None and holder.is_page:
            with suppress(OSError):
                (self._folder / f"end-{holder.pid}").touch()

    def wanted(self) -> bool:
        """Whether another program has asked for the turn within the last `ASKED_S`."""
        try:
            return time.time() - self._waiting.stat().st_mtime < ASKED_S
        except OSError:
            return False
