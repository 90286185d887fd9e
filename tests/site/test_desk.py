"""The teacher's page: its switches apply to the class, no pupil sees it, and it shows exact counts."""

import gc
import threading

import marimo as mo
import pytest

from lib.site import desk as site
from lib.sweeps.experiments.teacher import TIMED, Classroom, Guesses, GuessQuestion


@pytest.fixture
def desk(monkeypatch):
    room = Classroom()
    monkeypatch.setattr(site, "classroom", lambda: room)
    monkeypatch.setattr(site, "guesses_of_class", Guesses)
    return site.Desk()


def test_the_switches_set_the_classroom(desk):
    for field, switch in desk.switches.items():
        switch._update(True)
        assert getattr(desk.room, field)
        switch._update(False)
        assert not getattr(desk.room, field)


def test_a_button_clears_all_guesses(desk):
    desk.guesses.guess("p", GuessQuestion("depth", "best", ("128",)), "128")
    desk.clear._update(1)
    assert desk.guesses.tally() == {}


def test_a_pupil_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(site, "role", lambda: "pupil")
    shown = site.controls(site.desk()).text
    assert site.REFUSED.replace("'", "&#x27;") in shown
    assert "switch" not in shown


def test_guesses_are_listed_by_section_latest_settings_first():
    pool = Guesses()
    for rates in (("0.1", "1"), ("0.1", "10"), ("0.2", "1"), ("0.3", "3")):
        pool.guess("p", GuessQuestion("learning-rate", "best", rates, rates), rates[1])
        pool.guess("p", GuessQuestion("learning-rate", "diverges", ("yes", "no"), rates), "no")
    shown = site.tallied(pool.tally())
    assert site.TITLES["learning-rate"] in shown
    assert site.TITLES["depth"] not in shown
    assert shown.count("Which learning rate") == site.MAX_SETTINGS
    assert shown.index("<span>0.3") < shown.index("<span>10") < shown.index("</section></div>")
    assert shown.index("Which learning rate") < shown.index("stop being a number")
    assert site.NO_GUESSES in site.tallied(Guesses().tally())


@pytest.mark.parametrize("section", TIMED)
def test_only_guessed_factors_are_shown(section):
    pool, names = Guesses(), ("JAX", "NumPy")
    pool.guess("p", GuessQuestion(section, "factor", ("1", "2", "3"), names), "2")
    shown = site.tallied(pool.tally())
    assert "How many times as long" in shown
    assert "<span>2</span>" in shown
    assert "<span>3</span>" not in shown


def test_the_thread_that_draws_guesses_ends_with_the_desk(monkeypatch):
    monkeypatch.setattr(mo, "Thread", threading.Thread)
    monkeypatch.setattr("lib.ui.lab.streaming", lambda: True)
    before, desk = set(threading.enumerate()), site.Desk()
    desk.watch_guesses()
    (drawing,) = set(threading.enumerate()) - before
    del desk
    gc.collect()
    drawing.join(10)
    assert not drawing.is_alive()
