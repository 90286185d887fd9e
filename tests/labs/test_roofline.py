"""The roofline chart, from figures that can be checked by hand."""

import altair as alt
import pytest

from lib.labs.which_library import roofline
from lib.model.backends.registry import Runtime
from lib.model.spec import N_TRAIN
from lib.sweeps.experiments.backend_race import Cell, standings
from lib.timing.roofline import intensity
from tests.sweeps.experiments.test_backend_race import JAX, NUMPY, record

PRODUCTS = {"float32": 200e9, "bfloat16": 500e9}
NUMBA, CARD = Runtime("numba"), Runtime("jax-epoch", "gpu")
CELLS = {Cell(JAX, 32): 0.2, Cell(NUMPY, 512): 0.15, Cell(NUMBA, 512): 0.05, Cell(CARD, 32): 0.01}
KNOWN = standings(list(CELLS), [record(cell, [epoch_s] * 3) for cell, epoch_s in CELLS.items()])


def rows_of(chart, field):
    return [row for rows in chart.spec["datasets"].values() for row in rows if field in row]


def test_a_cell_stands_where_its_flops_and_bytes_say():
    """784→128→10: 409,088 FLOPs an image, of all 48,000 of an epoch."""
    chosen = Cell(JAX, 32)
    chart = roofline.chart(KNOWN, chosen, 20e9, PRODUCTS)
    points = rows_of(chart, "size")
    assert len(points) == 3, "the card's cell is not on this device"
    (point,) = [one for one in points if one["chosen"]]
    network = chosen.training.network
    assert point["y"] == pytest.approx(N_TRAIN * 409_088 / 0.2)
    assert point["x"] == intensity(network, 32)
    assert alt.LayerChart.from_dict(chart.spec), "Vega-Lite's schema accepts it"


def test_each_precision_has_a_roof_that_begins_where_the_memory_s_slope_meets_it():
    roofs = rows_of(roofline.chart(KNOWN, Cell(JAX, 32), 20e9, PRODUCTS), "roof")
    assert {(one["roof"], one["x"], one["y"]) for one in roofs} >= {
        ("best float32", 10.0, 200e9),
        ("best bfloat16", 25.0, 500e9),
    }


def test_a_backend_in_another_precision_has_another_mark():
    rounded = Cell(Runtime("jax-epoch", "cpu", "bfloat16"), 32)
    known = KNOWN | standings([rounded], [record(rounded, [0.1] * 3)])
    chart = roofline.chart(known, rounded, 20e9, PRODUCTS)
    (marks,) = {
        (tuple(scale["domain"]), tuple(scale["range"]))
        for layer in chart.spec["layer"]
        if (scale := layer.get("encoding", {}).get("shape", {}).get("scale"))
    }
    assert dict(zip(*marks, strict=True)) == {
        JAX.label: "circle",
        "NumPy": "circle",
        NUMBA.label: "circle",
        rounded.runtime.label: "diamond",
    }


def test_its_text_tells_the_cells():
    text = roofline.chart(KNOWN, Cell(JAX, 32), 20e9, PRODUCTS).text
    assert "FLOP a byte" in text.axes
    assert ("NumPy", "512") in [row[:2] for row in text.values[0].rows]


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        (Cell(JAX, 32), "at 24.5\u202f% of the best rate of float32"),
        (Cell(NUMBA, 512), "1.9 times as long at the best rate of float32 here"),
    ],
    ids=["below the roof", "above it"],
)
def test_the_sentence_says_which_side_of_the_roof(cell, wanted):
    products = {"float32": 200e9} if cell.runtime == NUMBA else {"float32": 400e9}
    assert wanted in roofline.sentence(KNOWN[cell], products)


def test_nothing_is_said_of_a_precision_whose_products_were_not_measured():
    assert roofline.sentence(KNOWN[Cell(JAX, 32)], {"bfloat16": 1.0}) == ""
