"""Connects the notebook on single operations to marimo: its sections, each with controls, a task and a painter."""

from collections.abc import Mapping, Sequence
from functools import partial

import marimo as mo

from lib.experiments import single_operations
from lib.experiments.background import BackgroundTask
from lib.experiments.single_operations import (
    FIRST_SIZES,
    LENGTHS,
    OVERLAP_SIZES,
    SIDES,
    TRANSFERS_BYTES,
    OperationPoint,
    OperationTask,
)
from lib.hardware.cores import usable_cores
from lib.pages import layout
from lib.pages.controls import Controls, dropdown, settings_of, slider
from lib.pages.streaming import Stage, button, paint_figures, paint_while_it_runs, refuse, stop_button
from lib.pages.url_state import Address, Setting
from lib.profiling.request import COPIED, IN_PIECES, IN_TURN, OPERATION_PRECISIONS, WAITED
from lib.spec import BATCH_SIZES
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.views import first_use, fusion, overlap, recorded_gpus
from lib.views import single_operations as view
from lib.views.chart import Chart


def _panels() -> dict[str, Controls]:
    cores = usable_cores()
    labels = single_operations.labels()
    usual = "JAX" if "JAX" in labels else labels[0]
    return {
        "product": Controls(
            slider("product.largest", "Rows and columns, up to", 1024, SIDES[1:]),
            dropdown("product.precision", "Precision", "float32", OPERATION_PRECISIONS),
            slider("product.threads", "Threads", cores, range(1, max(cores, 2) + 1)),
            dropdown("product.library", "All ways of", usual, labels),
        ),
        "sine": Controls(
            slider("sine.largest", "Elements, up to", LENGTHS[11], LENGTHS[3:]),
            slider("sine.depth", "Sines in one another", 4, range(1, 17)),
            dropdown("sine.library", "All ways of", usual, labels),
        ),
        "transfer": Controls(
            slider("transfer.largest", "Bytes, up to", TRANSFERS_BYTES[11], TRANSFERS_BYTES[2:]),
            dropdown("transfer.library", "All ways of", usual, labels),
        ),
        "fusion": Controls(
            slider("fusion.size", "Batch size of the step", 32, BATCH_SIZES),
            slider("fusion.depth", "Sines in one another", 4, range(1, 17)),
        ),
        "overlap": Controls(
            slider("overlap.size", "Elements", OVERLAP_SIZES[3], OVERLAP_SIZES),
            slider("overlap.depth", "Sines in one another", 4, range(1, 17)),
            slider("overlap.pieces", "Pieces", 8, (2, 4, 8, 16, 32)),
        ),
        "first": Controls(slider("first.size", "Elements", 1024, FIRST_SIZES)),
    }


def settings() -> dict[str, Setting]:
    """What the controls of all sections may say, by name."""
    return settings_of(_panels().values())


def _panel(name: str, address: Address, stage: Stage) -> mo.ui.dictionary:
    again = button("Measure again", "Measure all of it once more")
    return _panels()[name].panel(address, stop=stop_button(stage), again=again)


def _run(stage: Stage, asked: tuple, presses: object, todo: Sequence[OperationTask]) -> tuple[BackgroundTask, bool]:
    """The run of these tasks, and whether all was stored before it."""

    def make(again: bool):
        known = {} if again else single_operations.found(todo, stage.store.records(Kind.OPERATION))
        return (len(known) == len(todo),), partial(single_operations.measure, todo, known)

    running = stage.begin_if_new(asked, presses, stage.request(), make)
    return running, stage.began_with[0]


# 1: products.


