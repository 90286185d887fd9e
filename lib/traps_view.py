"""The traps as people see them: a chart of both ways, and for each the figures, the cause and the remedy."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np
import pandas as pd

from lib.charts import Chart, styled
from lib.experiments import seconds
from lib.spec import Network
from lib.timing import Measurement, justified
from lib.verdict import Observed, findings

WRONG, RIGHT = "#d1623a", "#0b7a57"


@dataclass(frozen=True)
class Trap:
    """A pair of measurements, and what they teach."""

    key: str
    wrong: str
    right: str
    why: str


TRAPS = (
    Trap("synchronisation", "the clock stops when the call returns", "the clock stops when the result is there",
         "A call puts its work into a queue and returns."),
    Trap("first call counted", "the average of five short epochs, the first included", "the first left out",
         "A whole training pays it once; a benchmark of few steps, each time."),
    Trap("one sample", "one step, timed once: any of these", "blocks of many steps, median and quartiles",
         "A single step is shorter than what a scheduler, a clock change or a waking thread adds to it."),
    Trap("best of n", "the smallest of sixty", "the median of the same sixty, with quartiles",
         "The minimum answers how fast it can be, not how fast it is; and it falls with every repetition."),
    Trap("transfer inside", "each step brings its batch along from host memory", "the data lie on the device already",
         "MNIST fits into any memory: it needs to be moved once."),
    Trap("busy is not working", "processor time of all cores", "wall time of the same step",
         "A monitor shows how long something ran, not how much of it was arithmetic: a core that spins, dispatches or waits in a loop is busy. "
         "A card is “100 %” when one kernel at a time runs on one of its hundred processors."),
)  # fmt: skip


def pairs(found: Mapping[str, Measurement]) -> dict[str, tuple[Measurement, Measurement]]:
    """Wrong and right of each trap that is measured."""
    return {
        trap.key: (found[f"{trap.key}/wrong"], found[f"{trap.key}/right"])
        for trap in TRAPS
        if {f"{trap.key}/wrong", f"{trap.key}/right"} <= found.keys()
    }


def occupancy(found: Mapping[str, Measurement], device: str) -> str:
    """What a card's monitor shows beside what its counters say; empty on a processor."""
    if device != "gpu":
        return ""
    shown, activity, warps = (found.get(f"occupancy/{name}") for name in ("utilisation", "activity", "warps"))
    text = (
        f"nvidia-smi shows {_share(shown)} utilisation meanwhile"
        if shown
        else "nvidia-smi shows no utilisation on this card"
    )
    if activity and warps:
        return f"{text}; the chip's counters say that {_share(activity)} of its multiprocessors had work, with {_share(warps)} of the warps they hold."
    return f"{text}; true occupancy is not reported by this chip (NVML's GPM, from Hopper on)."


def _share(measured: Measurement) -> str:
    """A share, which travels as a measurement's value."""
    return f"{100 * measured.median_s:.3g} %"


def traps_chart(known: Mapping[str, tuple[Measurement, Measurement]]) -> Chart:
    """Every block of both ways, on one logarithmic axis, with the medians as ticks."""
    rows, medians = [], []
    for trap in TRAPS:
        for way, measured in zip(("wrong", "right"), known.get(trap.key, ()), strict=False):
            label = f"{trap.key}: {way}"
            rows += [{"label": label, "us": 1e6 * float(s), "way": way} for s in measured.step_s[:200]]
            medians.append({"label": label, "us": 1e6 * measured.median_s, "way": way})
    order = [f"{trap.key}: {way}" for trap in TRAPS for way in ("wrong", "right")]
    y = alt.Y("label:N", sort=order, scale=alt.Scale(domain=order), title=None, axis=alt.Axis(labelLimit=190))
    color = alt.Color("way:N", scale=alt.Scale(domain=["wrong", "right"], range=[WRONG, RIGHT]), legend=None)
    # From what is there, or, before anything is, a usual range: a logarithmic axis needs an end above zero.
    values = [row["us"] for row in rows + medians] or [10.0, 10_000.0]
    x = alt.X(
        "us:Q",
        scale=alt.Scale(type="log", domain=[0.9 * min(values), 1.1 * max(values)]),
        axis=alt.Axis(tickCount=5),
        title="μs a step, logarithmic",
    )
    points = alt.Chart(pd.DataFrame(rows, columns=["label", "us", "way"])).mark_point(
        filled=True, size=22, opacity=0.35
    )
    ticks = alt.Chart(pd.DataFrame(medians, columns=["label", "us", "way"])).mark_tick(thickness=3, size=18)
    tooltip = ["label:N", alt.Tooltip("us:Q", format=".4~g", title="μs")]
    chart = points.encode(x=x, y=y, color=color, tooltip=tooltip) + ticks.encode(x="us:Q", y=y, color=color)
    return Chart(styled(chart, height=26 * len(order)), "wrong and right")


