"""A step's profile, recorded now or read from a dropped file: lanes over time, calls, and comparisons of traces."""

import html
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import marimo as mo
import numpy as np

from lib.formatting import counted, listed, minute, seconds
from lib.model.spec import Network
from lib.sweeps.experiments import published
from lib.sweeps.experiments.trace_of_a_step import profile, read_files, runtimes, saved, shipped, task_of
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import State
from lib.timing.comparison import Verdict, without_spread
from lib.timing.profiling.traces import form as kinds
from lib.timing.profiling.traces.form import (
    NO_WORK,
    REST,
    STATES,
    UNKNOWN,
    Call,
    Stretches,
    Trace,
    as_chrome_json,
    changes,
    dearest,
    end_ns,
    gaps,
    no_share,
    no_step,
    step_s,
    waited_for,
    window,
)
from lib.ui import layout
from lib.ui.controls import SHARED_TODAY, Controls, batch_size, dropdown, hidden, runtime, span
from lib.ui.lab import Asked, Drawing, Section, Shown, Work
from lib.ui.views.chart import Chart, alt, names_y, row_color, styled
from lib.ui.views.markup import legend, on_demand, table

PERCENT = tuple(range(0, 101, 5))  # of a trace's time
PREFERRED = "jax-step/cpu"
COLORS: Mapping[str, str] = {
    kinds.KERNEL: "#0b7a57",
    kinds.TRANSFER: "#b9801c",
    kinds.LAUNCH: "#d04a78",
    kinds.DISPATCH: "#3a72d8",
    kinds.PYTHON: "#7b62d3",
    UNKNOWN: "#7d8590",
    kinds.WAIT: "#7d8590",
    kinds.OTHER: "#7d8590",
    kinds.PROFILER: "#7d8590",
    kinds.COMMUNICATION: "#16879a",
}
WORDS: Mapping[str, str] = {kinds.PYTHON: "Python", kinds.OTHER: "unknown", kinds.PROFILER: "the profiler itself"}
WAITED = "waited for"  # the topmost lane
MAX_LANES, MAX_DEPTH = 8, 3  # drawn at most
MAX_MARKS, MAX_WAITS = 900, 400
MAX_LISTED = 25  # rows of the table of calls
ROW_PX = 17
_SPLIT = "\u2009\u2009"  # separates a lane's name from a row's depth; occurs in no displayed name
_PLACE = '<div class="trace-place"></div>'  # reserves the charts' space until they are drawn


def _profilers() -> dict[str, str]:
    return {one.label: one.address for one in runtimes()}


class Live(Controls):
    AGAIN = "Profile now", "Record a new profile of these settings"
    by = dropdown(
        "Trained by",
        lambda: min(_profilers().values(), key=lambda one: one != PREFERRED, default=""),
        _profilers,
        full_width=True,
        shared=SHARED_TODAY,
    )
    size = batch_size("Batch size", 32)
    hidden = hidden()
    part = span("Part of the profile shown, %", (45, 60), PERCENT)


class TraceFile(Controls):
    AGAIN = "Read again", "Read these files again"
    FILES = "Drop traces here: .xplane.pb, Chrome or PyTorch JSON (also .gz), Nsight Systems as SQLite or CSV"
    part = span("Part of the trace shown, %", (0, 100), PERCENT)


