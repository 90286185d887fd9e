"""What the seconds of predicted steps consist of, as a table that stays closed until somebody opens it."""

import html
from collections.abc import Mapping

from lib.formatting import part, seconds
from lib.prediction.predict import Prediction
from lib.views.markup import on_demand, table


def parts_on_demand(groups: Mapping[str, Mapping[str, Prediction]]) -> str:
    """HTML: calls, launches, bytes and products of each predicted step, in seconds and as shares of it.

    Args:
        groups: Predictions by their names, below a heading each; an empty heading is not shown. One whose parts are not
            known is left out.
    """
    known = {
        heading: {name: one for name, one in of.items() if one.parts_s}
        for heading, of in groups.items()
        if any(one.parts_s for one in of.values())
    }
    names = list(dict.fromkeys(name for of in known.values() for one in of.values() for name in one.parts_s))
    rows: list[list[str]] = []
    for heading, of in known.items():
        rows += [[html.escape(heading)]] if heading else []
        rows += [[html.escape(name), seconds(one.step_s), *_cells(one, names)] for name, one in of.items()]
    if not rows:
        return ""
    return on_demand("What these steps consist of, predicted", table(["step of", "all of it", *names], rows))


def _cells(one: Prediction, names: list[str]) -> list[str]:
    return [part(one.parts_s[name], one.step_s) if one.parts_s.get(name) else "–" for name in names]
