"""What a worker is asked to measure of a step: experiments that add up and can be stopped; wrong ways to time it."""

import time
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from lib.model.backends.registry import Runtime, unavailable
from lib.model.hardware.nvidia import Busy
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import Network
from lib.timing.measurement import no_wait
from lib.timing.profiling.harness import Subject, TimedStep, repeated, trained_step
from lib.timing.profiling.request import REFERENCE, TRAP_EPOCHS, TRAP_SAMPLES, TRAPS, Examination, split
from lib.timing.profiling.run import IN_A_ROW, _module, _occupancy, best_of, busy_s, examine, first_call_counted
from tests.software_adapter import needs_software_adapter

NETWORK = Network((16,))


@pytest.mark.parametrize("backend", ["numpy", "numba", "jax-step", "jax-epoch"])
def test_its_experiments_suffice_to_split_a_step(small_data, backend):
    if unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    found = _module(backend).experiments(backend, Subject(NETWORK, 32, small_data, "cpu"))
    assert split(Runtime(backend), {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1)) is not None
    for name in ("python", "transfer", "many" if "many" in found else "call"):
        next(found[name])
        assert 0 < next(found[name]) < 1, name


@pytest.mark.release
@pytest.mark.parametrize("backend", ["numpy", "jax-step", "jax-epoch", "torch"])
def test_real_experiments_add_up_roughly(small_data, backend):
    """Within a factor of two, whatever else the machine does; `make bench BENCH=anatomy` holds them to 15 %."""
    if unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    rows = [row for row in examine(backend, "cpu", Examination("parts", Network((128,)), 128), small_data) if row]
    known = split(Runtime(backend), {name: measured.median_s / work for name, measured, work in rows})
    assert known is not None
    assert all(seconds >= 0 for seconds in known.parts_s.values())
    assert known.parts_s["arithmetic"] > 0
    assert 0.5 < sum(known.parts_s.values()) / known.step_s < 2


def test_what_is_stopped_before_it_began_is_closed_quietly(small_data):
    rows = examine("numpy", "cpu", Examination("parts", NETWORK, 32), small_data)
    assert next(rows) is None, "the first is prepared, the others are not"
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    trained_step("numpy", Subject(NETWORK, 32, small_data, "cpu")).close()


def timed(call, **others: Any) -> TimedStep:
    return TimedStep(**{"call": call, "wait": no_wait, "with_transfer": call, "fresh": lambda: call} | others)


def test_the_best_of_many_samples_hides_the_slow_ones():
    numbers = count()
    best_s = best_of(timed(lambda: time.sleep(1e-4 if next(numbers) % TRAP_SAMPLES == 3 else 1e-2)), TRAP_SAMPLES)
    assert 1e-4 < best_s < 1e-2
    assert next(numbers) == TRAP_SAMPLES


def test_a_first_call_is_shared_by_the_steps_of_a_few_short_epochs():
    """Each block begins with a program that nobody has compiled, and waits for its last step."""
    made, waited = [], []

    def fresh():
        calls = count()
        made.append(calls)

        def call():
            time.sleep(0.05 if (number := next(calls)) == 0 else 1e-3)
            return number

        return call

    first = first_call_counted(timed(lambda: time.sleep(1e-3), fresh=fresh, wait=waited.append))
    next(first)
    waited.clear()
    averages = [next(first) for _ in range(2)]
    steps = [next(calls) for calls in made]
    assert steps[0] == steps[1] >= 4 * TRAP_EPOCHS
    assert waited == [number - 1 for number in steps]
    assert min(averages) >= (0.05 + 1e-3 * (steps[0] - 1)) / steps[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "device"),
    [("jax-epoch", "cpu"), pytest.param("webgpu-step", SOFTWARE, marks=needs_software_adapter)],
)
def test_every_library_has_the_right_way_once_and_all_wrong_ones(small_data, backend, device):
    rows = [row for row in examine(backend, device, Examination("traps", Network((4,)), 8), small_data) if row]
    assert [name for name, *_ in rows] == [REFERENCE, *TRAPS]
    assert all(min(measured.block_s) > 0 for name, measured, _ in rows if name != "busy is not working")


def test_a_step_that_sleeps_keeps_no_processor_busy():
    steps = repeated(lambda: time.sleep(1e-3))
    next(steps)
    assert busy_s(steps) < 0.9 * next(steps)


@pytest.fixture
def card(monkeypatch):
    """A card that is watched for a moment; what was watched, and how often."""
    watches: list[Busy] = []

    @contextmanager
    def watched_activity():
        watches.append(busy := Busy())
        yield busy
        busy.utilisations, busy.activity = [0.98] * len(watches), (0.035, 0.0125)

    monkeypatch.setattr("lib.timing.profiling.run.watched_activity", watched_activity)
    monkeypatch.setattr("lib.timing.profiling.run.BUSY_S", 0.02)
    return watches


def test_the_card_has_the_next_steps_before_it_is_waited_for(card):
    """Else it would be idle while the host looks at what came back."""
    made, waited, ahead = count(), [], []

    def wait(results):
        waited.extend(results)
        ahead.append(next(made) - len(waited))

    rows = [row for row in _occupancy(timed(lambda: next(made), wait=wait)) if row is not None]
    assert min(ahead[:-1]) >= IN_A_ROW
    assert [(name, measured.median_s) for name, measured, _ in rows] == [
        ("occupancy/utilisation", 0.98),
        ("occupancy/activity", 0.035),
        ("occupancy/warps", 0.0125),
    ]


def test_a_pause_begins_the_watching_anew(card, monkeypatch):
    """While others have their turn the card is idle, or busy with their work."""
    monkeypatch.setattr("lib.timing.profiling.run.PAUSED_S", 0.03)
    found = _occupancy(timed(lambda: 1.0))
    assert next(found) is None
    time.sleep(0.04)
    rows = [row for row in found if row is not None]
    assert len(card) == 2
    assert len(rows[0][1].block_s) == 2, "of the second watch alone"
