import numpy as np
import pytest

from lib.model.backends.base import initial_parameters
from lib.model.spec import Network
from tests.cupy_stand_in import in_cupys_place


@pytest.fixture
def with_cupy():
    with in_cupys_place():
        import lib.model.backends.with_cupy as module

        yield module


def test_a_step_by_image_equals_a_step_by_batch(with_cupy, small_data):
    x, y, rate = small_data.x_train[:16], small_data.y_train[:16], np.float32(0.1)
    by_batch, by_image = initial_parameters(Network((9,)), 1), initial_parameters(Network((9,)), 1)
    losses = with_cupy.step_by_batch(by_batch, rate, x, y), with_cupy.step_by_image(by_image, rate, x, y)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    for one, other in zip(by_batch, by_image, strict=True):
        for array, other_array in zip(one, other, strict=True):
            np.testing.assert_allclose(array, other_array, atol=1e-6)
