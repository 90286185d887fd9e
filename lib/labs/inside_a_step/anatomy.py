"""One step taken apart by every library: its parts, its operations, and its lines where it is one compiled loop."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace

import altair as alt
import pandas as pd

from lib.formatting import justified, listed, seconds
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import Network
from lib.sweeps.experiments import anatomy_of_a_step, published
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, seconds_of
from lib.sweeps.storage.records import Record
from lib.timing.profiling.operations import ALL, COMPILED, ON_CARD, OPERATIONS, PRODUCT
from lib.timing.profiling.step_breakdown import EXPLAINED, ON_DEVICE, PARTS, Split
from lib.ui import layout
from lib.ui.controls import runtime, runtimes
from lib.ui.lab import Drawing, Shown
from lib.ui.panel import Controls, batch_size, several, slider
from lib.ui.views import recorded_gpus
from lib.ui.views.anatomy_of_a_step import UNEXPLAINED, arithmetic_share, parts_color, stack
from lib.ui.views.chart import ON_TWO_LINES, Chart, names_y, nice_above, styled
from lib.ui.views.markup import on_demand, table

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
ARTICLE = (32, 128)  # batch size and width of the published table
# By library: what the page calls it, and the backend whose training its operations are held against.
LIBRARIES = {
    "numpy": ("NumPy", "numpy"),
    "jax": ("JAX, op by op", "jax-epoch"),
    "keras-tensorflow": ("TensorFlow, eager", "keras-tensorflow"),
    "torch": ("PyTorch, eager", "torch"),
    "cupy": ("CuPy", "cupy"),
}
_REPEATED = (
    "All rows in turns, each call waited for; medians, with quartiles on hover. Repeated by itself, an operation finds"
    " its numbers in the cache and the library’s threads awake, so the sum may be less than the whole step. A training"
    " waits less often, and writes into arrays that it keeps."
)
_PUBLISHED = (
    "Published: Core i9-10885H and Quadro RTX 5000, averages of 1,000 steps, no spread given. The compiled step and the"
    " single product are TensorFlow's on both."
)
_OTHER_SIZES = "The published figures are for 32 images and 128 neurons: other sizes than the ones chosen here."
# Of the table of operations: label, experiments, published seconds on a CPU and on a card, class.
_Line = tuple[str, list[str], tuple[float | None, float | None] | None, str]


class Step(Controls):
    """What step is taken apart, and by whom."""

    size = batch_size("Batch size", ARTICLE[0])
    width = slider("Neurons of the hidden layer", ARTICLE[1], WIDTHS)
    by = several("Trained by", lambda: list(runtimes().values()), runtimes)


def tasks(at: Step) -> list[AnatomyTask]:
    """What is measured."""
    return anatomy_of_a_step.tasks([runtime(written) for written in at.by], Network((at.width,)), at.size)


def draw(shown: Shown) -> Drawing:
    """The parts of a step by every runtime; below them its operations."""
    wanted, records = shown.tasks, shown.records
    operations, parts = ([t for t in wanted if t.examination.kind == kind] for kind in ("operations", "parts"))
    known = splits(parts, records)
    said = sentence(known, shown.at.size)
    of = "examinations" if wanted else "examinations: choose at least one backend"
    figure = parts_chart(known, [task.runtime for task in parts])
    return Drawing(
        layout.framed("where a step goes; the mark is the step as it was measured", figure)
        + shown.state_line(sum(task.complete(records) for task in wanted), len(wanted), of)
        + layout.said(said)
        + (on_demand("the parts, and how each is known", parts_table(parts, records)) if known else ""),
        said,
        f"<h3>Operation by operation</h3>{layout.quiet(_REPEATED)}"
        + operations_table(operations, parts, records, (shown.at.size, shown.at.width) == ARTICLE)
        + layout.disturbed([record for task in wanted for record in task.found(records).values()])
        + layout.software(task.runtime for task in wanted)
        + layout.quiet(recorded_gpus.step_note()),
    )


def splits(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> dict[Runtime, Split]:
    """The parts of each runtime's step, where all of them were measured."""
    return {task.runtime: known for task in parts if (known := task.split(records)) is not None}


