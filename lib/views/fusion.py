"""What a compiler leaves of a program as a reader sees it: counts of operations and kernels. Measures nothing."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from lib.experiments import published
from lib.experiments.single_operations import OperationPoint
from lib.profiling.request import (
    AFTER,
    BEFORE,
    INSIDE,
)
from lib.views.chart import (
    Chart,
    names_y,
    nice_above,
    ordered_palette,
    styled,
)
from lib.views.markup import quiet

PROGRAMS = {"step": "the step", "sine": "the sines"}
KINDS = {
    "product": "products",
    "reduction": "reductions",
    "elementwise": "element by element",
    "fusion": "several fused",
    "single": "one by itself",
}


def count_of(point: OperationPoint, program: str, when: str) -> dict[str, int]:
    """How many operations (before) or kernels (after) of each kind a program has; empty where it was not counted."""
    names = {kind: f"{program}/{when}/{kind}" for kind in KINDS}
    return {kind: round(point.seconds(name) or 0.0) for kind, name in names.items() if name in point.records}


def fusion_chart(points: Sequence[OperationPoint]) -> Chart:
    """Operations before and kernels after compilation, stacked by kind: a row for each program, device and moment."""
    rows, ends, names = [], [], []
    for program, title in PROGRAMS.items():
        for point in points:
            device = ", GPU" if point.task.runtime.device == "gpu" else ""
            for when in (BEFORE, AFTER):
                counted, label = count_of(point, program, when), f"{title}{device}, {when}"
                names.append(label)
                rows += [
                    {"label": label, "kind": KINDS[kind], "n": n, "order": number}
                    for number, (kind, n) in enumerate(counted.items())
                ]
                ends += [{"label": label, "n": sum(counted.values()), "text": f"{sum(counted.values())}"}]
    names = names or [f"{title}, {when}" for title in PROGRAMS.values() for when in (BEFORE, AFTER)]
    kinds = list(KINDS.values())
    most = nice_above(1.1 * max((end["n"] for end in ends), default=9.0))
    y = names_y(names, 170)
    bars = (
        alt.Chart(pd.DataFrame(rows, columns=["label", "kind", "n", "order"]))
        .mark_bar(height=18)
        .encode(
            x=alt.X(
                "n:Q",
                stack="zero",
                title="operations before, kernels after",
                axis=alt.Axis(tickCount=5),
                scale=alt.Scale(domain=[0, most]),
            ),
            y=y,
            order="order:Q",
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=list(ordered_palette(len(kinds)))),
                sort=kinds,
                legend=alt.Legend(orient="top", title=None, columns=2),
            ),
            tooltip=["label:N", "kind:N", alt.Tooltip("n:Q", title="how many")],
        )
    )
    text = (
        alt.Chart(pd.DataFrame(ends, columns=["label", "n", "text"]))
        .mark_text(align="left", dx=6, color="currentColor")
        .encode(x="n:Q", y=y, text="text:N")
    )
    return Chart(styled(alt.layer(bars, text), height=34 * len(names)), "operations and kernels")


def fusion_sentence(points: Sequence[OperationPoint], depth: int) -> str:
    """How many kernels are left of how many operations, and how large the largest fusion is, on each device."""
    said = []
    for point in points:
        before, after = (sum(count_of(point, "step", when).values()) for when in (BEFORE, AFTER))
        sines = sum(count_of(point, "sine", AFTER).values())
        if not before:
            continue
        where = "On the card" if point.task.runtime.device == "gpu" else "On the processor"
        products = count_of(point, "step", AFTER).get("product", 0)
        largest = round(point.seconds(f"step/{INSIDE}/fusion") or 0.0)
        said.append(
            f"{where}, XLA makes {after} kernels of the step's {before} operations: {products} of them products, and"
            f" the largest fusion has {largest} operations. Of {depth} sine{'s' * (depth > 1)} it makes {sines}."
        )
    return " ".join(said)


def fusion_published() -> str:
    """HTML: what the articles say of compiling, and what the counts correct of it."""
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” counts four kernels of four sines before `torch.jit.script`, and"
        f" one after. “{published.OVERHEAD_ARTICLE}” calls a compiled step one fused call: it is one call from Python,"
        " and as many kernels as are counted above."
    )
    return quiet(note)
