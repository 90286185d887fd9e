"""Many curves as one picture: the share of models in each cell, and quantiles that are NumPy’s."""

import json
import timeit

import numpy as np
import pandas as pd
import pytest

from lib.views import curve_density, random_search
from lib.views.chart import LOSS_DOMAIN
from tests.sweeps.searches import curves, rows_of


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
