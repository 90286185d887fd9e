"""Latency and bandwidth: found again in times that were made from them, and honest about what is no line."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.latency import cost_of

SIZES = [4.0**k for k in range(1, 15)]


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12))
def test_what_times_were_made_from_is_found_again(latency_s, bytes_per_s):
    cost = cost_of(SIZES, [latency_s + n / bytes_per_s for n in SIZES])
    assert cost is not None
    assert cost.seconds(SIZES[0]) == pytest.approx(latency_s + SIZES[0] / bytes_per_s, rel=1e-6)
    assert cost.seconds(SIZES[-1]) == pytest.approx(latency_s + SIZES[-1] / bytes_per_s, rel=1e-6)


def test_the_intervals_hold_the_truth_as_often_as_they_say():
    """95 in 100, with errors of a tenth; 400 repetitions leave 93 to 97."""
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        times = [(1e-5 + n / 1e9) * (1 + 0.03 * rng.standard_normal()) for n in SIZES]
        cost = cost_of(SIZES, times)
        assert cost is not None
        intervals = (cost.latency_interval_s, 1e-5), (cost.bandwidth_interval, 1e9)
        held += [low <= truth <= high for (low, high), truth in intervals]
    assert (held / 400 > 0.9).all()
    assert (held / 400 < 0.99).all()


def test_what_takes_the_same_at_every_size_has_no_bandwidth():
    flat = cost_of(SIZES, [1e-6 * (1 + 0.01 * (-1) ** k) for k in range(len(SIZES))])
    assert flat is not None
    assert not flat.grows
    assert flat.bandwidth_interval[1] == math.inf
    steep = cost_of(SIZES, [1e-6 + n / 1e9 for n in SIZES])
    assert steep is not None
    assert steep.grows
    assert steep.half_bytes == pytest.approx(1000, rel=1e-3)


def test_too_few_sizes_make_no_line_and_bad_times_are_named():
    assert cost_of([4, 16], [1.0, 2.0]) is None
    for sizes, times in (([1, 2], [1.0]), ([1, 2, 3], [1.0, 0.0, 1.0])):
        with pytest.raises(ValueError, match="expected as many sizes as times above 0"):
            cost_of(sizes, times)
