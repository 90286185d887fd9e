"""The notebook on sweeps: what is measured for it, and what its sentences and charts say of that."""

import time

import pytest

from lib.backends.registry import Runtime, unavailable
from lib.experiments import parallel_sweeps
from lib.experiments.parallel_sweeps import (
    Compared,
    Mixed,
    Point,
    compare,
    compared,
    different,
    methods,
    mixed,
    saturates_at,
    saturation,
)
from lib.spec import Network
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.disturbance import Disturbance
from lib.timing.measurement import Ended, Measurement
from lib.views import parallel_sweeps as view
from lib.workers.cancel import Cancel
from lib.workers.notes import Note
from lib.workers.queue import Request


def jax_method(key):
    return next(method for method in methods() if method.key == key)


@pytest.mark.parametrize("key", ["vmap", "processes", "sharded", "stacks"])
def test_a_sweep_is_timed_whole_and_kept(engine, tmp_path, monkeypatch, key):
    monkeypatch.setattr(parallel_sweeps, "RATES", (0.1, 0.3))
    store, began = Store(tmp_path / "results.sqlite"), time.perf_counter()
    events = list(compare([jax_method(key)], 1, engine, store, Cancel(), Request()))
    (one,) = [item for item in events if isinstance(item, Compared)]
    assert one.method == key
    assert 0 < one.record.measurement.median_s < time.perf_counter() - began, "seconds, of those that passed here"
    assert any(isinstance(item, Note) and "%" in item.text for item in events)
    assert compared(store, 1)[key].id == one.record.id
    assert compared(store, 2) == {}


@pytest.mark.parametrize(("flags", "again"), [([], False), (["other programs kept 1.0 cores busy"], True)])
def test_points_for_more_and_more_networks_are_measured_until_nothing_disturbs(
    engine, tmp_path, monkeypatch, flags, again
):
    """Whatever else this machine does meanwhile: the watch says what this test wants it to."""
    monkeypatch.setattr(Disturbance, "flags", property(lambda _: flags))
    store = Store(tmp_path / "results.sqlite")

    def points(most):
        events = saturation(most, 4096, engine, store, Cancel(), Request(), "cpu", 1e10)
        return [item for item in events if isinstance(item, Point)]

    first = points(4)
    assert {(p.strategy, p.count) for p in first} >= {("sequential", 1), ("vmap", 2), ("vmap", 4)}
    assert all(p.low_s <= p.each_s <= p.high_s for p in first)
    n_records = len(store.records(Kind.STEP_TIME))
    points(4)
    assert (len(store.records(Kind.STEP_TIME)) > n_records) == again


def test_what_does_not_fit_into_memory_is_said(engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    events = saturation(4, 4096, engine, store, Cancel(), Request(), "cpu", 5e7)
    points = [item for item in events if isinstance(item, Point)]
    refused = [p for p in points if p.why_not]
    assert refused
    assert "GB free" in refused[0].why_not
    assert "Not tried" in view.saturation_sentence(points)


def test_eight_networks_from_alike_to_different(engine, tmp_path):
    assert len({n.hidden for n in different(0.0)}) == 1
    assert [different(1.0)[0].hidden, different(1.0)[-1].hidden] == [(16,), (512,)]
    store = Store(tmp_path / "results.sqlite")
    found = [item for item in mixed(0.2, 4096, engine, store, Cancel(), Request()) if isinstance(item, Mixed)]
    assert [m.strategy for m in found][:3] == ["sequential", "vmap", "padded"]
    assert 0 < found[2].wasted < 0.5
    assert found[2].programs == 1
    assert all(m.all_s > 0 for m in found)


def test_sentences_say_what_the_figures_show():
    def record(seconds):
        return Record(Kind.SWEEP, {}, (seconds,), 1, "CAP")

    known = {
        "sequential": record(10.0),
        "vmap": record(5.0),
        "keras-sequential": record(100.0),
        "keras-processes": record(50.0),
    }
    text = view.comparison_sentence(known, 3)
    assert "Quickest: vmap, 5.0\u202fs" in text
    assert "20.0 times faster than Keras one after another" in text
    assert "10.0 times faster than Keras in one process per core" in text
    assert "JAX one after another is 10.0 times faster already" in text
    assert "2.0 times faster still" in text
    assert "20.0 ×" in view.published_table(known)
    assert "not measured yet" in view.published_table({})
    points = [Point("sequential", "cpu", 1, 0.2, 0), Point("vmap", "cpu", 2, 0.1, 0), Point("vmap", "cpu", 4, 0.16, 0)]
    text = view.saturation_sentence(points)
    assert "Vmap is 2 times faster than one after another and gains nothing beyond 2 networks" in text
    assert "of 4 each takes 1.6 times as long as at best" in text
    assert saturates_at(points[1:]) == 2
    text = view.mixed_sentence([Mixed("sequential", 1.0, 8, 0.0), Mixed("padded", 2.0, 1, 0.5)])
    assert (
        text
        == "Padding is 50% of the arithmetic, and one padded program is 2 times slower than one network after another."
    )
    assert view.mixed_sentence([]) == view.saturation_sentence([]) == ""


@pytest.mark.parametrize(
    "flags", [[], ["other programs kept 1.5 cores busy: close them", "other programs kept 2.0 cores busy: close them"]]
)
def test_disturbance_is_said_once(flags):
    assert view.disturbance(flags).count("Disturbed") == min(len(flags), 1)


def test_charts_of_nothing_and_of_something():
    for points in (
        [],
        [Point("vmap", "cpu", 2, 0.1, 0, "", 0.09, 0.2), Point("sequential", "cpu", 1, 0.2, 0, "", 0.2, 0.2)],
    ):
        assert view.saturation_chart(points, 64).spec["layer"]
    for found in ([], [Mixed("padded", 1.0, 1, 0.2)]):
        assert view.mixed_chart(found).spec["layer"]
    assert view.comparison_chart(methods(), {}).spec["layer"]
    figure = view.shapes_figure([Network((64,)), Network((128,))])
    assert "width:50.0%" in figure
    assert "padded to 128" in figure


def test_a_card_is_timed_too_and_named(monkeypatch):
    if unavailable(Runtime(device="gpu")) is not None:
        assert not any(method.key.endswith("-gpu") for method in methods())
    monkeypatch.setattr(parallel_sweeps, "unavailable", lambda _: None)
    on_card = {method.key: method for method in methods() if method.runtime.device == "gpu"}
    assert set(on_card) == {"sequential-gpu", "vmap-gpu"}
    assert on_card["vmap-gpu"].label == "JAX, vmap, GPU"
    known = {
        key: Record.of(Kind.SWEEP, {}, Measurement((s,), 1, Ended.CAP)) for key, s in (("vmap-gpu", 1.0), ("vmap", 2.0))
    }
    assert view.comparison_sentence(known, 3).startswith("Quickest: vmap on the graphics card, 1.0")
