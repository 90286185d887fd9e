"""Precomputing in a terminal: it ends in time, goes on where it stopped, and says how much is answered."""

import os
import re
import signal
import subprocess
import sys

import pytest

from lib.cli.precompute import main
from lib.storage.store import Store
from tests.conftest import ROOT
from tests.storage.test_store import curve, key


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MNIST_OFFLINE", "1")


def positions_answered(said):
    return sum(int(number.replace(",", "")) for number in re.findall(r": ([\d,]+) of", said))


@pytest.mark.slow
def test_it_ends_in_time_and_goes_on(capsys):
    assert main(["--minutes", "0.4"]) == 3
    first = capsys.readouterr()
    assert first.err == ""
    assert "the time is up: " in first.out
    assert positions_answered(first.out) > 0
    assert main(["--minutes", "0.1"]) == 3
    second = capsys.readouterr()
    assert positions_answered(second.out) >= positions_answered(first.out)


@pytest.mark.slow
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
        assert program.stdout is not None
        for line in program.stdout:
            if "trainings; now" in line:
                break
        program.send_signal(signal.SIGINT)
        said, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert (program.returncode, errors) == (3, "")
    assert "stopped: " in said
    assert positions_answered(said) > 0


@pytest.mark.slow
def test_a_full_disk_ends_it_and_what_was_stored_is_there(monkeypatch, capsys):
    whole = Store._prepared
    Store().put(key(), curve())

    def full(self, path):
        database = whole(self, path)
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own “database or disk is full”
        return database

    monkeypatch.setattr(Store, "_prepared", full)
    assert main(["--minutes", "5"]) == 1
    assert "the disk is full; free the disk" in capsys.readouterr().err
    assert Store().get(key()) is not None


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "100000"])
def test_minutes_out_of_range_are_refused(minutes, capsys):
    assert main(["--minutes", minutes]) == 1
    assert "expected more than 0, up to 1440" in capsys.readouterr().err
