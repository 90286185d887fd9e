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
from lib.experiments.predict_first import BEST, FACTOR, SKETCHED, Guess, guess_of, questions, sketch_questions
from lib.experiments.quiz import AFTER, BEFORE, QUIZ, Item, items_of
from lib.experiments.teacher import SECTIONS, Inbox, Push, classroom
from lib.pages import guess_form, url_state
from lib.pages.role import TEACHER, role
from lib.pages.stage import Stage, streaming
from lib.pages.streaming import paint_at_changes
from lib.pages.url_state import Address
from lib.pages.widgets import InSight
from lib.views import predict_first as view
from lib.views.sketch import band

PREDICT = url_state.choice("predict", 0, (0, 1))
SETTING = {PREDICT.name: PREDICT}
RETRY_S = 0.1


class Viewer:
    """One session of the first notebook: what it has guessed, and what its teacher says.

    Args:
        address: Of the page; a teacher's is what “push what the first page shows” sends, and a push writes into it.
        changed: Called with a new value whenever the teacher says something new.
        moved: Called with a new value when the address has other settings, so that the panels are made anew.
        told: Called with a new value when a question after a section was answered, so that it says whether rightly.
        asked: For each of the first `SECTIONS`, called with its experiment where other guesses are to be asked for.
            The cells that ask listen to this and not to the controls: in a class that does not predict, and mostly it
            does not, a moved slider runs one cell instead of three.
    """

    def __init__(
        self,
        address: Address,
        changed: Callable[[Any], None],
        moved: Callable[[Any], None],
        told: Callable[[Any], None],
        asked: Sequence[Callable[[Any], None]],
    ) -> None:
        self.name = secrets.token_hex(8)
        self.room, self.pool = classroom(), guesses_of_class()
        self.is_teacher = role() == TEACHER
        self._address, self._changed, self._moved, self._told = address, changed, moved, told
        self._asks_itself = bool(address.read(PREDICT))
        self._answers: dict[Question, str] = {}
        self._skipped: set[str] = set()
        # All at once: marimo numbers the elements that a cell makes, anew each time it runs, so one that is kept while
        # its cell runs again would share its number with another, and hear what that one is told.
        self._quizzes = {
            (question := item.asked(when)): mo.ui.radio(
                item.choices, label=item.text, on_change=partial(self._answer_quiz, question)
            )
            for item in QUIZ
            for when in (BEFORE, AFTER)
        }
        self._sketches = {section: guess_form.sketch() for section in SKETCHED}
        self._asked: dict[str, tuple[Question, ...]] = {}
        self._ask_anew = dict[str, Callable[[Any], None]](zip(SECTIONS, asked, strict=False))
        self._forms: dict[str, tuple[tuple[Question, ...], mo.ui.dictionary]] = {}  # the present one of each section
        self._followed = self.room.said.push.number if self.room.said.push else 0  # what was sent before it opened
        self._in_sight = mo.ui.anywidget(InSight(self._look))  # once: another would end when its cell runs again
        self._note = (
            button_that(self._go, "Go to the teacher's settings", "Sets the controls of this page"),
            button_that(self._stay, "Stay here", "Keeps your own settings"),
        )
        if self.is_teacher:
            self.room.front = weakref.ref(address)
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
        """Follow the teacher's settings where that is to be at once, and have the page look at what was said."""
        push = self.room.said.push
        if push is not None and push.at_once and push.number > self._followed:
            self._go()
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

    def sketch(self, section: str) -> mo.ui.anywidget | None:
        """Where a curve is sketched for this section; None where none is asked for."""
        return self._sketches.get(section)

    def skip(self, section: str) -> None:
        """Ask no more for guesses on this section."""
        self._skipped.add(section)

    def quiz(self, section: str, when: str) -> str:
        """HTML of the two questions on a section, `BEFORE` or `AFTER` it; each keeps its answer."""
        shown = "".join(self._quiz(item, when) for item in items_of(section))
        lead = html.escape(view.BEFORE_LEAD if when == BEFORE else view.AFTER_LEAD)
        # No heading: twelve of them would fill marimo's outline of the page.
        return f'<div class="quiz" role="group" aria-label="{lead}"><p>{lead}</p>{shown}</div>'

    def _quiz(self, item: Item, when: str) -> str:
        question = item.asked(when)
        told = view.feedback(item, self.answered(question)) if when == AFTER else ""
        return f'<div class="quiz-item">{self._quizzes[question].text}{told}</div>'

    def _answer_quiz(self, question: Question, option: str | None) -> None:
        if option is not None:
            self.answer(question, option)
            if question.asks == AFTER:
                self._told((question, option))

    def note(self) -> str:
        """HTML of what the teacher says to the whole page; empty for nothing."""
        said, shown = self.room.said, ""
        if self.pauses:
            shown += "<p>Your teacher has paused: no new run begins.</p>"
        if said.push is not None and said.push.number > self._followed and not self._is_mine(said.push):
            go, stay = (one.text for one in self._note)
            shown += f"<p>Your teacher sends settings for this page.</p>{go}{stay}"
        bar = f'<div class="class-note" role="status">{shown}</div>' if shown else ""
        return bar + (self._in_sight.text if said.observed else "")

    def _is_mine(self, push: Push) -> bool:
        return self.is_teacher and self._address.settings() == push.settings

    def _go(self) -> None:
        if (push := self.room.said.push) is not None:
            self._address.go_to(push.settings)
            self._moved(f"push {push.number}")
            self._followed = push.number
            self._changed(f"moved {push.number}")

    def _stay(self) -> None:
        if (push := self.room.said.push) is not None:
            self._followed = push.number
            self._changed(f"stays {push.number}")

    def _look(self, number: int) -> None:
        if 1 <= number <= len(SECTIONS):
            self.room.look(self.name, SECTIONS[number - 1])


