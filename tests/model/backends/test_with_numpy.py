"""NumPy's evaluation against float64; training is tested in `test_backends.py`."""

import numpy as np
import pytest

from lib.model.backends import reference, with_numpy
from lib.model.backends.base import initial_parameters
from lib.model.spec import Network


def test_an_evaluation_in_slices_equals_that_of_all_images(small_data, monkeypatch):
    parameters = initial_parameters(Network((6,)), 2)
    loss, _ = reference.loss_and_gradients(parameters, small_data.x_validation, small_data.y_validation)
    logits = with_numpy.predict_logits(parameters, small_data.x_validation)
    accuracy = np.mean(np.argmax(logits, axis=1) == small_data.y_validation)
    monkeypatch.setattr(with_numpy, "VALIDATION_SLICE", 64)  # 200 images: the last slice is not full
    found = with_numpy.evaluate(parameters, small_data.x_validation, small_data.y_validation)
    assert found == pytest.approx((loss, accuracy), abs=1e-5)
