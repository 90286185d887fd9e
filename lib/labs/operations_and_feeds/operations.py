"""Products, nested sines and transfers at one size after another, by every library."""

import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, log2, log10
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from lib.formatting import listed, seconds, times
from lib.model.backends.registry import BACKENDS, DEVICES, Runtime
from lib.sweeps.experiments import published, single_operations
from lib.sweeps.experiments.peak_rates import ceilings
from lib.sweeps.experiments.single_operations import (
    LENGTHS,
    SIDES,
    TRANSFERS_BYTES,
    OperationPoint,
    OperationTask,
    libraries,
)
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.timing.comparison import Verdict
from lib.timing.profiling.request import (
    ALIASED,
    COPIED,
    EAGER,
    FUSED,
    MOVED,
    OPERATION_PRECISIONS,
    PINNED,
    RETURNED,
    WAITED,
    OperationRequest,
)
from lib.timing.roofline import Ceilings, Cost, cost_of
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Shown
from lib.ui.panel import Controls, dropdown, slider
from lib.ui.stage import Work
from lib.ui.views import recorded_gpus
from lib.ui.views.chart import HEIGHT, ROW_COLOR, Chart, decades, labels, log_scale, moved_apart, room, styled
from lib.ui.views.markup import on_demand, quiet, table

DEPTHS = range(1, 17)  # sines in one another
SECOND_COLOR, WRONG_COLOR = "#b04fb4", "#d1623a"
LEAST_S = 1e-7  # end of the axis of seconds: no call takes less
SIZES_AND_LIBRARIES = "sizes and libraries"
# What limits compiled sines that reach more than this share of the memory's bandwidth.
BOUNDS = (
    (1.1, "not from memory, but from a cache"),
    (0.7, "memory bound"),
    (0.5, "memory and arithmetic take about as long as each other"),
    (0.0, "not memory bound, its arithmetic and its call take the time"),
)


class TimedWay(NamedTuple):
    """How a call is timed: its name in a chart and in a table; without a colour, its line has the library's."""

    label: str
    title: str
    color: str = ""
    dash: str = "solid"  # or “dashed”, for what is not comparable with the others


PRODUCT_WAYS = {
    WAITED: TimedWay("waited for", "on the device, waited for"),
    MOVED: TimedWay("there and back", "there and back, waited for", SECOND_COLOR),
    RETURNED: TimedWay("not waited for", "mistake: not waited for", WRONG_COLOR, "dashed"),
}
EAGER_WAITED, FUSED_WAITED = f"{EAGER}/{WAITED}", f"{FUSED}/{WAITED}"
SINE_WAYS = {
    EAGER_WAITED: TimedWay("one by one", "one by one"),
    f"{EAGER}/{MOVED}": TimedWay("… and back", "one by one, there and back", dash="dashed"),
    FUSED_WAITED: TimedWay("in one", "in one", SECOND_COLOR),
    f"{FUSED}/{MOVED}": TimedWay("… and back ", "in one, there and back", SECOND_COLOR, "dashed"),
}
TRANSFER_WAYS = {
    COPIED: TimedWay("copied", "copied"),
    PINNED: TimedWay("pinned", "pinned", "#3a72d8"),
    ALIASED: TimedWay("aliased", "aliased", "#0b7a57"),
}


def library_labels() -> list[str]:
    """The libraries that can run here, with their device where that is a card; JAX is the usual one."""
    found = [OperationTask(runtime, OperationRequest("product")).label for runtime in libraries()]
    return sorted(found, key=lambda label: label != "JAX")


def _library() -> Any:
    return dropdown("All ways of", lambda: library_labels()[0], library_labels)


class Product(Controls):
    largest = slider("Rows and columns, up to", 1024, SIDES[1:])
    precision = dropdown("Precision", "float32", OPERATION_PRECISIONS)
    library = _library()


class Sine(Controls):
    largest = slider("Elements, up to", LENGTHS[11], LENGTHS[3:])
    depth = slider("Sines in one another", 4, DEPTHS)
    library = _library()


class Transfer(Controls):
    largest = slider("Bytes, up to", TRANSFERS_BYTES[11], TRANSFERS_BYTES[2:])
    library = _library()


