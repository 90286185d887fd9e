"""Charts and sentences of large sweeps: against numpy's own quantiles and histograms, and searches whose truth is
known."""

import io
import json
import subprocess
import sys

import altair as alt
import numpy as np
import pandas as pd
import pytest

from lib.sweeps.importance import Dimension, importance, tells
from lib.views import curve_density, random_search
from tests.sweeps.searches import DIMENSIONS, curves, nothing_matters, only_rate_matters, rows_of, search


@pytest.mark.parametrize("models", [100, 1000])
def test_a_thousand_curves_are_small(models):
    _, frame = curves(models, 150)
    chart = random_search.curves_density(frame)
    datasets = chart.spec["datasets"]
    assert len(rows_of(chart, "cells")) <= curve_density.MAX_COLUMNS * curve_density.LOSS_ROWS
    assert len(rows_of(chart, "quantiles")) <= len(curve_density.QUANTILES) * curve_density.MAX_COLUMNS
    assert len(json.dumps(datasets)) < 120_000, "bytes to the page, whatever the number of models"


def charts_of(frame):
    found = importance(frame, DIMENSIONS)
    return [random_search.parallel_coordinates(frame, DIMENSIONS), random_search.importance_chart(found)]


def test_specifications_are_valid_with_and_without_rows():
    full = search(0, only_rate_matters)
    full.loc[:4, "diverged"] = True
    full.loc[:4, "accuracy"] = np.nan
    _, losses = curves(20, 30)
    for chart in (*charts_of(full), random_search.curves_density(losses)):
        alt.Chart.from_dict(chart.spec).to_dict()
    for chart in (
        *charts_of(full),
        *charts_of(full.head(0)),
        *charts_of(full.head(5)),
        random_search.curves_density(losses),
        random_search.curves_density(losses.head(0)),
        random_search.curves_density(losses.head(1)),
    ):
        assert chart.height_px > 0
        assert "NaN" not in json.dumps(chart.spec), "JSON has none"
        assert "Infinity" not in json.dumps(chart.spec)


def test_frames_are_built_once_and_rows_exchanged():
    _, losses = curves(20, 30)
    charts = [random_search.curves_density(losses), random_search.curves_density(losses.query("model < 9"))]
    frames = [{name: part for name, part in chart.spec.items() if name != "datasets"} for chart in charts]
    assert frames[0] == frames[1]
    assert charts[0].spec["datasets"] != charts[1].spec["datasets"]


def test_parallel_axes_are_in_real_units():
    frame = search(0, only_rate_matters)
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


def test_noise_is_said_to_tell_nothing():
    said = [random_search.search_sentence(search(seed, nothing_matters), DIMENSIONS) for seed in range(6)]
    assert all("cannot be told from 64 of them" in text for text in said)
    assert all("nor would more tell" in text for text in said), "64 are enough to see that nothing matters"
    found = importance(search(0, nothing_matters), DIMENSIONS)
    assert "cannot be told" in random_search.importance_chart(found).title


def test_a_forest_that_explains_too_little_says_how_many_settings_would_tell():
    """As once seen: from 16 settings, with an R² of 0.10 that fell by 0.68 (0.49 to 2.07)."""
    found = pd.DataFrame({"dimension": ["learning rate"], "importance": [0.68], "low": [0.49], "high": [2.07]})
    found.attrs |= {"out_of_bag_r2": 0.1, "r2_interval": (-0.4, 0.45), "settings": 16}
    assert not tells(found)
    text = random_search.search_sentence(search(0, only_rate_matters, n=16), DIMENSIONS, found)
    assert "mattered most" not in text
    assert "cannot be told from 16 of them (a forest’s out-of-bag R² is 0.10, 95\u202f% interval −0.40 to 0.45" in text
    assert "above 0.25), but probably from 40." in text


def test_scikit_learn_is_imported_only_for_importance():
    code = (
        "import sys, lib.views.random_search; assert not [name for name in sys.modules if name.startswith('sklearn')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sentence_says_what_the_rows_show():
    frame = pd.DataFrame(
        {
            "learning_rate": [0.32, 0.1, 3.0, 0.001, 0.2],
            "batch_size": [16, 32, 8, 512, 64],
            "width": [256, 64, 32, 16, 128],
            "depth": [2, 1, 3, 1, 2],
            "accuracy": [0.971, 0.94, np.nan, 0.1, np.nan],
            "diverged": [False, False, True, False, False],
        }
    )
    assert (
        random_search.search_sentence(frame, DIMENSIONS)
        == "Best of 4: 97.1\u202f% with learning rate 0.32, batch size 16, 2 hidden layers of 256; "
        "which setting mattered cannot be told from 4 of them, but probably from 40; 1 diverged; 1 did not learn."
    ), "the fifth has no outcome yet"
    assert (
        random_search.search_sentence(frame.iloc[2:4], DIMENSIONS) == "None of 2 learnt; 1 diverged; 1 did not learn."
    )
    assert random_search.search_sentence(frame.iloc[4:], DIMENSIONS) == ""


def test_rivals_are_named():
    found = pd.DataFrame(
        {"dimension": ["width", "depth"], "importance": [0.5, 0.4], "low": [0.3, 0.2], "high": [0.7, 0.6]}
    )
    found.attrs |= {"out_of_bag_r2": 0.4, "r2_interval": (0.3, 0.5), "settings": 64}
    text = random_search.search_sentence(search(0, nothing_matters), DIMENSIONS, found)
    assert "width seems to have mattered most" in text
    assert "but depth may have mattered as much" in text


def test_bad_ranges_are_one_sentence():
    with pytest.raises(ValueError, match=r"learning_rate: expected 0 < low < high.*got 0 to 1; widen"):
        Dimension("learning_rate", 0, 1, log=True)
    with pytest.raises(ValueError, match="expected low < high"):
        Dimension("depth", 3, 3)
