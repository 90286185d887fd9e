"""Marks with ranges on a logarithmic axis, one row per name, for times and costs."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from lib.sweeps.experiments.recorded_machines import MEASURED, PREDICTED, PUBLISHED, RECORDED
from lib.ui.views.chart import Chart, alt, log_scale, names_y, pd, styled

# Shapes, drawn within ±1: a disc, a ring, a broken ring and a bar, as on the first screen.
LOOKS = {
    MEASURED: "circle",
    RECORDED: "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0ZM-.6,0A.6,.6,0,1,0,.6,0A.6,.6,0,1,0,-.6,0Z",
    PREDICTED: "M-.4,-.9A1,1,0,0,0,-.4,.9V.45A.6,.6,0,0,1,-.4,-.45ZM.4,-.9A1,1,0,0,1,.4,.9V.45A.6,.6,0,0,0,.4,-.45Z",
    PUBLISHED: "M-.3,-1H.3V1H-.3Z",
}
_EVEN = {"strokeDash": [4, 3], "opacity": 0.6, "color": "currentColor"}


class Dot(NamedTuple):
    """A mark: the name of its row, its series, how it is known, its value with its range, and a remark."""

    label: str
    of: str
    known: str
    x: float
    low: float
    high: float
    words: str = ""


def dots_chart(
    dots: Sequence[Dot],
    colors: Mapping[str, str],
    unit: str,
    title: str,
    names: Sequence[str] = (),
    even: float | None = None,
) -> Chart:
    """The marks in the colours of their series, with a shape for each way of knowing a value.

    Args:
        dots: Any number per name.
        colors: Colours by series.
        unit: Unit of the values.
        title: Read by screen readers.
        names: The rows from top to bottom; empty puts the smallest mark on top.
        even: Position of a dashed line.
    """
    rows = list(names) or list(dict.fromkeys(dot.label for dot in sorted(dots, key=lambda dot: dot.x)))
    ends = [end for dot in dots for end in (dot.low, dot.x, dot.high) if 0 < end < inf] or [0.1, 1.0]
    ends += [even / 2, 2 * even] if even is not None else []
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap=True)
    x = alt.X("x:Q", scale=log_scale([0.8 * min(ends), 1.25 * max(ends)], clamp=True), title=unit, axis=axis)
    scale, seen = alt.Scale(domain=list(colors), range=list(colors.values())), {dot.known for dot in dots}
    top, bottom = (
        alt.Legend(orient="top", title=None, symbolOpacity=1),
        alt.Legend(orient="bottom", title=None, symbolFillColor="currentColor", symbolStrokeColor="currentColor"),
    )
    looks = {known: look for known, look in LOOKS.items() if known in seen}
    shape = alt.Scale(domain=list(looks), range=list(looks.values()))
    base = alt.Chart(pd.DataFrame(dots, columns=Dot._fields)).encode(
        y=names_y(rows, 300), color=alt.Color("of:N", scale=scale, legend=top if len(colors) > 1 else None)
    )
    ranges = base.mark_rule(strokeWidth=1.5, opacity=0.5).encode(x=alt.X("low:Q", title=unit), x2="high:Q")
    points = base.mark_point(size=100, opacity=1, filled=True).encode(
        x=x,
        shape=alt.Shape("known:N", scale=shape, legend=bottom if len(looks) > 1 else None),
        tooltip=["label:N", "of:N", "known:N", alt.Tooltip("x:Q", format=".3~g", title=unit), "words:N"],
    )
    rule = [] if even is None else [alt.Chart(pd.DataFrame({"x": [even]})).mark_rule(**_EVEN).encode(x=x)]
    return Chart(styled(alt.layer(*rule, ranges, points), height=28 * max(4, len(rows))), title)
