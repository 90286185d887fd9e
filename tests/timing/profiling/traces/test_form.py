"""The one form: rows that lie in each other, calls added up, bounds, and the form as a file that anybody may write."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.traces import form
from lib.timing.profiling.traces.form import (
    DISPATCH,
    KERNEL,
    KINDS,
    TRANSFER,
    Collector,
    Refused,
    device_kind,
    nested,
    parsed,
    written,
)


def nested_rows(draw_tree, start=0, depth=0):
    """Rows of a tree: each node's children lie in it, one after another; (start, end, depth, own)."""
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
        found.add(found.lane(lane), f"row {start}", DISPATCH, start, end - start)
    return found


@given(TREES, TREES)
def test_own_time_and_depth_are_those_of_the_tree(first, second):
    """Two lanes, which do not lie in each other."""
    known = {}
    for lane, tree in enumerate((first, second)):
        for start, end, depth, own in nested_rows(tree)[0]:
            known[(lane, start)] = (end, depth, own)
    rows = collected((lane, start, end) for (lane, start), (end, _, _) in known.items()).rows()
    own_ns, depth = nested(rows)
    for lane, start, own, level in zip(
        rows.lane.tolist(), rows.start_ns.tolist(), own_ns.tolist(), depth.tolist(), strict=True
    ):
        assert (level, own) == known[(lane, start)][1:]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 50)), max_size=30))
def test_whatever_comes_is_added_up_once(rows):
    trace = collected((lane, start, start + length) for lane, start, length in rows).trace("any", "any")
    assert sum(call.count for call in trace.calls) == trace.n_rows == sum(length > 0 for _, _, length in rows)
    assert sum(call.total_ns for call in trace.calls) == sum(length for _, _, length in rows)
    assert all(0 <= call.self_ns <= call.total_ns for call in trace.calls)
    assert (np.diff(trace.rows.start_ns) >= 0).all()
    assert written(parsed(written(trace))) == written(trace)


def test_the_middle_of_a_long_trace_is_kept(monkeypatch):
    monkeypatch.setattr(form, "MAX_KEPT", 10)
    trace = collected(("lane", 10 * k, 10 * k + 5) for k in range(100)).trace("long", "any")
    assert (len(trace.rows), trace.n_rows, len(trace.calls)) == (10, 100, 100)
    assert [trace.names[n] for n in trace.rows.name] == [f"row {10 * k}" for k in range(45, 55)]
    assert trace.span_ns[0] == 0


def test_the_shortest_of_many_calls_are_one(monkeypatch):
    monkeypatch.setattr(form, "MAX_CALLS", 3)
    trace = collected(("lane", 100 * k, 101 * k + 1) for k in range(10)).trace("many", "any")
    assert [call.name for call in trace.calls] == ["row 900", "row 800", "row 700", form.REST]
    assert trace.calls[-1].count == 7
    assert sum(call.count for call in trace.calls) == 10


def test_more_than_is_read_is_refused(monkeypatch):
    monkeypatch.setattr(form, "MAX_ROWS", 5)
    with pytest.raises(Refused, match="more than 5 rows; record fewer steps"):
        collected(("lane", k, k + 1) for k in range(6))
    monkeypatch.setattr(form, "MAX_LANES", 2)
    with pytest.raises(Refused, match="more than 2 threads"):
        collected((k, 0, 1) for k in range(3))


def test_what_pytorch_s_calls_compute_is_where_most_of_their_time_is_their_own():
    found = Collector()
    lane = found.lane("thread")
    for name, start, length in (
        ("aten::linear", 0, 100),
        ("aten::t", 1, 5),
        ("aten::addmm", 10, 80),
        ("aten::copy_", 12, 6),
    ):
        found.add(lane, name, DISPATCH, start, length)
    kinds = {call.name: call.kind for call in found.trace("torch", "PyTorch", calls_compute=True).calls}
    assert kinds == {"aten::linear": DISPATCH, "aten::t": DISPATCH, "aten::addmm": KERNEL, "aten::copy_": KERNEL}


TRACE = json.loads(written(collected([("a", 0, 5), ("b", 1, 3)]).trace("small", "any")))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": [[0, 9, 0, 1, 1, 0]]}, "a row names a lane or a call that is not there"),
        ({"rows": [[9, 0, 0, 1, 1, 0]]}, "a row names a lane or a call that is not there"),
        ({"rows": [[0, 0, len(KINDS), 1, 1, 0]]}, "but then"),
        ({"rows": [[0, 0, 0, -1, 1, 0]]}, "but then"),
        ({"rows": [[0, 0, 0, 2**63, 1, 0]]}, "but then"),
        ({"rows": [[0, 0, 0, 1, 0, 0]]}, "but then"),
        ({"names": ["x" * 10_000]}, "but then"),
        ({"more": 1}, "but then"),
        ({"about": {"steps": [1]}}, "but then"),
    ],
)
def test_a_saved_trace_that_somebody_changed_is_refused(change, why):
    with pytest.raises(Refused, match=why):
        parsed(json.dumps(TRACE | change))


def test_a_saved_trace_that_is_cut_off_is_refused():
    with pytest.raises(Refused, match="copy the whole file"):
        parsed(json.dumps(TRACE)[:-20])


def test_names_are_shortened_and_show_no_control_character():
    assert form.shortened("a\x00b\n") == "a b"
    assert len(form.shortened("x" * 5000)) == form.MAX_NAME


def test_absurd_times_overflow_nothing():
    largest = form.MAX_NS - 1
    trace = collected([("a", -largest, 0), ("a", 0, largest), ("b", largest, 2 * largest)] * 3).trace("far", "any")
    assert (trace.rows.start_ns >= 0).all()
    assert (trace.rows.end_ns > trace.rows.start_ns).all()
    assert all(0 <= call.self_ns <= call.total_ns <= form.MAX_NS for call in trace.calls)
    assert written(parsed(written(trace))) == written(trace)


def test_a_stream_s_rows_are_arithmetic_or_copies_and_what_repeats_them_is_left_out():
    found = Collector()
    for lane in ("stream", "repeated"):
        found.add(found.lane(lane), "loop_fusion", DISPATCH, 0, 5)
        found.add(found.lane(lane), "MemcpyD2H", TRANSFER, 5, 5)
    found.tell("stream", device_kind, every=True)
    found.leave_out("repeated")
    trace = found.trace("card", "any")
    assert {(call.name, call.kind, call.count) for call in trace.calls} == {
        ("loop_fusion", KERNEL, 1),
        ("MemcpyD2H", TRANSFER, 1),
    }
    assert (trace.n_rows, len(trace.lanes)) == (2, 1)
