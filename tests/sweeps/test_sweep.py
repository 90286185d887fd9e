import os
import signal
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends import registry
from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.packing import Shape
from lib.model.backends.registry import Runtime, unavailable
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps import sweep as module
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Kind
from lib.sweeps.sweep import (
    CACHE_BYTES,
    QUICKEST,
    STRATEGIES,
    Continued,
    Finished,
    Limits,
    Options,
    Picked,
    Plan,
    parts,
    pick,
    quickest_runtime,
    sweep,
    train,
    updates,
)
from lib.sweeps.workers.messages import (
    Checkpoint,
    Item,
    Progress,
    Ready,
    Restarted,
    State,
    Trained,
    TrainingFailed,
    Waiting,
)
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing import measurement
from lib.timing.measurement import Disturbance, Watch
from tests.sweeps.storage.test_store import lasting

FAST = [Item(Training(Network((8,)), rate, 4096, 1), Runtime("numpy")) for rate in (0.1, 0.3)]


MIXED = [
    Training(Network(hidden), rate, 4096, 2, seed)
    for hidden, rate, seed in (
        ((12,), 0.1, 0),
        ((12,), 0.3, 0),
        ((7, 5), 0.1, 0),
        ((12,), 0.1, 1),
        ((64, 64, 64), 1000.0, 0),
        ((), 0.1, 0),
    )
]


def made(asked, engine, store=None, **options):
    """Sweep trainings or items; return the events, and `Finished` by place."""
    items = [one if isinstance(one, Item) else Item(one) for one in asked]
    events = list(updates(items, engine, store, Cancel(), Options(**options)))
    found = {update.item: update for update in events if isinstance(update, Finished)}
    return events, {place: found[item] for place, item in enumerate(items) if item in found}


def test_stored_curves_are_served_and_the_rest_trained(stub_engine, store):
    _, first = made(FAST, stub_engine, store)
    assert [first[i].cached for i in (0, 1)] == [False, False]
    more = [*FAST, Item(Training(Network((8,)), 0.2, 4096, 1), Runtime("numpy"))]
    events, second = made(more, stub_engine, store)
    assert [second[i].cached for i in (0, 1, 2)] == [True, True, False]
    assert {update.item for update in events if isinstance(update, Progress)} == {more[2]}
    np.testing.assert_array_equal(first[1].curve.losses, second[1].curve.losses)
    assert second[0].curve.measured_at == first[0].curve.measured_at, "a kept time says when it was taken"
    _, fresh = made(FAST, stub_engine, store, fresh=True)
    assert not fresh[0].cached
    np.testing.assert_array_equal(first[0].curve.losses, fresh[0].curve.losses, err_msg="training is deterministic")


def test_equal_trainings_run_once_and_are_reported_for_each(stub_engine, store, monkeypatch):
    items = [Item(MIXED[0]), Item(MIXED[1]), Item(MIXED[0])]
    events, _ = made(items, stub_engine, strategy="sequential")
    assert len([update for update in events if isinstance(update, Finished)]) == 2
    assert len([update for update in events if isinstance(update, Picked)]) == 1
    results = Results(items, ["a", "b", "a again"])
    for update in events:
        results.add(update)
    assert [line.state for line in results.lines] == [State.DONE] * 3
    assert results.lines[2].curve is results.lines[0].curve
    monkeypatch.setattr("lib.sweeps.sweep.shared_engine", lambda: stub_engine)
    rows = list(sweep(items, "sequential", store=store))
    assert sorted(row["learning_rate"] for row in rows) == [0.1, 0.1, 0.3]  # type: ignore[type-var]


NEEDS_NUMBA = pytest.mark.skipif(unavailable(Runtime(QUICKEST)) is not None, reason="Numba is not installed")


