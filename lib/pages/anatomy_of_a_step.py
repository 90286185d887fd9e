"""Where marimo and the anatomy of a step meet: two sliders, what is measured for them, and how it is drawn."""

from functools import partial

import marimo as mo

from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.experiments.background import BackgroundTask
from lib.pages import layout
from lib.pages.controls import Controls, runtime, runtimes, several, slider
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, painted, refuse
from lib.pages.url_state import Address, Setting
from lib.spec import BATCH_SIZES, Network
from lib.storage.records import Kind, Record
from lib.views import anatomy_of_a_step as view
from lib.views import recorded_gpus
from lib.views.markup import on_demand
from lib.workers.queue import Request, Urgency

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
ARTICLE = (32, 128)  # batch size and width of the published table


def _controls() -> Controls:
    usable = runtimes()
    return Controls(
        slider("step.size", "Batch size", ARTICLE[0], BATCH_SIZES),
        slider("step.width", "Neurons of the hidden layer", ARTICLE[1], WIDTHS),
        several("step.by", "Trained by", list(usable.values()), usable),
    )


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return _controls().settings


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Batch size, width and runtimes, as the address says, and the two buttons."""
    return _controls().panel(address, stop=stop_button(stage), again=button("Measure again", "Measure all of it anew"))


def show(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what is stored for these controls, and measure what is missing, or all of it where the button was pressed.

    Values that cannot be used are refused on the page.
    """
    try:
        values = _controls().checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    size, width = values["size"], values["width"]
    wanted = tasks([runtime(written) for written in values["by"]], Network((width,)), size)

    def make(again: bool):
        cached = stage.store.records(Kind.ANATOMY)
        missing = wanted if again else [task for task in wanted if not task.complete(cached)]
        return (cached, not missing), partial(measure_tasks, missing)

    running = stage.begin_if_new(tuple(wanted), values["again"], Request(stage.viewer, Urgency.NOW), make)
    paint_while_it_runs(
        stage, running, partial(_paint, running, wanted, *stage.began_with, (size, width), controls.text)
    )


def _paint(
    running: BackgroundTask,
    wanted: list[AnatomyTask],
    cached: list[Record],
    complete: bool,
    sizes: tuple[int, int],
    controls: str,
) -> int:
    now = running.view()
    records = [*cached, *now.items]
    operations, parts = ([t for t in wanted if t.examination.kind == kind] for kind in ("operations", "parts"))
    known = view.splits(parts, records)
    done = sum(task.complete(records) for task in wanted)
    words = now.note or (f"{done} of {len(wanted)} examinations" if wanted else "choose at least one backend")
    words += f", measured {max(r.measured_at for r in records)[:16]} UTC" if complete and records else ""
    sentence = view.sentence(known, sizes[0])
    figure = view.parts_chart(known, [task.runtime for task in parts])
    result = (
        layout.framed("where a step goes; the mark is the step as it was measured", figure)
        + layout.state_line(layout.saved_or(now.state, complete), done, len(wanted), words, now.problem)
        + layout.said(sentence)
        + (on_demand("the parts, and how each is known", view.experiments_table(parts, records)) if known else "")
    )
    below = (
        mo.md("## Operation by operation").text
        + layout.quiet(
            "All rows in turns, each call waited for; medians, with quartiles on hover. Repeated by itself, an"
            " operation finds its numbers in the cache and the library’s threads awake, so the sum may be less than the"
            " whole step. A training waits less often, and writes into arrays that it keeps."
        )
        + view.operations_table(operations, parts, records, sizes == ARTICLE)
        + _line_by_line(parts, records)
        + layout.disturbed([record for task in wanted for record in task.found(records).values()])
        + layout.software(task.runtime for task in wanted)
        + layout.quiet(recorded_gpus.step_note())
    )
    return painted(now, layout.page(controls, result).text + below, sentence)


def _line_by_line(parts: list[AnatomyTask], records: list[Record]) -> str:
    """HTML: heading and table of the steps that are one compiled loop; empty without any."""
    if not (found := view.loop_table(parts, records)):
        return ""
    how = (
        "One compiled loop, run up to each of its parts in turn: a part is what a step takes longer with it. Below"
        " zero: too little for this measurement to tell."
    )
    return mo.md("## Line by line").text + layout.quiet(how) + found
