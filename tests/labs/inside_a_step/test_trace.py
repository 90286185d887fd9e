# pyright: reportArgumentType=false
"""The reader's view of traces: bounded charts, sentences that the rows support, escaped names, and which traces are
shown. Only editors may enter a path."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.labs.inside_a_step import trace as view
from lib.sweeps.experiments import published
from lib.sweeps.experiments.results import View
from lib.sweeps.experiments.trace_of_a_step import shipped
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import State
from lib.timing.profiling.traces import reading
from lib.timing.profiling.traces.form import DISPATCH, KERNEL, KINDS, LAUNCH, PROFILER, PYTHON, Collector
from lib.ui.lab import Shown
from lib.ui.url_state import Address
from tests.timing.profiling.traces.files import API_SUM


def trace_of(rows):
    found = Collector()
    for lane, role, kind, name, start, length in rows:
        found.add(found.lane(lane, lane, role), name, kind, start, length)
    return found.trace("made", "a test")


# 1 μs: kernels run for a quarter of it, the rest waits for dispatch.
QUARTER = trace_of([("main", "host", DISPATCH, "call", 0, 1000), ("worker", "host", KERNEL, "gemm", 500, 250)])
CARD = [("thread", "host", LAUNCH, "cudaLaunchKernel", 0, 5), ("thread", "host", DISPATCH, "aten::mm", 5, 500)]
SLOWER, AS_FAST = ({"profiled_step_s": s, "plain_step_s": 1e-4, "steps": 7} for s in (3e-4, 1e-4))


def marks(chart):
    return chart.spec["datasets"]["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("trace", shipped(), ids=lambda trace: trace.made_by.split("'")[0])
def test_a_shipped_trace_is_drawn_and_described(trace):
    chart = view.timeline_chart(trace, 0.0, 1.0)
    alt.Chart.from_dict(chart.spec)
    drawn, encoding = marks(chart), chart.spec["layer"][0]["encoding"]
    assert 0 < len(drawn) <= view.MAX_MARKS + view.MAX_WAITS
    assert {mark["row"] for mark in drawn} <= set(encoding["y"]["scale"]["domain"])
    low, high = encoding["x"]["scale"]["domain"]
    assert all(low <= mark["from"] <= mark["to"] <= high + 1e-6 for mark in drawn)
    assert "kernels run" in view.sentence(trace, 0.0, 1.0)
    assert view.dearest_list(trace).count("<li>") == 10


def test_the_sentence_states_the_share_of_kernels_and_waits():
    said = "In these 1\u202fμs kernels run 25% of the time; the rest waits, for dispatch 75%."
    assert view.sentence(QUARTER, 0.0, 1.0) == said
    assert view.sentence(QUARTER, 0.5, 0.75).endswith("kernels run 100% of the time.")
    told = view.sentence(replace(QUARTER, about=SLOWER), 0.0, 1.0)
    assert "300\u202fμs under the profiler (7 steps) and 100\u202fμs without it. The rows include" in told
    assert "what the profiler adds" not in view.sentence(replace(QUARTER, about=AS_FAST), 0.0, 1.0)


@pytest.mark.parametrize(
    ("trace", "begins"),
    [
        (trace_of(CARD), "The GPU's rows are missing from this file"),
        (trace_of([("main", "python", PYTHON, "main", 0, 9)]), "Its rows are Python functions"),
    ],
)
def test_a_trace_without_shares_says_why(trace, begins):
    said = view.sentence(trace, 0.0, 1.0)
    assert said.startswith(begins)
    assert "kernels run 0%" not in said
    for both in ((trace, QUARTER), (QUARTER, trace)):
        assert "has no shares to compare" in view.comparison_sentence(*both)


def test_profiler_rows_are_named_and_excluded_from_shares():
    rows = [("main", "host", PROFILER, "start_trace", 0, 3000), ("main", "host", PYTHON, "walk", 100, 2000)]
    rows += [("main", "host", DISPATCH, "call", 3000, 750), ("worker", "host", KERNEL, "gemm", 3750, 250)]
    trace = trace_of(rows)
    said = view.sentence(trace, 0.0, 1.0)
    assert said.startswith("In these 1\u202fμs kernels run 25% of the time; the rest waits, for dispatch 75%.")
    assert "“start_trace”, are left out of all shares, 75% of this part's time" in said
    assert "Only the profiler itself" in view.sentence(trace, 0.0, 0.5)
    assert "start_trace" not in view.dearest_list(trace)
    assert marks(view.part_and_whole_chart(trace, 0.0, 1.0))[-1]["to"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (
            replace(QUARTER, about={"profiled_step_s": 1.2e-4, "plain_step_s": 1e-4, "steps": 1}),
            "the profiler changes the step",
        ),
        (
            replace(QUARTER, about={"profiled_step_s": 0.8e-4, "plain_step_s": 1e-4, "steps": 1}),
            "the profiler changes the step",
        ),
        (
            trace_of([("a", "host", DISPATCH, "f", 0, 400), ("b", "host", KERNEL, "g", 600, 400)]),
            "of the time is unknown",
        ),
    ],
)
def test_no_shares_are_shown_when_more_than_15_percent_off_the_whole(trace, why):
    amounts, _, reason = view.sentence(trace, 0.0, 1.0).partition(" No shares: ")
    assert "%" not in amounts
    assert why in reason
    for chart in (view.part_and_whole_chart(trace, 0.0, 1.0), view.both_chart(QUARTER, trace)):
        assert not any("%" in bar["what"] for bar in marks(chart))
        assert chart.spec["layer"][0]["encoding"]["x"]["title"] == "milliseconds of the profile"
    close = replace(QUARTER, about={"profiled_step_s": 1.1e-4, "plain_step_s": 1e-4, "steps": 1})
    assert "kernels run 25% of the time" in view.sentence(close, 0.0, 1.0)
    told = view.comparison_sentence(replace(trace, about=trace.about | {"steps": 2}), QUARTER)
    assert told.startswith("The two differ in their number of steps")


def test_published_counts_are_shown_beside_the_same_calls(tmp_path):
    assert sum(calls for _, _, calls, _ in published.CUDA_CALLS) == 135_731
    assert sum(total for *_, total in published.CUDA_CALLS) == pytest.approx(2.45)
    path = tmp_path / "report.csv"
    path.write_text(API_SUM)
    trace = reading.read_report(path, "report")
    text, other = view.calls_table(trace), view.calls_table(QUARTER)
    assert "published calls" in text
    assert text.count("98,168") == 2, "measured and published"
    assert "cuCtxSetCurrent alone takes 61%" in view.sentence(trace, 0.0, 1.0)
    assert "no lanes" in view.hidden_list(trace)
    assert "published calls" not in other
    assert "1,500 steps and 375 validation batches" in other


BY_XLA = [("thread", "host", LAUNCH, "cuLaunchKernel", 0, 5), ("stream", "device", KERNEL, "fusion", 5, 5)]
LOOP = [("main", "host", DISPATCH, "while.1", 0, 10), ("main", "host", DISPATCH, "PjitFunction(f)", 20, 5)]


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (trace_of(LOOP), "1 loop of a compiled program"),
        (replace(trace_of(BY_XLA), made_by="JAX's profiler"), "XLA launches kernel by kernel"),
        (replace(QUARTER, n_rows=9), "The chart draws 2 of 9 rows"),
        *(
            (trace_of([("main", "host", DISPATCH, name, 0, 10)]), "A step is one compiled program")
            for name in ("PjitFunction(step)", "Torch-Compiled Region: 0/0", "XlaLaunch")
        ),
    ],
)
def test_the_list_names_what_a_trace_hides(trace, said):
    assert [said in text for text in view.hidden(trace)] == [True]


def test_two_traces_are_compared_per_step_if_both_count_steps():
    slow = replace(QUARTER, about={"steps": 1})
    quick = trace_of([("main", "host", DISPATCH, "call", 0, 400), ("worker", "host", KERNEL, "gemm", 0, 250)])
    told = view.comparison_sentence(slow, replace(quick, about={"steps": 2}))
    assert told.startswith(
        "A step of the second takes 0.2\u202fμs instead of 1\u202fμs; shortened most: dispatch, by 0.68"
    )
    assert told.endswith("With one profile of each, the spread is unknown.")
    assert view.comparison_sentence(QUARTER, quick).startswith("The profile of the second takes")
    other = view.comparison_sentence(slow, quick)
    assert other.startswith("Kernels run 62% of the second's time and 25% of the first's.")
    assert "about as long in both" in view.comparison_sentence(slow, slow)
    assert "first, a step" in view.changes_table(slow, slow)
    assert "first, the profile" in view.changes_table(slow, quick)


ROWS = st.tuples(
    st.text(max_size=8),
    st.sampled_from(["python", "host", "device"]),
    st.sampled_from(KINDS),
    st.text(max_size=8) | st.just("<script>alert(1)</script>"),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
)


@given(st.lists(ROWS, max_size=20), st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted))
def test_any_rows_are_drawn_and_described_with_their_markup_escaped(rows, part):
    trace = trace_of(rows)
    assert view.sentence(trace, *part)
    for mark in marks(view.timeline_chart(trace, *part)) if len(trace.rows) else []:
        assert np.isfinite([mark["from"], mark["to"]]).all()
    tables = (view.calls_table(trace), view.changes_table(trace, trace))
    assert "<script" not in view.dearest_list(trace) + view.hidden_list(trace) + "".join(tables)


class Page:
    def __init__(self, folder):
        self.traces, self.redrawn = view.Traces(Store(folder / "results.sqlite")), 0
        self.section = SimpleNamespace(drawing=object(), redraw=self.redraw, page=SimpleNamespace(sections={}))
        self.section.page.sections["file"] = self.section

    def redraw(self):
        self.redrawn += 1

    def profiled(self, *items, state=State.DONE):
        at = view.Live({"by": "jax-step/cpu", "size": 32, "hidden": "128", "part": [0, 100]})
        known, _ = self.traces.profile(at).make(False)
        return self.traces.draw_profile(Shown(at, View([*items], state, "", "", 1), known, self.section))

    def dropped(self, *files):
        """Return the drawing for these files, and the titles in the fields."""
        at = view.TraceFile({"files": tuple((f"{number}", b"") for number in range(len(files))), "part": [0, 100]})
        drawing = self.traces.draw(Shown(at, View([*files], State.DONE, "", "", 1), (), self.section))
        return drawing, {name: field.value for name, field in self.traces._fields.items()}


@pytest.fixture
def page(tmp_path):
    return Page(tmp_path)


def test_shipped_traces_are_shown_and_compared_before_any_is_dropped(page):
    drawing, chosen = page.dropped()
    assert chosen["trace"] == shipped()[0].title
    assert "recorded by this project" in drawing.result
    assert "kernels run" in drawing.sentence
    assert "A step of the second takes" in drawing.below
    assert "lab-state" not in drawing.result, "nothing is read"


def test_dropped_traces_come_first_and_unreadable_ones_are_reported(page):
    drawing, chosen = page.dropped(QUARTER, "b: it is empty.")
    assert chosen == {"trace": "made", "before": "made", "after": shipped()[0].title}
    assert "1 of 2 files read" in drawing.result
    assert "b: it is empty." in drawing.result
    page.profiled(shipped()[1])
    assert page.redrawn == 1
    assert page.dropped(QUARTER)[1]["after"] == f"{shipped()[1].title} (2)", "what was profiled now"


def test_a_chosen_trace_stays_selected_until_new_ones_are_read(page):
    page.dropped()
    field, third = page.traces._fields["trace"], shipped()[2].title
    field._update([third])
    assert page.redrawn == 1
    assert third in page.dropped()[0].sentence
    assert page.traces._fields["trace"] is field, "the focus stays in it"
    page.profiled(shipped()[1])
    assert page.dropped()[1]["trace"] == third
    page.traces.read(view.TraceFile({"files": (("a", b""),), "part": [0, 100]})).make(False)
    assert page.dropped(QUARTER)[1]["trace"] == "made"


def test_the_last_profile_stays_until_there_is_a_new_one(page):
    assert view._PLACE in page.profiled(state=State.MEASURING).result
    assert "trace-before" not in page.profiled(QUARTER).result
    waiting = page.profiled(state=State.MEASURING)
    assert "trace-before" in waiting.result
    assert waiting.sentence == ""


def test_a_path_is_read_in_edit_mode_only(monkeypatch):
    """Even if a viewer's browser sends a field that its page does not have."""
    said = {"files": [SimpleNamespace(name="a.json", contents=b"{}")], "path": " /etc/passwd ", "part": [0, 100]}
    found = {}
    for mode in ("run", "edit"):
        monkeypatch.setattr("marimo.app_meta", lambda mode=mode: SimpleNamespace(mode=mode, request=None))
        assert ("path" in view.TraceFile.elements("file", Address())) is (mode == "edit")
        found[mode] = view.TraceFile.checked("file", said).values["files"]
    assert found == {"run": (("a.json", b"{}"),), "edit": (("a.json", b"{}"), ("passwd", Path("/etc/passwd")))}


@pytest.mark.parametrize(
    ("ends", "part"), [((20, 60), (0.2, 0.6)), ((50, 50), (0.45, 0.55)), ((100, 100), (0.95, 1)), ((0, 0), (0, 0.05))]
)
def test_a_part_is_never_empty(ends, part):
    assert view.part_of(ends) == pytest.approx(part)
