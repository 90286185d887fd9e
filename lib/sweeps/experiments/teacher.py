"""What a teacher says to all pages of a class, and which section they look at: in memory, for one server.

Pages follow what is said, which is not told of what they do themselves: a class has a hundred.
"""

from collections import Counter, deque
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from lib.once import once
from lib.sweeps.experiments.guesses import guesses_of_class
from lib.sweeps.experiments.results import News, Watched
from lib.sweeps.experiments.runs import under_way
from lib.sweeps.workers.engine import Engine, shared_engine
from lib.sweeps.workers.messages import State

# The first notebook's sections in the order of its page, by the names of their experiments.
SECTIONS = ("learning-rate", "batch-size", "depth", "backend", "random-search", "inside")


@dataclass(frozen=True)
class Said:
    """What holds for the whole class.

    `predicts`: results are shown after a guess; `shows`: everybody sees the guesses of all; `pauses`: pupils begin no
    new runs; `observed`: somebody looks at how many are on which section.
    """

    predicts: bool = False
    shows: bool = False
    pauses: bool = False
    observed: bool = False


class Classroom(Watched):
    """What is said to a class, and where its pages are. Safe to use from any thread."""

    def __init__(self) -> None:
        super().__init__(State.MEASURING)
        self.said, self.heard = Said(), News()
        self._pages: set[str] = set()
        self._sections: dict[str, str] = {}
        self._gone: deque[str] = deque()
        self._observers: set[str] = set()

    def say(self, **changes: Any) -> None:
        """Change what holds for the class, by the fields of `Said`, and tell all pages."""
        with self.changed:
            said = replace(self.said, **changes)
            if said != self.said:
                self.said = said
                self._tell()
                self.heard.tell()

    def wait_until_it_goes_on(self, ended: Event) -> None:
        """While the class is paused, wait, or until the event is set, which is looked at once a second."""
        with self.changed:
            while self.said.pauses and not ended.is_set():
                self.changed.wait(1.0)

    def come(self, name: str) -> None:
        """A page of the first notebook was opened; it goes when it is forgotten."""
        with self.changed:
            self._pages.add(name)
            self._tell()

    def look(self, viewer: str, section: str) -> None:
        """A page shows this section now.

        Args:
            viewer: A random name of the session.
            section: One of `SECTIONS`.

        Raises:
            ValueError: There is no such section.
        """
        if section not in SECTIONS:
            raise ValueError(f"section: expected one of {', '.join(SECTIONS)}, got {section}")
        with self.changed:
            self._forget_who_left()
            self._sections[viewer] = section
            self._tell()

    def observe(self, observer: str) -> None:
        """Somebody looks at which sections are shown, until they `forget` it."""
        with self.changed:
            self._observers.add(observer)
            self.say(observed=True)

    def forget(self, name: str) -> None:
        """A page or an observer has gone. It takes no lock, because the garbage collector calls it."""
        self._gone.append(name)

    def sections(self) -> tuple[dict[str, int], int]:
        """How many pages show each section, and how many pages there are."""
        with self.changed:
            self._forget_who_left()
            found = Counter(self._sections.values())
            return {section: found[section] for section in SECTIONS}, len(self._pages)

    def _forget_who_left(self) -> None:
        while self._gone:
            name = self._gone.popleft()
            self._sections.pop(name, None)
            self._pages.discard(name)
            self._observers.discard(name)
        self.say(observed=bool(self._observers))


@once
def classroom() -> Classroom:
    """The class of this server."""
    return Classroom()


@dataclass(frozen=True)
class Queued:
    """What trains and what waits: how many hold the turn and wait for it, and the runs under way by name."""

    running: int
    waiting: int
    names: tuple[str, ...]


class Overview(Watched):
    """All that a teacher sees, as one: it changes when the guesses, the class or the queue do.

    The queue is looked at by whoever waits for news.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        super().__init__(State.MEASURING)
        self.room, self.guesses = classroom(), guesses_of_class()
        self._engine = engine or shared_engine()
        self.queued = Queued(0, 0, ())
        self.room.followed_by(self)
        self.guesses.followed_by(self)

    def wait_for_news(self, version: int, timeout_s: float | None = None) -> bool:
        """Wait, and look at the queue. Whether the version is another one."""
        super().wait_for_news(version, timeout_s)
        self.look()
        with self.changed:
            return self.version != version

    def look(self) -> None:
        """Look at the queue, and who has left."""
        queued = Queued(*self._engine.queue_lengths(), under_way())
        self.room.sections()
        with self.changed:
            if queued != self.queued:
                self.queued = queued
                self._tell()
