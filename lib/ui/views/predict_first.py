"""Questions that ask for a guess, sentences that compare it with the result, and the class's guesses."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lib.formatting import listed, percent, seconds, times
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


@dataclass(frozen=True)
class _GuessedLine:
    label: str
    line: Line

    @property
    def failure(self) -> str:
        if self.line.diverged_step is not None:
            return "diverged"
        return "did not learn" if (self.line.accuracy or 0) <= self.line.item.training.data.chance else ""


def sentence(experiment: Experiment, results: Results, guess: Guess | None) -> str:
    """The guess and the result; empty without a guess, or before all lines are finished."""
    if guess is None or results.state not in (State.DONE, State.SAVED):
        return ""
    lines = list(map(_GuessedLine, experiment.labels, results.lines))
    yours = next((one for one in lines if one.label == guess.best), None)
    if yours is None or any(one.line.curve is None for one in lines):
        return ""
    tell = {"batch-size": _tell_target, "backend": _tell_fastest}.get(experiment.name, _tell_accuracy)
    parts = (
        tell(lines, yours, experiment.target),
        _tell_divergence(lines, guess.diverges),
        _tell_factor(lines, guess.factor),
    )
    return " ".join(filter(None, parts))


def _tell_accuracy(lines: Sequence[_GuessedLine], yours: _GuessedLine, _target: float) -> str:
    learnt = [one for one in lines if not one.failure]
    if not learnt:
        return f"You said {yours.label}; none of them learnt."
    best = max(learnt, key=lambda one: one.line.accuracy or 0)
    if best is yours:
        return f"You said {yours.label}, and {yours.label} was best."
    if yours.failure:
        return f"You said {yours.label}, which {yours.failure}; {best.label} was best."
    ends = best.line.accuracy or 0, yours.line.accuracy or 0
    points = 100 * (ends[0] - ends[1])
    if points <= 100 * best.line.item.training.data.gap_by_chance(*ends):
        return (
            f"You said {yours.label}; {best.label} was {points:.1f} points ahead, which one seed cannot tell from"
            " chance: you may well be right."
        )
    return f"You said {yours.label}; {best.label} was best, by {points:.1f} points."


def _tell_target(lines: Sequence[_GuessedLine], yours: _GuessedLine, target: float) -> str:
    reached = {one.label: spent for one in lines if (spent := one.line.seconds_to(target)) is not None}
    if not reached:
        return f"You said {yours.label}; none reached {percent(target)}."
    first = min(reached, key=reached.__getitem__)
    if first == yours.label:
        return f"You said {first}, and {first} was the first to reach {percent(target)}."
    if yours.label not in reached:
        return f"You said {yours.label}, which did not reach {percent(target)}; {first} was first."
    return (
        f"You said {yours.label}; {first} was the first to reach {percent(target)}, in {seconds(reached[first])}, and"
        f" yours took {seconds(reached[yours.label])}."
    )


def _tell_fastest(lines: Sequence[_GuessedLine], yours: _GuessedLine, _target: float) -> str:
    first = min(lines, key=lambda one: float(np.median(one.line.epoch_s)))
    if first is yours:
        return f"You said {yours.label}, and its epochs were the fastest."
    found = compared(yours.line.epoch_s, first.line.epoch_s, paired=False)
    if found.verdict is not Verdict.SLOWER:
        return (
            f"You said {yours.label}; {first.label} had the lower median, but these epochs do not separate the two: you"
            " may well be right."
        )
    return f"You said {yours.label}; {first.label} was the fastest: yours took {times(found.ratio)} times as long."


def _tell_divergence(lines: Sequence[_GuessedLine], said: str) -> str:
    if not said:
        return ""
    labels = [one.label for one in lines if one.line.diverged_step is not None]
    diverged = listed(labels) if labels else ""
    if said == YES:
        came = f", and that of {diverged} did" if diverged else "; none did"
        return f"You also said that some loss would stop being a number{came}."
    came = f"; that of {diverged} did not" if diverged else ", and all did"
    return f"You also said that every loss would stay a number{came}."


def _tell_factor(lines: Sequence[_GuessedLine], said: str) -> str:
    medians_s = [float(np.median(one.line.epoch_s)) for one in lines if one.line.epochs]
    if not said or not medians_s:
        return ""
    factor = max(medians_s) / min(medians_s)
    off = max(factor / float(said), float(said) / factor)
    judged = "close" if off <= _NEAR else "more than you thought" if factor > float(said) else "less than you thought"
    return (
        f"You said the slowest would take {said} times as long per epoch; it took {factor:.1f} times as long: {judged}."
    )


# The class's guesses.


def histogram(caption: str, counts: Mapping[str, int], yours: str = "", unit: str = "answer") -> str:
    """HTML: a bar for each option, with its count.

    Args:
        caption: The question.
        counts: Counts by option, in display order.
        yours: This viewer's option, which is marked.
        unit: What is counted, in the singular.
    """
    most = max([*counts.values(), 1])
    rows = "".join(
        f"<li><span>{html.escape(option)}{' <small>(yours)</small>' if option == yours else ''}</span>"
        f'<i aria-hidden="true"><b style="width:{100 * count / most:.0f}%"></b></i><em>{count}</em></li>'
        for option, count in counts.items()
    )
    total = sum(counts.values())
    lead = f"{html.escape(caption)} <small>{total} {unit if total == 1 else f'{unit}s'}</small>"
    return f'<figure class="guess-counts"><figcaption>{lead}</figcaption><ul>{rows}</ul></figure>'


def answered(counts: Mapping[str, int]) -> dict[str, int]:
    return {option: count for option, count in counts.items() if count}
