"""The anatomy of a step as a reader sees it: table of operations, stacked parts, and a sentence. Measures nothing."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace

import altair as alt
import pandas as pd

from lib.backends.registry import BACKENDS, Runtime
from lib.experiments import published
from lib.experiments.anatomy_of_a_step import AnatomyTask, seconds_of
from lib.formatting import justified, listed, seconds
from lib.profiling.operations import ALL, COMPILED, ON_CARD, OPERATIONS, PRODUCT
from lib.profiling.step_breakdown import EXPLAINED, LOOP_PARTS, ON_DEVICE, PARTS, Split, loop_parts
from lib.storage.records import Record
from lib.views.chart import ON_TWO_LINES, Chart, names_y, nice_above, styled
from lib.views.markup import table

LIBRARY_LABELS = {
    "numpy": "NumPy",
    "jax": "JAX, op by op",
    "keras-tensorflow": "TensorFlow, eager",
    "torch": "PyTorch, eager",
    "cupy": "CuPy",
}
FIT_OF = {
    "jax": "jax-epoch",
    "keras-tensorflow": "keras-tensorflow",
    "numpy": "numpy",
    "torch": "torch",
    "cupy": "cupy",
}
UNEXPLAINED = "unexplained"
UNEXPLAINED_COLOR = "#a08a76"


def operations_table(
    operations: Sequence[AnatomyTask], parts: Sequence[AnatomyTask], records: Sequence[Record], article_size: bool
) -> str:
    """HTML: the article's rows in bold with their sums, our operations below each, and the published figures beside.

    Args:
        operations: The tasks of kind "operations", a column each.
        parts: The tasks of kind "parts", for the step of the training itself.
        records: What was measured; a figure that is missing is a dash.
        article_size: Whether batch size and width are the article's, so that the published figures are comparable.
    """
    found = [task.found(records) for task in operations]
    heads = [_head(task) for task in operations]
    quoted = [f'<span class="race-published">published: {head}</span>' for head in ("NumPy, CPU", "TensorFlow, GPU")]
    lines: list[tuple[list[str], str]] = []
    for row in dict.fromkeys(operation.row for operation in OPERATIONS):
        members = [operation for operation in OPERATIONS if operation.row == row]
        sums = [_sum([one.get(member.key) for member in members]) for one in found]
        lines.append(_line(row, sums, published.OPERATION_S.get(row), "anatomy-sum"))
        if len(members) > 1:
            lines += [_line(m.label, [_cell(one.get(m.key)) for one in found], None, "anatomy-one") for m in members]
    sums = [_sum([one.get(operation.key) for operation in OPERATIONS]) for one in found]
    lines.append(_line("sum of all", sums, published.OPERATION_S["total"], "anatomy-sum"))
    sums = [_sum([one.get(ON_CARD + operation.key) for operation in OPERATIONS]) for one in found]
    if any(one != "–" for one in sums):  # of libraries that tell it
        lines.append(_line("of it the card’s own work, by its clock: without calling and waiting", sums, None))
    lines.append(_line("the whole step, one operation after another", [_cell(one.get(ALL)) for one in found], None))
    lines.append(_line("the single product X @ W1", [_cell(one.get(PRODUCT)) for one in found], published.PRODUCT_S))
    lines.append(_line("the whole step, compiled", [_cell(one.get(COMPILED)) for one in found], published.COMPILED_S))
    lines.append(_line("a step of the training itself", [_training(task, parts, records) for task in operations], None))
    note = (
        "Published: Core i9-10885H and Quadro RTX 5000, averages of 1,000 steps, no spread given. The compiled step and"
        " the single product are TensorFlow's on both."
        if article_size
        else "The published figures are for 32 images and 128 neurons: other sizes than the ones chosen here."
    )
    rows, row_css = zip(*lines, strict=True)
    found_by = [html.escape(head) for head in heads]
    return table(["operation", *found_by, *quoted], rows, "anatomy", row_css) + f'<p class="lab-note">{note}</p>'


def _head(task: AnatomyTask) -> str:
    return LIBRARY_LABELS[BACKENDS[task.runtime.backend].worker] + task.runtime.suffix


def _training(task: AnatomyTask, parts: Sequence[AnatomyTask], records: Sequence[Record]) -> str:
    runtime = replace(task.runtime, backend=FIT_OF[BACKENDS[task.runtime.backend].worker])
    return next((_cell(one.found(records).get("step")) for one in parts if one.runtime == runtime), "–")


def _cell(record: Record | None) -> str:
    """A median with its quartiles as the title."""
    if record is None:
        return "–"
    steps, measured = float(record.subject["work"]), record.measurement
    low, high = measured.quartiles_s
    title = f"quartiles {seconds(low / steps)} to {seconds(high / steps)}, {len(measured.block_s)} blocks"
    return f'<span title="{title}">{justified(measured.median_s / steps, low / steps, high / steps)}</span>'


def _sum(records: Sequence[Record | None]) -> str:
    known = [record for record in records if record is not None]
    if len(known) < len(records):
        return "–"
    total_s = sum(seconds_of(record) for record in known)
    quartiles = [[s / float(r.subject["work"]) for s in r.measurement.quartiles_s] for r in known]
    return justified(total_s, *map(sum, zip(*quartiles, strict=True)))


def _line(
    label: str, cells: Sequence[str], quoted: tuple[float | None, float | None] | None, css: str = ""
) -> tuple[list[str], str]:
    quotes = [
        f'<span class="race-published">{seconds(value)}</span>' if value else "" for value in quoted or (None, None)
    ]
    return [html.escape(label), *cells, *quotes], css


def splits(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> dict[Runtime, Split]:
    """The parts of each runtime's step, where all of them were measured."""
    return {task.runtime: known for task in parts if (known := task.split(records)) is not None}