def asked(store: Store, tasks: Callable[[Any, list[Runtime]], list[OperationTask]], at: Any) -> Asked:
    """What is stored of the tasks, and the measurement of the rest, small sizes first."""
    todo = tasks(at, libraries())

    def make(again: bool) -> tuple[tuple, Work]:
        known = {} if again else single_operations.found(todo, store.records(Kind.OPERATION))
        return (todo, len(known) == len(todo)), partial(single_operations.measure, todo, known)

    return Asked(tuple(todo), make)


def points_of(shown: Shown) -> list[OperationPoint]:
    return [item for item in shown.now.items if isinstance(item, OperationPoint)]


def state_line(shown: Shown, n_done: int, n_wanted: int, words: str) -> str:
    """HTML of a section's state; what it began with says last whether everything was stored."""
    now, complete = shown.now, shown.known[-1]
    return layout.state_line(layout.saved_or(now.state, complete), n_done, n_wanted, now.note or words, now.problem)


def drawing(
    shown: Shown, figures: Mapping[str, Chart | str], sentence: str, below: str, of: str = SIZES_AND_LIBRARIES
) -> Drawing:
    """A section's figures by their captions, with what is said of every section of operations."""
    points, total = points_of(shown), len(shown.tasks)
    drawn = "".join(
        layout.figure(caption, one) if isinstance(one, Chart) else layout.framed(caption, one)
        for caption, one in figures.items()
    )
    words = f"{len(points)} of {total} {of}" if of else "nothing is timed here"
    records = [record for point in points for record in point.records.values() if of]
    result = f'<div class="lab-figures">{drawn}</div>{state_line(shown, len(points), total, words)}'
    result += layout.sentence(sentence) + _not_measured(points) + layout.disturbed(records) + below
    return Drawing(result, sentence)


def _not_measured(points: Sequence[OperationPoint]) -> str:
    why = dict.fromkeys((point.task.label, point.why_not) for point in points if point.why_not)
    sizes = {one: [f"{p.size:,}" for p in points if (p.task.label, p.why_not) == one] for one in why}
    rows = "".join(
        f"<li>{html.escape(label)}, size {listed(sizes[label, reason])}: {html.escape(reason)}.</li>"
        for label, reason in why
    )
    return on_demand("Not measured, and why", f'<ul class="lab-note">{rows}</ul>') if why else ""


def draw_products(shown: Shown) -> Drawing:
    points, (largest, label) = points_of(shown), (shown.at.largest, shown.at.library)
    peaks, names, unit = peak_rates(points, shown.section.page.store), library_names(shown), "n, of two n × n matrices"
    waited = lines_of(points, WAITED)
    figures = {
        "seconds of a product, the operands on the device, waited for": seconds_chart(waited, largest, names, unit),
        f"seconds by {label}, in all ways": seconds_chart(
            ways_of(points, label, PRODUCT_WAYS, WAITED),
            largest,
            ["NumPy", *(way.label for way in PRODUCT_WAYS.values())],
            unit,
            "way",
        ),
        "share of the float32 peak measured here": share_chart(waited, largest, names, unit, peaks, "peak"),
    }
    below = quiet(recorded_gpus.step_note()) + times_table(
        points, PRODUCT_WAYS, lambda point: f"{(point.rate(WAITED) or 0.0) / 1e9:,.3g} GFLOP/s"
    )
    return drawing(shown, figures, product_sentence(points, label, peaks), below + products_published(points, label))


def draw_sines(shown: Shown) -> Drawing:
    points, at = points_of(shown), shown.at
    bandwidths = _ceilings(shown.section.page.store, "copy_bytes_per_s")
    figures = {
        f"seconds of {at.depth} sines by {at.library}, in all ways": seconds_chart(
            ways_of(points, at.library, SINE_WAYS, EAGER_WAITED),
            at.largest,
            ["NumPy", *(way.label for way in SINE_WAYS.values())],
            "elements",
            "way",
        ),
        "bytes a second, as a share of what a large copy moves here; above 100 %: in a cache": share_chart(
            bandwidth_lines(points), at.largest, library_names(shown), "elements", bandwidths, "memory's bandwidth"
        ),
    }
    below = times_table(points, SINE_WAYS, _sine_rates) + sines_published(points, at.library, at.depth)
    return drawing(shown, figures, sine_sentence(points, at.library, at.depth, bandwidths), below)


