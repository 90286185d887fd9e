"""The process at the other end: what it answers, and when it ends."""

import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import psutil
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.registry import Runtime
from lib.model.hardware.machine import usable_cores
from lib.model.spec import Training
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished, updates
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers import worker
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import CardLost, How, Item, Job, Progress, Trained, TrainingFailed
from lib.sweeps.workers.queue import Cancel
from lib.sweeps.workers.worker import _sentence, in_parallel
from lib.timing.profiling.request import Examination, OperationRequest
from tests import stub_worker
from tests.conftest import ROOT
from tests.sweeps.workers.test_engine import JAX, SHORT, events_of, run, until_steps

MANY = Training(batch_size=256, epochs=1)  # more steps than a stub reports at once


@pytest.mark.slow
def test_trainings_of_a_job_advance_side_by_side(stub_engine):
    items = {Item(Training(learning_rate=rate), JAX) for rate in (0.01, 0.1)}
    messages = run(stub_engine, JAX, [item.training for item in items])
    first_epochs = [m.item for m in messages if isinstance(m, Progress) and isinstance(m.event, Epoch)][:2]
    assert set(first_epochs) == items, "both finish their first epoch before one finishes its second"
    assert {m.item for m in messages if isinstance(m, Trained)} == items


def test_parallel_trainings_have_a_core_each_and_take_turns():
    beside, used, made = threading.Barrier(2), [], Counter()

    def training(name):
        for _ in range(2):
            beside.wait(20)  # nobody passes alone
            used.append(usable_cores())
            made[name] += 1
            yield FirstCall(name)

    seen, told = Counter(), []
    for index, event in in_parallel([(n, training(n)) for n in range(4)], 2):
        told.append((index, event))
        seen[index] += event is not None
        assert made[index] == seen[index]
    assert used == [1] * 8
    assert [index for index, _ in told[:2]] != [index for index, _ in told[2:4]], "four trainings share two cores"
    assert Counter(told) == Counter({(n, FirstCall(n)): 2 for n in range(4)} | {(n, None): 1 for n in range(4)})


def test_a_worker_whose_parent_was_dead_before_it_began_ends():
    code = """
import sys
from multiprocessing import Pipe
from lib.sweeps.workers.worker import main
ours, theirs = Pipe()
main(theirs, sys.argv[1], '30', 'numpy', 'cpu')
"""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    worker = subprocess.Popen([sys.executable, "-c", code, str(gone.pid)], cwd=ROOT)
    try:
        assert worker.wait(10) == 0
    finally:
        worker.kill()


@pytest.mark.slow
def test_a_worker_ends_when_it_is_idle(monkeypatch):
    monkeypatch.setattr(engine_module, "Process", stub_worker.start)
    engine = Engine(idle_s=1.0)
    try:
        run(engine, Runtime("numpy"), [SHORT])
        worker = psutil.Process(engine.pids()["numpy/cpu"])
        _, alive = psutil.wait_procs([worker], timeout=6)
        assert not alive
        assert events_of(run(engine, Runtime("numpy"), [SHORT]), Epoch), "the next run starts another"
    finally:
        engine.close()


def test_a_bad_data_file_is_named_by_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("MNIST_NPZ", str(tmp_path / "nothing.npz"))
    engine = Engine()
    try:
        with pytest.raises(TrainingFailed, match=r"MNIST_NPZ.*does not exist.*correct MNIST_NPZ"):
            run(engine, Runtime("numpy"), [Training()])
    finally:
        engine.close()


@pytest.mark.parametrize(("devices", "expected"), [(0, 1), (2, 2)])
def test_a_probe_tells_its_first_steps_however_long_they_took(monkeypatch, small_data, devices, expected):
    reports = [(index, Steps(0, 0, np.ones(4, np.float32), 10.0)) for index in (0, 1)]
    monkeypatch.setattr(worker, "_events", lambda job, data: iter([*reports, (0, None), *reports]))
    how = How(devices=devices, probe_s=0.2)
    job = Job(1, Runtime("numpy"), (Training(), Training()), how)
    assert [type(answer) for answer in worker.train_job(job, small_data)] == [Progress] * expected


# A card that disappears in the middle: its run ends with a sentence, its worker ends, and nothing else does.

NUMPY = Runtime("numpy")
LOST = "INTERNAL: Failed to synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"


@pytest.fixture
def losing(monkeypatch):
    def process(module, arguments, environment, *rest):
        kept = {} if "numpy" in arguments else {stub_worker.FAILS: ""}
        return stub_worker.start(module, arguments, environment | kept, *rest)

    monkeypatch.setattr(engine_module, "Process", process)
    monkeypatch.setenv(stub_worker.FAILS, LOST)
    own = Engine()
    yield own
    own.close()


@pytest.mark.slow
def test_the_run_says_what_to_do_and_the_next_has_a_new_worker(losing, monkeypatch):
    messages = losing.run(NUMPY, [MANY], Cancel())
    until_steps(messages)
    lost = psutil.Process(losing.pids()["numpy/cpu"])
    with pytest.raises(CardLost, match=r"no longer answers .*CUDA_ERROR_LAUNCH_FAILED.*nvidia-smi or dmesg.*restart"):
        list(messages)
    assert not psutil.wait_procs([lost], timeout=10)[1], "its process can do nothing more with the card"
    monkeypatch.setenv(stub_worker.FAILS, "shapes (3,) and (4,) do not fit")
    with pytest.raises(TrainingFailed, match="stopped with RuntimeError: shapes") as error:
        run(losing, NUMPY, [MANY])
    assert not isinstance(error.value, CardLost)
    assert psutil.Process(losing.pids()["numpy/cpu"]).is_running(), "an error of another kind ends no worker"
    assert list(losing.examine(NUMPY, Examination("operation", operation=OperationRequest("sine", 4)), Cancel()))


@pytest.mark.slow
def test_the_other_runtimes_of_a_sweep_are_trained_all_the_same(losing, tmp_path):
    trained = []
    items = [Item(MANY, runtime) for runtime in (NUMPY, Runtime("jax-step"))]
    found = updates(items, losing, Store(tmp_path / "s.sqlite"), Cancel())
    with pytest.raises(CardLost):
        trained.extend(update.item for update in found if isinstance(update, Finished))
    assert trained == items[1:]


@pytest.mark.parametrize(
    "text",
    [
        LOST,
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
        "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
        "Unable to determine the device handle: GPU has fallen off the bus",
    ],
)
def test_what_libraries_say_of_a_lost_card_is_one_sentence(text):
    sentence = _sentence(RuntimeError(text))
    assert "the graphics card no longer answers" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "not enough memory"),
        ("CUDA error: no kernel image is available for execution on the device", "stopped with RuntimeError"),
        ("CUDA error: invalid argument", "stopped with RuntimeError"),
        ("INVALID_ARGUMENT: shapes do not fit", "stopped with RuntimeError"),
    ],
)
def test_other_errors_are_not_taken_for_it(text, words):
    assert words in _sentence(RuntimeError(text))
