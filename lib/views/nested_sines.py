"""Nested sines as a reader sees them: whether one program for all pays, and what limits it. Measures nothing."""

from collections.abc import Mapping, Sequence

from lib.experiments import published
from lib.experiments.single_operations import OperationPoint
from lib.formatting import seconds, times
from lib.profiling.request import EAGER, FUSED, MOVED, WAITED
from lib.timing.comparison import Verdict, compared
from lib.views.markup import quiet, table
from lib.views.single_operations import MOVED_COLOR, Series, by_label, color, lines_of, times_table

SINE_WAYS = {
    f"{EAGER}/{WAITED}": "one by one",
    f"{EAGER}/{MOVED}": "one by one, there and back",
    f"{FUSED}/{WAITED}": "in one",
    f"{FUSED}/{MOVED}": "in one, there and back",
}
SINE_LABELS = ("NumPy", "one by one", "… and back", "in one", "… and back ")
# Shares of the memory's bandwidth: beyond the first the bytes come from a cache, from the second on it is memory bound,
# and up to the third it is not.
IN_CACHE, MEMORY_BOUND, NOT_BOUND = 1.1, 0.7, 0.5


def sine_ways_of(points: Sequence[OperationPoint], label: str) -> list[Series]:
    """One library's ways to make nested sines, with NumPy beside them."""
    mine, usual = by_label(points).get(label, []), by_label(points).get("NumPy", [])
    numpys, one_by_one, back, in_one, in_one_back = SINE_LABELS
    lines = [Series(numpys, color(usual[0]), usual, f"{EAGER}/{WAITED}")] if usual and label != "NumPy" else []
    if mine:
        lines += [
            Series(one_by_one, color(mine[0]), mine, f"{EAGER}/{WAITED}"),
            Series(back, color(mine[0]), mine, f"{EAGER}/{MOVED}", "dashed"),
            Series(in_one, MOVED_COLOR, mine, f"{FUSED}/{WAITED}"),
            Series(in_one_back, MOVED_COLOR, mine, f"{FUSED}/{MOVED}", "dashed"),
        ]
    return lines


def bandwidth_lines(points: Sequence[OperationPoint]) -> list[Series]:
    """A line for each library and device: its compiled sines, or where it has none, one by one."""
    return [
        Series(one.label, one.color, one.points, best, one.dash)
        for one in lines_of(points, WAITED)
        for best in [f"{FUSED if any(f'{FUSED}/{WAITED}' in p.records for p in one.points) else EAGER}/{WAITED}"]
    ]


def sine_sentence(points: Sequence[OperationPoint], label: str, depth: int, bandwidths: Mapping[str, float]) -> str:
    """How many passes over memory fusing saves, what that brings, and whether the memory is what limits it.

    Args:
        points: Of all libraries.
        label: Of the library that the sentence is about.
        depth: Sines in one another.
        bandwidths: Bytes a second of a large copy, by device.
    """
    ways = {name: f"{name}/{WAITED}" for name in (EAGER, FUSED)}
    both = [point for point in by_label(points).get(label, []) if set(ways.values()) <= point.records.keys()]
    if not both:
        return ""
    last = both[-1]
    eager, fused = (last.records[way].measurement.step_s for way in ways.values())
    ratio = compared(eager, fused, paired=True)
    text = f"Fusing {depth} sines into one program saves {depth - 1} of {depth} passes over memory"
    if depth == 1:
        text = "Compiling a single sine saves no pass over memory"
    what = {
        Verdict.SLOWER: f"{label} is {times(ratio.ratio)} times as fast with it",
        Verdict.FASTER: f"{label} takes {times(1 / ratio.ratio)} times as long with it",
        Verdict.SAME: f"{label} takes the same time with it",
        Verdict.UNCLEAR: f"it cannot be told whether {label} is faster with it",
    }[ratio.verdict]
    text += f"; at {last.size:,} elements {what}."
    return f"{text} {_bound(last, label, bandwidths)}".strip()


def _bound(point: OperationPoint, label: str, bandwidths: Mapping[str, float]) -> str:
    """Whether the compiled sines are memory bound at this size."""
    bandwidth, rate = bandwidths.get(point.task.runtime.device), point.rate(f"{FUSED}/{WAITED}")
    if not bandwidth or not rate:
        return ""
    share = rate / bandwidth
    moved = f"It moves {rate / 1e9:.3g} GB/s, {share:.0%} of what a copy moves here"
    if share > IN_CACHE:
        return f"{moved}: not from memory, but from a cache."
    if share >= MEMORY_BOUND:
        return f"{moved}: memory bound."
    if share <= NOT_BOUND:
        return f"{moved}: not memory bound, its arithmetic and its call take the time."
    return f"{moved}: memory and arithmetic take about as long as each other."


def sines_table(points: Sequence[OperationPoint]) -> str:
    """HTML: seconds in each way, and bytes a second."""

    def rate(point: OperationPoint) -> str:
        rates = [point.rate(f"{name}/{WAITED}") for name in (EAGER, FUSED)]
        return ", ".join(f"{one / 1e9:,.3g}" for one in rates if one is not None) + " GB/s"

    return times_table(points, SINE_WAYS, rate)


def sines_published(points: Sequence[OperationPoint], label: str, depth: int) -> str:
    """HTML: what fusing four sines brought on the article's card, beside what it brings here."""
    measured = [point for point in by_label(points).get(label, []) if point.records]
    here = f"{label} makes them one by one only" if measured else "not measured yet"
    if both := [point for point in measured if f"{FUSED}/{WAITED}" in point.records]:
        eager_s, fused_s = (both[-1].seconds(f"{name}/{WAITED}") or 0.0 for name in (EAGER, FUSED))
        here = f"{seconds(eager_s)} → {seconds(fused_s)}, {depth} sines of {both[-1].size:,} by {label}"
    before_s, after_s = published.SINE_S
    rows = [["nested sines, one by one → in one", f"{seconds(before_s)} → {seconds(after_s)}, four, A100", here]]
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}”, “approximately”, of a size that it does not say. It finds a card"
        " slower than a processor at 2³² elements, the transfer included."
    )
    return table(["figure", "published", "measured here"], rows, "compare") + quiet(note)
