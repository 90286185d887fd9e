"""A chart in words, for screen readers, derived from the specification that is drawn.

The table has the columns of a mark's tooltip, with their titles and formats, because the chart's author chose those as
worth reading. A line is summarized by its first and last point and its extremes.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lib.formatting import counted, listed
from lib.ui.views.markup import on_demand, quiet, table

MAX_ROWS = 24  # per table; longer ones are sampled evenly
MAX_NAMED = 16  # most series that a sentence names individually
_REPEATED = {"room", "ends"}  # datasets that repeat others
_NUMBER = {"quantitative", "temporal"}
_KINDS = {"bar": "bar", "point": "point", "rect": "field", "rule": "line"}
_SI = {-9: "n", -6: "μ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}


@dataclass(frozen=True)
class Values:
    """A table in words; `rows` are an evenly spaced sample of `n_rows` if those are too many to read."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_rows: int

    @classmethod
    def of(cls, head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Values:
        return cls(tuple(head), tuple(rows[:: max(1, math.ceil(len(rows) / MAX_ROWS))]), len(rows))

    def as_html(self) -> str:
        rows = ([html.escape(cell) for cell in row] for row in self.rows)
        some = quiet(
            f"{len(self.rows)} of {self.n_rows:,} rows, evenly spaced:" if len(self.rows) < self.n_rows else ""
        )
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
        spec: From `lib.ui.views.chart.styled`, with `datasets`.
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
    return Values.of(head, rows)


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