def parts_chart(known: Mapping[Runtime, Split], runtimes: Sequence[Runtime]) -> Chart:
    """Stacked microseconds of one step, a row for each runtime, with a mark at the step as it was measured."""
    rows = [
        {
            "label": by.label,
            "part": name,
            "us": 1e6 * part_s,
            "share": f"{part_s / one.drawn_s:.0%}" if one.adds_up else "none",
            "order": number,
        }
        for by, one in known.items()
        for number, (name, part_s) in enumerate(stack(one).items())
    ]
    steps = [
        {"label": by.label, "us": 1e6 * one.step_s, "end": 1e6 * one.drawn_s, "step": seconds(one.step_s)}
        for by, one in known.items()
    ]
    # With room for the step in words, on a phone too.
    most_us = nice_above(1.25e6 * max((one.drawn_s for one in known.values()), default=1e-3))
    y = names_y([by.label for by in runtimes], 170, labelExpr=ON_TWO_LINES)
    scale = alt.Scale(domain=[0, most_us])
    bars = alt.Chart(pd.DataFrame(rows, columns=["label", "part", "us", "share", "order"])).mark_bar(height=18)
    bars = bars.encode(
        x=alt.X("us:Q", stack="zero", title="μs per step", axis=alt.Axis(tickCount=5), scale=scale),
        y=y,
        color=parts_color(),
        order="order:Q",
        tooltip=["label:N", "part:N", alt.Tooltip("us:Q", format=".4~g", title="μs per step"), "share:N"],
    )
    marks = alt.Chart(pd.DataFrame(steps, columns=["label", "us", "end", "step"]))
    tick = marks.mark_tick(thickness=3, size=26, color="currentColor").encode(x="us:Q", y=y)
    text = marks.mark_text(align="left", dx=6, color="currentColor").encode(x="end:Q", y=y, text="step:N")
    return Chart(styled(bars + tick + text, height=44 * max(1, len(runtimes))), "where a step goes")


def sentence(known: Mapping[Runtime, Split], batch_size: int) -> str:
    """What the slowest and the fastest step are made of, and whose parts do not add up; empty without any."""
    by_time = sorted(known, key=lambda runtime: known[runtime].step_s)
    said = []
    for by in dict.fromkeys((*by_time[-1:], *by_time[:1])):
        one = known[by]
        largest = max((name for name in one.parts_s if name != "arithmetic"), key=lambda name: one.parts_s[name])
        share, images = one.share(largest), f"{batch_size:,} image{'s' if batch_size > 1 else ''}"
        said.append(
            f"A step on {images} takes {seconds(one.step_s)} by “{by.label}”: {arithmetic_share(one)}"
            f"{'' if share is None else f', {share:.0%} {largest}'}."
        )
    if off := [f"“{by.label}”" for by, one in known.items() if not one.adds_up]:
        said.append(
            f"The parts of {listed(off)} are more than {EXPLAINED:.0%} off the measured step: some of them ran at the"
            " same time, or something else used the machine."
        )
    return " ".join(said)


