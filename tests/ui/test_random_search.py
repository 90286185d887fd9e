"""The chart and the sentence of a random search: real units on the axes, and the best setting in words."""

import io
import json

import altair as alt
import numpy as np
import pandas as pd
import pytest

from lib.ui import random_search
from lib.ui.random_search import Dimension

DIMENSIONS = (
    Dimension("learning_rate", "learning rate", 1e-3, 1, log=True),
    Dimension("batch_size", "batch size", 8, 512, log=True, whole=True),
    Dimension("width", "neurons", 16, 512, log=True, whole=True),
    Dimension("depth", "hidden layers", 1, 4, whole=True),
)


def search(n=64):
    """Return results whose accuracy depends on the learning rate."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({one.column: one.low * (one.high / one.low) ** rng.random(n) for one in DIMENSIONS})
    for one in DIMENSIONS[1:]:
        frame[one.column] = frame[one.column].round().astype(int)
    distance = np.abs(np.log10(frame["learning_rate"]) + 1)
    frame["accuracy"] = 1 - 10 ** (-1.5 + 0.4 * distance + rng.normal(0, 0.05, n))
    frame["diverged"] = False
    return frame


@pytest.mark.slow
def test_chart_specifications_are_valid_with_and_without_rows():
    full = search()
    full.loc[:4, "diverged"] = True
    full.loc[:4, "accuracy"] = np.nan
    for rows in (full, full.head(0), full.head(5)):
        chart = random_search.parallel_coordinates(rows, DIMENSIONS)
        alt.Chart.from_dict(chart.spec).to_dict()
        assert chart.height_px > 0
        assert "NaN" not in json.dumps(chart.spec), "JSON has none"
        assert "Infinity" not in json.dumps(chart.spec)


def test_parallel_axes_are_in_real_units():
    frame = search()
    frame.loc[3, ["accuracy", "diverged"]] = [np.nan, True]
    chart = random_search.parallel_coordinates(frame, DIMENSIONS)
    ticks = pd.DataFrame(chart.spec["datasets"]["ticks"])
    rates = ticks[ticks["x"] == "learning rate"]
    np.testing.assert_allclose(rates["y"], (np.log10(rates["text"].astype(float)) + 3) / 3, atol=1e-9)
    best = {row["x"]: row["text"] for row in chart.spec["datasets"]["best"]}
    top = frame.loc[frame["accuracy"].idxmax()]
    assert best["batch size"] == f"{top['batch_size']:.0f}"
    assert best["accuracy"] == f"{100 * top['accuracy']:.1f}\u202f%"
    rows = pd.read_csv(io.StringIO(chart.spec["datasets"]["rows"]))
    assert len(rows) == 64 * 5
    (bad,) = rows[rows["outcome"] == "diverged"]["setting"].unique()
    at_end = rows[rows["x"] == "accuracy"].set_index("setting")["y"]
    assert at_end.loc[bad] < 0, "what diverged has no place on the axis of accuracy"
    assert at_end.drop(bad).is_monotonic_increasing, "the best is drawn last, on top"


def test_the_sentence_states_the_best_setting_and_failures():
    settings = {"learning_rate": [0.32, 0.1, 3.0, 0.001], "batch_size": [16, 32, 8, 512]}
    settings |= {"width": [256, 64, 32, 16], "depth": [2, 1, 3, 1]}
    outcome = {"accuracy": [0.971, 0.94, np.nan, 0.1], "diverged": [False, False, True, False]}
    frame = pd.DataFrame(settings | outcome | {"chance": 0.15})
    all_four, two, none = (
        random_search.search_sentence(rows, DIMENSIONS) for rows in (frame, frame.iloc[2:], frame.iloc[4:])
    )
    best = "Best of 4: 97.1\u202f% with learning rate 0.32, batch size 16, 2 hidden layers of 256; "
    assert all_four == best + "1 diverged; 1 did not learn."
    assert two == "None of 2 learnt; 1 diverged; 1 did not learn."
    assert none == ""
