"""A section in class: nothing of its result is drawn before a guess, and the teacher's settings apply."""

import gc
import time
import weakref
from types import SimpleNamespace

import pytest

import mnist_training
from lib.formatting import sentence
from lib.labs import mnist_training as page
from lib.sweeps.experiments.results import Watched
from lib.sweeps.experiments.teacher import Classroom, Guess, Guesses, questions
from lib.ui import lab as lab_module
from lib.ui import predict_first
from lib.ui.predict_first import PredictFirst
from lib.ui.url_state import Address
from lib.ui.views import predict_first as view
from lib.ui.views.pinned import HIDDEN, WAITS
from tests import made

QUICK = {"rate.size": "4096", "rate.epochs": "1", "rate.count": "2", "rate.hidden": "8"}
SMALL = "size=4096&epochs=1&hidden=8"  # like QUICK, in a pin
# Traces of a result in the HTML: chart, text, state, menu; and of a pinned one.
DRAWN = ("lab-figure", "lab-details", "lab-state lab-t", "lab-state lab-s", "lab-state lab-d", 'role="img"', "lab-menu")
PINNED = ("lab-kept", "lab-difference")


@pytest.fixture(autouse=True)
def room(monkeypatch):
    room, pool = Classroom(), Guesses()
    for module in (predict_first, lab_module):
        monkeypatch.setattr(module, "classroom", lambda: room)
    monkeypatch.setattr(predict_first, "guesses_of_class", lambda: pool)
    return room


class Viewer:
    def __init__(self, make, predict="1", **changed):
        self.lab = make(True, predict=predict, **QUICK | {f"rate.{name}": said for name, said in changed.items()})
        self.panel = self.lab.controls("rate")
        self.section, self.first = self.lab.page.sections["rate"], self.lab.first
        self.form = self.first._forms["learning-rate"]

    def show(self):
        mnist_training.learning_rate.run(lab=self.lab, rate=self.panel)

    def move(self, **values):
        self.panel._value = self.panel.value | values
        self.show()

    @property
    def experiment(self):
        return made.jobs("rate")(page.RateControls.checked("rate", self.panel.value))

    def press(self, best, **said):
        self.form._handle_custom_msg({"section": "learning-rate", "said": {"best": best} | said}, [])

    def result(self):
        return self.section.stage.run(self.experiment, 0).results


@pytest.fixture
def viewer(lab, shown):
    opened = []

    def make(*arguments, **changed):
        opened.append(Viewer(lab, *arguments, **changed))
        return opened[-1]

    yield make
    for one in opened:
        one.lab.page.close()


def wait_for(condition):
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.slow
def test_the_result_is_hidden_until_a_guess(viewer, shown):
    pupil = viewer()
    pupil.show()
    wait_for(lambda: pupil.result().over)
    pupil.show()
    assert (pupil.form.asked["lead"], pupil.form.asked["skip"]) == (view.LEAD, view.SKIP)
    assert [one["asks"] for one in pupil.form.asked["questions"]] == ["best", "diverges"]
    for content in shown:
        assert "How many rates" in content, "the controls"
        assert not [words for words in DRAWN if words in content]
    pupil.press("1")
    wait_for(lambda: "You said 1" in shown[-1])
    assert "lab-figure" in shown[-1]
    assert pupil.first.guess(pupil.experiment) == Guess("1")
    assert pupil.first.pool.tally()[questions(pupil.experiment)[0]] == {"0.001": 0, "1": 1}


@pytest.mark.parametrize(
    "said",
    [
        None,
        "learning-rate",
        {"section": "attic", "said": {"best": "1"}},
        {"section": "learning-rate", "said": {"best": "7"}},
        {"section": "learning-rate", "said": {"diverges": "yes"}},
        {"section": ["learning-rate"], "said": 5},
        {"section": "learning-rate", "said": {"best": ["1"]}},
    ],
)
def test_malformed_guesses_are_ignored(viewer, said):
    pupil = viewer()
    pupil.show()
    pupil.first._hear(said)
    assert pupil.first.guess(pupil.experiment) is None
    assert pupil.first.pool.tally() == {}


@pytest.mark.slow
def test_a_pinned_run_is_hidden_until_its_outcome_is_guessed(viewer, shown):
    """With a link's pin: hidden before the current result is guessed, and after, if its candidates differ."""
    pupil = viewer(pin=f"count=3&{SMALL}")
    pupil.show()
    assert not [words for words in (*DRAWN, *PINNED) if words in shown[-1]]
    pupil.press("1")
    wait_for(lambda: HIDDEN in shown[-1])
    assert "lab-figure" in shown[-1]
    assert "lab-menu" in shown[-1]
    assert "lab-kept" not in shown[-1]
    assert pupil.section.stage.pinned.is_at(None), "it is not even trained"
    pupil.move(count=3)
    pupil.press("1")
    pupil.move(count=2)
    wait_for(lambda: "Best pinned:" in shown[-1])
    assert "lab-kept" in shown[-1]


