"""A trace as a reader sees it: lanes over time, who was waited for, calls, the dearest of them. Measures nothing."""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from lib.experiments import published
from lib.formatting import listed, seconds
from lib.profiling.traces import kinds
from lib.profiling.traces.explanation import (
    NO_WORK,
    NOBODY,
    STATES,
    Change,
    Stretches,
    changes,
    dearest,
    gaps,
    inside,
    no_share,
    no_step,
    step_s,
    waited_for,
    window,
)
from lib.profiling.traces.form import REST, Call, Trace
from lib.timing.comparison import Verdict, without_spread
from lib.views.chart import ROW_COLOR, Chart, names_y, styled
from lib.views.markup import on_demand, table
from lib.views.trace_meanings import hidden, meaning

COLORS: Mapping[str, str] = {
    kinds.KERNEL: "#0b7a57",
    kinds.TRANSFER: "#b9801c",
    kinds.LAUNCH: "#d04a78",
    kinds.DISPATCH: "#3a72d8",
    kinds.PYTHON: "#7b62d3",
    NOBODY: "#7d8590",
    kinds.WAIT: "#7d8590",
    kinds.OTHER: "#7d8590",
    kinds.PROFILER: "#7d8590",
    kinds.COMMUNICATION: "#16879a",
}
WORDS: Mapping[str, str] = {kinds.PYTHON: "Python", kinds.OTHER: "not known", kinds.PROFILER: "the profiler itself"}
WAITED = "waited for"  # the lane above all others
MAX_LANES, MAX_DEPTH = 8, 3  # that are drawn
MAX_MARKS, MAX_WAITS = 900, 400
MAX_LISTED = 25  # rows of the table of calls
ROW_PX = 17
_SPLIT = "\u2009\u2009"  # between a lane's name and how deep a row lies in it; not part of any name that is shown


def word(kind: str) -> str:
    """A kind or a state as a page says it."""
    return WORDS.get(kind, kind)


def legend() -> str:
    """HTML: what the colours of all charts here mean."""
    rest = "waiting, the profiler itself, or nobody knows"
    shown = [(COLORS[state], rest if state == NOBODY else word(state)) for state in STATES if state != kinds.PROFILER]
    entries = "".join(
        f'<span class="compare-key"><i style="border-top: 9px solid {color}"></i>{html.escape(text)}</span>'
        for color, text in shown
    )
    return f'<p class="compare-legend">{entries}</p>'


def timeline_chart(trace: Trace, low: float, high: float) -> Chart:
    """The lanes of a trace over a part of its time, above them who was waited for.

    A graphics card's gaps are filled with the colour of who was waited for. Only the longest rows are drawn, so that
    no trace is too large for a browser.

    Args:
        trace: Whose rows are drawn.
        low: Where the part begins, as a share of the time of all rows.
        high: Where it ends.
    """
    began_ns, ended_ns = window(trace, low, high)
    parts = waited_for(trace, began_ns, ended_ns)
    drawn = _lanes(trace)
    order = _drawable(trace, drawn, began_ns, ended_ns)[:MAX_MARKS]
    shown, depth = trace.rows.chosen(order), trace.depth[order]
    marks = [
        _mark(
            _row_name(drawn[lane], level),
            max(start_ns, began_ns),
            min(start_ns + duration_ns, ended_ns),
            kinds.KINDS[kind],
            f"{trace.names[name]}: {seconds(duration_ns * 1e-9)}",
            began_ns,
        )
        for lane, level, name, kind, start_ns, duration_ns in zip(
            shown.lane.tolist(),
            depth.tolist(),
            shown.name.tolist(),
            shown.kind.tolist(),
            shown.start_ns.tolist(),
            shown.duration_ns.tolist(),
            strict=True,
        )
    ]
    used = {mark["row"] for mark in marks}
    levels = [_row_name(name, level) for name in drawn.values() for level in range(MAX_DEPTH)]
    rows = [WAITED, *(name for name in levels if _SPLIT not in name or name in used)]
    queues = [lane for lane in drawn if trace.lanes[lane].role == "device"]
    most = MAX_WAITS // (1 + len(queues))
    waits = [_wait(WAITED, *part, began_ns) for part in _longest(_stretches(parts), most)]
    for lane in queues:
        waits += [_wait(drawn[lane], *part, began_ns, 0.35) for part in _longest(gaps(trace, lane, parts), most)]
    length_ms = max(1e-6, (ended_ns - began_ns) * 1e-6)
    axis = {"labelExpr": f"indexof(datum.value, '{_SPLIT}') < 0 ? datum.value : ''", "ticks": False, "grid": False}
    x = alt.X(
        "from:Q",
        title=f"milliseconds from {seconds(began_ns * 1e-9)}" if began_ns else "milliseconds",
        scale=alt.Scale(domain=[0, length_ms], nice=False),
        axis=alt.Axis(format=",~r"),  # “g” would write 10 as 1e+1 where ticks are few
    )
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]", name="zoomed")
    bars = (
        alt.Chart(alt.NamedData("rows"))
        .mark_bar(height=ROW_PX - 4, clip=True)
        .encode(
            x=x,
            x2="to:Q",
            y=names_y(rows, 110, "row", **axis),
            color=ROW_COLOR,
            opacity=alt.Opacity("opacity:Q", scale=None),
            tooltip=[alt.Tooltip("what:N", title=" ")],
        )
        .add_params(zoom)
    )
    return _with_rows(alt.layer(bars), ROW_PX * len(rows), [*waits, *marks], f"lanes of {trace.title} over time")


