"""The traps: what is measured for a page, what is not measured again, and how it is found in the records."""

import pytest

from lib.backends.registry import Runtime, versions
from lib.experiments import traps
from lib.experiments.anatomy_of_a_step import measure_tasks
from lib.hardware import webgpu
from lib.profiling.request import REFERENCE, TRAPS
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Measured
from lib.workers.queue import Request


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


def measured(seconds):
    return Measurement((seconds,) * 3, 1, Ended.CAP)


class StandIn(Engine):
    """An engine that answers every examination at once, with the ceilings or the traps."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    def examine(self, runtime, examination, cancel, request=None):
        self.asked.append((examination.kind, runtime, examination.batch_size))
        names = ("product", "copy", "dispatch") if examination.kind == "ceilings" else (REFERENCE, *TRAPS)
        for number, name in enumerate(names, 1):
            yield Measured(name, measured(number * 1e-4), 1.0)


def measure(device, size, engine, store, cancel=None):
    todo = [task for task in traps.tasks(device, size) if not task.complete(store.records())]
    return list(measure_tasks(todo, engine, store, cancel or Cancel(), Request()))


def test_the_ceilings_come_first_and_nothing_is_measured_twice(store):
    engine = StandIn()
    for size in (512, 32, 32):
        measure("cpu", size, engine, store)
    assert [kind for kind, *_ in engine.asked] == ["ceilings", "traps", "traps"]
    assert engine.asked[1][1:] == (Runtime(), 512)


def test_measurements_are_those_of_the_device_and_batch_size(store):
    engine, task = StandIn(), traps.task_of("cpu", 32)
    measure("cpu", 32, engine, store)
    found = traps.measurements(task, store.records("anatomy"))
    assert found[REFERENCE] == measured(1e-4)
    assert set(found) == {REFERENCE, *TRAPS}
    assert task.complete(store.records())
    assert {record.versions for record in store.records("anatomy")} == {versions(task.runtime)}
    assert traps.measurements(traps.task_of("cpu", 512), store.records("anatomy")) == {}
    assert traps.measurements(traps.task_of("gpu", 32), store.records("anatomy")) == {}


def test_a_library_is_timed_where_it_computes():
    assert traps.task_of("cpu", 32).runtime == Runtime()
    assert traps.task_of("gpu", 32).runtime == Runtime(device="gpu")
    by_webgpu = traps.task_of("integrated", 32)
    assert by_webgpu.runtime == Runtime("webgpu-step", "integrated")
    assert by_webgpu.subject["by"] == "webgpu", "a record of its own"


@pytest.mark.parametrize("allowed", [False, True])
def test_webgpus_devices_are_those_whose_adapter_is_there(monkeypatch, allowed):
    """A software adapter only where the reader asked for one."""
    monkeypatch.setenv("WEBGPU_SOFTWARE", "1" if allowed else "")
    monkeypatch.setattr("lib.backends.registry._installed", lambda *_: True)
    found = (webgpu.Adapter("integrated", "a GPU", "", ""), webgpu.Adapter("software", "llvmpipe", "", ""))
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found)
    assert set(traps.devices()) - {"gpu"} == {"cpu", "integrated", *(["software"] if allowed else [])}
    assert traps.no_adapter() is None
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found[1:])
    assert set(traps.devices()) - {"gpu"} == {"cpu", *(["software"] if allowed else [])}
    missing = traps.no_adapter()
    assert (missing is None) is allowed
    if missing:
        assert missing.reason == "WebGPU finds no discrete GPU on this machine"


def test_a_stop_leaves_the_traps_out(store):
    engine, cancel = StandIn(), Cancel()
    cancel.set()
    assert measure("cpu", 32, engine, store, cancel) == []
    assert engine.asked == []
