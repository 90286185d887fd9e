"""Which setting mattered: a forest’s answer where it has one, and else how many settings would do."""

import numpy as np
import pandas as pd
import pytest

from lib.sweeps.importance import importance, settings_needed, settled, tells
from lib.views import random_search
from tests.sweeps.searches import DIMENSIONS, nothing_matters, only_rate_matters, search


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


def test_importance_is_the_same_each_time_and_fits_one_forest(monkeypatch):
    from sklearn.ensemble import RandomForestRegressor

    fitted, fit = [], RandomForestRegressor.fit
    monkeypatch.setattr(RandomForestRegressor, "fit", lambda self, *given: fitted.append(self) or fit(self, *given))
    frame = search(0, only_rate_matters)
    pd.testing.assert_frame_equal(importance(frame, DIMENSIONS), importance(frame, DIMENSIONS))
    assert len(fitted) == 2, "all that takes time"