@NEEDS_NUMBA
def test_the_fastest_backend_for_the_strategy_is_the_default(store, monkeypatch):
    asked: list[Item] = []
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    monkeypatch.setattr(module, "updates", lambda items, *_: asked.extend(items) or ())

    def backends(strategy, trainings=MIXED[:2]):
        asked.clear()
        sweep(trainings, strategy, store=store)
        return [item.runtime.backend for item in asked]

    assert backends("auto") == [QUICKEST, QUICKEST]
    assert backends("vmap") == ["jax-epoch", "jax-epoch"], "stacks are JAX's"
    assert backends("auto", [MIXED[0], Item(MIXED[1], Runtime("numpy"))]) == [QUICKEST, "numpy"], "who names one"
    assert quickest_runtime(zeros=0.1) == Runtime(), "nothing is gained where inputs are not zero"
    monkeypatch.setattr(registry, "_installed", lambda _, name: name != "numba")
    assert backends("auto") == ["jax-epoch", "jax-epoch"]


def test_bad_sweeps_are_refused(stub_engine, monkeypatch):
    with pytest.raises(ValueError, match="expected at least one training, got none"):
        list(sweep([]))
    with pytest.raises(ValueError, match="expected auto or one of sequential"):
        Options("fastest")
    with pytest.raises(ValueError, match="got NumPy; choose sequential or processes"):
        made([Item(MIXED[0], Runtime("numpy"))], stub_engine, strategy="vmap")
    with pytest.raises(ValueError, match="expected trainings by Numba, zeros left out, got JAX"):
        made(MIXED[:2], stub_engine, strategy="cores")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ValueError, match="expected an executor or DASK_SCHEDULER_ADDRESS, got neither"):
        made(MIXED[:2], stub_engine, strategy="cluster")


def test_a_stop_keeps_finished_trainings(stub_engine, store):
    cancel = Cancel()
    items = [Item(replace(MIXED[0], learning_rate=rate, batch_size=256, epochs=30)) for rate in (0.1, 0.2, 0.3)]
    items.insert(0, Item(MIXED[1]))
    events = []
    for update in updates(items, stub_engine, store, cancel, Options("sequential")):
        events.append(update)
        if isinstance(update, Finished):
            cancel.set()
    assert [update.item for update in events if isinstance(update, Finished)] == items[:1]
    assert isinstance(events[-1], Finished), "nothing is told after the stop"
    assert made(items[:1], stub_engine, store)[1][0].cached


def test_a_sweep_whose_worker_was_killed_resumes(stub_engine, store):
    items = [Item(MIXED[1]), Item(Training(Network((256,)), 0.1, 32, 30))]

    def kill_in_the_second():
        for update in updates(items, stub_engine, store, Cancel(), Options("sequential")):
            steps = isinstance(update, Progress) and update.item == items[1] and isinstance(update.event, Steps)
            if steps and (pid := stub_engine.pids().get("jax/cpu")):  # twice; the first one's last report may come late
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(TrainingFailed, match="Nothing else is lost"):
        kill_in_the_second()
    shorter = [items[0], Item(replace(items[1].training, epochs=1))]
    _, again = made(shorter, stub_engine, store, strategy="sequential")
    assert {place: update.cached for place, update in again.items()} == {0: True, 1: False}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", "sharded", pytest.param("processes", marks=pytest.mark.release)])
def test_an_additional_epoch_and_rate_train_only_those(engine, store, strategy):
    made(MIXED[:2], engine, store, strategy=strategy)
    longer = [replace(training, epochs=3) for training in MIXED[:2]]
    events, found = made([*longer, replace(MIXED[0], learning_rate=0.2)], engine, store, strategy=strategy)
    goes_on = {update.item.training: len(update.curve.epochs) for update in events if isinstance(update, Continued)}
    assert goes_on == dict.fromkeys(longer, 2)
    steps = {
        update.event.epoch
        for update in events
        if isinstance(update, Progress) and update.item.training in longer and hasattr(update.event, "epoch")
    }
    assert steps == {2}, "only the third epoch is trained"
    _, whole = made(longer, engine, strategy=strategy)
    for index in (0, 1):
        assert len(found[index].curve.epochs) == 3
        np.testing.assert_allclose(found[index].curve.losses, whole[index].curve.losses, atol=1e-5)
    _, again = made(MIXED[:2], engine, store, strategy=strategy)
    assert all(update.cached and len(update.curve.epochs) == 2 for update in again.values()), (
        "the shorter one is its start"
    )


