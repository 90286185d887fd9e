"""The form that asks for a guess on an experiment: its elements, its HTML, and what was chosen in it."""

import html
from collections.abc import Sequence
from typing import Any

import marimo as mo

from lib.experiments.guesses import Question
from lib.experiments.mnist_training import Experiment
from lib.experiments.predict_first import BEST, DIVERGES, FACTOR, FACTORS, NO, YES, questions
from lib.pages.stage import button
from lib.views import predict_first as view

SKIP = "skip"
NOT_YET = f'<div class="guess lab-refused"><p class="guess-lead">{html.escape(view.LEAD)}</p></div>'  # for a moment


def elements(asked: Sequence[Question]) -> mo.ui.dictionary:
    """Buttons for the options of the first question and to skip all, and what is optional."""
    found: dict[str, Any] = {}
    for question in asked:
        if question.asks == BEST:
            tooltip = "Guess this, and see the result"
            found |= {f"{BEST} {label}": button(label, tooltip) for label in question.options}
        elif question.asks == DIVERGES:
            found[DIVERGES] = mo.ui.radio([YES, NO], inline=True, label=_optional(view.words(question)))
        elif question.asks == FACTOR:
            steps = [float(factor) for factor in FACTORS]
            found[FACTOR] = mo.ui.slider(steps=steps, show_value=True, label=_optional(view.words(question)))
    return mo.ui.dictionary(found | {SKIP: button(view.SKIP, view.SKIP_MEANS)})


def chosen(form: mo.ui.dictionary, experiment: Experiment) -> dict[Question, str]:
    """What was chosen, once one of the first question's buttons was pressed; nothing before.

    Args:
        form: From `elements`.
        experiment: What is guessed on.
    """
    best, *others = questions(experiment)
    pressed = [label for label in best.options if form.value.get(f"{BEST} {label}")]
    if not pressed:
        return {}
    said = {question: _written(question, form.value[question.asks]) for question in others}
    return {best: pressed[0]} | {question: option for question, option in said.items() if option}


def drawn(form: mo.ui.dictionary, experiment: Experiment) -> str:
    """HTML of the form, as `chosen` has it."""
    best, *others = questions(experiment)
    buttons = "".join(form[f"{BEST} {label}"].text for label in best.options)
    optional = "".join(f'<div class="guess-optional">{form[one.asks].text}</div>' for one in others)
    asked = html.escape(view.words(best))
    return (
        f'<div class="guess lab-refused"><p class="guess-lead">{html.escape(view.LEAD)}</p>{optional}'
        f'<p class="lab-sentence">{asked}</p><div class="guess-options" role="group" aria-label="{asked}">'
        f"{buttons}</div>{form[SKIP].text}</div>"
    )


def _optional(asked: str) -> str:
    return f"{asked} {view.OPTIONAL}"


def _written(question: Question, value: object) -> str:
    """The option that an element's value stands for; empty where it was left as it was."""
    if question.asks == FACTOR:
        return f"{value:g}" if isinstance(value, float | int) and value != float(FACTORS[0]) else ""
    return str(value or "")
