"""Connects the notebook on single operations to marimo: its sections, each with controls, tasks and a painter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
    libraries,
)
from lib.hardware.cores import usable_cores
from lib.pages import layout
from lib.pages.controls import Controls, dropdown, settings_of, slider
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_figures, paint_while_it_runs, refuse
from lib.pages.url_state import Address, Setting
from lib.profiling.request import COPIED, IN_PIECES, IN_TURN, OPERATION_PRECISIONS, WAITED
from lib.spec import BATCH_SIZES
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.views import first_use, fusion, nested_sines, overlap, recorded_gpus
from lib.views import single_operations as view
from lib.views import transfers as transfers_view
from lib.views.chart import Chart

Values = Mapping[str, Any]
DEPTHS = range(1, 17)  # sines in one another


@dataclass(frozen=True)
class Asked:
    """What a painter is given: the values of the controls, what they ask for, and what is known of it so far."""

    values: Values
    todo: Sequence[OperationTask]
    points: Sequence[OperationPoint]
    store: Store

    @property
    def names(self) -> list[str]:
        """The libraries that are asked, each once."""
        return list(dict.fromkeys(task.label for task in self.todo))


@dataclass(frozen=True)
class Drawing:
    """What a painter gives: figures by their captions, a sentence, and HTML below the notes that all sections have."""

    figures: Mapping[str, Chart | str]
    sentence: str
    below: str


@dataclass(frozen=True)
class Section:
    """A section of the notebook.

    Args:
        controls: Of its panel.
        tasks: What the checked values of the controls ask for, in the order in which it is measured.
        paint: Draws what is known of them.
        counted: What its tasks are, in words.
        timed: Whether it measures seconds; else it counts, which nothing can disturb.
    """

    controls: Controls
    tasks: Callable[[Values], list[OperationTask]]
    paint: Callable[[Asked], Drawing]
    counted: str = "sizes and libraries"
    timed: bool = True


def sections() -> dict[str, Section]:
    """The sections by the name of their panel, in the page's order."""
    labels = single_operations.labels()
    usual = "JAX" if "JAX" in labels else labels[0]
    return {
        "product": Section(
            Controls(
                slider("product.largest", "Rows and columns, up to", 1024, SIDES[1:]),
                dropdown("product.precision", "Precision", "float32", OPERATION_PRECISIONS),
                slider("product.threads", "Threads", usable_cores(), range(1, max(usable_cores(), 2) + 1)),
                dropdown("product.library", "All ways of", usual, labels),
            ),
            _products,
            _paint_products,
        ),
        "sine": Section(
            Controls(
                slider("sine.largest", "Elements, up to", LENGTHS[11], LENGTHS[3:]),
                slider("sine.depth", "Sines in one another", 4, DEPTHS),
                dropdown("sine.library", "All ways of", usual, labels),
            ),
            lambda values: single_operations.sines(libraries(), values["largest"], values["depth"]),
            _paint_sines,
        ),
        "transfer": Section(
            Controls(
                slider("transfer.largest", "Bytes, up to", TRANSFERS_BYTES[11], TRANSFERS_BYTES[2:]),
                dropdown("transfer.library", "All ways of", usual, labels),
            ),
            lambda values: single_operations.transfers(libraries(), values["largest"]),
            _paint_transfers,
        ),
        "first": Section(
            Controls(slider("first.size", "Elements", 1024, FIRST_SIZES)),
            lambda values: single_operations.first_uses(libraries(), values["size"]),
            _paint_first_uses,
            "libraries, each in fresh processes",
        ),
        "fusion": Section(
            Controls(
                slider("fusion.size", "Batch size of the step", 32, BATCH_SIZES),
                slider("fusion.depth", "Sines in one another", 4, DEPTHS),
            ),
            lambda values: single_operations.fusions(libraries(), values["size"], values["depth"]),
            _paint_fusions,
            timed=False,
        ),
        "overlap": Section(
            Controls(
                slider("overlap.size", "Elements", OVERLAP_SIZES[3], OVERLAP_SIZES),
                slider("overlap.depth", "Sines in one another", 4, DEPTHS),
                slider("overlap.pieces", "Pieces", 8, (2, 4, 8, 16, 32)),
            ),
            lambda values: single_operations.overlaps(libraries(), values["size"], values["depth"], values["pieces"]),
            _paint_overlaps,
            "devices",
        ),
    }


def settings() -> dict[str, Setting]:
    """What the controls of all sections may say, by name."""
    return settings_of(section.controls for section in sections().values())


def panel(name: str, address: Address, stage: Stage) -> mo.ui.dictionary:
    """The controls of a section, and the two buttons."""
    again = button("Measure again", "Measure all of it once more")
    return sections()[name].controls.panel(address, stop=stop_button(stage), again=again)


