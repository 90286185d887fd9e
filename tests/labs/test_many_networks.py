"""Many trainings at once, from literal figures: sentences and charts; and networks of different shapes."""

import pytest

from lib.labs import many_networks as lab
from lib.labs.many_networks import Mixed
from lib.model.spec import Network
from lib.sweeps.experiments.parallel_sweeps import Point, methods


def test_sentences_state_the_measured_ratios():
    took_s = {"sequential": 10.0, "vmap": 5.0, "keras-sequential": 100.0, "keras-processes": 50.0}
    text = lab.sweep_sentence(methods(), took_s, 3)
    assert "Fastest so far: JAX, vmap, 5.0\u202fs" in text
    assert "20.0 times faster than Keras one after another" in text
    assert "10.0 times faster than Keras in one process per core" in text
    assert "JAX one after another is already 10.0 times faster" in text
    points = [Point("sequential", "cpu", 1, 0.2), Point("vmap", "cpu", 2, 0.1), Point("vmap", "cpu", 4, 0.16)]
    assert lab.saturation_sentence([*points, Point("sharded", "cpu", 8, float("nan"), "8 networks need 9 GB")]) == (
        "Vmap is 2 times faster than one after another and gains nothing beyond 2 networks; with 4, each takes 1.6"
        " times as long as at best. Not tried: 8 networks need 9 GB."
    )
    assert lab.mixed_sentence([Mixed("sequential", 1.0, 8, 0.0), Mixed("padded", 2.0, 1, 0.5)]) == (
        "Padding is 50% of the arithmetic, and one padded program takes 2 times as long as one network after another."
    )
    assert lab.mixed_sentence([]) == lab.saturation_sentence([]) == lab.sweep_sentence(methods(), {}, 3) == ""


@pytest.mark.parametrize("n", [0, 2])
def test_charts_draw_with_and_without_figures(n):
    points = [Point("vmap", "cpu", 2, 0.1, "", 0.09, 0.2), Point("sequential", "cpu", 1, 0.2, "", 0.2, 0.2)]
    assert lab.saturation_chart(points[:n], 64).spec["layer"]
    assert lab.mixed_chart([Mixed("padded", 1.0, 1, 0.2)][:n]).spec["layer"]
    assert lab.sweep_chart(methods(), dict.fromkeys(["vmap", "keras-sequential"][:n], 1.0)).spec["layer"]
    figure = lab.shapes_figure([Network((64,)), Network((128,))])
    assert "width:50.0%" in figure
    assert "padded to 128" in figure