def parts_chart(known: Mapping[Runtime, Split], runtimes: Sequence[Runtime]) -> Chart:
    """Stacked microseconds of one step by backend, with a mark at the step as it was measured.

    Args:
        known: Parts of the steps that were taken apart.
        runtimes: A row each.
    """
    labels = [runtime.label for runtime in runtimes]
    rows = [
        {
            "label": runtime.label,
            "part": name,
            "us": 1e6 * value,
            "share": f"{value / one.drawn_s:.0%}" if one.adds_up else "none",
            "order": number,
        }
        for runtime, one in known.items()
        for number, (name, value) in enumerate(stack(one).items())
    ]
    steps = [
        {"label": runtime.label, "us": 1e6 * one.step_s, "end": 1e6 * one.drawn_s, "step": seconds(one.step_s)}
        for runtime, one in known.items()
    ]
    # With room for the step in words, on a phone too.
    most_us = nice_above(1.25e6 * max((one.drawn_s for one in known.values()), default=1e-3))
    y = names_y(labels, 170, labelExpr=ON_TWO_LINES)
    tooltip = [
        "label:N",
        "part:N",
        alt.Tooltip("us:Q", format=".4~g", title="μs per step"),
        "share:N",
    ]
    bars = (
        alt.Chart(pd.DataFrame(rows, columns=["label", "part", "us", "share", "order"]))
        .mark_bar(height=18)
        .encode(
            x=alt.X(
                "us:Q",
                stack="zero",
                title="μs per step",
                axis=alt.Axis(tickCount=5),
                scale=alt.Scale(domain=[0, most_us]),
            ),
            y=y,
            color=parts_color(),
            order="order:Q",
            tooltip=tooltip,
        )
    )
    marks = alt.Chart(pd.DataFrame(steps, columns=["label", "us", "end", "step"]))
    tick = marks.mark_tick(thickness=3, size=26, color="currentColor").encode(x="us:Q", y=y)
    text = marks.mark_text(align="left", dx=6, color="currentColor").encode(x="end:Q", y=y, text="step:N")
    spec = styled(bars + tick + text, height=44 * max(1, len(labels)))
    return Chart(spec, "where a step goes")


def parts_color() -> alt.Color:
    """The colours of a step's parts, with their legend above the chart."""
    names = [part.name for part in PARTS] + [UNEXPLAINED]
    colors = alt.Scale(domain=names, range=[part.color for part in PARTS] + [UNEXPLAINED_COLOR])
    return alt.Color("part:N", scale=colors, sort=names, legend=alt.Legend(orient="top", title=None, columns=2))


def arithmetic_share(one: Split) -> str:
    """How much of a step is arithmetic, in words; the seconds that do not add up are no shares."""
    share = one.share("arithmetic")
    return "its parts do not add up" if share is None else f"{share:.0%} of it arithmetic"


