"""Nested sines as a reader sees them: from literal points, each sentence only what they show."""

import pytest

from lib.backends.registry import Runtime
from lib.profiling.request import Operation
from lib.views import nested_sines as view
from tests.views.test_single_operations import timed

NUMPY, JAX = Runtime("numpy"), Runtime()


def sine(runtime, size, **ways):
    """Bytes of work: two arrays of float32 a pass, four passes one by one."""
    operation = Operation("sine", size, depth=4)
    return timed(runtime, operation, lambda way: 8.0 * size * (4 if way.startswith("eager") else 1), **ways)


@pytest.mark.parametrize(
    ("eager_s", "fused_s", "bandwidth", "words"),
    [
        (4e-3, 1e-3, 10e9, ["3 of 4 passes", "JAX is 4 times as fast with it", "8.37 GB/s, 84%", ": memory bound."]),
        (1e-3, 1e-3, 100e9, ["takes the same time with it", "8% of what a copy moves", "not memory bound"]),
        (1e-3, 2e-3, 7e9, ["takes 2 times as long with it", "memory and arithmetic take about as long"]),
        (4e-3, 1e-3, 2e9, ["419% of what a copy moves here: not from memory, but from a cache."]),
    ],
)
def test_memory_bound_is_computed(eager_s, fused_s, bandwidth, words):
    points = [sine(JAX, 2**20, **{"eager/waited": eager_s, "fused/waited": fused_s})]
    text = view.sine_sentence(points, "JAX", 4, {"cpu": bandwidth})
    assert [word for word in words if word not in text] == [], text
    assert view.sine_sentence(points, "NumPy", 4, {"cpu": bandwidth}) == ""
    assert "bound" not in view.sine_sentence(points, "JAX", 4, {})


def test_a_single_sine_has_nothing_to_fuse():
    text = view.sine_sentence([sine(JAX, 64, **{"eager/waited": 1e-3, "fused/waited": 1e-3})], "JAX", 1, {})
    assert text == (
        "Compiling a single sine saves no pass over memory; at 64 elements JAX takes the same time with it."
    )


def test_published_sines_stand_beside_those_measured_here():
    points = [sine(JAX, 64, **{"eager/waited": 4e-3, "fused/waited": 1e-3}), sine(NUMPY, 64, **{"eager/waited": 1e-3})]
    text = view.sines_published(points, "JAX", 4)
    assert "100\u202fμs → 50\u202fμs, four, A100" in text
    assert "4\u202fms → 1\u202fms, 4 sines of 64 by JAX" in text
    assert "not measured yet" in view.sines_published([], "JAX", 4)
    assert "NumPy makes them one by one only" in view.sines_published(points, "NumPy", 4)
    assert [line.label for line in view.sine_ways_of(points, "JAX")] == list(view.SINE_LABELS)
    assert {(line.label, line.way) for line in view.bandwidth_lines(points)} == {
        ("JAX", "fused/waited"),
        ("NumPy", "eager/waited"),
    }
    assert "0.000511, 0.000511 GB/s" in view.sines_table(points)
