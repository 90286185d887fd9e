"""Connects the first notebook to a class: what is asked before a result is seen, and what the teacher says meanwhile.

While nobody asks for it, nothing here draws or waits for anything but one inbox a session, which is silent.
"""

import html
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import marimo as mo

from lib.experiments.guesses import Question, guesses_of_class
from lib.experiments.mnist_training import Experiment
from lib.experiments.predict_first import BEST, FACTOR, Guess, guess_of, questions
from lib.experiments.teacher import SECTIONS, Inbox, classroom
from lib.pages import guess_form, url_state
from lib.pages.role import TEACHER, role
from lib.pages.stage import Stage, streaming
from lib.pages.streaming import paint_at_changes
from lib.pages.url_state import Address
from lib.pages.widgets import InSight
from lib.views import predict_first as view

PREDICT = url_state.choice("predict", 0, (0, 1))
SETTING = {PREDICT.name: PREDICT}
RETRY_S = 0.1


class Viewer:
    """One session of the first notebook: what it has guessed, and what its teacher says.

    Args:
        address: Of the page; `predict=1` in it asks this viewer, whatever the class does.
        changed: Called with a new value whenever the teacher says something new.
        asked: For each of the first `SECTIONS`, called with its experiment where other guesses are to be asked for.
            The cells that ask listen to this and not to the controls: in a class that does not predict, and mostly it
            does not, a moved slider runs one cell instead of three.
    """

    def __init__(
        self, address: Address, changed: Callable[[Any], None], asked: Sequence[Callable[[Any], None]]
    ) -> None:
        self.name = secrets.token_hex(8)
        self.room, self.pool = classroom(), guesses_of_class()
        self.is_teacher = role() == TEACHER
        self._changed = changed
        self._asks_itself = bool(address.read(PREDICT))
        self._answers: dict[Question, str] = {}
        self._skipped: set[str] = set()
        self._asked: dict[str, tuple[Question, ...]] = {}
        self._ask_anew = dict[str, Callable[[Any], None]](zip(SECTIONS, asked, strict=False))
        self._forms: dict[str, tuple[tuple[Question, ...], mo.ui.dictionary]] = {}  # the present one of each section
        self._in_sight = mo.ui.anywidget(InSight(self._look))  # once: another would end when its cell runs again
        if streaming():
            inbox = Inbox()
            self.room.subscribe(inbox)
            weakref.finalize(self, self.room.forget, self.name)
            weakref.finalize(self, self.pool.forget, self.name)
            weakref.finalize(self, inbox.put, False)
            mo.Thread(target=_listen, args=(inbox, weakref.ref(self)), daemon=True).start()

    @property
    def predicts(self) -> bool:
        """Whether a guess comes first: by the page's own address, or because the teacher asks the class."""
        return self._asks_itself or self.room.said.predicts

    @property
    def pauses(self) -> bool:
        """Whether this viewer's runs wait for the teacher."""
        return self.room.said.pauses and not self.is_teacher

    def hear(self) -> None:
        """Have the page look at what the teacher said."""
        self._changed(self.room.version)

    def must_guess(self, experiment: Experiment) -> bool:
        """Whether the result of this experiment is held back until the viewer guesses."""
        return self.predicts and experiment.name not in self._skipped and self.guess(experiment) is None

    def guess(self, experiment: Experiment) -> Guess | None:
        """What the viewer has guessed of this experiment, while guesses come first."""
        return guess_of(self._answers, experiment) if self.predicts else None

    def answer(self, question: Question, option: str) -> None:
        """Note an answer, and count it among those of the class."""
        self._answers[question] = option
        self.pool.guess(self.name, question, option)

    def answered(self, question: Question) -> str:
        """The viewer's own answer; empty for none."""
        return self._answers.get(question, "")

    def form(self, asked: tuple[Question, ...]) -> mo.ui.dictionary:
        """The form for these questions: the same one for as long as they are asked, with what is chosen in it."""
        section = asked[0].section
        if section not in self._forms or self._forms[section][0] != asked:
            self._forms[section] = (asked, guess_form.elements(asked))
        return self._forms[section][1]

    def asks_in(self, form: mo.ui.dictionary | None, experiment: Experiment) -> bool:
        """Whether this form is the present one, and for a guess on this experiment."""
        asked, present = self._forms.get(experiment.name, ((), None))
        return form is present and asked == questions(experiment)

    def comes_to(self, experiment: Experiment) -> None:
        """Have the cells before and after a section ask for this experiment, if they ask for anything."""
        asked = questions(experiment)
        if (self.predicts or self.room.said.shows) and self._asked.get(experiment.name) != asked:
            self._asked[experiment.name] = asked
            self._ask_anew[experiment.name](experiment)

    def skip(self, section: str) -> None:
        """Ask no more for guesses on this section."""
        self._skipped.add(section)

    def note(self) -> str:
        """HTML of what the teacher says to the whole page; empty for nothing."""
        paused = '<div class="class-note" role="status">Your teacher has paused: no new run begins.</div>'
        return (paused if self.pauses else "") + (self._in_sight.text if self.room.said.observed else "")

    def _look(self, number: int) -> None:
        if 1 <= number <= len(SECTIONS):
            self.room.look(self.name, SECTIONS[number - 1])