def stack(one: Split) -> dict[str, float]:
    """What is drawn of a step: seconds of its parts, and the unexplained rest, which is at least 0."""
    return {**one.parts_s, UNEXPLAINED: max(0.0, one.unexplained_s)}


def sentence(known: Mapping[Runtime, Split], batch_size: int) -> str:
    """What the slowest and the fastest step are made of, and whose parts do not add up; empty without any."""
    if not known:
        return ""
    said = []
    fastest = min(known, key=lambda runtime: known[runtime].step_s)
    slowest = max(known, key=lambda runtime: known[runtime].step_s)
    for runtime in dict.fromkeys((slowest, fastest)):
        one = known[runtime]
        largest = max((name for name in one.parts_s if name != "arithmetic"), key=lambda name: one.parts_s[name])
        said.append(
            f"A step on {batch_size:,} image{'s' if batch_size > 1 else ''} takes"
            f" {seconds(one.step_s)} by “{runtime.label}”: {arithmetic_share(one)}"
            + (f", {share:.0%} {largest}." if (share := one.share(largest)) is not None else ".")
        )
    off = [f"“{runtime.label}”" for runtime, one in known.items() if not one.adds_up]
    if off:
        said.append(
            f"The parts of {listed(off)} are more than {EXPLAINED:.0%} off the measured step: some of them ran at"
            " the same time, or something else used the machine."
        )
    return " ".join(said)


def experiments_table(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> str:
    """HTML: seconds of each part by backend, what is unexplained, and the experiment that gave the figure."""
    known = splits(parts, records)
    rest = "the measured step less all parts; below zero: parts that ran at the same time were measured one by one"
    rows = [
        *(
            [part.name, *(_part(one.parts_s.get(part.name)) for one in known.values()), html.escape(part.how)]
            for part in PARTS
        ),
        ["unexplained", *(_signed(one) for one in known.values()), rest],
        ["measured step", *(seconds(one.step_s) for one in known.values()), "the backend’s own training"],
    ]
    row_css = [""] * (len(rows) - 1) + ["anatomy-sum"]
    by_its_clock = {task.runtime: task.seconds(records).get(ON_DEVICE) for task in parts}
    if any(by_its_clock.values()):  # of devices that tell it
        cells = [seconds(one) if (one := by_its_clock.get(runtime)) else "–" for runtime in known]
        rows.append(["by the device’s clock", *cells, "its timestamps around many steps in one submission"])
        row_css.append("")
    return table(
        ["part", *(html.escape(runtime.label) for runtime in known), "known by"], rows, "anatomy anatomy-parts", row_css
    )


def _part(part_s: float | None) -> str:
    return "–" if part_s is None else seconds(part_s)


def loop_table(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> str:
    """HTML: seconds of each part of a step that is one compiled loop, and their share; empty without such a step.

    Args:
        parts: The tasks of kind "parts".
        records: What was measured.
    """
    found = {task.runtime: task.seconds(records) for task in parts}
    known = {runtime: line_by_line for runtime, one in found.items() if (line_by_line := loop_parts(one))}
    if not known:
        return ""
    rows = [
        [html.escape(part), *(_with_share(one[part], sum(one.values())) for one in known.values())]
        for part in LOOP_PARTS
    ]
    rows.append(["sum of all, on one core", *(seconds(sum(one.values())) for one in known.values())])
    rows.append(["a step of the training itself", *(seconds(found[runtime]["step"]) for runtime in known)])
    row_css = [""] * len(LOOP_PARTS) + ["anatomy-sum"] * 2
    labels = [html.escape(runtime.label) for runtime in known]
    return table(["part of the loop", *labels], rows, "anatomy", row_css)


def _with_share(part_s: float, whole_s: float) -> str:
    """Seconds and their share; what the measurement cannot tell from nothing may be below it."""
    sign = "−" if part_s < 0 else ""
    return f"{sign}{seconds(abs(part_s))} ({sign}{abs(part_s) / whole_s:.0%})"


def _signed(one: Split) -> str:
    sign = "−" if one.unexplained_s < 0 else ""
    return f"{sign}{seconds(abs(one.unexplained_s))} ({sign or '+'}{abs(one.unexplained_s) / one.step_s:.0%})"
