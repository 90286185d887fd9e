"""Single operations as a reader sees them: charts, tables and sentences computed from points. Measures nothing."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, log10

import altair as alt
import pandas as pd

from lib.backends.registry import BACKENDS
from lib.experiments import published
from lib.experiments.single_operations import OperationPoint, half_peak_from, worth_from
from lib.formatting import listed, seconds, times
from lib.profiling.request import (
    EAGER,
    MOVED,
    RETURNED,
    WAITED,
)
from lib.storage.records import Record
from lib.timing.comparison import Verdict, compared
from lib.timing.latency import Cost
from lib.views.chart import (
    HEIGHT,
    ROW_COLOR,
    Chart,
    decades,
    labels,
    log_scale,
    moved_apart,
    room,
    styled,
)
from lib.views.markup import on_demand, quiet, table

MOVED_COLOR, WRONG_COLOR = "#b04fb4", "#d1623a"
LEAST_S = 1e-7  # end of the axis of seconds: no call takes less
WAYS = {
    WAITED: "on the device, waited for",
    MOVED: "there and back, waited for",
    RETURNED: "mistake: not waited for",
}
WAY_LABELS = ("NumPy", "waited for", "there and back", "not waited for")
_SECONDS = alt.Axis(labelExpr="format(datum.value, '~s') + 's'", tickCount=6)


@dataclass(frozen=True)
class Series:
    """A line of a chart: points timed in one way, under a name of its own."""

    label: str
    color: str
    points: Sequence[OperationPoint]
    way: str
    dash: str = "solid"  # or “dashed”, for what is not comparable with the others


def color(point: OperationPoint) -> str:
    """The colour of its library, the same on all pages."""
    return BACKENDS[point.task.runtime.backend].color


def by_label(points: Sequence[OperationPoint]) -> dict[str, list[OperationPoint]]:
    """The points of each library and device, the small sizes first."""
    found: dict[str, list[OperationPoint]] = {}
    for point in sorted(points, key=lambda one: one.size):
        found.setdefault(point.task.label, []).append(point)
    return found


def lines_of(points: Sequence[OperationPoint], way: str) -> list[Series]:
    """A line for each library and device, timed in this way."""
    return [
        Series(label, color(mine[0]), mine, way, "dashed" if mine[0].task.runtime.device == "gpu" else "solid")
        for label, mine in by_label(points).items()
    ]


def ways_of(points: Sequence[OperationPoint], label: str) -> list[Series]:
    """One library's ways, with NumPy beside them."""
    mine, usual = by_label(points).get(label, []), by_label(points).get("NumPy", [])
    lines = [Series("NumPy", color(usual[0]), usual, WAITED)] if usual and label != "NumPy" else []
    if mine:
        lines += [
            Series("waited for", color(mine[0]), mine, WAITED),
            Series("there and back", MOVED_COLOR, mine, MOVED),
            Series("not waited for", WRONG_COLOR, mine, RETURNED, "dashed"),
        ]
    return lines


def size_axis(largest: int, title: str) -> alt.X:
    """A logarithmic axis from 1 to the largest size, labelled with powers of two."""
    steps = 2 if largest <= 2**16 else 4
    return alt.X(
        "x:Q",
        scale=log_scale([1, max(2, largest)], base=2),
        title=title,
        axis=alt.Axis(
            values=[2**k for k in range(0, 29, steps)],
            labelExpr="datum.value < 1e5 ? format(datum.value, ',') : '2^' + round(log(datum.value) / log(2))",
            labelOverlap=True,
        ),
    )


def seconds_chart(
    lines: Sequence[Series], largest: int, title: str, names: Sequence[str], unit: str, costs: Sequence[Cost] = ()
) -> Chart:
    """Median seconds of a call by size, both logarithmic, with quartiles; hollow where predicted and not measured.

    Args:
        lines: A line each; their names are among `names`.
        largest: End of the axis of sizes.
        title: For screen readers.
        names: Of all lines that may come: the plot keeps its width.
        unit: What a size counts.
        costs: Drawn as thin dotted curves: what transfers of each size should take.
    """
    rows, hollow = [], []
    for line in lines:
        for point in line.points:
            of = {"label": line.label, "color": line.color, "dash": line.dash, "x": point.size}
            if (record := point.records.get(line.way)) is not None:
                low, high = record.measurement.quartiles_s
                rows.append(of | {"y": record.measurement.median_s, "low": low, "high": high})
            elif point.predicted_s is not None and line.way in (WAITED, f"{EAGER}/{WAITED}"):
                hollow.append(of | {"y": point.predicted_s, "why": point.why_not})
    most = max([row["y"] for row in rows + hollow], default=0.0)
    domain = (LEAST_S, decades([max(most, 0.05)])[1])
    sizes = [2**k for k in range(2, round(log2(largest)) + 1)]
    fitted = [
        {"curve": number, "x": size, "y": cost.seconds(size)}
        for number, cost in enumerate(costs)
        for size in sizes
        if cost.seconds(size) > 0
    ]
    axis, scale = size_axis(largest, unit), log_scale(domain, clamp=True)
    return _drawn(rows, hollow, axis, domain, scale, _SECONDS, title, names, fitted)


