"""The race as a reader sees it: a table of cells by view, one cell in full, and a sentence. Measures nothing."""

import html
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import altair as alt
import numpy as np
import pandas as pd

from lib.backends.registry import BACKENDS, Runtime
from lib.experiments import published
from lib.experiments.backend_race import Cell, Standing
from lib.experiments.kept_machines import gpus_elsewhere
from lib.experiments.recorded_machines import Machine, gpu_runtimes, named
from lib.experiments.time_to_accuracy import Learned, needed
from lib.formatting import justified, percent, seconds
from lib.spec import N_TRAIN
from lib.timing.comparison import Verdict
from lib.timing.diagnosis import Observed, findings
from lib.timing.roofline import Ceiling, Floor
from lib.views.chart import Chart, styled

VIEWS = {
    "seconds per epoch": "seconds",
    "seconds to the target accuracy": "target",
    "times faster than …": "speed-up",
    "cost of 1,000 epochs": "cost",
    "cost to the target accuracy": "target-cost",
}
SCALES = {
    "seconds": "an epoch; the stronger the colour, the longer",
    "target": "to the target accuracy; the stronger the colour, the longer",
    "speed-up": "as fast; the stronger the colour, the faster",
    "cost": "for 1,000 epochs; the stronger the colour, the dearer",
    "target-cost": "to the target accuracy; the stronger the colour, the dearer",
}
LEAST_GROUND = 0.15  # of the darkest: a measured cell is never without ground
_PUBLISHED = {
    ("keras-tensorflow", "gpu"): "Keras on TensorFlow, Quadro RTX 5000",
    ("keras-tensorflow", "cpu"): "Keras on TensorFlow, CPU",
    ("numpy", "cpu"): "NumPy, CPU",
    ("jax-step", "cpu"): "JAX, one call a step, CPU",
}


@dataclass(frozen=True)
class Shown:
    """Which view of the cells is shown, and what it needs: a runtime to compare with, a price, a target accuracy."""

    view: str = "seconds"
    beside: Runtime | None = None
    price_per_h: float = 0.0
    price_date: str = ""
    target: float = 0.95
    learned: Learned = field(default_factory=dict)


def key_of(cell: Cell) -> str:
    """A cell's name in the widget: `runtime/batch size`."""
    return f"{cell.runtime.address}/{cell.batch_size}"


def table(
    runtimes: Sequence[Runtime],
    batch_sizes: Sequence[int],
    known: Mapping[Cell, Standing],
    shown: Shown | None = None,
    running: Cell | None = None,
    failed: Mapping[Cell, str] | None = None,
) -> dict:
    """Columns and rows for the widget: measured rows first, recorded and published ones below them in the same form.

    Args:
        runtimes: A row each.
        batch_sizes: A column each.
        known: Standings of the cells that were measured.
        shown: View and settings; None for seconds per epoch.
        running: The cell that is measured now, if any.
        failed: Why a cell could not be measured.

    Returns:
        `corner`, `columns`, `rows` and `scale`. A cell's `level` is its figure's place on the view's own logarithmic
        scale, from `LEAST_GROUND` to 1, and None where it was not measured; `best` marks the best figure of a column.
    """
    shown = shown or Shown()
    figures, values = _figures(known, shown)
    best = _best_of_columns(values, shown)
    rows = []
    for runtime in runtimes:
        cells = []
        for cell in (Cell(runtime, size) for size in batch_sizes):
            level = _level(values[cell], values.values()) if cell in values else None
            shown_cell = _cell(cell, figures.get(cell), known.get(cell), running, (failed or {}).get(cell))
            cells.append(shown_cell | {"level": level, "best": cell in best})
        rows.append({"label": _label(runtime), "published": False, "cells": cells})
    if shown.view == "seconds":
        for machine in gpus_elsewhere():
            for runtime in gpu_runtimes(machine):
                if any(machine.epoch(runtime, size) for size in batch_sizes):
                    cells = [_recorded_cell(machine, runtime, size) for size in batch_sizes]
                    rows.append({"label": f"{named(machine)}: {_label(runtime)}", "published": True, "cells": cells})
        for (backend, device), by_size in published.EPOCH_S.items():
            cells = [_published_cell(by_size.get(size)) for size in batch_sizes]
            rows.append({"label": f"published: {_PUBLISHED[backend, device]}", "published": True, "cells": cells})
    scale = _scale(figures, values, shown)
    return {"corner": "batch size", "columns": [f"{size:,}" for size in batch_sizes], "rows": rows, "scale": scale}


