"""The teacher's page: its switches hold for the class, and no pupil sees it."""

import pytest

from lib.experiments.guesses import Guesses, Question
from lib.experiments.teacher import Classroom
from lib.pages import teacher
from lib.views import teacher as view


@pytest.fixture
def desk(monkeypatch):
    room = Classroom()
    monkeypatch.setattr(teacher, "classroom", lambda: room)
    monkeypatch.setattr("lib.experiments.teacher.classroom", lambda: room)
    monkeypatch.setattr("lib.experiments.teacher.guesses_of_class", Guesses)
    return teacher.Desk()


def test_the_switches_say_what_holds(desk):
    for field, switch in desk.switches.items():
        switch._update(True)
        assert getattr(desk.room.said, field)
        switch._update(False)
        assert not getattr(desk.room.said, field)
    assert desk.room.said.observed


def test_all_guesses_are_forgotten_at_a_press(desk):
    desk.overview.guesses.guess("p", Question("depth", "best", ("128",)), "128")
    desk.clear._update(1)
    assert desk.overview.guesses.tally().counts == {}


def test_a_pupil_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(teacher, "role", lambda: "pupil")
    assert teacher.is_refused()
    shown = teacher.controls(None).text
    assert view.REFUSED.replace("'", "&#x27;") in shown
    assert "switch" not in shown
