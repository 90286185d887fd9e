"""The teacher's page: what is pushed is checked, and no pupil sees it."""

import pytest

from lib.experiments.guesses import Guesses
from lib.experiments.teacher import Classroom
from lib.pages import teacher
from lib.pages.url_state import Address
from lib.views import teacher as view


@pytest.fixture
def desk(monkeypatch):
    room = Classroom()
    monkeypatch.setattr(teacher, "classroom", lambda: room)
    monkeypatch.setattr("lib.experiments.teacher.classroom", lambda: room)
    monkeypatch.setattr("lib.experiments.teacher.guesses_of_class", Guesses)
    said = []
    desk = teacher.Desk(said.append)
    desk.said = said  # type: ignore[attr-defined]
    return desk


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:2718/?rate.epochs=5&file=x", "?rate.epochs=5", "rate.epochs=5", " /?rate.epochs=5 "]
)
def test_an_address_or_the_end_of_one_is_read(address):
    assert teacher.settings_in(address)["rate.epochs"] == "5"


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("", "expected one with settings"),
        ("http://127.0.0.1:2718/", "expected one with settings"),
        ("?rate.epochs=many", "rate.epochs=many: expected one of"),
        ("?rate.epoch=5", "the nearest is rate.epochs"),
        ("http://[", "expected"),
        ("\x00", "expected"),
    ],
)
def test_what_cannot_be_pushed_is_answered_by_a_sentence(desk, address, wanted):
    desk.address._update(address)
    desk.buttons["address"]._update(1)
    assert wanted in desk.said[-1]
    assert desk.room.said.push is None


def test_an_address_is_pushed_to_all(desk):
    desk.address._update("?rate.epochs=5")
    desk.at_once._update(True)
    desk.buttons["address"]._update(1)
    assert desk.room.said.push.settings == {"rate.epochs": "5"}
    assert desk.room.said.push.at_once
    assert desk.said[-1] == "Pushed to 0 pages: rate.epochs=5."


def test_what_the_first_page_shows_is_pushed(desk):
    desk.buttons["front"]._update(1)
    assert "open it" in desk.said[-1]
    address = Address(arguments={"rate.epochs": "6", "file": "x"})
    desk.room.front = lambda: address
    desk.buttons["front"]._update(1)
    assert desk.room.said.push.settings == {"rate.epochs": "6"}


def test_the_switches_say_what_holds(desk):
    for field, switch in desk.switches.items():
        switch._update(True)
        assert getattr(desk.room.said, field)
        switch._update(False)
        assert not getattr(desk.room.said, field)
    assert desk.room.said.observed


def test_a_pupil_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(teacher, "role", lambda: "pupil")
    assert teacher.is_refused()
    shown = teacher.controls(None, "").text
    assert view.REFUSED.replace("'", "&#x27;") in shown
    assert "switch" not in shown
