"""One step taken apart: two sliders, what is measured for them, and how it is drawn."""

import marimo as mo

from lib.experiments import anatomy_of_a_step as anatomy
from lib.experiments.anatomy_of_a_step import AnatomyTask
from lib.pages import layout
from lib.pages.controls import runtime, runtimes
from lib.pages.lab import Drawing, Shown
from lib.pages.panel import Controls, several, slider
from lib.spec import BATCH_SIZES, Network
from lib.views import anatomy_of_a_step as view
from lib.views import recorded_gpus
from lib.views.markup import on_demand

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
ARTICLE = (32, 128)  # batch size and width of the published table


class Step(Controls):
    """Of the one section."""

    size = slider("Batch size", ARTICLE[0], BATCH_SIZES)
    width = slider("Neurons of the hidden layer", ARTICLE[1], WIDTHS)
    by = several("Trained by", lambda: list(runtimes().values()), runtimes)


def tasks(at: Step) -> list[AnatomyTask]:
    """What is measured."""
    return anatomy.tasks([runtime(written) for written in at.by], Network((at.width,)), at.size)


def draw(shown: Shown) -> Drawing:
    """The parts of a step by every runtime, then its operations, then its lines where it is one compiled loop."""
    wanted, records = shown.tasks, shown.records
    operations, parts = ([t for t in wanted if t.examination.kind == kind] for kind in ("operations", "parts"))
    known = view.splits(parts, records)
    sentence = view.sentence(known, shown.at.size)
    of = "examinations" if wanted else "examinations: choose at least one backend"
    figure = view.parts_chart(known, [task.runtime for task in parts])
    return Drawing(
        layout.framed("where a step goes; the mark is the step as it was measured", figure)
        + shown.state_line(sum(task.complete(records) for task in wanted), len(wanted), of)
        + layout.said(sentence)
        + (on_demand("the parts, and how each is known", view.experiments_table(parts, records)) if known else ""),
        sentence,
        mo.md("## Operation by operation").text
        + layout.quiet(
            "All rows in turns, each call waited for; medians, with quartiles on hover. Repeated by itself, an"
            " operation finds its numbers in the cache and the library’s threads awake, so the sum may be less than the"
            " whole step. A training waits less often, and writes into arrays that it keeps."
        )
        + view.operations_table(operations, parts, records, (shown.at.size, shown.at.width) == ARTICLE)
        + _line_by_line(view.loop_table(parts, records))
        + layout.disturbed([record for task in wanted for record in task.found(records).values()])
        + layout.software(task.runtime for task in wanted)
        + layout.quiet(recorded_gpus.step_note()),
    )


def _line_by_line(table: str) -> str:
    """HTML: heading and table of the steps that are one compiled loop; empty without any."""
    how = (
        "One compiled loop, run up to each of its parts in turn: a part is what a step takes longer with it. Below"
        " zero: too little for this measurement to tell."
    )
    return mo.md("## Line by line").text + layout.quiet(how) + table if table else ""
