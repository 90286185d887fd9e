"""Pipelines: which are measured, what is kept of them, what one that raises costs, and what would help."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.backends.registry import Runtime
from lib.experiments import input_pipeline
from lib.experiments.input_pipeline import (
    MODELS,
    NETWORK,
    SIZES,
    Bound,
    Figures,
    PipelineTask,
    Raised,
    check_memory,
    difference,
    known,
    measure,
    remedy,
    tasks,
)
from lib.profiling.fresh_model import FRESH, REPEATED
from lib.profiling.input_pipeline import QUANTITIES
from lib.profiling.request import FEEDS, Pipeline
from lib.storage.records import Kind
from lib.storage.rows import check_kind
from lib.storage.store import Store
from lib.timing.comparison import Verdict
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Measured, TrainingFailed
from lib.workers.notes import Note
from lib.workers.queue import Request

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


def figures(pipeline, both_s, waits, spread=0.01):
    """Nine rounds around these seconds, of which this share is waited."""
    rounds = [both_s * (1 + spread * (n % 3 - 1)) for n in range(9)]
    data_s, step_s = waits * both_s, (1 - waits) * both_s
    nine = {"data": [data_s] * 9, "step": [step_s] * 9, "both": rounds, "waits": [waits * s for s in rounds]}
    return Figures(
        pipeline, **{name: measured(*s) for name, s in nine.items()}, preprocessing=measured(2e-4), first=measured(0.1)
    )


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
    assert {one.pipeline for one in input_pipeline.all_figures(store.records(), "cpu")} == {
        task.pipelines[0] for task in todo
    }
    assert input_pipeline.all_figures(store.records(), "gpu") == []
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


@given(st.integers(10, 100_000), st.floats(1e6, 1e12))
def test_rows_beyond_memory_are_refused_in_a_sentence(rows, free_bytes):
    pipeline = Pipeline(rows=rows, batch_size=10)
    if 2 * pipeline.needed_bytes > free_bytes:
        with pytest.raises(ValueError, match=rf"^rows: expected .* got {rows:,} rows, .*; choose fewer rows$"):
            check_memory(pipeline, free_bytes)
    else:
        check_memory(pipeline, free_bytes)


@pytest.mark.parametrize(
    ("waits", "bound"), [(0.8, Bound.DATA), (0.21, Bound.DATA), (0.1, Bound.STEP), (0.0, Bound.STEP)]
)
def test_the_share_that_is_waited_says_what_bounds_it(waits, bound):
    found = figures(MINE, 1e-2, waits)
    assert found.share[0] == pytest.approx(waits)
    assert found.bound is bound


def test_too_few_rounds_tell_nothing():
    found = replace(figures(MINE, 1e-2, 0.8), both=measured(1e-2, 1e-2, 1e-2), waits=measured(8e-3, 8e-3, 8e-3))
    assert found.share[1:] == (0.0, 1.0)
    assert found.bound is Bound.UNCLEAR
    assert remedy(MINE, {MINE: found}, True) is None


def as_known(*found):
    return {one.pipeline: one for one in found}


def test_the_fastest_feed_of_the_same_library_helps_who_is_bound_by_data():
    slow = figures(MINE, 1e-2, 0.8)
    fast, cached = (figures(replace(MINE, feed=feed), s, 0.3) for feed, s in (("autotune", 5e-3), ("cache", 2e-3)))
    torch = figures(replace(MINE, feed="loader-2"), 1e-4, 0.1)
    assert remedy(MINE, as_known(slow, fast, cached, torch), False) == fast.pipeline
    assert remedy(MINE, as_known(slow, fast, cached, torch), True) == cached.pipeline
    as_slow = figures(replace(MINE, feed="prefetch"), 1e-2, 0.8, spread=0.2)
    assert remedy(MINE, as_known(slow, as_slow), True) is None, "not certainly faster"
    assert remedy(MINE, {}, True) is None


def test_preprocessing_that_holds_the_lock_is_replaced_where_no_feed_helps():
    mine = replace(MINE, holds_lock=True)
    alone = as_known(figures(mine, 1e-2, 0.9))
    assert remedy(mine, alone, False) == replace(mine, feed="autotune", holds_lock=False)
    loader = replace(mine, feed="loader-0")
    assert remedy(loader, as_known(figures(loader, 1e-2, 0.9)), False) == replace(
        loader, feed="loader-2", holds_lock=False
    )


@pytest.mark.parametrize("rows", [10, 100, 1_000])
def test_a_larger_batch_helps_who_is_bound_by_the_step(rows):
    mine = Pipeline(rows=rows, batch_size=10, preprocessing_ms=0.0)
    wanted = next((size for size in SIZES if 10 < size <= rows), None)
    found = remedy(mine, as_known(figures(mine, 1e-3, 0.05)), False)
    assert found == (None if wanted is None else replace(mine, batch_size=wanted))


def test_a_larger_batch_that_would_take_seconds_is_not_offered():
    mine = Pipeline(rows=10_000, batch_size=512, preprocessing_ms=5.0)
    assert remedy(mine, as_known(figures(mine, 3.0, 0.05)), False) is None


@pytest.mark.parametrize(("both_s", "verdict"), [(4e-3, Verdict.SAME), (2e-3, Verdict.FASTER), (8e-3, Verdict.SLOWER)])
def test_batches_of_different_size_are_compared_by_the_image(both_s, verdict):
    small, large = figures(MINE, 1e-3, 0.5), figures(replace(MINE, batch_size=128), both_s, 0.5)
    for paired in (False, True):
        assert difference(large, small, paired).verdict is verdict


def test_placement_is_kept_as_numbers(store, monkeypatch):
    rows = {"MatMul/CPU/CPU GPU": 5.0, "gpus": 0.0, "cuda": 0.0}
    engine = Engine()
    monkeypatch.setattr(engine, "examine", lambda *_: (Measured(name, measured(n), 1.0) for name, n in rows.items()))
    list(input_pipeline.measure_placement("cpu", engine, store, Cancel(), Request()))
    assert input_pipeline.placement(store.records(), "cpu") == rows
    assert input_pipeline.placement(store.records(), "gpu") == {}


def test_cards_without_cuda_are_not_registered(monkeypatch):
    for cards, why, expected in (((), "no", (0, None)), (("a",), "no CUDA", (1, 0)), (("a",), None, (1, None))):
        monkeypatch.setattr(input_pipeline, "cards", lambda cards=cards: cards)
        monkeypatch.setattr(input_pipeline, "unavailable", lambda _, why=why: why)
        assert input_pipeline.gpus() == expected


class FreshProcess:
    """In place of a process: sends these rows, and then ends as it is told."""

    def __init__(self, rows):
        self.rows, self.killed = list(rows), False
        self.connection = self

    def poll(self, _s):
        return True

    def recv(self):
        if not self.rows:
            raise EOFError
        return self.rows.pop(0)

    def kill(self):
        self.killed = True


@pytest.mark.parametrize(("complete", "cancelled"), list(product([True, False], [True, False])))
def test_models_are_built_in_fresh_processes(store, monkeypatch, complete, cancelled):
    rows = [*((name, (0.1,)) for name in FRESH), *((name, (0.1, 0.2, 0.3)) for name in REPEATED)]
    made, cancel = [], Cancel()

    def process(*_):
        made.append(FreshProcess([*rows, None] if complete else rows[:2]))
        return made[-1]

    monkeypatch.setattr(input_pipeline, "Process", process)
    if cancelled:
        cancel.set()
    events = input_pipeline.measure_models(MODELS, "cpu", Engine(), store, cancel, Request())
    if complete or cancelled:
        records = [event for event in events if not isinstance(event, Note)]
        assert len(records) == (0 if cancelled else len(rows) * len(MODELS))
        found = input_pipeline.models(store.records(), "cpu")
        assert list(found) == ([] if cancelled else list(MODELS))
        assert cancelled or found[NETWORK]["clone again"].median_s == 0.2
    else:
        with pytest.raises(TrainingFailed, match="ended after import, device"):
            list(events)
        assert input_pipeline.models(store.records(), "cpu") == {}
    assert all(one.killed for one in made)