class Traces:
    """The traces on one viewer's page, and the viewer's choice among them.

    Args:
        store: Holds the records of saved profiles.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: Trace | None = None  # the last profile
        self._dropped: tuple[Trace, ...] = ()
        self._chosen: dict[str, str] = {}  # titles by field name, until other files are dropped
        self._fields: dict[str, mo.ui.dropdown] = {}
        self._fields_of: tuple = ()

    def profile(self, at: Live) -> Asked:
        task = task_of(runtime(at.by), Network.parse(at.hidden), at.size)

        def make(again: bool) -> tuple[tuple, Work]:
            kept = None if again else saved(task, self._store.records(Kind.ANATOMY))
            return (task, kept is not None), partial(profile, task) if kept is None else lambda *_: iter([kept])

        return Asked(task, make)

    def draw_profile(self, shown: Shown) -> Drawing:
        """Draw the profile. The previous one stays until it arrives, so that nothing below jumps."""
        (task, was_saved), now, part = shown.known, shown.now, part_of(shown.at.part)
        trace = next((item for item in reversed(now.items) if isinstance(item, Trace)), None)
        words = now.note or (origin(trace) if trace is not None else "")
        line = layout.state_line(
            layout.saved_or(now.state, was_saved), float(trace is not None), 1.0, words, now.problem
        )
        charts, said, below = _PLACE, "", ""
        if (drawn := trace or self._live) is not None:
            parts = figures(drawn, part), layout.sentence(sentence(drawn, *part)), all_calls(drawn)
            css = "" if trace is not None else "trace-before"
            charts, said, below = (f'<div class="{css}">{one}</div>' for one in parts)
        if trace is not None and trace is not self._live and now.state is State.DONE:
            self._live = trace
            shown.section.page.sections["file"].redraw()
        spoken = sentence(trace, *part) if trace is not None else ""
        return Drawing(said + charts + line + layout.software([task.runtime]), spoken, below)

    def read(self, at: TraceFile) -> Asked:
        files = at.values["files"]

        def make(_again: bool) -> tuple[tuple, Work]:
            self._chosen.clear()
            return (), lambda engine, _store, cancel, request: read_files(files, cancel, request, engine.niceness)

        return Asked(files, make)

    def draw(self, shown: Shown) -> Drawing:
        files, now = shown.at.values["files"], shown.now
        traces = tuple(item for item in now.items if isinstance(item, Trace))
        problems = [item for item in now.items if isinstance(item, str)]
        if now.over:
            self._dropped = traces
        line = ""
        if files:
            words = now.note or f"{len(traces)} of {len(files)} files read"
            line = layout.state_line(now.state, len(traces) + len(problems), len(files), words, now.problem)
            line += layout.problems(problems)
        known = titles([*self._dropped, *shipped(), *([self._live] if self._live is not None else [])])
        trace, before, after = (known[title] for title in self._choose(shown.section, list(known)))
        fields = {name: f"<div>{field.text}</div>" for name, field in self._fields.items()}
        part = part_of(shown.at.part)
        ours = " · recorded by this project" if any(trace is one for one in shipped()) else ""
        said = sentence(trace, *part)
        return Drawing(
            layout.sentence(said) + figures(trace, part) + line + layout.quiet(origin(trace) + ours),
            f"{trace.title}: {said}",
            all_calls(trace) + compared(before, after, fields["before"] + fields["after"]),
            fields["trace"],
        )

    def _choose(self, section: Section, known: list[str]) -> list[str]:
        """The chosen titles. The fields are rebuilt only when their options change, so that they keep the focus."""
        usual = {"trace": known[0], "before": known[0], "after": known[-1 if self._live is not None else 1]}
        chosen = {name: one if (one := self._chosen.get(name)) in known else usual[name] for name in usual}
        if self._fields_of != (section.drawing, known):  # marimo counts the elements of each run of a cell from 0
            self._fields_of = section.drawing, known

            def choose(name: str, title: str) -> None:
                self._chosen[name] = title
                section.redraw()

            self._fields = {
                name: mo.ui.dropdown(
                    known, value=chosen[name], label=label, full_width=True, on_change=partial(choose, name)
                )
                for name, label in (("trace", "Trace"), ("before", "First"), ("after", "Second"))
            }
        return list(chosen.values())


def part_of(ends: Sequence[float]) -> tuple[float, float]:
    """The two ends of a part as shares, from percent. The part is never empty."""
    low, high = ends
    low, high = (low, high) if high > low else (max(0, low - 5), min(100, low + 5))
    return low / 100, high / 100


def figures(trace: Trace, part: tuple[float, float]) -> str:
    """HTML: the lanes, and overhead against kernels; empty for a report of sums, which has no rows."""
    if not len(trace.rows):
        return ""
    lanes = "what was waited for, and what each thread did; Shift and wheel to zoom, drag to move"
    shown = trace_legend() + layout.figure(lanes, timeline_chart(trace, *part))
    if no_share(trace):
        return shown
    return shown + layout.figure("overhead against kernels", part_and_whole_chart(trace, *part))


def all_calls(trace: Trace) -> str:
    saving = ""
    if len(trace.rows):
        button = mo.download(
            data=lambda: as_chrome_json(trace).encode(),
            filename="trace.json",
            mimetype="application/json",
            label="Save for Perfetto",
        )
        saving = f'<div class="lab-buttons">{button.text}</div>' + layout.quiet(
            "Open the saved file at ui.perfetto.dev, or drop it below to read it here again."
        )
    table_of_all = on_demand("all calls: how often, how long", calls_table(trace))
    return f"<h3>The ten most expensive calls</h3>{dearest_list(trace)}{hidden_list(trace)}{table_of_all}{saving}"


def compared(before: Trace, after: Trace, fields: str) -> str:
    shown = layout.sentence(comparison_sentence(before, after)) + changes_table(before, after)
    if all(len(trace.rows) and not no_share(trace) for trace in (before, after)):
        shown = trace_legend() + layout.figure("where the time went, a bar each", both_chart(before, after)) + shown
    note = (
        "Seconds per step where the number of steps is known; a call counts its own time, without the calls inside it."
    )
    heading = "<h3>Two traces side by side: what became shorter?</h3>"
    return f"{heading}{layout.quiet(note)}{layout.page(fields, shown).text}"


def word(kind: str) -> str:
    return WORDS.get(kind, kind)


def trace_legend() -> str:
    meant = {state: word(state) for state in STATES if state != kinds.PROFILER}
    meant[UNKNOWN] = "waiting, the profiler itself, or unknown"
    return legend((f"9px solid {COLORS[state]}", text) for state, text in meant.items())


def timeline_chart(trace: Trace, low: float, high: float) -> Chart:
    """The lanes of a trace over a part of its time, below a lane that shows what was waited for.

    A graphics card's gaps are filled with the colour of what was waited for. Only the longest rows are drawn, so that
    the browser can handle any trace.

    Args:
        trace: The trace to draw.
        low: Start of the part, as a share of the time of all rows.
        high: End of the part, likewise.
    """
    began_ns, ended_ns = window(trace, low, high)
    parts = waited_for(trace, began_ns, ended_ns)
    edges, drawn = parts.edges_ns.tolist(), _lanes(trace)
    inside = (trace.rows.start_ns < ended_ns) & (end_ns(trace.rows) > began_ns)
    found = np.flatnonzero(inside & np.isin(trace.rows.lane, list(drawn)) & (trace.depth < MAX_DEPTH))
    order = found[np.argsort(-trace.rows.duration_ns[found], kind="stable")][:MAX_MARKS]
    shown, depth = trace.rows[order], trace.depth[order]
    columns = (shown.lane, depth, shown.name, shown.kind, shown.start_ns, shown.duration_ns)
    marks = [
        _mark(
            _row_name(drawn[lane], level),
            max(start_ns, began_ns),
            min(start_ns + duration_ns, ended_ns),
            kinds.KINDS[kind],
            f"{trace.names[name]}: {seconds(duration_ns * 1e-9)}",
            began_ns,
        )
        for lane, level, name, kind, start_ns, duration_ns in zip(*(one.tolist() for one in columns), strict=True)
    ]
    used = {mark["row"] for mark in marks}
    levels = [_row_name(name, level) for name in drawn.values() for level in range(MAX_DEPTH)]
    rows = [WAITED, *(name for name in levels if _SPLIT not in name or name in used)]
    queues = [lane for lane in drawn if trace.lanes[lane].role == "device"]
    most = MAX_WAITS // (1 + len(queues))
    waits = [
        _wait(WAITED, *part, began_ns)
        for part in _longest([*zip(edges[:-1], edges[1:], parts.state.tolist(), strict=True)], most)
    ]
    for lane in queues:
        waits += [_wait(drawn[lane], *part, began_ns, 0.35) for part in _longest(gaps(trace, lane, parts), most)]
    length_ms = max(1e-6, (ended_ns - began_ns) * 1e-6)
    axis = {"labelExpr": f"indexof(datum.value, '{_SPLIT}') < 0 ? datum.value : ''", "ticks": False, "grid": False}
    x = alt.X(
        "from:Q",
        title=f"milliseconds from {seconds(began_ns * 1e-9)}" if began_ns else "milliseconds",
        scale=alt.Scale(domain=[0, length_ms], nice=False),
        axis=alt.Axis(format=",~r"),  # “g” would write 10 as 1e+1 when there are few ticks
    )
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]", name="zoomed")
    bars = (
        alt.Chart(alt.NamedData("rows"))
        .mark_bar(height=ROW_PX - 4, clip=True)
        .encode(
            x=x,
            x2="to:Q",
            y=names_y(rows, 110, "row", **axis),
            color=row_color(),
            opacity=alt.Opacity("opacity:Q", scale=None),
            tooltip=[alt.Tooltip("what:N", title=" ")],
        )
        .add_params(zoom)
    )
    return _with_rows(alt.layer(bars), ROW_PX * len(rows), [*waits, *marks], f"lanes of {trace.title} over time")


def _lanes(trace: Trace) -> dict[int, str]:
    """Unique names of the busiest lanes, by number: Python first, cards last."""
    counts = np.bincount(trace.rows.lane, minlength=len(trace.lanes))
    shown = [number for number, lane in enumerate(trace.lanes) if counts[number] or lane.role == "device"]
    busiest = sorted(shown, key=lambda lane: (trace.lanes[lane].role == "host", -counts[lane]))
    order = {"python": 0, "host": 1, "device": 2}
    named: dict[int, str] = {}
    for lane in sorted(busiest[:MAX_LANES], key=lambda lane: (order[trace.lanes[lane].role], lane)):
        name = trace.lanes[lane].name.replace(_SPLIT, " ") or "lane"
        named[lane] = f"{name} ({lane})" if name in (WAITED, *named.values()) else name
    return named


def _row_name(lane: str, level: int) -> str:
    return f"{lane}{_SPLIT}{level}" if level else lane


def _mark(row: str, from_ns: int, to_ns: int, kind: str, what: str, began_ns: int, opacity: float = 1.0) -> dict:
    return {
        "row": row,
        "from": round((from_ns - began_ns) * 1e-6, 6),
        "to": round((to_ns - began_ns) * 1e-6, 6),
        "color": COLORS[kind],
        "what": what,
        "opacity": opacity,
    }


def _wait(row: str, from_ns: int, to_ns: int, state: int, began_ns: int, opacity: float = 1.0) -> dict:
    name = STATES[state]
    says = {kinds.KERNEL: "a kernel runs", kinds.PROFILER: "the profiler itself"}.get(name, f"waited for: {word(name)}")
    return _mark(row, from_ns, to_ns, name, f"{says}, {seconds((to_ns - from_ns) * 1e-9)}", began_ns, opacity)


def _longest(parts: list[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    return sorted(parts, key=lambda part: part[0] - part[1])[:most]


def _states_chart(traces: Mapping[str, tuple[Trace, Stretches]], per: Sequence[float], unit: str) -> Chart:
    """Time per state, a bar per trace: shares, or milliseconds if some trace has no shares.

    Args:
        traces: Each trace with the part of its time to draw, by label.
        per: Divisor of each trace's seconds.
        unit: What the divided seconds are per.
    """
    as_shares, rows = not any(no_step(*one) for one in traces.values()), []
    for (label, (_, parts)), by in zip(traces.items(), per, strict=True):
        known, at = parts.seconds, 0.0
        whole_s = sum(known.values()) or 1.0
        for state in filter(known.get, known):
            length = known[state] / whole_s if as_shares else known[state] / by * 1e3
            what = f"{label}, {word(state)}: {f'{length:.1%}, ' * as_shares}{seconds(known[state] / by)}"
            rows.append({"row": label, "from": at, "to": at + length, "color": COLORS[state], "what": what})
            at += length
    end = 1.0 if as_shares else max((row["to"] for row in rows), default=0.0) or 1.0
    x = alt.X(
        "from:Q",
        title=None if as_shares else f"milliseconds of {unit}",
        axis=alt.Axis(format="%" if as_shares else ",~r"),
        scale=alt.Scale(domain=[0, end], nice=False),
    )
    bars = (
        alt.Chart(alt.NamedData("rows"))
        .mark_bar(height=20)
        .encode(
            x=x,
            x2="to:Q",
            y=names_y(list(traces), 150, "row"),
            color=row_color(),
            tooltip=[alt.Tooltip("what:N", title=" ")],
        )
    )
    return _with_rows(alt.layer(bars), 32 * max(1, len(traces)), rows, "the time, by what was waited for")


def _with_rows(bars: "alt.LayerChart | alt.FacetChart", height: int, rows: list[dict], title: str) -> Chart:
    """The chart with these rows. They are added last because Altair's check would take most of a second with them."""
    return Chart(styled(bars, height) | {"datasets": {"rows": rows}}, title)