def draw_transfers(shown: Shown) -> Drawing:
    points, (largest, label) = points_of(shown), (shown.at.largest, shown.at.library)
    costs = transfer_costs(by_label(points).get(label, []))
    figures = {
        f"seconds of a transfer by {label}; dotted: latency + size ÷ bandwidth": seconds_chart(
            ways_of(points, label, TRANSFER_WAYS),
            largest,
            [way.label for way in TRANSFER_WAYS.values()],
            "bytes",
            "way",
            costs.values(),
        ),
        "seconds of a copy by all libraries": seconds_chart(
            lines_of(points, COPIED), largest, library_names(shown), "bytes"
        ),
    }
    below = times_table(points, TRANSFER_WAYS, lambda point: f"{(point.rate(COPIED) or 0.0) / 1e9:,.3g} GB/s")
    sentence = transfer_sentence(points, label, costs)
    return drawing(shown, figures, sentence, below + transfers_published(label, costs))


def library_names(shown: Shown) -> list[str]:
    """The libraries that are asked, each once: a chart keeps the width of their labels."""
    return list(dict.fromkeys(task.label for task in shown.tasks))


# Lines and charts.


class Series(NamedTuple):
    """A line of a chart: points timed in one way, under a name of its own."""

    label: str
    color: str
    points: Sequence[OperationPoint]
    way: str
    dash: str = "solid"


def by_label(points: Sequence[OperationPoint]) -> dict[str, list[OperationPoint]]:
    ordered = sorted(points, key=lambda one: one.size)
    found = dict.fromkeys(point.task.label for point in points)
    return {label: [point for point in ordered if point.task.label == label] for label in found}


def _color(points: Sequence[OperationPoint]) -> str:
    return BACKENDS[points[0].task.runtime.backend].color


def lines_of(points: Sequence[OperationPoint], way: str) -> list[Series]:
    return [
        Series(label, _color(mine), mine, way, "dashed" if mine[0].task.runtime.device == "gpu" else "solid")
        for label, mine in by_label(points).items()
    ]


def ways_of(
    points: Sequence[OperationPoint], label: str, ways: Mapping[str, TimedWay], numpys: str = ""
) -> list[Series]:
    """One library's ways, and NumPy timed in the way `numpys` beside them, where that is not empty."""
    mine, usual = by_label(points).get(label, []), by_label(points).get("NumPy", [])
    lines = [Series("NumPy", _color(usual), usual, numpys)] if numpys and usual and label != "NumPy" else []
    return lines + [
        Series(way.label, way.color or _color(mine), mine, name, way.dash)
        for name, way in ways.items()
        if any(name in point.records for point in mine)
    ]


def bandwidth_lines(points: Sequence[OperationPoint]) -> list[Series]:
    """A line for each library and device: its compiled sines, or where it has none, one by one."""
    return [
        line._replace(way=FUSED_WAITED if any(FUSED_WAITED in point.records for point in line.points) else EAGER_WAITED)
        for line in lines_of(points, WAITED)
    ]


def seconds_chart(
    lines: Sequence[Series],
    largest: int,
    names: Sequence[str],
    unit: str,
    by: str = "library",
    costs: Sequence[Cost] | Any = (),
) -> Chart:
    """Median seconds of a call by size, both logarithmic, with quartiles; hollow where predicted and not measured."""
    rows, hollow = [], []
    for line, point in [(one, point) for one in lines for point in one.points]:
        of = {"label": line.label, "color": line.color, "dash": line.dash, "x": point.size}
        if (record := point.records.get(line.way)) is not None:
            low, high = record.measurement.quartiles_s
            rows.append(of | {"y": record.measurement.median_s, "low": low, "high": high})
        elif point.predicted_s is not None and line.way in (WAITED, EAGER_WAITED):
            hollow.append(of | {"y": point.predicted_s, "why": point.why_not})
    domain = (LEAST_S, decades([max([0.05, *(row["y"] for row in rows + hollow)])])[1])
    fitted = [
        {"curve": number, "x": 2**k, "y": cost.seconds(2**k)}
        for number, cost in enumerate(costs)
        for k in range(2, round(log2(largest)) + 1)
        if cost.seconds(2**k) > 0
    ]
    axis = alt.Axis(labelExpr="format(datum.value, '~s') + 's'", tickCount=6)
    scale, title = log_scale(domain, clamp=True), f"seconds by size and {by}"
    return _drawn(rows, hollow, (largest, unit), domain, scale, axis, title, names, fitted)


