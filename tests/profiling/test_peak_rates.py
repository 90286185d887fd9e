"""Every library has probes, and they say how much work a step of theirs is."""

from lib.backends.registry import BACKENDS


def test_every_library_has_its_probes():
    from lib.profiling.peak_rates import _MAKERS

    assert set(_MAKERS) == {backend.worker for backend in BACKENDS.values()}
