"""Overlap: both ways compute the same, in the order that each promises; streams only as far as a processor goes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.overlap import OnThreads, measure_overlap
from lib.timing.profiling.request import IN_PIECES, IN_TURN, LANES, OperationRequest


@given(st.integers(1, 300), st.integers(1, 3), st.integers(1, 12))
def test_both_ways_compute_the_nested_sine_of_every_element(size, depth, pieces):
    """Also where there are more pieces than elements, or pieces of different lengths."""
    stages = OnThreads(OperationRequest("overlap", size, depth=depth, pieces=pieces))
    right = np.ones(size, np.float32)
    for _ in range(depth):
        right = np.sin(right)
    try:
        for way in (stages.in_turn, stages.in_pieces):
            stages.y[:] = 0
            way()
            assert np.allclose(stages.y, right, atol=1e-6)
    finally:
        stages.close()


def test_a_stage_of_a_piece_begins_when_the_one_before_has_ended():
    stages = OnThreads(OperationRequest("overlap", 2**16, depth=2, pieces=5))
    try:
        there, compute, back = stages.in_turn()
        assert [len(lane) for lane in (there, compute, back)] == [1, 1, 1]
        assert there[0][1] <= compute[0][0]
        assert compute[0][1] <= back[0][0], "nothing overlaps"
        lanes = stages.in_pieces()
    finally:
        stages.close()
    assert [len(lane) for lane in lanes] == [5, 5, 5]
    for before, after in itertools.pairwise(lanes):
        assert all(one[1] <= other[0] for one, other in zip(before, after, strict=True))
    for lane in lanes:
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(lane)), "a lane does one thing"


def test_the_rows_are_both_ways_and_their_lanes():
    operation = OperationRequest("overlap", 256, depth=1, pieces=4)
    rows = {row[0]: row[1] for row in measure_overlap("numpy", "cpu", operation) if row is not None}
    assert set(rows) == {IN_TURN, IN_PIECES} | {
        f"{way}/{lane}/{end}" for way in (IN_TURN, IN_PIECES) for lane in LANES for end in ("begins", "ends")
    }
    assert len(rows[f"{IN_PIECES}/compute/begins"].block_s) == 4
    assert len(rows[f"{IN_TURN}/compute/ends"].block_s) == 1
    assert len(rows[IN_TURN].block_s) == len(rows[IN_PIECES].block_s) == 9


def test_other_libraries_are_refused():
    with pytest.raises(ValueError, match="expected numpy on cpu or torch on gpu, got jax on cpu"):
        next(measure_overlap("jax", "cpu", OperationRequest("overlap", 4)))
