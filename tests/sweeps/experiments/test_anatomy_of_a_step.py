"""A step taken apart by every library in turn: what is asked for, what is shown, and real workers.

The ceilings are measured in the workers, by each library once, and kept.
"""

import os
import re
import subprocess

import pytest

from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import ceilings, measure_ceilings, measure_tasks, tasks
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.roofline import step_floor
from tests.conftest import ROOT

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


@pytest.mark.slow
def test_a_stop_keeps_what_is_done(engine, tmp_path):
    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    todo = tasks([Runtime("numpy")], NETWORK, 32)
    for events in measure_tasks(todo, engine, store, cancel, Request()):
        if isinstance(events, Record):
            cancel.set()
    assert 1 <= len(store.records(Kind.ANATOMY)) < 5


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


@pytest.mark.release
def test_they_are_measured_once_and_make_a_floor(engine, store):
    runtimes = [Runtime("numpy"), Runtime("jax-epoch"), Runtime("jax-step")]
    assert ceilings(runtimes[0], store) is None
    list(measure_ceilings(runtimes, engine, store, Cancel()))
    assert len(store.records(Kind.CEILING)) == 6, "two libraries, three probes each; both backends of JAX share one"
    list(measure_ceilings(runtimes, engine, store, Cancel()))
    assert len(store.records(Kind.CEILING)) == 6
    known = ceilings(runtimes[1], store)
    assert known is not None
    assert set(known.dispatch_s) == {"numpy", "jax-epoch", "jax-step", "jax-operation"}
    one = step_floor(Network((128,)), 32, known, "jax-step", calls_per_step=1)
    assert 1e-7 < one.seconds < 1e-2
    assert one.seconds >= step_floor(Network((128,)), 32, known, "jax-epoch", calls_per_step=1 / 1500).seconds


def test_a_cards_cache_comes_from_its_driver(store):
    card = Runtime("jax-epoch", "gpu")
    subject = {"library": "jax", "device": "gpu", "precision": "float32", "work": 1e12}
    for name in ("product", "copy"):
        store.add(Record.of(Kind.CEILING, subject | {"name": name}, Measurement((1.0,), 1, Ended.CAP)))
    known = ceilings(card, store)
    assert known is not None
    assert known.cache_bytes == 0
    assert not step_floor(Network((128,)), 32, known).cache_known
    measured = Measurement((float(50 * 2**20),), 1, Ended.CAP)
    store.add(Record.of(Kind.CEILING, subject | {"name": "cache", "work": 1.0}, measured))
    known = ceilings(card, store)
    assert known is not None
    assert known.cache_bytes == 50 * 2**20
    assert step_floor(Network((128,)), 32, known).cache_known


WITH_A_CARD = [".venv requirements-gpu.txt", ".venv-cuda12 requirements-cuda12.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "wanted"), [("GPU 0: NVIDIA L4", WITH_A_CARD), ("", [".venv requirements.txt"])])
def test_where_a_driver_answers_the_cuda_builds_are_installed(tmp_path, answer, wanted):
    for name in ("Makefile", "requirements.txt", "requirements-gpu.txt", "requirements-cuda12.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{f'echo {answer}' if answer else 'exit 9'}\n")
    fake.chmod(0o755)
    environment = os.environ | {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    said = subprocess.run(
        ["make", "-n", "install"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    installed = re.findall(r"^(\S+)/bin/python -m pip .* -r (\S+)$", said, re.MULTILINE)
    assert [" ".join(pair) for pair in installed] == wanted
