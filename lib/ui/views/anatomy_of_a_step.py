"""The parts of a step in the colours and words of every page that shows them."""

import altair as alt

from lib.timing.profiling.step_breakdown import PARTS, Split

UNEXPLAINED, UNEXPLAINED_COLOR = "unexplained", "#a08a76"


def parts_color() -> alt.Color:
    """The colours of a step's parts, with their legend above the chart."""
    names = [part.name for part in PARTS] + [UNEXPLAINED]
    colors = alt.Scale(domain=names, range=[part.color for part in PARTS] + [UNEXPLAINED_COLOR])
    return alt.Color("part:N", scale=colors, sort=names, legend=alt.Legend(orient="top", title=None, columns=2))


def arithmetic_share(one: Split) -> str:
    """How much of a step is arithmetic, in words; the seconds that do not add up are no shares."""
    share = one.share("arithmetic")
    return "its parts do not add up" if share is None else f"{share:.0%} of it arithmetic"


def stack(one: Split) -> dict[str, float]:
    """What is drawn of a step: seconds of its parts, and the unexplained rest, which is at least 0."""
    return {**one.parts_s, UNEXPLAINED: max(0.0, one.unexplained_s)}
