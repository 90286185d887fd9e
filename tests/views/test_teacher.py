"""The teacher's page, from literal counts."""

import pytest

from lib.experiments.guesses import Guesses, Question
from lib.experiments.predict_first import TIMED
from lib.experiments.teacher import SECTIONS, Queued
from lib.views import teacher as view


def test_guesses_stand_below_their_section_the_latest_settings_first():
    pool = Guesses()
    for rates in (("0.1", "1"), ("0.1", "10"), ("0.2", "1"), ("0.3", "3")):
        pool.guess("p", Question("learning-rate", "best", rates, rates), rates[1])
        pool.guess("p", Question("learning-rate", "diverges", ("yes", "no"), rates), "no")
    shown = view.guesses(pool.tally())
    assert view.TITLES["learning-rate"] in shown
    assert view.TITLES["depth"] not in shown
    assert shown.count("Which learning rate") == view.MAX_SETTINGS
    assert shown.index("<span>0.3") < shown.index("<span>10") < shown.index("</section></div>")
    assert shown.index("Which learning rate") < shown.index("stop being a number")
    assert view.NO_GUESSES in view.guesses(Guesses().tally())


@pytest.mark.parametrize("section", TIMED)
def test_of_many_factors_those_are_shown_that_somebody_said(section):
    pool, names = Guesses(), ("JAX", "NumPy")
    pool.guess("p", Question(section, "factor", ("1", "2", "3"), names), "2")
    shown = view.guesses(pool.tally())
    assert "How many times as long" in shown
    assert "<span>2</span>" in shown
    assert "<span>3</span>" not in shown


def test_where_the_class_is_and_what_trains():
    shown = view.presence(dict.fromkeys(SECTIONS, 0) | {"depth": 2}, 3)
    assert "3 pages of the first notebook are open." in shown
    assert f"<span>{view.TITLES['depth']}</span>" in shown
    assert set(view.TITLES) == set(SECTIONS)
    shown = view.queue(Queued(1, 4, ("depth", "something else")))
    assert "<td>1</td>" in shown
    assert "<td>4</td>" in shown
    assert f"<li>{view.TITLES['depth']}</li><li>something else</li>" in shown