def _label(runtime: Runtime) -> str:
    """A runtime's name; on a card also where its batches come from, as backends differ in that and are compared."""
    backend = BACKENDS.get(runtime.backend)
    feeds = backend is not None and runtime.device != "cpu" and not backend.holds_images
    return f"{runtime.label}, each batch from the host" if feeds else runtime.label


def _figures(known: Mapping[Cell, Standing], shown: Shown) -> tuple[dict[Cell, "Figure"], dict[Cell, float]]:
    """The chosen view's figure of each cell, and the values of those that have one."""
    figures = {cell: _FIGURES[shown.view](standing, known, shown) for cell, standing in known.items()}
    return figures, {cell: value for cell, (_, _, value) in figures.items() if value is not None}


def _best_of_columns(values: Mapping[Cell, float], shown: Shown) -> set[Cell]:
    """Of each batch size the cell with the best figure."""
    best: dict[int, Cell] = {}
    for cell in sorted(values, key=values.__getitem__, reverse=shown.view == "speed-up"):
        best.setdefault(cell.batch_size, cell)
    return set(best.values())


def _level(value: float, values: Collection[float]) -> float:
    low, high = np.log(min(values)), np.log(max(values))
    place = (np.log(value) - low) / (high - low) if high > low else 1.0
    return round(LEAST_GROUND + (1 - LEAST_GROUND) * float(place), 3)


def _scale(figures: Mapping[Cell, "Figure"], values: Mapping[Cell, float], shown: Shown) -> dict | None:
    """What the ground of the cells means: the figures at its two ends, and which of them is wanted."""
    if not values:
        return None
    low, high = (figures[end(values, key=values.__getitem__)][0] for end in (min, max))
    return {"low": low, "high": high, "words": SCALES[shown.view]}


def _cell(
    cell: Cell, figure: "Figure | None", standing: Standing | None, running: Cell | None, why_not: str | None
) -> dict:
    if figure is None or standing is None:
        if cell == running:
            return {"text": "…", "title": "not measured yet", "state": "running", "key": ""}
        text, title = ("–", "not measured yet") if why_not is None else ("failed", why_not)
        return {"text": text, "title": title, "state": "waiting", "key": ""}
    text, title, value = figure
    state = "waiting" if value is None else "running" if cell == running else "scaled" if standing.scaled else "done"
    return {"text": text, "title": title, "state": state, "key": key_of(cell)}


Figure = tuple[str, str, float | None]  # text, explanation, and the value that the scale of the view is made of


def _epoch(standing: Standing, _known: Mapping[Cell, Standing], _shown: Shown) -> Figure:
    low, middle, high = standing.quartiles_s
    title = (
        f"{seconds(middle)} per epoch ({seconds(low)} to {seconds(high)}), {len(standing.epoch_s)} epochs in"
        f" {_repetitions(standing)}"
    )
    return justified(middle, low, high), title, middle


