"""Connects the teacher's page to marimo: what is said to a class, and what is seen of it while it changes."""

import secrets
import weakref
from collections.abc import Callable
from functools import partial
from urllib.parse import parse_qsl

import marimo as mo

from lib.experiments.teacher import Classroom, Overview, classroom
from lib.formatting import listed, sentence
from lib.pages import layout, mnist_training, random_search
from lib.pages.predict_first import button_that
from lib.pages.role import TEACHER, role
from lib.pages.stage import Stage
from lib.pages.streaming import paint_at_changes, say
from lib.pages.url_state import Address
from lib.views import teacher as view
from lib.views.markup import quiet

ONLY_IN_A_CLASS = "This notebook shows a class that is served: `make class`."
NO_PAGE = "expected the first notebook to be open in a tab of the teacher's, got none; open it, and set its controls"
NO_SETTINGS = (
    "address: expected one with settings of the first notebook, such as …/?rate.epochs=5, got none; copy it there"
)
_ADDRESS = "Address of the first notebook"
_AT_ONCE = "Move the pages at once, without asking"


class Desk:
    """What one teacher's page says, and what it shows.

    Args:
        told: Called with a sentence when something was pushed, or could not be.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self.room: Classroom = classroom()
        self.overview = Overview()
        self._told = told
        said = self.room.said
        self.switches = {
            "predicts": self._switch("Ask the class to predict first", "predicts", said.predicts),
            "shows": self._switch("Show the guesses to the class", "shows", said.shows),
            "pauses": self._switch("Pause: pupils begin no new runs", "pauses", said.pauses),
        }
        self.at_once = mo.ui.checkbox(label=_AT_ONCE)
        self.address = mo.ui.text(
            label="Address of the first notebook", placeholder="http://…/?rate.epochs=5", full_width=True
        )
        self.buttons = {
            "front": button_that(self._push_front, "Push what my first page shows", "The controls of your own tab"),
            "address": button_that(self._push_address, "Push this address", "The settings of the address above"),
            "clear": button_that(self.overview.guesses.clear, "Forget all guesses", "As before a lesson begins"),
        }
        name = secrets.token_hex(8)
        self.room.observe(name)
        weakref.finalize(self, self.room.forget, name)

    def _switch(self, label: str, field: str, on: bool) -> mo.ui.switch:
        return mo.ui.switch(on, label=label, on_change=lambda value: self.room.say(**{field: bool(value)}))

    def _push_front(self) -> None:
        front = self.room.front()
        self._push(lambda: settings_of_page(front))

    def _push_address(self) -> None:
        self._push(lambda: settings_in(self.address.value))

    def _push(self, found: Callable[[], dict[str, str]]) -> None:
        try:
            settings = found()
        except ValueError as error:
            return self._told(sentence(error))
        self.room.push(settings, self.at_once.value)
        what = listed([f"{name}={said}" for name, said in settings.items()]) if settings else "the articles' settings"
        self._told(f"Pushed to {self.room.sections()[1]} pages: {what}.")


def settings_of_page(front: Address | None) -> dict[str, str]:
    """The settings that a page's address says.

    Raises:
        ValueError: There is no such page.
    """
    if front is None:
        raise ValueError(NO_PAGE)
    return front.settings()


def settings_in(address: str) -> dict[str, str]:
    """The settings of the first notebook that a pasted address says, or a part of one from its “?” on.

    Raises:
        ValueError: It has none, or some that cannot be used; the text is a sentence for the person.
    """
    before, mark, after = address.strip().partition("#")[0].partition("?")
    found = Address(arguments=dict(parse_qsl(after if mark else before)))
    found.check(mnist_training.settings() | random_search.settings())
    if found.problems:
        raise ValueError(found.problems[0])
    if not found.settings():
        raise ValueError(NO_SETTINGS)
    return found.settings()


def is_refused() -> bool:
    """Whether this page is not for whoever looks."""
    return role() != TEACHER


def controls(desk: Desk | None, told: str) -> mo.Html:
    """The switches and what can be pushed; for a pupil, one sentence."""
    if desk is None:
        return layout.failed(view.REFUSED)
    switches = "".join(f"<div>{one.text}</div>" for one in desk.switches.values())
    front, address, clear = (desk.buttons[name].text for name in ("front", "address", "clear"))
    alone = quiet(view.ALONE) if mo.app_meta().mode == "edit" else ""
    said = f'<p class="lab-note" role="status">{told or "&nbsp;"}</p>'
    return mo.Html(
        f'{alone}<div class="desk"><div class="desk-switches">{switches}{quiet(view.HOLDS)}</div>'
        f'<div class="desk-push"><div>{desk.address.text}</div>'
        f'<div class="lab-buttons">{address}{front}</div><div>{desk.at_once.text}</div>{said}</div></div>'
        f'<div class="lab-buttons">{clear}</div>'
    )


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


def quizzes(overview: Overview) -> str:
    """HTML: what it answered before and after the sections."""
    return view.quizzes(overview.guesses.tally())
