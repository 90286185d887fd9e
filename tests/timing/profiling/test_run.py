"""What a worker is asked to measure of a step: experiments that add up, and that can be stopped."""

import pytest

from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject, TrainedStep
from lib.timing.profiling.request import Examination
from lib.timing.profiling.run import examine
from lib.timing.profiling.step_breakdown import split

NETWORK = Network((16,))


@pytest.mark.release
@pytest.mark.parametrize("backend", ["numpy", "jax-step", "jax-epoch", "torch"])
def test_real_experiments_add_up_roughly(small_data, backend):
    """Within a factor of two, whatever else the machine does; `make bench BENCH=anatomy` holds them to 15 %."""
    if unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    rows = [row for row in examine(backend, "cpu", Examination("parts", Network((128,)), 128), small_data) if row]
    known = split(Runtime(backend), {name: measured.median_s / work for name, measured, work in rows})
    assert known is not None
    assert all(seconds >= 0 for seconds in known.parts_s.values())
    assert known.parts_s["arithmetic"] > 0
    assert 0.5 < sum(known.parts_s.values()) / known.step_s < 2


def test_what_is_stopped_before_it_began_is_closed_quietly(small_data):
    rows = examine("numpy", "cpu", Examination("parts", NETWORK, 32), small_data)
    assert next(rows) is None, "the first is prepared, the others are not"
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    TrainedStep("numpy", Subject(NETWORK, 32, small_data, "cpu")).close()
