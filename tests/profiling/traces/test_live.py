"""A training under its library's profiler: a chunk of steps, and a sentence where another profile is being recorded."""

import jax
import pytest

from lib.backends.registry import Runtime, unavailable
from lib.profiling.harness import Subject
from lib.profiling.request import PLAIN, PROFILED, Examination, NotMeasured
from lib.profiling.run import examine
from lib.profiling.traces import live, reading
from lib.spec import Network

NETWORK = Network((16,))


@pytest.mark.parametrize("backend", ["jax-step", "jax-epoch", "torch"])
def test_the_profile_is_of_the_steps_that_are_told(small_data, tmp_path, backend):
    if unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    asked = Examination("trace", NETWORK, 32, folder=str(tmp_path))
    rows = {row[0]: row[1] for row in examine(backend, "cpu", asked, small_data) if row is not None}
    assert set(rows) == {PLAIN, PROFILED}
    steps = rows[PROFILED].steps_per_block
    assert 1 <= steps <= 20, "an epoch of the small data has 20 steps"
    file = next(path for path in tmp_path.rglob("*") if path.name.endswith(("xplane.pb", "trace.json")))
    trace = reading.read(file, backend)
    counts = {call.name: call.count for call in trace.calls}
    if backend == "jax-step":
        assert counts["PjitFunction(one_step)"] in (steps, 2 * steps)
        assert "PjitFunction(evaluate)" not in counts, "evaluation is left out"
    if backend == "torch":
        assert counts["Optimizer.step#SGD.step"] == steps
    assert any(call.kind == "kernel" for call in trace.calls)


def test_a_profiler_that_another_holds_is_told_in_a_sentence(small_data, tmp_path):
    jax.profiler.start_trace(str(tmp_path / "other"))
    try:
        with pytest.raises(NotMeasured, match="expected the profiler of JAX to be free, but another profile"):
            list(live.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path / "ours")))
    finally:
        jax.profiler.stop_trace()
    assert not (tmp_path / "ours").exists()
    rows = list(live.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path / "ours")))
    assert any(row is not None for row in rows), "the next one is recorded"


def test_a_library_without_a_profiler_is_told(small_data, tmp_path):
    with pytest.raises(NotMeasured, match="NumPy has no profiler of its own; choose another backend"):
        list(live.record("numpy", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path)))


def test_it_can_be_stopped_before_the_profiler_starts(small_data, tmp_path):
    rows = live.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path))
    assert next(rows) is None
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert list(tmp_path.iterdir()) == []


def test_batches_larger_than_an_epoch_s_share_are_profiled_too(small_data, tmp_path):
    """An epoch of two steps: each chunk ends with it, and the evaluation is passed before the next."""
    rows = {
        row[0]: row[1]
        for row in live.record("jax-step", Subject(NETWORK, 320, small_data, "cpu"), str(tmp_path))
        if row
    }
    assert rows[PROFILED].steps_per_block == 2
