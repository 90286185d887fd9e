"""Charts and sentences of large sweeps: against numpy's own quantiles and histograms, and searches whose truth is
known."""

import csv
import io
import json
import subprocess
import sys
import timeit

import altair as alt
import numpy as np
import pandas as pd
import pytest

from lib.sweeps.importance import Dimension, importance, settings_needed, settled, tells
from lib.views import curve_density, random_search
from lib.views.chart import LOSS_DOMAIN

DIMENSIONS = (
    Dimension("learning_rate", 1e-3, 1, log=True),
    Dimension("batch_size", 8, 512, log=True, whole=True),
    Dimension("width", 16, 512, log=True, whole=True),
    Dimension("depth", 1, 4, whole=True, label="hidden layers"),
)


def curves(models, points, seed=0):
    """Losses (models, points) that fall from 2.3, and the frame of them."""
    rng = np.random.default_rng(seed)
    steps = (np.arange(points) + 0.5) * 25
    loss = 2.3 / (1 + steps * rng.lognormal(0, 1, (models, 1)) / 60) * rng.lognormal(0, 0.05, (models, points))
    return loss, as_frame(steps, loss)


def as_frame(steps, loss):
    return pd.DataFrame(
        {"model": np.repeat(np.arange(len(loss)), len(steps)), "step": np.tile(steps, len(loss)), "loss": loss.ravel()}
    )


