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


def test_made_up_images_have_mnists_shapes_and_are_separable():
    raw = digits.made_up_images(n_train=300, n_test=50)
    assert {name: (array.shape, array.dtype) for name, array in raw.items()} == {
        "x_train": ((300, 28, 28), np.uint8),
        "y_train": ((300,), np.uint8),
        "x_test": ((50, 28, 28), np.uint8),
        "y_test": ((50,), np.uint8),
    }
    centres = np.stack([raw["x_train"][raw["y_train"] == label].mean(0) for label in range(10)])
    nearest = np.abs(raw["x_test"][:, None] - centres).mean((2, 3)).argmin(1)
    assert (nearest == raw["y_test"]).all()
    np.testing.assert_array_equal(raw["x_test"], digits.made_up_images(300, 50)["x_test"])