def product_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Largest size, precision, threads, whose ways are drawn, and the two buttons."""
    return _panel("product", address, stage)


def products(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show the products that are stored for these controls, and measure the others, small ones first."""
    try:
        values = _panels()["product"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    largest, precision = values["largest"], values["precision"]
    threads = values["threads"] if values["threads"] < usable_cores() else 0
    todo = single_operations.products(single_operations.libraries(), largest, precision, threads)
    running, saved = _run(stage, (largest, precision, threads), values["again"], todo)
    paint = partial(_paint_products, stage.store, running, saved, todo, largest, values["library"], controls.text)
    paint_while_it_runs(stage, running, paint)


def _paint_products(
    store: Store,
    running: BackgroundTask,
    saved: bool,
    todo: Sequence[OperationTask],
    largest: int,
    label: str,
    controls: str,
) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    names = _names(todo)
    peaks = single_operations.peak_rates(points, store)
    unit = "n, of two n × n matrices"
    words = now.note or f"{len(points)} of {len(todo)} sizes and libraries"
    return paint_figures(
        now,
        {
            "seconds of a product, the operands on the device, waited for": view.seconds_chart(
                view.lines_of(points, WAITED), largest, "seconds by size and library", names, unit
            ),
            f"seconds by {label}, in all ways": view.seconds_chart(
                view.ways_of(points, label), largest, "seconds by size and way", view.WAY_LABELS, unit
            ),
            "share of the float32 peak measured here": view.share_chart(
                view.lines_of(points, WAITED), largest, peaks, names, unit, "share of the peak by size and library"
            ),
        },
        layout.state_line(layout.saved_or(now.state, saved), len(points), len(todo), words, now.problem),
        view.product_sentence(points, label, peaks),
        _below(points)
        + layout.quiet(recorded_gpus.step_note())
        + view.products_table(points)
        + view.products_published(points, label),
        controls,
    )


# 2: nested sines.


def sine_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Largest size, depth, whose ways are drawn, and the two buttons."""
    return _panel("sine", address, stage)


def sines(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show the nested sines that are stored for these controls, and measure the others, short ones first."""
    try:
        values = _panels()["sine"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    largest, depth = values["largest"], values["depth"]
    todo = single_operations.sines(single_operations.libraries(), largest, depth)
    running, saved = _run(stage, (largest, depth), values["again"], todo)
    paint = partial(_paint_sines, stage.store, running, saved, todo, values, controls.text)
    paint_while_it_runs(stage, running, paint)


def _paint_sines(
    store: Store, running: BackgroundTask, saved: bool, todo: Sequence[OperationTask], values: Mapping, controls: str
) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    largest, depth, label = values["largest"], values["depth"], values["library"]
    bandwidths = single_operations.bandwidths(store)
    words = now.note or f"{len(points)} of {len(todo)} sizes and libraries"
    return paint_figures(
        now,
        {
            f"seconds of {depth} sines by {label}, in all ways": view.seconds_chart(
                view.sine_ways_of(points, label), largest, "seconds by size and way", view.SINE_LABELS, "elements"
            ),
            "bytes a second, as a share of what a large copy moves here; above 100 %: in a cache": view.share_chart(
                view.bandwidth_lines(points),
                largest,
                bandwidths,
                _names(todo),
                "elements",
                "share of the memory's bandwidth by size and library",
            ),
        },
        layout.state_line(layout.saved_or(now.state, saved), len(points), len(todo), words, now.problem),
        view.sine_sentence(points, label, depth, bandwidths),
        _below(points) + view.sines_table(points) + view.sines_published(points, label, depth),
        controls,
    )


# 3: transfers.


def transfer_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Largest size, whose ways are drawn, and the two buttons."""
    return _panel("transfer", address, stage)


def transfers(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show the transfers that are stored for these controls, and measure the others, small ones first."""
    try:
        values = _panels()["transfer"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    todo = single_operations.transfers(single_operations.libraries(), values["largest"])
    running, saved = _run(stage, (values["largest"],), values["again"], todo)
    paint = partial(_paint_transfers, running, saved, todo, values["largest"], values["library"], controls.text)
    paint_while_it_runs(stage, running, paint)


def _paint_transfers(
    running: BackgroundTask, saved: bool, todo: Sequence[OperationTask], largest: int, label: str, controls: str
) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    costs = single_operations.transfer_costs([point for point in points if point.task.label == label])
    words = now.note or f"{len(points)} of {len(todo)} sizes and libraries"
    ways = list(view.TRANSFER_WAYS.values())
    return paint_figures(
        now,
        {
            f"seconds of a transfer by {label}; dotted: latency + size ÷ bandwidth": view.seconds_chart(
                view.transfer_lines(points, label), largest, "seconds by size and way", ways, "bytes", [*costs.values()]
            ),
            "seconds of a copy by all libraries": view.seconds_chart(
                view.lines_of(points, COPIED), largest, "seconds by size and library", _names(todo), "bytes"
            ),
        },
        layout.state_line(layout.saved_or(now.state, saved), len(points), len(todo), words, now.problem),
        view.transfer_sentence(points, label, costs),
        _below(points) + view.transfers_table(points) + view.transfers_published(label, costs),
        controls,
    )


# 4: first use.


def first_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Elements of the array, and the two buttons."""
    return _panel("first", address, stage)


def first_uses(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what a first use costs, stage by stage: stored, or measured now in fresh processes."""
    try:
        values = _panels()["first"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    todo = single_operations.first_uses(single_operations.libraries(), values["size"])
    running, saved = _run(stage, (values["size"],), values["again"], todo)
    paint_while_it_runs(stage, running, partial(_paint_first, running, saved, todo, controls.text))


def _paint_first(running: BackgroundTask, saved: bool, todo: Sequence[OperationTask], controls: str) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    words = now.note or f"{len(points)} of {len(todo)} libraries, each in fresh processes"
    return paint_figures(
        now,
        {
            "seconds before the first result, in a fresh process": _with_legend(
                first_use.first_chart(points, _names(todo))
            )
        },
        layout.state_line(layout.saved_or(now.state, saved), len(points), len(todo), words, now.problem),
        first_use.first_sentence(points),
        _below(points) + first_use.first_table(points),
        controls,
    )


# 5: fusion.


def fusion_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Batch size, depth, and the two buttons."""
    return _panel("fusion", address, stage)


def fusions(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show how many kernels XLA makes of a step and of nested sines: stored, or counted now."""
    try:
        values = _panels()["fusion"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    asked = values["size"], values["depth"]
    todo = single_operations.fusions(single_operations.libraries(), *asked)
    running, saved = _run(stage, asked, values["again"], todo)
    paint_while_it_runs(stage, running, partial(_paint_fusions, running, saved, todo, values["depth"], controls.text))


def _paint_fusions(
    running: BackgroundTask, saved: bool, todo: Sequence[OperationTask], depth: int, controls: str
) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    return paint_figures(
        now,
        {"how many, counted from the compiler's text": _with_legend(fusion.fusion_chart(points))},
        layout.state_line(
            layout.saved_or(now.state, saved), len(points), len(todo), now.note or "nothing is timed here", now.problem
        ),
        fusion.fusion_sentence(points, depth),
        view.skipped(points) + fusion.fusion_published(),
        controls,
    )


# 6: overlap.


def overlap_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Elements, depth, pieces, and the two buttons."""
    return _panel("overlap", address, stage)


def overlaps(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show transfers and sines in turn and in pieces, as lanes: stored, or measured now."""
    try:
        values = _panels()["overlap"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    asked = values["size"], values["depth"], values["pieces"]
    todo = single_operations.overlaps(single_operations.libraries(), *asked)
    running, saved = _run(stage, asked, values["again"], todo)
    paint_while_it_runs(stage, running, partial(_paint_overlaps, running, saved, todo, controls.text))


def _paint_overlaps(running: BackgroundTask, saved: bool, todo: Sequence[OperationTask], controls: str) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    most_s = overlap.last_end_s(points)
    figures = {
        f"{task.label}, {way}: the lanes of one run": overlap.lanes_chart(
            next((point for point in points if point.task == task), None), way, most_s
        )
        for task in todo
        for way in (IN_TURN, IN_PIECES)
    }
    words = now.note or f"{len(points)} of {len(todo)} devices"
    return paint_figures(
        now,
        figures,
        layout.state_line(layout.saved_or(now.state, saved), len(points), len(todo), words, now.problem),
        overlap.overlap_sentence(points),
        _below(points) + overlap.overlap_published(),
        controls,
    )


def _with_legend(chart: Chart) -> str:
    """HTML: a chart as high as it is drawn; the place of `layout.figure` has no room for a legend."""
    return mo.as_html(chart).text


def _names(todo: Sequence[OperationTask]) -> list[str]:
    return list(dict.fromkeys(task.label for task in todo))


def _below(points: Sequence[OperationPoint]) -> str:
    """HTML: what was not measured, and what disturbed the others."""
    records = [record for point in points for record in point.records.values()]
    return view.skipped(points) + layout.disturbed(records)
