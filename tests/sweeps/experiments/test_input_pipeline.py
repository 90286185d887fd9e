"""Pipelines: which are measured, what is kept of them, and what one that raises costs."""

from dataclasses import replace

import pytest

from lib.labs.operations_and_feeds.feeds import all_figures, known
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments import input_pipeline
from lib.sweeps.experiments.input_pipeline import PipelineTask, Raised, measure, tasks
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.rows import check_kind
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, TrainingFailed
from lib.sweeps.workers.queue import Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.input_pipeline import QUANTITIES
from lib.timing.profiling.request import FEEDS, Pipeline

TENSORFLOW = Runtime("keras-tensorflow")
MINE = Pipeline()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setattr(input_pipeline, "unavailable", lambda runtime: "no" if runtime.backend == "torch" else None)


def measured(*seconds):
    return Measurement(seconds, 1, Ended.CAP)


class StandIn(Engine):
    """An engine that answers every examination at once; the feeds in `raising` raise, in a worker."""

    def __init__(self, raising=()):
        super().__init__()
        self.asked, self.raising = [], raising

    def examine(self, runtime, examination, cancel, request=None):
        self.asked.append((examination.kind, runtime, examination.pipelines))
        for index, pipeline in enumerate(examination.pipelines):
            if pipeline.feed in self.raising:
                raise TrainingFailed("reading a batch raised ValueError: image 3 is damaged")
            for name in QUANTITIES:
                yield Measured(f"{index}/{name}", measured(*[1e-3] * 9), 1.0)


def run(todo, engine, store, then=lambda: None, cancel=None):
    return list(measure(todo, then, engine, store, cancel or Cancel(), Request()))


def test_every_feed_that_can_run_here_is_a_task_of_its_own(without_torch):
    found = tasks(MINE, "cpu")
    assert [task.pipelines[0].feed for task in found] == list(FEEDS["keras-tensorflow"])
    assert all(replace(task.pipelines[0], feed=MINE.feed) == MINE for task in found)
    assert {task.runtime for task in found} == {TENSORFLOW}
    assert {task.runtime.device for task in tasks(MINE, "gpu")} == {"gpu"}


def test_what_is_measured_is_kept_and_found_again(without_torch, store):
    todo = tasks(MINE, "cpu")
    run(todo, StandIn(), store)
    assert set(known(todo, store.records(Kind.PIPELINE))) == {task.pipelines[0] for task in todo}
    for other in (
        replace(MINE, rows=100),
        replace(MINE, batch_size=128),
        replace(MINE, preprocessing_ms=0.0),
        replace(MINE, holds_lock=True),
    ):
        assert known(tasks(other, "cpu"), store.records(Kind.PIPELINE)) == {}
    assert {one.pipeline for one in all_figures(store.records(), "cpu")} == {task.pipelines[0] for task in todo}
    assert all_figures(store.records(), "gpu") == []
    for record in store.records():
        check_kind(record)


def test_one_that_raises_is_marked_and_the_rest_goes_on(without_torch, store):
    todo = tasks(MINE, "cpu")
    events = run(todo, StandIn(raising={"prefetch"}), store)
    (raised,) = [event for event in events if isinstance(event, Raised)]
    assert raised == Raised(replace(MINE, feed="prefetch"), "reading a batch raised ValueError: image 3 is damaged")
    found = known(todo, store.records(Kind.PIPELINE))
    assert {pipeline.feed for pipeline in found} == set(FEEDS["keras-tensorflow"]) - {"prefetch"}


def test_a_library_that_raises_twice_in_a_row_is_not_asked_again(without_torch, store):
    engine = StandIn(raising=set(FEEDS["keras-tensorflow"]))
    first, second, *others = [
        event.why for event in run(tasks(MINE, "cpu"), engine, store) if isinstance(event, Raised)
    ]
    assert first == second == "reading a batch raised ValueError: image 3 is damaged"
    assert set(others) == {f"not tried any more after 2 failures in a row: {first}"}
    assert len(engine.asked) == 2


def test_two_are_measured_beside_each_other_and_kept_apart_from_each_alone(store):
    pair = PipelineTask(TENSORFLOW, (MINE, replace(MINE, feed="autotune")))
    engine = StandIn()
    run([], engine, store, then=lambda: pair)
    assert engine.asked == [("pipelines", TENSORFLOW, pair.pipelines)]
    first, second = pair.found(store.records())
    assert (first.pipeline, second.pipeline) == pair.pipelines
    assert PipelineTask(TENSORFLOW, (MINE,)).found(store.records()) == ()
    assert PipelineTask(TENSORFLOW, (MINE, replace(MINE, feed="cache"))).found(store.records()) == ()


def test_a_stop_leaves_out_what_has_not_begun(without_torch, store):
    cancel, engine = Cancel(), StandIn()
    cancel.set()
    assert run(tasks(MINE, "cpu"), engine, store, cancel=cancel) == []
    assert engine.asked == []