def part_and_whole_chart(trace: Trace, low: float, high: float) -> Chart:
    """Overhead against kernels, in a part of a trace (ends given as shares of its time) and in all of it."""
    bars = {
        "this part": (trace, waited_for(trace, *window(trace, low, high))),
        "all of it" if len(trace.rows) == trace.n_rows else "all that is kept": (trace, _all(trace)),
    }
    return _states_chart(bars, (1.0, 1.0), "the profile")


def both_chart(before: Trace, after: Trace) -> Chart:
    unit, per = _per_step(before, after)
    return _states_chart({"first": (before, _all(before)), "second": (after, _all(after))}, per, unit)


def _all(trace: Trace) -> Stretches:
    return waited_for(trace, *trace.span_ns)


def sentence(trace: Trace, low: float, high: float) -> str:
    if not trace.calls:
        return "The trace has no calls."
    if not len(trace.rows):
        count, total_ns = (
            sum(ones) for ones in zip(*((call.count, call.total_ns) for call in trace.calls), strict=True)
        )
        worst = f"{trace.calls[0].name} alone takes {trace.calls[0].total_ns / max(1, total_ns):.0%}"
        return f"{count:,} calls, {seconds(total_ns * 1e-9)} in all; {worst}."
    if why := no_share(trace):
        return f"{why} {_profiler_itself(trace)}".strip()
    parts = waited_for(trace, *window(trace, low, high))
    known = parts.seconds
    whole_s = sum(known.values())
    if not whole_s and parts.profiler_s:
        return f"Only the profiler itself runs in this part. {_profiler_itself(trace)}"
    whole_s, off = whole_s or 1.0, no_step(trace, parts)

    def amount(state: str) -> str:
        return seconds(known[state]) if off else _share(known[state] / whole_s)

    others = sorted((s for s in known if s not in (kinds.KERNEL, UNKNOWN) and known[s]), key=lambda s: -known[s])
    told = ", ".join(f"{word(state)} {amount(state)}" for state in others[:3])
    said = [
        f"In these {seconds(whole_s)} kernels run "
        + (f"for {amount(kinds.KERNEL)}" if off else f"{amount(kinds.KERNEL)} of the time")
        + (f"; the rest waits, for {told}" if told else "")
        + (f"; for {amount(UNKNOWN)} the cause is unknown." if known[UNKNOWN] else "."),
        f"No shares: {off}." if off else "",
        _profiler_itself(trace, parts.profiler_s / (whole_s + parts.profiler_s)),
        _cost_of_profiling(trace),
    ]
    return " ".join(filter(None, said))


