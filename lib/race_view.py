"""The race as people see it: a table of cells by view, one cell in full, and a sentence. Measures nothing."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import altair as alt
import numpy as np
import pandas as pd

from lib import published
from lib.backends import BACKENDS, Way
from lib.charts import styled
from lib.elsewhere import gpu_ways, named, recorded_gpus
from lib.experiments import seconds
from lib.race import Cell, Standing
from lib.recorded import Machine
from lib.roofline import Ceiling, Floor
from lib.spec import N_TRAIN
from lib.targets import Learned, needed
from lib.timing import justified
from lib.verdict import Observed, findings

VIEWS = {
    "seconds an epoch": "seconds",
    "seconds to the target accuracy": "target",
    "times faster than …": "speed-up",
    "cost of 1,000 epochs": "cost",
    "cost to the target accuracy": "target-cost",
}
_PUBLISHED = {
    ("keras-tensorflow", "gpu"): "Keras on TensorFlow, Quadro RTX 5000",
    ("keras-tensorflow", "cpu"): "Keras on TensorFlow, CPU",
    ("numpy", "cpu"): "NumPy, CPU",
    ("jax-step", "cpu"): "JAX, one call a step, CPU",
}


@dataclass(frozen=True)
class Shown:
    """What is shown of the cells, and what it is held against."""

    view: str = "seconds"
    beside: Way | None = None
    price_per_h: float = 0.0
    price_date: str = ""
    target: float = 0.95
    learned: Learned = field(default_factory=dict)


def key_of(cell: Cell) -> str:
    return f"{cell.way.backend}/{cell.way.device}/{cell.batch_size}"


def table(
    ways: Sequence[Way],
    batch_sizes: Sequence[int],
    known: Mapping[Cell, Standing],
    shown: Shown | None = None,
    running: Cell | None = None,
) -> dict:
    """Columns and rows for the widget: measured rows first, the article's published ones below them, in the same form."""
    shown = shown or Shown()
    rows = []
    for way in ways:
        cells = [_cell(Cell(way, size), known, shown, running) for size in batch_sizes]
        rows.append({"label": way.label, "published": False, "cells": cells})
    if shown.view == "seconds":
        for machine in recorded_gpus():
            for way in gpu_ways(machine):
                cells = [_recorded_cell(machine, way, size) for size in batch_sizes]
                rows.append({"label": f"{named(machine)}: {way.label}", "published": True, "cells": cells})
        for (backend, device), by_size in published.EPOCH_S.items():
            cells = [_published_cell(by_size.get(size)) for size in batch_sizes]
            rows.append({"label": f"published: {_PUBLISHED[backend, device]}", "published": True, "cells": cells})
    return {"corner": "batch size", "columns": [f"{size:,}" for size in batch_sizes], "rows": rows}


def _cell(cell: Cell, known: Mapping[Cell, Standing], shown: Shown, running: Cell | None) -> dict:
    standing = known.get(cell)
    if standing is None:
        state, text = ("running", "…") if cell == running else ("waiting", "–")
        return {"text": text, "title": "not measured yet", "state": state, "level": None, "key": ""}
    text, title, value = _FIGURES[shown.view](standing, known, shown)
    state = "waiting" if value is None else "running" if cell == running else "scaled" if standing.scaled else "done"
    # 0.05 s light, 100 s dark
    level = None if value is None else float(np.clip((np.log10(max(value, 1e-3)) + 1.3) / 3.3, 0, 1))
    level = None if level is None else round(level, 3)
    return {"text": text, "title": title, "state": state, "level": level, "key": key_of(cell)}


Figure = tuple[str, str, float | None]  # text, explanation, value that sets the ground's strength


def _epoch(standing: Standing, _known: Mapping[Cell, Standing], _shown: Shown) -> Figure:
    low, middle, high = standing.quartiles_s
    title = f"{seconds(middle)} an epoch ({seconds(low)} to {seconds(high)}), {len(standing.epoch_s)} epochs in {_visits(standing)}"
    return justified(middle, low, high, at_most=3), title, middle


