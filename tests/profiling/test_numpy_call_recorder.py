"""Every NumPy call of a step is recorded, and can be repeated without changing anything."""

import numpy as np
import pytest

from lib.profiling.harness import Subject
from lib.profiling.numpy_call_recorder import recorded_calls
from lib.spec import Network

NETWORK = Network((16,))


@pytest.fixture
def subject(small_data):
    return Subject(NETWORK, 32, small_data, "cpu")


def test_numpys_calls_are_caught_and_can_be_repeated(subject):
    calls = recorded_calls(NETWORK, subject.parameters, subject.batch)
    results = [call() for call in calls]
    products = [r for r in results if isinstance(r, np.ndarray) and r.shape in {(784, 16), (16, 10)}]
    assert len(products) >= 2 + 4, "two gradients of weights, and the updates of both"
    assert 25 <= len(calls) <= 60
    for one, again in zip(results, [call() for call in calls], strict=True):
        np.testing.assert_array_equal(one, again, "repeating changes nothing")
    assert all(np.isfinite(one).all() for one in results if isinstance(one, np.ndarray))
