"""The form that asks for a guess on an experiment: its elements, its HTML, and what was chosen in it."""

import html
from collections.abc import Sequence
from typing import Any

import marimo as mo

from lib.experiments.guesses import Question
from lib.experiments.mnist_training import Experiment
from lib.experiments.predict_first import (
    BEST,
    DIVERGES,
    FACTOR,
    FACTORS,
    LOSSES,
    NO,
    SKETCH,
    SKETCH_POINTS,
    SKETCHED,
    YES,
    questions,
    sketch_questions,
)
from lib.pages.stage import button
from lib.pages.widgets import SketchCurve
from lib.views import predict_first as view

SKIP = "skip"
NOT_YET = f'<div class="guess lab-refused"><p class="guess-lead">{html.escape(view.LEAD)}</p></div>'  # for a moment


def elements(asked: Sequence[Question]) -> mo.ui.dictionary:
    """Buttons for the options of the first question, for a sketch alone and to skip all; and what is optional."""
    found: dict[str, Any] = {}
    if asked[0].section in SKETCHED:
        found[SKETCH] = button(view.SKETCH_ALONE, view.SKETCH_ALONE_MEANS)
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


def sketch() -> mo.ui.anywidget:
    """An empty chart of the loss to sketch a curve into."""
    return mo.ui.anywidget(SketchCurve(view.SKETCH_MEANS, [float(loss) for loss in LOSSES], SKETCH_POINTS))


def chosen(form: mo.ui.dictionary, field: mo.ui.anywidget | None, experiment: Experiment) -> dict[Question, str]:
    """What was chosen, once one of the first question's buttons was pressed, or that of a sketch; nothing before.

    Args:
        form: From `elements`.
        field: From `sketch`; None where none is asked for.
        experiment: What is guessed on.
    """
    best, *others = questions(experiment)
    pressed = [label for label in best.options if form.value.get(f"{BEST} {label}")]
    levels = field.widget.drawn() if field is not None else ()  # none where nothing was drawn
    if not pressed and not (form.value.get(SKETCH) and levels):
        return {}
    said = {question: _written(question, form.value[question.asks]) for question in others}
    found = {question: option for question, option in said.items() if option}
    found |= {point: LOSSES[level] for point, level in zip(sketch_questions(experiment), levels, strict=False)}
    return found | ({best: pressed[0]} if pressed else {})


def drawn(form: mo.ui.dictionary, field: mo.ui.anywidget | None, experiment: Experiment) -> str:
    """HTML of the form, as `chosen` has it."""
    best, *others = questions(experiment)
    buttons = "".join(form[f"{BEST} {label}"].text for label in best.options)
    optional = "".join(f'<div class="guess-optional">{form[one.asks].text}</div>' for one in others)
    if field is not None:
        told = html.escape(_optional(view.SKETCH_ASKS))
        missing = f'<p class="lab-note" role="status">{html.escape(view.NO_SKETCH)}</p>' if form.value[SKETCH] else ""
        optional += f'<div class="guess-optional"><p>{told}</p>{field.text}{form[SKETCH].text}{missing}</div>'
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