def _speed_up(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    other = known.get(Cell(shown.beside, standing.cell.batch_size)) if shown.beside is not None else None
    if other is None:
        return "–", "the other one is not measured yet", None
    low, middle, high = standing.quartiles_s
    ratios = (other.quartiles_s[0] / high, other.quartiles_s[1] / middle, other.quartiles_s[2] / low)
    title = f"{ratios[1]:.3g} times faster ({ratios[0]:.3g} to {ratios[2]:.3g}, from the quartiles of both)"
    return f"{ratios[1]:.2g} ×", title, middle / other.quartiles_s[1]


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
    return justified(value, *ends, at_most=3) + share, counts, value


def _evaluation_s(standing: Standing, known: Mapping[Cell, Standing]) -> float:
    """Of this cell, or of the same way at another batch size, which evaluation does not depend on."""
    same_way = [
        other.evaluation_s for cell, other in known.items() if cell.way == standing.cell.way and other.evaluation_s
    ]
    return standing.evaluation_s or (float(np.median(same_way)) if same_way else 0.0)


def _priced(figure: Figure, times: float, what: str, shown: Shown) -> Figure:
    text, title, value = figure
    if value is None:
        return text, title, None
    if not shown.price_per_h:
        return "set a price", title, value
    dated = f"at {shown.price_per_h:g} $ an hour" + (f", price of {shown.price_date}" if shown.price_date else "")
    return f"${times * value / 3600 * shown.price_per_h:.3g}", f"{what} {dated}; {title}", value


def _cost(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    return _priced(_epoch(standing, known, shown), 1000, "1,000 epochs", shown)


def _target_cost(standing: Standing, known: Mapping[Cell, Standing], shown: Shown) -> Figure:
    return _priced(_to_target(standing, known, shown), 1, "one training", shown)


_FIGURES: dict[str, Callable[[Standing, Mapping[Cell, Standing], Shown], Figure]] = {
    "seconds": _epoch, "target": _to_target, "speed-up": _speed_up, "cost": _cost, "target-cost": _target_cost,
}  # fmt: skip


def _recorded_cell(machine: Machine, way: Way, size: int) -> dict:
    known = machine.epoch(way, size)
    text = justified(known.middle, known.low, known.high, at_most=3) if known else "–"
    title = f"{named(machine)}, not measured here"
    return {"text": text, "title": title, "state": "published", "level": None, "key": ""}


def _published_cell(value_s: float | None) -> dict:
    text = "" if value_s is None else f"{value_s:g} s"
    return {"text": text, "title": "published, not measured here", "state": "published", "level": None, "key": ""}


def _visits(standing: Standing) -> str:
    return f"{standing.visits} visit{'s' if standing.visits != 1 else ''}"


def sentence(known: Mapping[Cell, Standing], shown: Shown | None = None) -> str:
    """What the race says so far, from its rows."""
    if not known:
        return ""
    shown = shown or Shown()
    best = min(known.values(), key=lambda standing: standing.quartiles_s[1])
    parts = [
        f"Fastest so far: {best.cell.way.label} at batch size {best.cell.batch_size:,}, {seconds(best.quartiles_s[1])} an epoch."
    ]
    pair = [known.get(Cell(Way(key), 32)) for key in ("keras-tensorflow", "jax-epoch")]
    if pair[0] is not None and pair[1] is not None:
        ratio = pair[0].quartiles_s[1] / pair[1].quartiles_s[1]
        parts.append(
            f"At batch size 32 the same epoch takes Keras on TensorFlow {ratio:.1f} times as long as JAX in one call."
        )
    to_target = {cell: value for cell, one in known.items() if (value := _to_target(one, known, shown)[2]) is not None}
    if to_target:
        cell = min(to_target, key=to_target.__getitem__)
        parts.append(
            f"To {shown.target:.0%} accuracy the fastest is {cell.way.label} at batch size {cell.batch_size:,}: {seconds(to_target[cell])}, which is "
            "what counts."
        )
    else:
        remarks = findings(Observed(batch_sizes=tuple({cell.batch_size for cell in known})))
        parts += [finding.text for finding in remarks]
    return " ".join(parts)


def detail(standing: Standing | None, floor: Floor | None = None) -> str:
    """One cell in full, as HTML: its figure, its warnings, its verdict."""
    if standing is None:
        return '<p class="lab-note">Choose a cell of the table to see its epochs, their spread and a verdict.</p>'
    low, middle, high = standing.quartiles_s
    lines = [
        f"<b>{html.escape(standing.cell.way.label)}</b>, batch size {standing.cell.batch_size:,}: {justified(middle, low, high)} an epoch "
        f"(quartiles {seconds(low)} to {seconds(high)}, {len(standing.epoch_s)} epochs in {_visits(standing)}, last {standing.measured_at[:16]} UTC)."
    ]
    if floor is not None:
        steps = N_TRAIN // standing.cell.batch_size
        lines.append(
            f"The least that this machine could take is {seconds(steps * floor.seconds)} an epoch, set by {floor.by.value}: the cell stands at "
            f"{middle / (steps * floor.seconds):.2g} times that; the rest is overhead."
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


def blocks_chart(standing: Standing) -> dict:
    """Every epoch's seconds in the order in which they were measured, with the quartiles as a band."""
    low, middle, high = standing.quartiles_s
    rows = pd.DataFrame({"epoch": np.arange(1, len(standing.epoch_s) + 1), "seconds": standing.epoch_s})
    color = BACKENDS[standing.cell.way.backend].color
    band = alt.Chart(pd.DataFrame({"low": [low], "high": [high]})).mark_rect(opacity=0.15, color=color)
    y = alt.Y("seconds:Q", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5), title="seconds an epoch")
    x = alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, format="d"), title="timed epoch, in order")
    points = alt.Chart(rows).mark_point(filled=True, size=50, color=color, opacity=1)
    rule = alt.Chart(pd.DataFrame({"seconds": [middle]})).mark_rule(color=color)
    chart = band.encode(y=alt.Y("low:Q", title="seconds an epoch"), y2="high:Q") + rule.encode(y=y)
    return styled(
        chart + points.encode(x=x, y=y, tooltip=["epoch", alt.Tooltip("seconds:Q", format=".4g")]), height=160
    )
