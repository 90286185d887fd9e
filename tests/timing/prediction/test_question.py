"""Questions that cannot be asked, and what a way to train is unless somebody says more."""

import pytest

from lib.model.spec import Network
from lib.timing.prediction.question import Calibrated, Question
from lib.timing.prediction.workload import Way
from tests.timing.prediction.invented import device


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"networks": 0}, "networks: expected 1 to 100,000, got 0"),
        ({"networks": True}, "networks: expected"),
        ({"batch_size": 0}, "batch size: expected 1"),
        ({"epochs": 0}, "epochs: expected 1"),
        ({"rows": 0}, "rows: expected 1 to 1,000,000,000, got 0"),
        ({"rows": 20}, r"batch size: expected 1 to 20 \(the number of training rows\), got 32"),
        ({"price_per_h": -1}, "price: expected 0 to 1,000 dollars an hour, got -1"),
        ({"price_per_h": float("nan")}, "price: expected 0 to 1,000 dollars an hour, got nan"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(other, words):
    with pytest.raises(ValueError, match=words):
        Question(Network((128,)), **other)


def test_steps_are_those_of_full_batches():
    assert Question(Network((128,)), 7, 2).steps == 2 * (48_000 // 7)


@pytest.mark.parametrize(("inputs", "classes", "rows"), [(4, 3, 150), (784, 10, 60_000), (3_072, 100, 50_000)])
def test_inputs_classes_and_rows_are_those_that_are_asked(inputs, classes, rows):
    question = Question(Network((64,), inputs, classes), 32, 3, rows=rows)
    step = question.workload(Way.STEP)
    assert (question.steps, step.steps) == (3 * (rows // 32), rows // 32)
    assert step.input_bytes == 4 * 32 * inputs
    assert step.parameter_bytes == 4 * question.network.n_parameters
    assert step.flops == question.network.step_flops(32)


def test_one_network_at_a_time_on_images_that_are_there_unless_somebody_says_more():
    usual = Calibrated(device(), Way.STEP)
    assert (usual.together, usual.saves) == (1, {})
