"""A real Dask scheduler and two workers, as processes of this machine: results, a worker that dies, and who is
refused."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lib.model.backends.registry import Runtime
from lib.model.spec import Network, Training
from lib.sweeps import dask_cluster
from lib.sweeps.dask_cluster import NoCluster, connected
from lib.sweeps.events import Finished, Picked, WorkerRefused
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Item
from tests.conftest import ROOT

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
    monkeypatch.setenv(dask_cluster.ADDRESS, scheduler)
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


@pytest.mark.release
def test_a_worker_of_another_state_is_refused_by_name(scheduler, engine, tmp_path, monkeypatch):
    monkeypatch.setenv(dask_cluster.ADDRESS, scheduler)
    other = tmp_path / "other"
    shutil.copytree(ROOT / "lib", other / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    changed = other / "lib" / "model" / "spec.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    processes = [start_worker(scheduler, "older", other)]
    try:
        wait_for_workers(scheduler, 1)
        with pytest.raises(NoCluster, match=r"no worker .* can be used: .*another state of this project's code"):
            list(updates([Item(TRAININGS[0])], engine, None, Cancel()))
        processes.append(start_worker(scheduler, "same"))
        wait_for_workers(scheduler, 2)
        events = list(updates([Item(TRAININGS[0])], engine, None, Cancel()))
        (refused,) = [update.why for update in events if isinstance(update, WorkerRefused)]
        assert "another state of this project's code; copy this one there" in refused
        assert len([update for update in events if isinstance(update, Finished)]) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no address", "tcp://127.0.0.1"])
def test_a_scheduler_that_does_not_answer_is_a_sentence(address, monkeypatch):
    monkeypatch.setattr(dask_cluster, "ANSWER_S", 1.0)
    with pytest.raises(NoCluster, match=r"did not answer within 1 s; .*choose another strategy"):
        with connected(address, Runtime(), ""):
            pass


def test_without_dask_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(NoCluster, match="run `make cluster`"):
        with connected("tcp://127.0.0.1:9", Runtime(), ""):
            pass
