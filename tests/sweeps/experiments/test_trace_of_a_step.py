# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
import re
import subprocess
from pathlib import Path

import pytest

from lib import ROOT
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import Network
from lib.sweeps.experiments import trace_of_a_step as experiment
from lib.sweeps.experiments.anatomy_of_a_step import ceilings, measure_ceilings, measure_tasks, tasks
from lib.sweeps.experiments.trace_of_a_step import profile, read_files, saved, shipped, task_of
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.workload import step_floors
from lib.timing.profiling.request import PLAIN, PROFILED
from lib.timing.profiling.traces.form import Trace

TORCH = ROOT / "tests/timing/profiling/traces/torch_step.json"
TASK = task_of(Runtime("jax-step"), Network((16,)), 32)


class StandIn(Engine):
    def __init__(self, text=""):
        super().__init__()
        self.text, self.folders = text, []

    def examine(self, runtime, examination, cancel, request=None):
        self.folders.append(Path(examination.folder))
        yield Measured(PLAIN, Measurement((1e-4,) * 3, 1, Ended.CAP), 1.0)
        if self.text:
            (Path(examination.folder) / "trace.json").write_text(self.text)
        yield Measured(PROFILED, Measurement((3e-4,), 2, Ended.CAP), 1.0)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path))
    return Store(tmp_path / "results.sqlite")


def made(engine, store):
    return list(profile(TASK, engine, store, Cancel(), Request()))


@pytest.mark.slow
def test_a_profile_is_recorded_in_the_worker_and_saved(engine, store):
    items = made(engine, store)
    assert [type(item) for item in items if not isinstance(item, Note)] == [Record, Record, Trace]
    trace = items[-1]
    assert trace.title == "JAX, one call a step, batch size 32, hidden layers 16"
    assert trace.about["steps"] >= 1
    assert trace.about["plain_step_s"] > 0
    again = saved(TASK, store.records(Kind.ANATOMY))
    assert (again.title, again.n_rows, dict(again.about)) == (trace.title, trace.n_rows, dict(trace.about))


@pytest.mark.slow
def test_a_saved_trace_is_served_only_with_its_records(store):
    engine = StandIn(TORCH.read_text())
    made(engine, store)
    assert saved(TASK, store.records()) is not None
    assert saved(task_of(Runtime("jax-step"), Network((16,)), 64), store.records()) is None
    assert saved(TASK, []) is None
    experiment._file(TASK).write_text("{}")
    assert saved(TASK, store.records()) is None, "a damaged file is no trace"
    assert not any(folder.exists() for folder in engine.folders), "nothing of the profiler is left"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "why"), [("", "wrote no file"), ("nonsense", "could not be read: it is text")])
def test_a_missing_or_unreadable_profile_is_a_failure(store, text, why):
    with pytest.raises(TrainingFailed, match=why):
        made(StandIn(text), store)


def test_five_traces_are_shipped_in_plain_text_and_few_bytes():
    made_by = [(trace.made_by.split("'")[0], trace.has_device) for trace in shipped()]
    assert made_by == [("PyTorch", True), ("JAX", True), ("JAX", False), ("TensorFlow", False), ("PyTorch", False)]
    files = list(experiment.SHIPPED.glob("*.json"))
    assert sum(path.stat().st_size for path in files) < 200_000
    for trace in shipped():
        assert len(trace.rows) > 100
        assert {"machine", "versions", "measured_at", "steps"} <= trace.about.keys()
        assert any(call.kind == "kernel" for call in trace.calls)


@pytest.mark.slow
def test_trace_files_are_read_and_others_are_reported(tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"a": 1}')
    files = [("torch.json", TORCH.read_bytes()), ("bad.json", bad), ("none", b"")]
    trace, *problems = (item for item in read_files(files, Cancel()) if not isinstance(item, Note))
    assert isinstance(trace, Trace)
    assert str(problems[0]).startswith('bad.json: it is JSON, but has no list of "traceEvents"; ')
    assert problems[1:] == ["none: it is empty; stop the profiler and let it write its file before copying it."]


def test_a_reader_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.sweeps.workers.engine.READ_LIMIT_S", -1.0)
    (problem,) = (one for one in read_files([("torch.json", TORCH.read_bytes())], Cancel()) if isinstance(one, str))
    assert "took more than" in problem


def test_operations_are_timed_per_library_and_parts_per_runtime():
    runtimes = [Runtime(key) for key in ("jax-epoch", "jax-step", "numpy", "keras-jax", "keras-tensorflow")]
    made = tasks(runtimes, Network((16,)), 32)
    operations = [task for task in made if task.examination.kind == "operations"]
    assert [BACKENDS[task.runtime.backend].worker for task in operations] == ["numpy", "jax", "keras-tensorflow"]
    assert [task.runtime for task in made if task.examination.kind == "parts"] == runtimes


@pytest.mark.slow
def test_a_stop_keeps_finished_records(engine, tmp_path):
    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    for event in measure_tasks(tasks([Runtime("numpy")], Network((16,)), 32), engine, store, cancel, Request()):
        if isinstance(event, Record):
            cancel.set()
    assert 1 <= len(store.records(Kind.ANATOMY)) < 5


@pytest.mark.release
def test_ceilings_are_measured_once_and_give_a_floor(engine, store):
    runtimes = [Runtime("numpy"), Runtime("jax-epoch"), Runtime("jax-step")]
    assert ceilings(runtimes[0], store) is None
    for _ in range(2):
        list(measure_ceilings(runtimes, engine, store, Cancel()))
        assert len(store.records(Kind.CEILING)) == 6, "two libraries, three probes each; both backends of JAX share one"
    known = ceilings(runtimes[1], store)
    assert set(known.dispatch_s) == {"numpy", "jax-epoch", "jax-step", "jax-operation"}
    step_s, epoch_s = (
        max(step_floors(Network((128,)), 32, known, backend, calls).values())
        for backend, calls in (("jax-step", 1), ("jax-epoch", 1 / 1500))
    )
    assert 1e-7 < step_s < 1e-2
    assert step_s >= epoch_s


def test_a_cards_cache_comes_from_its_driver(store):
    card = Runtime("jax-epoch", "gpu")

    def record(name, value, work):
        subject = {"library": "jax", "device": "gpu", "precision": "float32", "name": name, "work": work}
        store.add(Record.of(Kind.CEILING, subject, Measurement((value,), 1, Ended.CAP)))

    record("product", 1.0, 1e12)
    record("copy", 1.0, 1e12)
    known = ceilings(card, store)
    assert known.cache_bytes == 0
    record("cache", float(50 * 2**20), 1.0)
    known = ceilings(card, store)
    assert known.cache_bytes == 50 * 2**20


WITH_A_CARD = [".venv requirements-gpu.txt", ".venv-cuda12 requirements-cuda12.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "wanted"), [("GPU 0: NVIDIA L4", WITH_A_CARD), ("", [".venv requirements.txt"])])
def test_make_install_chooses_cuda_builds_if_a_driver_answers(tmp_path, monkeypatch, answer, wanted):
    for name in ("Makefile", "requirements.txt", "requirements-gpu.txt", "requirements-cuda12.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{f'echo {answer}' if answer else 'exit 9'}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = subprocess.run(["make", "-n", "install"], cwd=tmp_path, capture_output=True, text=True, check=True)
    installed = re.findall(r"^(\S+)/bin/python -m pip .* -r (\S+)$", done.stdout, re.MULTILINE)
    assert [" ".join(pair) for pair in installed] == wanted
