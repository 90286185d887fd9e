"""A step taken apart: the same values by every library, every NumPy call caught, parts from literal figures, and
real workers."""

import re

import numpy as np
import pytest

from lib.backends.reference import loss_and_gradients
from lib.backends.registry import BACKENDS, Runtime, unavailable, versions
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.profiling.harness import Subject, TrainedStep, interleaved, loop, nothing
from lib.profiling.numpy_call_recorder import recorded_calls
from lib.profiling.operations import (
    ALL,
    COMPILED,
    KERNELS,
    LIBRARIES,
    OPERATIONS,
    PRODUCT,
    forward_and_backward,
    measure_operations,
    steps,
)
from lib.profiling.request import Examination
from lib.profiling.run import examine
from lib.profiling.step_breakdown import PARTS, split
from lib.spec import Network
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.views.anatomy_of_a_step import experiments_table, operations_table, parts_chart, sentence, splits
from lib.workers.cancel import Cancel
from lib.workers.notes import Note
from lib.workers.queue import Request

NETWORK = Network((16,))
FOUND = {
    "step": 200e-6,
    "busy": 195e-6,
    "returns": 20e-6,
    "transfer": 12e-6,
    "transfer-base": 2e-6,
    "python": 1e-6,
    "many": 125e-6,
    "many-tiny": 5e-6,
    "call": 160e-6,
}


@pytest.fixture
def subject(small_data):
    return Subject(NETWORK, 32, small_data, "cpu")


@pytest.mark.parametrize("worker", ["numpy", "jax"])
def test_the_operations_are_those_of_a_step(subject, worker):
    """Their gradients are the reference's, in float64 and by other formulas."""
    library = LIBRARIES[worker]("cpu")
    x, y = subject.batch
    (w1, b1), (w2, b2) = subject.parameters
    onehot = np.eye(10, dtype=np.float32)[y]
    values = forward_and_backward(
        library, library.move(x), library.move(onehot), [library.move(one) for one in (w1, b1[None], w2, b2[None])]
    )
    loss, gradients = loss_and_gradients(subject.parameters, x, y)
    assert float(values["loss"]) == pytest.approx(loss, rel=1e-5)
    for name, expected in zip(("dw1", "db1", "dw2", "db2"), [g for layer in gradients for g in layer], strict=True):
        np.testing.assert_allclose(np.asarray(values[name]), np.atleast_2d(expected), rtol=1e-3, atol=1e-6)


def test_each_operation_of_the_table_is_measured(subject):
    named = {operation.key for operation in OPERATIONS}
    assert set(steps(LIBRARIES["numpy"]("cpu"), subject)) == named | {ALL, PRODUCT}
    assert set(steps(LIBRARIES["jax"]("cpu"), subject)) == named | {ALL, PRODUCT, COMPILED}


def test_measuring_an_update_again_and_again_does_not_run_away(subject):
    parameters = subject.parameters
    calls = steps(LIBRARIES["numpy"]("cpu"), subject)
    for _ in range(1000):
        calls["update"]()
    assert np.isfinite(calls["hidden"]()).all()
    assert all((a == b).all() for a, b in zip(parameters[0], subject.parameters[0], strict=True)), "the caller's stay"


def test_numpys_calls_are_caught_and_can_be_repeated(subject):
    calls = recorded_calls(NETWORK, subject.parameters, subject.batch)
    results = [call() for call in calls]
    products = [r for r in results if isinstance(r, np.ndarray) and r.shape in {(784, 16), (16, 10)}]
    assert len(products) >= 2 + 4, "two gradients of weights, and the updates of both"
    assert 25 <= len(calls) <= 60
    for one, again in zip(results, [call() for call in calls], strict=True):
        np.testing.assert_array_equal(one, again, "repeating changes nothing")
    assert all(np.isfinite(one).all() for one in results if isinstance(one, np.ndarray))


def test_the_loop_goes_round(subject):
    seen = []
    step = loop(subject, lambda x, y: seen.append((x.shape, len(y))))
    for _ in range(len(subject.starts) + 1):
        step()
    assert set(seen) == {((32, 784), 32)}
    loop(subject, nothing)()


