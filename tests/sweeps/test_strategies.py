"""The strategies: the same results by each, and what each does when something goes wrong."""

import concurrent.futures
import multiprocessing
from collections import Counter

import numpy as np
import pytest

from lib.model.backends.packing import Shape
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network, Training
from lib.sweeps import plan as plan_module
from lib.sweeps.events import Picked
from lib.sweeps.experiments.results import Results
from lib.sweeps.strategies import AUTO, STRATEGIES, Limits, parts
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Item
from lib.timing import disturbance
from lib.timing.disturbance import Disturbance, Watch
from tests.sweeps.sweeping import MIXED, by_place, made

NUMBA = Runtime("numba")


@pytest.fixture(scope="module")
def alone(engine):
    return made(MIXED, engine, strategy="sequential")[1]


@pytest.fixture
def executor():
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as found:
        yield found


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
@pytest.mark.skipif(unavailable(NUMBA) is not None, reason="Numba is not installed")
def test_a_core_each_trains_the_same_as_one_after_another(engine):
    items = [Item(training, NUMBA) for training in MIXED]
    found = {
        strategy: by_place(items, updates(items, engine, None, Cancel(), Options(strategy)))
        for strategy in ("sequential", AUTO)
    }
    assert_the_same(found[AUTO], found["sequential"])
    assert {update.strategy for update in found[AUTO].values()} == {"cores"}


@pytest.mark.release
def test_any_executor_will_do(engine, alone, executor):
    items = [Item(training) for training in MIXED]
    events = updates(items, engine, None, Cancel(), Options(executor=executor, max_waste=1.0))
    assert_the_same(by_place(items, events), alone)


@pytest.mark.slow
def test_more_models_than_memory_are_made_in_parts(engine, monkeypatch):
    many = [Training(Network((4,)), float(rate), 4096, 1) for rate in np.linspace(0.01, 0.2, 9)]
    free_bytes = 5.5 * Shape.of([many[0].network]).place_bytes(4096) / plan_module.MEMORY_SHARE
    monkeypatch.setattr(plan_module, "usable_memory_bytes", lambda device: free_bytes)
    _, found = made(many, engine, strategy="vmap")
    assert len(found) == 9
    assert {update.curve.together for update in found.values()} == {5, 4}
    free_bytes = 1e4
    with pytest.raises(MemoryError, match="MB are free; choose a smaller one"):
        made(many, engine, strategy="vmap")


def test_parts_hold_every_training_once():
    limits = Limits(1e9, 4e6, 2, 0.4)
    devices_of_many = {"sequential": 0, "vmap": 1, "padded": 1, "sharded": 2}
    for key, n_devices in devices_of_many.items():
        plan = parts(STRATEGIES[key], MIXED, limits)
        assert Counter(training for part in plan for training in part.trainings) == Counter(MIXED)
        assert [part.devices for part in plan] == [n_devices if len(part.trainings) > 1 else 0 for part in plan]
        unlike = [part for part in plan if len({training.network for training in part.trainings}) > 1]
        assert bool(unlike) == STRATEGIES[key].padded, "only padding puts different networks into one program"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", pytest.param("processes", marks=pytest.mark.release)])
def test_what_was_timed_beside_other_work_says_so_and_by_what(engine, monkeypatch, strategy):
    def exit_(watch, *_):
        watch.disturbance = Disturbance(1.0, 0.0, 1.5, 0)

    monkeypatch.setattr(disturbance, "LOOK_S", 0.0)
    monkeypatch.setattr(Watch, "__exit__", exit_)
    training = Training(Network((8,)), 0.1, 4096, 1)
    events, found = made([training], engine, strategy=strategy)
    results = Results([Item(training)], ["a"])
    for update in events:
        results.add(update)
    assert "kept 1.5 cores busy" in " ".join(found[0].curve.warnings)
    assert results.disturbed == found[0].curve.warnings
    assert results.notices == (), "it is no fault"
