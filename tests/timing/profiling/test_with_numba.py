"""Numba's experiments are all that a step is split by, each can be measured, and its loop up to the last part is a step
of training."""

import numpy as np
import pytest

from lib.model.backends.registry import Runtime
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.step_breakdown import LOOP_PARTS, loop_parts, split, up_to

with_numba = pytest.importorskip("lib.timing.profiling.with_numba", reason="numba: it is not installed")
from lib.model.backends.sparse import run_steps  # noqa: E402
from lib.model.backends.with_numba import given  # noqa: E402

NETWORK = Network((20, 4))


@pytest.fixture
def subject(small_data):
    return Subject(NETWORK, 32, small_data, "cpu")


@pytest.mark.slow
def test_its_experiments_suffice_to_split_a_step_and_each_can_be_measured(subject):
    found = with_numba.experiments("numba", subject)
    assert split(Runtime("numba"), {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1)) is not None
    assert len(loop_parts(dict.fromkeys(found, 0.1))) == len(LOOP_PARTS)
    for name in ("python", "returns", "transfer", "transfer-base", "many", up_to(0), up_to(6)):
        found[name].prepare()
        assert 0 < found[name].block() < 1, name


def test_the_loop_with_all_its_parts_is_a_step_of_training_and_without_the_last_changes_less(subject):
    starts = np.array([0, 32, 96], np.int32)
    losses = np.empty((2, 3), np.float32)
    trained, whole = (given(subject.training, subject.data, 1)._replace(rate=np.float32(0.1)) for _ in range(2))
    run_steps(0, 1, np.zeros(1, np.int64), starts, 0, 3, losses[0], *trained)
    with_numba.first_parts(6, starts, losses[1], *whole)
    np.testing.assert_array_equal(losses[1], losses[0])
    for one, other in zip(whole.model, trained.model, strict=True):
        np.testing.assert_array_equal(one, other)
    for n_parts, changes in ((4, (False, False)), (5, (True, False))):
        cut = given(subject.training, subject.data, 1)._replace(rate=np.float32(0.1))
        before = [one.copy() for one in cut.model[:2]]
        with_numba.first_parts(n_parts, starts, losses[1], *cut)
        assert tuple(bool((one != old).any()) for one, old in zip(cut.model[:2], before, strict=True)) == changes


def test_batches_are_fetched_whole(subject):
    images = given(subject.training, subject.data, 1).images
    expected = sum(float(x @ np.arange(len(x))) for x in subject.data.x_train[32:96])
    assert with_numba.fetch(images, np.array([32, 64], np.int32), 32) == pytest.approx(expected, rel=1e-4)
