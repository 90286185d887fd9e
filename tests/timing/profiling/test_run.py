import ctypes
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from lib.model.backends.base import Epoch, Steps, no_parameters
from lib.model.backends.registry import BACKENDS, Runtime, unavailable
from lib.model.hardware.nvidia import Busy
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import Network, Training
from lib.timing.measurement import no_wait
from lib.timing.profiling import harness, request, run
from lib.timing.profiling.harness import Subject, TimedStep, repeated
from lib.timing.profiling.request import PLAIN, PROFILED, TRAP_EPOCHS, TRAP_SAMPLES, Examination, NotMeasured, split
from lib.timing.profiling.run import examine
from lib.timing.profiling.traces import reading
from tests.conftest import where_installed
from tests.software_adapter import needs_software_adapter

NETWORK = Network((16,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        *where_installed(["numpy", "numba", "jax-step", "jax-epoch"]),
        *(pytest.param(key, marks=needs_software_adapter) for key in BACKENDS if key.startswith("webgpu")),
    ],
)
def test_experiments_of_each_backend_suffice_to_split_a_step(subject, backend):
    device = SOFTWARE if backend.startswith("webgpu") else "cpu"
    found = run._module(backend).experiments(backend, replace(subject, device=device))
    assert split(Runtime(backend, device), {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1)) is not None
    for name, experiment in found.items():
        next(experiment)
        assert 0 < next(experiment) < (1e-2 if backend == "numpy" else 1), name


@pytest.mark.release
@pytest.mark.parametrize("backend", where_installed(["numpy", "jax-step", "jax-epoch", "torch"]))
def test_real_experiments_add_up_roughly(small_data, backend):
    rows = [row for row in examine(backend, "cpu", Examination("parts", Network((128,)), 128), small_data) if row]
    known = split(Runtime(backend), {name: measured.median_s / work for name, measured, work in rows})
    assert known is not None
    assert all(seconds >= 0 for seconds in known.parts_s.values())
    assert known.parts_s["arithmetic"] > 0
    assert 0.5 < sum(known.parts_s.values()) / known.step_s < 2


@pytest.mark.parametrize("kind", ["parts", "trace"])
def test_examinations_stopped_early_close_and_leave_nothing(small_data, tmp_path, kind):
    rows = examine("jax-step", "cpu", Examination(kind, NETWORK, 32, folder=str(tmp_path)), small_data)
    assert next(rows) is None, "the first is prepared, the others are not"
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert list(tmp_path.iterdir()) == []


def timed(call, **others: Any) -> TimedStep:
    return TimedStep(**{"call": call, "wait": no_wait, "with_transfer": call, "fresh": lambda: call} | others)


def test_the_best_of_many_samples_hides_the_slow_ones():
    numbers = count()
    step = timed(lambda: time.sleep(1e-4 if next(numbers) % TRAP_SAMPLES == 3 else 1e-2))
    best_s = run.best_of(step, TRAP_SAMPLES)
    assert 1e-4 < best_s < 1e-2
    assert next(numbers) == TRAP_SAMPLES


def test_a_first_call_is_averaged_over_a_few_short_epochs():
    made, waited = [], []

    def fresh():
        calls = count()
        made.append(calls)

        def call():
            time.sleep(0.05 if (number := next(calls)) == 0 else 1e-3)
            return number

        return call

    first = run.first_call_counted(timed(lambda: time.sleep(1e-3), fresh=fresh, wait=waited.append))
    next(first)
    waited.clear()
    averages = [next(first) for _ in range(2)]
    steps = [next(calls) for calls in made]
    assert steps[0] == steps[1] >= 4 * TRAP_EPOCHS
    assert waited == [number - 1 for number in steps]
    assert min(averages) >= (0.05 + 1e-3 * (steps[0] - 1)) / steps[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "device"), [("jax-epoch", "cpu"), pytest.param("webgpu-step", SOFTWARE, marks=needs_software_adapter)]
)
def test_every_library_measures_the_reference_and_all_traps(small_data, backend, device):
    rows = [row for row in examine(backend, device, Examination("traps", Network((4,)), 8), small_data) if row]
    assert [name for name, *_ in rows] == [request.REFERENCE, *request.TRAPS]
    assert all(min(measured.block_s) > 0 for name, measured, _ in rows if name != "busy is not working")


def test_a_sleeping_step_is_not_counted_as_busy():
    steps = repeated(lambda: time.sleep(1e-3))
    next(steps)
    assert run.busy_s(steps) < 0.9 * next(steps)


