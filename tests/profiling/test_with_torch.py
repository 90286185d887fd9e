"""Every operation of PyTorch's step is recorded, the backward pass included."""

import pytest

from lib.profiling.harness import Subject
from lib.spec import Network

NETWORK = Network((16,))


@pytest.fixture
def subject(small_data):
    return Subject(NETWORK, 32, small_data, "cpu")


def test_torchs_operations_are_caught_with_their_backward_pass(subject):
    pytest.importorskip("torch")
    from lib.profiling.with_torch import recorded_calls as torch_calls

    calls = torch_calls(subject)
    assert 15 <= len(calls) <= 60
    for call in calls:
        call()
