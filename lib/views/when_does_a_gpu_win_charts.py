"""When a GPU wins, as charts: the surface with its border, and borders beside each other. Measures nothing."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

import altair as alt
import numpy as np
from matplotlib.image import imsave

from lib.backends.registry import BACKENDS
from lib.experiments.when_does_a_gpu_win import (
    MOVES,
    RULE_SIZE,
    SIZE_ENDS,
    SIZES,
    WIDTH_ENDS,
    WIDTHS,
    Point,
    Surface,
    border,
    rule_width,
)
from lib.formatting import seconds, times
from lib.views.chart import ROW_COLOR, Chart, log_scale, ordered_palette, styled

LEFT, RIGHT = (47, 111, 176), (209, 98, 58)  # blue and orange: told apart without red-green vision
FULL = np.log10(100)  # times faster, at which a colour is as strong as it gets
TILE = 4  # cells along each side of what a tooltip speaks of
HEIGHT = 340
KINDS = ("measured here", "measured elsewhere", "published")  # of points; the ground is predicted


def rgba(ratio: np.ndarray, unclear: np.ndarray) -> np.ndarray:
    """The ground's colours, (..., 4) from 0 to 1: orange where the right side is faster, blue where the left one is.

    At equal speed it is transparent, so that the page's own ground, light or dark, is the middle of the palette.

    Args:
        ratio: How many times faster the right side is; NaN is grey.
        unclear: Where it is drawn at a third of its strength.
    """
    known = np.isfinite(ratio)
    strength = np.clip(np.abs(np.log10(np.where(known, ratio, 1.0))) / FULL, 0, 1)
    alpha = np.where(known, (0.12 + 0.78 * strength) * np.where(unclear, 0.35, 1.0), 0.3)
    color = np.where((known & (ratio > 1))[..., None], RIGHT, LEFT) / 255
    color = np.where(known[..., None], color, 0.5)
    return np.concatenate([color, alpha[..., None]], axis=-1)


def _picture(shown: Surface) -> str:
    """The ground as a picture of a pixel a cell, the largest width on top."""
    content = io.BytesIO()
    imsave(content, rgba(shown.ratio, shown.unclear)[::-1], format="png")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


# Lines are dashed by what they are.
DASHES = {"border": [1, 0], "end": [5, 3], "before": [2, 3], "rule": [8, 4]}


def surface_chart(
    shown: Surface, left: str, right: str, depth: int, points: Sequence[Point] = (), before: Surface | None = None
) -> Chart:
    """The ground with its border, the articles' rule, and the points at which more is known.

    Args:
        shown: Both sides.
        left: Name of the left side.
        right: Name of the right side.
        depth: Hidden layers.
        points: Measured here, and published.
        before: A surface whose border is drawn as a dotted line, to show what moved.
    """
    ends = [*_lines(shown.low, "end", 1.0), *_lines(shown.high, "end", 1.0)]
    moved = _lines(before.ratio, "before", 1.6) if before is not None else []
    corner, words = _rule(depth)
    lines = [*_lines(shown.ratio, "border", 2.4), *ends, *moved, *corner]
    title = f"how many times faster {right} is than {left}, by batch size and width"
    return _drawn(title, shown, lines, _tips(shown, left, right), words, _marks(points, left, right))


def moves_chart(surfaces: Mapping[str, Surface], chosen: str, right: str) -> Chart:
    """The border of each way to drive the card; the chosen one is thick. Borders have the ways' ordered colours.

    Args:
        surfaces: By the names of `MOVES`.
        chosen: One of them.
        right: The card.
    """
    colors = dict(zip(MOVES, ordered_palette(len(MOVES)), strict=True))
    lines = [
        line
        for name, shown in surfaces.items()
        for line in _lines(shown.ratio, "border", 3.4 if name == chosen else 1.3, colors[name])
    ]
    return _drawn(f"borders by how {right} is driven, by batch size and width", surfaces[chosen], lines)


def _drawn(
    title: str,
    shown: Surface,
    lines: Sequence[dict],
    tips: Sequence[dict] = (),
    words: Sequence[dict] = (),
    marks: Mapping[str, Sequence[dict]] = MappingProxyType({}),
) -> Chart:
    datasets = {"ground": [{"url": _picture(shown)}], "lines": lines, "tips": tips, "words": words}
    return Chart(_frame() | {"datasets": datasets | {kind: marks.get(kind, []) for kind in KINDS}}, title)


@cache
def _frame() -> dict:
    """All layers without their rows: Altair checks a specification once, which takes longer than to draw it."""

    def axis(kind: type, field: str, ends: tuple[int, int], title: str):
        powers = [2**k for k in range(0, 13, 2) if ends[0] <= 2**k <= ends[1]]
        return kind(f"{field}:Q", scale=log_scale(ends, base=2), title=title, axis=alt.Axis(values=powers, format=",d"))

    x, y = axis(alt.X, "x", SIZE_ENDS, "batch size"), axis(alt.Y, "y", WIDTH_ENDS, "width of the hidden layers")
    box = {"x": x, "y": y, "x2": "x2:Q", "y2": "y2:Q"}
    ground = alt.Chart(alt.NamedData("ground")).mark_image(
        align="left",
        baseline="top",
        width=alt.ExprRef("width"),
        height=alt.ExprRef("height"),
        aspect=False,
        smooth=False,
    )
    tips = alt.Chart(alt.NamedData("tips")).mark_rect(opacity=0)
    dash = alt.Scale(domain=list(DASHES), range=list(DASHES.values()))
    lines = alt.Chart(alt.NamedData("lines")).mark_rule()
    words = alt.Chart(alt.NamedData("words")).mark_text(
        align="left", baseline="bottom", dx=5, dy=-3, fontSize=11, color="currentColor"
    )
    dots, diamonds, rings = (alt.Chart(alt.NamedData(kind)) for kind in KINDS)
    point = {"x": x, "y": y, "tooltip": ["kind:N", "words:N"]}
    layers = [
        ground.encode(x=alt.value(0), y=alt.value(0), url="url:N"),
        tips.encode(**box, tooltip=["at:N", "predicted:N"]),
        lines.encode(
            **box,
            color=ROW_COLOR,
            strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
            strokeDash=alt.StrokeDash("kind:N", scale=dash, legend=None),
        ),
        words.encode(x=x, y=y, text="text:N"),
        *(
            marks.mark_point(shape=shape, size=size, opacity=1, stroke="currentColor", strokeWidth=1.2).encode(
                **point, fill=alt.Fill("color:N", scale=None, legend=None)
            )
            for marks, shape, size in ((dots, "circle", 64), (diamonds, "diamond", 110))
        ),
        rings.mark_point(size=120, opacity=1, strokeWidth=3).encode(**point, color=ROW_COLOR),
    ]
    return styled(alt.layer(*layers), height=HEIGHT)


def _tips(shown: Surface, left: str, right: str) -> list[dict]:
    """Unseen tiles that say what is predicted in their middle."""
    x, y = (np.geomspace(*ends, len(WIDTHS) // TILE + 1).round(2) for ends in (SIZE_ENDS, WIDTH_ENDS))
    rows = []
    for i, row in enumerate(range(TILE // 2, len(WIDTHS), TILE)):
        for j, column in enumerate(range(TILE // 2, len(SIZES), TILE)):
            left_s, right_s = (float(side.step_s[row, column]) for side in (shown.left, shown.right))
            words = "it does not fit into the memory of both"
            if np.isfinite(left_s + right_s):
                words = f"{seconds(left_s)} and {seconds(right_s)} a step: {who_wins(left_s / right_s, left, right)}"
                words += ", but the intervals overlap" if shown.unclear[row, column] else ""
            place = {"x": x[j], "x2": x[j + 1], "y": y[i], "y2": y[i + 1]}
            rows.append(place | {"at": f"width {WIDTHS[row]:,}, batch size {SIZES[column]:,}", "predicted": words})
    return rows


def who_wins(ratio: float, left: str, right: str) -> str:
    """Which side is faster, and how many times.

    >>> who_wins(0.5, "NumPy", "L4"), who_wins(3, "NumPy", "L4")
    ('NumPy is 2 times faster', 'L4 is 3 times faster')
    """
    return f"{right if ratio > 1 else left} is {times(max(ratio, 1 / ratio))} times faster"


def _lines(ratio: np.ndarray, kind: str, width: float, color: str = "currentColor") -> list[dict]:
    ends = [dict(zip(("x", "y", "x2", "y2"), line, strict=True)) for line in border(ratio)]
    return [{name: round(value, 3) for name, value in one.items()} | _looks(kind, width, color) for one in ends]


def _looks(kind: str, width: float, color: str = "currentColor") -> dict:
    return {"kind": kind, "width": width, "color": color}


def _rule(depth: int) -> tuple[list[dict], list[dict]]:
    """The corner below which the articles say that a processor wins, as lines, and its name."""
    width, looks = rule_width(depth), _looks("rule", 1.4)
    lines = [
        {"x": SIZE_ENDS[0], "x2": RULE_SIZE, "y": width, "y2": width},
        {"x": RULE_SIZE, "x2": RULE_SIZE, "y": WIDTH_ENDS[0], "y2": width},
    ]
    return [line | looks for line in lines], [{"x": SIZE_ENDS[0], "y": width, "text": "the articles' rule"}]


def _marks(points: Sequence[Point], left: str, right: str) -> dict[str, list[dict]]:
    """Rows of what was measured here, elsewhere, and of what was published, in the ground's colours."""
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for one in points:
        kind, names, what = KINDS[0], [left, f"{right} (predicted)"], "a step"
        if one.by:
            kind, names, what = KINDS[2], [BACKENDS[key].label for key in one.by], "an epoch"
        elif one.machine:
            kind, names, what = KINDS[1], [f"the processor of {one.machine}", "its GPU"], "an epoch"
        found[kind].append(
            {
                "x": one.batch_size,
                "y": one.width,
                "kind": kind,
                "color": f"rgb{LEFT if one.ratio < 1 else RIGHT}",
                "words": f"{seconds(one.left_s)} by {names[0]}, {seconds(one.right_s)} by {names[1]}: {what}",
            }
        )
    return found