@pytest.mark.release
def test_a_stopped_training_is_continued(engine, store, monkeypatch):
    cancel = Cancel()
    items = [Item(Training(Network((64,)), 0.1, 32, 100))]
    for _ in updates(items, engine, store, cancel, Options("sequential")):
        if store.rows("parameters"):
            cancel.set()
    assert cancel.is_set()
    cached = store.rows("parameters")[0]["epochs"]
    cancel = Cancel()
    for update in updates(items, engine, store, cancel, Options("sequential")):
        if isinstance(update, Continued):
            assert len(update.curve.epochs) == cached >= 1
            cancel.set()
    assert cancel.is_set()


@pytest.mark.slow
def test_parameters_of_a_large_sweep_are_not_kept(engine, store, monkeypatch):
    monkeypatch.setattr(module, "MAX_PARAMETER_BYTES", 3 * MIXED[0].network.parameter_bytes)
    _, few = made(MIXED[:1], engine, store, strategy="vmap")
    assert few[0].parameters is not None
    assert len(store.rows("parameters")) == 1
    many = [replace(MIXED[0], learning_rate=rate) for rate in (0.11, 0.12, 0.13, 0.14)]
    _, found = made(many, engine, store, strategy="vmap")
    assert all(update.parameters is None for update in found.values())
    assert len(store.rows("parameters")) == 1


FACTS = Facts("MNIST", "digest")
ITEMS = [Item(Training(learning_rate=rate, epochs=2)) for rate in (0.1, 0.3)]
WEIGHTS = [(np.ones((784, 10), np.float32), np.zeros(10, np.float32))]


class Engine:
    def __init__(self, *messages):
        self.messages = messages

    def turn(self, request):
        return nullcontext()

    def take(self, *_):
        return iter(())

    def run(self, jobs, *_):
        self.asked = [item for job in jobs for item in job.items]
        yield Ready(FACTS)
        yield from self.messages


def epoch_of(item, epoch):
    yield Progress(item, Steps(epoch, 0, np.full(4, 1.0 / (epoch + 1), np.float32), 0.1))
    yield Progress(item, Epoch(epoch, 4, 0.3, 0.9, 0.1, 0.01, no_parameters))


def plan_of(items, engine, store):
    return Plan(items, engine, store, Cancel(), Options("sequential"), Request(), FACTS.digest)


def swept(plan):
    return list(train(plan, Runtime(), plan.items, "sequential", Limits(1e9, 1e9)))


def curves_of(events):
    return {event.item: event.curve for event in events if isinstance(event, Finished)}


def test_steps_before_a_restart_are_not_in_the_curve():
    one, other = ITEMS
    again = [*epoch_of(one, 0), *epoch_of(one, 1), Trained(one, None), *epoch_of(other, 0), Trained(other, None)]
    engine = Engine(Progress(one, FirstCall(0.5)), *epoch_of(one, 0), Restarted("it hung", (one, other)), *again)
    events = swept(plan_of(ITEMS, engine, None))
    assert Restarted("it hung", (one, other)) in events
    curves = curves_of(events)
    assert (len(curves[one].epochs), len(curves[one].losses)) == (2, 8)
    assert len(curves[other].epochs) == 1


def test_what_another_run_trained_meanwhile_is_served_and_only_the_rest_trained(store):
    trained, other = ITEMS
    plan = plan_of(ITEMS, Engine(*epoch_of(other, 0), *epoch_of(other, 1), Trained(other, None)), store)
    plan.put(trained, lasting(2), None)
    ends = [event for event in swept(plan) if isinstance(event, Finished)]
    assert [(event.item, event.cached) for event in ends] == [(trained, True), (other, False)]
    assert plan.engine.asked == [other]
    assert [(event.item, event.cached) for event in swept(plan)] == [(item, True) for item in ITEMS]


