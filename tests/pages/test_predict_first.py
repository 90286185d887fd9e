"""A section in front of a class: nothing of its result is drawn before a guess, and the teacher's word holds."""

import gc
import time
import weakref

import marimo as mo
import pytest

from lib.experiments.guesses import Guesses
from lib.experiments.predict_first import Guess, questions
from lib.experiments.teacher import SECTIONS, Classroom
from lib.formatting import sentence
from lib.pages import mnist_training as page
from lib.pages import predict_first, streaming
from lib.pages import stage as stage_module
from lib.pages.export_menu import ExportMenu
from lib.pages.predict_first import First, Viewer, ask
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.storage.store import Store
from lib.views import predict_first as view
from lib.views.pinned import HIDDEN, WAITS

QUICK = {"rate.size": "4096", "rate.epochs": "1", "rate.count": "2", "rate.hidden": "8"}
SMALL = "size=4096&epochs=1&hidden=8"  # as QUICK, in a pin
# Of a result: drawn, in words, as sound, and beside a pinned one.
DRAWN = ("lab-figure", "lab-details", "lab-state lab-t", "lab-state lab-s", "lab-state lab-d", 'role="img"', "lab-menu")
PINNED = ("lab-kept", "lab-difference", "pinned")


@pytest.fixture
def room(monkeypatch):
    room, pool = Classroom(), Guesses()
    for module in (predict_first, stage_module):
        monkeypatch.setattr(module, "classroom", lambda: room)
    monkeypatch.setattr(predict_first, "guesses_of_class", lambda: pool)
    return room


@pytest.fixture
def shown(monkeypatch):
    shown = []
    monkeypatch.setattr(streaming.mo.output, "replace", lambda content: shown.append(content.text))
    return shown


@pytest.fixture
def stage(engine, tmp_path):
    stage = Stage(engine, Store(tmp_path / "results.sqlite"), menu=ExportMenu())
    stage.streams = True
    yield stage
    stage.stop()


def opened(predict="1", heard=None):
    note = (heard if heard is not None else []).append
    return Viewer(Address(arguments={"predict": predict} | QUICK), note, [note])


class Section:
    """The first section's cells, run as marimo runs them."""

    def __init__(self, viewer, stage, **changed):
        address = Address(arguments=QUICK | {f"rate.{name}": said for name, said in changed.items()})
        self.viewer, self.stage, self.panel = viewer, stage, page.rate_panel(address, stage)
        self.form = ask(viewer, self.make())

    def make(self):
        return page.rate_experiment(self.panel.value)

    def show(self):
        first, kept = First(self.viewer, self.form), page.pinned("rate", self.panel.value)
        streaming.show(self.stage, self.make, mo.Html("controls"), first=first, pinned=kept)

    def press(self, name, value: object = 1):
        assert self.form is not None
        self.form._update({name: value})


def wait_for(condition):
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("room")
def test_nothing_of_the_result_is_drawn_before_one_click_and_then_all(stage, shown):
    viewer = opened()
    section = Section(viewer, stage)
    section.show()
    wait_for(lambda: stage.has(section.make(), 0) and stage.run(section.make(), 0).results.over)
    section.show()
    assert len(shown) == 2
    for content in shown:
        assert view.LEAD in content
        assert view.SKIP in content
        assert "controls" in content
        assert not [words for words in DRAWN if words in content]
    section.press("best 1")
    section.show()
    assert "lab-figure" in shown[-1]
    assert "You said 1" in shown[-1]
    assert viewer.guess(section.make()) == Guess("1")
    assert viewer.pool.tally().of(questions(section.make())[0]) == {"0.001": 0, "1": 1}


def test_where_nobody_asks_the_cells_that_would_ask_are_left_alone(room, stage, shown):
    heard = []
    viewer = opened("0", heard)
    section = Section(viewer, stage)
    section.show()
    assert heard == []
    room.say(shows=True)
    section.show()
    section.show()
    Section(viewer, stage, size="2048").show()
    assert heard == [section.make()], "once for the same candidates"
    Section(viewer, stage, count="3").show()
    assert len(heard) == 2


