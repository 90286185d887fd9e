"""Work and floors on numbers that can be checked by hand; latency and bandwidth found again in times made from them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.prediction.workload import Ceiling, Ceilings, cost_of, intensity, step_floor, step_work

MACHINE = Ceilings(400e9, 20e9, {"jax-step": 50e-6}, cache_bytes=32 * 2**20)


def test_the_articles_step_by_hand():
    """784→128→10 at 32: forward 3.2 M multiply-adds in the first layer, again for its gradient; three times 41 k in
    the second."""
    work = step_work(Network((128,)), 32)
    assert work[0] == 2 * 32 * (2 * 784 * 128 + 3 * 128 * 10)
    assert work[1] == 4 * 784 * 32 + 2 * 4 * (784 * 128 + 128 + 128 * 10 + 10)


def test_a_larger_batch_reads_each_parameter_less_often():
    """At 1 each of 101,770 parameters is read and written for six FLOPs or four; at 4096 the images are most bytes."""
    network = Network((128,))
    assert intensity(network, 1) == step_work(network, 1)[0] / (4 * 784 + 8 * 101_770)
    assert intensity(network, 4096) == pytest.approx(2 * (2 * 784 * 128 + 3 * 1280) / (4 * 784), rel=0.07)


def test_parameters_that_fit_the_cache_cost_no_memory():
    small, large = Network((128,)), Network((4096, 4096))
    assert step_work(small, 32, MACHINE.cache_bytes)[1] == 4 * 784 * 32
    assert step_work(large, 32, MACHINE.cache_bytes)[1] == 4 * 784 * 32 + 2 * (large.parameter_bytes - 32 * 2**20)


@pytest.mark.parametrize(
    ("network", "batch_size", "backend", "calls", "by"),
    [
        (Network((128,)), 32, "jax-step", 1.0, Ceiling.DISPATCH),
        (Network((128,)), 32, "jax-step", 1 / 1500, Ceiling.PRODUCT),
        (Network((128,)), 4096, "jax-step", 1.0, Ceiling.PRODUCT),
        (Network(()), 512, None, 1.0, Ceiling.COPY),
    ],
)
def test_which_ceiling_sets_the_floor(network, batch_size, backend, calls, by):
    floor = step_floor(network, batch_size, MACHINE, backend, calls)
    assert floor.by is by
    assert floor.seconds == max(floor.parts_s.values())


@given(st.lists(st.integers(1, 4096), max_size=4), st.integers(1, 4096), st.floats(1e9, 1e14), st.floats(1e9, 1e13))
def test_a_floor_rises_with_the_batch_and_falls_with_the_machine(hidden, batch_size, product, copy):
    network, ceilings = Network(tuple(hidden)), Ceilings(product, copy)
    here = step_floor(network, batch_size, ceilings).seconds
    assert step_floor(network, batch_size + 1, ceilings).seconds > here > 0
    assert step_floor(network, batch_size, Ceilings(2 * product, 2 * copy)).seconds == pytest.approx(here / 2)


def test_a_ceiling_of_nothing_is_refused():
    with pytest.raises(ValueError, match="measure them again"):
        Ceilings(0.0, 1.0)


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
