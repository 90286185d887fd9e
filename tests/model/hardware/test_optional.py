"""Without psutil and filelock, memory is still known and locks are always free."""

import psutil
import pytest

from tests.hiding import hiding
from tests.model.programs import said_by

BARE = """
from lib.model.hardware.optional import FileLock, Timeout, free_memory_bytes, psutil, total_memory_bytes
assert psutil is None
lock = FileLock("/nowhere/at/all", timeout=1)
assert not lock.is_locked
with lock:
    assert lock.is_locked
    FileLock("/nowhere/at/all").acquire(timeout=0)
assert not lock.is_locked
assert issubclass(Timeout, TimeoutError)
print(total_memory_bytes(), free_memory_bytes())
"""


def test_memory_and_locks_work_without_optional_packages(tmp_path):
    total, free = map(int, said_by(BARE, **hiding(tmp_path, "psutil", "filelock")).split())
    assert total == pytest.approx(psutil.virtual_memory().total, rel=0.05)
    assert 0 < free < total