def button_that(act: Callable[[], object], label: str, tooltip: str) -> mo.ui.button:
    """A button that acts at once, and whose value counts how often it did."""

    def pressed(count: int) -> int:
        act()
        return count + 1

    return mo.ui.button(label=label, value=0, on_click=pressed, tooltip=tooltip)


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


def quiz(viewer: Viewer, section: str, when: str = BEFORE) -> mo.Html | None:
    """The questions on a section, by its name among `SECTIONS`, `BEFORE` or `AFTER` it; None while the class does not
    predict."""
    return mo.Html(viewer.quiz(section, when)) if viewer.predicts else None


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
        return guess_form.drawn(form, self._viewer.sketch(experiment.name), experiment)

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
        for question, option in guess_form.chosen(form, self._viewer.sketch(experiment.name), experiment).items():
            self._viewer.answer(question, option)


# After it.


def after(
    stage: Stage, viewer: Viewer, form: mo.ui.dictionary | None, section: str, experiment: Experiment | None
) -> None:
    """The questions after a section, and, where the teacher shows them, the guesses of the class, as they come.

    Args:
        stage: Where they are drawn.
        viewer: Whose page it is.
        form: What asks before the section, from `ask`; its cell runs first.
        section: The name of the section's experiment.
        experiment: What the viewer came to, whose guesses are shown; None for nothing yet.
    """
    shows = viewer.room.said.shows
    if not (shows or viewer.predicts):
        experiment = None
    if experiment is not None and form is not None:
        First(viewer, form).guess(experiment)  # whichever of the two cells runs first
    if experiment is None or (viewer.must_guess(experiment) and not shows):
        stage.next_showing()
        return
    quiz = viewer.quiz(section, AFTER) if viewer.predicts and not viewer.must_guess(experiment) else ""
    if shows:
        paint_at_changes(stage, viewer.pool, partial(_paint, viewer, experiment, quiz))
    else:
        stage.next_showing()
        mo.output.replace(mo.Html(quiz))


def _paint(viewer: Viewer, experiment: Experiment, quiz: str) -> int:
    tally = viewer.pool.tally()
    drawn = ""
    for question in questions(experiment):
        counts = tally.of(question)
        if question.asks == FACTOR:
            counts = view.answered(counts)
        if question.asks == BEST or any(counts.values()):
            drawn += view.histogram(view.words(question), counts, viewer.answered(question))
    drawn += band(tally, sketch_questions(experiment))
    lead = f"<h3>{html.escape(view.SHOWN)}</h3>"
    mo.output.replace(
        mo.Html(f'<section class="class-guesses">{lead}<div class="guess-grid">{drawn}</div></section>{quiz}')
    )
    return tally.version


def note(viewer: Viewer) -> mo.Html | None:
    """What the teacher says to the whole page; None for nothing."""
    said = viewer.note()
    return mo.Html(said) if said else None
