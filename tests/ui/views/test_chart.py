"""Shared by all charts: labels that do not overlap, axes that rarely change, and styled text."""

import json
import subprocess
import sys

import altair as alt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.ui.views import chart as view
from tests.conftest import ROOT


def test_labels_are_spread_and_keep_their_order():
    rng = np.random.default_rng(1)
    for _ in range(50):
        wanted = rng.random(rng.integers(1, 12)).tolist()
        placed = view.spread_labels(wanted, 0.05)
        assert np.argsort(placed, kind="stable").tolist() == np.argsort(wanted, kind="stable").tolist()
        assert (np.diff(np.sort(placed)) >= 0.05 - 1e-5).all()


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9))
def test_an_axis_of_decades_contains_its_values(values):
    low, high = view.decades(values)
    assert low < min(values) <= max(values) < high
    assert np.log10([low, high]) == pytest.approx(np.round(np.log10([low, high])), abs=1e-9)


@given(st.floats(1e-3, 1e9))
def test_the_end_of_an_axis_is_a_round_number_near_its_values(value):
    end = view.nice_above(value)
    assert value <= end <= 2 * value * (1 + 1e-9)
    assert f"{end:.3e}"[0] in "12357"


def test_labels_are_moved_within_the_plot_but_points_are_not():
    points = [{"label": name, "x": 1.0, "y": y} for name, y in (("a", 8.0), ("b", 8.0), ("c", 100.0))]
    moved = view.moved_apart(points, (0.02, 8.0))
    assert [one["y"] for one in moved] == [8.0, 8.0, 100.0]
    assert all(0.02 <= one["at"] <= 8.0 * (1 + 1e-6) for one in moved)
    assert len({one["at"] for one in moved}) == 3


def test_axes_legends_and_texts_are_styled_and_marks_hidden_from_aria():
    base = alt.Chart(pd.DataFrame({"x": [1.0], "color": ["#3a72d8"]})).encode(x=alt.X("x:Q", axis=alt.Axis()))
    text = base.mark_text(color="#3a72d8").encode(text="x:Q")
    by_row = base.mark_text().encode(text="x:Q", color=alt.Color("color:N", scale=None, legend=alt.Legend()))
    spec = view.styled(base.mark_point() + text + by_row, 99)
    assert spec["height"] == 99
    assert [layer["encoding"]["x"]["axis"]["style"] for layer in spec["layer"]] == ["lab"] * 3
    assert [layer["mark"].get("font") for layer in spec["layer"]] == [None, view.FONT, view.FONT]
    assert spec["layer"][2]["encoding"]["color"]["legend"]["labelFont"] == view.FONT
    assert spec["layer"][1]["mark"]["color"] == view.ink("#3a72d8")
    assert spec["layer"][2]["encoding"]["color"]["field"] == "ink", "as dark or light as its row's own colour allows"
    assert [spec["config"][part]["aria"] for part in ("mark", "axis")] == [False, False]


def test_a_chart_is_sent_with_its_name():
    shown = view.Chart({"height": 100}, "what it shows")
    assert json.loads(shown.as_json) == {"height": 100, "description": "what it shows"}
    assert shown.height_px == 100 + view.AROUND


def test_the_placeholder_for_an_axis_end_is_replaced_everywhere():
    spec = {"a": [{"domain": [0, view.X_MAX]}], "b": view.X_MAX, "c": "text"}
    assert view.with_x_max(spec, 7.0) == {"a": [{"domain": [0, 7.0]}], "b": 7.0, "c": "text"}
    assert spec["b"] == view.X_MAX, "a copy"


A_CHART_IS_DRAWN_MEANWHILE = """
import altair, sys, threading
from lib.ui.views.chart import alt
threading.Thread(target=lambda: __import__("pandas")).start()
while "pandas" not in sys.modules: pass
alt.Axis(values=[1])
"""


@pytest.mark.slow
def test_drawing_a_chart_waits_for_an_import_of_pandas():
    subprocess.run([sys.executable, "-c", A_CHART_IS_DRAWN_MEANWHILE], check=True, cwd=ROOT)
