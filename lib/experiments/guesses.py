"""What a class guesses before it sees a result: anonymous counts by question, in memory, gone with the server.

While a session lasts, its own guesses are known by a random name, so that a later one replaces the one before. When it
has ended the name is forgotten; what it guessed stays in the counts, and nothing says whose it was.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from lib.experiments.background import Watched
from lib.once import once
from lib.workers.notes import State

MAX_QUESTIONS = 200  # of a section; with the one answered longest ago its counts go
MAX_VIEWERS = 2_000  # of whom it is known what they guessed; the first are forgotten as if they had left


@dataclass(frozen=True)
class Question:
    """What is asked in a section, and what may be answered.

    `about` is the setting that the answer depends on, such as the learning rates to choose from; with another setting
    it is another question.
    """

    section: str
    asks: str
    options: tuple[str, ...]
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tally:
    """All counts at one moment: of each question, how often each of its options was chosen."""

    counts: Mapping[Question, Mapping[str, int]]
    version: int

    def of(self, question: Question) -> dict[str, int]:
        """How often each option was chosen, in the order of the options; zeros where nobody has answered."""
        found = self.counts.get(question, {})
        return {option: found.get(option, 0) for option in question.options}


class Guesses(Watched):
    """The guesses of all viewers of a server. Safe to use from any thread."""

    def __init__(self) -> None:
        super().__init__(State.MEASURING)
        self._counts: OrderedDict[Question, Counter[str]] = OrderedDict()
        self._by_viewer: OrderedDict[str, dict[Question, str]] = OrderedDict()
        self._gone: deque[str] = deque()

    def guess(self, viewer: str, question: Question, option: str) -> None:
        """Count a viewer's guess, in place of the one before.

        Args:
            viewer: A random name of the session.
            question: What was asked.
            option: One of the question's.

        Raises:
            ValueError: The option is none of the question's.
        """
        if option not in question.options:
            raise ValueError(f"guess: expected one of {', '.join(question.options)}, got {option}; choose one of them")
        with self.changed:
            self._forget_who_left()
            guessed = self._by_viewer.setdefault(viewer, {})
            counts = self._counts.setdefault(question, Counter())
            if (before := guessed.get(question)) is not None:
                counts[before] -= 1
            counts[option] += 1
            guessed[question] = option
            self._counts.move_to_end(question)
            self._keep_within_limits(question.section)
            self._tell()

    def of(self, viewer: str, question: Question) -> str | None:
        """What the viewer has guessed; None for nothing."""
        with self.changed:
            return self._by_viewer.get(viewer, {}).get(question)

    def forget(self, viewer: str) -> None:
        """Forget who guessed what, but not what was guessed: the session has ended.

        It takes no lock, because the garbage collector calls it, in whatever thread.
        """
        self._gone.append(viewer)

    def clear(self) -> None:
        """Forget all guesses, as before a lesson begins."""
        with self.changed:
            self._counts.clear()
            self._by_viewer.clear()
            self._tell()

    def tally(self) -> Tally:
        """The counts now."""
        with self.changed:
            self._forget_who_left()
            return Tally({question: dict(counts) for question, counts in self._counts.items()}, self.version)

    def _forget_who_left(self) -> None:
        while self._gone:
            self._by_viewer.pop(self._gone.popleft(), None)

    def _keep_within_limits(self, section: str) -> None:
        while len(self._by_viewer) > MAX_VIEWERS:
            self._by_viewer.popitem(last=False)
        for oldest in [one for one in self._counts if one.section == section][:-MAX_QUESTIONS]:
            del self._counts[oldest]
            for guessed in self._by_viewer.values():
                guessed.pop(oldest, None)


@once
def guesses_of_class() -> Guesses:
    """The guesses of all who look at this server's pages."""
    return Guesses()
