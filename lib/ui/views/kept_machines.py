"""Machines kept from browsers, side by side as a reader sees them: charts, a table and a sentence. Measures nothing."""

import html
import math
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from lib.formatting import justified, listed
from lib.model.spec import Network
from lib.sweeps.experiments.recorded_machines import Best, Machine
from lib.sweeps.experiments.your_gpu import Contest
from lib.timing.comparison import Verdict
from lib.ui.views.chart import ROW_COLOR, Chart, decades, log_scale, names_y, styled
from lib.ui.views.markup import table
from lib.ui.views.recorded_gpus import marked

# The two devices of a browser, as `webgpu_drawing.js` draws them.
GPU_COLOR, SOFTWARE_COLOR, CPU_COLOR = "#3a72d8", "#8a8f98", "#d1623a"
ROW_PX, LABEL_PX = 34, 190
NO_SIDE_BY_SIDE = "Nobody has kept this network and batch size yet: “Keep as a machine” above is the first row."


def label(machine: Machine, yours: str = "") -> str:
    """Its name with what tells machines of a class apart in front: the GPU.

    Args:
        machine: Kept from a browser.
        yours: Id of the reader's own machine.
    """
    system, *others, gpu = machine.name.split(" · ")
    return ("yours: " if machine.records[0].machine == yours else "") + " · ".join([gpu, system, *others])


def charts(contests: Sequence[Contest], yours: str = "") -> list[tuple[str, Chart]]:
    """Captions and charts with a row for each machine, in the order of the contests: seconds of an epoch; ratios."""
    found = [
        ("seconds of an epoch, by the quickest way of each device; bars: quartiles", _seconds_chart(contests, yours))
    ]
    if any(one.comparison for one in contests):
        caption = "the GPU's time over the processor's, with its 95 % interval; left of 1 the GPU wins"
        found.append((caption, _ratio_chart(contests, yours)))
    return found


def _seconds_chart(contests: Sequence[Contest], yours: str) -> Chart:
    names = [label(one.machine, yours) for one in contests]
    rows = [
        {"machine": name, "color": color, "of": of, "filled": 0.0 if one.is_software and best is one.gpu else 1.0}
        | {"s": best.seconds.middle, "low": best.seconds.low, "high": best.seconds.high}
        | {"trained": best.runtime.label, "shown": _epoch(best)}
        for name, one in zip(names, contests, strict=True)
        for best, of, color in ((one.gpu, *_named(one)), (one.cpu, "processor", CPU_COLOR))
        if best is not None
    ]
    base, y = alt.Chart(pd.DataFrame(rows)), names_y(names, LABEL_PX, "machine")
    both = [best.seconds for one in contests for best in (one.gpu, one.cpu) if best is not None]
    ends = [end for one in both for end in (one.low, one.high) if end > 0]
    low, high = decades(ends)
    scale, axis = log_scale((low, high), clamp=True), _powers_of_ten(low, high)
    tooltip = [
        "machine:N",
        "of:N",
        alt.Tooltip("trained:N", title="trained by"),
        alt.Tooltip("shown:N", title="an epoch"),
    ]
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", scale=scale, axis=axis, title="seconds per epoch"), x2="high:Q", y=y, color=ROW_COLOR
    )
    points = base.mark_point(size=60).encode(
        x=alt.X("s:Q", title="seconds per epoch"),
        y=y,
        color=ROW_COLOR,
        fill=alt.Fill("color:N", scale=None, legend=None),
        fillOpacity=alt.FillOpacity("filled:Q", scale=None, legend=None),
        tooltip=tooltip,
    )
    return Chart(styled(bars + points, height=ROW_PX * len(names)), "seconds of an epoch by machine, GPU and processor")


def _ratio_chart(contests: Sequence[Contest], yours: str) -> Chart:
    found = [(label(one.machine, yours), one, one.comparison) for one in contests]
    known = [(name, one, comparison) for name, one, comparison in found if comparison is not None]
    finite = [end for _, _, one in known for end in (one.low, one.ratio, one.high) if 0 < end < math.inf]
    low, high = decades([*finite, 0.5, 2.0])
    rows = [
        {"machine": name, "color": _named(one)[1], "ratio": comparison.ratio, "text": f"{comparison.ratio:.3g}"}
        | {"low": max(low, comparison.low), "high": min(high, comparison.high), "shown": interval(one)}
        for name, one, comparison in known
    ]
    base, y = alt.Chart(pd.DataFrame(rows)), names_y([name for name, _, _ in found], LABEL_PX, "machine")
    axis, title = _powers_of_ten(low, high), "times the processor's time"
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", scale=log_scale((low, high)), axis=axis, title=title), x2="high:Q", y=y, color=ROW_COLOR
    )
    points = base.mark_point(filled=True, size=60).encode(
        x=alt.X("ratio:Q", title=title),
        y=y,
        color=ROW_COLOR,
        tooltip=["machine:N", alt.Tooltip("shown:N", title="ratio")],
    )
    text = base.mark_text(dy=-10, fontSize=11, color="currentColor").encode(
        x=alt.X("ratio:Q", title=title), y=y, text="text:N"
    )
    even = base.transform_aggregate(n="count()").mark_rule(strokeDash=[4, 3], color="currentColor", opacity=0.5)
    layers = even.encode(x=alt.datum(1)) + bars + points + text
    return Chart(styled(layers, height=ROW_PX * len(found)), "the GPU's time over the processor's by machine")


