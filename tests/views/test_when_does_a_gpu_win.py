"""Sentences and tables of the surface: each says what its rows show, and nothing where they show nothing."""

import numpy as np
import pytest

from lib.experiments.published_predictions import Row
from lib.experiments.when_does_a_gpu_win import CELLS, MOVES, Answer, Cost, Point, RuleCheck, Surface, Wanted, imagined
from lib.prediction.device import read_devices
from lib.prediction.grid import Predictions
from lib.prediction.predict import Prediction
from lib.sweeps.cost_model import StepTime
from lib.views import when_does_a_gpu_win as view

ONE = np.ones((CELLS, CELLS))
LEFT_HALF = np.arange(CELLS)[None, :] < CELLS // 2


def surface(ratio, spread=1.0):
    left = ratio * ONE
    return Surface(Predictions(left, left / spread, left * spread), Predictions(ONE, ONE, ONE))


def test_the_sentence_counts_who_wins_where_and_where_nobody_does():
    said = view.surface_sentence(surface(np.where(LEFT_HALF, 0.5, 2.0)), "NumPy", "L4", 1, 1)
    assert "L4 is predicted to be faster than NumPy in 50% of this field and slower in 50%" in said
    assert "the other 0%" in said
    assert "at width 128 from batch size" in said
    said = view.surface_sentence(surface(1.5, spread=2.0), "NumPy", "L4", 2, 8)
    assert "8 networks of 2 hidden layers" in said
    assert "the other 100% the intervals overlap" in said
    assert "at no batch size" in view.surface_sentence(surface(0.5), "NumPy", "L4", 1, 1)


def test_what_fits_into_no_memory_is_said():
    nothing = surface(np.nan)
    assert "fits into the memory of both" in view.surface_sentence(nothing, "NumPy", "L4", 4, 128)
    half = surface(np.where(LEFT_HALF, np.nan, 2.0))
    assert "Grey: 50% of the field" in view.surface_sentence(half, "NumPy", "L4", 4, 128)


def test_the_rule_fails_only_where_a_side_wins_for_sure():
    fails = view.rule_sentence(RuleCheck(0.25, (500, 128, 3.0), 0.0, None), "NumPy", "L4")
    assert "below both, L4 wins for sure in 25% of the corner (at width 500 and batch size 128 it is 3 times" in fails
    assert "above both" not in fails
    assert "No prediction here contradicts it for sure" in view.rule_sentence(
        RuleCheck(0.0, None, 0.0, None), "NumPy", "L4"
    )


def test_points_are_counted_by_where_they_come_from():
    kept = [Point(64, 8, 2.0, 1.0, machine="a phone"), Point(64, 8, 1.0, 2.0, machine="a laptop")]
    points = [Point(128, 32, 1.0, 2.0), *kept, Point(128, 32, 2.0, 1.0, ("numpy", "keras-tensorflow"))]
    said = view.points_sentence(points)
    assert said.startswith("Dots are step times that are stored here (1);")
    assert "processor (2): the GPU was faster in 1 of them" in said
    assert "batch sizes (1), its GPU, by Keras, faster than the quickest library on its processor in 1 of them" in said
    assert view.points_sentence([]) == ""


def wanted(needed, now=5e-6, figure="launch_s"):
    return Wanted(figure, now, needed, 0.5)


def test_what_it_would_take_is_said_for_each_figure():
    def said(*found):
        return view.wanted_sentence(found, "L4", "NumPy", 5e-5, 32, 128)

    assert said() == ""
    both = said(wanted(1e-6), wanted(None, 3e-5, "host_call_s"))
    assert "starting one kernel 1\u202fμs in place of 5\u202fμs" in both
    assert "No value of this alone would do: a call of a compiled program by the host" in both
    assert "several would have to change at once" in said(wanted(None))
    assert "wins already" in said(wanted(6e-6), wanted(1e11, 3e11, "memory_bytes_per_s"))


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(1.12e13, "FLOP/s", "11.2\u202fTFLOP/s"), (5e-6, "s", "5\u202fμs")]
)
def test_figures_are_written_short(value, unit, text):
    assert view.amount(value, unit) == text


