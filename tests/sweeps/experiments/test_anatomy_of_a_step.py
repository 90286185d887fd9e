"""A step taken apart by every library in turn: what is asked for, what is shown, and real workers."""

import pytest

from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.profiling.request import Examination

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


@pytest.mark.release
@pytest.mark.parametrize("backend", ["keras-tensorflow"])
def test_keras_in_its_worker(engine, tmp_path, backend):
    store = Store(tmp_path / "r.sqlite")
    todo = [AnatomyTask(Runtime(backend), Examination("parts", NETWORK, 256))]
    events = list(measure_tasks(todo, engine, store, Cancel(), Request()))
    records = [one for one in events if isinstance(one, Record)]
    assert todo[0].complete(records)
    assert sorted(store.records(Kind.ANATOMY), key=lambda r: r.id) == sorted(records, key=lambda r: r.id)
    assert any(isinstance(one, Note) and "parts" in one.text for one in events)


@pytest.mark.slow
def test_a_stop_keeps_what_is_done(engine, tmp_path):
    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    todo = tasks([Runtime("numpy")], NETWORK, 32)
    for events in measure_tasks(todo, engine, store, cancel, Request()):
        if isinstance(events, Record):
            cancel.set()
    assert 1 <= len(store.records(Kind.ANATOMY)) < 5
