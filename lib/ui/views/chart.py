"""What all charts share: frame, palette, axes, labels that do not overlap, fonts and colours; and each chart in words,
for screen readers, derived from the specification that is drawn. Independent of marimo.

Text and axes use the page's text colour, so one chart fits light and dark.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.formatting import counted, listed
from lib.ui.views.markup import on_demand, quiet, table


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
# For charts in words:
MAX_ROWS = 24  # per table; longer ones are sampled evenly
MAX_NAMED = 16  # most series that a sentence names individually
_REPEATED = {"room", "ends"}  # datasets that repeat others
_NUMBER = {"quantitative", "temporal"}
_KINDS = {"bar": "bar", "point": "point", "rect": "field", "rule": "line"}
_SI = {-9: "n", -6: "μ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}


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


def row_color() -> alt.Color:
    """The colour given by each row, so that other lines need no other frame."""
    return alt.Color("color:N", scale=None, legend=None)


def log_scale(domain: Sequence[float], **options: Any) -> alt.Scale:
    return alt.Scale(type="log", domain=list(domain), nice=False, **options)


def names_y(names: Sequence[str], limit: int, field: str = "label", **axis: Any) -> alt.Y:
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


def y_of(kind: str, domain: tuple[float, float], field: str = "y") -> alt.Y:
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


def labels(x: alt.X, y: alt.Y, at: alt.Y, color: Any) -> list[alt.Chart]:
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


def kept_free(**text: Any) -> alt.Chart:
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


def styled(chart: alt.LayerChart | alt.FacetChart, height: int = HEIGHT) -> dict:
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


# Charts in words. The table has the columns of a mark's tooltip, with their titles and formats, because the chart's
# author chose those as worth reading. A line is summarized by its first and last point and its extremes.


@dataclass(frozen=True)
class Values:
    """A table in words; of rows too many to read, an evenly spaced sample is shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_html(self) -> str:
        shown, n_rows = self.rows[:: max(1, math.ceil(len(self.rows) / MAX_ROWS))], len(self.rows)
        rows = ([html.escape(cell) for cell in row] for row in shown)
        some = quiet(f"{len(shown)} of {n_rows:,} rows, evenly spaced:" if len(shown) < n_rows else "")
        return some + table([html.escape(cell) for cell in self.head], rows, "lab-values")


@dataclass(frozen=True)
class ChartText:
    """A chart in words: its axes, its content in sentences, and its values as tables."""

    axes: str
    content: str
    values: tuple[Values, ...] = ()

    def label(self, title: str) -> str:
        told = f"{self.axes} {self.content}".strip()
        return f"{title}. {told}" if told else title

    def as_html(self, title: str) -> str:
        """The text and the values, collapsed; `title` distinguishes them from the next chart's."""
        told = quiet(f"{self.axes} {self.content}".strip())
        values = "".join(one.as_html() for one in self.values)
        return on_demand(f"Values: {html.escape(title)}", told + values, "lab-text")


@dataclass(frozen=True)
class _Column:
    field: str
    title: str
    format: str
    is_number: bool

    def of(self, row: Mapping[str, Any]) -> str:
        value = row.get(self.field)
        return "–" if _missing(value) else written(value, self.format)

    def number_of(self, row: Mapping[str, Any]) -> float:
        return _as_number(row.get(self.field)) or 0.0


@dataclass(frozen=True)
class _Marks:
    kind: str
    columns: tuple[_Column, ...]
    across: _Column | None
    rows: list[dict]

    @property
    def names(self) -> list[_Column]:
        return [one for one in self.columns if not one.is_number]

    @property
    def measure(self) -> _Column | None:
        return next((one for one in self.columns if one.is_number and one is not self.across), None)

    def series_of(self, row: Mapping[str, Any]) -> str:
        return ", ".join(text for one in self.names if (text := one.of(row)) != "–")

    @cached_property
    def series(self) -> dict[str, list[dict]]:
        fields, across, alike = [one.field for one in self.names], self.across, {}
        for row in self.rows:  # hundreds of rows: name each series only once
            alike.setdefault(tuple(map(row.get, fields)), []).append(row)
        ordered = [sorted(rows, key=across.number_of) if across else rows for rows in alike.values()]
        return {self.series_of(rows[0]): rows for rows in ordered}

    def name_of(self, row: Mapping[str, Any]) -> str:
        place = f"{self.across.title} {self.across.of(row)}" if self.across is not None else ""
        return ", ".join(filter(None, [self.series_of(row), place]))


def described(spec: dict, states: Mapping[str, str]) -> ChartText:
    """Describe a Vega-Lite specification with its rows.

    Args:
        spec: From `styled`, with `datasets`.
        states: By series, the state of those that are unfinished, such as “training”.
    """
    marks = _readable(spec)
    told = next((one for one in marks if one.rows), marks[0] if marks else None)
    axes = _axes(spec, told)
    if told is None:
        return ChartText(axes, _outlook(states))
    content = [_extent(told), *(_extremes(one) for one in marks), _outlook(states)]
    return ChartText(axes, " ".join(filter(None, content)), tuple(_as_table(one) for one in marks if one.rows))


def _readable(spec: dict) -> list[_Marks]:
    """The marks with tooltips, once per dataset and tooltip; lines take precedence."""
    found: dict[tuple, _Marks] = {}
    for layer in _layers(spec):
        encoding, name = layer.get("encoding", {}), layer["data"].get("name", "")
        if not isinstance(encoding.get("tooltip"), list) or name in _REPEATED:
            continue
        columns = tuple(
            _Column(one["field"], one.get("title", one["field"]).strip(), one.get("format", ""), one["type"] in _NUMBER)
            for one in encoding["tooltip"]
        )
        kind = layer["mark"]["type"] if isinstance(layer["mark"], dict) else layer["mark"]
        key = (name, columns)
        if key not in found or kind == "line" or found[key].kind == "rule":
            x, y = (encoding.get(channel, {}) for channel in ("x", "y"))
            both = x.get("type") == y.get("type") == "quantitative"
            across = next((one for one in columns if both and one.field == x.get("field")), None)
            found[key] = _Marks(kind, columns, across, _rows(spec.get("datasets", {}).get(name, ())))
    return list(found.values())