def _drawable(trace: Trace, lanes: Mapping[int, str], began_ns: int, ended_ns: int) -> np.ndarray:
    """Indices of the rows of these lanes with a part in a stretch of time, the longest first."""
    rows = trace.rows
    which = (rows.start_ns < ended_ns) & (rows.end_ns > began_ns) & np.isin(rows.lane, list(lanes))
    found = np.flatnonzero(which & (trace.depth < MAX_DEPTH))
    return found[np.argsort(-rows.duration_ns[found], kind="stable")]


def not_drawn(trace: Trace, low: float, high: float) -> str:
    """What the chart of the lanes leaves out for want of room, in a sentence; empty where it shows all."""
    lanes, (began_ns, ended_ns) = _lanes(trace), window(trace, low, high)
    n_rows, n_drawn = len(inside(trace.rows, began_ns, ended_ns)), len(_drawable(trace, lanes, began_ns, ended_ns))
    said = [f"the {MAX_MARKS:,} longest"] if n_drawn > MAX_MARKS else []
    said += [f"those at most {MAX_DEPTH} deep in others"] if n_drawn < n_rows else []
    said += [f"those of the {len(lanes)} busiest of {len(trace.lanes)} threads and streams"] * (
        len(lanes) < len(trace.lanes)
    )
    return f"Of {n_rows:,} rows in this part, drawn are {listed(said)}; choose a shorter part for more." if said else ""


def _lanes(trace: Trace) -> dict[int, str]:
    """The busiest lanes, by number, with names that differ: Python first, cards last."""
    counts = np.bincount(trace.rows.lane, minlength=len(trace.lanes))
    busiest = sorted(range(len(trace.lanes)), key=lambda lane: (trace.lanes[lane].role == "host", -counts[lane]))
    order = {"python": 0, "host": 1, "device": 2}
    named: dict[int, str] = {}
    for lane in sorted(busiest[:MAX_LANES], key=lambda lane: (order[trace.lanes[lane].role], lane)):
        name = trace.lanes[lane].name.replace(_SPLIT, " ") or "lane"
        taken = name in named.values() or name == WAITED
        named[lane] = f"{name} ({lane})" if taken else name
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


def _stretches(parts: Stretches) -> list[tuple[int, int, int]]:
    edges = parts.edges_ns.tolist()
    return list(zip(edges[:-1], edges[1:], parts.state.tolist(), strict=True))


