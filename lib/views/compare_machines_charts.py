"""Machines side by side, as charts. Measures nothing."""

import html
from collections.abc import Sequence

import altair as alt
import pandas as pd

from lib.backends.registry import DEVICES
from lib.experiments.backend_race import BATCH_SIZES
from lib.experiments.compare_machines import best_runtime, to_target
from lib.experiments.recorded_machines import Machine
from lib.experiments.time_to_accuracy import Learned
from lib.formatting import listed, seconds
from lib.sweeps.strategies import STRATEGIES
from lib.views.anatomy_of_a_step import parts_color, stack
from lib.views.chart import ROW_COLOR, Chart, decades, log_scale, names_y, nice_above, ordered_palette, styled
from lib.views.compare_machines import interval, marked, names

# A graphics card's lines are dashed.
_DASH = alt.StrokeDash("device:N", scale=alt.Scale(domain=["cpu", "gpu"], range=[[1, 0], [4, 3]]), legend=None)


def epoch_charts(machines: Sequence[Machine]) -> list[tuple[str, Chart]]:
    """Seconds of an epoch by batch size: a chart per machine on the same axes, a line per runtime, with quartiles.

    Returns:
        Caption and chart of each machine that has figures.
    """
    short = names(machines)
    rows = {machine.name: _epoch_rows(machine) for machine in machines}
    domain = decades([row["s"] for some in rows.values() for row in some])
    return [
        (f"{short[machine.name]} ({marked(machine)})", _epoch_chart(rows[machine.name], domain))
        for machine in machines
        if rows[machine.name]
    ]


def _epoch_rows(machine: Machine) -> list[dict]:
    return [
        {
            "runtime": runtime.label,
            "color": runtime.color,
            "size": size,
            "s": one.middle,
            "low": one.low,
            "high": one.high,
            "device": "gpu" if runtime.on_gpu else "cpu",
            "shown": interval(one),
        }
        for runtime in machine.runtimes
        for size in BATCH_SIZES
        if (one := machine.epoch(runtime, size)) is not None
    ]


def _epoch_chart(rows: list[dict], domain: tuple[float, float]) -> Chart:
    base = alt.Chart(pd.DataFrame(rows))
    x = alt.X(
        "size:Q",
        scale=log_scale([1, 4096], base=2),
        title="batch size",
        axis=alt.Axis(values=[1, 32, 512, 4096], format=",d"),
    )
    y = alt.Y(
        "s:Q",
        scale=log_scale(domain),
        title="seconds per epoch",
        axis=alt.Axis(tickCount=4, format="~g"),
    )
    tooltip = ["runtime:N", alt.Tooltip("size:Q", title="batch size"), alt.Tooltip("shown:N", title="an epoch")]
    lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=ROW_COLOR, detail="runtime:N", strokeDash=_DASH)
    points = base.mark_point(filled=True, size=42).encode(x=x, y=y, color=ROW_COLOR, tooltip=tooltip)
    bars = base.mark_rule(strokeWidth=1.2).encode(
        x=x, y=alt.Y("low:Q", title="seconds per epoch"), y2="high:Q", color=ROW_COLOR
    )
    return Chart(styled(lines + bars + points), "seconds of an epoch")


def legend(machines: Sequence[Machine]) -> str:
    """HTML: the colours of all runtimes of these machines, once for all charts; a GPU's are dashed."""
    runtimes = dict.fromkeys(runtime for machine in machines for runtime in machine.runtimes)
    order = sorted(runtimes, key=lambda runtime: runtime.place)
    entries = [
        '<span class="compare-key"><i style="border-top: 3px'
        f' {"dashed" if runtime.on_gpu else "solid"} {runtime.color}"></i>{html.escape(runtime.label)}</span>'
        for runtime in order
    ]
    return f'<p class="compare-legend">{"".join(entries)}</p>'


def target_chart(machines: Sequence[Machine], learned: Learned, target: float) -> Chart:
    """Seconds to the accuracy by machine and batch size, by each machine's fastest runtime there.

    Args:
        machines: Those without a figure have no row.
        learned: Validation accuracies after each epoch, by training.
        target: Validation accuracy, 0 to 1.
    """
    short, rows = names(machines), []
    colors = dict(zip(BATCH_SIZES, ordered_palette(len(BATCH_SIZES)), strict=True))
    labels = [short[m.name] for m in machines]
    for machine in machines:
        for size in BATCH_SIZES:
            best = best_runtime(machine, lambda m, runtime, size=size: to_target(m, runtime, size, learned, target))
            if best is not None:
                one = best.seconds
                rows.append(
                    {
                        "machine": short[machine.name],
                        "size": f"{size:,}",
                        "color": colors[size],
                        "s": one.middle,
                        "low": one.low,
                        "high": one.high,
                        "runtime": best.runtime.label,
                        "shown": interval(one),
                    }
                )
    kept = [label for label in labels if any(row["machine"] == label for row in rows)]
    base = alt.Chart(pd.DataFrame(rows, columns=["machine", "size", "color", "s", "low", "high", "runtime", "shown"]))
    x = alt.X(
        "s:Q",
        scale=log_scale(decades([row[name] for row in rows for name in ("low", "high")])),
        title="seconds",
        axis=alt.Axis(tickCount=5, format="~g", labelOverlap=True),
    )
    y = names_y(kept, 230, "machine")
    offset = alt.YOffset("size:N", sort=[f"{size:,}" for size in BATCH_SIZES])
    tooltip = [
        "machine:N",
        alt.Tooltip("size:N", title="batch size"),
        "runtime:N",
        alt.Tooltip("shown:N", title="to the accuracy"),
    ]
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="seconds"), x2="high:Q", y=y, yOffset=offset, color=ROW_COLOR
    )
    points = base.mark_point(filled=True, size=55).encode(x=x, y=y, yOffset=offset, color=ROW_COLOR, tooltip=tooltip)
    text = base.mark_text(align="left", dx=8, fontSize=10, color="currentColor").encode(
        x=alt.X("high:Q", title="seconds"), y=y, yOffset=offset, text="size:N"
    )
    return Chart(styled(bars + points + text, height=max(1, len(kept)) * 130), "seconds to an accuracy")