def traps_table(
    known: Mapping[str, tuple[Measurement, Measurement]],
    network: Network,
    batch_size: int,
    product_flops_per_s: float | None,
    cores: int,
) -> str:
    """HTML: a row a trap. The verdict is `lib.verdict`'s, from these very figures."""  # fmt: skip
    lines = ["<tr><th>trap</th><th>wrong</th><th>right</th><th>off by</th><th>why, and what to do</th></tr>"]
    for trap in TRAPS:
        if trap.key not in known:
            continue
        wrong, right = known[trap.key]
        off = f"{_factor(wrong, right):.2g} ×"
        why = " ".join(filter(None, [trap.why, *_verdicts(trap.key, wrong, right)]))
        if trap.key == "busy is not working" and product_flops_per_s:
            share = network.step_flops(batch_size) / product_flops_per_s / right.median_s
            off = f"{wrong.median_s / right.median_s / cores:.0%} busy, {share:.0%} of the arithmetic it could do"
        lines.append(
            f'<tr><th scope="row">{trap.key}</th><td>{_figure(trap.key, wrong)}<br><small>{html.escape(trap.wrong)}</small></td>'
            f"<td>{_with_quartiles(right)}<br><small>{html.escape(trap.right)}</small></td><td>{off}</td>"
            f'<td class="claim-why">{html.escape(why)}</td></tr>'
        )
    return f'<div class="lab-scroll"><table class="lab-table claims traps">{"".join(lines)}</table></div>'


def _factor(wrong: Measurement, right: Measurement) -> float:
    ratio = wrong.median_s / right.median_s
    return max(ratio, 1 / ratio)


def _figure(key: str, wrong: Measurement) -> str:
    if key == "one sample":
        low, high = np.min(wrong.step_s), np.max(wrong.step_s)
        return f"{seconds(float(low))} to {seconds(float(high))}"
    return seconds(wrong.median_s)


def _with_quartiles(measured: Measurement) -> str:
    low, high = measured.quartiles_s
    return f"{justified(measured.median_s, low, high)} ({seconds(low)} to {seconds(high)})"


def _verdicts(key: str, wrong: Measurement, right: Measurement) -> list[str]:
    observed = {
        "synchronisation": Observed(step_s=right.median_s, reported_step_s=wrong.median_s),
        "first call counted": Observed(
            first_call_counted=True,
            epoch_s=(_first_of(wrong, right), *right.block_s),
        ),
        "transfer inside": Observed(step_s=wrong.median_s, transfer_s=max(0.0, wrong.median_s - right.median_s)),
        "one sample": Observed(spread=wrong.spread),
    }.get(key)
    return [finding.text for finding in findings(observed)] if observed else []


def _first_of(average: Measurement, others: Measurement) -> float:
    """The first epoch, from the average with it and the others."""
    n = len(others.block_s)
    return average.median_s * (n + 1) - float(np.sum(others.block_s))


def sentence(known: Mapping[str, tuple[Measurement, Measurement]]) -> str:
    """The largest mistake, in words."""
    factors = {key: _factor(*pair) for key, pair in known.items() if key != "busy is not working"}
    if not factors:
        return ""
    worst = max(factors, key=factors.__getitem__)
    others: Sequence[str] = [f"{key} {factor:.2g}" for key, factor in factors.items() if key != worst]
    return f"Largest mistake here: {worst}, by a factor of {factors[worst]:.2g}. The others: {', '.join(others)}."
