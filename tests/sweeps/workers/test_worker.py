import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.registry import Environment, Runtime
from lib.model.hardware.machine import usable_cores
from lib.model.spec import Network, Training
from lib.sweeps.sweep import Finished, Picked, updates
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers import worker
from lib.sweeps.workers.messages import CardLost, Item, Job, Progress, Trained, TrainingFailed
from lib.sweeps.workers.queue import Cancel
from lib.sweeps.workers.worker import _sentence, cluster, expected_here, in_parallel, perform
from lib.timing.profiling.request import Examination, OperationRequest
from tests import stub_worker
from tests.conftest import ROOT
from tests.sweeps.test_sweep import MIXED, made
from tests.sweeps.workers.test_engine import JAX, SHORT, events_of, run, until_steps

NUMPY = Runtime("numpy")
MANY = Training(batch_size=256, epochs=1)  # more steps than a stub reports at once


@pytest.mark.slow
def test_trainings_of_a_job_advance_together(stub_engine):
    items = {Item(Training(learning_rate=rate), JAX) for rate in (0.01, 0.1)}
    messages = run(stub_engine, JAX, [item.training for item in items])
    first_epochs = [m.item for m in messages if isinstance(m, Progress) and isinstance(m.event, Epoch)][:2]
    assert set(first_epochs) == items, "both finish their first epoch before one finishes its second"
    assert {m.item for m in messages if isinstance(m, Trained)} == items


def test_parallel_trainings_have_one_core_each_and_take_turns():
    beside, used, begun = threading.Barrier(2), [], Counter()

    def training(name):
        for _ in range(2):
            beside.wait(20)  # passes only with two trainings at once
            used.append(usable_cores())
            begun[name] += 1
            yield FirstCall(name)

    seen, told = Counter(), []
    for index, event in in_parallel([(n, training(n)) for n in range(4)], 2):
        told.append((index, event))
        seen[index] += event is not None
        assert begun[index] == seen[index]
    assert used == [1] * 8
    assert [index for index, _ in told[:2]] != [index for index, _ in told[2:4]], "four trainings share two cores"
    assert Counter(told) == Counter({(n, FirstCall(n)): 2 for n in range(4)} | {(n, None): 1 for n in range(4)})


def test_a_worker_ends_if_its_parent_was_dead_at_the_start(program):
    code = """
import sys
from multiprocessing import Pipe
from lib.sweeps.workers.worker import main
ours, theirs = Pipe()
main(theirs, sys.argv[1], '30', 'numpy', 'cpu')
"""
    gone = program("")
    gone.wait()
    assert program(code, str(gone.pid)).wait(10) == 0


@pytest.mark.slow
def test_an_idle_worker_ends(lone_engine, monkeypatch):
    monkeypatch.setattr(engine_module, "Process", stub_worker.start)
    monkeypatch.setattr(engine_module, "IDLE_S", 1.0)
    run(lone_engine, NUMPY, [SHORT])
    idle = psutil.Process(lone_engine.pids()["numpy/cpu"])
    assert not psutil.wait_procs([idle], timeout=6)[1]
    assert events_of(run(lone_engine, NUMPY, [SHORT]), Epoch), "the next run starts another"


def test_a_bad_data_file_is_reported_by_the_run(lone_engine, monkeypatch, tmp_path):
    monkeypatch.setenv("MNIST_NPZ", str(tmp_path / "nothing.npz"))
    with pytest.raises(TrainingFailed, match=r"MNIST_NPZ: expected a file, got .*nothing.npz.*correct MNIST_NPZ"):
        run(lone_engine, NUMPY, [Training()])


@pytest.mark.parametrize(("devices", "expected"), [(0, 1), (2, 2)])
def test_a_probe_reports_at_least_its_first_steps(monkeypatch, small_data, devices, expected):
    reports = [(index, Steps(0, 0, np.ones(4, np.float32), 10.0)) for index in (0, 1)]
    monkeypatch.setattr(worker, "_events", lambda job, data: iter([*reports, (0, None), *reports]))
    job = Job(NUMPY, (Training(), Training()), devices, probe_s=0.2)
    assert [type(answer) for answer in worker.train_job(job, small_data)] == [Progress] * expected