def legend(left: str, right: str) -> str:
    """HTML: what colours, lines and points mean."""
    ramp = ", ".join(
        f"rgba({255 * color[0]:.0f}, {255 * color[1]:.0f}, {255 * color[2]:.0f}, {color[3]:.2f})"
        for color in rgba(np.array([0.01, 0.1, 0.5, 1.0, 2, 10, 100]), np.zeros(7, bool))
    )
    keys = (
        ('<i class="win-line"></i>', "border, predicted"),
        ('<i class="win-line win-dashed"></i>', "ends of its uncertainty; between them the colours are pale"),
        ('<i class="win-dot"></i>', "measured here"),
        ('<i class="win-dot win-diamond"></i>', "measured elsewhere"),
        ('<i class="win-ring"></i>', "published"),
    )
    scale = (
        f"<span>{html.escape(left)} 100 times faster</span>"
        f'<i class="win-ramp" style="background: linear-gradient(to right, {ramp})"></i>'
        f"<span>{html.escape(right)} 100 times faster</span>"
    )
    entries = "".join(f"<span>{mark}{html.escape(words)}</span>" for mark, words in keys)
    return f'<p class="win-legend">{scale}</p><p class="win-legend">{entries}</p>'


def moves_legend(chosen: str) -> str:
    """HTML: the colour of each way's border."""
    colors = dict(zip(MOVES, ordered_palette(len(MOVES)), strict=True))
    entries = "".join(
        f'<span><i class="win-line" style="border-color: {colors[name]}"></i>'
        f"{'<b>' if name == chosen else ''}{html.escape(name)}{'</b>' if name == chosen else ''}</span>"
        for name in MOVES
    )
    return f'<p class="win-legend">{entries}</p>'
