"""What a teacher says to all pages of a class, and what these guess: in memory, for one server.

Pages follow what is said, which is not told of what they do themselves: a class has a hundred.

What a class guesses before it sees a result is anonymous counts by question. While a session lasts, its own guesses are
known by a random name, so that a later one replaces the one before. When it has ended the name is forgotten; what it
guessed stays in the counts, and nothing says whose it was. No guess pushes out another question's: each has a limit of
its own.

What is asked is generated from what will be trained. To watch a demonstration teaches no more than not to see it; to
predict its outcome first does (C. Crouch et al., American Journal of Physics 72, 835, 2004).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from lib.once import once
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Watched

# The first notebook's sections that ask for a guess, in the order of its page, by the names of their experiments.
SECTIONS = ("learning-rate", "batch-size", "depth", "backend")


@dataclass(frozen=True)
class Said:
    """What holds for the whole class.

    `predicts`: results are shown after a guess; `shows`: everybody sees the guesses of all; `pauses`: pupils begin no
    new runs.
    """

    predicts: bool = False
    shows: bool = False
    pauses: bool = False


class Classroom(Watched):
    """What is said to a class. Safe to use from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.heard = Said(), Watched()

    def say(self, **changes: Any) -> None:
        """Change what holds for the class, by the fields of `Said`, and tell all pages."""
        with self.changed:
            said = replace(self.said, **changes)
            if said != self.said:
                self.said = said
                self.tell()
                self.heard.tell()

    def wait_until_it_goes_on(self, ended: Event) -> None:
        """While the class is paused, wait, or until the event is set, which is looked at once a second."""
        with self.changed:
            while self.said.pauses and not ended.is_set():
                self.changed.wait(1.0)


@once
def classroom() -> Classroom:
    return Classroom()


MAX_VIEWERS = 2_000  # of whom it is known what they guessed of a question; the first are forgotten as if they had left
MAX_QUESTIONS = 50_000  # of some 1 kB each; guesses of yet another one are not counted


@dataclass(frozen=True)
class GuessQuestion:
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
    counts: Mapping[GuessQuestion, Mapping[str, int]]

    def of(self, question: GuessQuestion) -> dict[str, int]:
        """How often each option was chosen, in the order of the options; zeros where nobody has answered."""
        found = self.counts.get(question, {})
        return {option: found.get(option, 0) for option in question.options}


class Guesses(Watched):
    def __init__(self) -> None:
        super().__init__()
        # How often each option was chosen, and the option of those viewers who are still there.
        self._guessed: dict[GuessQuestion, tuple[Counter[str], dict[str, str]]] = {}
        self._gone: deque[str] = deque()

    def guess(self, viewer: str, question: GuessQuestion, option: str) -> None:
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
            if question not in self._guessed and len(self._guessed) >= MAX_QUESTIONS:
                return
            counts, by_viewer = self._guessed[question] = self._guessed.pop(question, (Counter(), {}))  # comes last
            if (before := by_viewer.get(viewer)) is not None:
                counts[before] -= 1
            counts[option] += 1
            by_viewer[viewer] = option
            if len(by_viewer) > MAX_VIEWERS:
                del by_viewer[next(iter(by_viewer))]
            self.tell()

    def of(self, viewer: str, question: GuessQuestion) -> str | None:
        with self.changed:
            _, by_viewer = self._guessed.get(question, ({}, {}))
            return by_viewer.get(viewer)

    def forget(self, viewer: str) -> None:
        """Forget who guessed what, but not what was guessed: the session has ended.

        It takes no lock, because the garbage collector calls it, in whatever thread.
        """
        self._gone.append(viewer)

    def clear(self) -> None:
        with self.changed:
            self._guessed.clear()
            self.tell()

    def tally(self) -> Tally:
        with self.changed:
            self._forget_who_left()
            return Tally({question: dict(counts) for question, (counts, _) in self._guessed.items()})

    def _forget_who_left(self) -> None:
        while self._gone:
            viewer = self._gone.popleft()
            for _, by_viewer in self._guessed.values():
                by_viewer.pop(viewer, None)


@once
def guesses_of_class() -> Guesses:
    return Guesses()


BEST, DIVERGES, FACTOR = "best", "diverges", "factor"
YES, NO = "yes", "no"
TIMED = ("batch-size", "backend")  # the experiments whose lines differ in seconds by much
FACTORS = ("1", "1.5", "2", "3", "5", "7", "10", "15", "20", "30", "50", "70", "100", "200", "300", "500", "1000")


@dataclass(frozen=True)
class Guess:
    """What one viewer guessed of one experiment: which of its lines wins, and what else was asked; empty for nothing.

    `diverges` is `YES` or `NO`, `factor` is how many times as long an epoch of the slowest takes as one of the fastest.
    """

    best: str
    diverges: str = ""
    factor: str = ""


def questions(experiment: Experiment) -> tuple[GuessQuestion, ...]:
    """What is asked of an experiment; the first is which line wins, and its answer shows the result.

    They depend on the lines that compete, and on no other control.
    """
    lines = experiment.labels
    asked = [GuessQuestion(experiment.name, BEST, lines, lines)]
    if experiment.name == "learning-rate":
        asked.append(GuessQuestion(experiment.name, DIVERGES, (YES, NO), lines))
    if experiment.name in TIMED and len(lines) > 1:
        asked.append(GuessQuestion(experiment.name, FACTOR, FACTORS, lines))
    return tuple(asked)


def guess_of(answers: Mapping[GuessQuestion, str], experiment: Experiment) -> Guess | None:
    """The guess on an experiment among a viewer's answers; None where no winner was named."""
    found = {question.asks: answers[question] for question in questions(experiment) if question in answers}
    return Guess(**found) if BEST in found else None