def _powers_of_ten(low: float, high: float) -> alt.Axis:
    steps = range(round(math.log10(low)), round(math.log10(high)) + 1)
    return alt.Axis(values=[float(10.0**step) for step in steps], format="~g", labelOverlap=True)


def _named(one: Contest) -> tuple[str, str]:
    """What stands for the GPU in words, and its colour."""
    return ("software, no GPU", SOFTWARE_COLOR) if one.is_software else ("GPU", GPU_COLOR)


def legend() -> str:
    """HTML: the colours of both charts."""
    entries = ((GPU_COLOR, "GPU"), (CPU_COLOR, "processor"), (SOFTWARE_COLOR, "software in the place of a GPU"))
    keys = (
        f'<span class="compare-key"><i style="border-top: 3px solid {c}"></i>{words}</span>' for c, words in entries
    )
    return f'<p class="compare-legend">{"".join(keys)}</p>'


def interval(one: Contest) -> str:
    """The ratio with its interval; empty where there is none."""
    if (comparison := one.comparison) is None:
        return ""
    if comparison.n < 2:
        return f"{comparison.ratio:.3g}, from one time"
    return f"{comparison.ratio:.3g} ({comparison.low:.3g} to {comparison.high:.3g})"


def _epoch(best: Best) -> str:
    return justified(best.seconds.middle, best.seconds.low, best.seconds.high)


def contests_table(contests: Sequence[Contest], yours: str = "") -> str:
    """HTML: the same in figures, with the quickest way of each device and the day."""
    rows = []
    for one in contests:
        row = [html.escape(label(one.machine, yours))]
        for best in (one.gpu, one.cpu):
            row += [_epoch(best), html.escape(best.runtime.label)] if best is not None else ["–", ""]
        rows.append([*row, interval(one), html.escape(marked(one.machine))])
    head = ["machine", "an epoch on its GPU", "by", "on its processor", "by", "ratio", "figures"]
    return table(head, rows, "compare")


def sentence(contests: Sequence[Contest], network: Network, batch_size: int, yours: str = "") -> str:
    """On how many machines the GPU wins, by how much, and which are the others; empty without a machine."""
    if not contests:
        return ""
    fair = [one for one in contests if one.verdict is not None]
    by_verdict: dict[Verdict | None, list[Contest]] = {}
    for one in fair:
        by_verdict.setdefault(one.verdict, []).append(one)
    gpu, cpu = (by_verdict.get(verdict, []) for verdict in (Verdict.FASTER, Verdict.SLOWER))
    what = f"batch size {batch_size:,} and {_hidden(network)}"
    said = []
    if fair:
        share = f", in {_range(gpu)} of the processor's time" if gpu else ""
        said.append(f"With {what} the GPU wins on {len(gpu)} of {_machines(len(fair))}{share}.")
    if cpu:
        times = f"where the GPU takes {_range(cpu)} times as long"
        said.append(f"The processor wins on {len(cpu)}, {times}{_which(cpu, gpu, yours)}.")
    if same := by_verdict.get(Verdict.SAME, []):
        said.append(f"On {len(same)} both are equally fast{_which(same, [*gpu, *cpu], yours)}.")
    if unclear := by_verdict.get(Verdict.UNCLEAR, []):
        said.append(f"On {len(unclear)} it cannot be told{_which(unclear, [*gpu, *cpu], yours)}.")
    software = sum(one.is_software for one in contests)
    others = len(contests) - len(fair) - software
    if software:
        said.append(f"{_machines(software)} offered software in the place of a GPU, which says nothing of one.")
    if others:
        said.append(f"Of {_machines(others)} only one of both devices was kept.")
    return " ".join(said)


def _machines(n: int) -> str:
    return "1 machine" if n == 1 else f"{n} machines"


def _hidden(network: Network) -> str:
    return f"hidden layers of {network.label}" if network.hidden else network.label


def _range(won: Sequence[Contest]) -> str:
    """From which to which ratio, the GPU's time over the processor's."""
    ratios = [f"{one.comparison.ratio:.3g}" for one in won if one.comparison is not None]  # in order
    return ratios[0] if ratios[0] == ratios[-1] else f"{ratios[0]} to {ratios[-1]}"


def _which(these: Sequence[Contest], others: Sequence[Contest], yours: str) -> str:
    """Which machines these are, where they are few beside the others; empty where they are not."""
    if len(these) > max(3, len(others)):
        return ""
    return f": {listed([label(one.machine, yours) for one in these])}"


def elsewhere_note(kept: Mapping[tuple[Network, int], int]) -> str:
    """Which other networks and batch sizes were kept, the most frequent three; empty where none was."""
    most = [
        f"batch size {batch_size:,} with {_hidden(network)} ({_machines(n)})"
        for (network, batch_size), n in list(kept.items())[:3]
    ]
    return f"Kept with other settings: {listed(most)}." if most else ""