def test_parts_add_up_from_literal_figures():
    known = split("jax-step", FOUND)
    assert known is not None
    assert {name: round(1e6 * value) for name, value in known.parts_s.items()} == {
        "arithmetic": 120,
        "transfer": 10,
        "launch and wait": 20,
        "dispatch": 20,
        "Python": 1,
        "idle": 0,
    }
    assert known.unexplained_s == pytest.approx(29e-6)
    assert known.adds_up
    assert list(known.parts_s) == [part.name for part in PARTS]


def test_what_overlaps_is_less_than_nothing_and_is_said():
    known = split("jax-step", FOUND | {"step": 100e-6, "busy": 100e-6})
    assert known is not None
    assert known.unexplained_s < 0
    assert not known.adds_up
    assert known.drawn_s == pytest.approx(171e-6)
    assert sum(known.share(part.name) for part in PARTS) == pytest.approx(1)
    assert "more than 15% off" in sentence({Runtime("jax-step"): known}, 32)


def test_idle_is_what_no_core_worked_beyond_the_wait():
    known = split("jax-step", FOUND | {"busy": 150e-6})
    assert known is not None
    assert known.parts_s["idle"] == pytest.approx(30e-6), "200 of wall, 150 busy, 20 of them waiting for the launch"


def test_one_call_an_epoch_and_keras_have_experiments_of_their_own():
    one_call = split("jax-epoch", {name: value for name, value in FOUND.items() if name != "call"})
    assert one_call is not None
    assert one_call.parts_s["launch and wait"] == pytest.approx(5e-6), "what an operation costs inside the call"
    keras = split(
        "keras-jax", {k: v for k, v in FOUND.items() if k != "python"} | {"fit-tiny": 90e-6, "call-tiny": 30e-6}
    )
    assert keras is not None
    assert keras.parts_s["Python"] == pytest.approx(60e-6)


@pytest.mark.parametrize("missing", sorted(FOUND.keys() - {"transfer-base"}))
def test_nothing_is_split_before_all_is_measured(missing):
    assert split("jax-step", {name: value for name, value in FOUND.items() if name != missing}) is None


def test_libraries_are_asked_once_and_every_runtime_is_split():
    runtimes = [
        Runtime("jax-epoch"),
        Runtime("jax-step"),
        Runtime("numpy"),
        Runtime("keras-jax"),
        Runtime("keras-tensorflow"),
    ]
    made = tasks(runtimes, NETWORK, 32)
    operations = [task for task in made if task.examination.kind == "operations"]
    assert [BACKENDS[task.runtime.backend].worker for task in operations] == ["numpy", "jax", "keras-tensorflow"]
    assert [task.runtime for task in made if task.examination.kind == "parts"] == runtimes


def cached(task, seconds):
    """Records as a worker would have made them."""
    return [
        Record.of(
            Kind.ANATOMY,
            task.subject | {"name": name, "work": 1.0},
            Measurement((s, s, 1.02 * s), 1, Ended.SPREAD),
            versions(task.runtime.backend),
        )
        for name, s in seconds.items()
    ]


def test_the_table_and_the_chart_show_what_is_kept():
    operations, parts = tasks([Runtime("numpy")], Network((128,)), 32)
    assert "–" in operations_table([operations], [parts], [], True)
    records = cached(operations, dict.fromkeys([*(o.key for o in OPERATIONS), ALL, PRODUCT], 10e-6)) + cached(
        parts, FOUND
    )
    table = operations_table([operations], [parts], records, True)
    for text in (">50.0 μs", ">100 μs", "541", "751", "quartiles"):
        assert text in table, text
    assert "other sizes" in operations_table([operations], [parts], records, False)
    known = splits([parts], records)
    assert "unexplained" in experiments_table([parts], records)
    spec = parts_chart(known, [Runtime("numpy")]).spec
    drawn = [row for rows in spec["datasets"].values() for row in rows if "part" in row]
    assert sum(row["us"] for row in drawn) == pytest.approx(200)
    assert "60%" in sentence(known, 32)
    assert sentence({}, 32) == ""


