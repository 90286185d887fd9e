"""Trainings by an executor: a process of other versions refuses by name, and what breaks is a sentence."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from lib.model.backends.environments import Environment
from lib.model.backends.registry import Runtime
from lib.model.spec import Network, Training
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import Picked
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers import worker as module
from lib.sweeps.workers.messages import Item, Job, TrainingFailed
from lib.sweeps.workers.queue import Cancel
from lib.sweeps.workers.worker import cluster, expected_here, perform
from tests.conftest import ROOT
from tests.sweeps.sweeping import MIXED

JOB = Job(0, Runtime(), (MIXED[0],))


@pytest.fixture
def expected():
    return expected_here(Runtime(), "")


def test_a_worker_of_other_versions_refuses_by_name(expected):
    with pytest.raises(
        TrainingFailed, match=r"process \d+: it has .*jax.*expected jax 0.0.1; install the same requirements"
    ):
        perform(JOB, ("jax 0.0.1", *expected[1:]))
    with pytest.raises(TrainingFailed, match="another state of this project's code"):
        perform(JOB, (expected[0], "other", ""))
    with pytest.raises(TrainingFailed, match="other training images"):
        perform(JOB, (*expected[:2], "0" * 64))


def test_a_library_in_an_environment_of_its_own_is_not_trained_there(expected, monkeypatch):
    monkeypatch.setattr(module, "environment_of", lambda _: Environment("/elsewhere/bin/python", ()))
    with pytest.raises(TrainingFailed, match=r"expected /elsewhere/bin/python, which has JAX.*strategy sequential"):
        perform(JOB, expected)


class Fails(concurrent.futures.Executor):
    def __init__(self, *errors):
        self.errors = list(errors)

    def submit(self, function, *arguments):  # type: ignore[override]
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_exception(self.errors.pop(0))
        return future


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (concurrent.futures.BrokenExecutor("gone"), "2 of 2 tasks failed.*BrokenExecutor: gone"),
        (TrainingFailed("worker a: it has others"), "^worker a: it has others$"),
    ],
)
def test_an_executor_that_breaks_is_a_sentence(engine, error, words):
    items = [Item(training) for training in MIXED[:2]]
    with pytest.raises(TrainingFailed, match=words):
        list(updates(items, engine, None, Cancel(), Options(executor=Fails(error, error), max_waste=0.0)))


# Dask's own: sockets that its threads still close when the client is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
START_S = 60.0


def start(module, *arguments, cwd=ROOT):
    command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments]
    environment = os.environ | {
        "PYTHONPATH": str(cwd),
        "JAX_PLATFORMS": "cpu",
        "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error",
    }
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def start_worker(address, name, cwd=ROOT):
    return start("dask_worker", address, "--name", name, "--nthreads", "1", "--no-nanny", "--no-dashboard", cwd=cwd)


def wait_for_workers(address, count):
    from distributed import Client

    with Client(address, timeout=START_S, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=START_S)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    import json

    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    process = start(
        "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)
    )
    limit = time.monotonic() + START_S
    while not file.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    yield json.loads(file.read_text())["address"]
    process.terminate()
    process.wait(10)


@pytest.fixture
def workers(scheduler):
    found = [start_worker(scheduler, name) for name in ("one", "two")]
    wait_for_workers(scheduler, 2)
    yield found
    for process in found:
        process.kill()
        process.wait(10)


TRAININGS = [Training(Network((width,)), rate, 512, 6) for rate in (0.1, 0.2, 0.3, 0.4) for width in (16, 24, 32)]


@pytest.mark.release
def test_a_worker_killed_in_mid_sweep_costs_only_its_trainings(scheduler, workers, engine, tmp_path, monkeypatch):
    monkeypatch.setenv(module.ADDRESS, scheduler)
    store, found, picked = Store(tmp_path / "results.sqlite"), {}, []
    items = [Item(training) for training in TRAININGS]
    for update in updates(items, engine, store, Cancel()):
        if isinstance(update, Picked):
            picked.append(update)
        if isinstance(update, Finished):
            found[update.item] = update
            if len(found) == 1:
                os.kill(workers[0].pid, signal.SIGKILL)
    assert [one.strategy for one in picked] == ["cluster"]
    assert set(found) == set(items)
    alone = {
        update.item: update
        for update in updates(items[:3], engine, None, Cancel(), Options("padded"))  # as a worker's: sums in this order
        if isinstance(update, Finished)
    }
    for item in items[:3]:
        np.testing.assert_allclose(found[item].curve.losses, alone[item].curve.losses, atol=1e-4)
    again = list(updates(items, engine, store, Cancel()))
    assert all(update.cached for update in again if isinstance(update, Finished)), "streamed back, and kept"


def test_workers_that_refuse_are_left_out_and_named(monkeypatch, capsys):
    answers: dict = {"one": "", "other": "it has another state", "third": ImportError("No module named 'lib'")}

    client = MagicMock()
    client.run.side_effect = lambda *_, **__: answers
    client.get_executor.side_effect = lambda workers, **_: workers
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=lambda *_, **__: client))
    monkeypatch.setenv(module.ADDRESS, "tcp://host:8786")
    with cluster(None, Runtime(), "") as found:
        assert found == (["one"], 1)
    told = capsys.readouterr().err
    assert "left out: other: it has another state\nleft out: third: it cannot import this project" in told
    for left, words in (("other", "can be used: it has another state"), ("no more", "it has no workers yet")):
        answers = {name: why for name, why in answers.items() if name == left}
        with pytest.raises(TrainingFailed, match=words), cluster(None, Runtime(), ""):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no address", "tcp://127.0.0.1"])
def test_a_scheduler_that_does_not_answer_is_a_sentence(address, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 1.0)
    monkeypatch.setenv(module.ADDRESS, address)
    with pytest.raises(match=r"did not answer within 1 s; .*choose another strategy"):
        with cluster(None, Runtime(), ""):
            pass


def test_without_dask_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setenv(module.ADDRESS, "tcp://127.0.0.1:9")
    with pytest.raises(match="run `make cluster`"):
        with cluster(None, Runtime(), ""):
            pass
