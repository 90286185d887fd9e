import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.traces import form
from lib.timing.profiling.traces.form import KINDS, STATES, Collector, Refused, parsed, waited_for, written


def nested_rows(draw_tree, start=0, depth=0):
    """Rows (start, end, depth, own time) of a tree whose nodes contain their children in sequence, and its end."""
    rows, at, inside = [], start + 1, 0
    for child in draw_tree:
        below, end = nested_rows(child, at, depth + 1)
        rows += below
        inside += end - at
        at = end + 1
    end = at + 1
    return [(start, end, depth, end - start - inside), *rows], end


TREES = st.recursive(st.just([]), lambda children: st.lists(children, max_size=4), max_leaves=25)


def collected(rows):
    found = Collector()
    for lane, start, end in rows:
        found.add(found.lane(lane), f"row {start}", "dispatch", start, end - start)
    return found


@given(TREES, TREES)
def test_own_time_and_depth_match_the_tree(first, second):
    known = [(lane, *row) for lane, tree in enumerate((first, second)) for row in nested_rows(tree)[0]]
    rows = collected((lane, start, end) for lane, start, end, _, _ in known).trace("", "").rows
    own_ns, depth = form.nested(rows)
    assert {*zip(rows.lane, rows.start_ns, form.end_ns(rows), depth, own_ns, strict=True)} == {*known}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 50)), max_size=30))
def test_any_rows_are_added_up_once(rows):
    trace = collected((lane, start, start + length) for lane, start, length in rows).trace("any", "any")
    assert sum(call.count for call in trace.calls) == trace.n_rows == sum(length > 0 for _, _, length in rows)
    assert sum(call.total_ns for call in trace.calls) == sum(length for _, _, length in rows)
    assert all(0 <= call.self_ns <= call.total_ns for call in trace.calls)
    assert sum(waited_for(trace, *trace.span_ns).seconds.values()) == pytest.approx(trace.span_s)
    assert (np.diff(trace.rows.start_ns) >= 0).all()
    assert written(parsed(written(trace))) == written(trace)


def test_the_middle_of_a_long_trace_is_kept(monkeypatch):
    monkeypatch.setattr(form, "MAX_KEPT", 10)
    trace = collected(("lane", 10 * k, 10 * k + 5) for k in range(100)).trace("long", "any")
    assert (len(trace.rows), trace.n_rows, len(trace.calls)) == (10, 100, 100)
    assert [trace.names[n] for n in trace.rows.name] == [f"row {10 * k}" for k in range(45, 55)]
    assert trace.span_ns[0] == 0


def test_the_shortest_of_many_calls_are_merged(monkeypatch):
    monkeypatch.setattr(form, "MAX_CALLS", 3)
    trace = collected(("lane", 100 * k, 101 * k + 1) for k in range(10)).trace("many", "any")
    assert [call.name for call in trace.calls] == ["row 900", "row 800", "row 700", form.REST]
    assert trace.calls[-1].count == 7
    assert sum(call.count for call in trace.calls) == 10


def test_too_many_rows_or_threads_are_refused(monkeypatch):
    monkeypatch.setattr(form, "MAX_ROWS", 5)
    with pytest.raises(Refused, match="more than 5 rows; record fewer steps"):
        collected(("lane", k, k + 1) for k in range(6))
    monkeypatch.setattr(form, "MAX_LANES", 2)
    with pytest.raises(Refused, match="more than 2 threads"):
        collected((k, 0, 1) for k in range(3))


def test_names_are_shortened_without_control_characters():
    assert form.shortened("a\x00b\n") == "a b"
    assert len(form.shortened("x" * 5000)) == form.MAX_NAME


def test_absurd_times_do_not_overflow():
    largest = form.MAX_NS - 1
    trace = collected([("a", -largest, 0), ("a", 0, largest), ("b", largest, 2 * largest)] * 3).trace("far", "any")
    assert (trace.rows.start_ns >= 0).all()
    assert (form.end_ns(trace.rows) > trace.rows.start_ns).all()
    assert all(0 <= call.self_ns <= call.total_ns <= form.MAX_NS for call in trace.calls)
    assert written(parsed(written(trace))) == written(trace)


OF_HOST = {
    "dispatch": ["PjitFunction(one_step)", "ThunkExecutor::Execute", "EagerLocalExecute: AssignVariableOp", "custom"],
    "wait": [
        *("ThunkExecutor::Execute (wait for completion)", "np.asarray(jax.Array)", "Iterator::Root::Prefetch"),
        "cudaStreamSynchronize",
    ],
    "transfer": ["DevicePut", "ArrayImpl.copy_to_host_async", "cudaMemcpyAsync"],
    "kernel": ["StatefulPartitionedCall/sequential_1/dense_1/Relu:_MklNativeFusedMatMul"],
    "python": ["$train.py:12 step", "$profiler.py:355 wrapper"],
    "launch": ["cuLaunchKernel"],
    "profiler": [
        *("$profiler.py:101 start_trace", "$profiler_v2.py:60 start", "torch/profiler/profiler.py(811): step"),
        *("Command Buffer Full", "Activity Buffer Request", "Lazy Function Loading"),
    ],
    "communication": ["gloo:all_reduce", "NCCL_ALLREDUCE"],
}
OF_PROGRAMS = {
    "kernel": ["dot_general.9", "multiply_subtract_fusion.3"],
    "dispatch": ["while.1"],
    "transfer": ["copy.2"],
    "communication": ["all-reduce.3"],
}
OF_CUDA = {"launch": ["cuCtxSetCurrent", "cuEventRecord"], "transfer": ["cuMemcpyDtoHAsync"]}
OF_DEVICES = {
    "communication": [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)",
    ],
    "kernel": ["void at::native::reduce_kernel<512, 1>"],
    "transfer": ["Memcpy HtoD (Pageable -> Device)", "__amd_rocclr_copyBuffer.kd"],
}