def share_chart(
    lines: Sequence[Series], largest: int, peaks: Mapping[str, float], names: Sequence[str], unit: str, what: str
) -> Chart:
    """The share of the device's peak rate that is reached at each size, from 0 to 1.

    Args:
        lines: A line each; those of a device without a peak are left out.
        largest: End of the axis of sizes.
        peaks: Work a second at best, by device.
        names: Of all lines that may come.
        unit: What a size counts.
        what: The peak, for screen readers.
    """
    rows = [
        {
            "label": line.label,
            "color": line.color,
            "dash": line.dash,
            "x": point.size,
            "y": share,
            "low": share,
            "high": share,
        }
        for line in lines
        for point in line.points
        if (peak := peaks.get(point.task.runtime.device)) and (rate := point.rate(line.way)) is not None
        for share in [rate / peak]
    ]
    most = max([1.0, *(row["y"] for row in rows)])
    scale = alt.Scale(domain=[0, most], nice=False)
    return _drawn(
        rows, [], size_axis(largest, unit), (0.0, most), scale, alt.Axis(format=".0%", tickCount=5), what, names
    )


def _drawn(
    rows: list[dict],
    hollow: list[dict],
    x: alt.X,
    domain: tuple[float, float],
    scale: alt.Scale,
    axis: alt.Axis,
    title: str,
    names: Sequence[str],
    fitted: Sequence[dict] = (),
) -> Chart:
    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=scale, title=None, axis=axis)

    columns = ["label", "color", "dash", "x", "y", "low", "high"]
    frame = pd.DataFrame(rows, columns=columns)
    tooltip = [
        "label:N",
        alt.Tooltip("x:Q", title="size", format=","),
        alt.Tooltip("y:Q", title="measured", format=".3~s"),
    ]
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=["solid", "dashed"], range=[[1, 0], [5, 3]]), legend=None)
    base = alt.Chart(frame).encode(x=x, color=ROW_COLOR)
    spread = base.mark_rule(strokeWidth=4, opacity=0.3).encode(y=y("low"), y2="high:Q")
    lines = base.mark_line(strokeWidth=1.8).encode(y=y("y"), strokeDash=dash, detail="label:N")
    dots = base.mark_point(size=26, filled=True, opacity=1).encode(y=y("y"), tooltip=tooltip)
    skipped = (
        alt.Chart(pd.DataFrame(hollow, columns=["label", "color", "dash", "x", "y", "why"]))
        .mark_point(size=40, filled=False, strokeWidth=1.4)
        .encode(
            x=x,
            y=y("y"),
            color=ROW_COLOR,
            tooltip=["label:N", "why:N", alt.Tooltip("y:Q", title="predicted, not measured", format=".3~s")],
        )
    )
    curves = (
        alt.Chart(pd.DataFrame(fitted, columns=["curve", "x", "y"]))
        .mark_line(strokeWidth=1, strokeDash=[2, 2], opacity=0.7, color="currentColor")
        .encode(x=x, y=y("y"), detail="curve:N")
    )
    spec = styled(
        alt.layer(curves, spread, lines, dots, skipped, *labels(x, y("y"), y("at"), ROW_COLOR)), height=HEIGHT
    )
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


def product_sentence(points: Sequence[OperationPoint], label: str, peaks: Mapping[str, float]) -> str:
    """What the largest products reach, from which size each library pays, and what not waiting hides.

    Args:
        points: Of all libraries.
        label: Of the one whose ways are drawn.
        peaks: Floating-point operations a second at best, by device; of float32.
    """
    known = {name: [point for point in mine if WAITED in point.records] for name, mine in by_label(points).items()}
    known = {name: mine for name, mine in known.items() if mine}
    if not known:
        return ""
    parts = [_best(known, peaks), _halves(known, peaks), *_worth(known), _mistake(known.get(label, []), label)]
    return " ".join(filter(None, parts))


def _best(known: Mapping[str, list[OperationPoint]], peaks: Mapping[str, float]) -> str:
    size = max(mine[-1].size for mine in known.values())
    there = {name: mine[-1] for name, mine in known.items() if mine[-1].size == size}
    quickest = min(there, key=lambda name: there[name].seconds(WAITED) or 0.0)
    rate = there[quickest].rate(WAITED) or 0.0
    least_s = there[quickest].seconds(WAITED) or 0.0
    text = f"At n = {size:,}, {quickest} has the shortest time, {seconds(least_s)}: {rate / 1e9:,.3g} GFLOP/s"
    if peak := peaks.get(there[quickest].task.runtime.device):
        text += f", {times(100 * rate / peak)} % of the float32 peak that was measured here"
    others = [one for name, one in there.items() if name != quickest]
    alike = [
        one.task.label
        for one in others
        if _verdict(there[quickest].records[WAITED], one.records[WAITED]) is not Verdict.FASTER
    ]
    return text + (f"; not told apart from it: {listed(alike)}." if alike else ".")


