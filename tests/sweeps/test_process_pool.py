"""Tasks in other processes: one that dies costs only its own, one of other versions refuses by name."""

import concurrent.futures
import os
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest

from lib.backends.environments import Environment
from lib.backends.registry import Runtime, versions
from lib.spec import Network, Training
from lib.sweeps import process_pool
from lib.sweeps.events import Finished, Void
from lib.sweeps.process_pool import Died, Expected, OtherVersions, PoolTask, TaskFailed, local_pool, perform, run_tasks
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.messages import Item
from tests.sweeps.sweeping import MIXED, made


@pytest.mark.release
def test_a_killed_process_costs_only_its_training(engine):
    """The pool loses a process in the middle; what it had runs again."""
    trainings = [replace(training, epochs=20, batch_size=512) for training in MIXED[:4]]
    events, killed = [], False
    for update in updates([Item(t) for t in trainings], engine, None, Cancel(), Options("processes")):
        events.append(update)
        if not killed and (children := pooled_processes()):
            killed = True
            time.sleep(0.5)
            os.kill(children[0], signal.SIGKILL)
    finished = [trainings.index(update.item.training) for update in events if isinstance(update, Finished)]
    assert killed
    assert sorted(finished) == [0, 1, 2, 3]
    assert any(isinstance(update, Void) for update in events)


def pooled_processes() -> list[int]:
    executor = local_pool(Runtime()).executor
    return [pid for pid in list(executor._processes or {}) if psutil.pid_exists(pid)]


def test_a_cancelled_pool_is_free_at_once(engine):
    cancel = Cancel()
    items = [Item(Training(Network((256,)), rate, 32, 50)) for rate in (0.1, 0.2, 0.3, 0.4)]
    busy: list[psutil.Process] = []

    def cancel_when_they_are_there():
        while not (pids := pooled_processes()):
            time.sleep(0.05)
        busy.extend(map(psutil.Process, pids))
        cancel.set()

    local_pool(Runtime(), fresh=True)
    threading.Thread(target=cancel_when_they_are_there, daemon=True).start()
    for _ in updates(items, engine, None, cancel, Options("processes")):
        pass
    _, alive = psutil.wait_procs(busy, timeout=60)
    assert busy
    assert not alive, "nothing goes on in the background"
    assert sorted(made(MIXED[:1], engine, strategy="sequential")[1]) == [0]


def expected_here():
    return Expected.here(Runtime(), "")


def test_a_worker_of_other_versions_refuses_by_name():
    task = PoolTask(Runtime(), MIXED[:1], replace(expected_here(), versions="jax 0.0.1"))  # type: ignore[arg-type]
    with pytest.raises(
        OtherVersions, match=r"process \d+ has .*jax.*expected jax 0.0.1; install the same requirements"
    ):
        perform(task)
    task = replace(task, expected=replace(expected_here(), sources="other"))
    with pytest.raises(OtherVersions, match="another state of this project's code"):
        perform(task)
    task = replace(task, expected=Expected(versions(Runtime("jax-epoch")), expected_here().sources, "0" * 64))
    with pytest.raises(OtherVersions, match="other training images"):
        perform(task)


def test_a_library_in_an_environment_of_its_own_is_not_trained_in_a_pool(monkeypatch):
    """The pool's processes run in this one, where the library would be another build, or none."""
    assert process_pool.pools_are_possible(Runtime())
    monkeypatch.setattr(process_pool, "environment_of", lambda _: Environment("/elsewhere/bin/python", ()))
    assert not process_pool.pools_are_possible(Runtime())
    with pytest.raises(OtherVersions, match=r"expected /elsewhere/bin/python, which has JAX.*strategy sequential"):
        perform(PoolTask(Runtime(), (MIXED[0],), expected_here()))


class Broken(concurrent.futures.Executor):
    """Breaks so many times, then fails whatever fails."""

    def __init__(self, times):
        self.times = times

    def submit(self, function, *arguments):  # type: ignore[override]
        future: concurrent.futures.Future = concurrent.futures.Future()
        self.times -= 1
        error = concurrent.futures.BrokenExecutor("gone") if self.times >= 0 else ValueError("no such thing")
        future.set_exception(error)
        return future


def test_a_task_that_kills_its_process_again_and_again_is_given_up():
    task = PoolTask(Runtime(), (MIXED[0],), expected_here())
    with pytest.raises(TaskFailed, match="its process ended 3 times"):
        list(run_tasks([task], Broken(99), 1, Cancel(), lambda: Broken(99)))
    found = []
    with pytest.raises(TaskFailed, match=r"1 of 1 tasks failed.*ValueError: no such thing"):
        found.extend(run_tasks([task], Broken(1), 1, Cancel(), lambda: Broken(0)))
    assert any(isinstance(events, Died) for events in found)
