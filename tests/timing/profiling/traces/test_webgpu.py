"""WebGPU's trace: two clocks brought together by what must come first, and rows of what was submitted."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.registry import BACKENDS
from lib.model.backends.webgpu import step
from lib.model.backends.with_webgpu import LAUNCHES
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import Network
from lib.timing.profiling import with_webgpu as webgpu
from lib.timing.profiling.traces.form import parsed, waited_for, written
from lib.timing.profiling.with_webgpu import ENCODE, READ, SUBMIT, WAITED, Recorder, alignment_ns
from tests.software_adapter import needs_software_adapter

NETWORK, SIZE, STEPS = Network((4,)), 8, 3
NS = st.integers(0, 10**9)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(NS, NS, NS, NS, st.booleans()), min_size=1, max_size=8))
def test_the_true_difference_of_two_clocks_lies_within_what_is_said(ahead, events):
    seen, now = [], 2 * 10**15
    for to_begin, lasting, to_know, pause, waited in events:
        began, ended = now + to_begin, now + to_begin + lasting
        seen.append((now, began - ahead, ended - ahead, ended + to_know if waited else None))
        now = ended + to_know + pause
    found = alignment_ns(seen)
    if not any(waited for *_, waited in events):
        assert found is None, "nothing bounds it from above"
    else:
        assert found is not None
        assert abs(found[0] - ahead) <= found[1]


def test_what_cannot_be_aligned_is_told():
    assert alignment_ns([]) is None
    slower = [(1_000, 1, 2, 1_100), (2_000, 901, 902, 2_050)]
    assert alignment_ns(slower[:1]) is not None
    assert alignment_ns([*slower, (3_000, 2_900, 2_901, 3_010)]) is None, "the clocks contradict each other"
    assert alignment_ns([(1_000, 0, 0, 1_100)]) is None, "a device that writes 0 says nothing"


@pytest.fixture
def on():
    pytest.importorskip("wgpu")
    from lib.model.backends.with_webgpu import gpu

    return gpu(SOFTWARE)


def launched(backend, data, on, recorded=True) -> tuple[Any, np.ndarray]:
    """The trace of a few steps, None where they are not `recorded`, and their losses."""
    from lib.model.backends.base import initial_parameters
    from lib.model.backends.with_webgpu import Execution, training_images

    run = Execution(on, step(NETWORK, SIZE), training_images(data, SOFTWARE), STEPS, "A step")
    run.set(initial_parameters(NETWORK, 0), 0.1)
    run.schedule(np.arange(STEPS) * SIZE)
    recorder = Recorder(on, SOFTWARE) if recorded else None
    try:
        LAUNCHES[backend](run, STEPS)
        on.wait()
        losses = run.results(0, STEPS)
    finally:
        trace = recorder.trace() if recorder is not None else None
    return trace, losses


@needs_software_adapter
@pytest.mark.parametrize("backend", LAUNCHES)
def test_every_operation_is_there_between_its_submission_and_the_wait_for_it(small_data, on, backend):
    if not on.has_clock:
        pytest.skip("this adapter has no timestamps")
    trace, losses = launched(backend, small_data, on)
    names = [operation.name for operation in step(NETWORK, SIZE).operations]
    counts = {call.name: call.count for call in trace.calls}
    one_kernel = backend == "webgpu-kernel"
    expected = {f"{STEPS} steps in one kernel": 1} if one_kernel else dict.fromkeys(names, STEPS)
    assert {name: counts[name] for name in expected} == expected
    encoded = {"webgpu-operation": STEPS * len(names), "webgpu-step": STEPS}.get(backend, 1)
    assert counts[ENCODE] == encoded
    assert counts[READ] == 1
    rows = trace.rows
    calls = [trace.names[name] for name in rows.name]
    role = np.array([trace.lanes[lane].role for lane in rows.lane])
    on_device, submitted = role == "device", np.array([name == SUBMIT for name in calls])
    off_ns = 2e5  # far more than what is said, far less than any step's: the bounds are checked by another test
    for index in np.flatnonzero(on_device):
        (of,) = np.flatnonzero(submitted & (rows.correlation == rows.correlation[index]))
        assert rows.start_ns[index] >= rows.start_ns[of] - off_ns
    last_wait = max(rows.end_ns[index] for index, name in enumerate(calls) if name in (WAITED, READ))
    assert rows.end_ns[on_device].max() <= last_wait + off_ns
    assert waited_for(trace, *trace.span_ns).seconds["kernel"] > 0
    assert parsed(written(trace)).calls == trace.calls
    np.testing.assert_array_equal(losses, launched(backend, small_data, on, recorded=False)[1], "recording changes it")


@needs_software_adapter
def test_mesas_clock_is_the_hosts_own(small_data, on, monkeypatch):
    if not on.has_clock or not on.name.startswith("llvmpipe") or sys.platform != "linux":
        pytest.skip("not Mesa's adapter")
    found, aligned = [], alignment_ns
    monkeypatch.setattr(webgpu, "alignment_ns", lambda seen: found.append(aligned(seen)) or found[-1])
    trace, _ = launched("webgpu-step", small_data, on)
    ((ahead_ns, off_ns),) = found
    assert abs(ahead_ns) <= off_ns
    assert "aligned with the host's to ±" in trace.notes[1]
    assert trace.notes[0] == on.name
    assert trace.lanes[1].name == "software adapter", "it is no GPU"


@needs_software_adapter
def test_without_timestamps_the_host_alone_is_shown(small_data, on, monkeypatch):
    monkeypatch.setattr(on, "has_clock", False)
    trace, _ = launched("webgpu-chunk", small_data, on)
    assert [lane.role for lane in trace.lanes] == ["python"]
    assert "no timestamps" in trace.notes[1]


@needs_software_adapter
def test_rows_that_cannot_be_placed_are_left_out(small_data, on, monkeypatch):
    monkeypatch.setattr(webgpu, "alignment_ns", lambda seen: None)
    trace, _ = launched("webgpu-chunk", small_data, on)
    assert [lane.role for lane in trace.lanes] == ["python"]
    assert ("contradict" in trace.notes[1]) is on.has_clock


@needs_software_adapter
def test_there_are_more_operations_than_a_set_of_timestamps_holds(small_data, on, monkeypatch):
    if not on.has_clock:
        pytest.skip("this adapter has no timestamps")
    monkeypatch.setattr(webgpu, "MOST_PASSES", 5)
    trace, _ = launched("webgpu-chunk", small_data, on)
    assert int(np.sum(trace.rows.lane == 1)) == STEPS * len(step(NETWORK, SIZE).operations)


@needs_software_adapter
def test_a_recording_leaves_nothing_behind_also_after_an_error(small_data, on):
    before = {**vars(on)}
    recorder = Recorder(on, SOFTWARE)
    from lib.model.backends.with_webgpu import Execution, training_images

    run = Execution(on, step(NETWORK, SIZE), training_images(small_data, SOFTWARE), STEPS, "A step")
    run.encoded(1)
    trace = recorder.trace()
    assert [lane.role for lane in trace.lanes] == ["python"]
    assert vars(on).keys() == before.keys()
    assert not {"submit", "write_buffer", "read_buffer"} & vars(on.queue).keys()


def test_every_way_of_launching_is_a_backend_that_can_be_recorded():
    from lib.timing.profiling.run import _PROFILERS

    assert all("wgpu" in _PROFILERS.keys() & set(BACKENDS[backend].needs) for backend in LAUNCHES)
    assert {BACKENDS[backend].worker for backend in LAUNCHES} == {"webgpu"}
