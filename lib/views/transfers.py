"""Transfers as a reader sees them: latency and bandwidth of each way, and a sentence. Measures nothing."""

from collections.abc import Mapping, Sequence
from math import inf

from lib.experiments import published
from lib.experiments.single_operations import OperationPoint
from lib.formatting import seconds, times
from lib.profiling.request import ALIASED, COPIED, PINNED
from lib.timing.comparison import Verdict, compared
from lib.timing.latency import Cost
from lib.views.markup import quiet, table
from lib.views.single_operations import Series, by_label, color, times_table

TRANSFER_WAYS = {COPIED: "copied", PINNED: "pinned", ALIASED: "aliased"}
TRANSFER_COLORS = {PINNED: "#3a72d8", ALIASED: "#0b7a57"}


def transfer_lines(points: Sequence[OperationPoint], label: str) -> list[Series]:
    """One library's ways to bring an array to where it computes."""
    mine = by_label(points).get(label, [])
    ways = [way for way in TRANSFER_WAYS if any(way in point.records for point in mine)]
    return [Series(TRANSFER_WAYS[way], TRANSFER_COLORS.get(way, color(mine[0])), mine, way) for way in ways]


def transfer_sentence(points: Sequence[OperationPoint], label: str, costs: Mapping[str, Cost]) -> str:
    """What each way costs, with 95 % intervals, and from which size on the bytes cost more than the call.

    Args:
        points: Of all libraries.
        label: Of the library that the sentence is about.
        costs: Of its ways; from `transfer_costs`.
    """
    if not costs:
        return ""
    parts = [f"{label}, {TRANSFER_WAYS[way]}: {_cost_text(cost)}." for way, cost in costs.items()]
    copied = costs.get(COPIED)
    if copied is not None and copied.grows and copied.half_bytes >= 1:
        parts.append(f"Below {_bytes_text(copied.half_bytes)}, most of a copy's time is the call and not its bytes.")
    largest = max((point for point in by_label(points).get(label, []) if point.records), key=lambda one: one.size)
    if {COPIED, ALIASED} <= largest.records.keys():
        steps = (largest.records[way].measurement.step_s for way in (COPIED, ALIASED))
        ratio = compared(*steps, paired=True)
        if ratio.verdict is Verdict.SLOWER:
            parts.append(f"At {_bytes_text(largest.size)} a copy takes {times(ratio.ratio)} times as long as an alias.")
    return " ".join(parts)


def _cost_text(cost: Cost) -> str:
    low_s, high_s = cost.latency_interval_s
    # The line may begin below 0; a latency does not.
    least_s, usual_s, most_s = (max(0.0, one_s) for one_s in (low_s, cost.latency_s, high_s))
    text = f"{seconds(usual_s)} ({seconds(least_s)} to {seconds(most_s)})"
    if not cost.grows:
        return f"{text} at any size"
    slow, fast = cost.bandwidth_interval
    upper = f"{fast / 1e9:.2g}" if fast < inf else "any"
    return f"{text} + size ÷ {cost.bytes_per_s / 1e9:.2g} GB/s ({slow / 1e9:.2g} to {upper})"


def _bytes_text(n_bytes: float) -> str:
    unit, name = next(((u, n) for u, n in ((2**20, "MiB"), (2**10, "KiB")) if n_bytes >= u), (1, "bytes"))
    return f"{n_bytes / unit:,.3g} {name}"


def transfers_table(points: Sequence[OperationPoint]) -> str:
    """HTML: seconds in each way, and bytes a second of a copy."""
    return times_table(points, TRANSFER_WAYS, lambda point: f"{(point.rate(COPIED) or 0.0) / 1e9:,.3g} GB/s")


def transfers_published(label: str, costs: Mapping[str, Cost]) -> str:
    """HTML: what the article says of a batch's transfer, beside what the fit says of as many bytes."""
    n_bytes, bandwidth, (least, most) = published.BATCH_TRANSFER
    copied = costs.get(COPIED)
    here = "not measured yet" if copied is None else "at these sizes, more bytes take no more time"
    if copied is not None and copied.grows:
        raw_s = n_bytes * copied.byte_s
        setup = max(copied.latency_s, 0.0) / raw_s
        here = f"{seconds(raw_s)}; the call takes {times(setup)} times that ({label}, predicted by the fit)"
    said = f"{seconds(n_bytes / bandwidth)} at {bandwidth / 1e9:.0f} GB/s; the setup takes {least} to {most} times that"
    rows = [[f"{n_bytes / 1e3:.0f} kB, a batch of 32 images", said, here]]
    note = f"Published: “{published.OVERHEAD_ARTICLE}”, calculated there and not measured."
    return table(["transfer", "published", "here"], rows, "compare") + quiet(note)
