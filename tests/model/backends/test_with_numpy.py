"""NumPy's step by hand: its gradient, update and evaluation against float64. The rest is in `test_backends.py`."""

import numpy as np
import pytest

from lib.model.backends import reference, with_numpy
from lib.model.backends.base import initial_parameters
from lib.model.spec import Network


def test_the_gradient_and_the_update_are_float64s(small_data):
    network, x, y = Network((12, 7)), small_data.x_train[:32], small_data.y_train[:32]
    parameters, work = initial_parameters(network, 0), with_numpy.Workspace(network, 32)
    expected_loss, expected = reference.loss_and_gradients(parameters, x, y)
    before = [(weights.copy(), biases.copy()) for weights, biases in parameters]
    assert with_numpy.loss_and_gradients(parameters, x, y, work) == pytest.approx(expected_loss, abs=1e-6)
    with_numpy.update(parameters, np.float32(0.5), work)
    for (weights, biases), (old_weights, old_biases), (by_weights, by_biases) in zip(
        parameters, before, expected, strict=True
    ):
        np.testing.assert_allclose(weights, old_weights - 0.5 * by_weights, atol=1e-6)
        np.testing.assert_allclose(biases, old_biases - 0.5 * by_biases, atol=1e-6)


def test_an_evaluation_in_slices_is_that_of_all_images(small_data, monkeypatch):
    parameters = initial_parameters(Network((6,)), 2)
    loss, _ = reference.loss_and_gradients(parameters, small_data.x_validation, small_data.y_validation)
    logits = with_numpy.predict_logits(parameters, small_data.x_validation)
    accuracy = np.mean(np.argmax(logits, axis=1) == small_data.y_validation)
    monkeypatch.setattr(with_numpy, "VALIDATION_SLICE", 64)  # 200 images: the last slice is not full
    found = with_numpy.evaluate(parameters, small_data.x_validation, small_data.y_validation)
    assert found == pytest.approx((loss, accuracy), abs=1e-5)
