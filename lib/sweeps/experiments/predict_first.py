"""What is asked before an experiment's result is shown, and what may be answered: generated from what will be trained.

To watch a demonstration teaches no more than not to see it; to predict its outcome first does (C. Crouch et al.,
American Journal of Physics 72, 835, 2004).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lib.sweeps.experiments.guesses import GuessQuestion
from lib.sweeps.experiments.mnist_training import Experiment

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
    lines = tuple(experiment.labels[index] for index in experiment.compared)
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