def _profiler_itself(trace: Trace, left_out: float = 0.0) -> str:
    """Names the profiler's own rows, and the share of a part's time that is left out for them."""
    own = dict.fromkeys(call.name for call in trace.calls if call.kind == kinds.PROFILER and call.name != REST)
    if not own:
        return ""
    names = listed([f"“{name}”" for name in list(own)[:3]])
    time_of_it = f", {_share(left_out)} of this part's time" if left_out >= 0.005 else ""
    return f"The profiler's own rows, such as {names}, are left out of all shares{time_of_it}."


def _share(share: float) -> str:
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _cost_of_profiling(trace: Trace) -> str:
    if (took := step_s(trace)) is None:
        return ""
    with_s, without_s = took
    slower = without_spread(with_s / without_s).verdict is Verdict.SLOWER
    return (
        f"A step took {seconds(with_s)} under the profiler ({trace.about['steps']:,.0f} steps) and"
        f" {seconds(without_s)} without it."
        + " The rows include what the profiler adds, most where rows are short."
        * slower
    )


def origin(trace: Trace) -> str:
    when = trace.about.get("measured_at", "")
    known = [str(trace.about.get("machine") or ""), minute(str(when)) if when else ""]
    return " · ".join([trace.made_by, counted(trace.n_rows, "row"), *filter(None, known), *trace.notes])


