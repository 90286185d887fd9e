"""What is said and drawn of many trainings at once, from literal figures."""

import pytest

from lib.experiments.parallel_sweeps import (
    Mixed,
    Point,
    methods,
    saturates_at,
)
from lib.spec import Network
from lib.storage.records import Kind, Record
from lib.views import parallel_sweeps as view


def record(seconds):
    return Record(Kind.SWEEP, {}, (seconds,), 1, "CAP")


def test_sentences_say_what_the_figures_show():
    known = {
        "sequential": record(10.0),
        "vmap": record(5.0),
        "keras-sequential": record(100.0),
        "keras-processes": record(50.0),
    }
    text = view.comparison_sentence(methods(), known, 3)
    assert "Quickest: JAX, vmap, 5.0\u202fs" in text
    assert "20.0 times faster than Keras one after another" in text
    assert "10.0 times faster than Keras in one process per core" in text
    assert "JAX one after another is 10.0 times faster already" in text
    assert "2.0 times faster still" in text
    assert "20.0 ×" in view.published_table(known)
    assert "not measured yet" in view.published_table({})
    points = [Point("sequential", "cpu", 1, 0.2, 0), Point("vmap", "cpu", 2, 0.1, 0), Point("vmap", "cpu", 4, 0.16, 0)]
    text = view.saturation_sentence(points)
    assert "Vmap is 2 times faster than one after another and gains nothing beyond 2 networks" in text
    assert "of 4 each takes 1.6 times as long as at best" in text
    assert saturates_at(points[1:]) == 2
    text = view.mixed_sentence([Mixed("sequential", 1.0, 8, 0.0), Mixed("padded", 2.0, 1, 0.5)])
    assert (
        text
        == "Padding is 50% of the arithmetic, and one padded program is 2 times slower than one network after another."
    )
    assert view.mixed_sentence([]) == view.saturation_sentence([]) == ""


@pytest.mark.parametrize("quickest", [one.key for one in methods() if not one.by_keras])
def test_every_method_can_be_the_quickest(quickest):
    known = {one.key: record(10.0) for one in methods()} | {quickest: record(5.0)}
    text = view.comparison_sentence(methods(), known, 3)
    (label,) = (one.label for one in methods() if one.key == quickest)
    assert text.startswith(f"Quickest: {label}, 5.0\u202fs for 5 rates and 3 epochs: ")
    assert (f", and “{label}” 2.0 times faster still." in text) is (quickest != "sequential"), "than itself"


@pytest.mark.parametrize(
    "flags", [[], ["other programs kept 1.5 cores busy: close them", "other programs kept 2.0 cores busy: close them"]]
)
def test_disturbance_is_said_once(flags):
    assert view.disturbance(flags).count("Disturbed") == min(len(flags), 1)


def test_charts_of_nothing_and_of_something():
    for points in (
        [],
        [Point("vmap", "cpu", 2, 0.1, 0, "", 0.09, 0.2), Point("sequential", "cpu", 1, 0.2, 0, "", 0.2, 0.2)],
    ):
        assert view.saturation_chart(points, 64).spec["layer"]
    for found in ([], [Mixed("padded", 1.0, 1, 0.2)]):
        assert view.mixed_chart(found).spec["layer"]
    assert view.comparison_chart(methods(), {}).spec["layer"]
    figure = view.shapes_figure([Network((64,)), Network((128,))])
    assert "width:50.0%" in figure
    assert "padded to 128" in figure
