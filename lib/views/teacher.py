"""What a teacher sees of a class: how it guessed, where it is, and what trains."""

import html
from collections.abc import Mapping

from lib.experiments.guesses import Question, Tally
from lib.experiments.predict_first import BEST, FACTOR
from lib.experiments.teacher import SECTIONS, Queued
from lib.views.markup import quiet, table
from lib.views.predict_first import answered, histogram, words

REFUSED = "This page is the teacher's. Yours is the first one of the links above."
ALONE = (
    "Here each notebook is in a process of its own, so no other page hears what is said on this one. `make class`"
    " serves all of them from one."
)
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


def guesses(tally: Tally) -> str:
    """HTML: how the class guessed, by section and question, the settings that were guessed last first."""
    parts = []
    for section, title in TITLES.items():
        asked = [one for one in reversed(list(tally.counts)) if one.section == section]
        newest = list(dict.fromkeys(one.about for one in asked))[:MAX_SETTINGS]
        drawn = "".join(_counts(tally, one) for about in newest for one in _in_order(asked, about))
        if drawn:
            parts.append(f"<section><h3>{html.escape(title)}</h3>{drawn}</section>")
    return f'<div class="class-guesses guess-grid">{"".join(parts)}</div>' if parts else quiet(NO_GUESSES)


def _in_order(asked: list[Question], about: tuple[str, ...]) -> list[Question]:
    return sorted((one for one in asked if one.about == about), key=lambda one: one.asks != BEST)


def _counts(tally: Tally, question: Question) -> str:
    counts = tally.of(question)
    return histogram(words(question), answered(counts) if question.asks == FACTOR else counts)