def calls_table(trace: Trace) -> str:
    known = {name: [f"{count:,}", seconds(total_s)] for name, _, count, total_s in published.CUDA_CALLS}
    shown = [call for number, call in enumerate(trace.calls) if number < MAX_LISTED or call.name in known]
    rows = [_call_row(call.name, call.kind, call.count, call.total_ns * 1e-9) for call in shown]
    more = f"{len(trace.calls) - len(shown):,} more calls are shorter." if len(trace.calls) > len(shown) else ""
    if any(call.name in known for call in shown):
        rows = [row + known.get(call.name, ["–", "–"]) for row, call in zip(rows, shown, strict=True)]
        return table([*_HEAD, "published calls", "published total"], rows, "trace-calls") + layout.quiet(more)
    of_article = table(_HEAD, [_call_row(*one) for one in published.CUDA_CALLS], "trace-calls")
    note = (
        f"Published in “{published.OVERHEAD_ARTICLE}”: an epoch of {published.CUDA_EPOCH_S} s, about"
        f" {published.CUDA_OVERHEAD_S} s of it in these calls. Its 1,875 graph launches are 1,500 steps and 375"
        " validation batches. This trace has none of these calls."
    )
    summary = "published: CUDA calls in an epoch of Keras on a GPU"
    shorter = table(_HEAD, rows, "trace-calls") + layout.quiet(more)
    return shorter + on_demand(summary, of_article + layout.quiet(note))


