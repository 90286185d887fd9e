"""A training on a card is limited by the card's memory, whatever the machine has."""

import pytest

from lib.model.backends.registry import Runtime
from lib.model.hardware import machine as device_memory
from lib.model.hardware.machine import usable_memory_bytes
from lib.model.hardware.nvidia import Card
from lib.sweeps.plan import MEMORY_SHARE, Options, Plan

GIB = 2**30


@pytest.fixture
def with_cards(monkeypatch):
    """A machine with 500 GiB free, and cards of these sizes."""
    monkeypatch.setattr(device_memory, "free_memory_bytes", lambda: 500 * GIB)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)

    def set_to(*memory_bytes):
        found = tuple(Card(f"GPU-{number}", "NVIDIA L4", "570.86", size) for number, size in enumerate(memory_bytes))
        monkeypatch.setattr(device_memory, "cards", lambda: found)

    return set_to


def test_each_device_has_its_own_memory(with_cards):
    with_cards(24 * GIB)
    assert usable_memory_bytes("cpu") == 500 * GIB
    assert usable_memory_bytes("gpu") == 18 * GIB, "three quarters, which is what JAX takes at most"


def test_a_stack_on_several_cards_must_fit_into_the_smallest(with_cards):
    with_cards(24 * GIB, 16 * GIB, 0)
    assert usable_memory_bytes("gpu") == 12 * GIB


@pytest.mark.parametrize(("share", "expected"), [("0.5", 12 * GIB), ("nonsense", 18 * GIB)])
def test_the_persons_share_counts(with_cards, monkeypatch, share, expected):
    with_cards(24 * GIB)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", share)
    assert usable_memory_bytes("gpu") == expected


def test_a_card_that_does_not_tell_its_memory_is_no_card_without(with_cards):
    with_cards(0)
    assert usable_memory_bytes("gpu") == 500 * GIB


def test_a_sweep_on_the_card_is_planned_by_it(with_cards):
    with_cards(24 * GIB)
    plan = object.__new__(Plan)
    object.__setattr__(plan, "options", Options())
    assert plan.limits(Runtime(device="gpu")).memory_bytes == MEMORY_SHARE * 18 * GIB
    assert plan.limits(Runtime()).memory_bytes == MEMORY_SHARE * 500 * GIB
