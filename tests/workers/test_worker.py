"""The process at the other end: what it answers, and when it ends."""

import subprocess
import sys

import numpy as np
import psutil
import pytest

from lib.backends.base import Epoch, Steps
from lib.backends.registry import Runtime
from lib.spec import Training
from lib.workers import worker
from lib.workers.engine import Engine
from lib.workers.messages import (
    How,
    Item,
    Job,
    Progress,
    Trained,
    TrainingFailed,
)
from tests.conftest import ROOT
from tests.workers.test_engine import JAX, events_of, run


def test_trainings_of_a_job_advance_side_by_side(engine):
    items = {Item(Training(learning_rate=rate), JAX) for rate in (0.01, 0.1)}
    messages = run(engine, JAX, [item.training for item in items])
    first_epochs = [m.item for m in messages if isinstance(m, Progress) and isinstance(m.event, Epoch)][:2]
    assert set(first_epochs) == items, "both finish their first epoch before one finishes its second"
    assert {m.item for m in messages if isinstance(m, Trained)} == items


def test_parameters_come_back_when_asked_for(engine):
    (trained,) = [
        m
        for m in run(engine, JAX, [Training(batch_size=512, epochs=1)], how=How(want_parameters=True))
        if isinstance(m, Trained)
    ]
    assert trained.parameters is not None
    assert [weights.shape for weights, _ in trained.parameters] == [(784, 128), (128, 10)]


def test_a_worker_whose_parent_was_dead_before_it_began_ends():
    """Started, but its parent died before any task came: nothing is left to tell it so but the parent's id."""
    code = """
import sys
from multiprocessing import Pipe
from lib.workers.worker import main
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


def test_a_worker_ends_when_it_is_idle():
    engine = Engine(idle_s=1.0)
    try:
        run(engine, Runtime("numpy"), [Training(batch_size=4096, epochs=1)])
        worker = psutil.Process(engine.pids()["numpy/cpu"])
        _, alive = psutil.wait_procs([worker], timeout=6)
        assert not alive
        assert events_of(run(engine, Runtime("numpy"), [Training(batch_size=4096, epochs=1)]), Epoch), (
            "the next run starts another"
        )
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
    """On a slow machine one report is longer than the whole probe; a stack's trainings all tell theirs."""
    reports = [(index, Steps(0, 0, np.ones(4, np.float32), 10.0)) for index in (0, 1)]
    monkeypatch.setattr(worker, "_events", lambda job, data: iter([*reports, (0, None), *reports]))
    how = How(devices=devices, probe_s=0.2)
    job = Job(1, Runtime("numpy"), (Training(), Training()), how)
    assert [type(answer) for answer in worker._train(job, small_data)] == [Progress] * expected