@pytest.mark.parametrize(
    ("known", "kind"),
    [
        (OF_HOST, form.kind_of),
        (OF_PROGRAMS, lambda name: form.kind_of(name, operation=True)),
        (OF_CUDA, form.cuda_kind),
        (OF_DEVICES, form.device_kind),
    ],
    ids=["host", "programs", "CUDA", "devices"],
)
def test_kinds_are_derived_from_names(known, kind):
    assert {expected: [name for name in names if kind(name) == expected] for expected, names in known.items()} == known


def test_computing_and_launching_calls_are_recognised_by_name():
    names = ("aten::mm", "aten::add_", "aten::threshold_backward", "aten::t", "aten::empty_like", "aten::transpose")
    assert [form.computes(name) for name in (*names, "AddmmBackward0")] == [True] * 3 + [False] * 4
    assert all(map(form.launches, ("cudaLaunchKernel", "hipExtModuleLaunchKernel", "cudaGraphLaunch", "queue.submit")))
    assert not any(map(form.launches, ("cudaEventRecord", "cuCtxSetCurrent", "cudaLaunchHostFunc", "cudaMalloc")))


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(KINDS), st.integers(0, 40), st.integers(1, 20)),
    min_size=1,
    max_size=20,
)


def trace_of(rows, python=0):
    found = Collector()
    for lane, kind, start, length in rows:
        number = found.lane(lane, f"lane {lane}", "python" if lane == python else "host")
        found.add(number, f"{kind} of {lane}", kind, start, length)
    return found.trace("made", "a test")


def state_at(trace, moment):
    """The state by definition, for the nanosecond that starts at `moment`."""
    columns = (trace.rows.lane, trace.rows.kind, trace.rows.start_ns, form.end_ns(trace.rows))
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    running = {KINDS[kind] for _, kind, start, end in rows if start <= moment < end}
    for kind in ("kernel", "communication", "transfer", "profiler", "launch", "dispatch", "python"):
        if kind in running:
            return kind
    own = [(s, e) for lane, _, s, e in rows if trace.lanes[lane].role == "python"]
    between = own and min(s for s, _ in own) <= moment < max(e for _, e in own)
    if not between or any(s <= moment < e for s, e in own):
        return "unknown"
    goes_on = min(s for s, _ in own if s > moment)
    handed_over = any(moment < s < goes_on for lane, _, s, _ in rows if trace.lanes[lane].role != "python")
    return "unknown" if handed_over else "python"


@given(ROWS, st.integers(0, 10), st.integers(11, 20))
def test_states_match_the_definition_at_each_moment(rows, low, high):
    trace = trace_of(rows)
    began, ended = form.window(trace, low / 20, high / 20)
    parts = waited_for(trace, began, ended)
    assert (parts.edges_ns[0], parts.edges_ns[-1]) == (began, ended)
    for index in range(len(parts.state)):
        for moment in range(int(parts.edges_ns[index]), int(parts.edges_ns[index + 1])):
            assert STATES[parts.state[index]] == state_at(trace, moment)
    assert sum(parts.seconds.values()) + parts.profiler_s == pytest.approx((ended - began) * 1e-9)
    assert all(a != b for a, b in zip(parts.state[:-1], parts.state[1:], strict=True))


@given(ROWS)
def test_gaps_of_a_lane_are_where_it_has_no_row(rows):
    trace = trace_of(rows)
    parts = waited_for(trace, *trace.span_ns)
    for lane in range(len(trace.lanes)):
        gaps = form.gaps(trace, lane, parts)
        free = {(moment, STATES[state]) for start, end, state in gaps for moment in range(start, end)}
        own = trace.rows[trace.rows.lane == lane]
        busy = {moment for row in zip(own.start_ns, form.end_ns(own), strict=True) for moment in range(*row)}
        assert free == {(moment, state_at(trace, moment)) for moment in {*range(*trace.span_ns)} - busy}


def test_the_most_expensive_calls_are_ranked_by_own_time_without_waits():
    trace = trace_of([(0, "dispatch", 0, 100), (0, "kernel", 1, 90), (1, "wait", 0, 200), (1, "launch", 300, 20)])
    ranked = [(call.kind, call.self_ns) for call in form.dearest(trace)]
    assert ranked == [("kernel", 90), ("launch", 20), ("dispatch", 10)]
    assert len(form.dearest(trace, 1)) == 1


def test_changes_between_traces_are_given_per_step():
    before = trace_of([(0, "kernel", 0, 100), (0, "launch", 200, 50)])
    after = trace_of([(0, "kernel", 0, 100), (1, "transfer", 0, 10)])
    found = {name: own_s for name, _, *own_s in form.changes(before, after, per=(1.0, 2.0))}
    assert list(found) == ["kernel of 0", "launch of 0", "transfer of 1"]
    assert found["kernel of 0"] == pytest.approx([100e-9, 50e-9])
    assert found["launch of 0"] == [pytest.approx(50e-9), None]
    assert found["transfer of 1"] == [None, pytest.approx(5e-9)]