def share_chart(
    lines: Sequence[Series], largest: int, names: Sequence[str], unit: str, peaks: Mapping[str, float], of: str
) -> Chart:
    rows = [
        {"label": line.label, "color": line.color, "dash": line.dash, "x": point.size}
        | dict.fromkeys(("y", "low", "high"), rate / peak)
        for line in lines
        for point in line.points
        if (peak := peaks.get(point.task.runtime.device)) and (rate := point.rate(line.way)) is not None
    ]
    most = max([1.0, *(row["y"] for row in rows)])
    scale, axis = alt.Scale(domain=[0, most], nice=False), alt.Axis(format=".0%", tickCount=5)
    title = f"share of the {of} by size and library"
    return _drawn(rows, [], (largest, unit), (0.0, most), scale, axis, title, names)


def _drawn(
    rows: list[dict],
    hollow: list[dict],
    sizes: tuple[int, str],
    domain: tuple[float, float],
    scale: alt.Scale,
    axis: alt.Axis,
    title: str,
    names: Sequence[str],
    fitted: Sequence[dict] = (),
) -> Chart:
    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=scale, title=None, axis=axis)

    largest, unit = sizes
    sizes_axis = alt.Axis(
        values=[2**k for k in range(0, 29, 2 if largest <= 2**16 else 4)],
        labelExpr="datum.value < 1e5 ? format(datum.value, ',') : '2^' + round(log(datum.value) / log(2))",
        labelOverlap=True,
    )
    x = alt.X("x:Q", scale=log_scale([1, max(2, largest)], base=2), title=unit, axis=sizes_axis)
    tip = alt.Tooltip("y:Q", title="measured", format=".3~s")
    predicted = alt.Tooltip("y:Q", title="predicted, not measured", format=".3~s")
    frame = pd.DataFrame(rows, columns=["label", "color", "dash", "x", "y", "low", "high"])
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=["solid", "dashed"], range=[[1, 0], [5, 3]]), legend=None)
    base = alt.Chart(frame).encode(x=x, color=ROW_COLOR)
    tooltip = ["label:N", alt.Tooltip("x:Q", title="size", format=","), tip]
    skipped = alt.Chart(pd.DataFrame(hollow, columns=["label", "color", "dash", "x", "y", "why"]))
    curves = alt.Chart(pd.DataFrame(fitted, columns=["curve", "x", "y"]))
    layers = [
        curves.mark_line(strokeWidth=1, strokeDash=[2, 2], opacity=0.7, color="currentColor").encode(
            x=x, y=y("y"), detail="curve:N"
        ),
        base.mark_rule(strokeWidth=4, opacity=0.3).encode(y=y("low"), y2="high:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y("y"), strokeDash=dash, detail="label:N"),
        base.mark_point(size=26, filled=True, opacity=1).encode(y=y("y"), tooltip=tooltip),
        skipped.mark_point(size=40, filled=False, strokeWidth=1.4).encode(
            x=x, y=y("y"), color=ROW_COLOR, tooltip=["label:N", "why:N", predicted]
        ),
    ]
    spec = styled(alt.layer(*layers, *labels(x, y("y"), y("at"), ROW_COLOR)), height=HEIGHT)
    ends = frame.sort_values("x").groupby("label", sort=False).tail(1).to_dict("records")
    spec["datasets"] |= {"ends": _placed(ends, domain), "room": room(names)}
    return Chart(spec, title)


def _placed(ends: list[dict], domain: tuple[float, float]) -> list[dict]:
    """The lines' ends, with places for their labels on a logarithmic axis, or on a linear one that begins at 0."""
    if domain[0] > 0:
        return moved_apart(ends, domain)
    # A linear axis is a logarithmic one of its exponentials.
    apart = moved_apart([end | {"y": 10.0 ** end["y"]} for end in ends], (1.0, 10.0 ** domain[1]))
    return [moved | {"y": end["y"], "at": log10(moved["at"])} for end, moved in zip(ends, apart, strict=True)]


def times_table(
    points: Sequence[OperationPoint], ways: Mapping[str, TimedWay], rate: Callable[[OperationPoint], str]
) -> str:
    """HTML: every point with its medians, and in the last column its rate, by library and size; closed."""
    rows = [
        [html.escape(label), f"{point.size:,}", *(html.escape(point.text(way)) for way in ways), rate(point)]
        for label, mine in by_label(points).items()
        for point in mine
        if point.records
    ]
    return (
        on_demand("Table", table(["library", "size", *(way.title for way in ways.values()), "rate"], rows))
        if rows
        else ""
    )


def _beside(figure: str, published_as: str, here: str, note: str) -> str:
    """HTML: a published figure beside what was measured here."""
    return table(["figure", "published", "here"], [[figure, published_as, here]], "compare") + quiet(note)


def _measured(points: Sequence[OperationPoint], label: str, *ways: str) -> list[OperationPoint]:
    """One library's points that were timed in all of these ways, or in any where none is given."""
    return [point for point in by_label(points).get(label, []) if point.records and {*ways} <= point.records.keys()]


# Products.


def peak_rates(points: Sequence[OperationPoint], store: Store) -> dict[str, float]:
    """Floating-point operations a second at best, by device: of the probe, or of a float32 product that beat it."""
    peaks = _ceilings(store, "product_flops_per_s")
    for point in points:
        operation, device = point.task.operation, point.task.runtime.device
        if operation.precision == "float32" and device in peaks:
            peaks[device] = max(peaks[device], point.rate(WAITED) or 0.0)
    return peaks


def _ceilings(store: Store, rate: str) -> dict[str, float]:
    """This rate of the probe, by device; a device that was not probed has none."""
    probed: dict[str, Ceilings | None] = {device: ceilings(Runtime(device=device), store) for device in DEVICES}
    return {device: getattr(one, rate) for device, one in probed.items() if one is not None}


def half_peak_from(points: Sequence[OperationPoint], peak_per_s: float) -> int | None:
    """The smallest size at which half of the peak rate is reached (Hockney's n½); None where none does."""
    return min(
        (point.size for point in points if (rate := point.rate(WAITED)) is not None and rate >= peak_per_s / 2),
        default=None,
    )


def worth_from(points: Sequence[OperationPoint], others: Sequence[OperationPoint], way: str) -> int | None:
    """The size from which one library is faster than another at every larger size that both measured; None for none."""
    usual = {point.size: point for point in others if WAITED in point.records}
    least: int | None = None
    for point in sorted(points, key=lambda one: one.size, reverse=True):
        if way in point.records and point.size in usual:
            if point.beside(way, WAITED, usual[point.size]).verdict is not Verdict.FASTER:
                break
            least = point.size
    return least


def product_sentence(points: Sequence[OperationPoint], label: str, peaks: Mapping[str, float]) -> str:
    known = {name: mine for name in by_label(points) if (mine := _measured(points, name, WAITED))}
    if not known:
        return ""
    halves = [
        f"{name} from n = {size:,}"
        for name, mine in known.items()
        if (peak := peaks.get(mine[0].task.runtime.device)) and (size := half_peak_from(mine, peak)) is not None
    ]
    half = f"Half of the peak is reached by {listed(halves)}." if halves else ""
    numpys = known.get("NumPy", [])
    worth = [_worth(name, mine, numpys) for name, mine in known.items() if numpys and name != "NumPy"]
    return " ".join(filter(None, [_best(known, peaks), half, *worth, _mistake(known.get(label, []), label)]))


def _best(known: Mapping[str, list[OperationPoint]], peaks: Mapping[str, float]) -> str:
    size = max(mine[-1].size for mine in known.values())
    there = {name: mine[-1] for name, mine in known.items() if mine[-1].size == size}
    quickest = min(there, key=lambda name: there[name].seconds(WAITED) or 0.0)
    best = there.pop(quickest)
    rate = best.rate(WAITED) or 0.0
    text = f"At n = {size:,}, {quickest} has the shortest time, {seconds(best.seconds(WAITED) or 0.0)}:"
    text += f" {rate / 1e9:,.3g} GFLOP/s"
    if peak := peaks.get(best.task.runtime.device):
        text += f", {times(100 * rate / peak)} % of the float32 peak that was measured here"
    alike = [name for name, one in there.items() if best.beside(WAITED, WAITED, one).verdict is not Verdict.FASTER]
    return text + (f"; not told apart from it: {listed(alike)}." if alike else ".")


def _worth(name: str, mine: Sequence[OperationPoint], numpys: Sequence[OperationPoint]) -> str:
    """From which size a library is faster than NumPy, on a card with and without the transfer."""
    card = mine[0].task.runtime.device == "gpu"
    ways = {"with the transfer": MOVED, "without the transfer": WAITED} if card else {"": WAITED}
    least = {words: worth_from(mine, numpys, way) for words, way in ways.items()}
    won = [f"{words} from n = {size:,} on".strip() for words, size in least.items() if size]
    lost = [f"{words} not certainly at the largest n" for words, size in least.items() if not size]
    if won:
        return f"{name} is faster than NumPy {', and '.join([listed(won), *lost])}."
    either = ", with or without the transfer" if card else ""
    return f"{name} is not certainly faster than NumPy at the largest n{either}."


def _mistake(mine: Sequence[OperationPoint], label: str) -> str:
    """How much not waiting hides at the largest size at which that can be told."""
    both = [point for point in mine if RETURNED in point.records]
    for point in reversed(both):
        ratio = point.beside(WAITED, RETURNED)
        if ratio.verdict is Verdict.SLOWER:
            return (
                f"A clock that does not wait for the result would show {label}'s product of n = {point.size:,}"
                f" {times(ratio.ratio)} times too fast."
            )
    return f"Not waiting for {label} hides nothing that can be told here." if both else ""


def products_published(points: Sequence[OperationPoint], label: str) -> str:
    here = f"{label} has one memory, and transfers nothing" if _measured(points, label) else "not measured yet"
    if mine := _measured(points, label, MOVED):
        share = 1 - (mine[-1].seconds(WAITED) or 0.0) / (mine[-1].seconds(MOVED) or 1.0)
        here = f"{max(0.0, share):.0%} by {label} at n = {mine[-1].size:,}"
    cpu_s, gpu_s = published.PRODUCT_S
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}”, of its largest products; “{published.OVERHEAD_ARTICLE}” gives"
        f" {seconds(cpu_s)} on the CPU and {seconds(gpu_s)} on the card for (32, 784) @ (784, 128), one"
        " operation of a step. Without a card, “there and back” is what the library copies within main memory."
    )
    share_there = f"{published.PRODUCT_TRANSFER_SHARE:.0%}, A100"
    return _beside("share of the transfer in a product on a card", share_there, here, note)


