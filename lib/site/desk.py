"""What a teacher says to a class, and sees of it: how it guessed, where it is, and what trains."""

import html
import secrets
import weakref
from collections.abc import Callable, Mapping
from functools import partial

import marimo as mo

from lib.sweeps.experiments.guesses import GuessQuestion, Tally
from lib.sweeps.experiments.predict_first import BEST, FACTOR
from lib.sweeps.experiments.teacher import SECTIONS, Classroom, Overview, Queued, classroom
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import shared_engine
from lib.ui import layout
from lib.ui.opened import TEACHER, role
from lib.ui.stage import Stage
from lib.ui.streaming import paint_at_changes
from lib.ui.views.markup import quiet, table
from lib.ui.views.predict_first import answered, histogram, words

REFUSED = "This page is the teacher's. Yours is the first one of the links above."
HOLDS = (
    "The pause holds new runs on all notebooks of this site, but not what a pupil's own browser measures. Only the"
    " first notebook asks for guesses."
)
TITLES = {
    "learning-rate": "1 · How large a step?",
    "batch-size": "2 · How many images a step?",
    "depth": "3 · How many layers?",
    "backend": "4 · Which library?",
    "random-search": "5 · All of it at once?",
    "inside": "6 · Look inside",
}
NO_GUESSES = "No guesses yet: “Ask the class to predict” has each section ask before it shows its result."
MAX_SETTINGS = 3  # of a question, those that were answered last; classes move sliders


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
        self._stages: list[Stage] = []  # where it is drawn, for as long as this is there
        name = secrets.token_hex(8)
        self.room.observe(name)
        weakref.finalize(self, self.room.forget, name)

    def _switch(self, label: str, field: str, on: bool) -> mo.ui.switch:
        return mo.ui.switch(on, label=label, on_change=lambda value: self.room.say(**{field: bool(value)}))

    def watch(self, draw: Callable[[Overview], str]) -> None:
        """Draw what is seen of the class, and again whenever it changes."""
        self._stages.append(Stage(shared_engine(), Store()))
        paint_at_changes(self._stages[-1], self.overview, partial(_paint, self.overview, draw))


def _paint(overview: Overview, draw: Callable[[Overview], str]) -> int:
    version = overview.version
    mo.output.replace(mo.Html(draw(overview)))
    return version


def desk() -> Desk | None:
    """Of a teacher; a pupil has none."""
    return Desk() if role() == TEACHER else None


def controls(desk: Desk | None) -> mo.Html:
    """The switches, and a button that forgets all guesses; for a pupil, one sentence."""
    if desk is None:
        return layout.failed(REFUSED)
    switches = "".join(f"<div>{one.text}</div>" for one in desk.switches.values())
    return mo.Html(f'<div class="desk">{switches}{quiet(HOLDS)}<div>{desk.clear.text}</div></div>')


def where(overview: Overview) -> str:
    """HTML: on which sections the class is, and what trains."""
    present, queued = presence(*overview.room.sections()), queue(overview.queued)
    return f'<div class="guess-grid"><div>{present}</div><div>{queued}</div></div>'


def presence(counts: Mapping[str, int], n_pages: int) -> str:
    """HTML: how many pages there are, and how many of them show each section."""
    by_title = {TITLES[name]: counts[name] for name in SECTIONS}
    shown = histogram("Pages by the section that they show", by_title, unit="page")
    pages = f"{n_pages} {'page of the first notebook is' if n_pages == 1 else 'pages of the first notebook are'} open."
    return quiet(pages) + shown


def queue(queued: Queued) -> str:
    """HTML: what trains and what waits, as counts and the names of the sections."""
    names = [TITLES.get(name, name) for name in queued.names]
    rows = [("holding the turn", str(queued.running)), ("waiting", str(queued.waiting))]
    items = "".join(f"<li>{html.escape(name)}</li>" for name in names)
    lead = quiet("Runs under way:" if names else "No section's run is under way.")
    return table([], rows) + lead + (f'<ul class="lab-note lab-missing">{items}</ul>' if names else "")


def tallied(tally: Tally) -> str:
    """HTML: how the class guessed, by section and question, the settings that were guessed last first."""
    parts = []
    for section, title in TITLES.items():
        asked = [one for one in reversed(list(tally.counts)) if one.section == section]
        newest = list(dict.fromkeys(one.about for one in asked))[:MAX_SETTINGS]
        best_first = sorted(asked, key=lambda one: one.asks != BEST)
        shown = [one for about in newest for one in best_first if one.about == about]
        if shown:
            drawn = "".join(histogram(words(one), _counts(tally, one)) for one in shown)
            parts.append(f"<section><h3>{html.escape(title)}</h3>{drawn}</section>")
    return f'<div class="class-guesses guess-grid">{"".join(parts)}</div>' if parts else quiet(NO_GUESSES)


def _counts(tally: Tally, question: GuessQuestion) -> Mapping[str, int]:
    counts = tally.of(question)
    return answered(counts) if question.asks == FACTOR else counts


def guesses(overview: Overview) -> str:
    """HTML: how the class guessed."""
    return tallied(overview.guesses.tally())
