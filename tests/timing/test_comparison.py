import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.comparison import Comparison, Estimate, Verdict, between, compared, median_interval, without_spread


@pytest.mark.parametrize("n", [(3, 3), (3, 9), (9, 9), (30, 30)], ids=str)
@pytest.mark.parametrize("tail", [0.0, 0.05], ids=["even", "heavy tails"])
def test_unpaired_intervals_have_the_stated_coverage(n, tail):
    rng, inside = np.random.default_rng(5), 0
    for _ in range(1000):
        times = [np.exp(rng.normal(0, 0.05, count)) * (1 + tail * rng.pareto(1.5, count)) for count in n]
        comparison = compared(*times, paired=False)
        inside += comparison.low <= 1 <= comparison.high
    assert inside >= 925, "95 % of 1,000, less three standard errors and what so few times cost Welch's formula"


def test_too_few_times_decide_nothing():
    comparison = compared([1.0], [60.0, 61.0], paired=False)
    assert comparison.verdict is Verdict.UNCLEAR
    assert (comparison.low, comparison.high) == (0.0, math.inf)
    assert compared([1.0] * 5, [2.0] * 5, paired=True).verdict is Verdict.UNCLEAR, "five pairs make no 95 %"
    assert median_interval([1, 2, 3, 4, 5]) == (0.0, math.inf)
    assert compared([1.0, 1.01], [60.0, 61.0], paired=False).verdict is Verdict.FASTER


def test_missing_or_unpaired_times_are_refused():
    for first, second, paired in (([], [1.0], False), ([1.0], [], True), ([1.0, 2.0], [1.0], True)):
        with pytest.raises(ValueError, match="measure both"):
            compared(first, second, paired)


def test_a_small_certain_difference_is_neither_faster_nor_the_same():
    assert Comparison(1.02, 1.01, 1.035, 100).verdict is Verdict.UNCLEAR
    assert Comparison(1.02, 1.01, 1.029, 100).verdict is Verdict.SAME


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=9), st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=9))
def test_swapping_the_sides_inverts_the_comparison(first, second):
    there, back = compared(first, second, paired=False), compared(second, first, paired=False)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high) or back.high == math.inf or there.low == 0
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    assert back.verdict is opposite.get(there.verdict, there.verdict)


def test_estimates_add_and_scale_with_their_errors():
    epoch, evaluation = Estimate(10.0, 0.05, 3), Estimate(1.0)
    whole = epoch.times(3).plus(evaluation)
    assert whole.seconds == 31.0
    assert whole.error == pytest.approx(1.5 / 31)
    assert whole.n == 3, "what has no spread of its own takes none away"
    assert between(whole, Estimate(15.0, 0.01, 3)).verdict is Verdict.SLOWER
    assert without_spread(1.02).verdict is Verdict.SAME


@given(st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=60))
def test_the_interval_contains_the_median(values):
    low, high = median_interval(values)
    assert min(values) <= low <= np.median(values) <= high <= max(values)


def test_median_intervals_have_the_stated_coverage():
    rng = np.random.default_rng(11)
    inside = 0
    for _ in range(2000):
        low, high = median_interval(rng.exponential(1.0, 15))
        inside += low <= math.log(2) <= high
    assert 0.95 <= inside / 2000 <= 0.985


@given(st.floats(0.1, 10), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_coarse_clock_widens_the_interval_by_its_resolution(seconds, first_off_s, second_off_s):
    times, others = seconds * np.array([1.0, 1.1, 1.2]), np.array([2.0, 2.1, 2.3])
    sure = between(Estimate.of(times), Estimate.of(others))
    wide = between(Estimate.of(times, first_off_s), Estimate.of(others, second_off_s))
    assert wide.ratio == sure.ratio
    assert wide.low <= sure.low <= sure.high <= wide.high
    first, second = Estimate.of(times), Estimate.of(others)
    shortest = max(0.0, first.seconds - first_off_s) / (second.seconds + second_off_s)
    assert wide.low / sure.low == pytest.approx(shortest / sure.ratio)
    if first_off_s == second_off_s == 0:
        assert wide == sure


def test_a_clock_as_coarse_as_the_times_decides_nothing():
    coarse, fine = Estimate.of([1.0, 1.01, 1.02], 2.0), Estimate.of([3.0, 3.01, 3.02])
    assert between(coarse, fine).verdict is between(fine, coarse).verdict is Verdict.UNCLEAR
    assert between(fine, coarse).high == np.inf
    assert coarse.times(3).off == coarse.off
    assert coarse.plus(coarse).off == pytest.approx(coarse.off)
    assert coarse.plus(Estimate(coarse.seconds)).off == pytest.approx(coarse.off / 2)
