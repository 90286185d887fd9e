import pytest

from lib.model.backends.registry import Runtime
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.request import split
from lib.timing.profiling.with_numpy import experiments


def test_numpys_experiments_suffice_to_split_a_step(small_data):
    found = experiments("numpy", Subject(Network((4,)), 8, small_data, "cpu"))
    known = split(Runtime("numpy"), {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1))
    assert known is not None
    assert known.parts_s["dispatch"] == pytest.approx(0.1)


def test_the_transfer_copies_the_next_batch_each_time(small_data):
    found = experiments("numpy", Subject(Network((4,)), 8, small_data, "cpu"))
    for name in ("python", "transfer", "transfer-base"):
        next(found[name])
        assert 0 < next(found[name]) < 1e-2, name
