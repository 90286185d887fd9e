"""The first notebook in class: viewers guess before they see a result; the teacher pauses runs and shows guesses."""

import html
import secrets
import weakref
from collections.abc import Mapping

import marimo as mo

from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Results
from lib.sweeps.experiments.teacher import (
    BEST,
    SECTIONS,
    Guess,
    GuessQuestion,
    classroom,
    guess_of,
    guesses_of_class,
    questions,
)
from lib.ui import url_state
from lib.ui.lab import Hook, Page, Section
from lib.ui.opened import TEACHER, role, streaming
from lib.ui.views import predict_first as view
from lib.ui.widgets import GuessForm

PREDICT = url_state.choice("predict", 0, (0, 1))
OWN = "your"  # prefix of the reader's own experiment


class PredictFirst(Hook):
    """One session of the first notebook: the viewer's guesses and the teacher's instructions.

    `predict=1` in the address asks this viewer for guesses, whatever the class does.
    """

    settings = {PREDICT.name: PREDICT}  # noqa: RUF012

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.room, self.pool = classroom(), guesses_of_class()
        self.is_teacher = role() == TEACHER
        self._answers: dict[GuessQuestion, str] = {}
        self._skipped: set[str] = set()
        self._asked: dict[str, Experiment] = {}
        self._forms = {section: GuessForm(self._hear) for section in SECTIONS}
        self._drawn_forms = {section: mo.ui.anywidget(form) for section, form in self._forms.items()}

    def attach(self, page: Page) -> None:
        super().attach(page)
        self._asks_itself = bool(page.address.read(PREDICT))
        if streaming():
            self.room.followed_by(page.news)
        weakref.finalize(self, self.pool.forget, self.name)

    @property
    def predicts(self) -> bool:
        return self._asks_itself or self.room.predicts

    @property
    def pauses(self) -> bool:
        return self.room.pauses and not self.is_teacher

    def hides(self, experiment: Experiment) -> bool:
        return self.predicts and experiment.name not in self._skipped and self.guess(experiment) is None

    def guess(self, experiment: Experiment) -> Guess | None:
        return guess_of(self._answers, experiment) if self.predicts else None

    def instead(self, section: Section, experiment: Experiment) -> str:
        """HTML of the form, with the class's guesses while the teacher shows them.

        Empty once answered or skipped, and for the reader's own experiment, which has no form.
        """
        if section.prefix == OWN or not self.hides(experiment):
            return ""
        self._asked[experiment.name] = experiment
        best, *others = questions(experiment)
        self._forms[experiment.name].asked = {
            "section": experiment.name,
            "lead": view.LEAD,
            "questions": [
                {"asks": one.asks, "options": one.options, "words": f"{view.words(one)}{optional}"}
                for one, optional in ((best, ""), *((other, f" {view.OPTIONAL}") for other in others))
            ],
            "skip": view.SKIP,
            "skip_means": view.SKIP_MEANS,
        }
        return self._drawn_forms[experiment.name].text + self._guesses_of_class(experiment)

    def below(self, section: Section, experiment: Experiment, results: Results) -> str:
        return self._guesses_of_class(experiment)

    def _guesses_of_class(self, experiment: Experiment) -> str:
        if not self.room.shows:
            self.pool.left_by(self.page.news)
            return ""
        self.pool.followed_by(self.page.news)
        tally, drawn = self.pool.tally(), ""
        for question in questions(experiment):
            counts = tally.get(question, dict.fromkeys(question.options, 0))
            if question.asks == BEST or any(counts.values()):
                drawn += view.histogram(question, counts, self._answers.get(question, ""))
        lead = f"<h3>{html.escape(view.SHOWN)}</h3>"
        return f'<section class="class-guesses">{lead}<div class="guess-grid">{drawn}</div></section>'

    def note(self) -> str:
        paused = '<div class="class-note" role="status">Your teacher has paused the class: no new runs start.</div>'
        return paused if self.pauses else ""

    def _hear(self, content: object) -> None:
        """Accept a form's answer from the browser, which may send anything; only answers to current questions count."""
        if not isinstance(content, Mapping) or (experiment := self._asked.get(str(content.get("section")))) is None:
            return
        said = content.get("said")
        if content.get("skip"):
            self._skipped.add(experiment.name)
        elif isinstance(said, Mapping):
            answers = {one: said[one.asks] for one in questions(experiment) if said.get(one.asks) in one.options}
            if guess_of(answers, experiment) is None:
                return
            self._answers |= answers
            for question, option in answers.items():
                self.pool.guess(self.name, question, option)
        self.page.news.tell()
