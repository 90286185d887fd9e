import time
from dataclasses import replace

import pytest

from lib.model.backends.registry import Runtime, unavailable
from lib.sweeps.experiments import parallel_sweeps
from lib.sweeps.experiments.parallel_sweeps import Point, compare, compared, methods, saturation
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Disturbance


def jax_method(key):
    return next(method for method in methods() if method.key == key)


@pytest.fixture
def asked(monkeypatch):
    """The trainings of each sweep; they run with 4,096 images a step, which takes less time."""
    sweeps, real = [], parallel_sweeps.updates

    def updates(items, *rest):
        sweeps.append([replace(item.training, epochs=1) for item in items])
        return real([replace(item, training=replace(item.training, batch_size=4096)) for item in items], *rest)

    monkeypatch.setattr(parallel_sweeps, "updates", updates)
    return sweeps


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["vmap", *(pytest.param(key, marks=pytest.mark.release) for key in ("processes", "sharded", "stacks"))]
)
def test_a_sweep_is_timed_as_a_whole_and_stored(engine, store, monkeypatch, key):
    monkeypatch.setattr(parallel_sweeps, "RATES", (0.1, 0.3))
    began = time.perf_counter()
    events = list(compare([jax_method(key)], 1, engine, store, Cancel(), Request()))
    (one,) = [item for item in events if isinstance(item, Record)]
    assert one.subject["method"] == key
    assert 0 < one.measurement.median_s < time.perf_counter() - began, "seconds, of those that passed here"
    assert any(isinstance(item, Note) and "%" in item.text for item in events)
    assert compared(store, 1)[key].id == one.id
    assert compared(store, 2) == {}


@pytest.mark.slow
def test_nothing_is_compiled_while_a_sweep_is_timed(engine, store, asked, monkeypatch):
    monkeypatch.setattr(parallel_sweeps, "RATES", (0.1, 0.3))
    list(compare([jax_method("vmap")], 2, engine, store, Cancel(), Request()))
    warm_up, *timed = asked
    assert timed
    assert all(one == warm_up for one in timed)


@pytest.mark.release
@pytest.mark.parametrize(("flags", "again"), [([], False), (["other programs kept 1.0 cores busy"], True)])
def test_saturation_points_are_measured_again_if_disturbed(engine, store, monkeypatch, flags, again):
    monkeypatch.setattr(Disturbance, "flags", property(lambda _: flags))

    def points(most):
        events = saturation(most, 4096, engine, store, Cancel(), Request(), "cpu", 1e10)
        return [item for item in events if isinstance(item, Point)]

    first = points(4)
    assert {(p.strategy, p.count) for p in first} >= {("sequential", 1), ("vmap", 2), ("vmap", 4)}
    assert all(p.low_s <= p.each_s <= p.high_s for p in first)
    n_records = len(store.records(Kind.STEP_TIME))
    points(4)
    assert (len(store.records(Kind.STEP_TIME)) > n_records) == again


def test_points_beyond_the_memory_say_why(engine, store):
    events = saturation(4, 4096, engine, store, Cancel(), Request(), "cpu", 5e7)
    refused = [one.why_not for one in events if isinstance(one, Point) and one.why_not]
    assert refused
    assert "GB free" in refused[0]


def test_methods_include_a_usable_card(monkeypatch):
    if unavailable(Runtime(device="gpu")) is not None:
        assert not any(method.key.endswith("-gpu") for method in methods())
    monkeypatch.setattr(parallel_sweeps, "unavailable", lambda _: None)
    on_card = {method.key: method for method in methods() if method.runtime.device == "gpu"}
    assert set(on_card) == {"sequential-gpu", "vmap-gpu"}
    assert on_card["vmap-gpu"].label == "JAX, vmap, GPU"