_HEAD = ["call", "kind", "calls", "total", "mean"]


def _call_row(name: str, kind: str, count: int, total_s: float) -> list[str]:
    return [html.escape(name), word(kind), f"{count:,}", seconds(total_s), seconds(total_s / count if count else 0.0)]


def dearest_list(trace: Trace) -> str:
    whole_ns = sum(call.self_ns for call in trace.calls if call.kind not in NO_WORK) or 1
    items = "".join(f"<li>{_explained(call, whole_ns)}</li>" for call in dearest(trace))
    return f'<ol class="trace-dearest">{items}</ol>'


def _explained(call: Call, whole_ns: int) -> str:
    many = f"{call.count:,} times, " if call.count > 1 else "Once, "
    mean = f"{seconds(call.self_ns * 1e-9 / call.count)} each, " if call.count > 1 else ""
    color = COLORS.get(call.kind, COLORS[kinds.OTHER])
    return (
        f'<code>{html.escape(call.name)}</code> <span class="trace-kind" style="border-color: {color}">'
        f"{html.escape(word(call.kind))}</span> {html.escape(meaning(call.name, call.kind))}."
        f" {many}{mean}{_share(call.self_ns / whole_ns)} of all rows' own time."
    )


def hidden_list(trace: Trace) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in hidden(trace))
    return f'<ul class="lab-note lab-missing">{items}</ul>' if items else ""


# Two traces compared.


def _per_step(before: Trace, after: Trace) -> tuple[str, tuple[float, float]]:
    """The unit of the compared seconds, and each trace's divisor: its steps, if both traces know them."""
    first, second = (_steps(trace) for trace in (before, after))
    return ("a step", (first, second)) if first and second else ("the profile", (1.0, 1.0))


def _steps(trace: Trace) -> float:
    """Steps in the trace; 0 if unknown, if rows were left out, or if the rows cover much besides the steps."""
    steps, step_s = trace.about.get("steps", 0), trace.about.get("profiled_step_s", math.inf)
    is_whole = steps <= trace.n_rows <= len(trace.rows)
    return float(steps) if is_whole and trace.span_s <= 1.5 * step_s * steps else 0.0


def changes_table(before: Trace, after: Trace) -> str:
    unit, per = _per_step(before, after)
    rows = []
    for name, kind, first_s, second_s in changes(before, after, per):
        own = ["–" if s is None else seconds(s) for s in (first_s, second_s)]
        longer_s = (second_s or 0.0) - (first_s or 0.0)
        sign = "+" if longer_s > 0 else "−" if longer_s < 0 else ""
        rows.append([html.escape(name), word(kind), *own, f"{sign}{seconds(abs(longer_s))}"])
    return table(["call", "kind", f"first, {unit}", f"second, {unit}", "difference"], rows, "trace-calls")


def comparison_sentence(before: Trace, after: Trace) -> str:
    if not len(before.rows) or not len(after.rows):
        return "One of the two has only sums, so only calls can be compared."
    for which, trace in (("first", before), ("second", after)):
        if why := no_share(trace):
            return f"The {which} has no shares to compare. {why}"
    unit, per = _per_step(before, after)
    both = [(trace, _all(trace)) for trace in (before, after)]
    known = [{state: s / by for state, s in parts.seconds.items()} for (_, parts), by in zip(both, per, strict=True)]
    first_s, second_s = (sum(one.values()) for one in known)
    if unit == "the profile" and any("steps" in trace.about for trace in (before, after)):
        shares = [one[kinds.KERNEL] / (whole_s or 1.0) for one, whole_s in zip(known, (first_s, second_s), strict=True)]
        said = f"Kernels run {_share(shares[1])} of the second's time and {_share(shares[0])} of the first's. "
        return ("" if any(no_step(*one) for one in both) else said) + (
            "The two differ in their number of steps or contain more than steps, so their seconds cannot be compared."
        )
    verdict = without_spread(second_s / first_s).verdict
    said = {
        Verdict.FASTER: f"{unit} of the second takes {seconds(second_s)} instead of {seconds(first_s)}",
        Verdict.SLOWER: f"{unit} of the second takes {seconds(second_s)}, longer than the first's {seconds(first_s)}",
    }.get(verdict, f"{unit} takes about as long in both: {seconds(first_s)} and {seconds(second_s)}")
    names = {UNKNOWN: "unexplained time", kinds.KERNEL: "kernels"}
    moved = sorted((known[1][state] - known[0][state], names.get(state, word(state))) for state in known[0])
    ends = {"shortened": (-moved[0][0], moved[0][1]), "lengthened": moved[-1]}
    told = [f"; {how} most: {name}, by {seconds(by_s)}" for how, (by_s, name) in ends.items() if by_s > 0]
    spread = " With one profile of each, the spread is unknown." if told else ""
    return f"{said[0].upper()}{said[1:]}{''.join(told)}.{spread}"


