"""Which strategy is expected to be quickest, by a rule for each device; step times, measured once."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Steps
from lib.model.backends.registry import Runtime
from lib.model.spec import Network, Training
from lib.sweeps import cost_model
from lib.sweeps.cost_model import (
    StepTime,
    StepTimes,
    evaluation_flops,
    makespan,
    measured_s,
    nominal_s,
    pick,
    step_flops,
)
from lib.sweeps.events import Picked
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import CACHE_BYTES, Limits, Part
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Item, Progress
from lib.sweeps.workers.queue import Request
from lib.timing.disturbance import Watch
from lib.timing.measurement import Ended, Measurement
from tests.generators import collected
from tests.sweeps.sweeping import MIXED, made

LIMITS = Limits(1e9, 4e6, 1, 0.4)
RATES = [Training(learning_rate=rate, epochs=4) for rate in np.geomspace(0.01, 0.3, 16)]


@pytest.fixture(params=[2, 16])
def cores(request, monkeypatch):
    monkeypatch.setattr(cost_model, "usable_cores", lambda: request.param)
    return request.param


def test_those_are_considered_that_differ(cores):
    def considered(trainings, limits=LIMITS):
        return list(pick(trainings, limits, "cpu", 0.0, processes=False).expected_s)

    assert considered([Training(batch_size=size) for size in (1, 32, 512)]) == ["sequential"], "no common program"
    assert considered(RATES) == ["sequential", "vmap"]
    assert considered(RATES, replace(LIMITS, n_devices=2)) == ["sequential", "vmap", "sharded"]
    assert considered([Training(Network((width,))) for width in (100, 128)]) == ["sequential", "padded"]


def test_a_card_is_given_all_at_once():
    """Recorded on an H100: 64 networks in one program take 3.3 times the seconds of one."""
    long = [replace(one, epochs=40) for one in RATES]
    picked = pick(long, replace(LIMITS, cache_bytes=CACHE_BYTES["gpu"]), "gpu")
    assert picked.strategy == "vmap"
    assert picked.expected_s["sequential"] / picked.expected_s["vmap"] > 6
    assert "processes" not in picked.expected_s


def test_a_processor_is_given_a_training_for_each_core_where_that_pays_for_its_start(cores):
    limits, few = replace(LIMITS, n_devices=cores), RATES[:4]
    assert pick([replace(one, epochs=100) for one in RATES], limits, "cpu").strategy == "processes"
    assert pick(RATES, limits, "cpu", processes=False).strategy == "sharded"
    assert pick(few, limits, "cpu", 0.0).strategy == "sharded", "their start takes longer"
    assert pick(few, limits, "cpu", 0.0, running=cores).strategy == "processes"
    large = [replace(one, batch_size=4096, epochs=40) for one in RATES[:2]]
    assert pick(large, limits, "cpu", 0.0).strategy == "sequential", "each uses all cores by itself"


def test_seconds_are_arithmetic_on_step_times():
    trainings = tuple(Training(learning_rate=rate, epochs=2) for rate in (0.1, 0.2))
    step_time = StepTime(100e-6, 0.5)
    for part, steps in ((Part(trainings), 2 * 2 * 1500), (Part(trainings, 1), 2 * 1500)):
        evaluation_s = evaluation_flops(part) / (step_flops(part) / step_time.step_s)
        assert measured_s({part: step_time}) == pytest.approx(steps * 100e-6 + evaluation_s)
    assert makespan([4, 3, 3], 2) == 6
    assert nominal_s(trainings) == pytest.approx(2 * nominal_s(trainings[:1]))


class ShortEpochs:
    """An engine whose trainings take a millisecond a step, and less than a probe an epoch."""

    def run(self, _runtime, trainings, *_):
        for epoch in range(3):
            for training in trainings:
                yield Progress(Item(training), Steps(epoch, 0, np.ones(11, np.float32), 0.011))

    def watch(self, _runtime):
        return Watch()


def test_epochs_that_are_shorter_than_a_probe_are_told_from_the_networks_of_a_stack(tmp_path):
    training, store = Training(batch_size=4096, epochs=3), Store(tmp_path / "results.sqlite")
    for part, step_s in ((Part((training,)), 1e-3), (Part((training, replace(training, seed=1)), 1), 2e-3)):
        step_times = StepTimes(ShortEpochs(), store, Runtime(), Cancel(), Request())  # type: ignore[arg-type]
        _, found = collected(step_times.of([part]))
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


@pytest.mark.slow
def test_auto_says_what_it_picked_and_measures_nothing(engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    for worth_s, words in ((None, "nothing else would pay"), (0.0, "s expected; ")):
        options = {} if worth_s is None else {"worth_s": worth_s, "fresh": True}
        events, found = made(MIXED[:4], engine, store, strategy="auto", processes=False, **options)
        (picked,) = [update for update in events if isinstance(update, Picked)]
        assert words in picked.why
        assert picked.strategy == min(picked.expected_s, key=lambda key: picked.expected_s[key])
        assert len(found) == 4
    assert not store.records(Kind.STEP_TIME)
