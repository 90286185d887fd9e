"""Connects the teacher's page to marimo: what is said to a class, and what is seen of it while it changes."""

import secrets
import weakref
from collections.abc import Callable
from functools import partial

import marimo as mo

from lib.experiments.teacher import Classroom, Overview, classroom
from lib.pages import layout
from lib.pages.role import TEACHER, role
from lib.pages.stage import Stage
from lib.pages.streaming import paint_at_changes, say
from lib.views import teacher as view
from lib.views.markup import quiet

ONLY_IN_A_CLASS = "This notebook shows a class that is served: `make class`."


class Desk:
    """What one teacher's page says, and what it shows."""

    def __init__(self) -> None:
        self.room: Classroom = classroom()
        self.overview = Overview()
        said = self.room.said
        self.switches = {
            "predicts": self._switch("Ask the class to predict first", "predicts", said.predicts),
            "shows": self._switch("Show the guesses to the class", "shows", said.shows),
            "pauses": self._switch("Pause: pupils begin no new runs", "pauses", said.pauses),
        }
        self.clear = mo.ui.button(
            label="Forget all guesses",
            tooltip="As before a lesson begins",
            on_click=lambda _: self.overview.guesses.clear(),
        )
        name = secrets.token_hex(8)
        self.room.observe(name)
        weakref.finalize(self, self.room.forget, name)

    def _switch(self, label: str, field: str, on: bool) -> mo.ui.switch:
        return mo.ui.switch(on, label=label, on_change=lambda value: self.room.say(**{field: bool(value)}))


def is_refused() -> bool:
    """Whether this page is not for whoever looks."""
    return role() != TEACHER


def controls(desk: Desk | None) -> mo.Html:
    """The switches, and a button that forgets all guesses; for a pupil, one sentence."""
    if desk is None:
        return layout.failed(view.REFUSED)
    switches = "".join(f"<div>{one.text}</div>" for one in desk.switches.values())
    alone = quiet(view.ALONE) if mo.app_meta().mode == "edit" else ""
    return mo.Html(f'{alone}<div class="desk">{switches}{quiet(view.HOLDS)}<div>{desk.clear.text}</div></div>')


def watch(stage: Stage, desk: Desk | None, draw: Callable[[Overview], str]) -> None:
    """Draw what is seen of the class, and again whenever it changes; nothing for a pupil."""
    if desk is not None:
        paint_at_changes(stage, desk.overview, partial(_paint, desk.overview, draw))
        say(ONLY_IN_A_CLASS)


def _paint(overview: Overview, draw: Callable[[Overview], str]) -> int:
    version = overview.version
    mo.output.replace(mo.Html(draw(overview)))
    return version


def where(overview: Overview) -> str:
    """HTML: on which sections the class is, and what trains."""
    present, queued = view.presence(*overview.room.sections()), view.queue(overview.queued)
    return f'<div class="guess-grid"><div>{present}</div><div>{queued}</div></div>'


def guesses(overview: Overview) -> str:
    """HTML: how the class guessed."""
    return view.guesses(overview.guesses.tally())
