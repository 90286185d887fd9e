from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.labs.operations_and_feeds.feeds import all_figures, known
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments import single_operations as single
from lib.sweeps.experiments.results import BackgroundTask
from lib.sweeps.experiments.single_operations import OperationPoint, OperationTask, measure, pipeline_tasks, predicted_s
from lib.sweeps.storage.records import Kind, Record, check_kind
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, TrainingFailed, Waiting
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import QUANTITIES
from lib.timing.profiling.request import FEEDS, WAITED, OperationRequest, Pipeline

NUMPY, JAX, CARD = Runtime("numpy"), Runtime(), Runtime(device="gpu")
PLENTY = {"cpu": 1e12, "gpu": 1e12}.__getitem__


def of_seconds(seconds):
    return Measurement(tuple(seconds * (1 + 0.001 * k) for k in range(9)), 1, Ended.CAP)


class StandIn(Engine):
    def __init__(self, fails=()):
        super().__init__()
        self.asked, self._fails = [], dict(fails)

    def examine(self, runtime, examination, cancel, request=None):
        size = examination.operation.size if examination.operation else 0  # 0: the peak rates
        self.asked += [(runtime.backend, size)] if size else []
        if (runtime.backend, size) in self._fails:
            raise self._fails[runtime.backend, size]
        if size:
            yield Measured(WAITED, of_seconds((size / 1000) ** 3), 2.0 * size**3)


def run(todo, store, engine, known=(), free=PLENTY):
    events = measure(todo, dict(known), engine, store, Cancel(), Request(), free)
    return [event for event in events if isinstance(event, OperationPoint)]


def test_small_sizes_and_fast_starting_libraries_come_first():
    runtimes = [Runtime("keras-tensorflow"), Runtime("torch"), JAX, NUMPY]
    order = [(task.library, task.operation.size) for task in single.products(runtimes, 2, "float32")]
    assert order[:4] == [("jax", 1), ("numpy", 1), ("jax", 2), ("numpy", 2)]
    assert order[4:] == [("torch", 1), ("torch", 2), ("keras-tensorflow", 1), ("keras-tensorflow", 2)]


def test_measured_points_are_stored_and_not_repeated(store):
    todo, engine = single.products([NUMPY], 8, "float32"), StandIn()
    first = run(todo, store, engine)
    assert [one.size for one in first] == [1, 2, 4, 8]
    more = single.products([NUMPY], 16, "float32")
    known = single.found(more, store.records(Kind.OPERATION))
    assert len(known) == 4, "a slider moved on reuses the stored points"
    run(more, store, engine, known)
    assert engine.asked == [("numpy", size) for size in (1, 2, 4, 8, 16)]
    assert single.found(single.products([NUMPY], 8, "float64"), store.records(Kind.OPERATION)) == {}
    assert single.found(single.products([JAX], 8, "float32"), store.records(Kind.OPERATION)) == {}
    assert single.found([], []) == {}


def test_sizes_predicted_to_take_too_long_are_refused(store):
    engine = StandIn()
    points = run(single.products([NUMPY], 4096, "float32"), store, engine)
    assert max(size for _, size in engine.asked) == 1024
    assert [one.size for one in points if one.why_not] == [2048, 4096]
    assert points[-1].predicted_s == pytest.approx(4.096**3, rel=0.01)
    assert "the limit is 30 s" in points[-1].why_not
    assert points[-1].records == {}


def test_sizes_beyond_the_memory_are_refused_before_allocating(store):
    engine = StandIn()
    points = run(single.products([NUMPY], 1024, "float32"), store, engine, free=lambda _: 1e6)
    assert [one.size for one in points if not one.why_not] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert "GB of memory, of which 0.001 GB are free" in points[-1].why_not
    assert len(engine.asked) == 9, "no worker hears of the others"


@given(st.integers(1, 2**15), st.sampled_from(["float64", "float32", "float16"]), st.sampled_from([NUMPY, JAX, CARD]))
def test_the_memory_estimate_covers_operands_and_result(size, precision, runtime):
    operation = OperationRequest("product", size, precision)
    least = 3 * size**2 * single.ITEM_BYTES[precision]
    assert all(needed >= least for needed in single.needed_bytes(OperationTask(runtime, operation)).values())


def test_a_point_out_of_memory_is_marked_and_the_rest_continues(store):
    full = TrainingFailed("there is not enough memory for this training; choose a smaller network or batch")
    engine = StandIn({("jax-epoch", 4): full})
    points = run(single.products([JAX, NUMPY], 8, "float32"), store, engine)
    (marked,) = [one for one in points if one.why_not]
    assert (marked.task.runtime, marked.size) == (JAX, 4)
    assert marked.why_not == "there is not enough memory"
    assert ("jax-epoch", 8) in engine.asked
    assert len(points) == 8


def test_missing_peak_rates_are_reported_and_points_are_kept(store):
    engine = StandIn({("numpy", 0): TrainingFailed("The worker ended.")})
    todo = single.products([NUMPY, JAX], 4, "float32")
    task = BackgroundTask(lambda: measure(todo, {}, engine, store, Cancel(), Request(), PLENTY), Cancel())
    assert task.wait_for_end(20)
    now = task.view()
    assert len([one for one in now.items if isinstance(one, OperationPoint) and not one.why_not]) == len(todo)
    assert now.problem == "NumPy: The worker ended."


