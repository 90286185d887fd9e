"""The roofline: how fast cells of the race compute, beside the best that this machine's memory and products allow."""

import math
from collections.abc import Mapping

import altair as alt
import pandas as pd

from lib.formatting import percent
from lib.model.backends.registry import BACKENDS, PRECISIONS
from lib.model.spec import N_TRAIN
from lib.sweeps.experiments.backend_race import Cell, Standing
from lib.timing.roofline import intensity
from lib.ui.views.chart import Chart, decades, log_scale, styled

TITLE = "the roofline: how fast, by how much is done with each byte"


def flops_per_s(standing: Standing) -> float:
    """FLOPs of an epoch's dense products over its median seconds: more than is computed where zeros are left out."""
    cell = standing.cell
    steps = N_TRAIN // cell.batch_size
    return steps * cell.training.network.step_flops(cell.batch_size) / standing.quartiles_s[1]


def chart(
    known: Mapping[Cell, Standing], chosen: Cell, copy_bytes_per_s: float, products: Mapping[str, float]
) -> Chart:
    """The cells on the chosen one's device as points, below the slope of the memory and a roof for each precision.

    Args:
        known: Standings of the cells that were measured.
        chosen: One of them, which has a ring.
        copy_bytes_per_s: The memory's best rate, reading plus writing.
        products: The best rate of a product by precision, in FLOP/s; at least one.
    """
    rows = pd.DataFrame(
        [
            {
                "label": cell.runtime.label,
                "color": BACKENDS[cell.runtime.backend].color,
                "size": cell.batch_size,
                "x": intensity(cell.training.network, cell.batch_size),
                "y": flops_per_s(standing),
                "chosen": cell == chosen,
            }
            for cell, standing in known.items()
            if cell.runtime.device == chosen.runtime.device
        ]
    )
    ridges = {precision: rate / copy_bytes_per_s for precision, rate in products.items()}
    across = decades([*rows["x"], *ridges.values()])
    up = decades([*rows["y"], *products.values()])
    slope = [
        {"x": across[0], "y": copy_bytes_per_s * across[0]},
        {"x": max(ridges.values()), "y": max(products.values())},
    ]
    roofs = [
        {"roof": f"best {precision}", "x": x, "y": rate}
        for precision, rate in products.items()
        for x in (ridges[precision], across[1])
    ]
    x = alt.X(
        "x:Q",
        scale=log_scale(across),
        axis=alt.Axis(format="~g", values=_powers(across)),
        title="FLOP a byte, if no cache kept anything",
    )
    y = alt.Y(
        "y:Q",
        scale=log_scale(up, clamp=True),
        axis=alt.Axis(format="~s", values=_powers(up)),
        title="FLOP/s of the dense products",
    )
    rounded = {cell.runtime.label for cell in known if cell.runtime.precision != PRECISIONS[0]}
    colors = dict(zip(rows["label"], rows["color"], strict=True))
    legend = alt.Legend(orient="bottom", columns=2, title=None, labelLimit=160)
    color = alt.Color("label:N", scale=alt.Scale(domain=list(colors), range=list(colors.values())), legend=legend)
    # A backend has one colour in each of its precisions.
    marks = ["circle" if label not in rounded else "diamond" for label in colors]
    shape = alt.Shape("label:N", scale=alt.Scale(domain=list(colors), range=marks), legend=legend)
    tooltip = [
        alt.Tooltip("label:N", title="backend"),
        alt.Tooltip("size:Q", title="batch size", format=","),
        alt.Tooltip("x:Q", title="FLOP a byte", format=".3g"),
        alt.Tooltip("y:Q", title="FLOP/s", format=".3s"),
    ]
    line = {"color": "currentColor", "strokeWidth": 1.5, "clip": True}
    above = {"align": "right", "dx": -4, "dy": -7, "fontSize": 11, "color": "currentColor"}
    roof = alt.Chart(pd.DataFrame(roofs))
    ends = alt.Chart(pd.DataFrame(roofs[1::2]))
    points = alt.Chart(rows)
    layers = [
        alt.Chart(pd.DataFrame(slope)).mark_line(**line, strokeDash=[4, 3]).encode(x=x, y=y),
        roof.mark_line(**line).encode(x=x, y=y, detail="roof:N"),
        ends.mark_text(**above).encode(x=x, y=y, text="roof:N"),
        points.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, color=color, shape=shape, tooltip=tooltip),
        points.transform_filter("datum.chosen")
        .mark_point(size=170, strokeWidth=2, color="currentColor")
        .encode(x=x, y=y),
    ]
    return Chart(styled(alt.layer(*layers), height=220), TITLE)


def _powers(ends: tuple[float, float]) -> list[float]:
    """The powers of ten from one end of an axis to the other, both of which are one."""
    return [10.0**power for power in range(round(math.log10(ends[0])), round(math.log10(ends[1])) + 1)]


def sentence(standing: Standing, products: Mapping[str, float]) -> str:
    """How near a cell comes to the best product in its precision, or that it does less than all of the products.

    Args:
        standing: Of the cell.
        products: The best rate of a product by precision, in FLOP/s.
    """
    precision = standing.cell.runtime.precision
    if precision not in products:
        return ""
    share = flops_per_s(standing) / products[precision]
    if share > 1:
        return (
            f"Its dense products would take {share:.2g} times as long at the best rate of {precision} here: what stands"
            " above a roof has less work, as where zeros are left out."
        )
    return f"Its products come at {percent(share)} of the best rate of {precision} here; the dashed slope is memory."