@pytest.mark.timed
@pytest.mark.parametrize("backend", ["numpy", "jax-step", "jax-epoch", "torch"])
def test_real_experiments_add_up_roughly(small_data, backend):
    """Within a factor of two, whatever else the machine does; `make bench BENCH=anatomy` holds them to 15 %."""
    if unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    rows = [row for row in examine(backend, "cpu", Examination("parts", Network((128,)), 128), small_data) if row]
    known = split(backend, {name: measured.median_s / work for name, measured, work in rows})
    assert known is not None
    assert all(seconds >= 0 for seconds in known.parts_s.values())
    assert known.parts_s["arithmetic"] > 0
    assert 0.5 < sum(known.parts_s.values()) / known.step_s < 2


def test_experiments_are_measured_in_turns_and_can_be_stopped():
    order = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def prepare(self):
            order.append(f"prepare {self.name}")

        def block(self):
            order.append(self.name)
            return 1.0 if self.name == "a" else 2.0

    rows = list(interleaved({"a": Fake("a"), "b": Fake("b")}, rounds=20))
    assert order[:2] == ["prepare a", "prepare b"]
    assert all({*order[i : i + 2]} == {"a", "b"} for i in range(2, 42, 2)), "each once a round"
    assert len({tuple(order[i : i + 2]) for i in range(2, 42, 2)}) == 2, "in an order that changes"
    assert next(row for row in rows if row)[1].block_s == (1.0,) * 20
    assert rows.count(None) == 2 + 40


def test_what_is_stopped_before_it_began_is_closed_quietly(small_data):
    rows = examine("numpy", "cpu", Examination("parts", NETWORK, 32), small_data)
    assert next(rows) is None, "the first is prepared, the others are not"
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    TrainedStep("numpy", Subject(NETWORK, 32, small_data, "cpu")).close()


def test_torchs_operations_are_caught_with_their_backward_pass(subject):
    pytest.importorskip("torch")
    from lib.profiling.with_torch import recorded_calls as torch_calls

    calls = torch_calls(subject)
    assert 15 <= len(calls) <= 60
    for call in calls:
        call()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["keras-tensorflow"])
def test_keras_in_its_worker(engine, tmp_path, backend):
    store = Store(tmp_path / "r.sqlite")
    todo = [AnatomyTask(Runtime(backend), Examination("parts", NETWORK, 256))]
    events = list(measure_tasks(todo, engine, store, Cancel(), Request()))
    records = [one for one in events if isinstance(one, Record)]
    assert todo[0].complete(records)
    assert sorted(store.records(Kind.ANATOMY), key=lambda r: r.id) == sorted(records, key=lambda r: r.id)
    assert any(isinstance(one, Note) and "parts" in one.text for one in events)


def test_a_stop_keeps_what_is_done(engine, tmp_path):
    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    todo = tasks([Runtime("numpy")], NETWORK, 32)
    for events in measure_tasks(todo, engine, store, cancel, Request()):
        if isinstance(events, Record):
            cancel.set()
    assert 1 <= len(store.records(Kind.ANATOMY)) < 5


def test_the_compiled_step_is_not_one_kernel(small_data):
    """What a claim of `lib.experiments.claims` is judged by:

    XLA leaves the products alone and fuses what is between them.
    """
    import jax

    from lib.backends.with_jax import packed, sgd_step
    from lib.profiling.with_jax import launched

    subject = Subject(Network((128,)), 32, small_data, "cpu")
    text = (
        jax.jit(sgd_step).lower(packed(subject.parameters), *subject.batch, np.float32(0.1)).compile().as_text() or ""
    )
    assert len(re.findall(r" dot\(", text)) == 5, "two forward, three backward: each stays a product of its own"
    assert 5 + 10 < len(launched(subject)) < 100
    rows = {name: measured for name, measured, _ in measure_operations("jax", subject)}
    assert rows[KERNELS].median_s == len(launched(subject))