# Nested sines.


def sine_sentence(points: Sequence[OperationPoint], label: str, depth: int, bandwidths: Mapping[str, float]) -> str:
    if not (both := _measured(points, label, EAGER_WAITED, FUSED_WAITED)):
        return ""
    ratio = both[-1].beside(EAGER_WAITED, FUSED_WAITED)
    saves = f"Fusing {depth} sines into one program saves {depth - 1} of {depth} passes over memory"
    if depth == 1:
        saves = "Compiling a single sine saves no pass over memory"
    what = {
        Verdict.SLOWER: f"{label} is {times(ratio.ratio)} times as fast with it",
        Verdict.FASTER: f"{label} takes {times(1 / ratio.ratio)} times as long with it",
        Verdict.SAME: f"{label} takes the same time with it",
        Verdict.UNCLEAR: f"it cannot be told whether {label} is faster with it",
    }[ratio.verdict]
    return f"{saves}; at {both[-1].size:,} elements {what}. {_bound(both[-1], bandwidths)}".strip()


def _bound(point: OperationPoint, bandwidths: Mapping[str, float]) -> str:
    bandwidth, rate = bandwidths.get(point.task.runtime.device), point.rate(FUSED_WAITED)
    if not bandwidth or not rate:
        return ""
    what = next(words for least, words in BOUNDS if rate / bandwidth > least)
    return f"It moves {rate / 1e9:.3g} GB/s, {rate / bandwidth:.0%} of what a copy moves here: {what}."


