"""A library's first use, what a compiler leaves of a program, and transfers beside arithmetic."""

import html
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from lib.formatting import listed, seconds, times
from lib.labs.operations_and_feeds.operations import DEPTHS, drawing, library_names, points_of
from lib.sweeps.experiments import published
from lib.sweeps.experiments.single_operations import FIRST_SIZES, OVERLAP_SIZES, OperationPoint
from lib.timing.comparison import Verdict
from lib.timing.profiling.request import AFTER, BEFORE, IN_PIECES, IN_TURN, INSIDE, LANES
from lib.ui import layout
from lib.ui.lab import Drawing, Shown
from lib.ui.panel import Controls, batch_size, slider
from lib.ui.views.chart import Chart, names_y, nice_above, ordered_palette, styled
from lib.ui.views.markup import on_demand, quiet, table


class StartStage(NamedTuple):
    """A part of a library's first use: the difference of two stages, or one of them."""

    label: str
    stage: str
    less: str = ""


STAGES = (
    StartStage("Python starts", "process"),
    StartStage("import", "import"),
    StartStage("device and first array", "context"),
    StartStage("kernels of the first call", "first", "steady"),
    StartStage("compiling it as one program", "compiled first", "compiled steady"),
)
STAGE_NAMES = ("process", "import", "context", "first", "second", "steady") + tuple(
    f"compiled {name}" for name in ("first", "second", "steady")
)
PROGRAMS = {"step": "the step", "sine": "the sines"}
KINDS = {
    "product": "products",
    "reduction": "reductions",
    "elementwise": "element by element",
    "fusion": "several fused",
    "single": "one by itself",
}
LANE_LABELS = {"there": "bring there", "compute": "compute", "back": "bring back"}


class FirstUse(Controls):
    size = slider("Elements", 1024, FIRST_SIZES)


class Fusion(Controls):
    size = batch_size("Batch size of the step", 32)
    depth = slider("Sines in one another", 4, DEPTHS)


class Overlap(Controls):
    size = slider("Elements", OVERLAP_SIZES[3], OVERLAP_SIZES)
    depth = slider("Sines in one another", 4, DEPTHS)
    pieces = slider("Pieces", 8, (2, 4, 8, 16, 32))


def _stacked(
    rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], names: Sequence[str], row_px: int, of: str, **x: Any
) -> Chart:
    """Stacked bars, a row for each name, with its total written at its end."""
    frame = pd.DataFrame(rows, columns=["label", "kind", "n"])
    frame["order"] = [kinds.index(kind) for kind in frame["kind"]]
    totals = frame.groupby("label", sort=False)["n"].sum().reset_index()
    totals["text"] = [x["written"](n) for n in totals["n"]]
    most, y = nice_above(1.1 * max(totals["n"], default=x["least"])), names_y(names, 170)
    scale, axis = alt.Scale(domain=[0, most], nice=False), alt.Axis(tickCount=5)
    colors = alt.Scale(domain=list(kinds), range=list(ordered_palette(len(kinds))))
    legend = alt.Legend(orient="top", title=None, columns=2)
    bars = (
        alt.Chart(frame)
        .mark_bar(height=18)
        .encode(
            x=alt.X("n:Q", stack="zero", title=x["unit"], axis=axis, scale=scale),
            y=y,
            order="order:Q",
            color=alt.Color("kind:N", scale=colors, sort=list(kinds), legend=legend),
            tooltip=["label:N", "kind:N", alt.Tooltip("n:Q", format=".3~s", title=x["unit"])],
        )
    )
    text = alt.Chart(totals).mark_text(align="left", dx=6, color="currentColor").encode(x="n:Q", y=y, text="text:N")
    return Chart(styled(alt.layer(bars, text), height=row_px * max(1, len(names))), of)


# A library's first use.


def draw_first_uses(shown: Shown) -> Drawing:
    points = points_of(shown)
    caption = "seconds before the first result, and of compiling what made it, in a fresh process"
    figures = {caption: layout.drawing(first_chart(points, library_names(shown)), caption)}
    of = "libraries, each in fresh processes"
    return drawing(shown, figures, first_sentence(points), first_table(points), of)


def stage_s(point: OperationPoint, stage: StartStage) -> float | None:
    """Median seconds of a stage, at least 0; None where the library has none."""
    whole, rest = point.seconds(stage.stage), point.seconds(stage.less) if stage.less else 0.0
    return None if whole is None or rest is None else max(0.0, whole - rest)


def first_chart(points: Sequence[OperationPoint], names: Sequence[str]) -> Chart:
    rows = [
        {"label": point.task.label, "kind": stage.label, "n": stage_seconds}
        for point in points
        for stage in STAGES
        if (stage_seconds := stage_s(point, stage)) is not None
    ]
    kinds = [stage.label for stage in STAGES]
    return _stacked(rows, kinds, names, 44, "stages of a first use", unit="seconds", least=0.9, written=seconds)