LOST = "INTERNAL: Failed to synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"


@pytest.fixture
def losing_engine(lone_engine, monkeypatch):
    def process(module, arguments, environment, *rest):
        kept = {} if "numpy" in arguments else {stub_worker.FAILS: ""}
        return stub_worker.start(module, arguments, environment | kept, *rest)

    monkeypatch.setattr(engine_module, "Process", process)
    monkeypatch.setenv(stub_worker.FAILS, LOST)
    return lone_engine


@pytest.mark.slow
def test_a_lost_card_is_reported_with_a_remedy_and_ends_the_worker(losing_engine, monkeypatch):
    messages = losing_engine.run([Job(NUMPY, (MANY,))], Cancel())
    until_steps(messages)
    lost = psutil.Process(losing_engine.pids()["numpy/cpu"])
    with pytest.raises(CardLost, match=r"no longer responds .*CUDA_ERROR_LAUNCH_FAILED.*nvidia-smi or dmesg.*restart"):
        list(messages)
    assert not psutil.wait_procs([lost], timeout=10)[1], "its process can do nothing more with the card"
    monkeypatch.setenv(stub_worker.FAILS, "shapes (3,) and (4,) do not fit")
    with pytest.raises(TrainingFailed, match="stopped with RuntimeError: shapes") as error:
        run(losing_engine, NUMPY, [MANY])
    assert not isinstance(error.value, CardLost)
    assert psutil.Process(losing_engine.pids()["numpy/cpu"]).is_running(), "an error of another kind ends no worker"
    assert list(losing_engine.examine(NUMPY, Examination("operation", operation=OperationRequest("sine", 4)), Cancel()))


@pytest.mark.slow
def test_a_lost_card_does_not_stop_other_runtimes_of_a_sweep(losing_engine, store):
    trained = []
    items = [Item(MANY, runtime) for runtime in (NUMPY, Runtime("jax-step"))]
    found = updates(items, losing_engine, store, Cancel())
    with pytest.raises(CardLost):
        trained.extend(update.item for update in found if isinstance(update, Finished))
    assert trained == items[1:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LOST, "the GPU no longer responds"),
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors", "the GPU no longer responds"),
        ("cudaErrorECCUncorrectable: uncorrectable ECC error encountered", "the GPU no longer responds"),
        ("Unable to determine the device handle: GPU has fallen off the bus", "the GPU no longer responds"),
        ("RESOURCE_EXHAUSTED: Out of memory: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "not enough memory"),
        ("CUDA error: no kernel image is available for execution on the device", "stopped with RuntimeError"),
        ("CUDA error: invalid argument", "stopped with RuntimeError"),
        ("INVALID_ARGUMENT: shapes do not fit", "stopped with RuntimeError"),
    ],
)
def test_an_error_becomes_one_sentence_which_says_whether_the_card_is_lost(text, words):
    sentence = _sentence(RuntimeError(text))
    assert words in sentence
    assert "\n" not in sentence


JOB = Job(Runtime(), (MIXED[0],))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({0: "jax 0.0.1"}, r"process \d+: it has .*jax.*expected jax 0.0.1; install the same requirements"),
        ({1: "other"}, "a different version of this project's code"),
        ({2: "0" * 64}, "its training images differ"),
    ],
)
def test_a_worker_that_would_compute_something_else_refuses(changes, words):
    expected = dict(enumerate(expected_here(Runtime(), ""))) | changes
    with pytest.raises(TrainingFailed, match=words):
        perform(JOB, tuple(expected.values()))  # type: ignore[arg-type]


