import pytest

from lib.model.backends.registry import Runtime, complete_environment, unavailable
from lib.timing.profiling import operations
from lib.timing.profiling.first_use import FRESH, REPEATED

RUNTIME = Runtime("keras-tensorflow")


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.skipif(unavailable(RUNTIME) is not None, reason="TensorFlow is not installed")
def test_every_stage_is_timed_and_first_calls_take_longer(subject, monkeypatch):
    for name, value in complete_environment(RUNTIME).items():
        monkeypatch.setenv(name, value)
    rows = [row for row in operations.measure_models(subject) if row is not None]
    found = {name: measured.block_s for name, measured, _ in rows}
    assert [name for name in found if name in FRESH] == list(FRESH)
    assert set(found) == {*FRESH, *REPEATED}
    assert found["step"][0] > min(found["step again"]), "the first is traced and compiled"
    assert all(s > 0 for seconds in found.values() for s in seconds)
