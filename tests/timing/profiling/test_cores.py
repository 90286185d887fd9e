"""The same work on each core: a row for each, and the process is left where it was."""

import os

import pytest

from lib.timing.profiling.request import CORES, Examination
from lib.timing.profiling.run import examine


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process can be bound to a core")
def test_each_core_has_a_row_and_the_process_keeps_its_cores(small_data, monkeypatch):
    monkeypatch.setattr("lib.timing.profiling.cores.STEPS", 1000)
    before = os.sched_getaffinity(0)
    rows = {row[0]: row[1] for row in examine("numpy", "cpu", Examination(CORES), small_data) if row}
    assert {name for name in rows if name != "steal"} == {f"core {number}" for number in before}
    assert all(len(rows[f"core {number}"].block_s) == 20 for number in before)
    assert os.sched_getaffinity(0) == before
    running = examine("numpy", "cpu", Examination(CORES), small_data)
    next(running)
    running.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert os.sched_getaffinity(0) == before, "also where it is stopped"
