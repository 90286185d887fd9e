"""What is asked before an experiment's result is shown, and what may be answered: generated from what will be trained.

To watch a demonstration teaches no more than not to see it; to predict its outcome first does (C. Crouch et al.,
American Journal of Physics 72, 835, 2004).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lib.experiments.guesses import Question
from lib.experiments.mnist_training import Experiment

BEST, DIVERGES, FACTOR = "best", "diverges", "factor"
YES, NO = "yes", "no"
SKETCHED = ("learning-rate", "depth")  # the experiments whose loss is drawn by the step
TIMED = ("batch-size", "backend")  # the experiments whose lines differ in seconds by much
SKETCH = "sketch"
SKETCH_POINTS = 7  # from the first step of a training to its last
LOSSES = tuple(f"{8.0 * 400 ** (-level / 24):.2g}" for level in range(25))  # from 8 to 0.02: the axis of the chart
FACTORS = ("1", "1.5", "2", "3", "5", "7", "10", "15", "20", "30", "50", "70", "100", "200", "300", "500", "1000")


@dataclass(frozen=True)
class Guess:
    """What one viewer guessed of one experiment: which of its lines wins, and what else was asked; empty for nothing.

    `best` is empty where somebody only sketched. `factor` is how many times as long an epoch of the slowest takes as
    one of the fastest, `diverges` is `YES` or `NO`, `sketch` has the training loss at `SKETCH_POINTS`
    equally spaced moments.
    """

    best: str = ""
    diverges: str = ""
    factor: str = ""
    sketch: tuple[float, ...] = ()


def questions(experiment: Experiment) -> tuple[Question, ...]:
    """What is asked of an experiment; the first is which line wins. Its answer shows the result, and so does a sketch.

    They depend on the lines that compete, and on no other control.
    """
    lines = tuple(experiment.labels[index] for index in experiment.compared)
    asked = [Question(experiment.name, BEST, lines, lines)]
    if experiment.name == "learning-rate":
        asked.append(Question(experiment.name, DIVERGES, (YES, NO), lines))
    if experiment.name in TIMED and len(lines) > 1:
        asked.append(Question(experiment.name, FACTOR, FACTORS, lines))
    return tuple(asked)


def sketch_questions(experiment: Experiment) -> tuple[Question, ...]:
    """A question for each point of a sketched loss, so that they are pooled like all others; none without a loss."""
    if experiment.name not in SKETCHED:
        return ()
    lines = questions(experiment)[0].about
    return tuple(Question(experiment.name, f"{SKETCH} {point}", LOSSES, lines) for point in range(SKETCH_POINTS))


def guess_of(answers: Mapping[Question, str], experiment: Experiment) -> Guess | None:
    """The guess on an experiment among a viewer's answers; None where there is neither a winner nor a sketch."""
    found = {question.asks: answers[question] for question in questions(experiment) if question in answers}
    sketch = tuple(float(answers[point]) for point in sketch_questions(experiment) if point in answers)
    return Guess(**found, sketch=sketch) if BEST in found or sketch else None
