"""A step taken apart by every library in turn: what is asked for, what is shown, and real workers."""

import pytest

from lib.backends.registry import BACKENDS, Runtime, versions
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.profiling.operations import (
    ALL,
    OPERATIONS,
    PRODUCT,
)
from lib.profiling.request import Examination
from lib.spec import Network
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.views.anatomy_of_a_step import experiments_table, operations_table, parts_chart, sentence, splits
from lib.workers.cancel import Cancel
from lib.workers.notes import Note
from lib.workers.queue import Request
from tests.profiling.test_step_breakdown import FOUND

NETWORK = Network((16,))


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