def _listen(inbox: Inbox, of: "weakref.ref[Viewer]") -> None:
    """Tell a viewer's page whatever is said, until the page has gone."""
    while inbox.get():
        if (viewer := of()) is not None:
            try:
                viewer.hear()
            except (KeyError, RuntimeError):  # a cell that began meanwhile changed what is looked up: once more
                time.sleep(RETRY_S)
                inbox.put(True)
        del viewer
    classroom().unsubscribe(inbox)


# Before a section's result.


def ask(viewer: Viewer, experiment: Experiment | None) -> mo.ui.dictionary | None:
    """The form that asks for a guess on the experiment that the viewer came to; None where none is asked for."""
    if experiment is None or not viewer.must_guess(experiment):
        return None
    return viewer.form(questions(experiment))


class First:
    """What comes before one section's result: see `lib.pages.streaming.First`."""

    def __init__(self, viewer: Viewer, form: mo.ui.dictionary | None) -> None:
        self._viewer, self._form = viewer, form

    def question(self, experiment: Experiment) -> str:
        """HTML of the form; empty once it is answered or skipped."""
        self._viewer.comes_to(experiment)
        self._take(experiment)
        if not self._viewer.must_guess(experiment):
            return ""
        if (form := self._form_for(experiment)) is None:
            return guess_form.NOT_YET
        return guess_form.drawn(form, experiment)

    def hides(self, experiment: Experiment) -> bool:
        """Whether the viewer has still to guess on this experiment, which need not be the one that is asked for."""
        return self._viewer.must_guess(experiment)

    def guess(self, experiment: Experiment) -> Guess | None:
        """What the viewer has guessed, also in this moment."""
        self._take(experiment)
        return self._viewer.guess(experiment)

    def _form_for(self, experiment: Experiment) -> mo.ui.dictionary | None:
        return self._form if self._viewer.asks_in(self._form, experiment) else None

    def _take(self, experiment: Experiment) -> None:
        form = self._form_for(experiment)
        if form is None or not self._viewer.must_guess(experiment):
            return
        if form.value[guess_form.SKIP]:
            return self._viewer.skip(experiment.name)
        for question, option in guess_form.chosen(form, experiment).items():
            self._viewer.answer(question, option)


# After it.


def after(stage: Stage, viewer: Viewer, experiment: Experiment | None) -> None:
    """While the teacher shows them, draw the class's guesses on the viewer's present experiment, as they come."""
    if experiment is not None and viewer.room.said.shows:
        paint_at_changes(stage, viewer.pool, partial(_paint, viewer, experiment))
    else:
        stage.next_showing()


def _paint(viewer: Viewer, experiment: Experiment) -> int:
    tally = viewer.pool.tally()
    drawn = ""
    for question in questions(experiment):
        counts = tally.of(question)
        if question.asks == FACTOR:
            counts = view.answered(counts)
        if question.asks == BEST or any(counts.values()):
            drawn += view.histogram(view.words(question), counts, viewer.answered(question))
    lead = f"<h3>{html.escape(view.SHOWN)}</h3>"
    mo.output.replace(mo.Html(f'<section class="class-guesses">{lead}<div class="guess-grid">{drawn}</div></section>'))
    return tally.version


def note(viewer: Viewer) -> mo.Html | None:
    """What the teacher says to the whole page; None for nothing."""
    said = viewer.note()
    return mo.Html(said) if said else None