def test_a_guess_also_reveals_a_pinned_run_of_the_same_candidates(viewer, shown):
    pupil = viewer(pin=SMALL.replace("4096", "2048") + "&count=2")
    pupil.show()
    assert not [words for words in (*DRAWN, *PINNED) if words in shown[-1]]
    pupil.press("1")
    wait_for(lambda: "lab-kept" in shown[-1])


def test_a_pause_also_delays_a_pinned_run(room, viewer, shown):
    pupil = viewer("0")
    pupil.section.stage.is_teacher = pupil.first.is_teacher = False
    pupil.show()
    room.say("pauses", True)
    pupil.move(pin=f"count=3&{SMALL}")
    wait_for(lambda: WAITS in shown[-1])
    assert "lab-figure" in shown[-1], "what is there stays"
    room.say("pauses", False)
    pupil.show()
    wait_for(lambda: "lab-kept" in shown[-1])


def test_a_new_guess_is_asked_for_other_candidates_only(viewer):
    pupil = viewer()
    pupil.show()
    pupil.press("1", diverges="no")
    assert pupil.first.guess(pupil.experiment) == Guess("1", diverges="no"), "an optional answer counts if given"
    pupil.move(size=2048)
    assert not pupil.first.hides(pupil.experiment)
    pupil.move(count=3)
    assert pupil.first.hides(pupil.experiment)
    pupil.move(count=2)
    assert not pupil.first.hides(pupil.experiment)


def test_a_viewer_who_skips_is_not_asked_again(viewer, shown):
    pupil = viewer()
    pupil.show()
    pupil.form._handle_custom_msg({"section": "learning-rate", "skip": True}, [])
    wait_for(lambda: "lab-figure" in shown[-1])
    assert "You said" not in shown[-1]
    pupil.move(count=3)
    assert not pupil.first.hides(pupil.experiment)
    assert pupil.first.pool.tally() == {}


@pytest.mark.slow
def test_without_predicting_the_page_shows_no_guesses(viewer, shown):
    pupil = viewer("0")
    assert pupil.form.asked == {}
    assert pupil.first.note() == ""
    pupil.show()
    wait_for(lambda: "was best" in shown[-1] or "did not learn" in shown[-1])
    assert "guess" not in shown[-1]


def test_a_teacher_enables_predicting_for_all_and_is_not_paused(room, viewer, monkeypatch):
    monkeypatch.setattr(predict_first, "streaming", lambda: True)
    teacher = viewer("0")
    assert not teacher.first.predicts
    before = teacher.lab.page.news.version
    room.say("predicts", True)
    room.say("pauses", True)
    assert teacher.first.predicts
    assert not teacher.first.pauses
    assert teacher.lab.page.news.version > before, "the page looks again"


@pytest.mark.slow
def test_a_pause_delays_new_runs_of_pupils_and_says_so(room, viewer, shown):
    pupil = viewer("0")
    pupil.section.stage.is_teacher = pupil.first.is_teacher = False
    pupil.show()
    wait_for(lambda: pupil.result().over)
    room.say("pauses", True)
    pupil.show()
    assert sentence(view.PAUSED) not in shown[-1], "what is there stays"
    pupil.move(count=3)
    wait_for(lambda: sentence(view.PAUSED) in shown[-1])
    assert not pupil.section.stage.has(pupil.experiment, 0)
    assert "no new runs start" in pupil.first.note()
    room.say("pauses", False)
    pupil.show()
    assert pupil.section.stage.has(pupil.experiment, 0)
    assert pupil.first.note() == ""


def test_a_closed_page_is_garbage_collected(monkeypatch):
    """ipywidgets keeps every widget alive, which kept the page and its thread."""
    monkeypatch.setattr(predict_first, "streaming", lambda: True)
    first = PredictFirst()
    first.attach(SimpleNamespace(address=Address(), news=Watched()))  # type: ignore[arg-type]
    gone = weakref.ref(first)
    del first
    deadline = time.monotonic() + 20
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert gone() is None


@pytest.mark.slow
def test_guesses_of_the_class_are_shown_live(room, viewer, shown):
    pupil, other = viewer("0"), viewer("0")
    room.say("shows", True)
    pupil.show()
    wait_for(lambda: "<small>0 answers</small>" in shown[-1])
    question = questions(pupil.experiment)[0]
    other.first.pool.guess(other.first.name, question, "1")
    wait_for(lambda: "<small>1 answer</small>" in shown[-1])
    wait_for(lambda: pupil.result().over)
    room.say("shows", False)
    pupil.show()
    n_shown = len(shown)
    other.first.pool.guess(other.first.name, question, "0.001")
    time.sleep(0.5)
    assert "answer</small>" not in shown[-1]
    assert len(shown) <= n_shown + 1
