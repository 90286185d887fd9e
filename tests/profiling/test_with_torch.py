"""Every operation of PyTorch's step is recorded, the backward pass included."""

from dataclasses import replace

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


@pytest.mark.parametrize(("device", "kind"), [("gpu", "OnCard"), ("cpu", "OneByOne")])
def test_operations_by_themselves_are_timed_by_the_card_where_there_is_one(subject, monkeypatch, device, kind):
    pytest.importorskip("torch")
    from lib.profiling import with_torch

    monkeypatch.setattr(with_torch, "torch_card", lambda: "the card")
    monkeypatch.setattr(with_torch, "recorded_calls", lambda subject: [subject])
    assert type(with_torch._one_by_one(replace(subject, device=device))).__name__ == kind
