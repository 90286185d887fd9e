"""What is kept: same curve back, faults of disk and file, several writers."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from lib import records as records_module
from lib import store as store_module
from lib.backends import Way
from lib.backends.base import Epoch, no_parameters
from lib.records import Curve, Key
from lib.spec import Network, Training
from lib.store import Store
from tests.conftest import ROOT


def curve(n: int = 5) -> Curve:
    epochs = (Epoch(0, n, 0.5, 0.9, 0.1, 0.01, no_parameters), Epoch(1, n, 0.4, 0.91, 0.1, 0.01, no_parameters, 3))
    return Curve(0.25, epochs, np.linspace(2, 1, 2 * n, dtype=np.float32))


def key(**changes) -> Key:
    return Key(Training(Network((7,)), **changes), Way("numpy"), "digest", "numpy 2")


def test_a_curve_comes_back_as_it_was(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    assert store.get(key()) is None
    store.put(key(), curve())
    again = Store(tmp_path / "results.sqlite").get(key())
    assert again is not None
    np.testing.assert_array_equal(again.losses, curve().losses)
    assert again.epochs == curve().epochs
    assert again.first_call_s == 0.25
    assert again.measured_at
    assert again.machine
    assert store.trouble == ""


@pytest.mark.parametrize("change", ["training", "way", "data", "versions", "sources"])
def test_the_key_is_everything_that_matters(tmp_path, monkeypatch, change):
    store = Store(tmp_path / "results.sqlite")
    store.put(key(), curve())
    other = {
        "training": key(seed=1),
        "way": Key(key().training, Way("jax-step"), "digest", "numpy 2"),
        "data": Key(key().training, Way("numpy"), "other", "numpy 2"),
        "versions": Key(key().training, Way("numpy"), "digest", "numpy 3"),
    }.get(change, key())
    if change == "sources":
        monkeypatch.setattr(records_module, "source_digest", lambda: "changed")
    assert store.get(other) is None


def test_a_full_disk_is_told_and_nothing_fails(tmp_path, monkeypatch):
    store = Store(tmp_path / "results.sqlite")
    store.put(key(), curve())
    whole = Store._prepared

    def full(self, path):
        database = whole(self, path)
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own “database or disk is full”
        return database

    monkeypatch.setattr(Store, "_prepared", full)
    big = curve(200_000)
    assert store.put(key(seed=1), big).losses is big.losses
    assert "full" in store.trouble
    assert "free the disk" in store.trouble
    assert store.get(key()) is not None, "what was kept is still there"


def test_an_unwritable_folder_is_told_and_nothing_fails(monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", "/proc/nowhere")
    store = Store()
    assert "cannot be written" in store.trouble
    assert store.get(key()) is None
    store.put(key(), curve())


def test_a_damaged_file_is_set_aside_not_deleted(tmp_path):
    path = tmp_path / "results.sqlite"
    path.write_bytes(b"this is no database" * 100)
    store = Store(path)
    store.put(key(), curve())
    assert store.get(key()) is not None
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes().startswith(b"this is no database")


def test_a_newer_file_is_left_alone(tmp_path):
    path = tmp_path / "results.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    store = Store(path)
    assert store.get(key()) is None
    assert "newer version" in store.trouble
    assert not list(tmp_path.glob("*.damaged-*"))


def test_the_oldest_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_BYTES", 3 * curve(100).losses.nbytes)
    store = Store(tmp_path / "results.sqlite")
    for seed in range(5):
        store.put(key(seed=seed), curve(100))
        time.sleep(0.002)
    assert [store.get(key(seed=seed)) is not None for seed in range(5)] == [False, False, True, True, True]


def test_two_processes_write_and_one_is_killed(tmp_path):
    """Whatever a killed writer had put is there afterwards, and the file is sound."""
    code = """
import sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.test_store import curve, key
from lib.store import Store
store = Store(Path(sys.argv[1]))
for seed in range(int(sys.argv[2]), int(sys.argv[2]) + 10_000):
    store.put(key(seed=seed), curve())
    print(seed, flush=True)
"""
    path = str(tmp_path / "results.sqlite")
    Store(tmp_path / "results.sqlite").get(key())
    writers = [
        subprocess.Popen([sys.executable, "-c", code, path, first], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for first in ("0", "20000")
    ]
    lines = [next(writer.stdout) for _ in range(12) for writer in writers if writer.stdout is not None]
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
    lines += [line for writer in writers for line in writer.communicate(timeout=60)[0].splitlines(keepends=True)]
    said = [int(line) for line in lines if line.endswith("\n")]
    assert len(said) >= 24
    store = Store(tmp_path / "results.sqlite")
    assert all(store.get(key(seed=seed)) is not None for seed in said)
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