def first_sentence(points: Sequence[OperationPoint]) -> str:
    known = [point for point in points if "first" in point.records]
    if not known:
        return ""
    before = {point.task.label: [stage_s(point, stage) or 0.0 for stage in STAGES[:-1]] for point in known}
    ordered = sorted(before, key=lambda label: sum(before[label]))
    slowest, total_s = before[ordered[-1]], sum(before[ordered[-1]])
    ends = dict.fromkeys((ordered[0], ordered[-1]))
    parts = [f"{label} has its first result after {seconds(sum(before[label]))}" for label in ends]
    which = "the latter" if len(parts) > 1 else "that"
    stage = STAGES[slowest.index(max(slowest))].label
    said = [f"{listed(parts)}: {max(slowest) / total_s:.0%} of {which} is “{stage}”."]
    longer = [
        f"{times(ratio.ratio)} times as long with {point.task.label}"
        for point in known
        if (ratio := point.beside("first", "steady", paired=False)).verdict is Verdict.SLOWER
    ]
    if longer:
        said.append(f"Compared with a steady call, the first one takes {listed(longer)}.")
    return " ".join([*said, *filter(None, map(_pays, known))])


def _pays(point: OperationPoint) -> str:
    """After how many calls a compiled program has earned its compilation; empty for a library without."""
    if (cost_s := stage_s(point, STAGES[-1])) is None:
        return ""
    ratio = point.beside("steady", "compiled steady", paired=False)
    what = "not told apart from it" if ratio.verdict is Verdict.UNCLEAR else "no quicker"
    if ratio.verdict is not Verdict.SLOWER:
        return f"{point.task.label}'s compiled program is {what} at this size."
    saved_s = (1 - 1 / ratio.ratio) * (point.seconds("steady") or 0.0)
    return f"{point.task.label}'s compiled program has earned its compilation after {times(cost_s / saved_s)} calls."


def first_table(points: Sequence[OperationPoint]) -> str:
    rows = [
        [html.escape(point.task.label), *(point.text(name) for name in STAGE_NAMES)]
        for point in points
        if point.records
    ]
    low_s, high_s = published.LAUNCH_S
    note = (
        f"Published: launching a kernel takes {seconds(low_s)} to {seconds(high_s)} (“{published.OVERHEAD_ARTICLE}”);"
        " a steady call here is four operations and their results' arrival."
    )
    return (on_demand("Table", table(["library", *STAGE_NAMES], rows)) if rows else "") + quiet(note)


# What a compiler leaves.


def draw_fusions(shown: Shown) -> Drawing:
    points = points_of(shown)
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” counts four kernels of four sines before `torch.jit.script`, and"
        f" one after. “{published.OVERHEAD_ARTICLE}” calls a compiled step one fused call: it is one call from Python,"
        " and as many kernels as are counted above."
    )
    caption = "how many, counted from the compiler's text"
    figures = {caption: layout.drawing(fusion_chart(points), caption)}
    return drawing(shown, figures, fusion_sentence(points, shown.at.depth), quiet(note), of="")


def count_of(point: OperationPoint, program: str, when: str) -> dict[str, int]:
    names = {kind: f"{program}/{when}/{kind}" for kind in KINDS}
    return {kind: round(point.seconds(name) or 0.0) for kind, name in names.items() if name in point.records}


def fusion_chart(points: Sequence[OperationPoint]) -> Chart:
    devices: dict[str, OperationPoint | None] = {
        ", GPU" if point.task.runtime.device == "gpu" else "": point for point in points
    }
    counted = {
        f"{title}{device}, {when}": count_of(point, program, when) if point is not None else {}
        for program, title in PROGRAMS.items()
        for device, point in (devices or {"": None}).items()
        for when in (BEFORE, AFTER)
    }
    rows = [{"label": label, "kind": KINDS[kind], "n": n} for label, one in counted.items() for kind, n in one.items()]
    x = {"unit": "operations before, kernels after", "least": 9.0, "written": str}
    return _stacked(rows, list(KINDS.values()), list(counted), 34, "operations and kernels", **x)


def fusion_sentence(points: Sequence[OperationPoint], depth: int) -> str:
    said = []
    for point in points:
        before, after, sines = (
            sum(count_of(point, *counted).values()) for counted in (("step", BEFORE), ("step", AFTER), ("sine", AFTER))
        )
        where = "On the card" if point.task.runtime.device == "gpu" else "On the processor"
        products = count_of(point, "step", AFTER).get("product", 0)
        largest = round(point.seconds(f"step/{INSIDE}/fusion") or 0.0)
        if before:
            said.append(
                f"{where}, XLA makes {after} kernels of the step's {before} operations: {products} of them products,"
                f" and the largest fusion has {largest} operations."
                f" Of {depth} sine{'s' * (depth > 1)} it makes {sines}."
            )
    return " ".join(said)


