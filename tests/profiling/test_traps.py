"""Wrong ways to time a step, each with a step whose time is known."""

import time
from contextlib import contextmanager
from itertools import count

import pytest

from lib.hardware.nvml import Activity, Busy
from lib.profiling.harness import Repeated
from lib.profiling.request import TRAP_SAMPLES
from lib.profiling.traps import IN_A_ROW, BestOf, BusyProcessors, _occupancy


def test_the_best_of_many_samples_hides_the_slow_ones():
    numbers = count()
    best = BestOf(lambda: time.sleep(1e-4 if next(numbers) % TRAP_SAMPLES == 3 else 1e-2))
    assert 1e-4 < best.block() < 1e-2
    assert next(numbers) == TRAP_SAMPLES


def test_one_sample_is_one_step():
    numbers = count()
    one = BestOf(lambda: next(numbers), samples=1)
    one.prepare()
    one.block()
    assert next(numbers) == 2


def test_a_step_that_sleeps_keeps_no_processor_busy():
    steps = Repeated(lambda: time.sleep(1e-3))
    steps.prepare()
    assert BusyProcessors(steps).block() < 0.9 * steps.block()


@pytest.fixture
def card(monkeypatch):
    """A card that is watched for a moment; what was watched, and how often."""
    watches: list[Busy] = []

    @contextmanager
    def watched_activity():
        watches.append(busy := Busy())
        yield busy
        busy.utilisations, busy.activity = [0.98] * len(watches), Activity(0.035, 0.0125)

    monkeypatch.setattr("lib.profiling.traps.watched_activity", watched_activity)
    monkeypatch.setattr("lib.profiling.traps.BUSY_S", 0.02)
    return watches


def test_the_card_has_the_next_steps_before_it_is_waited_for(card, monkeypatch):
    """Else it would be idle while the host looks at what came back."""
    made, waited, ahead = count(), [], []

    def wait(results):
        waited.extend(results)
        ahead.append(next(made) - len(waited))

    monkeypatch.setattr("lib.profiling.traps._wait", wait)
    rows = [row for row in _occupancy(lambda: next(made)) if row is not None]
    assert min(ahead[:-1]) >= IN_A_ROW
    assert [(name, measured.median_s) for name, measured, _ in rows] == [
        ("occupancy/utilisation", 0.98),
        ("occupancy/activity", 0.035),
        ("occupancy/warps", 0.0125),
    ]


def test_a_pause_begins_the_watching_anew(card, monkeypatch):
    """While others have their turn the card is idle, or busy with their work."""
    monkeypatch.setattr("lib.profiling.traps.PAUSED_S", 0.03)
    found = _occupancy(lambda: 1.0)
    assert next(found) is None
    time.sleep(0.04)
    rows = [row for row in found if row is not None]
    assert len(card) == 2
    assert len(rows[0][1].block_s) == 2, "of the second watch alone"
