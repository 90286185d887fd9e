"""The cores that this process may use, not those that the machine has."""

import os

import pytest

from lib.model.hardware.machine import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can bind a process to cores")
def test_a_process_bound_to_a_core_has_one():
    before = os.sched_getaffinity(0)
    assert usable_cores() == len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_where_affinity_is_unknown_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_cores() == 12
