"""One step taken apart by every library: its parts, its operations, and its lines where it is one compiled loop."""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from lib.formatting import listed, seconds
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import Network
from lib.sweeps.experiments import anatomy_of_a_step, published
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, seconds_of
from lib.sweeps.storage.records import Record
from lib.timing.profiling.operations import ALL, COMPILED, OPERATIONS, PRODUCT
from lib.timing.profiling.step_breakdown import EXPLAINED, PARTS, Split
from lib.ui import layout
from lib.ui.controls import runtime, runtimes
from lib.ui.lab import Drawing, Shown
from lib.ui.panel import Controls, batch_size, several, slider
from lib.ui.views import recorded_gpus
from lib.ui.views.chart import ON_TWO_LINES, Chart, names_y, nice_above, styled
from lib.ui.views.markup import on_demand, table
from lib.ui.views.recorded_gpus import arithmetic_share

UNEXPLAINED, UNEXPLAINED_COLOR = "unexplained", "#a08a76"
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
ARTICLE = (32, 128)  # batch size and width of the published table
LIBRARIES = {
    "numpy": "NumPy",
    "jax": "JAX, op by op",
    "keras-tensorflow": "TensorFlow, eager",
    "torch": "PyTorch, eager",
    "cupy": "CuPy",
}
_REPEATED = (
    "All rows in turns, each call waited for; medians. Repeated by itself, an operation finds"
    " its numbers in the cache and the library’s threads awake, so the sum may be less than the whole step. A training"
    " waits less often, and writes into arrays that it keeps."
)
_PUBLISHED = (
    "Published: Core i9-10885H and Quadro RTX 5000, averages of 1,000 steps, no spread given. The compiled step and the"
    " single product are TensorFlow's on both."
)


class Step(Controls):
    size = batch_size("Batch size", ARTICLE[0])
    width = slider("Neurons of the hidden layer", ARTICLE[1], WIDTHS)
    by = several("Trained by", lambda: list(runtimes().values()), runtimes)


def tasks(at: Step) -> list[AnatomyTask]:
    return anatomy_of_a_step.tasks([runtime(written) for written in at.by], Network((at.width,)), at.size)


def draw(shown: Shown) -> Drawing:
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
        + on_demand(
            "how each part is known", table(["part", "known by"], [[one.name, html.escape(one.how)] for one in PARTS])
        ),
        said,
        f"<h3>Operation by operation</h3>{layout.quiet(_REPEATED)}"
        + operations_table(operations, records, (shown.at.size, shown.at.width) == ARTICLE)
        + layout.disturbed([record for task in wanted for record in task.found(records).values()])
        + layout.software(task.runtime for task in wanted)
        + layout.quiet(recorded_gpus.step_note()),
    )


def splits(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> dict[Runtime, Split]:
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


def parts_color() -> alt.Color:
    names = [part.name for part in PARTS] + [UNEXPLAINED]
    colors = alt.Scale(domain=names, range=[part.color for part in PARTS] + [UNEXPLAINED_COLOR])
    return alt.Color("part:N", scale=colors, sort=names, legend=alt.Legend(orient="top", title=None, columns=2))


def stack(one: Split) -> dict[str, float]:
    """What is drawn of a step: seconds of its parts, and the unexplained rest, which is at least 0."""
    return {**one.parts_s, UNEXPLAINED: max(0.0, one.unexplained_s)}


def sentence(known: Mapping[Runtime, Split], batch_size: int) -> str:
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


def operations_table(operations: Sequence[AnatomyTask], records: Sequence[Record], article_size: bool) -> str:
    """HTML: the article's rows in bold with their sums, our operations below each, and the published figures beside.

    Args:
        operations: The tasks of kind "operations", a column each.
        records: What was measured; a figure that is missing is a dash.
        article_size: Whether batch size and width are the article's, so that the published figures are comparable.
    """
    found = [task.found(records) for task in operations]
    rows: list[list[str]] = []
    row_css: list[str] = []

    def add(label: str, keys: Sequence[str], quoted: tuple[float | None, float | None] | None, css: str) -> None:
        figures = (_sum([one.get(key) for key in keys]) for one in found)
        rows.append(
            [html.escape(label), *figures, *(_quoted(_us(one)) if one else "" for one in quoted or (None, None))]
        )
        row_css.append(css)

    for row in dict.fromkeys(operation.row for operation in OPERATIONS):
        members = [operation for operation in OPERATIONS if operation.row == row]
        add(row, [one.key for one in members], published.OPERATION_S.get(row), "anatomy-sum")
        for one in members if len(members) > 1 else ():
            add(one.label, [one.key], None, "anatomy-one")
    add("sum of all", [one.key for one in OPERATIONS], published.OPERATION_S["total"], "anatomy-sum")
    add("the whole step, one operation after another", [ALL], None, "")
    add("the single product X @ W1", [PRODUCT], published.PRODUCT_S, "")
    add("the whole step, compiled", [COMPILED], published.COMPILED_S, "")
    heads = [html.escape(LIBRARIES[BACKENDS[task.runtime.backend].worker] + task.runtime.suffix) for task in operations]
    heads += [_quoted(f"published: {which}") for which in ("NumPy, CPU", "TensorFlow, GPU")]
    comparable = (
        "" if article_size else " Those are for 32 images and 128 neurons: other sizes than the ones chosen here."
    )
    return table(["μs", *heads], rows, "anatomy", row_css) + layout.quiet(_PUBLISHED + comparable)


def _sum(records: Sequence[Record | None]) -> str:
    """The sum of medians; a dash where one is missing."""
    known = [seconds_of(record) for record in records if record is not None]
    return _us(sum(known)) if len(known) == len(records) else "–"


def _us(value_s: float) -> str:
    return f"{float(f'{1e6 * value_s:.3g}'):,g}"


def _quoted(text: str) -> str:
    return f'<span class="race-published">{text}</span>'
