"""Work and floors on numbers that can be checked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.roofline import Ceiling, Ceilings, intensity, step_floor, step_work

MACHINE = Ceilings(400e9, 20e9, {"jax-step": 50e-6}, cache_bytes=32 * 2**20)


def test_the_articles_step_by_hand():
    """784→128→10 at 32: forward 3.2 M multiply-adds in the first layer, again for its gradient; three times 41 k in
    the second."""
    work = step_work(Network((128,)), 32)
    assert work.flops == 2 * 32 * (2 * 784 * 128 + 3 * 128 * 10)
    assert work.n_bytes == 4 * 784 * 32 + 2 * 4 * (784 * 128 + 128 + 128 * 10 + 10)


def test_a_larger_batch_reads_each_parameter_less_often():
    """At 1 each of 101,770 parameters is read and written for six FLOPs or four; at 4096 the images are most bytes."""
    network = Network((128,))
    assert intensity(network, 1) == step_work(network, 1).flops / (4 * 784 + 8 * 101_770)
    assert intensity(network, 4096) == pytest.approx(2 * (2 * 784 * 128 + 3 * 1280) / (4 * 784), rel=0.07)


def test_parameters_that_fit_the_cache_cost_no_memory():
    small, large = Network((128,)), Network((4096, 4096))
    assert step_work(small, 32, MACHINE.cache_bytes).n_bytes == 4 * 784 * 32
    assert step_work(large, 32, MACHINE.cache_bytes).n_bytes == 4 * 784 * 32 + 2 * (large.parameter_bytes - 32 * 2**20)


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
