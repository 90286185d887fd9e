"""The border as it is drawn and told: before anything is measured, from calibrations then, and what moves it."""

import base64
import io

import numpy as np
import pytest
from matplotlib.image import imread

from lib.labs.when_a_gpu_wins import border as page
from lib.labs.when_a_gpu_wins.calibration import calibration
from lib.labs.when_a_gpu_wins.sides import CELLS, KINDS, MOVES, Surface, SurfacePoint
from lib.model.hardware.webgpu import Adapter
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments.calibration import trials
from lib.sweeps.experiments.published_predictions import Row
from lib.timing.prediction.predict import Predictions
from tests.sweeps.experiments.test_live_calibration import JAX, exact_s, run

ONE = np.ones((CELLS, CELLS))
LEFT_HALF = np.arange(CELLS)[None, :] < CELLS // 2
BOTH = ("<one>", "the other")
POINTS = [SurfacePoint(kind, 128, 32, left_s, 1.0, BOTH) for kind, left_s in zip(KINDS, (0.5, 3.0, 2.0), strict=True)]


def surface(ratio, spread=1.0):
    left = ratio * ONE
    return Surface(Predictions(left, left / spread, left * spread), Predictions(ONE, ONE, ONE))


def draw(lab, name="win"):
    win = lab.controls("win")
    if name == "win":
        lab.answer(win, page.border)
    else:
        lab.answer(lab.controls(name), {"what": page.imagined_card, "move": page.driven_card}[name], win)


@pytest.mark.parametrize("name", ["win", "what", "move"])
def test_a_section_is_there_before_anything_is_measured(name, opened, shown):
    draw(opened(), name)
    assert "marimo-ui-element" in shown[-1], "its controls"
    assert "lab-sentence" in shown[-1]
    assert "stands in its place" in shown[-1], "the left side is known by its data sheet, and says so"
    assert "Measure again" not in shown[-1], "nothing is measured for it"


@pytest.mark.parametrize("name", ["win", "what", "move"])
def test_what_nothing_judges_is_called_unsure_once(name, opened, shown):
    draw(opened(win_way="graph"), name)
    assert shown[-1].count("Unsure: ") == 1
    assert shown[-1].count("by one graph an epoch: no published figure") == 1
    draw(opened())
    assert "Unsure" not in shown[-1], "by a compiled step both sides are judged"


def test_a_calibration_takes_the_place_of_the_data_sheet_and_is_news_to_all_sections(opened, shown, live):
    lab = opened()
    calibration(lab.page)
    before = lab.page.news.version
    run(live, [JAX])
    assert lab.page.news.version > before
    draw(lab)
    assert "stands in its place" not in shown[-1]
    assert "than JAX, one call an epoch, here" in shown[-1]


@pytest.mark.parametrize(
    ("free_bytes", "words"),
    [(1e7, "of the field fits into no memory of its side"), (1e3, "No network of this depth fits")],
)
def test_what_this_machine_cannot_hold_is_grey_and_said(free_bytes, words, opened, shown, live, monkeypatch):
    monkeypatch.setattr("lib.labs.when_a_gpu_wins.sides.usable_memory_bytes", lambda _device: free_bytes)
    run(live, [JAX])
    draw(opened())
    assert words in shown[-1]


@pytest.mark.parametrize(
    ("said", "words"),
    [({"win_networks": "64"}, "64 networks"), ({"win_depth": "3"}, "3 hidden layers"), ({"win_right": "t4"}, "T4 by")],
)
def test_a_moved_control_is_seen(opened, shown, said, words):
    draw(opened(**said))
    assert words in shown[-1]


def test_a_value_that_is_not_offered_is_refused_in_a_sentence_also_in_another_section(opened, shown, panel):
    lab = opened()
    win = panel(lab, "win").set(networks=3)
    lab.answer(win, page.border)
    assert "expected one of" in shown[-1].lower()
    lab.answer(lab.controls("what"), page.imagined_card, win)
    assert "expected one of" in shown[-1].lower()


