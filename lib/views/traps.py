"""The traps as a reader sees them: a chart, the right figure once, and each wrong one with error, cause and remedy."""

import html
from collections.abc import Mapping
from dataclasses import dataclass

import altair as alt
import numpy as np
import pandas as pd

from lib.backends.registry import Unavailable
from lib.formatting import justified, listed, seconds
from lib.hardware.webgpu import KINDS
from lib.profiling.request import REFERENCE, TRAP_EPOCHS, TRAP_SAMPLES
from lib.spec import Network
from lib.timing.comparison import Comparison, Verdict, compared
from lib.timing.diagnosis import Observed, findings
from lib.timing.measurement import Measurement
from lib.views.chart import Chart, names_y, styled
from lib.views.markup import table

WRONG, RIGHT = "#d1623a", "#0b7a57"


@dataclass(frozen=True)
class Trap:
    """A wrong way to time the step, and why it is wrong; `key` names its measurement."""

    key: str
    wrong: str
    why: str


TRAPS = (
    Trap("synchronisation", "the clock stops when the call returns", "A call puts its work into a queue and returns."),
    Trap(
        "first call counted",
        f"the average of {TRAP_EPOCHS} short epochs, the first included",
        "A whole training pays it once; a benchmark of few steps, each time.",
    ),
    Trap(
        "one sample",
        "one step, timed once: any of these",
        "A single step is shorter than what a scheduler, a clock change or a waking thread adds to it.",
    ),
    Trap(
        "best of n",
        f"the smallest of {TRAP_SAMPLES} single steps",
        "The minimum answers how fast it can be, not how fast it is; and it falls with every repetition.",
    ),
    Trap(
        "transfer inside",
        "each step brings its batch along from host memory",
        "MNIST fits into any memory: it needs to be moved once.",
    ),
    Trap(
        "busy is not working",
        "processor time of all cores",
        "A monitor shows how long something ran, not how much of it was arithmetic: a core that spins, dispatches or"
        " waits in a loop is busy. A card is “100 %” when one kernel at a time runs on one of its hundred processors.",
    ),
)
RIGHT_WAY = "blocks of steps, the data on the device already, each step's result waited for: the median, with quartiles"


@dataclass(frozen=True)
class Pair:
    """A wrong way beside the right one; the blocks of both were taken in turns."""

    wrong: Measurement
    right: Measurement

    @property
    def comparison(self) -> Comparison:
        """The wrong time over the right one, paired block by block."""
        return compared(self.wrong.step_s, self.right.step_s, paired=True)


def pairs(found: Mapping[str, Measurement]) -> dict[str, Pair]:
    """Each trap that was measured, beside the one reference; empty without the reference."""
    if REFERENCE not in found:
        return {}
    return {trap.key: Pair(found[trap.key], found[REFERENCE]) for trap in TRAPS if trap.key in found}


def device_label(device: str) -> str:
    """A device as a control offers it."""
    return f"WebGPU, {KINDS[device]}" if device in KINDS else device


def step_of(device: str) -> str:
    """Whose step is timed on a device."""
    return f"WebGPU ({KINDS[device]})" if device in KINDS else "JAX"


def missing_note(no_adapter: Unavailable | None) -> str:
    """Why WebGPU's step cannot be timed here, in a sentence; empty where it can."""
    return f"WebGPU's step is not timed here: {no_adapter.reason}; {no_adapter.remedy}." if no_adapter else ""


def occupancy(found: Mapping[str, Measurement], device: str) -> str:
    """What a GPU's monitor shows beside what its counters say, in a sentence; empty on a CPU.

    Args:
        found: Measurements by name; a share is the value of its measurement.
        device: "cpu" or "gpu".
    """
    if device != "gpu":
        return ""
    shown, activity, warps = (found.get(f"occupancy/{name}") for name in ("utilisation", "activity", "warps"))
    text = (
        f"nvidia-smi shows {_share(shown)} utilisation meanwhile"
        if shown
        else "nvidia-smi shows no utilisation on this card"
    )
    if activity and warps:
        return (
            f"{text}; the chip's counters say that {_share(activity)} of its multiprocessors had work, with"
            f" {_share(warps)} of the warps they hold."
        )
    return f"{text}; true occupancy is not reported by this chip (NVML's GPM, from Hopper on)."


def _share(measured: Measurement) -> str:
    """A share, which travels as a measurement's value."""
    return f"{100 * measured.median_s:.3g} %"