# Transfers beside arithmetic.


def draw_overlaps(shown: Shown) -> Drawing:
    points = {point.task: point for point in points_of(shown)}
    most_s = last_end_s([*points.values()])
    figures: dict[str, Chart | str] = {
        f"{task.label}, {way}: the lanes of one run": lanes_chart(points.get(task), way, most_s)
        for task in shown.tasks
        for way in (IN_TURN, IN_PIECES)
    }
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” sees not much of a benefit in three streams, and gives no figure."
        " Its streams cannot overlap: each is synchronised before the next one begins, there is one piece, and pageable"
        " memory is copied by the host."
    )
    return drawing(shown, figures, overlap_sentence([*points.values()]), quiet(note), "devices")


def spans_of(point: OperationPoint, way: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds at which each piece began and ended, by lane; empty where that was not measured."""
    names = {lane: [f"{way}/{lane}/{end}" for end in ("begins", "ends")] for lane in LANES}
    return {
        lane: list(zip(*(point.records[name].block_s for name in both), strict=True))
        for lane, both in names.items()
        if set(both) <= point.records.keys()
    }


def overlapped_share(spans: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """The share of a run in which two lanes or more were at work.

    >>> overlapped_share({"there": [(0.0, 1.0), (1.0, 2.0)], "compute": [(1.0, 2.0)], "back": [(2.0, 4.0)]})
    0.25
    """
    edges = sorted({edge for lane in spans.values() for span in lane for edge in span})
    if not edges or edges[-1] <= edges[0]:
        return 0.0
    both_s = sum(
        high - low
        for low, high in pairwise(edges)
        if sum(begin <= low and high <= end for lane in spans.values() for begin, end in lane) > 1
    )
    return both_s / (edges[-1] - edges[0])


def lanes_chart(point: OperationPoint | None, way: str, most_s: float) -> Chart:
    spans = spans_of(point, way) if point is not None else {}
    rows = [
        {"label": LANE_LABELS[lane], "begin": 1e3 * begin, "end": 1e3 * end, "piece": f"{number} of {len(pieces)}"}
        for lane, pieces in spans.items()
        for number, (begin, end) in enumerate(pieces, 1)
    ]
    names = list(LANE_LABELS.values())
    scale = alt.Scale(domain=[0, nice_above(1e3 * most_s)], nice=False)
    colors = alt.Scale(domain=names, range=list(ordered_palette(len(names))))
    bars = (
        alt.Chart(pd.DataFrame(rows, columns=["label", "begin", "end", "piece"]))
        .mark_bar(height=16, stroke="currentColor", strokeWidth=0.4)
        .encode(
            x=alt.X("begin:Q", title="milliseconds", axis=alt.Axis(tickCount=5), scale=scale),
            x2="end:Q",
            y=names_y(names, 110),
            color=alt.Color("label:N", scale=colors, legend=None),
            tooltip=["label:N", "piece:N", *(alt.Tooltip(f"{end}:Q", format=".3~g") for end in ("begin", "end"))],
        )
    )
    return Chart(styled(alt.layer(bars), height=32 * len(names)), f"lanes, {way}")


def last_end_s(points: Sequence[OperationPoint]) -> float:
    """Seconds of the longest run whose lanes are drawn; a hundredth of a second without any."""
    drawn = [spans_of(point, way) for point in points for way in (IN_TURN, IN_PIECES)]
    return max((end for spans in drawn for lane in spans.values() for _, end in lane), default=0.01)


def overlap_sentence(points: Sequence[OperationPoint]) -> str:
    return " ".join(map(_overlap, (point for point in points if {IN_TURN, IN_PIECES} <= point.records.keys())))


def _overlap(point: OperationPoint) -> str:
    ratio = point.beside(IN_TURN, IN_PIECES)
    in_turn, in_pieces = (overlapped_share(spans_of(point, way)) for way in (IN_TURN, IN_PIECES))
    what = {
        Verdict.SLOWER: f"with pieces it is {times(ratio.ratio)} times as fast",
        Verdict.FASTER: f"with pieces it is {times(1 / ratio.ratio)} times as slow",
        Verdict.SAME: "with pieces it is as fast",
        Verdict.UNCLEAR: "whether pieces make it faster cannot be told",
    }[ratio.verdict]
    return (
        f"{point.task.label}: in turn, two stages are at work for {in_turn:.0%} of a run, in"
        f" {point.task.operation.pieces} pieces for {in_pieces:.0%}; {what}."
    )