def _sine_rates(point: OperationPoint) -> str:
    rates = [point.rate(way) for way in (EAGER_WAITED, FUSED_WAITED)]
    return ", ".join(f"{one / 1e9:,.3g}" for one in rates if one is not None) + " GB/s"


def sines_published(points: Sequence[OperationPoint], label: str, depth: int) -> str:
    here = f"{label} makes them one by one only" if _measured(points, label) else "not measured yet"
    if both := _measured(points, label, FUSED_WAITED):
        eager_s, fused_s = (both[-1].seconds(way) or 0.0 for way in (EAGER_WAITED, FUSED_WAITED))
        here = f"{seconds(eager_s)} → {seconds(fused_s)}, {depth} sines of {both[-1].size:,} by {label}"
    before_s, after_s = published.SINE_S
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}”, “approximately”, of a size that it does not say. It finds a card"
        " slower than a processor at 2³² elements, the transfer included."
    )
    there = f"{seconds(before_s)} → {seconds(after_s)}, four, A100"
    return _beside("nested sines, one by one → in one", there, here, note)


# Transfers.


def transfer_costs(points: Sequence[OperationPoint]) -> dict[str, Cost]:
    """Latency and bandwidth of each way that was measured at three sizes or more."""
    known = {
        way: {point.size: s for point in points if (s := point.seconds(way))}
        for way in dict.fromkeys(way for point in points for way in point.records)
    }
    fitted = {way: cost_of(list(by_size), list(by_size.values())) for way, by_size in known.items()}
    return {way: cost for way, cost in fitted.items() if cost is not None}


