"""Who is waited for: held against the definition, moment by moment; and what two traces differ in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.traces.form import (
    COMMUNICATION,
    DISPATCH,
    KERNEL,
    KINDS,
    LAUNCH,
    NOBODY,
    PROFILER,
    PYTHON,
    STATES,
    TRANSFER,
    WAIT,
    Collector,
    changes,
    dearest,
    gaps,
    waited_for,
    window,
)

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
    """The definition, for the nanosecond that begins at a moment."""
    rows = list(
        zip(
            trace.rows.lane.tolist(),
            trace.rows.kind.tolist(),
            trace.rows.start_ns.tolist(),
            trace.rows.end_ns.tolist(),
            strict=True,
        )
    )
    running = {KINDS[kind] for _, kind, start, end in rows if start <= moment < end}
    for kind in (KERNEL, COMMUNICATION, TRANSFER, PROFILER, LAUNCH, DISPATCH, PYTHON):
        if kind in running:
            return kind
    own = [(s, e) for lane, _, s, e in rows if trace.lanes[lane].role == "python"]
    between = own and min(s for s, _ in own) <= moment < max(e for _, e in own)
    if not between or any(s <= moment < e for s, e in own):
        return NOBODY
    goes_on = min(s for s, _ in own if s > moment)
    handed_over = any(moment < s < goes_on for lane, _, s, _ in rows if trace.lanes[lane].role != "python")
    return NOBODY if handed_over else PYTHON


@given(ROWS, st.integers(0, 10), st.integers(11, 20))
def test_each_moment_has_the_state_of_the_definition(rows, low, high):
    trace = trace_of(rows)
    began, ended = window(trace, low / 20, high / 20)
    parts = waited_for(trace, began, ended)
    assert (parts.edges_ns[0], parts.edges_ns[-1]) == (began, ended)
    for index in range(len(parts)):
        for moment in range(int(parts.edges_ns[index]), int(parts.edges_ns[index + 1])):
            assert STATES[parts.state[index]] == state_at(trace, moment)
    assert sum(parts.seconds.values()) + parts.profiler_s == pytest.approx((ended - began) * 1e-9)
    assert all(a != b for a, b in zip(parts.state[:-1], parts.state[1:], strict=True))


@given(ROWS)
def test_gaps_are_where_a_lane_has_no_row(rows):
    trace = trace_of(rows)
    parts = waited_for(trace, *trace.span_ns)
    for lane in range(len(trace.lanes)):
        free = {
            (moment, STATES[state]) for start, end, state in gaps(trace, lane, parts) for moment in range(start, end)
        }
        own = [
            (s, e)
            for at, s, e in zip(trace.rows.lane, trace.rows.start_ns, trace.rows.end_ns, strict=True)
            if at == lane
        ]
        assert free == {
            (moment, state_at(trace, moment))
            for moment in range(*trace.span_ns)
            if not any(s <= moment < e for s, e in own)
        }


def test_a_trace_without_rows_waits_for_nobody():
    empty = Collector().trace("empty", "a test")
    assert sum(waited_for(empty, *empty.span_ns).seconds.values()) == 0


def test_the_dearest_are_those_of_their_own_and_waiting_is_none():
    trace = trace_of([(0, DISPATCH, 0, 100), (0, KERNEL, 1, 90), (1, WAIT, 0, 200), (1, LAUNCH, 300, 20)])
    assert [(call.kind, call.self_ns) for call in dearest(trace)] == [(KERNEL, 90), (LAUNCH, 20), (DISPATCH, 10)]
    assert len(dearest(trace, 1)) == 1


def test_what_became_shorter_is_told_a_step():
    before = trace_of([(0, KERNEL, 0, 100), (0, LAUNCH, 200, 50)])
    after = trace_of([(0, KERNEL, 0, 100), (1, TRANSFER, 0, 10)])
    found = {change.name: change for change in changes(before, after, per=(1.0, 2.0))}
    assert found["kernel of 0"].saved_s == pytest.approx(50e-9)
    assert (found["launch of 0"].after_s, found["transfer of 1"].before_s) == (None, None)
    assert found["transfer of 1"].saved_s == pytest.approx(-5e-9)
