"""What is said and drawn of many trainings at once, from literal figures; and networks that differ."""

import pytest

from lib.labs import many_networks as lab
from lib.labs.many_networks import Mixed, different, mixed
from lib.model.spec import Network
from lib.sweeps.experiments.parallel_sweeps import Point, methods
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.queue import Cancel, Request


def test_sentences_say_what_the_figures_show():
    took_s = {"sequential": 10.0, "vmap": 5.0, "keras-sequential": 100.0, "keras-processes": 50.0}
    text = lab.sweep_sentence(methods(), took_s, 3)
    assert "Quickest: JAX, vmap, 5.0\u202fs" in text
    assert "20.0 times faster than Keras one after another" in text
    assert "10.0 times faster than Keras in one process per core" in text
    assert "JAX one after another is 10.0 times faster already" in text
    assert "20.0 ×" in lab.published_table(took_s)
    assert "not measured yet" in lab.published_table({})
    points = [Point("sequential", "cpu", 1, 0.2, 0), Point("vmap", "cpu", 2, 0.1, 0), Point("vmap", "cpu", 4, 0.16, 0)]
    assert lab.saturation_sentence([*points, Point("sharded", "cpu", 8, float("nan"), 0, "8 networks need 9 GB")]) == (
        "Vmap is 2 times faster than one after another and gains nothing beyond 2 networks, and of 4 each takes 1.6"
        " times as long as at best. Not tried: 8 networks need 9 GB."
    )
    assert lab.mixed_sentence([Mixed("sequential", 1.0, 8, 0.0), Mixed("padded", 2.0, 1, 0.5)]) == (
        "Padding is 50% of the arithmetic, and one padded program is 2 times slower than one network after another."
    )
    assert lab.mixed_sentence([]) == lab.saturation_sentence([]) == lab.sweep_sentence(methods(), {}, 3) == ""


@pytest.mark.parametrize("quickest", [one.key for one in methods() if not one.by_keras])
def test_every_method_can_be_the_quickest(quickest):
    text = lab.sweep_sentence(methods(), {one.key: 10.0 for one in methods()} | {quickest: 5.0}, 3)
    (label,) = (one.label for one in methods() if one.key == quickest)
    assert text.startswith(f"Quickest: {label}, 5.0\u202fs for 5 rates and 3 epochs: ")
    assert (f", and “{label}” 2.0 times faster still." in text) is (quickest != "sequential"), "than itself"


@pytest.mark.parametrize("n", [0, 2])
def test_charts_of_nothing_and_of_something(n):
    points = [
        Point("vmap", "cpu", 2, 0.1, 0, "", 0.09, 0.2),
        Point("sequential", "cpu", 1, 0.2, 0, "", 0.2, 0.2),
    ]
    assert lab.saturation_chart(points[:n], 64).spec["layer"]
    assert lab.mixed_chart([Mixed("padded", 1.0, 1, 0.2)][:n]).spec["layer"]
    assert lab.sweep_chart(methods(), dict.fromkeys(["vmap", "keras-sequential"][:n], 1.0)).spec["layer"]
    figure = lab.shapes_figure([Network((64,)), Network((128,))])
    assert "width:50.0%" in figure
    assert "padded to 128" in figure


@pytest.mark.release
def test_eight_networks_from_alike_to_different(engine, tmp_path):
    assert len({n.hidden for n in different(0.0)}) == 1
    assert [different(1.0)[0].hidden, different(1.0)[-1].hidden] == [(16,), (512,)]
    store = Store(tmp_path / "results.sqlite")
    found = [item for item in mixed(0.2, 4096, engine, store, Cancel(), Request()) if isinstance(item, Mixed)]
    assert [m.strategy for m in found][:3] == ["sequential", "vmap", "padded"]
    assert 0 < found[2].wasted < 0.5
    assert found[2].programs == 1
    assert all(m.all_s > 0 for m in found)