def titles(traces: Sequence[Trace]) -> dict[str, Trace]:
    named: dict[str, Trace] = {}
    for trace in traces:
        title = trace.title or "trace"
        free = (
            one for one in itertools.chain([title], (f"{title} ({n})" for n in itertools.count(2))) if one not in named
        )
        named[next(free)] = trace
    return named


# Meanings of calls, and limits of a trace.

# Calls of a compiled program: by JAX, by TensorFlow through XLA, by torch.compile.
_COMPILED = re.compile(r"^PjitFunction|^_?Xla(Launch|Run|CompileOnDemand)|Torch-Compiled Region|CompiledFxGraph")

# The first pattern found in a call's name explains it; the text completes a sentence that starts with the name.
_MEANS = tuple(
    (re.compile(words), means)
    for words, means in (
        (
            r"^encode commands",
            "records operations for the device, with some library calls each; the device has none of them yet",
        ),
        (
            r"^queue\.submit",
            "submits what was encoded to the device's queue without waiting for it; some queues accept the next"
            " submission only when the last one is done",
        ),
        (r"^queue\.write_buffer", "puts bytes from the host into the device's queue"),
        (r"^queue\.read_buffer", "waits for the device and copies a result to the host"),
        (r"^batch of images", "copies the next batch out of all images, within the device's memory"),
        (r"steps in one kernel", "is a kernel in which the device runs that many steps without the host"),
        (r"layer.*: (product|gradient by)", "is a matrix product, with what follows it"),
        (
            r"CtxSetCurrent",
            "tells the driver which GPU this thread uses; libraries repeat it before nearly every call",
        ),
        (r"EventRecord", "puts a mark into a GPU's queue, which later shows how far the GPU has got"),
        (r"GraphLaunch", "starts a whole recorded graph of kernels with one call"),
        (
            r"Launch(Cooperative)?Kernel",
            "puts one kernel into the GPU's queue; the call costs the same however small the kernel",
        ),
        (
            r"emcpyDtoH|copy_to_host|device to host",
            "copies a result from the device to the host, often only a loss to print",
        ),
        (r"emcpyHtoD|DevicePut|host to device|shard_args", "copies input from the host to the device"),
        (r"[Mm]emcpy|CopyToDevice", "copies bytes"),
        (r"[Mm]emset", "fills memory with one value"),
        (
            r"^(cuda|cuMem)(Malloc|Alloc|Free)",
            "asks the driver for memory or gives it back; frameworks keep a pool to avoid it",
        ),
        (
            r"^PjitFunction",
            "is JAX's call of a compiled function: it looks up the program by the arguments' shapes and starts it",
        ),
        (r"ExecuteHelper|LoadedExecutable", "hands a compiled program its buffers and starts it"),
        (r"^ThunkExecutor", "runs through a compiled program on a CPU and starts one operation after another"),
        (r"^ParseArguments|^Handle inputs", "inspects a call's arguments, as Python types"),
        (
            r"^while|^conditional|^call",
            "is a loop or branch of a compiled program; what runs inside has its own rows",
        ),
        (r"^\[iter=", "is one iteration of such a loop; what runs inside has its own rows"),
        (r"CollectGarbage", "releases Python objects that a device no longer needs"),
        (r"dot_general|MatMul|aten::(add)?b?mm|gemm|cublas", "is a matrix product: the arithmetic that a step is for"),
        (
            r"[Ss]oft[Mm]ax|[Nn]ll_?[Ll]oss|CrossEntropy|cross_entropy|Xent",
            "is part of the loss: a softmax, or what follows it",
        ),
        (
            r"[Rr]elu|threshold_backward|clamp_min|maximum",
            "is the ReLU or its gradient, one comparison per number",
        ),
        (
            r"multiply_subtract_fusion|AssignSub|Optimizer\.step|_foreach_",
            "subtracts what it has multiplied: in plain SGD, the update",
        ),
        (r"zero_grad", "releases the last step's gradients"),
        (r"AccumulateGrad", "adds a gradient to that of its parameter"),
        (r"^autograd::|Backward0$", "is PyTorch's walk back through the step, one operation at a time"),
        (r"fusion", "is several operations that XLA has fused into one"),
        (r"reduce|sum|mean", "adds numbers up"),
        (r"^copy|aten::copy_|transpose", "moves numbers within the device's memory"),
        (
            r"^aten::(t|view|as_strided|transpose|expand|detach|slice|empty\w*|\w*like)$",
            "makes or renames a tensor without computing anything",
        ),
        (r"^tf\.function-graph_building", "traces a function into a graph, which should happen only once"),
        (r"^Eager|^TFE_|KernelAndDeviceFunc", "is TensorFlow's dispatch of one operation from Python"),
        (
            r"^Executor|^FunctionRun|InstantiatedCapturedFunction",
            "is TensorFlow's executor, which finds the next operation that is ready",
        ),
        (r"^MakeIterator|Dataset", "builds the input pipeline, once per epoch"),
        (r"convert_to_tensor|^tf\.constant", "makes a tensor from Python values"),
    )
)
_BY_KIND = {
    kinds.KERNEL: "is arithmetic on the device",
    kinds.TRANSFER: "moves bytes",
    kinds.LAUNCH: "is the driver's work around a kernel, not arithmetic",
    kinds.DISPATCH: "is the library working out what to run, not arithmetic",
    kinds.PYTHON: "is the Python program",
    kinds.WAIT: "waits for something else",
    kinds.COMMUNICATION: "exchanges numbers with other devices or machines",
    kinds.PROFILER: "belongs to the profiler",
}


