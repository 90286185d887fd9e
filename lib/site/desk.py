"""The teacher's page: switches for the class, and a tally of its guesses."""

import html
from functools import partial

import marimo as mo

from lib.sweeps.experiments.teacher import BEST, Guesses, Tally, classroom, guesses_of_class
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import shared_engine
from lib.ui import layout
from lib.ui.lab import Painter, Stage
from lib.ui.opened import TEACHER, role
from lib.ui.views.markup import quiet
from lib.ui.views.predict_first import histogram

REFUSED = "This page is for the teacher. Yours is the first link above."
HOLDS = (
    "Pausing holds new runs in all notebooks of this site, but not measurements in a pupil's own browser. Only the"
    " first notebook asks for guesses."
)
SWITCHES = {  # of `Classroom`
    "predicts": "Ask the class to predict first",
    "shows": "Show the guesses to the class",
    "pauses": "Pause: pupils start no new runs",
}
TITLES = {
    "learning-rate": "1 · How large a step?",
    "batch-size": "2 · How many images a step?",
    "depth": "3 · How many layers?",
    "backend": "4 · Which library?",
}
NO_GUESSES = "No guesses yet: with “Ask the class to predict first”, each section asks before it shows its result."
MAX_SETTINGS = 3  # per question, the most recently answered: a class tries many slider positions


class Desk:
    def __init__(self) -> None:
        self.room, self.guesses = classroom(), guesses_of_class()
        self.switches = {setting: self._switch(setting, label) for setting, label in SWITCHES.items()}
        self.clear = mo.ui.button(
            label="Forget all guesses", tooltip="As at the start of a lesson", on_click=lambda _: self.guesses.clear()
        )
        self._stage: Stage | None = None  # keeps the drawing alive as long as the desk

    def _switch(self, setting: str, label: str) -> mo.ui.switch:
        on = getattr(self.room, setting)
        return mo.ui.switch(on, label=label, on_change=lambda value: self.room.say(setting, bool(value)))

    def watch_guesses(self) -> None:
        self._stage = Stage(shared_engine(), Store())
        Painter(partial(_draw, self.guesses), self.guesses).show(self._stage)


def _draw(guesses: Guesses) -> None:  # not a method: the drawing thread would keep the desk alive after its session
    mo.output.replace(mo.Html(tallied(guesses.tally())))


def desk() -> Desk | None:
    return Desk() if role() == TEACHER else None


def controls(desk: Desk | None) -> mo.Html:
    if desk is None:
        return layout.failed(REFUSED)
    switches = "".join(f"<div>{one.text}</div>" for one in desk.switches.values())
    return mo.Html(f'<div class="desk">{switches}{quiet(HOLDS)}<div>{desk.clear.text}</div></div>')


def tallied(tally: Tally) -> str:
    parts = []
    for section, title in TITLES.items():
        asked = [one for one in reversed(list(tally)) if one.section == section]
        newest = list(dict.fromkeys(one.about for one in asked))[:MAX_SETTINGS]
        best_first = sorted(asked, key=lambda one: one.asks != BEST)
        shown = [one for about in newest for one in best_first if one.about == about]
        if shown:
            drawn = "".join(histogram(one, tally[one]) for one in shown)
            parts.append(f"<section><h3>{html.escape(title)}</h3>{drawn}</section>")
    return f'<div class="class-guesses guess-grid">{"".join(parts)}</div>' if parts else quiet(NO_GUESSES)
