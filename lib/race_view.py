"""The race as people see it: a table of cells by view, one cell in full, and a sentence. Measures nothing."""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from lib import published
from lib.backends import BACKENDS, Way
from lib.charts import styled
from lib.experiments import seconds
from lib.race import Cell, Standing
from lib.roofline import Ceiling, Floor
from lib.spec import N_TRAIN
from lib.timing import justified

VIEWS = {
    "seconds an epoch": "seconds",
    "times faster than …": "speed-up",
    "cost of 1,000 epochs": "cost",
}
_PUBLISHED = {
    ("keras-tensorflow", "gpu"): "Keras on TensorFlow, Quadro RTX 5000",
    ("keras-tensorflow", "cpu"): "Keras on TensorFlow, CPU",
    ("numpy", "cpu"): "NumPy, CPU",
    ("jax-step", "cpu"): "JAX, one call a step, CPU",
}


def key_of(cell: Cell) -> str:
    return f"{cell.way.backend}/{cell.way.device}/{cell.batch_size}"


def table(
    ways: Sequence[Way],
    batch_sizes: Sequence[int],
    known: Mapping[Cell, Standing],
    view: str = "seconds",
    beside: Way | None = None,
    price_per_h: float = 0.0,
    running: Cell | None = None,
) -> dict:
    """Columns and rows for the widget: measured rows first, the article's published ones below them, in the same form."""
    rows = []
    for way in ways:
        cells = [_cell(Cell(way, size), known, view, beside, price_per_h, running) for size in batch_sizes]
        rows.append({"label": way.label, "published": False, "cells": cells})
    if view == "seconds":
        for (backend, device), by_size in published.EPOCH_S.items():
            cells = [_published_cell(by_size.get(size)) for size in batch_sizes]
            rows.append({"label": f"published: {_PUBLISHED[backend, device]}", "published": True, "cells": cells})
    return {"corner": "batch size", "columns": [f"{size:,}" for size in batch_sizes], "rows": rows}


def _cell(
    cell: Cell, known: Mapping[Cell, Standing], view: str, beside: Way | None, price_per_h: float, running: Cell | None
) -> dict:
    standing = known.get(cell)
    state = "running" if cell == running else "waiting" if standing is None else "scaled" if standing.scaled else "done"
    if standing is None:
        return {
            "text": "…" if cell == running else "–",
            "title": "not measured yet",
            "state": state,
            "level": None,
            "key": "",
        }
    low, middle, high = standing.quartiles_s
    title = f"{seconds(middle)} an epoch ({seconds(low)} to {seconds(high)}), {len(standing.epoch_s)} epochs in {_visits(standing)}"
    text, value = justified(middle, max(high - low, 0.01 * middle)), middle
    if view == "cost":
        dollars = 1000 * middle / 3600 * price_per_h
        text = f"${dollars:.3g}" if price_per_h else "set a price"
    elif view == "speed-up":
        other = known.get(Cell(beside, cell.batch_size)) if beside is not None else None
        if other is None:
            return {
                "text": "–",
                "title": "the other one is not measured yet",
                "state": "waiting",
                "level": None,
                "key": key_of(cell),
            }
        value = middle / other.quartiles_s[1]
        ratios = (other.quartiles_s[0] / high, other.quartiles_s[1] / middle, other.quartiles_s[2] / low)
        text = f"{ratios[1]:.2g} ×"
        title = f"{ratios[1]:.3g} times faster ({ratios[0]:.3g} to {ratios[2]:.3g}, from the quartiles of both)"
    level = float(np.clip((np.log10(max(value, 1e-3)) + 1.3) / 3.3, 0, 1))  # 0.05 s light, 100 s dark
    return {"text": text, "title": title, "state": state, "level": round(level, 3), "key": key_of(cell)}


def _published_cell(value_s: float | None) -> dict:
    text = "" if value_s is None else f"{value_s:g} s"
    return {"text": text, "title": "published, not measured here", "state": "published", "level": None, "key": ""}


def _visits(standing: Standing) -> str:
    return f"{standing.visits} visit{'s' if standing.visits != 1 else ''}"


def sentence(known: Mapping[Cell, Standing]) -> str:
    """What the race says so far, from its rows."""
    if not known:
        return ""
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
    parts.append("Larger batches make faster epochs with fewer steps: they need more of them for the same accuracy.")
    return " ".join(parts)


def detail(standing: Standing | None, floor: Floor | None = None) -> str:
    """One cell in full, as HTML: its figure, its warnings, its verdict."""
    if standing is None:
        return '<p class="lab-note">Choose a cell of the table to see its epochs, their spread and a verdict.</p>'
    low, middle, high = standing.quartiles_s
    lines = [
        f"<b>{html.escape(standing.cell.way.label)}</b>, batch size {standing.cell.batch_size:,}: {justified(middle, high - low)} an epoch "
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