@pytest.fixture
def card(monkeypatch):
    """The watches of a stand-in card, 0.02 s each."""
    watches: list[Busy] = []

    @contextmanager
    def watched_activity():
        watches.append(busy := Busy())
        yield busy
        busy.utilisations, busy.activity = [0.98] * len(watches), (0.035, 0.0125)

    monkeypatch.setattr(run, "watched_activity", watched_activity)
    monkeypatch.setattr(run, "BUSY_S", 0.02)
    return watches


def test_steps_are_queued_ahead_of_each_wait(card):
    made, waited, ahead = count(), [], []

    def wait(results):
        waited.extend(results)
        ahead.append(next(made) - len(waited))

    rows = [row for row in run._occupancy(timed(lambda: next(made), wait=wait)) if row is not None]
    assert min(ahead[:-1]) >= run.IN_A_ROW
    assert [(name, measured.median_s) for name, measured, _ in rows] == [
        ("occupancy/utilisation", 0.98),
        ("occupancy/activity", 0.035),
        ("occupancy/warps", 0.0125),
    ]


def test_a_pause_restarts_the_watch(card, monkeypatch):
    monkeypatch.setattr(run, "PAUSED_S", 0.03)
    found = run._occupancy(timed(lambda: 1.0))
    assert next(found) is None
    time.sleep(0.04)
    rows = [row for row in found if row is not None]
    assert len(card) == 2
    assert len(rows[0][1].block_s) == 2, "of the second watch alone"


# The part of CUPTI that the library uses; `play` makes the callbacks that CUDA would.
HEADER = """
#define CUPTIAPI
enum { CUPTI_SUCCESS, CUPTI_API_ENTER = 0, CUPTI_CB_DOMAIN_DRIVER_API = 1, CUPTI_CB_DOMAIN_RUNTIME_API = 2 };
typedef int CUpti_CallbackDomain, CUpti_CallbackId;
typedef void *CUpti_SubscriberHandle;
typedef struct { int callbackSite; const char *functionName; } CUpti_CallbackData;
typedef void (*CUpti_CallbackFunc)(void *, CUpti_CallbackDomain, CUpti_CallbackId, const void *);
int cuptiSubscribe(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
int cuptiEnableDomain(int, CUpti_SubscriberHandle, CUpti_CallbackDomain);
"""
FAKE_CUPTI = """
#include "cupti.h"
static CUpti_CallbackFunc told;
static int enabled[3];
int cuptiSubscribe(CUpti_SubscriberHandle *one, CUpti_CallbackFunc call, void *with) { told = call; return 0; }
int cuptiEnableDomain(int on, CUpti_SubscriberHandle one, int domain) { enabled[domain] = on; return 0; }
void play(int domain, int id, const char *name) {
  for (int site = 0; site < 2; site++) {
    CUpti_CallbackData data = {site, name};
    if (told && enabled[domain]) told(0, domain, id, &data);
  }
}
"""


@pytest.fixture
def fake_cupti(tmp_path, monkeypatch):
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    folder = tmp_path / "cupti"
    folder.mkdir()
    (folder / "cupti.h").write_text(HEADER)
    (folder / "fake_cupti.c").write_text(FAKE_CUPTI)
    library = str(folder / "libcupti.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, str(folder / "fake_cupti.c")], check=True)
    monkeypatch.setattr(run, "_places", lambda: [folder])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["nvcc", "gcc"])
def test_the_library_counts_each_cuda_call_once_by_name(fake_cupti, tmp_path, monkeypatch, compiler):
    where = shutil.which(compiler)
    if where is None:
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setattr(run.shutil, "which", lambda name: where if name == compiler else None)
    library = ctypes.CDLL(str(run.build(tmp_path)))
    cupti = ctypes.CDLL(str(fake_cupti / "libcupti.so"))
    cupti.play(2, 3, b"cudaMemcpy")
    assert [library.InitializeInjection(), library.InitializeInjection()] == [1, 1]
    library.clear_counts()
    for _ in range(3):
        cupti.play(2, 211, b"cudaLaunchKernel")
        cupti.play(1, 307, b"cuLaunchKernel")
    cupti.play(1, 5, b"cuMemAlloc")
    cupti.play(1, 100_000, b"cuFuture")
    assert library.write_counts(str(tmp_path / "counts").encode()) == 0
    lines = (tmp_path / "counts").read_text().splitlines()
    assert lines == ["runtime cudaLaunchKernel 3", "driver cuMemAlloc 1", "driver cuLaunchKernel 3"]
    assert library.write_counts(str(tmp_path / "no" / "counts").encode()) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_calls_are_counted_in_a_fresh_process(small_data, monkeypatch, fails):
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('runtime cudaLaunchKernel 3000\\n')"
    program = "raise SystemExit('no card')" if fails else program
    real = run.in_a_fresh_process

    def in_a_fresh_process(command, *more):
        return real([sys.executable, "-c", program, command[-1]], *more)

    monkeypatch.setattr(run, "build", lambda folder: folder / "library.so")
    monkeypatch.setattr(run, "in_a_fresh_process", in_a_fresh_process)
    counted = filter(None, run.counted("torch", Subject(NETWORK, 32, small_data, "gpu")))
    if fails:
        with pytest.raises(RuntimeError, match="the process exited with 1: no card"):
            list(counted)
    else:
        rows = [(name, measured.median_s / steps) for name, measured, steps in counted]
        assert rows == [("runtime/cudaLaunchKernel", 2.0)]


