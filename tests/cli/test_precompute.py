"""Precomputing in a terminal: it ends in time, goes on where it stopped, and says how much is answered."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from lib.cache_folder import cache_dir
from lib.cli import precompute as command
from lib.cli.precompute import EXPERIMENTS, main
from lib.labs.mnist_training import EXPERIMENTS as PANELS
from lib.sweeps.storage.store import Store
from lib.sweeps.workers import engine as engine_module
from lib.ui.panel import settings_of
from tests import stub_worker
from tests.conftest import ROOT
from tests.sweeps.storage.test_store import curve, key


@pytest.fixture(autouse=True)
def _own_folder_and_workers(tmp_path, monkeypatch):
    """In this process nothing is really trained."""
    monkeypatch.setattr(engine_module, "Process", stub_worker.start)
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MNIST_OFFLINE", "1")


FEW = {
    "rate.range": ([0.1, 1.0], (0.1, 1.0)),
    "rate.count": (2, (2, 3)),
    "rate.size": (4096, (4096,)),
    "rate.hidden": ("4", ()),
    "size.sizes": ((2048, 4096), (2048, 4096)),
    "size.rate": (0.1, (0.1,)),
    "size.hidden": ("4", ()),
    "depth.networks": (("4",), ("4", "4→4")),
    "depth.rate": (0.1, (0.1,)),
    "depth.size": (4096, (4096,)),
    "backend.rate": (0.1, ()),
} | {f"{panel}.epochs": (1, (1, 2)) for panel in EXPERIMENTS}


def only(monkeypatch, positions):
    """Let sliders have these positions, and the last experiment none."""
    every = settings_of(PANELS)
    few = {name: replace(every[name], usual=usual, options=options) for name, (usual, options) in positions.items()}
    monkeypatch.setattr(command, "settings_of", lambda _: every | few)


@pytest.fixture
def few_positions(monkeypatch):
    """Of small networks."""
    only(monkeypatch, FEW)


def wait_until_it_trains(program):
    """Read what it says until a training is stored."""
    assert any("trainings; now" in line for line in program.stdout)


def trained(said):
    return int(re.findall(r": ([\d,]+) trainings", said)[0])


@pytest.mark.slow
def test_it_ends_when_the_time_is_up_and_goes_on(few_positions, capsys):
    assert main(["--minutes", "0.0001"]) == 3
    first = capsys.readouterr()
    assert first.err == ""
    assert "the time is up: " in first.out
    assert main([]) == 0
    second = capsys.readouterr().out
    assert "rate: 2 of 2 positions answered" in second
    assert "size: 3 of 3 positions answered" in second
    assert "depth: 3 of 3 positions answered" in second
    assert trained(first.out) + trained(second) == 5, "three rates, another batch size and another network, each once"
    assert main([]) == 0
    assert "complete: 0 trainings" in capsys.readouterr().out


@pytest.mark.release
def test_ctrl_c_keeps_what_is_trained(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-m", "lib.cli.precompute", "--minutes", "5"],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_it_trains(program)
        program.send_signal(signal.SIGINT)
        said, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert (program.returncode, errors) == (3, "")
    assert "stopped: " in said
    assert trained(said) > 0


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_it_and_what_was_stored_is_there(monkeypatch, capsys):
    only(monkeypatch, FEW | {"rate.count": (2, tuple(range(2, 13)))})
    whole, limits = Store._prepared, list[int]()
    Store().put(key(), curve())

    def with_little_room(self, path):
        database = whole(self, path)
        if not limits:
            limits.append(database.execute("PRAGMA page_count").fetchone()[0] + 4)
        database.execute(f"PRAGMA max_page_count = {limits[0]}")  # SQLite's own “database or disk is full”
        return database

    monkeypatch.setattr(Store, "_prepared", with_little_room)
    assert main(["--minutes", "5"]) == 1
    assert "the disk is full; free the disk" in capsys.readouterr().err
    assert Store().get(key()) is not None
    with closing(sqlite3.connect(cache_dir() / "results.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM curves").fetchone()[0] > 1, "what was trained before it was full"
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "100000"])
def test_minutes_out_of_range_are_refused(minutes, capsys):
    assert main(["--minutes", minutes]) == 1
    assert "expected more than 0, up to 1440" in capsys.readouterr().err


@pytest.mark.slow
def test_the_time_left_is_told_in_minutes(few_positions, capsys):
    assert main(["--minutes", "30"]) == 0
    left = re.findall(r"at most (\d+):\d\d left", capsys.readouterr().out)
    assert left
    assert all(20 <= int(minutes) < 30 for minutes in left)
