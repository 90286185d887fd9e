"""A library's first use as a reader sees it: its stages as bars, a sentence, a table. Measures nothing."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from lib.experiments import published
from lib.experiments.single_operations import OperationPoint
from lib.formatting import listed, seconds, times
from lib.timing.comparison import Comparison, Verdict, compared
from lib.views.chart import (
    Chart,
    names_y,
    nice_above,
    ordered_palette,
    styled,
)
from lib.views.markup import on_demand, quiet, table


@dataclass(frozen=True)
class StartStage:
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


def stage_s(point: OperationPoint, stage: StartStage) -> float | None:
    """Median seconds of a stage, at least 0; None where the library has none."""
    whole, rest = point.seconds(stage.stage), point.seconds(stage.less) if stage.less else 0.0
    return None if whole is None or rest is None else max(0.0, whole - rest)


def first_chart(points: Sequence[OperationPoint], names: Sequence[str]) -> Chart:
    """Stacked seconds of the stages before a first result, and of compiling after it, a row for each library."""
    rows = [
        {"label": point.task.label, "stage": stage.label, "s": seconds_, "order": number}
        for point in points
        for number, stage in enumerate(STAGES)
        if (seconds_ := stage_s(point, stage)) is not None
    ]
    totals: dict[str, float] = {}
    for row in rows:
        totals[row["label"]] = totals.get(row["label"], 0.0) + row["s"]
    labels_ = [stage.label for stage in STAGES]
    colors = alt.Scale(domain=labels_, range=list(ordered_palette(len(labels_))))
    most = nice_above(1.1 * max(totals.values(), default=0.9))
    x = alt.X(
        "s:Q", stack="zero", title="seconds", axis=alt.Axis(tickCount=5), scale=alt.Scale(domain=[0, most], nice=False)
    )
    bars = (
        alt.Chart(pd.DataFrame(rows, columns=["label", "stage", "s", "order"]))
        .mark_bar(height=18)
        .encode(
            x=x,
            y=names_y(names, 170),
            order="order:Q",
            color=alt.Color(
                "stage:N", scale=colors, sort=labels_, legend=alt.Legend(orient="top", title=None, columns=2)
            ),
            tooltip=["label:N", "stage:N", alt.Tooltip("s:Q", format=".3~s", title="seconds")],
        )
    )
    ends = pd.DataFrame([{"label": label, "s": s, "text": seconds(s)} for label, s in totals.items()])
    text = (
        alt.Chart(ends if totals else pd.DataFrame(columns=["label", "s", "text"]))
        .mark_text(align="left", dx=6, color="currentColor")
        .encode(x="s:Q", y=names_y(names, 170), text="text:N")
    )
    return Chart(styled(alt.layer(bars, text), height=44 * max(1, len(names))), "stages of a first use")


def first_sentence(points: Sequence[OperationPoint]) -> str:
    """Who has a first result when, how much longer a first call takes than a steady one, and when compiling pays."""
    known = [point for point in points if "first" in point.records]
    if not known:
        return ""
    before = {point.task.label: [stage_s(point, stage) or 0.0 for stage in STAGES[:-1]] for point in known}
    ordered = sorted(before, key=lambda label: sum(before[label]))
    parts = [
        f"{label} has its first result after {seconds(sum(before[label]))}"
        for label in dict.fromkeys((ordered[0], ordered[-1]))
    ]
    largest = max(range(len(STAGES) - 1), key=lambda number: before[ordered[-1]][number])
    share = before[ordered[-1]][largest] / sum(before[ordered[-1]])
    which = "the latter" if len(parts) > 1 else "that"
    said = [f"{listed(parts)}: {share:.0%} of {which} is “{STAGES[largest].label}”."]
    longer = [
        f"{times(ratio.ratio)} times as long with {point.task.label}"
        for point in known
        if (ratio := _compared(point, "first", "steady")).verdict is Verdict.SLOWER
    ]
    if longer:
        said.append(f"Compared with a steady call, the first one takes {listed(longer)}.")
    return " ".join([*said, *filter(None, map(_pays, known))])


def _compared(point: OperationPoint, first: str, second: str) -> Comparison:
    return compared(*(point.records[name].measurement.step_s for name in (first, second)), paired=False)


def _pays(point: OperationPoint) -> str:
    """After how many calls a compiled program has earned its compilation; empty for a library without."""
    if (cost_s := stage_s(point, STAGES[-1])) is None:
        return ""
    ratio = _compared(point, "steady", "compiled steady")
    if ratio.verdict is not Verdict.SLOWER:
        what = "not told apart from it" if ratio.verdict is Verdict.UNCLEAR else "no quicker"
        return f"{point.task.label}'s compiled program is {what} at this size."
    saved_s = (1 - 1 / ratio.ratio) * (point.seconds("steady") or 0.0)
    return f"{point.task.label}'s compiled program has earned its compilation after {times(cost_s / saved_s)} calls."


def first_table(points: Sequence[OperationPoint]) -> str:
    """HTML: every stage as it was measured, and the article's figure for a launch beside a steady call."""
    names = ["process", "import", "context", "first", "second", "steady"]
    names += [f"compiled {name}" for name in ("first", "second", "steady")]
    rows = [
        [
            html.escape(point.task.label),
            *(point.records[name].measurement.text if name in point.records else "–" for name in names),
        ]
        for point in points
        if point.records
    ]
    low_s, high_s = published.LAUNCH_S
    note = (
        f"Published: launching a kernel takes {seconds(low_s)} to {seconds(high_s)} (“{published.OVERHEAD_ARTICLE}”);"
        " a steady call here is four operations and their results' arrival."
    )
    return (on_demand("Table", table(["library", *names], rows)) if rows else "") + quiet(note)