def _verdict(first: Record, second: Record) -> Verdict:
    return compared(first.measurement.step_s, second.measurement.step_s, paired=False).verdict


def _halves(known: Mapping[str, list[OperationPoint]], peaks: Mapping[str, float]) -> str:
    reached = [
        f"{name} from n = {size:,}"
        for name, mine in known.items()
        if (peak := peaks.get(mine[0].task.runtime.device)) and (size := half_peak_from(mine, peak)) is not None
    ]
    return f"Half of the peak is reached by {listed(reached)}." if reached else ""


def _worth(known: Mapping[str, list[OperationPoint]]) -> list[str]:
    """From which size each library is faster than NumPy, on a card with and without the transfer."""
    if "NumPy" not in known:
        return []
    said = []
    for name, mine in known.items():
        if name == "NumPy":
            continue
        card = mine[0].task.runtime.device == "gpu"
        ways = {"with the transfer": MOVED, "without the transfer": WAITED} if card else {"": WAITED}
        least = {words: worth_from(mine, known["NumPy"], way) for words, way in ways.items()}
        won = [f"{words} from n = {size:,} on".strip() for words, size in least.items() if size]
        lost = [f"{words} not certainly at the largest n" for words, size in least.items() if not size]
        if won:
            said.append(f"{name} is faster than NumPy {', and '.join([listed(won), *lost])}.")
        else:
            either = ", with or without the transfer" if card else ""
            said.append(f"{name} is not certainly faster than NumPy at the largest n{either}.")
    return said


def _mistake(mine: Sequence[OperationPoint], label: str) -> str:
    """How much not waiting hides at the largest size at which that can be told."""
    both = [point for point in mine if RETURNED in point.records]
    for point in reversed(both):
        right, wrong = (point.records[way].measurement.step_s for way in (WAITED, RETURNED))
        ratio = compared(right, wrong, paired=True)
        if ratio.verdict is Verdict.SLOWER:
            return (
                f"A clock that does not wait for the result would show {label}'s product of n = {point.size:,}"
                f" {times(ratio.ratio)} times too fast."
            )
    return f"Not waiting for {label} hides nothing that can be told here." if both else ""


def skipped(points: Sequence[OperationPoint]) -> str:
    """HTML: what was refused or failed, a line for each library and reason, closed; empty where nothing was."""
    why: dict[tuple[str, str], list[int]] = {}
    for point in points:
        if point.why_not:
            why.setdefault((point.task.label, point.why_not), []).append(point.size)
    rows = "".join(
        f"<li>{html.escape(label)}, size {listed([f'{size:,}' for size in sizes])}: {html.escape(reason)}.</li>"
        for (label, reason), sizes in why.items()
    )
    return on_demand("Not measured, and why", f'<ul class="lab-note">{rows}</ul>') if why else ""


def times_table(
    points: Sequence[OperationPoint], head: Mapping[str, str], rate: Callable[[OperationPoint], str]
) -> str:
    """HTML: every point with its median and its rate, by library and size; closed until somebody opens it.

    Args:
        points: Those without records are left out.
        head: Column titles of the ways, by way.
        rate: What the last column says of a point.
    """
    rows = []
    for label, mine in by_label(points).items():
        for point in mine:
            if point.records:
                cells = [point.records[way].measurement.text if way in point.records else "–" for way in head]
                rows.append([html.escape(label), f"{point.size:,}", *map(html.escape, cells), rate(point)])
    return on_demand("Table", table(["library", "size", *head.values(), "rate"], rows)) if rows else ""


def products_table(points: Sequence[OperationPoint]) -> str:
    """HTML: seconds in each way, and floating-point operations a second."""
    return times_table(points, WAYS, lambda point: f"{(point.rate(WAITED) or 0.0) / 1e9:,.3g} GFLOP/s")


def products_published(points: Sequence[OperationPoint], label: str) -> str:
    """HTML: what the articles say of a product, beside what was measured here."""
    measured = [point for point in by_label(points).get(label, []) if point.records]
    here = f"{label} has one memory, and transfers nothing" if measured else "not measured yet"
    if mine := [point for point in measured if MOVED in point.records]:
        share = 1 - (mine[-1].seconds(WAITED) or 0.0) / (mine[-1].seconds(MOVED) or 1.0)
        here = f"{max(0.0, share):.0%} by {label} at n = {mine[-1].size:,}"
    cpu_s, gpu_s = published.PRODUCT_S
    rows = [
        ["share of the transfer in a product on a card", f"{published.PRODUCT_TRANSFER_SHARE:.0%}, A100", here],
        ["(32, 784) @ (784, 128)", f"CPU {seconds(cpu_s)}, card {seconds(gpu_s)}", "see the anatomy of a step"],
    ]
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” (the share, of its largest products) and"
        f" “{published.OVERHEAD_ARTICLE}” (the seconds). Without a card, “there and back” is what the library copies"
        " within main memory."
    )
    return table(["figure", "published", "measured here"], rows, "compare") + quiet(note)
