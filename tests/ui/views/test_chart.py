"""Shared by all charts: labels that do not overlap, axes that rarely change, styled text; and a text in words,
which covers every series and never shows a missing number."""

import json
import subprocess
import sys
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.sweeps.experiments.results import Results
from lib.ui.views import chart as view
from lib.ui.views import mnist_training as first
from lib.ui.views.chart import Chart, styled, written
from tests import made
from tests.conftest import ROOT
from tests.sweeps.experiments.test_results import filled


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


# No series is named “NaN”, since the check of all charts could not tell it from a missing number.
NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=6).filter(lambda name: name.lower() != "nan")
VALUES = st.floats(allow_infinity=False)


def drawn(rows, kind="line", **states):
    base = alt.Chart(pd.DataFrame(rows, columns=["label", "x", "y"]))
    tooltip = ["label:N", alt.Tooltip("x:Q", title="step", format=",.4~g"), alt.Tooltip("y:Q", title="loss")]
    marks = base.mark_line() if kind == "line" else base.mark_point()
    x = alt.X("x:Q", title="step", scale=alt.Scale(domain=[0, 4500]))
    return Chart(styled(alt.layer(marks.encode(x=x, y=alt.Y("y:Q", title=None), tooltip=tooltip))), "loss", states)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.sampled_from(["line", "point"]))
def test_every_series_is_named_and_no_missing_number_is_shown(found, kind):
    rows = [(name, float(step), value) for step, (name, value) in enumerate(found)]
    text = drawn(rows, kind).text
    said = {cell for values in text.values for row in values.rows for cell in row}
    assert {name for name, _ in found} <= said
    assert "nan" not in f"{text.content} {said - {name for name, _ in found}}".lower()
    assert text.axes == "Across: step, 0 to 4,500. Up: loss."


def test_lines_are_described_by_their_ends_and_points_by_their_place():
    rows = [("a", 1, 2.0), ("b", 1, 2.5), ("a", 2, 0.5), ("b", 3, float("nan")), ("b", 2, 0.25)]
    lines = drawn(rows, b="training").text
    assert lines.content == "2 lines: a and b. Last loss: 0.5 (a). Training: b."
    assert lines.values[0].head == ("line", "first loss", "lowest", "highest", "last")
    assert lines.values[0].rows == (("a", "2", "0.5", "2", "0.5"), ("b", "2.5", "0.25", "2.5", "0.25"))
    points = drawn(rows[:3], "point").text
    assert points.content == "3 points. Loss: lowest 0.5 (a, step 2), highest 2.5 (b, step 1)."
    assert drawn([]).text.content == "No values yet."


def test_chart_texts_are_escaped():
    shown = drawn([("<b>", 1, 2.0)]).text.as_html("<i>")
    assert "<b>" not in shown
    assert "<i>" not in shown


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (2.8412, ".3g", "2.84"),
        (123456.0, ".3~g", "123,456"),
        (0.025, ".1%", "2.5%"),
        (20.0, ",.0f", "20"),
        (0.5, ".2f", "0.50"),
        (1.5e-5, ".3~s", "15μ"),
        (0.0, ".3~s", "0"),
        (float("inf"), ".3g", "infinite"),
        (12, "", "12"),
        ("3", "", "3"),
        ("0.31", ".3g", "0.31"),
    ],
)
def test_values_are_formatted_as_in_a_tooltip(value, form, shown):
    assert written(value, form) == shown


def test_chart_texts_follow_the_results():
    experiment = made.learning_rate((0.01, 0.1, 10.0), epochs=3, batch_size=32, hidden="128")
    experiment = replace(experiment, draw=(first.loss_by_step, first.accuracy_by_epoch, first.accuracy_by_rate))
    loss, accuracy, by_rate = first.charts(experiment, Results(experiment.items, experiment.labels))
    assert loss.text.content == "No values yet. Waiting: 0.01, 0.1 and 10."
    full = first.charts(experiment, filled(experiment, [0.9, 0.95, 0.5], diverged=(2,)))
    loss, accuracy, by_rate = full
    assert loss.text.axes == "Across: step, 0 to 4,500. Up: loss, 0.02 to 8, logarithmic."
    assert accuracy.text.content.endswith("Last accuracy: lowest 0.5 (10), highest 0.95 (0.1). Diverged: 10.")
    assert "highest 95.0% (0.1, learnt, learning rate 0.1)" in by_rate.text.content
    assert loss.text.label("Loss") == f"Loss. {loss.text.axes} {loss.text.content}"
