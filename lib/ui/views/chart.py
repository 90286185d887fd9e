"""What all charts share: frame, palette, axes, labels that do not overlap, fonts and colours. Independent of marimo.

Text and axes use the page's text colour, so one chart fits light and dark.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.ui.views.chart_text import ChartText, described


def _late(*names: str) -> ModuleType:
    """The last of these modules; each use of a name in it imports all of them, in this order.

    Importing on use speeds up a page's first figure. pandas precedes Altair, which looks it up where another thread may
    have imported only half of it.
    """
    module = ModuleType(names[-1])
    module.__getattr__ = lambda used: getattr([import_module(name) for name in names][-1], used)
    return module


if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
else:
    alt, pd = _late("pandas", "altair"), _late("pandas")

HEIGHT = 240
AROUND = 62  # pixels of a drawn chart above and below its plot: padding, axis labels and title
LABEL_GAP = 14  # pixels between the centres of neighbouring labels
LABEL_LIMIT = 96  # pixels; longer labels are cut, and their tooltip says the rest
# Cool to warm at nearly equal lightness: ordered, distinct without red-green vision, legible on light and dark.
_ORDERED = ("#3a72d8", "#7b62d3", "#b04fb4", "#d04a78", "#d1623a", "#b9801c")
ERRORS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # ticks of the accuracy axis, which is logarithmic in 1 − accuracy
ERROR_DOMAIN = (0.92, 0.01)
LOSS_DOMAIN = (0.02, 8.0)
MAX_TICKS = 8  # that fit on a logarithmic axis
# Share of a palette colour in text: gives a contrast of 4.5 on the page's white and dark backgrounds.
INK_SHARE = 0.7
# Placeholder for the end of an x axis in a frame that is built once. A parameter for `domainMax` would also do, but
# Vega would then compute the extent of rows that are not there yet, and warn on the console.
X_MAX = -987654.0
FONT = "PT Sans, system-ui, sans-serif"  # the page's


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification that the page draws, and `text`, which screen readers read instead.

    The text is not part of the specification, so that it changes with each frame even where the drawing is kept.
    `states` holds the state of each unfinished series, such as “training”.
    """

    spec: dict
    title: str
    states: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def text(self) -> ChartText:
        return described(self.spec, self.states)

    @property
    def height_px(self) -> int:
        """Height of the drawn chart, reserved in advance so that nothing below it moves."""
        return self.spec["height"] + AROUND

    @property
    def as_json(self) -> str:
        return json.dumps(self.spec | {"description": self.title}, separators=(",", ":"))


@cache
def ordered_palette(count: int) -> tuple[str, ...]:
    """`count` colours along the ordered palette, as `#rrggbb`.

    >>> ordered_palette(2)
    ('#3a72d8', '#b9801c')
    """
    anchors = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in _ORDERED])
    at = np.linspace(0, len(anchors) - 1, max(count, 2))[:count]
    mixed = [[int(round(np.interp(x, range(len(anchors)), anchors[:, channel]))) for channel in range(3)] for x in at]
    return tuple("#" + "".join(f"{value:02x}" for value in color) for color in mixed)


def decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around these values, as ends of a logarithmic axis; 0.01 and 100 without values.

    >>> decades([0.3, 20.0])
    (0.1, 100.0)
    """
    if not values:
        return 0.01, 100.0
    return float(10 ** np.floor(np.log10(min(values) * 0.95))), float(10 ** np.ceil(np.log10(max(values) * 1.05)))


def nice_above(value: float) -> float:
    """The next of 1, 2, 3, 5, 7 × 10ⁿ, at least 0.001, so that an axis rarely changes during a run.

    >>> nice_above(0.8), nice_above(1.2), nice_above(40)
    (1.0, 2.0, 50.0)
    """
    power = 10.0 ** np.floor(np.log10(max(value, 1e-3)))
    return float(next(step * power for step in (1, 2, 3, 5, 7, 10) if step * power >= value))


def spread_labels(positions: Sequence[float], gap: float, low: float = -np.inf, high: float = np.inf) -> list[float]:
    """Move positions at least `gap` apart, in their order, none further than needed.

    Args:
        positions: In any order, which the result keeps.
        gap: Least distance between neighbours.
        low: Lower limit, as long as there is room for all.
        high: Upper limit, likewise.

    >>> spread_labels([0.5, 0.5, 0.9], 0.1)
    [0.45, 0.55, 0.9]
    >>> spread_labels([0.0, 0.0], 0.1, 0.0, 1.0)
    [0.0, 0.1]
    """

    order = np.argsort(positions, kind="stable")
    steps = gap * np.arange(len(order))
    wanted = np.asarray(positions, dtype=float)[order] - steps
    # Halfway between moving labels only up and moving them only down, so that the largest move is as small as can be.
    level = (np.maximum.accumulate(wanted) + np.minimum.accumulate(wanted[::-1])[::-1]) / 2
    within = np.maximum(np.minimum(level, high - gap * (len(order) - 1)), low)
    placed = np.empty(len(order))
    placed[order] = np.round(within + steps, 6)
    return placed.tolist()


def moved_apart(points: list[dict], domain: tuple[float, float]) -> list[dict]:
    """The points, each with a height `at` where its label covers no other.

    Args:
        points: Each with `label`, `x` and `y`, and with `text` if it differs from the label.
        domain: Ends of the logarithmic y axis; a `y` beyond them gets its label at the end.
    """
    low, high = np.log(domain)
    heights = [float(np.clip((np.log(point["y"]) - low) / (high - low), 0, 1)) for point in points]
    moved = spread_labels(heights, LABEL_GAP / HEIGHT, 0.0, 1.0)
    return [
        {"text": point["label"]} | point | {"at": float(np.exp(low + (high - low) * height))}
        for point, height in zip(points, moved, strict=True)
    ]


def room(texts: Sequence[str]) -> list[dict]:
    """Rows for all labels that may appear: the browser reserves their width, so that the plot keeps its own."""
    return [{"text": text} for text in texts]


def with_x_max(part: Any, x_max: float) -> Any:
    """A copy of a specification in which `x_max`, the real end of the axis, replaces `X_MAX`."""
    if isinstance(part, dict):
        return {name: with_x_max(value, x_max) for name, value in part.items()}
    if isinstance(part, list):
        return [with_x_max(value, x_max) for value in part]
    return x_max if part == X_MAX else part


def row_color() -> "alt.Color":
    """The colour given by each row, so that other lines need no other frame."""
    return alt.Color("color:N", scale=None, legend=None)


def log_scale(domain: Sequence[float], **options: Any) -> "alt.Scale":
    return alt.Scale(type="log", domain=list(domain), nice=False, **options)


def names_y(names: Sequence[str], limit: int, field: str = "label", **axis: Any) -> "alt.Y":
    """A y axis with a row per name, in this order, with or without marks.

    Args:
        names: From top to bottom.
        limit: Pixels of the longest label; on a phone, half of the chart.
        field: Column that holds the name.
        **axis: Options of `alt.Axis`.
    """
    room_px = f"min({limit}, max(120, 0.5 * (containerSize()[0] || 999)))"
    # A long label gets a second line: the text after its last comma, such as “software adapter”, or its second half.
    label = (
        f"6 * length(datum.label) < {room_px} ? datum.label : split(replace(datum.label, regexp("
        "'^(.{20,}), (.+)$|^(.{' + (floor(length(datum.label) / 2) - 4) + '}[^ ]*) (.+)$'), '$1$3|$2$4'), '|')"
    )
    shown = alt.Axis(**{"labelLimit": alt.ExprRef(room_px), "labelExpr": label} | axis)
    return alt.Y(f"{field}:N", sort=list(names), scale=alt.Scale(domain=list(names)), title=None, axis=shown)


def y_of(kind: str, domain: tuple[float, float], field: str = "y") -> "alt.Y":
    """The y axis of an accuracy, a loss or seconds: logarithmic, without a title.

    Args:
        kind: "accuracy", whose field holds 1 − accuracy; any other kind is shown unchanged.
        domain: Ends of the axis; values beyond them are clamped.
        field: Column of the value.
    """
    if kind == "accuracy":
        axis = alt.Axis(values=list(ERRORS), labelExpr="format(1 - datum.value, '.0%')")
    else:
        axis = alt.Axis(values=log_ticks(min(domain), max(domain), (1, 3), MAX_TICKS), format="~g")
    return alt.Y(f"{field}:Q", scale=log_scale(domain, clamp=True), axis=axis, title=None)


def log_ticks(low: float, high: float, digits: Sequence[int], most: int) -> list[float]:
    """The round values with these digits on a logarithmic axis; only powers of ten if they are more than `most`.

    >>> log_ticks(0.02, 8, (1, 3), 8), log_ticks(1e-4, 100, (1, 3), 8)
    ([0.03, 0.1, 0.3, 1.0, 3.0], [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0])
    """
    found = [float(f"{digit}e{power}") for power in range(-9, 8) for digit in digits]
    found = [value for value in found if low <= value <= high]
    return found if len(found) <= most else [value for value in found if f"{value:e}"[0] == "1"]


def labels(x: "alt.X", y: "alt.Y", at: "alt.Y", color: Any) -> "list[alt.Chart]":
    """Labels in a column right of the plot, each with a thin line to its point in the dataset `ends`.

    The column is as wide as the longest text in the dataset `room`, in the browser's font. `at` is a label's height.
    """
    column = {"align": "left", "dx": 8, "fontSize": 11, "fontWeight": 600, "limit": LABEL_LIMIT}
    ends, edge = alt.Chart(alt.NamedData("ends")), alt.value("width")
    return [
        ends.mark_rule(strokeWidth=0.8, opacity=0.45, x2Offset=6).encode(x=x, x2=edge, y=y, y2="at:Q", color=color),
        ends.mark_text(**column).encode(x=edge, y=at, text="text:N", tooltip="text:N", color=color),
        kept_free(**column),
    ]


def kept_free(**text: Any) -> "alt.Chart":
    """Invisible texts of the dataset `room` at the right end of the plot, to reserve its space."""
    unseen = alt.Chart(alt.NamedData("room")).mark_text(opacity=0, aria=False, **text)
    return unseen.encode(x=alt.value("width"), y=alt.value(0), text="text:N")


_AXIS = {
    "labelColor": "currentColor",
    "titleColor": "currentColor",
    "domainColor": "currentColor",
    "tickColor": "currentColor",
    "gridColor": "currentColor",
    "gridOpacity": 0.12,
    "domainOpacity": 0.4,
    "tickOpacity": 0.4,
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
    "labelFont": FONT,
    "titleFont": FONT,
    "labelSeparation": 6,
}


def ink(color: str) -> str:
    """The colour of text for marks of this colour, mixed with the page's text colour so that it is always legible.

    >>> ink("#0072b2"), ink("currentColor")
    ('color-mix(in srgb, #0072b2 70%, currentColor)', 'currentColor')
    """
    return f"color-mix(in srgb, {color} {INK_SHARE:.0%}, currentColor)" if color.startswith("#") else color


def _inked(chart: dict) -> dict:
    color = chart.get("encoding", {}).get("color", {})
    if color.get("field") != "color":
        return {}
    transform = [*chart.get("transform", []), {"calculate": f"replace('{ink('#')}', '#', datum.color)", "as": "ink"}]
    return {"transform": transform, "encoding": chart["encoding"] | {"color": color | {"field": "ink"}}}


def _style(part: Any) -> None:
    """Style every axis, legend and text in place, because marimo's dark theme would override `config`."""
    if isinstance(part, list):
        for one in part:
            _style(one)
    elif isinstance(part, dict):
        mark = part.get("mark")
        if isinstance(mark, dict) and mark.get("type") == "text":
            part["mark"] = {"font": FONT} | mark | ({"color": ink(mark["color"])} if "color" in mark else {})
            part.update(_inked(part))
        for name, value in part.items():
            if name == "axis" and isinstance(value, dict):
                part[name] = {"style": "lab"} | value
            elif name == "legend" and isinstance(value, dict):
                longest = max(map(len, map(str, (part.get("scale") or {}).get("domain", ()))), default=10)
                columns = f"max(1, floor(0.65 * (containerSize()[0] || 0) / {5 * longest + 30}))"  # next to row names
                room = {
                    "columns": {"expr": columns},
                    "labelLimit": {"expr": "max(120, 0.45 * (containerSize()[0] || 0))"},
                }
                part[name] = {"labelFont": FONT, "titleFont": FONT} | room | value
            else:
                _style(value)


def styled(chart: "alt.LayerChart | alt.FacetChart", height: int = HEIGHT) -> dict:
    """An Altair chart as a specification: as wide as its container, in the page's colours, drawn as SVG.

    `height` is in pixels of the plot, without axis labels and padding.
    """
    spec = (
        chart.properties(
            width="container",
            height=height,
            background="transparent",
            usermeta={"embedOptions": {"renderer": "svg", "actions": False}},
        )
        .configure_view(stroke=None)
        .configure(
            padding={"left": 4, "right": 6, "top": 14, "bottom": 4},
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
    ).to_dict()
    # Screen readers get the chart's text instead: they would read hundreds of unnamed marks one by one, and Vega does
    # not update the description of an axis whose end has moved.
    silent = {"aria": False}
    spec["config"] |= {"view": {"stroke": None}, "mark": silent, "axis": silent, "style": {"lab": _AXIS}}
    _style(spec)
    # Altair validates the whole specification here, once; the rows of each frame are not validated.
    return spec
