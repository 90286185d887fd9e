"""Every operation of PyTorch's step is recorded, the backward pass included."""

from dataclasses import replace

import pytest

from lib.backends.registry import Runtime
from lib.profiling.harness import Subject
from lib.profiling.step_breakdown import split
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


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_its_experiments_suffice_to_split_a_step(subject, monkeypatch, device):
    """A card's operations are timed by the card."""
    pytest.importorskip("torch")
    from lib.profiling import with_torch

    tensors = with_torch.tensors
    monkeypatch.setattr(with_torch, "torch_card", lambda: "the card")
    monkeypatch.setattr(with_torch, "torch_device", lambda _: "cpu")
    monkeypatch.setattr(with_torch, "tensors", lambda data, _: tensors(data, "cpu"))
    monkeypatch.setattr(with_torch, "recorded_calls", lambda subject: [subject])
    found = with_torch.experiments("torch", replace(subject, device=device))
    assert [type(found[name]).__name__ for name in found if name.startswith("many")] == ["OnCard"] * 2 * (
        device == "gpu"
    )
    assert split(Runtime("torch", device), {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1)) is not None