def traps_chart(known: Mapping[str, Pair]) -> Chart:
    """At most 200 blocks of the reference and of each wrong way on one logarithmic axis, with the medians as ticks."""
    shown = [(key, "wrong", pair.wrong) for key, pair in known.items()]
    shown += [("right", "right", pair.right) for pair in list(known.values())[:1]]
    rows = [
        {"label": label, "us": 1e6 * float(s), "way": runtime} for label, runtime, m in shown for s in m.step_s[:200]
    ]
    medians = [{"label": label, "us": 1e6 * m.median_s, "way": runtime} for label, runtime, m in shown]
    order = ["right", *(trap.key for trap in TRAPS)]
    y = names_y(order, 190)
    color = alt.Color("way:N", scale=alt.Scale(domain=["wrong", "right"], range=[WRONG, RIGHT]), legend=None)
    # From what is there, or, before anything is, a usual range: a logarithmic axis needs an end above zero.
    values = [row["us"] for row in rows + medians] or [10.0, 10_000.0]
    x = alt.X(
        "us:Q",
        scale=alt.Scale(type="log", domain=[0.9 * min(values), 1.1 * max(values)]),
        axis=alt.Axis(tickCount=5),
        title="μs per step, logarithmic",
    )
    points = alt.Chart(pd.DataFrame(rows, columns=["label", "us", "way"])).mark_point(
        filled=True, size=22, opacity=0.35
    )
    ticks = alt.Chart(pd.DataFrame(medians, columns=["label", "us", "way"])).mark_tick(thickness=3, size=18)
    tooltip = ["label:N", alt.Tooltip("us:Q", format=".4~g", title="μs")]
    chart = points.encode(x=x, y=y, color=color, tooltip=tooltip) + ticks.encode(x="us:Q", y=y, color=color)
    return Chart(styled(chart, height=34 * len(order)), "wrong and right")


def traps_table(
    known: Mapping[str, Pair],
    network: Network,
    batch_size: int,
    product_flops_per_s: float | None,
    cores: int,
) -> str:
    """HTML: the right figure once, then one row per trap, compared with it.

    What to do about a trap comes from `lib.timing.diagnosis`, by these figures.

    Args:
        known: From `pairs`.
        network: What a step trains.
        batch_size: Images per step.
        product_flops_per_s: Best rate of a matrix product on this device; None where it was not measured.
        cores: Of this machine's CPU.
    """
    why = "What all six are held against, measured beside them in turns."
    rows = [_row("right", _with_quartiles(pair.right), RIGHT_WAY, "1", why) for pair in list(known.values())[:1]]
    for trap in TRAPS:
        if (pair := known.get(trap.key)) is None:
            continue
        comparison = pair.comparison
        off = f"{comparison.ratio:.3g} × ({comparison.low:.3g} to {comparison.high:.3g}), {_OFF[comparison.verdict]}"
        if trap.key == "busy is not working" and product_flops_per_s:
            share = network.step_flops(batch_size) / product_flops_per_s / pair.right.median_s
            off = f"{comparison.ratio / cores:.0%} busy, {share:.0%} of the arithmetic it could do"
        why = " ".join(filter(None, [trap.why, *_verdicts(trap.key, pair)]))
        rows.append(_row(trap.key, _figure(trap.key, pair.wrong), trap.wrong, off, why))
    return table(["trap", "figure", "times the right one", "why, and what to do"], rows, "claims traps")


_OFF = {
    Verdict.FASTER: "too short",
    Verdict.SLOWER: "too long",
    Verdict.SAME: "no difference here",
    Verdict.UNCLEAR: "not told apart here",
}


def _row(name: str, figure: str, how: str, off: str, why: str) -> list[str]:
    return [name, f"{figure}<br><small>{html.escape(how)}</small>", off, html.escape(why)]


def _figure(key: str, wrong: Measurement) -> str:
    if key == "one sample":
        low, high = np.min(wrong.step_s), np.max(wrong.step_s)
        return f"{seconds(float(low))} to {seconds(float(high))}"
    return justified(wrong.median_s, *wrong.quartiles_s)


def _with_quartiles(measured: Measurement) -> str:
    low, high = measured.quartiles_s
    return f"{justified(measured.median_s, low, high)} ({seconds(low)} to {seconds(high)})"


def _verdicts(key: str, pair: Pair) -> list[str]:
    """What to do about a trap, where there is a difference to be explained."""
    if key != "one sample" and pair.comparison.verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return []
    average_s, steady_s = pair.wrong.median_s, pair.right.median_s
    first_s = TRAP_EPOCHS * average_s - (TRAP_EPOCHS - 1) * steady_s
    observed = {
        "synchronisation": Observed(step_s=steady_s, reported_step_s=average_s),
        "first call counted": Observed(first_call_counted=True, epoch_s=(first_s, *[steady_s] * (TRAP_EPOCHS - 1))),
        "transfer inside": Observed(step_s=average_s, transfer_s=max(0.0, average_s - steady_s)),
        "one sample": Observed(spread=pair.wrong.spread),
    }.get(key)
    return [finding.text for finding in findings(observed)] if observed else []


def sentence(known: Mapping[str, Pair]) -> str:
    """The largest mistake, the others, and what makes no difference here; empty while nothing was measured."""
    timed = {key: pair.comparison for key, pair in known.items() if key != "busy is not working"}
    wrong = {
        key: max(comparison.ratio, 1 / comparison.ratio)
        for key, comparison in timed.items()
        if comparison.verdict in (Verdict.FASTER, Verdict.SLOWER)
    }
    if not timed:
        return ""
    said = []
    if wrong:
        worst = max(wrong, key=wrong.__getitem__)
        said.append(f"Largest mistake here: {worst}, by a factor of {wrong[worst]:.2g}.")
        others = [f"{key} {factor:.2g}" for key, factor in wrong.items() if key != worst]
        said += [f"The others: {', '.join(others)}."] if others else []
    alike = [key for key in timed if key not in wrong]
    said += [f"Not told apart from the right figure here: {listed(alike)}."] if alike else []
    return " ".join(said)
