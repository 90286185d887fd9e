"""Step times, measured once, and what follows from them."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Steps
from lib.model.backends.registry import Runtime
from lib.model.spec import Training
from lib.sweeps.measuring import StepTime, measured_s, step_times
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import Part, evaluation_flops, makespan, nominal_s, step_flops
from lib.sweeps.workers.messages import Item, Progress
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.disturbance import Watch
from lib.timing.measurement import Ended, Measurement
from tests.generators import collected


def test_seconds_are_arithmetic_on_step_times():
    trainings = tuple(Training(learning_rate=rate, epochs=2) for rate in (0.1, 0.2))
    step_time = StepTime(100e-6, 0.5)
    for part, steps in ((Part(trainings), 2 * 2 * 1500), (Part(trainings, 1), 2 * 1500)):
        evaluation_s = evaluation_flops(part) / (step_flops(part) / step_time.step_s)
        assert measured_s({part: step_time}) == pytest.approx(steps * 100e-6 + evaluation_s)
    assert makespan([4, 3, 3], 2) == 6
    assert nominal_s(trainings) == pytest.approx(2 * nominal_s(trainings[:1]))


class ShortEpochs:
    def run(self, _runtime, trainings, *_):
        for epoch in range(3):
            for training in trainings:
                yield Progress(Item(training), Steps(epoch, 0, np.ones(11, np.float32), 0.011))

    def watch(self, _runtime):
        return Watch()


def test_epochs_that_are_shorter_than_a_probe_are_told_from_the_networks_of_a_stack(tmp_path):
    training, store = Training(batch_size=4096, epochs=3), Store(tmp_path / "results.sqlite")
    for part, step_s in ((Part((training,)), 1e-3), (Part((training, replace(training, seed=1)), 1), 2e-3)):
        times = step_times([part], ShortEpochs(), store, Runtime(), Cancel(), Request())  # type: ignore[arg-type]
        _, found = collected(times)
        assert found[part].step_s == pytest.approx(step_s)


def test_a_step_time_is_of_what_nothing_disturbed_where_there_is_such():
    def took(step_s, *warnings):
        measured = Measurement((step_s,), 1, Ended.CAP, warnings=warnings)
        return Record.of(Kind.STEP_TIME, {"first_call_s": 0.5}, measured)

    records = [took(2.0), took(9.0, "busy"), took(4.0), took(7.0, "busy")]
    found = StepTime.of(records)
    assert (found.step_s, found.low_s, found.high_s, found.disturbed, found.times) == (3.0, 2.0, 4.0, (), 4)
    found = StepTime.of(records[1::2])
    assert (found.step_s, found.disturbed) == (8.0, ("busy",)), "better than nothing"
