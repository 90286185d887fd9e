"""A training under its library's profiler: a chunk of steps, and a sentence where another profile is being recorded."""

import jax
import numpy as np
import pytest

from lib.model.backends.base import Epoch, Steps, no_parameters
from lib.model.backends.registry import Runtime, unavailable
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import Network
from lib.timing.profiling import harness, run
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.request import PLAIN, PROFILED, Examination, NotMeasured
from lib.timing.profiling.run import examine
from lib.timing.profiling.traces import reading
from tests.software_adapter import needs_software_adapter

NETWORK = Network((16,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("jax-step", "cpu"),
        ("jax-epoch", "cpu"),
        ("torch", "cpu"),
        pytest.param("webgpu-step", SOFTWARE, marks=needs_software_adapter),
        pytest.param("webgpu-chunk", SOFTWARE, marks=needs_software_adapter),
    ],
)
def test_the_profile_is_of_the_steps_that_are_told(small_data, tmp_path, backend, device):
    if device == "cpu" and unavailable(Runtime(backend)) is not None:
        pytest.skip(f"{backend} is not installed")
    asked = Examination("trace", NETWORK, 32, folder=str(tmp_path))
    rows = {row[0]: row[1] for row in examine(backend, device, asked, small_data) if row is not None}
    assert set(rows) == {PLAIN, PROFILED}
    steps = rows[PROFILED].steps_per_block
    assert 1 <= steps <= 20, "an epoch of the small data has 20 steps"
    file = next(path for path in tmp_path.rglob("*") if path.name.endswith(("xplane.pb", "trace.json")))
    trace = reading.read(file, backend)
    counts = {call.name: call.count for call in trace.calls}
    if backend == "jax-step":
        assert counts["PjitFunction(one_step)"] in (steps, 2 * steps), counts
        assert "PjitFunction(evaluate)" not in counts, "evaluation is left out"
    if backend == "torch":
        assert counts["Optimizer.step#SGD.step"] == steps
    if backend == "webgpu-step":
        assert counts["encode commands"] == steps
        assert counts.get("batch of images", 0) in (0, steps), "where the adapter has timestamps"
    if device == "cpu":
        assert any(call.kind == "kernel" for call in trace.calls)


@pytest.mark.slow
def test_a_profiler_that_another_holds_is_told_in_a_sentence(small_data, tmp_path):
    jax.profiler.start_trace(str(tmp_path / "other"))
    try:
        with pytest.raises(NotMeasured, match="expected the profiler of JAX to be free, but another profile"):
            list(run.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path / "ours")))
    finally:
        jax.profiler.stop_trace()
    assert not (tmp_path / "ours").exists()
    rows = list(run.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path / "ours")))
    assert any(row is not None for row in rows), "the next one is recorded"


def test_a_library_without_a_profiler_is_told(small_data, tmp_path):
    with pytest.raises(NotMeasured, match="NumPy has no profiler of its own; choose another backend"):
        list(run.record("numpy", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path)))


def test_it_can_be_stopped_before_the_profiler_starts(small_data, tmp_path):
    rows = run.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path))
    assert next(rows) is None
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_batches_larger_than_an_epoch_s_share_are_profiled_too(small_data, tmp_path):
    """An epoch of two steps: each chunk ends with it, and the evaluation is passed before the next."""
    rows = {
        row[0]: row[1] for row in run.record("jax-step", Subject(NETWORK, 320, small_data, "cpu"), str(tmp_path)) if row
    }
    assert rows[PROFILED].steps_per_block == 2


@pytest.mark.parametrize(("chunks", "profiled"), [((0, 8, 16), 8), ((0,), 0)])
def test_what_begins_an_epoch_is_not_profiled_where_it_has_several_chunks(
    small_data, tmp_path, monkeypatch, chunks, profiled
):
    """Keras builds its input pipeline with an epoch's first chunk."""
    asked, at_start = [], []

    def train(_training, data, _device):
        n = len(data.x_train) // 32
        while True:
            for first, end in zip(chunks, (*chunks[1:], n), strict=True):
                asked.append(first)
                yield Steps(0, first, np.ones(end - first, np.float32), 0.2)
            yield Epoch(0, n, 1.0, 0.5, 0.2, 0.1, no_parameters)

    def start(_folder, _device):
        at_start.append(len(asked))
        return lambda: None

    monkeypatch.setattr(harness, "load_train", lambda _: train)
    monkeypatch.setitem(run._PROFILERS, "jax", start)
    list(run.record("jax-step", Subject(NETWORK, 32, small_data, "cpu"), str(tmp_path)))
    assert asked[at_start[0] :] == [profiled]