def test_only_changed_figures_stand_in_the_table_of_an_imagined_card():
    card = read_devices()["l4"]
    table = view.imagined_table(card, imagined(card, {"launch": 0.5, "throughput": 1.0}))
    assert "starting one kernel" in table
    assert "large float32 product" not in table
    assert view.imagined_table(card, card) == ""
    before, after = surface(0.5), surface(2.0)
    said = view.imagined_sentence(before, after, "X")
    assert "at width 128 it wins from batch size 1 on (before: at no batch size)" in said


def test_moving_the_border_names_the_chosen_way_and_all_others():
    surfaces = {name: surface(2.0 if number else 0.5) for number, name in enumerate(MOVES)}
    first, *others = MOVES
    said = view.moves_sentence(surfaces, first, "L4", "NumPy")
    assert f"Driven by {first}, L4 is predicted to be faster than NumPy in 0% of the field" in said
    assert all(f"{name}, from batch size 1 on" in said for name in others)


def answer(side, step_s, on_gpu, measured=None, warning=""):
    found = Prediction(step_s, step_s / 2, step_s * 2, {}, warning)
    return Answer("ResNet-18", side, on_gpu, 1500, found, StepTime(measured, 0.1) if measured else None)


def test_every_number_of_larger_work_wears_its_word():
    refused = Answer("ResNet-18", "small", True, 1500, None, why_not="no memory")
    found = [answer("card", 0.01, True), answer("here", 0.1, False, measured=0.05), refused]
    table = view.larger_table(found)
    assert "measured; predicted: 100\u202fms" in table
    assert table.count(">predicted<") == 1
    assert "no memory" in table
    assert table.index("card") < table.index("here") < table.index("small")
    assert "ResNet-18: card, 5 times faster than here" in view.larger_sentence(found, 32)
    unsure = [answer("here", 0.1, False, warning="far from all")]
    assert "predicted, unsure" in view.larger_table(unsure)
    assert view.unsure_sentence(unsure) == "Unsure: far from all."
    assert view.unsure_sentence(found) == ""


def test_costs_say_what_is_missing():
    epoch = Prediction(3.6, 1.0, 10.0, {})
    found = [Cost("a", epoch, 0.001, 1.0, "2026", 3), Cost("b", epoch, 0.002, 2.0, "2026", 3)]
    unpriced = Cost("c", epoch, None, None, "", 3)
    table = view.cost_table([*found, unpriced])
    assert "1 $ an hour (2026)" in table
    assert "no price is listed" in table
    counted = view.cost_sentence(found, 0.95, 32, "3 of 3 runs reached it")
    assert "1 $ on a, the cheapest" in counted
    assert "on b 2 times as much" in counted
    assert "3 of 3 runs reached it" in counted
    assert "was not counted on this machine" in view.cost_sentence(found, 0.95, 32, "")
    assert "none is the cheapest" in view.cost_sentence([unpriced], 0.95, 32, "")


def test_this_machine_s_rows_say_what_they_lack():
    assert "has no row here" in view.own_price_sentence(False, 1.0)
    assert "for you to say" in view.own_price_sentence(True, 0.0)
    assert view.own_price_sentence(True, 1.0) == ""


def test_the_articles_table_says_which_figures_set_the_model_and_how_far_off_the_others_are():
    unseen = [Row("x", "q", 1.0, 3.0, 0.5, 0.8, False), Row("y", "q", 1.0, 1.1, 0.5, 2.0, False)]
    rows = [*unseen, Row("z", "q", 1, 1, 1, 1, True)]
    said = view.published_sentence(rows)
    assert "Of 3 figures that the articles print, 1 set the model" in said
    assert "off by 105% at the median and by 200% at worst; 1 of them lie in the range" in said
    table = view.published_table(rows)
    assert "+200%" in table
    assert table.count("the model was set from it") == 1
