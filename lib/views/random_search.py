"""Charts and sentences of large sweeps: the density of learning curves, a random search, and what mattered in it.

Never measures and never trains: pandas frames in; charts, frames and sentences out. What is sent to the page has an
upper bound, whatever the number of models.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from lib.formatting import listed, percent
from lib.once import once
from lib.sweeps.importance import (
    ACCURACY,
    EXPLAINS,
    MIN_SETTINGS,
    Dimension,
    importance,
    settings_needed,
    settled,
    tells,
)
from lib.views import curve_density
from lib.views.chart import (
    ERROR_DOMAIN,
    ERRORS,
    FONT,
    LOSS_DOMAIN,
    ROW_COLOR,
    X_MAX,
    Chart,
    labels,
    moved_apart,
    names_y,
    nice_above,
    ordered_palette,
    room,
    styled,
    with_x_max,
    y_of,
)

_HUE, _GREY = "#3a72d8", "#8a8f98"
_BELOW = -0.07  # where the lines of what diverged end: under the axis of accuracy, which they have no place on
_PAPER = "var(--background, Canvas)"  # the page's own, so that a halo of it parts text from lines in light and dark


# Many learning curves.


def curves_density(losses: pd.DataFrame, total_steps: float | None = None, unit: str = "step") -> Chart:
    """Learning curves of many models: the share of models at each loss, and the quantiles over the models.

    From its first loss that is not finite a model counts as above every other: it has a share in no cell, and raises
    the quantiles. At most `curve_density.MAX_COLUMNS` × `LOSS_ROWS` cells are sent to the page, and a point for each
    quantile and column.

    Args:
        losses: One row per point (model, step, loss), all models at the same steps; points still to come may be absent.
        total_steps: End of the x axis, so that it stays while points come; None for the last step that there is.
        unit: What steps are counted in: "step" or "epoch".
    """
    steps, table = curve_density.by_model(losses)
    edges, middles, means = curve_density.in_columns(steps, table)
    lines = curve_density.quantile_rows(middles, means, LOSS_DOMAIN)
    spec = with_x_max(_density_frame(unit), float(total_steps or edges[-1]))
    spec["datasets"] = {
        "cells": _csv(curve_density.cell_rows(edges, means, LOSS_DOMAIN)),
        "quantiles": _csv(lines),
        "ends": moved_apart(_ends(lines, float(edges[-1])), LOSS_DOMAIN),
        "room": room(["median"]),
    }
    n_diverged = int(np.isposinf(table).any(axis=1).sum())
    title = f"training loss by {unit}: share of {len(table):,} models at each loss, and quantiles"
    if n_diverged:
        title += f"; {n_diverged:,} diverged, counted as above the chart"
    return Chart(spec, title)


def _ends(lines: pd.DataFrame, x_end: float) -> list[dict]:
    """A label a quantile: beside the last cells, or where the line left the chart."""
    last = lines.groupby("quantile").tail(1)
    return [
        {"label": "median" if q == 0.5 else f"{100 * q:.0f}\u202f%", "y": y, "x": x_end if x == lines["x"].max() else x}
        for q, x, y in zip(last["quantile"], last["x"], last["y"], strict=True)
    ]


@once
def _density_frame(unit: str) -> dict:
    """Cells whose opacity is the share of models, under quantile lines in the colour of the text."""
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, X_MAX], nice=False),
        axis=alt.Axis(tickCount=5, format=",.6~g"),
        title=unit,
    )
    y = y_of("loss", LOSS_DOMAIN)
    # By the root, because the eye sees a difference between 1 and 4 % that matters more than that between 21 and 24 %.
    shade = alt.Scale(type="sqrt", domain=[0, 0.25], range=[0, 1], clamp=True)
    legend = alt.Legend(
        orient="bottom-left",
        title="share of models",
        values=[0.01, 0.05, 0.25],
        format=".0%",
        direction="horizontal",
        symbolType="square",
        symbolStrokeWidth=0,
        symbolSize=120,
        symbolFillColor=_HUE,
        labelFont=FONT,
        titleFont=FONT,
        labelColor="currentColor",
        titleColor="currentColor",
        titleFontWeight="normal",
        padding=4,
    )
    tooltip = [
        alt.Tooltip("share:Q", title="share of models", format=".2~%"),
        alt.Tooltip("x:Q", title=f"from {unit}", format=",.3~g" if unit == "epoch" else ",.0f"),
        alt.Tooltip("x2:Q", title=f"to {unit}", format=",.3~g" if unit == "epoch" else ",.0f"),
        alt.Tooltip("y:Q", title="loss from", format=".2~g"),
        alt.Tooltip("y2:Q", title="loss to", format=".2~g"),
    ]
    cells = (
        alt.Chart(alt.NamedData("cells", format=alt.CsvDataFormat(type="csv")))
        .mark_rect(color=_HUE, strokeWidth=0)
        .encode(
            x=x, x2="x2:Q", y=y, y2="y2:Q", opacity=alt.Opacity("share:Q", scale=shade, legend=legend), tooltip=tooltip
        )
    )
    line = (
        alt.Chart(alt.NamedData("quantiles", format=alt.CsvDataFormat(type="csv")))
        .mark_line(color="currentColor", clip=True)
        .encode(
            x=x,
            y=y,
            detail="quantile:N",
            strokeWidth=alt.condition("datum.quantile == 0.5", alt.value(2.4), alt.value(1.1)),
            strokeDash=alt.condition("abs(datum.quantile - 0.5) > 0.4", alt.value([3, 3]), alt.value([1, 0])),
        )
    )
    texts = labels(x, y, y_of("loss", LOSS_DOMAIN, "at"), alt.value("currentColor"))
    return styled(alt.layer(cells, line, *texts))


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


# A random search.


def parallel_coordinates(frame: pd.DataFrame, dimensions: Sequence[Dimension]) -> Chart:
    """One line per setting across an axis per dimension; accuracy is the last axis, and the colour.

    Args:
        frame: One row per setting: the dimensions' columns, `accuracy` (0 to 1, NaN while it is not known) and
            `diverged`.
        dimensions: What was drawn, in the order of the axes.
    """
    dimensions = tuple(dimensions)
    # The best is drawn last, on top.
    known = settled(frame).sort_values(["diverged", ACCURACY], ascending=[False, True])
    n_diverged = int(np.count_nonzero(known["diverged"]))
    rows = _line_rows(known, dimensions)
    last = rows.loc[rows["setting"] == len(known) - 1, ["x", "y", "text", "color"]]
    best = last.to_dict("records") if n_diverged < len(known) else []
    spec = dict(_parallel_frame(dimensions))
    spec["datasets"] = {
        "rows": _csv(rows),
        "best": best,
        "ticks": _tick_rows(dimensions, best, n_diverged),
        "axes": [{"x": name, "low": 0, "high": 1} for name in _names(dimensions)],
    }
    title = f"validation accuracy of {len(known):,} settings"
    return Chart(spec, title + (f"; {n_diverged:,} diverged, dashed" if n_diverged else ""))


def _names(dimensions: tuple[Dimension, ...]) -> list[str]:
    return [one.name for one in dimensions] + [ACCURACY]


def _line_rows(known: pd.DataFrame, dimensions: tuple[Dimension, ...]) -> pd.DataFrame:
    """One row per setting and axis.

    x, y from 0 to 1, the next axis' x2 and y2, the value as `text`, and all values for the tooltip.
    """
    diverged = known["diverged"].to_numpy()
    ends = _accuracy_height(known[ACCURACY].to_numpy(dtype=float, na_value=0.0))
    # Squared: from 90 to 99 %, where a search is decided, is half of the axis and should be most of the colours.
    colors = np.where(diverged, _GREY, np.array(ordered_palette(65))[np.rint(64 * ends**2).astype(int)])
    ends[diverged] = _BELOW
    shared = pd.DataFrame({"setting": np.arange(len(known)), "color": colors})
    for one in dimensions:
        shared[one.column] = [one.text(value) for value in known[one.column]]
    shared["outcome"] = [
        "diverged" if failed else percent(value) for failed, value in zip(diverged, known[ACCURACY], strict=True)
    ]
    places = [(one.name, one.height(known[one.column].to_numpy()), shared[one.column]) for one in dimensions]
    places.append((ACCURACY, ends, shared["outcome"]))
    parts = [
        shared.assign(x=name, y=y, text=text, x2=next_name, y2=next_y)
        for (name, y, text), (next_name, next_y, _) in zip(places, [*places[1:], ("", np.nan, None)], strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _accuracy_height(accuracy: np.ndarray) -> np.ndarray:
    """Place on the axis of accuracy, logarithmic in what is missing to 100 %."""
    low, high = np.log(ERROR_DOMAIN)
    missing = np.clip(1 - accuracy, min(ERROR_DOMAIN), max(ERROR_DOMAIN))
    return (np.log(missing) - low) / (high - low)


def _tick_rows(dimensions: tuple[Dimension, ...], best: list[dict], n_diverged: int) -> list[dict]:
    """The axes' values, less those that the best one's would cover or repeat."""
    rows = [
        {"x": one.name, "y": float(y), "text": one.text(value)}
        for one in dimensions
        for value, y in zip(_ticks(one), one.height(np.array(_ticks(one))), strict=True)
    ]
    heights = _accuracy_height(1 - np.array(ERRORS))
    rows += [
        {"x": ACCURACY, "y": float(y), "text": f"{100 * (1 - error):.0f}\u202f%"}
        for y, error in zip(heights, ERRORS, strict=True)
    ]
    rows += [{"x": ACCURACY, "y": _BELOW, "text": "diverged"}] if n_diverged else []
    taken = {row["x"]: (row["y"], row["text"]) for row in best}
    return [row for row in rows if not _covered(row, *taken.get(row["x"], (-1.0, "")))]


def _covered(row: dict, y: float, text: str) -> bool:
    """Whether a tick is the best one's value, or stands on the side of its label and too near."""
    return row["text"] == text or (row["x"] == ACCURACY and abs(row["y"] - y) < 0.06)