def search(seed, error, n=64):
    """A random search whose error is a function of its frame."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({one.column: one.low * (one.high / one.low) ** rng.random(n) for one in DIMENSIONS})
    for one in DIMENSIONS[1:]:
        frame[one.column] = frame[one.column].round().astype(int)
    frame["accuracy"] = 1 - np.clip(error(frame, rng), 0.01, 0.9)
    frame["diverged"] = False
    return frame


def only_rate_matters(frame, rng):
    return 10 ** (-1.5 + 0.4 * np.abs(np.log10(frame["learning_rate"]) + 1) + rng.normal(0, 0.05, len(frame)))


def nothing_matters(frame, rng):
    return 10 ** rng.normal(-1.3, 0.15, len(frame))


def rows_of(chart, name):
    return [
        {key: float(value) for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(chart.spec["datasets"][name]))
    ]


@pytest.mark.parametrize("models", [1, 7, 40, 333])
def test_quantiles_are_numpys(models):
    loss, frame = curves(models, 50)
    chart = random_search.curves_density(frame.sample(frac=1, random_state=1))
    rows = rows_of(chart, "quantiles")
    for quantile in curve_density.QUANTILES:
        found = [row["y"] for row in rows if row["quantile"] == quantile]
        wanted = np.quantile(loss, quantile, axis=0, method="inverted_cdf").clip(*LOSS_DOMAIN)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_cells_hold_the_share_of_models():
    loss, frame = curves(500, 120)  # two points a column: the mean of both counts
    chart = random_search.curves_density(frame)
    means = loss.reshape(500, 60, 2).mean(axis=2).clip(*LOSS_DOMAIN)
    bounds = np.geomspace(*LOSS_DOMAIN, curve_density.LOSS_ROWS + 1)
    bounds[-1] *= 1.001
    for column in (0, 20, 59):
        wanted = np.histogram(means[:, column], bounds)[0] / 500
        found = [row for row in rows_of(chart, "cells") if row["x"] == pytest.approx(column * 50)]
        assert [row["share"] for row in found] == pytest.approx(wanted[wanted > 0].tolist())
        assert [row["y"] for row in found] == pytest.approx(bounds[:-1][wanted > 0].tolist(), rel=1e-5)


def test_diverged_models_are_counted_and_not_drawn_as_fine():
    loss, frame = curves(100, 60)
    loss[:30, 20] = np.nan
    loss[:10, 20] = np.inf
    chart = random_search.curves_density(frame.assign(loss=loss.ravel()))
    assert "30 diverged" in chart.title
    assert "diverged" not in random_search.curves_density(frame).title
    cells = pd.DataFrame(rows_of(chart, "cells")).groupby("x")["share"].sum()
    assert cells.iloc[:20].to_numpy() == pytest.approx(1)
    assert cells.iloc[20:].to_numpy() == pytest.approx(0.7), "once not finite, a model does not come back"
    ends = pd.DataFrame(rows_of(chart, "quantiles")).groupby("quantile")["x"].count()
    assert ends.to_dict() == {0.05: 60, 0.25: 60, 0.5: 60, 0.75: 20, 0.95: 20}
    ordered = np.sort(np.where(np.isfinite(loss[:, 20]), loss[:, 20], np.inf))
    median = [row for row in rows_of(chart, "quantiles") if row["quantile"] == 0.5][20]
    assert median["y"] == pytest.approx(ordered[49], rel=1e-5), "the median of all, not of those that survived"


def test_what_is_still_to_come_counts_nowhere():
    _, frame = curves(10, 60)
    chart = random_search.curves_density(frame.query("model < 5 or step < 500"), total_steps=3000)
    assert pd.DataFrame(rows_of(chart, "cells")).groupby("x")["share"].sum().to_numpy() == pytest.approx(1)
    assert "diverged" not in chart.title
    assert "[0, 3000.0]" in json.dumps(chart.spec), "the axis ends where the training will"


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


def test_the_one_dimension_that_matters_is_ranked_first():
    for seed in range(3):
        found = importance(search(seed, only_rate_matters), DIMENSIONS)
        assert found["dimension"].tolist()[0] == "learning rate"
        low, middle, high = (found[name].to_numpy() for name in ("low", "importance", "high"))
        assert low[0] > high[1:].max()
        assert (low <= middle).all()
        assert (middle <= high).all()
        assert found.attrs["out_of_bag_r2"] > 0.5
    text = random_search.search_sentence(search(0, only_rate_matters), DIMENSIONS)
    assert "learning rate mattered most" in text


def test_out_of_bag_score_is_scikit_learns():
    from sklearn.ensemble import RandomForestRegressor

    frame = search(0, only_rate_matters)
    inputs = np.stack([one.height(frame[one.column].to_numpy()) for one in DIMENSIONS], axis=1)
    forest = RandomForestRegressor(200, min_samples_leaf=2, random_state=0, oob_score=True)
    forest.fit(inputs, np.log10(settled(frame)["error"]))
    assert importance(frame, DIMENSIONS).attrs["out_of_bag_r2"] == pytest.approx(forest.oob_score_)


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


@pytest.mark.parametrize(
    ("r2", "interval", "settings", "needed"),
    [
        (0.1, (-0.4, 0.45), 16, 40),  # ten for each of four dimensions
        (0.1, (-0.1, 0.2), 64, None),  # surely too little, from enough settings
        (0.1, (-0.1, 0.3), 64, 128),  # perhaps enough: twice as many
        (0.5, (0.2, 0.7), 100, 144),  # (0.3 / 0.25)² times as many bring its lower end there
        (0.26, (0.0, 0.5), 100, 400),  # never more than four times at once
    ],
)
def test_the_rule_for_how_many_settings_would_tell(r2, interval, settings, needed):
    found = pd.DataFrame({"dimension": ["a"], "importance": [1.0], "low": [0.5], "high": [2.0]})
    found.attrs |= {"out_of_bag_r2": r2, "r2_interval": interval, "settings": settings}
    assert settings_needed(found, 4) == needed
    assert not tells(found)


def test_as_many_settings_as_it_asks_for_do_tell():
    few = importance(search(1, only_rate_matters, n=16), DIMENSIONS)
    assert not tells(few)
    needed = settings_needed(few, len(DIMENSIONS))
    assert needed is not None
    assert all(tells(importance(search(seed, only_rate_matters, n=needed), DIMENSIONS)) for seed in range(4))


def test_equal_outcomes_tell_nothing():
    frame = search(0, nothing_matters).assign(accuracy=0.9)
    assert "cannot be told" in random_search.search_sentence(frame, DIMENSIONS)


def test_few_settings_have_no_importance():
    assert importance(search(0, only_rate_matters, n=15), DIMENSIONS).empty
    unfinished = search(0, only_rate_matters)
    unfinished.loc[10:, "accuracy"] = np.nan
    assert importance(unfinished, DIMENSIONS).empty, "what has no outcome does not count"
    assert list(importance(unfinished, DIMENSIONS).columns) == ["dimension", "importance", "low", "high"]


@pytest.mark.timed
def test_drawing_ten_times_as_many_curves_takes_about_ten_times_as_long():
    """And not a hundred times: 0.015 s for a thousand on an idle machine.

    Both in one run, the quickest of five each.
    """
    seconds = {}
    for models in (100, 1000):
        _, frame = curves(models, 150)
        random_search.curves_density(frame)  # builds the frame of the chart, once
        seconds[models] = min(
            timeit.repeat(lambda frame=frame: random_search.curves_density(frame), number=1, repeat=5)
        )
    assert seconds[1000] < 40 * seconds[100]


def test_importance_is_the_same_each_time_and_fits_one_forest(monkeypatch):
    from sklearn.ensemble import RandomForestRegressor

    fitted, fit = [], RandomForestRegressor.fit
    monkeypatch.setattr(RandomForestRegressor, "fit", lambda self, *given: fitted.append(self) or fit(self, *given))
    frame = search(0, only_rate_matters)
    pd.testing.assert_frame_equal(importance(frame, DIMENSIONS), importance(frame, DIMENSIONS))
    assert len(fitted) == 2, "all that takes time"


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
