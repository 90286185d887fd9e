"""Experiments that cannot be made say why, in one sentence."""

import pytest

from lib.experiments import mnist_training


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: mnist_training.rates_between(0.1, 0.1, 4), "range"),
        (lambda: mnist_training.rates_between(0.001, 1, 1), "2 to 16"),
        (lambda: mnist_training.batch_size([], 3, 0.1, "128"), "at least one, got none"),
        (lambda: mnist_training.depth([], "", 3, 0.1, 32), "at least one network"),
        (lambda: mnist_training.depth([], "12; x", 3, 0.1, 32), "“x”"),
        (lambda: mnist_training.learning_rate((0.1, 1.0), 3, 50_000, "128"), "50,000"),
    ],
)
def test_bad_controls_are_one_sentence(make, wanted):
    with pytest.raises(ValueError, match="expected") as caught:
        make()
    assert wanted in str(caught.value)