def _ticks(one: Dimension) -> list[float]:
    """At most seven values in the range: powers of two or ten, or round steps.

    >>> _ticks(Dimension("batch_size", 8, 512, log=True, whole=True))
    [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]
    >>> _ticks(Dimension("learning_rate", 1e-3, 1, log=True)), _ticks(Dimension("depth", 1, 4, whole=True))
    ([0.001, 0.01, 0.1, 1.0], [1.0, 2.0, 3.0, 4.0])
    """
    if one.log:
        found = (2.0 if one.whole else 10.0) ** np.arange(-40, 40)
        found = found[(found > one.low * 0.999) & (found < one.high * 1.001)]
    else:
        step = max(nice_above((one.high - one.low) / 6), 1.0 if one.whole else 0.0)
        found = step * np.arange(np.ceil(one.low / step), np.floor(one.high / step + 1e-9) + 1)
    if len(found) < 2:
        found = np.array([one.low, one.high])
    return [float(f"{value:.6g}") for value in found[:: -(-len(found) // 7)]]


@once
def _parallel_frame(dimensions: tuple[Dimension, ...]) -> dict:
    """Lines between upright axes; what the pointer is on is drawn thick."""
    names = _names(dimensions)
    axis = alt.Axis(
        orient="top",
        labelAngle=0,
        labelExpr="split(datum.label, ' ')",
        labelPadding=22,
        domain=False,
        ticks=False,
        grid=False,
        labelFontWeight=600,
        labelOverlap=False,
    )
    x = alt.X("x:N", sort=names, scale=alt.Scale(type="point", domain=names, padding=0.5), axis=axis, title=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[_BELOW, 1], nice=False), axis=None)
    tooltip = [alt.Tooltip(f"{one.column}:N", title=one.name) for one in dimensions]
    tooltip.append(alt.Tooltip("outcome:N", title="validation accuracy"))
    base = alt.Chart(alt.NamedData("rows", format=alt.CsvDataFormat(type="csv")))
    base = base.encode(x=x, y=y, detail="setting:N", color=ROW_COLOR)
    pointed = alt.selection_point("pointed", on="pointerover", clear="pointerout", fields=["setting"], empty=False)
    dash = alt.condition("datum.outcome === 'diverged'", alt.value([4, 3]), alt.value([1, 0]))
    thick = alt.condition(pointed, alt.value(3.5), alt.value(1.2))
    seen = alt.condition(pointed, alt.value(1), alt.value(0.65))
    lines = base.mark_line().encode(strokeDash=dash, strokeWidth=thick, opacity=seen)
    # Broad and unseen, so that lines are easily hit; of rules, because a line shows its tooltip at its corners only.
    between = base.transform_filter("datum.y2 !== null").mark_rule(strokeWidth=9, opacity=0.001)
    hit = between.encode(x2="x2:N", y2="y2:Q", tooltip=tooltip).add_params(pointed)
    uprights = alt.Chart(alt.NamedData("axes")).mark_rule(color="currentColor", opacity=0.5)
    uprights = uprights.encode(x=x, y=alt.Y("low:Q", axis=None), y2="high:Q")
    best = alt.Chart(alt.NamedData("best")).encode(x=x, y=y, color=ROW_COLOR)
    winner = best.mark_line(strokeWidth=4.5) + best.mark_point(filled=True, size=70, opacity=1)
    ticks = alt.Chart(alt.NamedData("ticks")).encode(x=x, y=y, text="text:N")
    inner, last = f"datum.x !== '{ACCURACY}'", f"datum.x === '{ACCURACY}'"
    texts = [
        *_with_halo(ticks.transform_filter(inner), align="right", dx=-5, fontSize=10),
        *_with_halo(ticks.transform_filter(last), align="left", dx=7, fontSize=10),
        *_with_halo(best.encode(text="text:N"), align="left", dx=7, fontSize=12, fontWeight=700),
    ]
    spec = styled(alt.layer(uprights, lines, winner, hit, *texts), height=300)
    spec["config"]["padding"] = spec["config"]["padding"] | {"right": 14, "bottom": 10}
    return spec


def _with_halo(texts: alt.Chart, **options: Any) -> list[alt.Chart]:
    """Text over lines: first its outline in the colour of the page."""
    outline = texts.mark_text(stroke=_PAPER, strokeWidth=3.5, strokeJoin="round", color=_PAPER, **options)
    return [outline.encode(color=alt.value(_PAPER)), texts.mark_text(**options).encode(color=alt.value("currentColor"))]


def importance_chart(found: pd.DataFrame) -> Chart:
    """The importance of each dimension as a bar with its 95 % interval, the longest on top.

    Args:
        found: From `lib.sweeps.importance.importance`; empty where there are too few settings. The bars are grey where
            it does not tell which dimension mattered.
    """
    clear = bool(len(found)) and tells(found)
    rows = found.assign(
        text=[_signed(value) for value in found["importance"]],
        at=found["high"].clip(lower=0),
        color=_HUE if clear else _GREY,
    ).to_dict("records")
    spec = dict(_importance_frame(tuple(found["dimension"])))
    spec["datasets"] = {"rows": rows}
    if found.empty:
        return Chart(spec, f"how much each setting mattered: needs {MIN_SETTINGS} settings")
    score = f"out-of-bag R² {_signed(found.attrs['out_of_bag_r2'])}"
    return Chart(spec, f"how much each setting mattered{'' if clear else ' cannot be told'}: {score}")


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


@once
def _importance_frame(names: tuple[str, ...]) -> dict:
    y = names_y(names, 120, "dimension", domain=False, ticks=False, grid=False)
    x_title = "R² lost when it is shuffled, with 95 % interval"
    x = alt.X("importance:Q", title=x_title, axis=alt.Axis(tickCount=4, format="~g"))
    tooltip = ["dimension:N", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("importance", "low", "high"))]
    base = alt.Chart(alt.NamedData("rows")).encode(y=y, tooltip=tooltip)
    bars = base.mark_bar(height=14, opacity=0.85).encode(x=x, color=ROW_COLOR)
    spread = base.mark_rule(strokeWidth=2.5, color="currentColor").encode(x=alt.X("low:Q", title=x_title), x2="high:Q")
    text = base.mark_text(align="left", dx=8, fontSize=11, fontWeight=600, color="currentColor")
    return styled(bars + spread + text.encode(x="at:Q", text="text:N"), height=max(80, 36 * len(names)))


def search_sentence(frame: pd.DataFrame, dimensions: Sequence[Dimension], found: pd.DataFrame | None = None) -> str:
    """The best setting, what mattered, and what failed; empty while no setting is known.

    Args:
        frame: One row per setting, as in `parallel_coordinates`.
        dimensions: What was drawn.
        found: The `importance` of the same rows; None to compute it.
    """
    known = settled(frame)
    if known.empty:
        return ""
    learnt = known[~known["diverged"] & ~known["stuck"]]
    parts = [f"None of {len(known):,} learnt"]
    if len(learnt):
        best = learnt.sort_values(ACCURACY).to_dict("records")[-1]
        parts = [f"Best of {len(known):,}: {percent(best[ACCURACY])} with {setting_in_words(best, dimensions)}"]
        parts.append(_what_mattered(importance(frame, dimensions) if found is None else found, len(dimensions)))
    n_diverged = int(np.count_nonzero(known["diverged"]))
    n_stuck = len(known) - n_diverged - len(learnt)
    parts += [f"{n_diverged:,} diverged"] if n_diverged else []
    parts += [f"{n_stuck:,} did not learn"] if n_stuck else []
    return "; ".join(parts) + "."


def setting_in_words(row: dict, dimensions: Sequence[Dimension]) -> str:
    """The values of a setting, a row of the search, in words; depth and width are said together, as people do."""
    texts = {one.column: f"{one.name} {one.text(row[one.column])}" for one in dimensions}
    if {"depth", "width"} <= texts.keys():
        depth, width = int(row["depth"]), int(row["width"])
        del texts["depth"]
        texts["width"] = f"{depth} hidden layer{'' if depth == 1 else 's'} of {width:,}" if depth else "no hidden layer"
    return ", ".join(texts.values())


def _cannot_tell(found: pd.DataFrame, n_dimensions: int) -> str:
    """Why not, and how many settings would."""
    needed = settings_needed(found, n_dimensions)
    text = f"which setting mattered cannot be told from {found.attrs['settings']:,} of them"
    if len(found):
        low, high = (_signed(end) for end in found.attrs["r2_interval"])
        text += (
            f" (a forest’s out-of-bag R² is {_signed(found.attrs['out_of_bag_r2'])}, 95\u202f% interval {low} to"
            f" {high}, and would have to be surely above {EXPLAINS})"
        )
    return text + (", nor would more tell" if needed is None else f", but probably from {needed:,}")


def _what_mattered(found: pd.DataFrame, n_dimensions: int) -> str:
    """Which dimensions the forest leans on, and no more than their intervals allow."""
    if not tells(found):
        return _cannot_tell(found, n_dimensions)
    first = found.iloc[0]
    evidence = (
        f"(shuffled, a forest’s out-of-bag R² of {found.attrs['out_of_bag_r2']:.2f} falls by {first['importance']:.2f},"
        f" 95\u202f% interval {first['low']:.2f} to {first['high']:.2f})"
    )
    rivals = found["dimension"][1:][found["high"][1:] >= first["low"]].tolist()
    if not rivals:
        return f"{first['dimension']} mattered most {evidence}"
    return (
        f"{first['dimension']} seems to have mattered most {evidence}, but {listed(rivals)} may have mattered as much"
    )