def _longest(parts: list[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    return sorted(parts, key=lambda part: part[0] - part[1])[:most]


def _states_chart(traces: Mapping[str, tuple[Trace, Stretches]], per: Sequence[float], unit: str) -> Chart:
    """What each state takes, a bar for each trace by its label: shares, or milliseconds where one has none.

    Args:
        traces: Each with the part of its time that is drawn.
        per: What the seconds of each are divided by.
        unit: What they are then of.
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
            color=ROW_COLOR,
            tooltip=[alt.Tooltip("what:N", title=" ")],
        )
    )
    return _with_rows(alt.layer(bars), 32 * max(1, len(traces)), rows, "the time, by who was waited for")


def _with_rows(bars: alt.LayerChart | alt.FacetChart, height: int, rows: list[dict], title: str) -> Chart:
    """The chart with these rows; Altair checks its specification without them, which would take it most of a second."""
    return Chart(styled(bars, height) | {"datasets": {"rows": rows}}, title)


def part_and_whole_chart(trace: Trace, low: float, high: float) -> Chart:
    """Overhead against kernels in a part of a trace, given as shares of its time, and in all of it."""
    bars = {
        "this part": (trace, waited_for(trace, *window(trace, low, high))),
        "all of it" if len(trace.rows) == trace.n_rows else "all that is kept": (trace, _all(trace)),
    }
    return _states_chart(bars, (1.0, 1.0), "the profile")


def both_chart(before: Trace, after: Trace) -> Chart:
    """Where the time of two traces went."""
    unit, per = _per_step(before, after)
    return _states_chart({"first": (before, _all(before)), "second": (after, _all(after))}, per, unit)


def _all(trace: Trace) -> Stretches:
    return waited_for(trace, *trace.span_ns)


def sentence(trace: Trace, low: float, high: float) -> str:
    """What took the time in a part of a trace, and what the trace is of."""
    if not trace.calls:
        return "It has no calls."
    if not len(trace.rows):
        total_s = sum(call.total_s for call in trace.calls)
        worst = trace.calls[0]
        return (
            f"{sum(call.count for call in trace.calls):,} calls, {seconds(total_s)} in all; {worst.name} alone takes"
            f" {worst.total_ns / max(1, sum(call.total_ns for call in trace.calls)):.0%}."
        )
    if why := no_share(trace):
        return f"{why} {_profiler_itself(trace)}".strip()
    parts = waited_for(trace, *window(trace, low, high))
    known = parts.seconds
    whole_s = sum(known.values())
    if not whole_s and parts.profiler_s:
        return f"In this part, only the profiler itself runs. {_profiler_itself(trace)}"
    whole_s, off = whole_s or 1.0, no_step(trace, parts)

    def amount(state: str) -> str:
        return seconds(known[state]) if off else _share(known[state] / whole_s)

    others = sorted((s for s in known if s not in (kinds.KERNEL, NOBODY) and known[s]), key=lambda s: -known[s])
    told = [f"{word(state)} {amount(state)}" for state in others[:3]]
    said = f"In these {seconds(whole_s)} kernels run "
    said += f"for {amount(kinds.KERNEL)}" if off else f"{amount(kinds.KERNEL)} of the time"
    said += f"; the rest waits, for {', '.join(told)}" if told else ""
    said += f"; for {amount(NOBODY)} nobody knows who is waited for." if known[NOBODY] else "."
    said += f" No shares: {off}." if off else ""
    left_out = parts.profiler_s / (whole_s + parts.profiler_s)
    return " ".join([said, *filter(None, [_profiler_itself(trace, left_out), _cost_of_profiling(trace)])])


def _profiler_itself(trace: Trace, left_out: float = 0.0) -> str:
    """Which rows are the profiler's own, and what share of a part's time is left out for them."""
    own = dict.fromkeys(call.name for call in trace.calls if call.kind == kinds.PROFILER and call.name != REST)
    if not own:
        return ""
    names = listed([f"“{name}”" for name in list(own)[:3]])
    time_of_it = f", {_share(left_out)} of this part's time" if left_out >= 0.005 else ""
    return f"Rows of the profiler itself, such as {names}, are left out of all shares{time_of_it}."


def _share(share: float) -> str:
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _cost_of_profiling(trace: Trace) -> str:
    """How much longer a step took under the profiler, where that was measured."""
    took, steps = step_s(trace), trace.about.get("steps")
    if took is None or not isinstance(steps, int | float) or not steps > 0:
        return ""
    with_s, without_s = took
    told = f"A step took {seconds(with_s)} under the profiler ({steps:,.0f} steps) and {seconds(without_s)} without it."
    if without_spread(with_s / without_s).verdict is Verdict.SLOWER:
        told += " What the profiler adds lies in the rows too, most where rows are short."
    return told


def origin(trace: Trace) -> str:
    """Where a trace comes from, in a line."""
    about = trace.about
    machine, when = about.get("machine"), str(about.get("measured_at", ""))[:16].replace("T", " ")
    parts = [trace.made_by, f"{trace.n_rows:,} rows"]
    parts += [str(machine)] if machine else []
    parts += [f"{when} UTC"] if when else []
    return " · ".join([*parts, *trace.notes])


def calls_table(trace: Trace) -> str:
    """HTML: the calls that took longest, with the article's counts beside where it has the same call."""
    known = {name: (count, total_s) for name, _, count, total_s in published.CUDA_CALLS}
    beside = any(call.name in known for call in trace.calls)
    head = ["call", "kind", "calls", "total", "mean", *(["published calls", "published total"] if beside else [])]
    shown = list(trace.calls[:MAX_LISTED])
    shown += [call for call in trace.calls[MAX_LISTED:] if call.name in known]
    rows = []
    for call in shown:
        row = [
            html.escape(call.name),
            word(call.kind),
            f"{call.count:,}",
            seconds(call.total_s),
            seconds(call.mean_s),
        ]
        if beside:
            count, total_s = known.get(call.name, (None, None))
            row += ["–" if count is None else f"{count:,}", "–" if total_s is None else seconds(total_s)]
        rows.append(row)
    left = len(trace.calls) - len(shown)
    more = f'<p class="lab-note">{left:,} more calls are shorter.</p>' if left > 0 else ""
    return table(head, rows, "trace-calls") + more + ("" if beside else on_demand(_PUBLISHED_HEAD, published_table()))


_PUBLISHED_HEAD = "published: CUDA's calls in an epoch of Keras on a graphics card"


def published_table() -> str:
    """HTML: the article's table of CUDA's calls in one epoch."""
    rows = [
        [name, kind, f"{count:,}", seconds(total_s), seconds(total_s / count)]
        for name, kind, count, total_s in published.CUDA_CALLS
    ]
    note = (
        f"Published in “{published.OVERHEAD_ARTICLE}”: an epoch of {published.CUDA_EPOCH_S} s, of which about"
        f" {published.CUDA_OVERHEAD_S} s are these calls. Its 1,875 graph launches are 1,500 steps and 375 batches of"
        " the validation. This trace has none of these calls."
    )
    return table(["call", "kind", "calls", "total", "mean"], rows, "trace-calls") + (
        f'<p class="lab-note">{html.escape(note)}</p>'
    )


def dearest_list(trace: Trace) -> str:
    """HTML: the ten calls that took most time of their own, each explained in a sentence."""
    whole_ns = sum(call.self_ns for call in trace.calls if call.kind not in NO_WORK) or 1
    items = "".join(f"<li>{_explained(call, whole_ns)}</li>" for call in dearest(trace))
    return f'<ol class="trace-dearest">{items}</ol>'


def _explained(call: Call, whole_ns: int) -> str:
    many = f"{call.count:,} times, " if call.count > 1 else "Once, "
    mean = f"{seconds(call.self_s / call.count)} each, " if call.count > 1 else ""
    color = COLORS.get(call.kind, COLORS[kinds.OTHER])
    return (
        f'<code>{html.escape(call.name)}</code> <span class="trace-kind" style="border-color: {color}">'
        f"{html.escape(word(call.kind))}</span> {html.escape(meaning(call.name, call.kind))}."
        f" {many}{mean}{_share(call.self_ns / whole_ns)} of all rows' own time."
    )


def hidden_list(trace: Trace) -> str:
    """HTML: what the trace cannot show; nothing where nothing is known to be hidden."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in hidden(trace))
    return f'<ul class="lab-note lab-missing">{items}</ul>' if items else ""


# Two traces beside each other.


def _per_step(before: Trace, after: Trace) -> tuple[str, tuple[float, float]]:
    """What seconds are of, and what those of each trace are divided by: its steps, where both know theirs."""
    first, second = (_steps(trace) for trace in (before, after))
    return ("a step", (first, second)) if first and second else ("the profile", (1.0, 1.0))


def _steps(trace: Trace) -> float:
    """How many steps the rows are of; 0 where that is not known, or where they are of much else, or not of all."""
    steps, step_s = trace.about.get("steps"), trace.about.get("profiled_step_s")
    if not isinstance(steps, int | float) or not 1 <= steps <= trace.n_rows or len(trace.rows) < trace.n_rows:
        return 0.0
    of_steps_alone = not isinstance(step_s, int | float) or trace.span_s <= 1.5 * step_s * steps
    return float(steps) if of_steps_alone else 0.0


def _time_of(state: str) -> str:
    return {NOBODY: "what nobody can explain", kinds.KERNEL: "kernels"}.get(state, word(state))


def changes_table(before: Trace, after: Trace) -> str:
    """HTML: the calls whose own time differs most between two traces."""
    unit, per = _per_step(before, after)
    rows = [
        [html.escape(change.name), word(change.kind), _s(change.before_s), _s(change.after_s), _difference(change)]
        for change in changes(before, after, per)
    ]
    return table(["call", "kind", f"first, {unit}", f"second, {unit}", "difference"], rows, "trace-calls")


def _s(value_s: float | None) -> str:
    return "–" if value_s is None else seconds(value_s)


def _difference(change: Change) -> str:
    sign = "−" if change.saved_s > 0 else "+" if change.saved_s < 0 else ""
    return f"{sign}{seconds(abs(change.saved_s))}"


def comparison_sentence(before: Trace, after: Trace) -> str:
    """What became shorter from the first trace to the second, by kind; two single profiles have no spread."""
    if not len(before.rows) or not len(after.rows):
        return "One of the two is a report of sums, so only its calls can be compared."
    for which, trace in (("first", before), ("second", after)):
        if why := no_share(trace):
            return f"Of the {which}, no share can be compared. {why}"
    unit, per = _per_step(before, after)
    both = [(trace, _all(trace)) for trace in (before, after)]
    known = [{state: s / by for state, s in parts.seconds.items()} for (_, parts), by in zip(both, per, strict=True)]
    first_s, second_s = (sum(one.values()) for one in known)
    if unit == "the profile" and any("steps" in trace.about for trace in (before, after)):
        shares = [one[kinds.KERNEL] / (whole_s or 1.0) for one, whole_s in zip(known, (first_s, second_s), strict=True)]
        said = f"Kernels run {_share(shares[1])} of the second's time and {_share(shares[0])} of the first's. "
        return ("" if any(no_step(*one) for one in both) else said) + (
            "The two are not of equally many steps, or not of steps alone, so their seconds cannot be compared."
        )
    verdict = without_spread(second_s / first_s).verdict
    said = {
        Verdict.FASTER: f"{unit} of the second takes {seconds(second_s)} instead of {seconds(first_s)}",
        Verdict.SLOWER: f"{unit} of the second takes {seconds(second_s)}, longer than the first's {seconds(first_s)}",
    }.get(verdict, f"{unit} takes about as long in both: {seconds(first_s)} and {seconds(second_s)}")
    moved = sorted(known[0], key=lambda state: known[1][state] - known[0][state])
    shorter, longer = moved[0], moved[-1]
    told = []
    if known[1][shorter] < known[0][shorter]:
        told.append(f"shortened most: {_time_of(shorter)}, by {seconds(known[0][shorter] - known[1][shorter])}")
    if known[1][longer] > known[0][longer]:
        told.append(f"lengthened most: {_time_of(longer)}, by {seconds(known[1][longer] - known[0][longer])}")
    said = said[0].upper() + said[1:]
    return f"{said}; {'; '.join(told)}. One profile of each: no spread is known." if told else f"{said}."


def titles(traces: Sequence[Trace]) -> dict[str, Trace]:
    """The traces by titles that differ."""
    named: dict[str, Trace] = {}
    for trace in traces:
        title, number = trace.title or "trace", 2
        while title in named:
            title, number = f"{trace.title} ({number})", number + 1
        named[title] = trace
    return named