def show(name: str, stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what is stored for a section's controls, and measure the rest, small sizes first."""
    section = sections()[name]
    try:
        values = section.controls.checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    todo = section.tasks(values)

    def make(again: bool):
        known = {} if again else single_operations.found(todo, stage.store.records(Kind.OPERATION))
        return (len(known) == len(todo),), partial(single_operations.measure, todo, known)

    running = stage.begin_if_new(tuple(todo), values["again"], stage.request(), make)
    (saved,) = stage.began_with
    paint_while_it_runs(
        stage, running, partial(_paint, section, Asked(values, todo, (), stage.store), running, saved, controls.text)
    )


def _paint(section: Section, asked: Asked, running: BackgroundTask, saved: bool, controls: str) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, OperationPoint)]
    drawing = section.paint(replace(asked, points=points))
    state, total = layout.saved_or(now.state, saved), len(asked.todo)
    done = f"{len(points)} of {total} {section.counted}" if section.timed else "nothing is timed here"
    records = [record for point in points for record in point.records.values() if section.timed]
    return paint_figures(
        now,
        drawing.figures,
        layout.state_line(state, len(points), total, now.note or done, now.problem),
        drawing.sentence,
        view.skipped(points) + layout.disturbed(records) + drawing.below,
        controls,
    )


def _products(values: Values) -> list[OperationTask]:
    threads = values["threads"] if values["threads"] < usable_cores() else 0
    return single_operations.products(libraries(), values["largest"], values["precision"], threads)


def _paint_products(asked: Asked) -> Drawing:
    points, largest, label = asked.points, asked.values["largest"], asked.values["library"]
    peaks = single_operations.peak_rates(points, asked.store)
    waited, unit = view.lines_of(points, WAITED), "n, of two n × n matrices"
    figures = {
        "seconds of a product, the operands on the device, waited for": view.seconds_chart(
            waited, largest, "seconds by size and library", asked.names, unit
        ),
        f"seconds by {label}, in all ways": view.seconds_chart(
            view.ways_of(points, label), largest, "seconds by size and way", view.WAY_LABELS, unit
        ),
        "share of the float32 peak measured here": view.share_chart(
            waited, largest, peaks, asked.names, unit, "share of the peak by size and library"
        ),
    }
    below = layout.quiet(recorded_gpus.step_note()) + view.products_table(points)
    return Drawing(figures, view.product_sentence(points, label, peaks), below + view.products_published(points, label))


def _paint_sines(asked: Asked) -> Drawing:
    points, (largest, depth, label) = asked.points, (asked.values[name] for name in ("largest", "depth", "library"))
    bandwidths = single_operations.bandwidths(asked.store)
    figures = {
        f"seconds of {depth} sines by {label}, in all ways": view.seconds_chart(
            nested_sines.sine_ways_of(points, label),
            largest,
            "seconds by size and way",
            nested_sines.SINE_LABELS,
            "elements",
        ),
        "bytes a second, as a share of what a large copy moves here; above 100 %: in a cache": view.share_chart(
            nested_sines.bandwidth_lines(points),
            largest,
            bandwidths,
            asked.names,
            "elements",
            "share of the memory's bandwidth by size and library",
        ),
    }
    return Drawing(
        figures,
        nested_sines.sine_sentence(points, label, depth, bandwidths),
        nested_sines.sines_table(points) + nested_sines.sines_published(points, label, depth),
    )


def _paint_transfers(asked: Asked) -> Drawing:
    points, largest, label = asked.points, asked.values["largest"], asked.values["library"]
    costs = single_operations.transfer_costs([point for point in points if point.task.label == label])
    ways = list(transfers_view.TRANSFER_WAYS.values())
    figures = {
        f"seconds of a transfer by {label}; dotted: latency + size ÷ bandwidth": view.seconds_chart(
            transfers_view.transfer_lines(points, label),
            largest,
            "seconds by size and way",
            ways,
            "bytes",
            [*costs.values()],
        ),
        "seconds of a copy by all libraries": view.seconds_chart(
            view.lines_of(points, COPIED), largest, "seconds by size and library", asked.names, "bytes"
        ),
    }
    return Drawing(
        figures,
        transfers_view.transfer_sentence(points, label, costs),
        transfers_view.transfers_table(points) + transfers_view.transfers_published(label, costs),
    )


def _paint_first_uses(asked: Asked) -> Drawing:
    chart = _with_legend(first_use.first_chart(asked.points, asked.names))
    return Drawing(
        {"seconds before the first result, and of compiling what made it, in a fresh process": chart},
        first_use.first_sentence(asked.points),
        first_use.first_table(asked.points),
    )


def _paint_fusions(asked: Asked) -> Drawing:
    return Drawing(
        {"how many, counted from the compiler's text": _with_legend(fusion.fusion_chart(asked.points))},
        fusion.fusion_sentence(asked.points, asked.values["depth"]),
        fusion.fusion_published(),
    )


def _paint_overlaps(asked: Asked) -> Drawing:
    most_s = overlap.last_end_s(asked.points)
    points = {point.task: point for point in asked.points}
    figures = {
        f"{task.label}, {way}: the lanes of one run": overlap.lanes_chart(points.get(task), way, most_s)
        for task in asked.todo
        for way in (IN_TURN, IN_PIECES)
    }
    return Drawing(figures, overlap.overlap_sentence(asked.points), overlap.overlap_published())


def _with_legend(chart: Chart) -> str:
    """HTML: a chart as high as it is drawn; the place of `layout.figure` has no room for a legend."""
    return layout.drawing(chart, chart.title)