@pytest.mark.slow
def test_steps_of_an_epoch_announce_their_start_and_end(monkeypatch):
    monkeypatch.setattr(run, "N_TRAIN", 640)
    assert list(run.steps_of_an_epoch("numpy", 32, "16", "cpu")) == ["begins", "ends"]


@pytest.mark.parametrize(("compiler", "lacks"), [(None, "nvcc or gcc"), ("gcc", "CUPTI")])
def test_a_missing_compiler_or_cupti_is_reported(tmp_path, monkeypatch, compiler, lacks):
    monkeypatch.setattr(run.shutil, "which", lambda _: compiler)
    monkeypatch.setattr(run, "_places", list)
    with pytest.raises(NotMeasured, match=f"cannot be counted: expected {lacks}"):
        run.build(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "epochs", "size", "expected"),
    [
        ("jax-step", 100, 32, range(1, 21)),  # an epoch of the small data has 20 steps
        ("jax-step", 1, 320, [2]),
        ("jax-epoch", 1, 32, range(1, 21)),
        ("torch", 1, 32, range(1, 21)),
    ],
)
def test_the_profile_contains_the_reported_number_of_steps(
    small_data, tmp_path, backend, epochs, size, expected, monkeypatch
):
    of = property(lambda self: Training(self.network, 1e-6, self.batch_size, epochs))
    monkeypatch.setattr(run.Subject, "training", of)  # a profile must not include the first call of the next training
    if unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    asked = Examination("trace", NETWORK, size, folder=str(tmp_path))
    rows = {row[0]: row[1] for row in examine(backend, "cpu", asked, small_data) if row is not None}
    assert set(rows) == {PLAIN, PROFILED}
    assert (steps := rows[PROFILED].steps_per_block) in expected
    file = next(path for path in tmp_path.rglob("*") if path.name.endswith(("xplane.pb", "trace.json")))
    trace = reading.read(file, backend)
    assert trace.made_by.startswith("PyTorch" if backend == "torch" else "JAX")
    assert backend == "torch" or "python" in {lane.role for lane in trace.lanes}
    assert not trace.has_device
    assert {"kernel", "dispatch"} <= {call.kind for call in trace.calls}
    counts = {call.name: call.count for call in trace.calls}
    if backend == "jax-step":
        assert counts["PjitFunction(one_step)"] in (steps, 2 * steps), counts
        assert "PjitFunction(evaluate)" not in counts, "evaluation is left out"
    assert backend != "torch" or counts["Optimizer.step#SGD.step"] == steps


@pytest.mark.parametrize(("chunks", "profiled"), [((0, 8, 16), 8), ((0,), 0)])
def test_the_first_of_several_chunks_is_not_profiled(subject, tmp_path, monkeypatch, chunks, profiled):
    asked, at_start = [], []

    def train(_training, data, _device):
        n = len(data.x_train) // 32
        while True:
            for first, end in zip(chunks, (*chunks[1:], n), strict=True):
                asked.append(first)
                yield Steps(0, first, np.ones(end - first, np.float32), 0.2)
            yield Epoch(0, n, 1.0, 0.5, 0.2, 0.1, no_parameters)

    def profiler(_folder):
        at_start.append(len(asked))
        return nullcontext()

    monkeypatch.setattr(harness, "load_train", lambda _: train)
    monkeypatch.setitem(run._PROFILERS, "jax", profiler)
    list(run.record("jax-step", subject, str(tmp_path)))
    assert asked[at_start[0] :] == [profiled]
