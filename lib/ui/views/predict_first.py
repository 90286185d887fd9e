"""Questions that ask for a guess, sentences that compare it with the result, and the class's guesses."""

import html
from collections.abc import Mapping

import numpy as np

from lib.formatting import counted, listed, percent, seconds, times
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Line, Results
from lib.sweeps.experiments.teacher import BEST, DIVERGES, FACTOR, YES, Guess, GuessQuestion
from lib.sweeps.workers.messages import State
from lib.timing.comparison import Verdict, compared

LEAD = "Before you see the result: what do you expect?"
SKIP, SKIP_MEANS = "Show me without guessing", "Shows this section's results, now and for other settings"
PAUSED = "your teacher has paused the class: no new runs start. This one starts when the class resumes"
SHOWN = "The class's guesses"
_NEAR = 1.25  # a guessed factor is called close up to this ratio
_ASKED = {
    ("learning-rate", BEST): "Which learning rate will be the most accurate?",
    ("batch-size", BEST): "Which batch size will reach the target accuracy first?",
    ("depth", BEST): "Which network will be the most accurate?",
    ("backend", BEST): "Which will be the fastest?",
    ("learning-rate", DIVERGES): "Will any loss stop being a number?",
    ("batch-size", FACTOR): "How many times as long as the fastest will the slowest take per epoch?",
    ("backend", FACTOR): "How many times as long as the fastest will the slowest take?",
}
OPTIONAL = "(optional)"


def words(question: GuessQuestion) -> str:
    return _ASKED[question.section, question.asks]


# The guess and the result.


def sentence(experiment: Experiment, results: Results, guess: Guess | None) -> str:
    """The guess and the result; empty without a guess, or before all lines are finished."""
    if guess is None or results.state not in (State.DONE, State.SAVED):
        return ""
    lines = dict(zip(experiment.labels, results.lines, strict=False))  # without lines trained for comparison
    if guess.best not in lines or any(line.curve is None for line in lines.values()):
        return ""
    tell = {"batch-size": _tell_target, "backend": _tell_fastest}.get(experiment.name, _tell_accuracy)
    parts = (
        tell(lines, guess.best, experiment.target),
        _tell_divergence(lines, guess.diverges),
        _tell_factor(lines, guess.factor),
    )
    return " ".join(filter(None, parts))


def _failure(line: Line) -> str:
    if line.diverged_step is not None:
        return "diverged"
    return "did not learn" if (line.accuracy or 0) <= line.item.training.data.chance else ""


def _tell_accuracy(lines: Mapping[str, Line], yours: str, _target: float) -> str:
    learnt = {label: line.accuracy or 0 for label, line in lines.items() if not _failure(line)}
    if not learnt:
        return f"You said {yours}; none of them learnt."
    best = max(learnt, key=learnt.__getitem__)
    if best == yours:
        return f"You said {yours}, and {yours} was best."
    if failure := _failure(lines[yours]):
        return f"You said {yours}, which {failure}; {best} was best."
    points = 100 * (learnt[best] - learnt[yours])
    if points <= 100 * lines[best].item.training.data.gap_by_chance(learnt[best], learnt[yours]):
        return (
            f"You said {yours}; {best} was {points:.1f} points ahead, which one seed cannot tell from chance: you may"
            " well be right."
        )
    return f"You said {yours}; {best} was best, by {points:.1f} points."


def _tell_target(lines: Mapping[str, Line], yours: str, target: float) -> str:
    reached = {label: spent for label, line in lines.items() if (spent := line.seconds_to(target)) is not None}
    if not reached:
        return f"You said {yours}; none reached {percent(target)}."
    first = min(reached, key=reached.__getitem__)
    if first == yours:
        return f"You said {first}, and {first} was the first to reach {percent(target)}."
    if yours not in reached:
        return f"You said {yours}, which did not reach {percent(target)}; {first} was first."
    return (
        f"You said {yours}; {first} was the first to reach {percent(target)}, in {seconds(reached[first])}, and"
        f" yours took {seconds(reached[yours])}."
    )


def _tell_fastest(lines: Mapping[str, Line], yours: str, _target: float) -> str:
    first = min(lines, key=lambda label: float(np.median(lines[label].epoch_s)))
    if first == yours:
        return f"You said {yours}, and its epochs were the fastest."
    found = compared(lines[yours].epoch_s, lines[first].epoch_s, paired=False)
    if found.verdict is not Verdict.SLOWER:
        return (
            f"You said {yours}; {first} had the lower median, but these epochs do not separate the two: you may well be"
            " right."
        )
    return f"You said {yours}; {first} was the fastest: yours took {times(found.ratio)} times as long."


def _tell_divergence(lines: Mapping[str, Line], said: str) -> str:
    if not said:
        return ""
    labels = [label for label, line in lines.items() if line.diverged_step is not None]
    diverged = listed(labels) if labels else ""
    if said == YES:
        came = f", and that of {diverged} did" if diverged else "; none did"
        return f"You also said that some loss would stop being a number{came}."
    came = f"; that of {diverged} did not" if diverged else ", and all did"
    return f"You also said that every loss would stay a number{came}."


def _tell_factor(lines: Mapping[str, Line], said: str) -> str:
    medians_s = [float(np.median(line.epoch_s)) for line in lines.values() if line.epochs]
    if not said or not medians_s:
        return ""
    factor = max(medians_s) / min(medians_s)
    off = max(factor / float(said), float(said) / factor)
    judged = "close" if off <= _NEAR else "more than you thought" if factor > float(said) else "less than you thought"
    return (
        f"You said the slowest would take {said} times as long per epoch; it took {factor:.1f} times as long: {judged}."
    )


# The class's guesses.


def histogram(question: GuessQuestion, counts: Mapping[str, int], yours: str = "") -> str:
    """HTML: a bar for each option, with its count; of the factors, only those that were guessed.

    Args:
        question: What was asked.
        counts: Counts by option, in display order.
        yours: This viewer's option, which is marked.
    """
    most = max([*counts.values(), 1])
    rows = "".join(
        f"<li><span>{html.escape(option)}{' <small>(yours)</small>' if option == yours else ''}</span>"
        f'<i aria-hidden="true"><b style="width:{100 * count / most:.0f}%"></b></i><em>{count}</em></li>'
        for option, count in counts.items()
        if count or question.asks != FACTOR
    )
    total = sum(counts.values())
    lead = f"{html.escape(words(question))} <small>{counted(total, 'answer')}</small>"
    return f'<figure class="guess-counts"><figcaption>{lead}</figcaption><ul>{rows}</ul></figure>'
