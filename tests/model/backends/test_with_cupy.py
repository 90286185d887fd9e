import numpy as np
import pytest

from lib.model.backends.base import initial_parameters
from lib.model.spec import Network
from tests.cupy_stand_in import in_cupys_place
from tests.model.backends.comparing import assert_near


def test_a_step_by_image_equals_a_step_by_batch(small_data):
    x, y, rate = small_data.x_train[:16], small_data.y_train[:16], np.float32(0.1)
    by_batch, by_image = initial_parameters(Network((9,)), 1), initial_parameters(Network((9,)), 1)
    with in_cupys_place():
        from lib.model.backends.with_cupy import step_by_batch, step_by_image

        loss = step_by_batch(by_batch, rate, x, y)
        assert loss == pytest.approx(step_by_image(by_image, rate, x, y), abs=1e-6)
    assert_near(by_batch, by_image, atol=1e-6)
