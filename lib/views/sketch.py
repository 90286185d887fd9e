"""A loss that somebody sketched: over the chart of the run; and those of a class, as a band."""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from lib.experiments.guesses import Question, Tally
from lib.experiments.predict_first import LOSSES, SKETCH_POINTS
from lib.views.chart import FONT, Chart, encoded, with_layers

CAPTION = "Sketches of the training loss: their median, and the middle half"
_WIDTH, _HEIGHT, _LEFT, _BELOW = 320, 150, 34, 22  # as where it is drawn: lib/pages/widgets/sketch.js
_TICKS = (3.0, 1.0, 0.3, 0.1)


def drawn_in(chart: Chart, losses: Sequence[float], n_steps: int) -> Chart:
    """The chart of the loss by step with a sketch over it.

    Args:
        chart: Of the run.
        losses: Of the sketch, evenly spaced from the first step to the last.
        n_steps: Of the longest training.
    """
    steps = np.linspace(0, n_steps, len(losses))
    rows = [{"x": float(step), "y": loss} for step, loss in zip(steps, losses, strict=True)]
    place = {"x": encoded(chart.spec, "x", "x"), "y": encoded(chart.spec, "y", "y")}
    line = {"type": "line", "color": "currentColor", "strokeWidth": 2.5, "strokeDash": [2, 5], "strokeCap": "round"}
    text = {"type": "text", "text": "your sketch", "font": FONT, "fontSize": 11, "fontWeight": 600}
    named = {"filter": f"datum.x === {rows[1]['x']}"}
    layers = [
        {"data": {"name": "sketch"}, "mark": line | {"interpolate": "monotone", "clip": True}, "encoding": place},
        {
            "data": {"name": "sketch"},
            "transform": [named],
            "mark": text | {"color": "currentColor", "align": "left", "dx": 4, "dy": -9},
            "encoding": place,
        },
    ]
    return with_layers(chart, "sketch", rows, layers)


def quartiles(counts: Mapping[str, int]) -> tuple[float, float, float]:
    """First quartile, median and third quartile of what was sketched at one point, as positions among `LOSSES`.

    Args:
        counts: How often each of `LOSSES` was; at least one.
    """
    levels = np.repeat(np.arange(len(LOSSES)), [counts.get(loss, 0) for loss in LOSSES])
    low, middle, high = np.percentile(levels, [25, 50, 75])
    return float(low), float(middle), float(high)


def band(tally: Tally, points: Sequence[Question]) -> str:
    """HTML: the sketches of a class in one drawing; nothing where nobody has sketched.

    Args:
        tally: All guesses.
        points: The questions of a sketch, in the order of its points.
    """
    counts = [tally.of(point) for point in points]
    n_sketches = sum(counts[0].values()) if len(counts) == SKETCH_POINTS else 0
    if not n_sketches:
        return ""
    found = [quartiles(one) for one in counts]
    first, last = (float(LOSSES[round(found[at][1])]) for at in (0, -1))
    means = f"The median falls from {first:g} to {last:g}."
    number = f"{n_sketches} {'sketch' if n_sketches == 1 else 'sketches'}"
    around = [_place(point, low) for point, (low, _, _) in enumerate(found)]
    around += [_place(point, high) for point, (_, _, high) in reversed(list(enumerate(found)))]
    median = [_place(point, middle) for point, (_, middle, _) in enumerate(found)]
    return (
        f'<figure class="guess-counts"><figcaption>{html.escape(CAPTION)} <small>{number}</small></figcaption>'
        f'<svg class="sketch-band" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(means)}">'
        f'{_grid()}<polygon points="{" ".join(around)}"/><polyline points="{" ".join(median)}"/></svg></figure>'
    )


def _y(level: float) -> float:
    return 8 + level * (_HEIGHT - _BELOW - 12) / (len(LOSSES) - 1)


def _place(point: int, level: float) -> str:
    return f"{_LEFT + 8 + point * (_WIDTH - _LEFT - 16) / (SKETCH_POINTS - 1):.1f},{_y(level):.1f}"


def _grid() -> str:
    axis = np.log([float(loss) for loss in LOSSES])
    heights = [_y(int(np.abs(axis - np.log(tick)).argmin())) for tick in _TICKS]
    lines = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/><text x="{_LEFT - 6}" y="{y + 4:.1f}"'
        f' text-anchor="end">{tick:g}</text>'
        for tick, y in zip(_TICKS, heights, strict=True)
    )
    ends = f'<text x="{_LEFT}" y="{_HEIGHT - 5}">first step</text><text x="{_WIDTH}" y="{_HEIGHT - 5}"'
    return f'<g class="sketch-grid">{lines}{ends} text-anchor="end">last step</text></g>'
