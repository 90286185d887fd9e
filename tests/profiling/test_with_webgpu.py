"""WebGPU's experiments are all that a step is split by, in each of its ways, and each can be measured."""

import pytest

from lib.backends.registry import BACKENDS
from lib.hardware.webgpu import SOFTWARE
from lib.profiling.harness import Subject
from lib.profiling.step_breakdown import split
from lib.spec import Network
from tests.software_adapter import needs_software_adapter

pytestmark = needs_software_adapter
WAYS = [key for key, backend in BACKENDS.items() if SOFTWARE in backend.devices]


@pytest.mark.parametrize("backend", WAYS)
def test_its_experiments_suffice_to_split_a_step(small_data, backend):
    from lib.profiling.with_webgpu import experiments

    found = experiments(backend, Subject(Network((4,)), 8, small_data, SOFTWARE))
    known = split(backend, {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1))
    assert known is not None
    assert known.parts_s["dispatch"] == pytest.approx(0.1)


@pytest.mark.parametrize("backend", ["webgpu-step", "webgpu-kernel"])
def test_each_can_be_measured(small_data, backend):
    from lib.profiling.with_webgpu import experiments

    for name, experiment in experiments(backend, Subject(Network((4,)), 8, small_data, SOFTWARE)).items():
        experiment.prepare()
        assert 0 < experiment.block() < 1, name


def test_steps_go_round_and_round_an_epoch(small_data):
    """Experiments make as many steps as they need; the device counts them, and begins again after the last."""
    import numpy as np

    from lib.backends.webgpu.description import step
    from lib.backends.webgpu.execution import Execution, gpu
    from lib.backends.with_webgpu import training_images

    x = training_images(small_data, SOFTWARE)
    run = Execution(gpu(SOFTWARE), step(Network(()), 100), x, 3, "A step")
    run.schedule(np.array([0, 100, 200]))
    run.one_submission(3)
    once = run.results(0, 3)
    run.one_submission(3)
    np.testing.assert_array_equal(run.results(0, 3), once)
    assert len(np.unique(once[:, 1])) > 1, "different batches"


def test_the_devices_own_clock_counts_the_steps_and_not_the_host(small_data):
    """In nanoseconds: the steps lie between the host's two looks at its own clock."""
    import time

    from lib.backends.webgpu.description import step
    from lib.backends.webgpu.execution import Execution, gpu
    from lib.backends.with_webgpu import training_images

    if not gpu(SOFTWARE).has_clock:
        pytest.skip("this adapter has no timestamps")
    x = training_images(small_data, SOFTWARE)
    run = Execution(gpu(SOFTWARE), step(Network((8,)), 100), x, 6, "A step")
    run.compile()
    before = time.perf_counter()
    device_s = run.by_its_clock_s(6)
    assert 0 < device_s <= time.perf_counter() - before