def parts_table(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> str:
    """HTML: seconds of each part by backend, what is unexplained, and the experiment that gave the figure."""
    known = splits(parts, records)
    rest = "the measured step less all parts; below zero: parts that ran at the same time were measured one by one"
    rows = [
        [part.name, *(_seconds(one.parts_s.get(part.name)) for one in known.values()), html.escape(part.how)]
        for part in PARTS
    ]
    unexplained = (_with_share(one.unexplained_s, one.step_s, "+") for one in known.values())
    rows.append([UNEXPLAINED, *unexplained, rest])
    rows.append(["measured step", *(seconds(one.step_s) for one in known.values()), "the backend’s own training"])
    by_its_clock = {task.runtime: task.seconds(records).get(ON_DEVICE) for task in parts}
    if any(by_its_clock.values()):  # of devices that tell it
        cells = [_seconds(by_its_clock.get(by) or None) for by in known]
        rows.append(["by the device’s clock", *cells, "its timestamps around many steps in one submission"])
    row_css = ["anatomy-sum" if row[0] == "measured step" else "" for row in rows]
    return table(["part", *_labels(known), "known by"], rows, "anatomy anatomy-parts", row_css)


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
    every = [operation.key for operation in OPERATIONS]
    wanted: list[_Line] = []
    for row in dict.fromkeys(operation.row for operation in OPERATIONS):
        members = [operation for operation in OPERATIONS if operation.row == row]
        wanted.append((row, [one.key for one in members], published.OPERATION_S.get(row), "anatomy-sum"))
        wanted += [(one.label, [one.key], None, "anatomy-one") for one in members if len(members) > 1]
    wanted.append(("sum of all", every, published.OPERATION_S["total"], "anatomy-sum"))
    if any(ON_CARD + every[0] in one for one in found):  # of libraries that tell it
        by_its_clock = "of it the card’s own work, by its clock: without calling and waiting"
        wanted.append((by_its_clock, [ON_CARD + key for key in every], None, ""))
    wanted += [
        ("the whole step, one operation after another", [ALL], None, ""),
        ("the single product X @ W1", [PRODUCT], published.PRODUCT_S, ""),
        ("the whole step, compiled", [COMPILED], published.COMPILED_S, ""),
    ]
    rows = [
        [html.escape(label), *(_sum([one.get(key) for key in keys]) for one in found), *_quotes(quoted)]
        for label, keys, quoted, _ in wanted
    ]
    trained = (_training(task, parts, records) for task in operations)
    rows.append(["a step of the training itself", *trained, "", ""])
    heads = [html.escape(LIBRARIES[_library(task)][0] + task.runtime.suffix) for task in operations]
    heads += [_quoted(f"published: {which}") for which in ("NumPy, CPU", "TensorFlow, GPU")]
    shown = table(["operation", *heads], rows, "anatomy", [*(css for *_, css in wanted), ""])
    return f'{shown}<p class="lab-note">{_PUBLISHED if article_size else _OTHER_SIZES}</p>'


def _labels(known: Mapping[Runtime, object]) -> list[str]:
    return [html.escape(by.label) for by in known]


def _library(task: AnatomyTask) -> str:
    return BACKENDS[task.runtime.backend].worker


def _training(task: AnatomyTask, parts: Sequence[AnatomyTask], records: Sequence[Record]) -> str:
    by = replace(task.runtime, backend=LIBRARIES[_library(task)][1])
    return next((_sum([one.found(records).get("step")]) for one in parts if one.runtime == by), "–")


def _sum(records: Sequence[Record | None]) -> str:
    """The sum of medians; of a single one with its quartiles as the title."""
    known = [record for record in records if record is not None]
    if len(known) < len(records):
        return "–"
    quartiles = [[s / float(one.subject["work"]) for s in one.measurement.quartiles_s] for one in known]
    low, high = map(sum, zip(*quartiles, strict=True))
    shown = justified(sum(map(seconds_of, known)), low, high)
    if len(known) > 1:
        return shown
    blocks = f"{len(known[0].measurement.block_s)} blocks"
    return f'<span title="quartiles {seconds(low)} to {seconds(high)}, {blocks}">{shown}</span>'


def _quoted(text: str) -> str:
    return f'<span class="race-published">{text}</span>'


def _quotes(pair_s: tuple[float | None, float | None] | None) -> list[str]:
    return [_quoted(seconds(one)) if one else "" for one in pair_s or (None, None)]


def _seconds(value_s: float | None) -> str:
    return "–" if value_s is None else seconds(value_s)


def _with_share(part_s: float, whole_s: float, plus: str = "") -> str:
    """Seconds and their share; what the measurement cannot tell from nothing may be below it."""
    sign = "−" if part_s < 0 else ""
    return f"{sign}{seconds(abs(part_s))} ({sign or plus}{abs(part_s) / whole_s:.0%})"