def test_a_calibrated_adapter_may_stand_for_the_gpu_and_a_software_one_never(monkeypatch):
    kinds = [Adapter(kind, kind, "", "") for kind in ("discrete", "software")]
    monkeypatch.setattr("lib.model.backends.registry.webgpu.adapters", lambda: tuple(kinds))
    cards = set(page.cards().values())
    assert not [key for key in cards if "software" in key]
    assert {"l4", "h100-pcie"} <= cards


def test_a_recorded_machine_may_stand_on_the_left(opened, shown, monkeypatch):
    steps = {(JAX, one): StepTime(exact_s(JAX, one), 0.1) for one in trials(JAX)}
    known = {"m1/jax-epoch/cpu": (JAX, "the other", steps)}
    monkeypatch.setattr(page, "elsewhere", lambda: known)
    for control in (page.Border.left, page.Border.right):  # made once, of what can be chosen then
        monkeypatch.setattr(control, "make", control.make.__wrapped__)
    draw(opened(win_left="recorded/m1/jax-epoch/cpu"))
    assert "than JAX, one call an epoch, recorded on the other" in shown[-1]
    assert "stands in its place" not in shown[-1]
    assert "recorded/m1/jax-epoch/cpu" not in page.cards().values(), "no card"


def test_the_sentence_counts_who_wins_where_and_where_neither_does():
    said = page.surface_sentence(surface(np.where(LEFT_HALF, 0.5, 2.0)), "NumPy", "L4", 1, 1)
    assert "L4 is predicted to be faster than NumPy in 50% of this field and slower in 50%" in said
    assert "the other 0%" in said
    assert "at width 128 from batch size" in said
    said = page.surface_sentence(surface(1.5, spread=2.0), "NumPy", "L4", 2, 8)
    assert "8 networks of 2 hidden layers" in said
    assert "the other 100% the intervals overlap" in said
    assert "at no batch size" in page.surface_sentence(surface(0.5), "NumPy", "L4", 1, 1)
    half = surface(np.where(LEFT_HALF, np.nan, 2.0))
    assert "Grey: 50% of the field" in page.surface_sentence(half, "NumPy", "L4", 4, 128)


def test_the_rule_fails_only_where_a_side_wins_for_sure():
    never = (0.0, 16, 1, 1.0)
    fails = page.rule_sentence([(0.25, 500, 128, 3.0), never], "NumPy", "L4")
    assert "below both, L4 wins for sure in 25% of the corner (at width 500 and batch size 128 it is 3 times" in fails
    assert "above both" not in fails
    assert "No prediction here contradicts it for sure" in page.rule_sentence([never, never], "NumPy", "L4")


def test_the_articles_line_says_which_figures_set_the_model_and_how_far_off_the_others_are():
    unseen = [Row("x", "q", 1.0, 3.0, 0.5, 0.8, False), Row("y", "q", 1.0, 1.1, 0.5, 2.0, False)]
    said = page.published_sentence([*unseen, Row("z", "q", 1, 1, 1, 1, True)])
    assert "Of 3 figures that the articles print, 1 set the model" in said
    assert "off by 105% at the median and by 200% at worst; 1 of them lie in the range" in said


def test_moving_the_border_names_where_it_was_or_all_other_ways():
    said = page.imagined_sentence(surface(0.5), surface(2.0), "X")
    assert "at width 128 it wins from batch size 1 on (before: at no batch size)" in said
    surfaces = {name: surface(2.0 if number else 0.5) for number, name in enumerate(MOVES)}
    first, *others = MOVES
    said = page.moves_sentence(surfaces, first, "L4", "NumPy")
    assert f"Driven by {first}, L4 is predicted to be faster than NumPy in 0% of the field" in said
    assert all(f"{name}, from batch size 1 on" in said for name in others)


