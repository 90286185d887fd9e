"""Charts in words: the text covers every series, and never shows a missing number."""

from dataclasses import replace

import altair as alt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.sweeps.experiments.results import Results
from lib.ui.views import mnist_training as view
from lib.ui.views.chart import Chart, styled, written
from tests import made
from tests.sweeps.experiments.test_results import filled

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
    experiment = replace(experiment, draw=(view.loss_by_step, view.accuracy_by_epoch, view.accuracy_by_rate))
    loss, accuracy, by_rate = view.charts(experiment, Results(experiment.items, experiment.labels))
    assert loss.text.content == "No values yet. Waiting: 0.01, 0.1 and 10."
    full = view.charts(experiment, filled(experiment, [0.9, 0.95, 0.5], diverged=(2,)))
    loss, accuracy, by_rate = full
    assert loss.text.axes == "Across: step, 0 to 4,500. Up: loss, 0.02 to 8, logarithmic."
    assert accuracy.text.content.endswith("Last accuracy: lowest 0.5 (10), highest 0.95 (0.1). Diverged: 10.")
    assert "highest 95.0% (0.1, learnt, learning rate 0.1)" in by_rate.text.content
    assert loss.text.label("Loss") == f"Loss. {loss.text.axes} {loss.text.content}"
