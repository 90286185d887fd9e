"""Transfers beside arithmetic as a reader sees them: lanes over time, and a sentence. Measures nothing."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from lib.experiments import published
from lib.experiments.single_operations import OperationPoint, overlapped_share, spans_of
from lib.formatting import times
from lib.profiling.request import (
    IN_PIECES,
    IN_TURN,
)
from lib.timing.comparison import Verdict, compared
from lib.views.chart import (
    Chart,
    names_y,
    nice_above,
    ordered_palette,
    styled,
)
from lib.views.markup import quiet

LANE_LABELS = {"there": "bring there", "compute": "compute", "back": "bring back"}


def lanes_chart(point: OperationPoint | None, way: str, most_s: float) -> Chart:
    """When each lane was at work in one run, a bar for each piece.

    Args:
        point: None while nothing was measured.
        way: `IN_TURN` or `IN_PIECES`.
        most_s: End of the axis, the same for both ways.
    """
    spans = spans_of(point, way) if point is not None else {}
    rows = [
        {"label": LANE_LABELS[lane], "begin": 1e3 * begin, "end": 1e3 * end, "piece": f"{number} of {len(pieces)}"}
        for lane, pieces in spans.items()
        for number, (begin, end) in enumerate(pieces, 1)
    ]
    names = list(LANE_LABELS.values())
    scale = alt.Scale(domain=[0, nice_above(1e3 * most_s)], nice=False)
    x = alt.X("begin:Q", title="milliseconds", axis=alt.Axis(tickCount=5), scale=scale)
    bars = (
        alt.Chart(pd.DataFrame(rows, columns=["label", "begin", "end", "piece"]))
        .mark_bar(height=16, stroke="currentColor", strokeWidth=0.4)
        .encode(
            x=x,
            x2="end:Q",
            y=names_y(names, 110),
            color=alt.Color(
                "label:N", scale=alt.Scale(domain=names, range=list(ordered_palette(len(names)))), legend=None
            ),
            tooltip=["label:N", "piece:N", alt.Tooltip("begin:Q", format=".3~g"), alt.Tooltip("end:Q", format=".3~g")],
        )
    )
    return Chart(styled(alt.layer(bars), height=32 * len(names)), f"lanes, {way}")


def last_end_s(points: Sequence[OperationPoint]) -> float:
    """Seconds of the longest run whose lanes are drawn; a hundredth of a second without any."""
    ends = [
        end
        for point in points
        for way in (IN_TURN, IN_PIECES)
        for lane in spans_of(point, way).values()
        for _, end in lane
    ]
    return max(ends, default=0.01)


def overlap_sentence(points: Sequence[OperationPoint]) -> str:
    """Whether pieces pay, on each device, and for which share of a run two stages were at work."""
    said = []
    for point in points:
        if not {IN_TURN, IN_PIECES} <= point.records.keys():
            continue
        ratio = compared(*(point.records[way].measurement.step_s for way in (IN_TURN, IN_PIECES)), paired=True)
        shares = [overlapped_share(spans_of(point, way)) for way in (IN_TURN, IN_PIECES)]
        what = {
            Verdict.SLOWER: f"with pieces it is {times(ratio.ratio)} times as fast",
            Verdict.FASTER: f"with pieces it is {times(1 / ratio.ratio)} times as slow",
            Verdict.SAME: "with pieces it is as fast",
            Verdict.UNCLEAR: "whether pieces make it faster cannot be told",
        }[ratio.verdict]
        pieces = point.task.operation.pieces
        said.append(
            f"{point.task.label}: in turn, two stages are at work for {shares[0]:.0%} of a run, in {pieces} pieces for"
            f" {shares[1]:.0%}; {what}."
        )
    return " ".join(said)


def overlap_published() -> str:
    """HTML: what the article found with its streams, and why it could find nothing else."""
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” sees not much of a benefit in three streams, and gives no figure."
        " Its streams cannot overlap: each is synchronised before the next one begins, there is one piece, and pageable"
        " memory is copied by the host."
    )
    return quiet(note)