def test_colours_name_the_faster_side_grow_with_the_ratio_and_are_pale_where_neither_wins_for_sure():
    ratio = np.array([0.01, 0.5, 2.0, 100.0, 1e9, np.nan])
    sure, unsure = (page.rgba(ratio, np.full(6, unclear)) for unclear in (False, True))
    assert (sure[:2, :3] * 255 == page.LEFT).all()
    assert (sure[2:5, :3] * 255 == page.RIGHT).all()
    assert sure[0, 3] == sure[3, 3] == sure[4, 3] > sure[1, 3] == pytest.approx(sure[2, 3])
    assert (unsure[:5, 3] < sure[:5, 3]).all()
    assert sure[5] == pytest.approx([0.5, 0.5, 0.5, 0.3]), "what fits nowhere is grey"


def test_the_ground_is_a_pixel_a_cell_with_the_largest_width_on_top():
    ratio = np.where(np.arange(CELLS)[:, None] < 3, 0.1, 10.0)  # narrow networks are faster on the left
    chart = page.surface_chart(surface(ratio), "NumPy", "L4", 1)
    picture = base64.b64decode(chart.spec["datasets"]["ground"][0]["url"].partition(",")[2])
    drawn = imread(io.BytesIO(picture))
    assert drawn.shape == (CELLS, CELLS, 4)
    assert (drawn[-3:, :, :3] * 255).round() == pytest.approx(np.broadcast_to(page.LEFT, (3, CELLS, 3)), abs=1)
    assert (drawn[0, :, :3] * 255).round() == pytest.approx(np.broadcast_to(page.RIGHT, (CELLS, 3)), abs=1)


def test_borders_points_and_the_rule_are_drawn_and_described():
    shown = surface(np.where(LEFT_HALF, 0.5, 2.0), spread=1.5)
    chart = page.surface_chart(shown, "NumPy", "L4", 1, POINTS, before=surface(np.where(LEFT_HALF, 2.0, 0.5)))
    rows = chart.spec["datasets"]
    assert {"border", "before", "rule"} <= {row["kind"] for row in rows["lines"]}
    found = [(row["kind"], row["color"], row["words"]) for kind in KINDS for row in rows[kind]]
    colors = [f"rgb{color}" for color in (page.LEFT, page.RIGHT, page.RIGHT)]
    assert [one[:2] for one in found] == list(zip(KINDS, colors, strict=True))
    assert found[0][2].replace("\u202f", " ") == "500 ms by <one>, 1.0 s by the other: a step"
    assert found[1][2].endswith("an epoch")
    assert rows["words"][0]["text"] == "the articles' rule"
    tips = page.surface_chart(surface(1.2, 2), "a", "b", 1).spec["datasets"]["tips"]
    assert any("b is 1.2 times faster, but the intervals overlap" in row["predicted"] for row in tips)
    assert "how many times faster L4 is than NumPy" in chart.title
    shown = page.legend("<b>", "L4", [*POINTS, POINTS[1]])
    assert "&lt;b&gt;" in shown, "names are escaped"
    assert "measured here: steps stored here, the GPU faster in 0 of 1" in shown
    assert "measured elsewhere: each GPU beside its own processor, the GPU faster in 2 of 2" in shown
    assert "published" not in page.legend("a", "b", POINTS[:2])


def test_a_surface_without_any_seconds_is_still_drawn():
    rows = page.surface_chart(surface(np.nan), "NumPy", "L4", 4).spec["datasets"]
    assert all("does not fit" in row["predicted"] for row in rows["tips"])
    assert all(row["kind"] == "rule" for row in rows["lines"])


def test_each_way_has_a_colour_of_its_own_and_the_chosen_one_is_thick():
    surfaces = {name: surface(np.where(LEFT_HALF, 0.5, 2.0)) for name in MOVES}
    chosen = list(MOVES)[2]
    rows = page.moves_chart(surfaces, chosen, "L4").spec["datasets"]["lines"]
    widths = {row["color"]: row["width"] for row in rows}
    assert len(widths) == len(MOVES)
    assert sorted(widths.values())[-2] < max(widths.values())
    assert f"<b>{chosen}</b>" in page.moves_legend(chosen)
    assert all(color in page.moves_legend(chosen) for color in widths)
