"""Questions that cannot be asked, and what a way to train is unless somebody says more."""

import pytest

from lib.prediction.question import THERE, Calibrated, Question
from lib.prediction.workload import Way
from lib.spec import Network
from tests.prediction.invented import device


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"networks": 0}, "networks: expected 1 to 100,000, got 0"),
        ({"networks": True}, "networks: expected"),
        ({"batch_size": 0}, "batch size: expected 1"),
        ({"epochs": 0}, "epochs: expected 1"),
        ({"price_per_h": -1}, "price: expected 0 to 1,000 dollars an hour, got -1"),
        ({"price_per_h": float("nan")}, "price: expected 0 to 1,000 dollars an hour, got nan"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(other, words):
    with pytest.raises(ValueError, match=words):
        Question(Network((128,)), **other)


def test_steps_are_those_of_full_batches():
    assert Question(Network((128,)), 7, 2).steps == 2 * (48_000 // 7)


def test_one_network_at_a_time_on_images_that_are_there_unless_somebody_says_more():
    usual = Calibrated(device(), Way.STEP)
    assert (usual.together, usual.batches) == (1, THERE)
