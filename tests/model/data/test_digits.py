import numpy as np
import pytest

from lib.model.data import digits


@pytest.mark.slow
def test_offline_digits_have_mnists_shapes_and_are_reproducible():
    raw = digits.enlarged_digits(n_train=3_000, n_test=500)
    assert raw["x_train"].shape == (3_000, 28, 28)
    assert raw["x_train"].dtype == np.uint8
    assert raw["x_train"].max() > 200
    assert set(raw["y_test"].tolist()) == set(range(10))
    np.testing.assert_array_equal(raw["x_train"], digits.enlarged_digits(n_train=3_000, n_test=500)["x_train"])
    assert np.bincount(raw["y_train"], minlength=10).min() > 200, "all classes are there"


def test_train_and_test_originals_are_split(monkeypatch):
    monkeypatch.setattr(digits, "vary", lambda images, picked, rng: picked)
    raw = digits.enlarged_digits(n_train=20_000, n_test=5_000)
    assert set(raw["x_train"].tolist()).isdisjoint(raw["x_test"].tolist())