def _speed_up(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    other = known.get(Cell(shown.beside, standing.cell.batch_size)) if shown.beside is not None else None
    if other is None:
        return "–", "the other one is not measured yet", None
    comparison = other.repeated.beside(standing.repeated)
    verdict = {
        Verdict.SLOWER: "faster",
        Verdict.FASTER: "slower",
        Verdict.SAME: "the same",
        Verdict.UNCLEAR: "not told apart",
    }
    interval = (
        f" ({comparison.low:.3g} to {comparison.high:.3g}, from {comparison.n} repetitions of each)"
        if comparison.n > 1
        else ", without two repetitions of each in one session"
    )
    title = f"{comparison.ratio:.3g} times as fast{interval}: {verdict[comparison.verdict]}"
    return f"{comparison.ratio:.2g} ×", title, comparison.ratio


def _to_target(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    """Epochs of the runs that got there, times the seconds of an epoch with its evaluation."""
    counted = needed(shown.learned, standing.cell.training.network, standing.cell.batch_size, shown.target)
    if counted is None:
        return "–", "the epochs that it needs are not counted yet: they come after the race", None
    words = f"{shown.target:.0%} accuracy: {counted.words}"
    if not counted.reached:
        return "not reached", words, None
    low, middle, high = standing.quartiles_s
    evaluation_s = _evaluation_s(standing, known)
    epochs = counted.reached[len(counted.reached) // 2]
    value = epochs * (middle + evaluation_s)
    ends = counted.reached[0] * (low + evaluation_s), counted.reached[-1] * (high + evaluation_s)
    share = "" if len(counted.reached) == len(counted.epochs) else f" ({len(counted.reached)} of {len(counted.epochs)})"
    counts = (
        f"{seconds(value)} ({seconds(ends[0])} to {seconds(ends[1])}); evaluation after each epoch is counted; {words}"
    )
    return justified(value, *ends) + share, counts, value


def _evaluation_s(standing: Standing, known: Mapping[Cell, Standing]) -> float:
    """Of this cell, or of the same runtime at another batch size, which evaluation does not depend on."""
    same_runtime = [
        other.evaluation_s
        for cell, other in known.items()
        if cell.runtime == standing.cell.runtime and other.evaluation_s
    ]
    return standing.evaluation_s or (float(np.median(same_runtime)) if same_runtime else 0.0)


def _priced(figure: Figure, times: float, what: str, shown: Shown) -> Figure:
    text, title, value = figure
    if value is None:
        return text, title, None
    if not shown.price_per_h:
        return "set a price", title, None
    dated = f"at ${shown.price_per_h:g} per hour" + (f", price of {shown.price_date}" if shown.price_date else "")
    dollars = times * value / 3600 * shown.price_per_h
    return f"${dollars:.3g}", f"{what} {dated}; {title}", dollars


def _cost(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    return _priced(_epoch(standing, known, shown), 1000, "1,000 epochs", shown)


def _target_cost(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    return _priced(_to_target(standing, known, shown), 1, "one training", shown)


_FIGURES: dict[str, Callable[[Standing, Mapping[Cell, Standing], Shown], Figure]] = {
    "seconds": _epoch,
    "target": _to_target,
    "speed-up": _speed_up,
    "cost": _cost,
    "target-cost": _target_cost,
}


def _recorded_cell(machine: Machine, runtime: Runtime, size: int) -> dict:
    known = machine.epoch(runtime, size)
    text = justified(known.middle, known.low, known.high) if known else "–"
    return _cell_of_others(text, f"{named(machine)}, not measured here")


def _published_cell(value_s: float | None) -> dict:
    return _cell_of_others("" if value_s is None else f"{value_s:g} s", "published, not measured here")


def _cell_of_others(text: str, title: str) -> dict:
    return {"text": text, "title": title, "state": "published", "level": None, "best": False, "key": ""}


def _repetitions(standing: Standing) -> str:
    return f"{standing.repetitions} repetition{'s' if standing.repetitions != 1 else ''}"


def sentence(known: Mapping[Cell, Standing], shown: Shown | None = None) -> str:
    """What the chosen view shows so far; empty before any cell was measured."""
    if not known:
        return ""
    shown = shown or Shown()
    figures, values = _figures(known, shown)
    if not values:
        return _why_nothing(shown)
    cell = (max if shown.view == "speed-up" else min)(values, key=values.__getitem__)
    comparison = _BEST[shown.view].format(
        runtime=cell.runtime.label,
        size=f"{cell.batch_size:,}",
        figure=figures[cell][0],
        beside=shown.beside.label if shown.beside is not None else "",
        target=f"{shown.target:.0%}",
    )
    return " ".join([comparison, *(_remarks(known) if shown.view == "seconds" else [])])


_BEST = {
    "seconds": "Fastest so far: {runtime} at batch size {size}, {figure} per epoch.",
    "target": "To {target} accuracy the fastest is {runtime} at batch size {size}: {figure}, which is what counts.",
    "speed-up": "Farthest ahead of {beside} at the same batch size: {runtime} at {size}, {figure} as fast.",
    "cost": "Cheapest so far: {runtime} at batch size {size}, {figure} for 1,000 epochs.",
    "target-cost": "To {target} accuracy the cheapest is {runtime} at batch size {size}: {figure}.",
}


def _why_nothing(shown: Shown) -> str:
    """What the chosen view still needs."""
    if shown.view in ("cost", "target-cost") and not shown.price_per_h:
        return "A cost needs the price of this machine: set the $ per hour above."
    if shown.view == "speed-up":
        beside = f"{shown.beside.label} is not measured yet" if shown.beside is not None else "nothing is chosen"
        return f"There is nothing to be faster than: {beside}."
    return (
        "How many epochs each batch size needs is counted after the race: until then nobody knows who is first at the"
        " accuracy."
    )


def _remarks(known: Mapping[Cell, Standing]) -> list[str]:
    """What seconds per epoch show beside the fastest, and what they hide."""
    parts = []
    pair = [known.get(Cell(Runtime(key), 32)) for key in ("keras-tensorflow", "jax-epoch")]
    if pair[0] is not None and pair[1] is not None:
        comparison = pair[0].repeated.beside(pair[1].repeated)
        unclear = " (not told apart yet)" if comparison.verdict is Verdict.UNCLEAR else ""
        parts.append(
            f"At batch size 32 the same epoch takes Keras on TensorFlow {comparison.ratio:.1f} times as long as JAX in"
            f" one call{unclear}."
        )
    compared_rows = Observed(
        batch_sizes=tuple({cell.batch_size for cell in known}),
        precisions=tuple({cell.runtime.precision for cell in known}),
    )
    remarks = findings(compared_rows)
    return parts + [finding.text for finding in remarks]


def detail(standing: Standing | None, floor: Floor | None = None) -> str:
    """One cell in full, as HTML: its figure, how far it is from its floor, its findings and its warnings.

    Args:
        standing: None where no measured cell is chosen.
        floor: The least time of a step on this machine; None where the peak rates were not measured.
    """
    if standing is None:
        return '<p class="lab-note">Choose a cell of the table to see its epochs, their spread and a verdict.</p>'
    low, middle, high = standing.quartiles_s
    lines = [
        f"<b>{html.escape(standing.cell.runtime.label)}</b>, batch size {standing.cell.batch_size:,}:"
        f" {justified(middle, low, high)} per epoch (quartiles {seconds(low)} to {seconds(high)},"
        f" {len(standing.epoch_s)} epochs in {_repetitions(standing)}, last {standing.measured_at[:16]} UTC)."
    ]
    if standing.first_accuracy is not None:
        lines.append(
            f"After its first epoch it names {percent(standing.first_accuracy)} of the validation images, with products"
            f" in {standing.cell.runtime.precision}."
        )
    if floor is not None:
        least_s = N_TRAIN // standing.cell.batch_size * floor.seconds
        rest = "the rest is overhead" if middle >= least_s else "it does less, as where zeros are left out"
        lines.append(
            f"The least that this machine could take for all products is {seconds(least_s)} per epoch, set by"
            f" {floor.by.value}: the cell stands at {middle / least_s:.2g} times that; {rest}."
        )
        if not floor.cache_known and floor.by is Ceiling.COPY:
            lines.append(
                "The size of this device's cache is not known, so all parameters count as moved in each step: where"
                " they fit into it, a step can take less than that least."
            )
    if standing.scaled:
        lines.append("An epoch takes so long here that half a second of steps was measured at a time, and scaled.")
    lines += [
        html.escape(finding.text)
        for finding in standing.findings(
            None if floor is None else floor.parts_s[Ceiling.PRODUCT] * (N_TRAIN // standing.cell.batch_size)
        )
    ]
    lines += [html.escape(warning[:1].upper() + warning[1:] + ".") for warning in standing.warnings]
    return "".join(f'<p class="lab-note">{line}</p>' for line in lines)


def blocks_chart(standing: Standing) -> Chart:
    """Seconds of each timed epoch in the order of measurement, with the quartiles as a band."""
    low, middle, high = standing.quartiles_s
    rows = pd.DataFrame({"epoch": np.arange(1, len(standing.epoch_s) + 1), "seconds": standing.epoch_s})
    color = BACKENDS[standing.cell.runtime.backend].color
    band = alt.Chart(pd.DataFrame({"low": [low], "high": [high]})).mark_rect(opacity=0.15, color=color)
    y = alt.Y("seconds:Q", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5), title="seconds per epoch")
    x = alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, format="d"), title="timed epoch, in order")
    points = alt.Chart(rows).mark_point(filled=True, size=50, color=color, opacity=1)
    rule = alt.Chart(pd.DataFrame({"seconds": [middle]})).mark_rule(color=color)
    chart = band.encode(y=alt.Y("low:Q", title="seconds per epoch"), y2="high:Q") + rule.encode(y=y)
    chart += points.encode(x=x, y=y, tooltip=["epoch", alt.Tooltip("seconds:Q", format=".4g")])
    return Chart(styled(chart, height=160), "epochs")
