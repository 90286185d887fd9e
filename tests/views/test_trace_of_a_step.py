"""A trace as a reader sees it: charts of bounded size, sentences that its rows bear, names that are no HTML."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.experiments import published
from lib.experiments.trace_of_a_step import shipped
from lib.profiling.traces import nsight_csv, nsight_sqlite
from lib.profiling.traces.form import Collector
from lib.profiling.traces.kinds import DISPATCH, KERNEL, KINDS, LAUNCH, PROFILER, PYTHON
from lib.views import trace_of_a_step as view
from lib.views.trace_meanings import hidden
from tests.profiling.traces.files import API_SUM, nsight


def trace_of(rows, **about):
    found = Collector()
    for lane, role, kind, name, start, length in rows:
        found.add(found.lane(lane, lane, role), name, kind, start, length)
    return found.trace("made", "a test", **about)


# 1 μs of which kernels run a quarter, and the rest waits for dispatch.
QUARTER = trace_of([("main", "host", DISPATCH, "call", 0, 1000), ("worker", "host", KERNEL, "gemm", 500, 250)])


def marks(chart):
    return chart.spec["datasets"]["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("trace", shipped(), ids=lambda trace: trace.made_by.split("'")[0])
def test_a_shipped_trace_is_drawn_and_told(trace):
    chart = view.timeline_chart(trace, 0.0, 1.0)
    alt.Chart.from_dict(chart.spec)
    drawn = marks(chart)
    assert 0 < len(drawn) <= view.MAX_MARKS + view.MAX_WAITS
    assert {mark["row"] for mark in drawn} <= set(chart.spec["layer"][0]["encoding"]["y"]["scale"]["domain"])
    low, high = chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert all(low <= mark["from"] <= mark["to"] <= high + 1e-6 for mark in drawn)
    assert "kernels run" in view.sentence(trace, 0.0, 1.0)
    assert view.dearest_list(trace).count("<li>") == 10


def test_the_sentence_says_what_the_rows_say():
    assert view.sentence(QUARTER, 0.0, 1.0) == (
        "In these 1\u202fμs kernels run 25% of the time; the rest waits, for dispatch 75%."
    )
    assert view.sentence(QUARTER, 0.5, 0.75).endswith("kernels run 100% of the time.")


def test_where_no_share_can_be_told_it_is_said_why_instead():
    card = [("thread", "host", LAUNCH, "cudaLaunchKernel", 0, 5), ("thread", "host", DISPATCH, "aten::mm", 5, 500)]
    missing, python = trace_of(card), trace_of([("main", "python", PYTHON, "main", 0, 9)])
    for trace, begins in (
        (missing, "The GPU's rows are missing from this file"),
        (python, "Its rows are functions of"),
    ):
        said = view.sentence(trace, 0.0, 1.0)
        assert said.startswith(begins)
        assert "kernels run 0%" not in said
        for both in ((trace, QUARTER), (QUARTER, trace)):
            assert "no share can be compared" in view.comparison_sentence(*both)
    assert "kernels run" not in " ".join(hidden(replace(missing, made_by="PyTorch's profiler")))
    with_card = trace_of([*card, ("stream", "device", KERNEL, "gemm", 505, 505)])
    assert "kernels run 50% of the time" in view.sentence(with_card, 0.0, 1.0)


def test_the_profiler_s_own_rows_are_named_and_count_in_no_share():
    rows = [("main", "host", PROFILER, "start_trace", 0, 3000), ("main", "host", PYTHON, "walk", 100, 2000)]
    trace = trace_of(
        [*rows, ("main", "host", DISPATCH, "call", 3000, 750), ("worker", "host", KERNEL, "gemm", 3750, 250)]
    )
    said = view.sentence(trace, 0.0, 1.0)
    assert said.startswith("In these 1\u202fμs kernels run 25% of the time; the rest waits, for dispatch 75%.")
    assert "“start_trace”, are left out of all shares, 75% of this part's time" in said
    assert "only the profiler itself" in view.sentence(trace, 0.0, 0.5)
    assert "start_trace" not in view.dearest_list(trace)
    bars = marks(view.part_and_whole_chart(trace, 0.0, 1.0))
    assert bars[-1]["to"] == pytest.approx(1.0)


def test_what_the_profiler_costs_is_told_where_it_was_measured():
    told = view.sentence(replace(QUARTER, about={"profiled_step_s": 3e-4, "plain_step_s": 1e-4, "steps": 7}), 0.0, 1.0)
    assert "300\u202fμs under the profiler (7 steps) and 100\u202fμs without it. What the profiler adds" in told
    alike = view.sentence(replace(QUARTER, about={"profiled_step_s": 1e-4, "plain_step_s": 1e-4}), 0.0, 1.0)
    assert "What the profiler adds" not in alike


def test_shares_are_of_the_whole_and_meet():
    bars = [bar for bar in marks(view.part_and_whole_chart(QUARTER, 0.0, 1.0)) if bar["row"] == "all of it"]
    assert bars[0]["to"] == pytest.approx(0.25)
    assert [bar["what"].split(":")[0] for bar in bars] == ["all of it, kernel", "all of it, dispatch"], "no empty bar"
    assert all(a["to"] == b["from"] for a, b in pairwise(bars))
    assert bars[-1]["to"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (replace(QUARTER, about={"profiled_step_s": 1.2e-4, "plain_step_s": 1e-4}), "the profiler changes the step"),
        (replace(QUARTER, about={"profiled_step_s": 0.8e-4, "plain_step_s": 1e-4}), "the profiler changes the step"),
        (
            trace_of([("a", "host", DISPATCH, "f", 0, 400), ("b", "host", KERNEL, "g", 600, 400)]),
            "what nobody knows is more",
        ),
    ],
)
def test_what_is_more_than_15_percent_off_its_whole_is_no_share(trace, why):
    said = view.sentence(trace, 0.0, 1.0)
    assert "%" not in said.split(" No shares: ")[0]
    assert why in said.split(" No shares: ")[1]
    for chart in (view.part_and_whole_chart(trace, 0.0, 1.0), view.both_chart(QUARTER, trace)):
        assert not any("%" in bar["what"] for bar in marks(chart))
        assert chart.spec["layer"][0]["encoding"]["x"]["title"] == "milliseconds of the profile"
    close = replace(QUARTER, about={"profiled_step_s": 1.1e-4, "plain_step_s": 1e-4, "steps": 1})
    assert "kernels run 25% of the time" in view.sentence(close, 0.0, 1.0)
    told = view.comparison_sentence(replace(trace, about=trace.about | {"steps": 2}), QUARTER)
    assert told.startswith("The two are not of equally many steps")


def test_time_in_kernels_is_not_called_the_arithmetic_of_other_pages():
    for said in (view.legend(), view.sentence(QUARTER, 0.0, 1.0), view.comparison_sentence(QUARTER, QUARTER)):
        assert "arithmetic" not in said.lower()
    marked = [*marks(view.timeline_chart(QUARTER, 0.0, 1.0)), *marks(view.part_and_whole_chart(QUARTER, 0.0, 1.0))]
    assert not any("arithmetic" in mark["what"] for mark in marked)
    page = (Path(__file__).parents[2] / "notebooks" / "trace_of_a_step.py").read_text()
    assert "“arithmetic” on" in page
    assert "other pages is less" in page


def test_a_card_s_gaps_are_coloured_by_who_was_waited_for(tmp_path):
    trace = nsight_sqlite.read(nsight(tmp_path / "a.sqlite", 3), "card")
    faint = [mark for mark in marks(view.timeline_chart(trace, 0.0, 1.0)) if mark["opacity"] < 1]
    assert {mark["row"] for mark in faint} == {"device 0, stream 7"}
    assert {view.COLORS[LAUNCH], view.COLORS[view.NOBODY]} <= {mark["color"] for mark in faint}


def test_the_article_s_counts_stand_beside_the_same_calls(tmp_path):
    path = tmp_path / "report.csv"
    path.write_text(API_SUM)
    trace = nsight_csv.read(path, "report")
    text = view.calls_table(trace)
    assert "published calls" in text
    assert text.count("98,168") == 2, "measured and published"
    assert "cuCtxSetCurrent alone takes 61%" in view.sentence(trace, 0.0, 1.0)
    assert "no lanes" in view.hidden_list(trace)
    other = view.calls_table(QUARTER)
    assert "published calls" not in other
    assert "1,500 steps and 375 batches" in other


def test_the_published_figures_are_the_article_s():
    assert sum(calls for _, _, calls, _ in published.CUDA_CALLS) == 135_731
    assert sum(total for *_, total in published.CUDA_CALLS) == pytest.approx(2.45)


def test_what_is_hidden_is_said(tmp_path):
    graphs = nsight_sqlite.read(nsight(tmp_path / "a.sqlite", 3), "card")
    assert any("3 launches of a CUDA graph" in text for text in hidden(graphs))
    epoch = trace_of(
        [("main", "host", DISPATCH, "while.1", 0, 10), ("main", "host", DISPATCH, "PjitFunction(f)", 20, 5)]
    )
    assert any("1 loop of a compiled program" in text for text in hidden(epoch))
    assert hidden(QUARTER) == []
    card = [("thread", "host", LAUNCH, "cuLaunchKernel", 0, 5), ("stream", "device", KERNEL, "fusion", 5, 5)]
    by_xla = replace(trace_of(card), made_by="JAX's profiler")
    assert any("XLA launches kernel by kernel" in text for text in hidden(by_xla))
    assert hidden(replace(by_xla, made_by="Nsight Systems")) == []
    for name in ("PjitFunction(step)", "Torch-Compiled Region: 0/0", "XlaLaunch"):
        compiled = trace_of([("main", "host", DISPATCH, name, 0, 10)])
        assert any("A step is one compiled program" in text for text in hidden(compiled)), name
    by_webgpu = replace(trace_of(card), made_by="WebGPU's timestamps")
    assert any("each operation is in a pass of its own here" in text for text in hidden(by_webgpu))
    assert any("Drawn are 2 of 9 rows" in text for text in hidden(replace(QUARTER, n_rows=9)))


def test_two_traces_are_compared_a_step_where_both_know_their_steps():
    slow = replace(QUARTER, about={"steps": 1})
    quick = trace_of([("main", "host", DISPATCH, "call", 0, 400), ("worker", "host", KERNEL, "gemm", 0, 250)])
    told = view.comparison_sentence(slow, replace(quick, about={"steps": 2}))
    assert told.startswith(
        "A step of the second takes 0.2\u202fμs instead of 1\u202fμs; shortened most: dispatch, by 0.68"
    )
    assert told.endswith("One profile of each: no spread is known.")
    assert view.comparison_sentence(QUARTER, quick).startswith("The profile of the second takes")
    assert view.comparison_sentence(slow, quick).startswith(
        "Kernels run 62% of the second's time and 25% of the first's."
    )
    assert "about as long in both" in view.comparison_sentence(slow, slow)
    assert "first, a step" in view.changes_table(slow, slow)
    assert "first, the profile" in view.changes_table(slow, quick)


@pytest.mark.parametrize(
    "about",
    [
        {"steps": 2, "profiled_step_s": 1e-7},  # the rows last five times as long as two steps
        {"steps": 2, "kept": "a part"},
        {"steps": 1e300},
        {"steps": "two"},
    ],
)
def test_seconds_of_a_step_are_told_only_where_all_rows_are_of_steps(about):
    other = replace(QUARTER, about=about, n_rows=9 if "kept" in about else len(QUARTER.rows))
    assert "cannot be compared" in view.comparison_sentence(replace(QUARTER, about={"steps": 1}), other)
    assert "first, the profile" in view.changes_table(QUARTER, other)


@pytest.mark.parametrize("steps", ["two", 0.0, -1.0])
def test_what_somebody_wrote_about_a_trace_is_no_reason_to_fail(steps):
    about = {"profiled_step_s": 3e-4, "plain_step_s": 1e-4, "steps": steps}
    assert "under the profiler" not in view.sentence(replace(QUARTER, about=about), 0.0, 1.0)


def test_what_is_not_drawn_is_said(monkeypatch):
    assert view.not_drawn(QUARTER, 0.0, 1.0) == ""
    nested = trace_of([("main", "host", DISPATCH, f"call {n}", n, 100 - 2 * n) for n in range(5)])
    monkeypatch.setattr(view, "MAX_MARKS", 2)
    assert view.not_drawn(nested, 0.0, 1.0) == (
        "Of 5 rows in this part, drawn are the 2 longest and those at most 3 deep in others; choose a shorter part for"
        " more."
    )
    assert len([mark for mark in marks(view.timeline_chart(nested, 0.0, 1.0)) if mark["row"] != view.WAITED]) == 2
    many = trace_of([(f"thread {n}", "host", DISPATCH, "call", n, 5) for n in range(10)])
    assert "those of the 8 busiest of 10 threads and streams" in view.not_drawn(many, 0.0, 1.0)


def test_traces_of_one_title_are_told_apart():
    assert list(view.titles([QUARTER, QUARTER, QUARTER])) == ["made", "made (2)", "made (3)"]


@given(
    st.lists(
        st.tuples(
            st.text(max_size=8),
            st.sampled_from(["python", "host", "device"]),
            st.sampled_from(KINDS),
            st.text(max_size=8) | st.just("<script>alert(1)</script>"),
            st.integers(0, 10**6),
            st.integers(1, 10**6),
        ),
        max_size=20,
    ),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_any_rows_are_drawn_and_told_without_markup_of_theirs(rows, a, b):
    trace = trace_of(rows)
    low, high = min(a, b), max(a, b)
    assert view.sentence(trace, low, high)
    if len(trace.rows):
        rows_drawn = marks(view.timeline_chart(trace, low, high))
        assert all(np.isfinite([mark["from"], mark["to"]]).all() for mark in rows_drawn)
    text = (
        view.dearest_list(trace) + view.calls_table(trace) + view.changes_table(trace, trace) + view.hidden_list(trace)
    )
    assert "<script" not in text


def test_a_lane_of_python_is_first_and_a_card_last():
    trace = trace_of(
        [
            ("card", "device", KERNEL, "gemm", 0, 5),
            ("other", "host", DISPATCH, "call", 0, 5),
            ("main", "python", PYTHON, "f", 0, 5),
        ]
    )
    assert list(view._lanes(trace).values()) == ["main", "other", "card"]
