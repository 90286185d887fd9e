"""What a sweep will take by each strategy: arithmetic on measured steps, measured once."""

from dataclasses import replace

import numpy as np
import pytest

from lib.backends.base import Steps
from lib.backends.registry import Runtime
from lib.spec import Network, Training
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.sweeps import cost_model
from lib.sweeps.cost_model import StepTime, StepTimes, candidates, expected_s, makespan, nominal_s
from lib.sweeps.events import Finished, Picked
from lib.sweeps.strategies import Limits, Part
from lib.sweeps.sweep import Options, updates
from lib.timing.disturbance import Watch
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.messages import Item, Progress
from lib.workers.queue import Request
from tests.generators import collected
from tests.sweeps.sweeping import MIXED, made


def test_candidates_are_those_that_differ():
    limits = Limits(1e9, 4e6, 1, 0.4)
    sizes = [Training(batch_size=size) for size in (1, 32, 512)]
    assert candidates(sizes, limits) == ["sequential"], "nothing can share a program"
    rates = [Training(learning_rate=rate) for rate in (0.1, 0.2)]
    assert candidates(rates, limits) == ["sequential", "vmap"]
    assert candidates(rates, replace(limits, n_devices=2)) == ["sequential", "vmap", "sharded"]
    shapes = [Training(Network((width,))) for width in (100, 128)]
    assert candidates(shapes, limits) == ["sequential", "padded"]


def test_expectation_is_arithmetic_on_step_times():
    from lib.sweeps.cost_model import COMPILED_S, evaluation_flops, step_flops

    trainings = tuple(Training(learning_rate=rate, epochs=2) for rate in (0.1, 0.2))
    step_time = StepTime(100e-6, 0.5)
    for part, steps in ((Part(trainings), 2 * 2 * 1500), (Part(trainings, 1), 2 * 1500)):
        evaluation_s = evaluation_flops(part) / (step_flops(part) / step_time.step_s)
        assert expected_s([part], {part: step_time}) == pytest.approx(steps * 100e-6 + evaluation_s + COMPILED_S)
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


def test_epochs_that_are_shorter_than_a_probe_are_told_from_the_networks_of_a_stack():
    training = Training(batch_size=4096, epochs=3)
    for part, step_s in ((Part((training,)), 1e-3), (Part((training, replace(training, seed=1)), 1), 2e-3)):
        step_times = StepTimes(ShortEpochs(), None, Runtime(), Cancel(), Request())  # type: ignore[arg-type]
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


@pytest.mark.release
def test_auto_says_what_it_picked_and_measures_nothing_for_a_short_sweep(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(cost_model, "MAX_DISTURBED", 1)  # what else the machine does is no part of this test
    store = Store(tmp_path / "results.sqlite")
    events, _ = made(MIXED[:2], engine, store, strategy="auto")
    (picked,) = [update for update in events if isinstance(update, Picked)]
    assert picked.strategy == "sequential"
    assert "nothing else would pay" in picked.why
    assert not store.records(Kind.STEP_TIME)
    events, found = made(MIXED[:4], engine, store, strategy="auto", worth_s=0.0, fresh=True)
    (picked,) = [update for update in events if isinstance(update, Picked)]
    assert "expected from measured steps" in picked.why
    assert picked.strategy == min(picked.expected_s, key=lambda key: picked.expected_s[key])
    assert len(found) == 4
    n_measured = len(store.records(Kind.STEP_TIME))
    assert n_measured >= 2
    made(MIXED[:4], engine, store, strategy="auto", worth_s=0.0, fresh=True)
    assert len(store.records(Kind.STEP_TIME)) == n_measured, "measured once"


@pytest.mark.slow
def test_who_watches_lines_grow_gets_no_processes(engine, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("processes were asked how fast they are")

    monkeypatch.setattr(cost_model.StepTimes, "pooled_s", never)
    monkeypatch.setattr(cost_model, "is_warm", lambda _: True)
    items = [Item(training) for training in MIXED[:2]]
    store = Store(tmp_path / "results.sqlite")
    events = updates(items, engine, store, Cancel(), Options(worth_s=0.0, streams=True))
    assert len([update for update in events if isinstance(update, Finished)]) == 2
    with pytest.raises(AssertionError, match="were asked"):
        list(updates(items, engine, store, Cancel(), Options(worth_s=0.0, fresh=True)))