def _layers(spec: dict, data: object = None) -> Iterator[dict]:
    data = spec.get("data", data)
    for part in spec.get("layer", ()):
        yield from _layers(part, data)
    if "mark" in spec:
        yield spec | {"data": data or {}}
    if isinstance(spec.get("spec"), dict):
        yield from _layers(spec["spec"], data)


def _rows(dataset: str | Sequence[dict]) -> list[dict]:
    if not isinstance(dataset, str):
        return list(dataset)
    head, *rows = csv.reader(io.StringIO(dataset))
    return [dict(zip(head, row, strict=True)) for row in rows]


def _axes(spec: dict, marks: _Marks | None) -> str:
    parts = []
    for channel, where in (("x", "Across"), ("y", "Up")):
        found = [layer["encoding"][channel] for layer in _layers(spec) if channel in layer.get("encoding", {})]
        axis = next((one for one in found if one.get("title")), found[0] if found else {})
        measure = marks.measure if marks is not None and marks.across is not None else None
        named = axis.get("title") or (measure.title if measure is not None else "")
        if axis.get("type") == "nominal":
            parts.append("One row per name." if channel == "y" else "One position per name.")
        elif named:
            parts.append(f"{where}: {named}{_domain(axis)}.")
    return " ".join(parts)


def _domain(axis: dict) -> str:
    scale, shown = axis.get("scale") or {}, axis.get("axis") or {}
    ends = [_as_number(end) for end in scale.get("domain", ()) if not isinstance(end, dict)]
    text = ""
    if len(ends) == 2 and None not in ends and "labelExpr" not in shown:
        text = f", {written(ends[0], ',.4~g')} to {written(ends[1], ',.4~g')}"
    logarithmic = scale.get("type") == "log" and "logarithmic" not in (axis.get("title") or "")
    return text + (", logarithmic" if logarithmic else "")


def _extent(marks: _Marks) -> str:
    if not marks.rows:
        return "No values yet."
    if marks.kind == "line":
        names = list(marks.series)
        return f"{counted(len(names), 'line')}{f': {listed(names)}' if len(names) <= MAX_NAMED else ''}."
    return f"{counted(len(marks.rows), _KINDS.get(marks.kind, 'mark'))}."


def _extremes(marks: _Marks) -> str:
    """The lowest and the highest value; for lines, of their last values."""
    measure, is_line = marks.measure, marks.kind == "line"
    if measure is None:
        return ""
    rows = [series[-1] for series in marks.series.values()] if is_line else marks.rows
    ordered = sorted((row for row in rows if not _missing(row.get(measure.field))), key=measure.number_of)
    if not ordered:
        return ""
    named = marks.series_of if is_line else marks.name_of
    low, high = (f"{measure.of(row)} ({named(row)})" for row in (ordered[0], ordered[-1]))
    begin = f"Last {measure.title}" if is_line else measure.title
    return _sentence(f"{begin}: {low}" if len(ordered) == 1 else f"{begin}: lowest {low}, highest {high}")


def _outlook(states: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, state in states.items():
        groups.setdefault(state, []).append(name)
    return " ".join(_sentence(f"{state}: {listed(names)}") for state, names in groups.items())


def _as_table(marks: _Marks) -> Values:
    measure = marks.measure
    if marks.kind == "line" and measure is not None:
        head = ("line", f"first {measure.title}", "lowest", "highest", "last")
        rows = [(name, *_summary(measure, series)) for name, series in marks.series.items()]
    else:
        head = tuple(one.title or "mark" for one in marks.columns)
        rows = list(dict.fromkeys(tuple(one.of(row) for one in marks.columns) for row in marks.rows))
    return Values(head, tuple(rows))


def _summary(measure: _Column, rows: Sequence[dict]) -> list[str]:
    found = [row for row in rows if not _missing(row.get(measure.field))]
    if not found:
        return ["–"] * 4
    ends = found[0], min(found, key=measure.number_of), max(found, key=measure.number_of), found[-1]
    return [measure.of(row) for row in ends]


def _sentence(text: str) -> str:
    """Capitalize, unless the text begins with a symbol such as μ, and end with a full stop."""
    return (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:].rstrip(".") + "."


def _missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value)) or value == "nan"


def _as_number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def written(value: object, form: str) -> str:
    r"""A value as a tooltip shows it.

    Args:
        value: A number, or a text, which stays unchanged.
        form: As in d3-format: some of `,`, digits, `~`, and one of `g f d s %`; only `g` and `s` drop trailing zeros.

    >>> written(4500.0, ",.4~g"), written(0.0123, ".3~s"), written(0.961, ".1%"), written("JAX", "")
    ('4,500', '12.3m', '96.1%', 'JAX')
    """
    number = _as_number(value)
    if number is None or (isinstance(value, str) and not form):
        return str(value)
    if not math.isfinite(number):
        return "infinite"
    plain = form.replace("~", "").replace("d", ".0f")
    if form.endswith("s"):
        power = 0 if not number else max(-9, min(12, 3 * math.floor(math.log10(abs(number)) / 3)))
        return f"{format(number / 10.0**power, plain.replace('s', 'g'))}{_SI[power]}"
    text = format(number, plain if plain.endswith(("g", "f", "%")) else f"{plain}g")
    return f"{number:,.0f}" if "e+" in text else text
