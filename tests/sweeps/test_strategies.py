"""The strategies: the same results by each, and what each does when something goes wrong."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.packing import Shape
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network, Training
from lib.sweeps import strategies
from lib.sweeps import sweep as module
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import AUTO, CACHE_BYTES, STRATEGIES, Limits, Picked, parts, pick
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel
from tests.sweeps.sweeping import MIXED, by_place, made

NUMBA = Runtime("numba")


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
@pytest.mark.skipif(unavailable(NUMBA) is not None, reason="Numba is not installed")
def test_a_core_each_trains_the_same_as_one_after_another(engine):
    items = [Item(training, NUMBA) for training in MIXED]
    found = {
        strategy: by_place(items, updates(items, engine, None, Cancel(), Options(strategy)))
        for strategy in ("sequential", AUTO)
    }
    assert_the_same(found[AUTO], found["sequential"])
    assert {update.strategy for update in found[AUTO].values()} == {"cores"}


@pytest.mark.slow
def test_more_models_than_memory_are_made_in_parts(engine, monkeypatch):
    many = [Training(Network((4,)), float(rate), 4096, 1) for rate in np.linspace(0.01, 0.2, 9)]
    free_bytes = 5.5 * Shape.of([many[0].network]).place_bytes(4096) / module.MEMORY_SHARE
    monkeypatch.setattr(module, "usable_memory_bytes", lambda device: free_bytes)
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


LIMITS = Limits(1e9, 4e6, 1, 0.4)
RATES = [Training(learning_rate=rate, epochs=4) for rate in np.geomspace(0.01, 0.3, 16)]


@pytest.fixture(params=[2, 16])
def cores(request, monkeypatch):
    monkeypatch.setattr(strategies, "usable_cores", lambda: request.param)
    return request.param


def test_those_are_considered_that_differ(cores):
    def considered(trainings, limits=LIMITS):
        return list(pick(trainings, limits, "cpu", 0.0, processes=False).expected_s)

    assert considered([Training(batch_size=size) for size in (1, 32, 512)]) == ["sequential"], "no common program"
    assert considered(RATES) == ["sequential", "vmap"]
    assert considered(RATES, replace(LIMITS, n_devices=2)) == ["sequential", "vmap", "sharded"]
    assert considered([Training(Network((width,))) for width in (100, 128)]) == ["sequential", "padded"]


def test_a_card_is_given_all_at_once():
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
