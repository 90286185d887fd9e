"""A teacher's settings for a class, and the class's guesses; kept in memory, per server.

Guesses are anonymous counts by question. During a session, a random name links its guesses, so that a later guess
replaces an earlier one. Afterwards the name is forgotten and only the counts remain.

Questions are generated from the experiment to be trained. Students who only watch a demonstration learn no more than
those who do not see it; predicting its outcome first helps (C. Crouch et al., American Journal of Physics 72, 835,
2004).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event

from lib.once import once
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Watched

# Sections of the first notebook that ask for a guess, in page order, by experiment name.
SECTIONS = ("learning-rate", "batch-size", "depth", "backend")


class Classroom(Watched):
    """Settings of the whole class. Thread-safe.

    `predicts`: results appear only after a guess; `shows`: everyone sees all guesses; `pauses`: pupils start no runs.
    """

    predicts = False
    shows = False
    pauses = False

    def say(self, setting: str, on: bool) -> None:
        """Change a setting, and notify all pages."""
        with self.changed:
            setattr(self, setting, on)
            self.tell()

    def wait_until_it_goes_on(self, ended: Event) -> None:
        """Block while the class is paused, unless `ended` is set (checked once a second)."""
        with self.changed:
            while self.pauses and not ended.is_set():
                self.changed.wait(1.0)


@once
def classroom() -> Classroom:
    return Classroom()


@dataclass(frozen=True)
class GuessQuestion:
    """A section's question and its possible answers.

    `about` is the setting that the answer depends on, such as the learning rates offered; a new setting makes a new
    question.
    """

    section: str
    asks: str
    options: tuple[str, ...]
    about: tuple[str, ...] = ()


# Number of guesses per option, in the order of the options; the most recently answered question comes last.
Tally = Mapping[GuessQuestion, Mapping[str, int]]


class Guesses(Watched):
    def __init__(self) -> None:
        super().__init__()
        # By question: counts per option, and the current option of each viewer still present.
        self._guessed: dict[GuessQuestion, tuple[Counter[str], dict[str, str]]] = {}
        self._gone: deque[str] = deque()

    def guess(self, viewer: str, question: GuessQuestion, option: str) -> None:
        """Count a viewer's guess, replacing an earlier one.

        Args:
            viewer: The session's random name.
            question: The question answered.
            option: One of the question's options.
        """
        with self.changed:
            self._forget_who_left()
            counts, by_viewer = self._guessed[question] = self._guessed.pop(question, (Counter(), {}))  # comes last
            if (before := by_viewer.get(viewer)) is not None:
                counts[before] -= 1
            counts[option] += 1
            by_viewer[viewer] = option
            self.tell()

    def forget(self, viewer: str) -> None:
        """Forget an ended session's name, but keep its guesses in the counts.

        Takes no lock, because the garbage collector may call it in any thread.
        """
        self._gone.append(viewer)

    def clear(self) -> None:
        with self.changed:
            self._guessed.clear()
            self.tell()

    def tally(self) -> Tally:
        with self.changed:
            self._forget_who_left()
            return {
                question: {option: counts[option] for option in question.options}
                for question, (counts, _) in self._guessed.items()
            }

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
TIMED = ("batch-size", "backend")  # experiments whose lines differ greatly in seconds
FACTORS = ("1", "1.5", "2", "3", "5", "7", "10", "15", "20", "30", "50", "70", "100", "200", "300", "500", "1000")


@dataclass(frozen=True)
class Guess:
    """A viewer's guess on an experiment; fields other than the winning line are empty if not asked.

    `diverges` is `YES` or `NO`; `factor` is the time per epoch of the slowest line over that of the fastest.
    """

    best: str
    diverges: str = ""
    factor: str = ""


def questions(experiment: Experiment) -> tuple[GuessQuestion, ...]:
    """Return an experiment's questions; the first asks which line wins, and answering it reveals the result.

    They depend only on the competing lines, not on other controls.
    """
    lines = experiment.labels
    asked = [GuessQuestion(experiment.name, BEST, lines, lines)]
    if experiment.name == "learning-rate":
        asked.append(GuessQuestion(experiment.name, DIVERGES, (YES, NO), lines))
    if experiment.name in TIMED and len(lines) > 1:
        asked.append(GuessQuestion(experiment.name, FACTOR, FACTORS, lines))
    return tuple(asked)


def guess_of(answers: Mapping[GuessQuestion, str], experiment: Experiment) -> Guess | None:
    """Return a viewer's guess on an experiment; None until they have chosen a winner."""
    found = {question.asks: answers[question] for question in questions(experiment) if question in answers}
    return Guess(**found) if BEST in found else None
