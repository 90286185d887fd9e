"""Many widths and batch sizes at once: cell by cell what each workload by itself is predicted to take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.prediction.device import DoesNotFit, read_devices
from lib.timing.prediction.grid import Grid, predict_many
from lib.timing.prediction.predict import predict
from lib.timing.prediction.workload import Way, fully_connected
from tests.timing.prediction.invented import device
from tests.timing.prediction.test_calibration import calibrated

DEVICES = read_devices()
WIDTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(tuple)
SIZES = st.lists(st.integers(1, 48_000), min_size=1, max_size=3).map(tuple)
GRIDS = st.builds(Grid, WIDTHS, SIZES, st.integers(0, 4), st.integers(1, 64), st.sampled_from(Way), st.booleans())

KNOWN = calibrated(0.05)


def alone(grid):
    return [
        [
            fully_connected(Network((width,) * grid.depth), size, grid.way, grid.networks, grid.resident)
            for size in grid.batch_sizes
        ]
        for width in grid.widths
    ]


@given(GRIDS)
def test_a_grid_needs_what_its_workloads_need(grid):
    rows = alone(grid)
    shape = (len(grid.widths), len(grid.batch_sizes))
    for name in ("launches", "steps", "input_bytes", "moved_bytes", "working_bytes"):
        expected = [[getattr(one, name) for one in row] for row in rows]
        assert (np.broadcast_to(getattr(grid, name), shape) == expected).all(), name


@given(GRIDS, st.sampled_from(sorted(DEVICES)))
def test_a_known_device_says_of_many_what_it_says_of_each(grid, key):
    found = predict_many(grid, DEVICES[key])
    for row, members in enumerate(alone(grid)):
        for column, one in enumerate(members):
            try:
                each = predict(one, DEVICES[key])
            except DoesNotFit:
                assert np.isnan(found.step_s[row, column])
                continue
            ends = (found.step_s[row, column], found.low_s[row, column], found.high_s[row, column])
            assert ends == pytest.approx((each.step_s, each.low_s, each.high_s), rel=1e-12)


@given(GRIDS)
def test_a_calibration_says_of_many_what_it_says_of_each(grid):
    found = predict_many(grid, KNOWN)
    for row, members in enumerate(alone(grid)):
        for column, one in enumerate(members):
            each = predict(one, KNOWN)
            ends = (found.step_s[row, column], found.low_s[row, column], found.high_s[row, column])
            assert ends == pytest.approx((each.step_s, each.low_s, each.high_s), rel=1e-9)


def test_what_no_memory_holds_has_no_seconds_and_the_rest_has():
    found = predict_many(Grid((1, 4096), (1,), 4), device(memory_bytes=1e8))
    assert np.isfinite(found.step_s[0, 0])
    assert np.isnan([found.step_s[1, 0], found.low_s[1, 0], found.high_s[1, 0]]).all()


def test_several_one_after_another_take_as_many_times_as_long():
    one = predict_many(Grid((16,), (32,)), device())
    assert one.times(3).high_s == pytest.approx(3 * one.high_s)