@pytest.mark.usefixtures("room")
def test_a_form_for_other_candidates_neither_shows_nor_answers_anything(stage, shown):
    """The section's cell runs before that which makes the form, and then once more."""
    heard = []
    viewer = opened("1", heard)
    section, other = Section(viewer, stage), Section(viewer, stage, count="3")
    pressed, section.form = section.form, other.form
    section.show()
    assert heard == [section.make()]
    assert shown[-1].count("guess-lead") == 1
    assert "guess-options" not in shown[-1]
    assert not [words for words in DRAWN if words in shown[-1]]
    section.form = pressed
    section.press("best 1")
    section.show()
    assert viewer.guess(section.make()) is None, "it was for what another form asks now"
    section.form = ask(viewer, heard[-1])
    section.show()
    assert "guess-options" in shown[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("room")
def test_a_pinned_run_is_not_seen_before_its_outcome_is_guessed_too(stage, shown):
    """In a link: neither before the present one is guessed nor, where it has other candidates, after that."""
    viewer, pin = opened(), f"count=3&{SMALL}"
    section = Section(viewer, stage, pin=pin)
    section.show()
    assert not [words for words in (*DRAWN, *PINNED) if words in shown[-1]]
    section.press("best 1")
    section.show()
    assert "lab-figure" in shown[-1]
    assert "lab-menu" in shown[-1]
    assert HIDDEN in shown[-1]
    assert "lab-kept" not in shown[-1]
    assert stage.pins(None), "it is not even trained"
    its = Section(viewer, stage, count="3", pin=pin)
    its.press("best 1")
    its.show()
    Section(viewer, stage, pin=pin).show()
    wait_for(lambda: "Best pinned:" in shown[-1])
    assert "lab-kept" in shown[-1]


@pytest.mark.usefixtures("room")
def test_a_guess_holds_for_a_pinned_run_of_the_same_candidates(stage, shown):
    viewer = opened()
    section = Section(viewer, stage, pin=SMALL.replace("4096", "2048") + "&count=2")
    section.show()
    assert not [words for words in (*DRAWN, *PINNED) if words in shown[-1]]
    section.press("best 1")
    section.show()
    assert "lab-kept" in shown[-1]
    assert "your guess" in shown[-1]


def test_a_pause_holds_a_pinned_run_too(room, stage, shown, monkeypatch):
    monkeypatch.setattr(predict_first, "role", lambda: "pupil")
    stage.is_teacher = False
    viewer = opened("0")
    Section(viewer, stage).show()
    room.say(pauses=True)
    pinned = Section(viewer, stage, pin=f"count=3&{SMALL}")
    pinned.show()
    assert WAITS in shown[-1]
    assert "lab-figure" in shown[-1], "what is there stays"
    room.say(pauses=False)
    pinned.show()
    assert "lab-kept" in shown[-1]


@pytest.mark.usefixtures("room")
def test_it_is_asked_again_for_other_candidates_only(stage):
    viewer = opened()
    first = Section(viewer, stage)
    first.press("best 1")
    First(viewer, first.form).guess(first.make())
    assert Section(viewer, stage, size="2048").form is None
    assert Section(viewer, stage, count="3").form is not None
    assert Section(viewer, stage).form is None


@pytest.mark.usefixtures("room")
def test_no_element_is_kept_while_its_cell_makes_others(stage):
    """They would have the same numbers: marimo counts from 0 each time a cell runs."""
    viewer = opened()
    forms = [Section(viewer, stage, count=count).form for count in ("2", "3", "2")]
    assert forms[0] is not forms[2], "another was made in between"


@pytest.mark.usefixtures("room")
def test_who_would_rather_see_is_not_asked_again(stage, shown):
    viewer = opened()
    section = Section(viewer, stage)
    section.press("skip")
    section.show()
    assert "lab-figure" in shown[-1]
    assert "You said" not in shown[-1]
    assert Section(viewer, stage, count="3").form is None
    assert viewer.pool.tally().counts == {}


@pytest.mark.usefixtures("room")
def test_what_may_stay_open_counts_where_it_was_chosen(stage):
    viewer = opened()
    section = Section(viewer, stage)
    section.press("diverges", "no")
    assert Section(viewer, stage, size="2048").form is section.form, "a moved slider keeps what was chosen"
    section.press("best 0.001")
    assert First(viewer, section.form).guess(section.make()) == Guess("0.001", diverges="no")


@pytest.mark.usefixtures("room")
def test_with_the_switch_off_the_page_is_as_without_a_class(stage, shown):
    viewer = opened("0")
    section = Section(viewer, stage)
    assert section.form is None
    assert predict_first.note(viewer) is None
    section.show()
    seat = stage.run(section.make(), 0)
    assert seat.wait_for_end(120)
    wait_for(lambda: "was best" in shown[-1] or "did not learn" in shown[-1])
    plain = []
    streaming.show(stage, section.make, mo.Html("controls"))
    plain.append(shown[-1])
    section.show()
    assert shown[-1] == plain[0]
    predict_first.after(stage, viewer, section.make())
    assert shown[-1] == plain[0], "nothing more was drawn"


def test_a_teacher_switches_predicting_on_for_all(room):
    heard = []
    viewer = opened("0", heard)
    assert not viewer.predicts
    room.say(predicts=True)
    viewer.hear()
    assert viewer.predicts
    assert heard, "the page looks again"


def test_a_pause_holds_new_runs_of_pupils_and_says_so(room, stage, shown, monkeypatch):
    monkeypatch.setattr(predict_first, "role", lambda: "pupil")
    stage.is_teacher = False
    viewer = opened("0")
    section = Section(viewer, stage)
    section.show()
    assert stage.run(section.make(), 0).wait_for_end(120)
    room.say(pauses=True)
    section.show()
    assert sentence(view.PAUSED) not in shown[-1], "what is there stays"
    other = Section(viewer, stage, count="3")
    other.show()
    assert sentence(view.PAUSED) in shown[-1]
    assert not stage.has(other.make(), 0)
    assert "no new run begins" in viewer.note()
    room.say(pauses=False)
    other.show()
    assert stage.has(other.make(), 0)
    assert viewer.note() == ""


def test_a_pause_does_not_hold_the_teacher(room):
    viewer = opened("0")
    room.say(pauses=True)
    assert not viewer.pauses


def test_a_page_that_was_closed_is_counted_no_more(room, monkeypatch):
    """ipywidgets holds each widget for good: they kept the page, its thread and its place among the open pages."""
    monkeypatch.setattr(predict_first, "streaming", lambda: True)
    viewer = opened()
    viewer._look(2)
    assert room.sections()[1] == 1
    gone = weakref.ref(viewer)
    del viewer
    deadline = time.monotonic() + 20
    while room.sections()[1] and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert gone() is None
    assert room.sections() == (dict.fromkeys(SECTIONS, 0), 0)


@pytest.mark.slow
def test_the_guesses_of_the_class_come_after_the_section_as_they_are_made(room, stage, shown):
    viewer, other = opened("0"), opened("0")
    section = Section(viewer, stage)
    room.say(shows=True)
    predict_first.after(stage, viewer, section.make())
    assert "<small>0 answers</small>" in shown[-1]
    other.answer(questions(section.make())[0], "1")
    wait_for(lambda: "<small>1 answer</small>" in shown[-1])
    room.say(shows=False)
    predict_first.after(stage, viewer, section.make())
    n_shown = len(shown)
    other.answer(questions(section.make())[0], "0.001")
    time.sleep(0.5)
    assert len(shown) == n_shown


def test_a_page_tells_which_section_it_shows(room):
    viewer = opened()
    viewer._in_sight._hear(None, {"section": 3}, [])
    assert room.sections()[0]["depth"] == 1
    for content in ({"section": 99}, {"section": "x"}, {}, None, {"section": True}):
        viewer._in_sight._hear(None, content, [])
    assert room.sections()[0]["depth"] + room.sections()[0]["learning-rate"] == 1