def test_large_sweeps_keep_thinned_losses(monkeypatch):
    monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(module, "POINTS", 2)
    one = ITEMS[0]
    trained = Engine(*epoch_of(one, 0), *epoch_of(one, 1), Trained(one, None))
    curve = curves_of(swept(plan_of(ITEMS, trained, None)))[one]
    assert (curve.losses.tolist(), curve.every) == ([1.0, 0.5], 4)


def test_a_checkpoint_is_stored_without_an_event(store):
    one = ITEMS[0]
    events = swept(plan_of([one], Engine(*epoch_of(one, 0), Checkpoint(one, WEIGHTS)), store))
    assert not any(isinstance(event, Checkpoint | Finished) for event in events)
    assert [row["epochs"] for row in store.rows("parameters")] == [1]


@pytest.fixture
def others(monkeypatch):
    cores: list[float] = []

    monkeypatch.setattr(measurement, "LOOK_S", 0.0)
    monkeypatch.setattr(Watch, "so_far", lambda _: Disturbance(1.0, 0.0, cores.pop(0), 0))
    return cores


def test_a_curve_warns_of_other_busy_programs(store, others):
    one, other = ITEMS
    others += [1.5, 0.0, 0.0]  # when the first turn ends, then when each training ends
    turns = [*epoch_of(one, 0), Waiting(1), Ready(FACTS), *epoch_of(one, 1), Trained(one, None), *epoch_of(other, 0)]
    found = curves_of(swept(plan_of(ITEMS, Engine(*turns, Trained(other, None)), store)))
    (flag,) = found[one].warnings
    assert "other programs kept 1.5 cores busy" in flag
    assert found[other].warnings == (flag,), "they take turns with each other"
    kept = curves_of(swept(plan_of([one], Engine(), store)))
    assert kept[one].warnings == (flag,), "whenever it is shown"


def test_a_continued_curve_keeps_its_warnings(store, others):
    one = Item(Training(Network(()), epochs=2))
    others += [2.0, 0.0]
    short = Item(replace(one.training, epochs=1))
    swept(plan_of([short], Engine(*epoch_of(short, 0), Trained(short, WEIGHTS)), store))
    plan = plan_of([one], Engine(*epoch_of(one, 1), Trained(one, None)), store)
    assert plan.resume(one) is not None
    found = curves_of(swept(plan))
    assert len(found[one].epochs) == 2
    assert "kept 2.0 cores busy" in found[one].warnings[0]


@pytest.fixture(scope="module")
def alone(engine):
    return made(MIXED, engine, strategy="sequential")[1]


def assert_the_same(found, expected):
    assert sorted(found) == sorted(expected)
    for index, one in found.items():
        other = expected[index].curve
        assert [e.diverged_step for e in one.curve.epochs] == [e.diverged_step for e in other.epochs]
        if other.epochs[-1].diverged_step is None:
            np.testing.assert_allclose(one.curve.losses, other.losses, atol=1e-4)
            assert one.curve.epochs[-1].validation_accuracy == pytest.approx(
                other.epochs[-1].validation_accuracy, abs=2e-3
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["vmap", "padded", *(pytest.param(key, marks=pytest.mark.release) for key in ("processes", "sharded", "stacks"))],
)
def test_every_strategy_trains_the_same(engine, alone, strategy):
    events, found = made(MIXED, engine, strategy=strategy, max_waste=1.0)
    assert_the_same(found, alone)
    assert alone[4].curve.epochs[-1].diverged_step is not None, "one diverges, and the others are unharmed"
    assert {update.strategy for update in found.values()} == {strategy}
    stacked = found[0].curve.together
    assert stacked > 1 if STRATEGIES[strategy].stacked else stacked == 1
    assert any(isinstance(update, Picked) and update.strategy == strategy for update in events)


@pytest.mark.slow
@NEEDS_NUMBA
def test_training_a_core_each_equals_sequential_training(engine):
    items = [Item(training, Runtime("numba")) for training in MIXED]
    _, found = made(items, engine)
    assert_the_same(found, made(items, engine, strategy="sequential")[1])
    assert {update.strategy for update in found.values()} == {"cores"}