def test_a_cluster_refuses_libraries_in_a_separate_environment(monkeypatch):
    monkeypatch.setattr(worker, "environment_of", lambda _: Environment("/elsewhere/bin/python", ()))
    with pytest.raises(TrainingFailed, match=r"expected /elsewhere/bin/python, which has JAX.*strategy sequential"):
        perform(JOB, expected_here(Runtime(), ""))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (concurrent.futures.BrokenExecutor("gone"), "2 of 2 tasks failed.*BrokenExecutor: gone"),
        (TrainingFailed("worker a: it has others"), "^worker a: it has others$"),
    ],
)
def test_a_broken_executor_is_reported(engine, error, words):
    def submit(*_):
        future = concurrent.futures.Future()
        future.set_exception(error)
        return future

    with pytest.raises(TrainingFailed, match=words):
        made(MIXED[:2], engine, executor=SimpleNamespace(submit=submit), max_waste=0.0)


# Dask's threads still close sockets after the client is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
START_S = 60.0


def start(module, *arguments):
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error"}
    return subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    process = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    limit = time.monotonic() + START_S
    while not file.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    yield json.loads(file.read_text())["address"]
    process.terminate()
    process.wait(10)


@pytest.fixture
def workers(scheduler):
    from distributed import Client

    found = [
        start("dask_worker", scheduler, "--name", name, "--nthreads", "1", "--no-nanny") for name in ("one", "two")
    ]
    with Client(scheduler, timeout=START_S, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=START_S)
    yield found
    for process in found:
        process.kill()
        process.wait(10)


TRAININGS = [Training(Network((width,)), rate, 512, 6) for rate in (0.1, 0.2, 0.3, 0.4) for width in (16, 24, 32)]


@pytest.mark.release
def test_a_worker_killed_during_a_sweep_costs_only_its_trainings(scheduler, workers, engine, store, monkeypatch):
    monkeypatch.setenv(worker.ADDRESS, scheduler)
    found, strategies = {}, []
    items = [Item(training) for training in TRAININGS]
    for update in updates(items, engine, store, Cancel()):
        if isinstance(update, Picked):
            strategies.append(update.strategy)
        if isinstance(update, Finished):
            found[update.item] = update
            if len(found) == 1:
                os.kill(workers[0].pid, signal.SIGKILL)
    assert strategies == ["cluster"]
    assert set(found) == set(items)
    _, alone = made(items[:3], engine, strategy="padded")  # sums in the workers' order
    for place, item in enumerate(items[:3]):
        np.testing.assert_allclose(found[item].curve.losses, alone[place].curve.losses, atol=1e-4)
    _, again = made(items, engine, store)
    assert all(update.cached for update in again.values()), "streamed back, and kept"


def test_workers_that_refuse_are_left_out_and_named(monkeypatch, capsys):
    answers: dict = {"one": "", "other": "it has a different version", "third": ImportError("No module named 'lib'")}

    client = MagicMock()
    client.run.side_effect = lambda *_, **__: answers
    client.get_executor.side_effect = lambda workers, **_: workers
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=lambda *_, **__: client))
    monkeypatch.setenv(worker.ADDRESS, "tcp://host:8786")
    with cluster(None, Runtime(), "") as found:
        assert found == (["one"], 1)
    told = capsys.readouterr().err
    assert "left out: other: it has a different version\nleft out: third: it cannot import this project" in told
    for left, words in (("other", "can be used: it has a different version"), ("no more", "it has no workers yet")):
        answers = {name: why for name, why in answers.items() if name == left}
        with pytest.raises(TrainingFailed, match=words), cluster(None, Runtime(), ""):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no address", "tcp://127.0.0.1"])
def test_an_unreachable_scheduler_is_reported(address, monkeypatch):
    monkeypatch.setattr(worker, "ANSWER_S", 1.0)
    monkeypatch.setenv(worker.ADDRESS, address)
    with pytest.raises(match=r"did not answer within 1 s; .*choose another strategy"), cluster(None, Runtime(), ""):
        pass


def test_a_missing_dask_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setenv(worker.ADDRESS, "tcp://127.0.0.1:9")
    with pytest.raises(match="run `make cluster`"), cluster(None, Runtime(), ""):
        pass