def transfer_sentence(points: Sequence[OperationPoint], label: str, costs: Mapping[str, Cost]) -> str:
    if not costs:
        return ""
    parts = [f"{label}, {TRANSFER_WAYS[way].label}: {_cost_text(cost)}." for way, cost in costs.items()]
    copied = costs.get(COPIED)
    if copied is not None and copied.grows and copied.half_bytes >= 1:
        parts.append(f"Below {_bytes_text(copied.half_bytes)}, most of a copy's time is the call and not its bytes.")
    largest = _measured(points, label)[-1]
    if {COPIED, ALIASED} <= largest.records.keys():
        ratio = largest.beside(COPIED, ALIASED)
        if ratio.verdict is Verdict.SLOWER:
            parts.append(f"At {_bytes_text(largest.size)} a copy takes {times(ratio.ratio)} times as long as an alias.")
    return " ".join(parts)


def _cost_text(cost: Cost) -> str:
    low_s, high_s = cost.latency_interval_s
    # The line may begin below 0; a latency does not.
    least, usual, most = (seconds(max(0.0, one_s)) for one_s in (low_s, cost.latency_s, high_s))
    if not cost.grows:
        return f"{usual} ({least} to {most}) at any size"
    slow, fast = cost.bandwidth_interval
    upper = f"{fast / 1e9:.2g}" if fast < inf else "any"
    return f"{usual} ({least} to {most}) + size ÷ {cost.bytes_per_s / 1e9:.2g} GB/s ({slow / 1e9:.2g} to {upper})"


def _bytes_text(n_bytes: float) -> str:
    unit, name = next(((u, n) for u, n in ((2**20, "MiB"), (2**10, "KiB")) if n_bytes >= u), (1, "bytes"))
    return f"{n_bytes / unit:,.3g} {name}"


def transfers_published(label: str, costs: Mapping[str, Cost]) -> str:
    n_bytes, bandwidth, (least, most) = published.BATCH_TRANSFER
    copied = costs.get(COPIED)
    here = "not measured yet" if copied is None else "at these sizes, more bytes take no more time"
    if copied is not None and copied.grows:
        raw_s = n_bytes * copied.byte_s
        setup = times(max(copied.latency_s, 0.0) / raw_s)
        here = f"{seconds(raw_s)}; the call takes {setup} times that ({label}, predicted by the fit)"
    said = f"{seconds(n_bytes / bandwidth)} at {bandwidth / 1e9:.0f} GB/s; the setup takes {least} to {most} times that"
    note = f"Published: “{published.OVERHEAD_ARTICLE}”, calculated there and not measured."
    return _beside(f"transfer of {n_bytes / 1e3:.0f} kB, a batch of 32 images", said, here, note)
