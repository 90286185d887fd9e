"""Classes of several sizes in one run: which rows and targets each has, and that a later one costs no earlier one."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks import classroom, report
from benchmarks.report import row
from benchmarks.viewers import Usage, numbers_of_viewers
from lib.pages.places import MAX_VIEWERS


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    return tmp_path


def played(viewers: int, *_) -> list[report.Row]:
    """A class whose every tenth move is lost."""
    if viewers == 13:
        raise RuntimeError("nobody came")
    moves = [
        row(name, [0.1, 0.2], lost=viewers // 10, told=0, p95_s=0.2, viewers=viewers)
        for name in ("precomputed", "live")
    ]
    full = row("turned away", [], told=max(0, viewers - MAX_VIEWERS), viewers=viewers)
    server = row("server", [], peak_mb=700.0, growth_mb=1.0, workers_peak_mb=900.0, runs_left=0, viewers=viewers)
    return [*moves, row("browser", [0.1], lost=0, told=0, viewers=viewers), full, server]


def test_two_classes_have_their_rows_in_one_table(monkeypatch, out):
    monkeypatch.setenv("VIEWERS", "100,300")
    monkeypatch.setattr(classroom, "_one_class", played)
    classroom.main()
    rows = json.loads((out / "classroom.json").read_text())
    assert [one["viewers"] for one in rows] == [100] * 5 + [300] * 5
    assert {one["workers_peak_mb"] for one in rows if one["name"] == "server"} == {900.0}
    written = report.RESULTS.read_text()
    assert "workers_peak_mb" in written
    assert "- met 100 viewers: moved to what is stored: 0.15 s" in written
    assert "- MISSED 300 viewers: lost: 60" in written
    assert "300 viewers: moved" not in written, "it has more than there are places for"


def test_what_was_measured_before_something_went_wrong_is_kept(monkeypatch, out):
    monkeypatch.setenv("VIEWERS", "5,13")
    monkeypatch.setattr(classroom, "_one_class", played)
    with pytest.raises(RuntimeError, match="nobody came"):
        classroom.main()
    assert len(json.loads((out / "classroom.json").read_text())) == 5


@pytest.mark.parametrize("asked", ["0", "5,", "many", "1,1001", "-3"])
def test_numbers_of_viewers_that_cannot_be(monkeypatch, asked):
    monkeypatch.setenv("VIEWERS", asked)
    with pytest.raises(RuntimeError, match="VIEWERS: expected numbers from 1 to 1,000, such as 1,5,20, got"):
        numbers_of_viewers((100,), 1_000)


def test_the_memory_of_workers_is_not_the_server_s():
    held_mb = 200
    hold = f"held = b'x' * {held_mb * 10**6}; print(flush=True); input()"
    command = [sys.executable, "-c", hold]
    with Usage(psutil.Process()) as usage:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            limit = time.monotonic() + 20
            while usage.workers_peak_mb < held_mb:
                assert time.monotonic() < limit, f"expected {held_mb} MB, got {usage.workers_peak_mb:.0f} MB"
                time.sleep(0.05)
            worker.communicate(b"\n")
    assert usage.peak_mb < psutil.Process().memory_info().rss / 1e6 + held_mb