@pytest.mark.slow
def test_more_networks_than_memory_are_trained_in_parts(engine, monkeypatch):
    many = [Training(Network((4,)), float(rate), 4096, 1) for rate in np.linspace(0.01, 0.2, 9)]
    free_bytes = 5.5 * Shape.of([many[0].network]).place_bytes(4096) / module.MEMORY_SHARE
    monkeypatch.setattr(module, "usable_memory_bytes", lambda device: free_bytes)
    _, found = made(many, engine, strategy="vmap")
    assert len(found) == 9
    assert {update.curve.together for update in found.values()} == {5, 4}
    free_bytes = 1e4
    with pytest.raises(MemoryError, match="MB are free; choose a smaller one"):
        made(many, engine, strategy="vmap")


def test_parts_contain_every_training_once():
    limits = Limits(1e9, 4e6, 2, 0.4)
    devices_of_many = {"sequential": 0, "vmap": 1, "padded": 1, "sharded": 2}
    for key, n_devices in devices_of_many.items():
        plan = parts(STRATEGIES[key], MIXED, limits)
        assert Counter(training for part in plan for training in part.trainings) == Counter(MIXED)
        assert [part.devices for part in plan] == [n_devices if len(part.trainings) > 1 else 0 for part in plan]
        unlike = [part for part in plan if len({training.network for training in part.trainings}) > 1]
        assert bool(unlike) == STRATEGIES[key].padded, "only padding puts different networks into one program"


LIMITS = Limits(1e9, 4e6, 1, 0.4)
RATES = [Training(learning_rate=rate, epochs=4) for rate in np.geomspace(0.01, 0.3, 16)]


@pytest.fixture(params=[2, 16])
def cores(request, monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: request.param)
    return request.param


def test_auto_considers_only_strategies_that_differ(cores):
    def considered(trainings, limits=LIMITS):
        return list(pick(trainings, limits, "cpu", 0.0, processes=False).expected_s)

    assert considered([Training(batch_size=size) for size in (1, 32, 512)]) == ["sequential"], "no common program"
    assert considered(RATES) == ["sequential", "vmap"]
    assert considered(RATES, replace(LIMITS, n_devices=2)) == ["sequential", "vmap", "sharded"]
    assert considered([Training(Network((width,))) for width in (100, 128)]) == ["sequential", "padded"]


def test_auto_trains_all_networks_at_once_on_a_card():
    long = [replace(one, epochs=40) for one in RATES]
    picked = pick(long, replace(LIMITS, cache_bytes=CACHE_BYTES["gpu"]), "gpu")
    assert picked.strategy == "vmap"
    assert picked.expected_s["sequential"] / picked.expected_s["vmap"] > 6
    assert "processes" not in picked.expected_s


def test_auto_uses_processes_where_they_pay_for_their_start(cores):
    limits, few = replace(LIMITS, n_devices=cores), RATES[:4]
    assert pick([replace(one, epochs=100) for one in RATES], limits, "cpu").strategy == "processes"
    assert pick(RATES, limits, "cpu", processes=False).strategy == "sharded"
    assert pick(few, limits, "cpu", 0.0).strategy == "sharded", "their start takes longer"
    assert pick(few, limits, "cpu", 0.0, running=cores).strategy == "processes"
    large = [replace(one, batch_size=4096, epochs=40) for one in RATES[:2]]
    assert pick(large, limits, "cpu", 0.0).strategy == "sequential", "each uses all cores by itself"


@pytest.mark.slow
def test_auto_says_what_it_picked_and_measures_nothing(engine, store):
    for worth_s, words in ((None, "no other strategy would repay"), (0.0, "s expected; ")):
        options = {} if worth_s is None else {"worth_s": worth_s, "fresh": True}
        events, found = made(MIXED[:4], engine, store, strategy="auto", processes=False, **options)
        (picked,) = [update for update in events if isinstance(update, Picked)]
        assert words in picked.why
        assert picked.strategy == min(picked.expected_s, key=lambda key: picked.expected_s[key])
        assert len(found) == 4
    assert not store.records(Kind.STEP_TIME)
