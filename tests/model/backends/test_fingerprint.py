import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.model.backends import fingerprint
from lib.model.backends.fingerprint import LOOK_EVERY_S, source_digest
from tests.conftest import ROOT

MEASURES = (
    "formatting.py",
    "model/spec.py",
    "model/backends/webgpu/product.wgsl",
    "timing/profiling/cuda_calls.c",
    "timing/profiling/traces/reading.py",
    "sweeps/workers/worker.py",
)
SHOWS = ("ui/layout.py", "labs/mnist_training.py", "sweeps/sweep.py", "sweeps/storage/store.py")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Files in another folder, which `source_digest` reads in place of the project."""
    for name in (*MEASURES, *SHOWS):
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    monkeypatch.setattr(fingerprint, "_known", ({}, ""))
    monkeypatch.setattr(fingerprint, "_look_at", 0.0)
    monkeypatch.setattr(fingerprint, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(fingerprint, "LOOK_SHARE", 1e9)
    return tmp_path / "lib"


@pytest.mark.parametrize("name", [*MEASURES, *SHOWS])
def test_the_digest_covers_measuring_code_and_not_displaying_code(copy, name):
    before, path = source_digest(), copy / name
    path.write_text(f"def half({name}")  # a half-written module must not fail
    assert (source_digest() != before) == (name in MEASURES)
    path.unlink()
    assert (source_digest() != before) == (name in MEASURES)
    path.write_text(name)  # a new module
    assert source_digest() == before


def test_the_listed_files_exist_in_the_project():
    files = {path.relative_to(ROOT / "lib").as_posix() for path in fingerprint._states()}
    assert set(MEASURES) <= files
    assert not set(SHOWS) & files


def test_one_thread_hashes_at_a_time_and_a_slow_one_delays_the_next(monkeypatch):
    digest, states, go_on, looks = source_digest(), fingerprint._states(), threading.Event(), []

    def slow_look():
        looks.append(threading.get_ident())
        assert go_on.wait(60)
        return states

    monkeypatch.setattr(fingerprint, "_states", slow_look)
    monkeypatch.setattr(fingerprint, "_look_at", 0.0)
    with ThreadPoolExecutor(1) as other:
        looking = other.submit(source_digest)
        while not looks:
            time.sleep(0.01)
        assert source_digest() == digest, "what is known, at once"
        time.sleep(2 * LOOK_EVERY_S)
        go_on.set()
        assert looking.result(60) == digest
    assert source_digest() == digest
    assert len(looks) == 1
    assert fingerprint._look_at > time.monotonic() + LOOK_EVERY_S
