"""Wrong ways to time a step, each with a step whose time is known."""

import time
from itertools import count

from lib.profiling.harness import Repeated
from lib.profiling.request import TRAP_SAMPLES
from lib.profiling.traps import BestOf, BusyProcessors


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