def test_a_library_that_fails_twice_in_a_row_is_not_asked_again(store):
    engine = StandIn({("numpy", size): TrainingFailed("The worker ended.") for size in (2, 4, 8, 16)})
    points = run(single.products([NUMPY], 16, "float32"), store, engine)
    assert [size for _, size in engine.asked] == [1, 2, 4]
    given_up = "no longer tried after 2 failures in a row: The worker ended"
    assert [one.why_not for one in points][1:] == ["The worker ended"] * 2 + [given_up] * 2
    assert all(one.predicted_s for one in points[1:])


def test_other_runs_of_a_viewer_do_not_interrupt_its_sizes(store):
    engine = StandIn()
    events = measure(single.products([NUMPY], 4, "float32"), {}, engine, store, Cancel(), Request("me"), PLENTY)
    next(one for one in events if isinstance(one, OperationPoint))
    with engine.turn(Request("me")) as later:
        assert next(engine.take(later, Cancel())) == Waiting(1)
    assert len([one for one in events if isinstance(one, OperationPoint)]) == 2


def test_a_stop_ends_measuring_and_keeps_stored_points(store):
    cancel = Cancel()
    todo = single.products([NUMPY], 8, "float32")
    events = measure(todo, {}, StandIn(), store, cancel, Request(), PLENTY)
    while not isinstance(next(events), OperationPoint):
        pass
    cancel.set()
    assert [one for one in events if isinstance(one, OperationPoint)] == []
    assert len(store.records(Kind.OPERATION)) == 1


@pytest.mark.parametrize(
    ("runtime", "precision", "words"),
    [
        (NUMPY, "bfloat16", "NumPy has no bfloat16"),
        (NUMPY, "tf32", "only GPUs"),
        (CARD, "tf32", "only GPUs"),
        (Runtime(device="gpu", precision="tf32"), "tf32", ""),
        (JAX, "bfloat16", ""),
    ],
)
def test_unsupported_precisions_are_refused(runtime, precision, words):
    refusal = single.refused(OperationTask(runtime, OperationRequest("product", 4, precision)), [], PLENTY)
    assert bool(refusal) == bool(words)
    assert refusal is None or words in refusal.why_not


@pytest.mark.parametrize(("name", "times"), [("product", 8), ("sine", 2)])
def test_predictions_scale_with_the_arithmetic(name, times):
    assert predicted_s(OperationRequest(name, 64), []) is None
    task = OperationTask(NUMPY, OperationRequest(name, 32))
    record = Record.of(Kind.OPERATION, task.subject | {"name": WAITED, "work": 1.0}, of_seconds(1e-3))
    known = OperationPoint(task, {WAITED: record})
    assert predicted_s(OperationRequest(name, 64), [known]) == pytest.approx(times * 1e-3, rel=0.01)


TENSORFLOW = Runtime("keras-tensorflow")
MINE = Pipeline()


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setattr(single, "unavailable", lambda runtime: "no" if runtime.backend == "torch" else None)


class FeedEngine(Engine):
    def __init__(self, raising=""):
        super().__init__()
        self.raising = raising

    def examine(self, runtime, examination, cancel, request=None):
        if examination.pipeline is not None and examination.pipeline.feed == self.raising:
            raise TrainingFailed("reading a batch raised ValueError: image 3 is damaged")
        for name in QUANTITIES:
            yield Measured(f"0/{name}", of_seconds(1e-3), 1.0)


def fed(todo, engine, store):
    return list(single.measure_pipelines(todo, engine, store, Cancel(), Request()))


def test_every_usable_feed_is_a_task(without_torch):
    found = pipeline_tasks(MINE, "cpu")
    assert [task.pipeline.feed for task in found] == list(FEEDS["keras-tensorflow"])
    assert all(replace(task.pipeline, feed=MINE.feed) == MINE for task in found)
    assert {task.runtime for task in found} == {TENSORFLOW}
    assert {task.runtime.device for task in pipeline_tasks(MINE, "gpu")} == {"gpu"}


def test_measured_feeds_are_stored_and_found_again(without_torch, store):
    todo = pipeline_tasks(MINE, "cpu")
    fed(todo, FeedEngine(), store)
    assert set(known(todo, store.records(Kind.PIPELINE))) == {task.pipeline for task in todo}
    for other in ({"rows": 100}, {"batch_size": 128}, {"preprocessing_ms": 0.0}, {"holds_lock": True}):
        assert known(pipeline_tasks(replace(MINE, **other), "cpu"), store.records(Kind.PIPELINE)) == {}
    assert {one.pipeline for one in all_figures(store.records(), "cpu")} == {task.pipeline for task in todo}
    assert all_figures(store.records(), "gpu") == []
    for record in store.records():
        check_kind(record)


def test_a_raising_feed_is_marked_and_the_rest_continues(without_torch, store):
    todo = pipeline_tasks(MINE, "cpu")
    events = fed(todo, FeedEngine(raising="prefetch"), store)
    (raised,) = [event for event in events if isinstance(event, tuple)]
    assert raised == (replace(MINE, feed="prefetch"), "reading a batch raised ValueError: image 3 is damaged")
    found = known(todo, store.records(Kind.PIPELINE))
    assert {pipeline.feed for pipeline in found} == set(FEEDS["keras-tensorflow"]) - {"prefetch"}
