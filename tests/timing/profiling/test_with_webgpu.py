from dataclasses import replace

import pytest

from lib.model.backends.reference import loss_and_gradients
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject
from tests.software_adapter import needs_software_adapter

pytestmark = needs_software_adapter


def test_the_timed_step_trains_and_transfers_its_batch_on_request(small_data):
    from lib.timing.profiling.with_webgpu import timed_step

    data = replace(small_data, x_train=small_data.x_train.copy())
    subject = Subject(Network((4,)), 9, data, SOFTWARE)
    before = subject.batch[0].copy()
    step = timed_step(subject)

    def loss_of(call) -> float:
        step.wait(run := call())
        return run.results(0, 1)[0, 0]

    def expected(x) -> float:  # a step hardly changes the loss
        return loss_and_gradients(subject.parameters, x, subject.batch[1])[0]

    assert loss_of(step.call) == pytest.approx(expected(before), rel=1e-4)
    data.x_train[:9] = 1 - before
    assert loss_of(step.call) == pytest.approx(expected(before), rel=1e-4)
    step.with_transfer()
    assert loss_of(step.call) == pytest.approx(expected(subject.batch[0]), rel=1e-4)
    assert abs(expected(before) - expected(subject.batch[0])) > 1e-2
    assert loss_of(step.fresh()) == pytest.approx(expected(subject.batch[0]), rel=1e-4)


def test_a_fresh_step_compiles_its_kernels_in_its_first_call(small_data, monkeypatch):
    from lib.model.backends.with_webgpu import OpenGpu
    from lib.timing.profiling.with_webgpu import timed_step

    step = timed_step(Subject(Network((4,)), 8, small_data, SOFTWARE))
    step.wait(step.call())
    opened, compiled = [], OpenGpu.__init__
    monkeypatch.setattr(OpenGpu, "__init__", lambda self, kind: (opened.append(self), compiled(self, kind))[1])
    call = step.fresh()
    (on,) = opened
    assert not on._pipelines
    step.wait(call())
    assert {"batch", "product"} <= on._pipelines.keys()
