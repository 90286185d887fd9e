"""Charts of the surface: what they draw is what the surface says."""

import base64
import io

import numpy as np
import pytest
from matplotlib.image import imread

from lib.experiments.when_does_a_gpu_win import CELLS, MOVES, Point
from lib.views.when_does_a_gpu_win_charts import (
    KINDS,
    LEFT,
    RIGHT,
    legend,
    moves_chart,
    moves_legend,
    rgba,
    surface_chart,
)
from tests.views.test_when_does_a_gpu_win import LEFT_HALF, surface


def test_colours_name_the_faster_side_grow_with_the_ratio_and_are_pale_where_nobody_wins_for_sure():
    ratio = np.array([0.01, 0.5, 2.0, 100.0, 1e9, np.nan])
    sure, unsure = (rgba(ratio, np.full(6, unclear)) for unclear in (False, True))
    assert (sure[:2, :3] * 255 == LEFT).all()
    assert (sure[2:5, :3] * 255 == RIGHT).all()
    assert sure[0, 3] == sure[3, 3] == sure[4, 3] > sure[1, 3] == pytest.approx(sure[2, 3])
    assert (unsure[:5, 3] < sure[:5, 3]).all()
    assert sure[5] == pytest.approx([0.5, 0.5, 0.5, 0.3]), "what fits nowhere is grey"


def test_the_ground_is_a_pixel_a_cell_with_the_largest_width_on_top():
    ratio = np.where(np.arange(CELLS)[:, None] < 3, 0.1, 10.0)  # narrow networks are faster on the left
    chart = surface_chart(surface(ratio), "NumPy", "L4", 1)
    picture = base64.b64decode(chart.spec["datasets"]["ground"][0]["url"].partition(",")[2])
    drawn = imread(io.BytesIO(picture))
    assert drawn.shape == (CELLS, CELLS, 4)
    assert (drawn[-3:, :, :3] * 255).round() == pytest.approx(np.broadcast_to(LEFT, (3, CELLS, 3)), abs=1)
    assert (drawn[0, :, :3] * 255).round() == pytest.approx(np.broadcast_to(RIGHT, (CELLS, 3)), abs=1)


def test_borders_points_and_the_rule_are_drawn_and_described():
    shown = surface(np.where(LEFT_HALF, 0.5, 2.0), spread=1.5)
    points = [
        Point(128, 32, 1.0, 2.0),
        Point(128, 64, 3.0, 1.0, ("numpy", "keras-tensorflow")),
        Point(64, 8, 2.0, 1.0, machine="a phone"),
    ]
    chart = surface_chart(shown, "NumPy", "L4", 1, points, before=surface(np.where(LEFT_HALF, 2.0, 0.5)))
    rows = chart.spec["datasets"]
    kinds = [row["kind"] for row in rows["lines"]]
    assert {"border", "before", "rule"} <= set(kinds)
    assert [[row["color"] for row in rows[kind]] for kind in KINDS] == [
        [f"rgb{LEFT}"],
        [f"rgb{RIGHT}"],
        [f"rgb{RIGHT}"],
    ]
    assert "NumPy" in rows["published"][0]["words"]
    assert "the processor of a phone" in rows["measured elsewhere"][0]["words"]
    assert "L4 (predicted): a step" in rows["measured here"][0]["words"]
    assert rows["words"][0]["text"] == "the articles' rule"
    assert any(
        "intervals overlap" in row["predicted"]
        for row in surface_chart(surface(1.2, 2), "a", "b", 1).spec["datasets"]["tips"]
    )
    assert "how many times faster L4 is than NumPy" in chart.title


def test_a_surface_without_any_seconds_is_still_drawn():
    rows = surface_chart(surface(np.nan), "NumPy", "L4", 4).spec["datasets"]
    assert all("does not fit" in row["predicted"] for row in rows["tips"])
    assert all(row["kind"] == "rule" for row in rows["lines"])


def test_each_way_has_a_colour_of_its_own_and_the_chosen_one_is_thick():
    surfaces = {name: surface(np.where(LEFT_HALF, 0.5, 2.0)) for name in MOVES}
    chosen = list(MOVES)[2]
    rows = moves_chart(surfaces, chosen, "L4").spec["datasets"]["lines"]
    widths = {row["color"]: row["width"] for row in rows}
    assert len(widths) == len(MOVES)
    assert sorted(widths.values())[-2] < max(widths.values())
    assert f"<b>{chosen}</b>" in moves_legend(chosen)
    assert all(color in moves_legend(chosen) for color in widths)


def test_the_legend_escapes_names():
    assert "&lt;b&gt;" in legend("<b>", "L4")
