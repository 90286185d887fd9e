import time

import pytest

from lib.model.backends.registry import Runtime, complete_environment, unavailable
from lib.sweeps.workers.engine import Process
from lib.timing.profiling.first_use import FRESH, REPEATED

RUNTIME = Runtime("keras-tensorflow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(unavailable(RUNTIME) is not None, reason="TensorFlow is not installed"),
]


@pytest.mark.release
def test_every_stage_is_sent_and_first_calls_take_longer():
    process = Process("lib.timing.profiling.first_use", ("16", "cpu"), complete_environment(RUNTIME))
    try:
        rows = list(iter(process.connection.recv, None))
    finally:
        process.kill()
    found = dict(rows)
    assert [name for name, _ in rows if name in FRESH] == list(FRESH)
    assert set(found) == {*FRESH, *REPEATED}
    assert found["step"][0] > min(found["step again"]), "the first is traced and compiled"
    assert all(s > 0 for seconds in found.values() for s in seconds)


def test_the_process_ends_when_its_connection_closes():
    process = Process("lib.timing.profiling.first_use", ("16", "cpu"), complete_environment(RUNTIME))
    process.connection.close()
    limit = time.monotonic() + 30
    while process.alive and time.monotonic() < limit:
        time.sleep(0.05)
    assert not process.alive
    process.kill()