def step_charts(machines: Sequence[Machine]) -> list[tuple[str, Chart]]:
    """Where the time of a step on 32 images goes, as shares: a chart per machine, a bar per runtime.

    Returns:
        Caption and chart of each machine whose steps were taken apart; the caption names those whose parts do not add
        up, which have no shares.
    """
    short = names(machines)
    found = []
    for machine in machines:
        known = {} if machine.is_published else {r: one for r in machine.runtimes if (one := machine.split(r))}
        splits = {runtime: one for runtime, one in known.items() if one.adds_up}
        off = [runtime.label for runtime in known if runtime not in splits]
        rows = [
            {
                "label": runtime.label,
                "part": name,
                "share": value / one.drawn_s,
                "order": number,
                "shown": seconds(value),
                "step": seconds(one.step_s),
            }
            for runtime, one in splits.items()
            for number, (name, value) in enumerate(stack(one).items())
        ]
        if rows:
            chart = _step_chart(rows, [runtime.label for runtime in splits])
            left_out = f"; without {listed(off)}: parts that do not add up to the step" if off else ""
            found.append((f"{short[machine.name]} ({marked(machine)}){left_out}", chart))
    return found


def _step_chart(rows: list[dict], labels: list[str]) -> Chart:
    base = alt.Chart(pd.DataFrame(rows))
    y = names_y(labels, 150)
    x = alt.X(
        "share:Q",
        stack="zero",
        scale=alt.Scale(domain=[0, 1]),
        title="share of a step on 32 images",
        axis=alt.Axis(format="%", tickCount=5),
    )
    tooltip = ["label:N", "part:N", "shown:N", alt.Tooltip("share:Q", format=".0%"), "step:N"]
    bars = base.mark_bar(height=16).encode(x=x, y=y, color=parts_color(), order="order:Q", tooltip=tooltip)
    # A second layer says what the whole step takes.
    text = base.transform_filter("datum.order == 0").mark_text(align="left", dx=6, fontSize=11, color="currentColor")
    return Chart(
        styled(bars + text.encode(x=alt.datum(1), y=y, text="step:N"), height=34 * len(labels)), "where a step goes"
    )


def models_chart(machines: Sequence[Machine]) -> Chart:
    """Milliseconds of an epoch per network, by networks in one program; thin lines: one after another."""
    short = names(machines)
    rows = [
        {
            "machine": short[machine.name] + (", GPU" if device == "gpu" else ""),
            "color": color,
            "count": count,
            "ms": 1e3 * one.middle,
            "low": 1e3 * one.low,
            "high": 1e3 * one.high,
            "device": device,
            "strategy": STRATEGIES[strategy].label,
            "width": 2.0 if strategy == "vmap" else 0.8,
        }
        for machine, color in zip(machines, ordered_palette(len(machines)), strict=True)
        for device in DEVICES
        for (strategy, count), one in machine.models(device).items()
        if strategy in ("vmap", "sequential")
    ]
    base = alt.Chart(pd.DataFrame(rows))
    x = alt.X(
        "count:Q",
        scale=alt.Scale(type="log", base=2, nice=False),
        title="networks in one program",
        axis=alt.Axis(values=[1, 4, 16, 64]),
    )
    most = nice_above(1.1 * max((row["high"] for row in rows), default=1.0))
    y = alt.Y("ms:Q", scale=alt.Scale(domain=[0, most]), title="ms per epoch and network", axis=alt.Axis(tickCount=4))
    width = alt.StrokeWidth("width:Q", scale=None)
    tooltip = ["machine:N", "strategy:N", "count:Q", alt.Tooltip("ms:Q", format=".3~g")]
    lines = base.mark_line().encode(
        x=x, y=y, color=ROW_COLOR, strokeDash=_DASH, strokeWidth=width, detail=["machine:N", "strategy:N"]
    )
    bars = base.mark_rule().encode(
        x=x, y=alt.Y("low:Q", title="ms per epoch and network"), y2="high:Q", color=ROW_COLOR
    )
    points = base.mark_point(filled=True, size=42).encode(x=x, y=y, color=ROW_COLOR, tooltip=tooltip)
    return Chart(styled(lines + bars + points), "many networks at once")