@lru_cache(maxsize=4096)
def meaning(name: str, kind: str) -> str:
    """What a call does, as a text that follows its name; falls back to its kind."""
    found = next((means for words, means in _MEANS if words.search(name)), None)
    return found or _BY_KIND.get(kind, "has a name that explains nothing here")


def hidden(trace: Trace) -> list[str]:
    counts = {call.name: call.count for call in trace.calls}
    graphs = sum(count for name, count in counts.items() if "GraphLaunch" in name)
    loops = sum(count for name, count in counts.items() if re.fullmatch(r"while(\.\d+)?", name))
    kernels = sum(call.count for call in trace.calls if call.kind == kinds.KERNEL and call.name != "a whole CUDA graph")
    inside = f"{kernels:,} kernels" if kernels else "no kernel"
    said = {
        f"{graphs:,} launch{'es' * (graphs > 1)} of a CUDA graph: the profiler shows {inside} besides them, and what"
        " runs inside a graph may be one row or none. Profile with --cuda-graph-trace=node to see each.": graphs,
        "While profiling, XLA launches kernel by kernel what it otherwise puts into CUDA graphs: without the profiler,"
        " there may be fewer launches. The flag --xla_enable_command_buffers_during_profiling=true keeps"
        " the graphs.": trace.made_by.startswith(("JAX", "TensorFlow")) and trace.has_device and not graphs,
        f"{counted(loops, 'loop')} of a compiled program: many steps are one call, so the host shows nothing"
        " between them, and a row no longer tells which step it belongs to.": loops,
        "A step is one compiled program: dispatch appears once per call, and a fused row no longer tells which lines of"
        " the model it contains.": not loops and any(map(_COMPILED.search, counts)),
        "On a CPU, PyTorch's arithmetic runs inside its calls: the time such a call needs to start counts as kernel"
        " time here, so overhead is larger than shown.": (
            trace.made_by.startswith("PyTorch") and not trace.has_device and not no_share(trace)
        ),
        "This file has only sums: without start times, there are no lanes and no gaps to draw.": (
            trace.calls and not len(trace.rows)
        ),
        f"The chart draws {len(trace.rows):,} of {trace.n_rows:,} rows: those of the steps or of a stretch in the"
        " middle, without rows inside others of their kind; the table counts all.": 0 < len(trace.rows) < trace.n_rows,
    }
    return [text for text, holds in said.items() if holds]
