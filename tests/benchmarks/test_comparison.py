"""The rule for “faster” while pairs are measured: how often it is right on simulated machines with drift, bursts,
jumps and outliers, and its false findings."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.comparison import LOOKS, compare
from lib.timing.comparison import Verdict, median_interval
from lib.timing.measurement import Config, Meter

QUICK = Config(warm_up_s=0.005, max_time_s=5.0, min_block_s=1e-3)
STEP_S = 2e-3


class Machine:
    """A clock that only steps advance: each by its seconds, times the slowdown of this kind of machine."""

    def __init__(self, kind: str, seed: int) -> None:
        self.now, self.kind, self.rng, self.slow_until = 0.0, kind, np.random.default_rng(seed), 0.0

    def clock(self) -> float:
        return self.now

    def step(self, seconds: float):
        def run() -> None:
            self.now += seconds * max(0.5, 1 + 0.02 * self.rng.standard_normal()) * self.slower()

        return run

    def slower(self) -> float:
        match self.kind:
            case "drift":  # doubles within a second
                return 1 + self.now
            case "bursts":  # sometimes another program runs for ten steps
                if self.now > self.slow_until and self.rng.random() < 0.02:
                    self.slow_until = self.now + 10 * STEP_S
                return 2.0 if self.now < self.slow_until else 1.0
            case "two modes":  # a clock rate that jumps
                return 1.3 if self.rng.random() < 0.5 else 1.0
            case "heavy tails":
                return 1 + 0.03 * self.rng.pareto(1.2)
        return 1.0


MACHINES = ("quiet", "drift", "bursts", "two modes", "heavy tails")


def verdicts(kind: str, ratio: float, n: int = 200) -> Counter[Verdict]:
    found = Counter()
    for seed in range(n):
        machine = Machine(kind, seed)
        steps = machine.step(STEP_S * ratio), machine.step(STEP_S)
        found[compare(*steps, clock=machine.clock, config=QUICK, seed=seed).verdict] += 1
    return found


@pytest.mark.parametrize("kind", MACHINES)
def test_equal_steps_are_rarely_called_different(kind):
    found = verdicts(kind, 1.0)
    assert found[Verdict.FASTER] + found[Verdict.SLOWER] <= 10, "5 % of 200"


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(("ratio", "least"), [(1.05, 180), (1.10, 198)], ids=["5 %", "10 %"])
def test_a_slower_step_is_found_and_never_called_faster(kind, ratio, least):
    found = verdicts(kind, ratio)
    assert found[Verdict.SLOWER] >= least
    assert found[Verdict.FASTER] == 0


@pytest.mark.slow
def test_repeated_looks_do_not_raise_the_false_positive_rate():
    """The looks share the 5 %; at 5 % for each of ten looks, a third of the cases would be told apart."""

    def n_called_different(looks: int) -> int:
        found = 0
        for seed in range(300):
            ratios = np.exp(np.random.default_rng(seed).normal(0, 0.3, LOOKS[-1]))
            intervals = [median_interval(ratios[:n], 1 - 0.05 / looks) for n in LOOKS]
            found += any(low > 1 or high < 1 for low, high in intervals)
        return found

    assert n_called_different(len(LOOKS)) <= 15
    assert n_called_different(1) > 40


def test_drift_is_not_reported_as_a_difference():
    """The machine slows down to half its speed while it is measured; one after the other, equal steps would differ."""
    machine = Machine("drift", 0)
    alone = [Meter(machine.step(STEP_S), clock=machine.clock, config=QUICK).run() for _ in range(2)]
    assert alone[1].median_s > 1.1 * alone[0].median_s
    assert any("in turns" in warning for one in alone for warning in one.warnings)
    together = compare(machine.step(STEP_S), machine.step(STEP_S), clock=machine.clock, config=QUICK)
    assert together.verdict is Verdict.SAME


def test_an_undecided_comparison_is_unclear_when_time_runs_out():
    machine, config = Machine("quiet", 3), Config(warm_up_s=0.005, min_time_s=0.02, max_time_s=0.02, min_block_s=1e-3)
    comparison = compare(machine.step(STEP_S), machine.step(STEP_S), clock=machine.clock, config=config)
    assert comparison.verdict is Verdict.UNCLEAR
    assert machine.now < 0.2
