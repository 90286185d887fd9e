"""The statistics on literal numbers, and the loop on a clock that only the step moves. Nothing sleeps."""

import subprocess
import sys
import time

import numpy as np
import pytest

from lib.timing.measurement import Config, Ended, Measurement, measure
from tests.conftest import ROOT


class World:
    """A clock that costs 50 ns to read, and steps that move it."""

    def __init__(self, read_s=50e-9):
        self.now, self.read_s, self.pending = 0.0, read_s, 0.0

    def clock(self):
        self.now += self.read_s
        return self.now

    def step(self, seconds, jitter=(0.0,)):
        """A step of these seconds, with relative jitters in turn."""
        count = 0

        def run():
            nonlocal count
            self.now += seconds * (1 + jitter[count % len(jitter)])
            count += 1

        return run

    def asynchronous(self, dispatch_s, work_s):
        """A step that returns after its dispatch; `sync` waits for the work."""

        def run():
            self.now += dispatch_s
            self.pending = max(self.pending, self.now) + work_s
            return "array"

        def sync(result):
            assert result in ("array", None)
            self.now = max(self.now, self.pending)

        return run, sync


def test_a_steady_step():
    world = World()
    measured = measure(world.step(10e-6), clock=world.clock)
    assert measured.median_s == pytest.approx(10e-6, rel=2e-3)
    assert measured.ended is Ended.SPREAD
    assert len(measured.block_s) >= 9
    assert sum(measured.block_s) >= 0.3
    assert min(measured.block_s) >= 1e-3, "blocks long enough that the clock does not matter"
    assert measured.warnings == ()


def test_the_block_grows_with_the_cost_of_the_clock():
    cheap, dear = World(50e-9), World(50e-6)
    small = measure(cheap.step(1e-6), clock=cheap.clock)
    large = measure(dear.step(1e-6), clock=dear.clock)
    assert large.steps_per_block > 10 * small.steps_per_block
    assert large.median_s == pytest.approx(1e-6, rel=5e-3)


def test_a_restless_step_ends_at_the_cap_and_says_so():
    world = World()
    jitter = tuple(np.random.default_rng(1).uniform(-0.5, 0.5, 997))
    measured = measure(world.step(0.05, jitter), clock=world.clock, config=Config(max_time_s=5))
    assert measured.ended is Ended.CAP
    assert any("spread" in warning and "close other programs" in warning for warning in measured.warnings)
    assert world.now < 6


def test_a_step_longer_than_the_cap_is_measured_once():
    world = World()
    measured = measure(world.step(30.0), clock=world.clock)
    assert measured.ended is Ended.CAP
    assert len(measured.block_s) == 1
    assert any(
        "only 1 blocks instead of 9" in warning and "raise max_time_s" in warning for warning in measured.warnings
    )


def test_a_step_that_returns_at_once_is_noticed():
    """An empty function, on a real clock: that of this process, which stands still while others have the processor."""
    measured = measure(
        lambda: None, clock=time.process_time, config=Config(max_time_s=0.3, min_time_s=0.05, warm_up_s=0.01)
    )
    assert any("returns at once" in warning and "lazily" in warning for warning in measured.warnings)


def test_a_clock_that_stands_still_does_not_hang():
    config = Config(warm_up_s=0, max_steps_per_block=2)
    assert measure(lambda: None, clock=lambda: 1.0, config=config).ended is Ended.CAP


def test_waiting_is_part_of_a_step():
    world = World()
    step, sync = world.asynchronous(dispatch_s=20e-6, work_s=500e-6)
    assert measure(step, sync=sync, clock=world.clock).median_s == pytest.approx(500e-6, rel=0.05)
    assert measure(step, clock=world.clock).median_s == pytest.approx(20e-6, rel=0.02), "why all take a `sync`"


def test_quartiles_and_digits_on_literal_numbers():
    measured = Measurement((10.0, 12.0, 11.0, 14.0, 13.0), 1000, Ended.SPREAD)
    assert measured.median_s == 0.012
    assert measured.quartiles_s == (0.011, 0.013)
    assert measured.spread == pytest.approx(1 / 6)
    assert measured.text == "12 ms"


def test_the_instrument_loads_no_framework():
    code = (
        "import sys; import lib.timing.measurement, lib.model.spec, lib.timing.prediction.workload;"
        " print(sorted({'tensorflow', 'jax', 'keras', 'marimo', 'pandas'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
