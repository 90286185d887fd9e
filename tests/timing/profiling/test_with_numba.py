import numpy as np
import pytest

with_numba = pytest.importorskip("lib.timing.profiling.with_numba", reason="numba: it is not installed")
from lib.model.backends.with_numba import given  # noqa: E402


def test_every_value_of_a_batch_is_fetched(subject):
    images = given(subject.training, subject.data, 1, subject.parameters).images
    expected = sum(float(x @ np.arange(len(x))) for x in subject.data.x_train[32:96])
    assert with_numba.fetch(images, np.array([32, 64], np.int32), 32) == pytest.approx(expected, rel=1e-4)
