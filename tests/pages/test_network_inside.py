"""Look inside: what is drawn of a network, on the data that it was trained on."""

from collections import OrderedDict
from functools import partial

import marimo as mo
import pytest

from lib.backends.base import initial_parameters
from lib.data.mnist import Facts, load_test
from lib.pages import network_inside
from lib.pages.stage import Stage
from lib.pages.widgets import DrawDigit
from lib.spec import Network, Training
from lib.storage.store import Store
from lib.workers.messages import Item

pytestmark = pytest.mark.images


@pytest.fixture
def stage(engine, tmp_path):
    return Stage(engine, Store(tmp_path / "results.sqlite"))


@pytest.mark.slow
def test_the_figures_and_what_the_canvas_gets():
    canvas, (*_, data) = DrawDigit(), load_test()
    training = Training(Network((16,)), epochs=1)
    shown = network_inside.drawn_for(canvas, Item(training), initial_parameters(training.network, 0), data).text
    assert canvas.network["shapes"] == [[784, 16], [16, 10]]
    assert len(canvas.samples) == 20
    assert shown.count("<figure") == 3
    assert "of the 10,000 test images" in shown
    large = Training(Network((2000,)))
    network_inside.drawn_for(canvas, Item(large), initial_parameters(large.network, 0), data)
    assert canvas.network == {}
    assert "too large for the page" in canvas.says


@pytest.mark.slow
def test_a_network_is_looked_into_with_its_own_data_only(stage, monkeypatch):
    """The data that came with the training, not what can be loaded by now: once MNIST is gone, the digits are no
    stand-in for it."""
    training, canvas, shown = Training(Network((16,)), 0.1, 4096, 1), DrawDigit(), []
    monkeypatch.setattr(mo.output, "replace", shown.append)
    monkeypatch.setattr(network_inside, "_parameters", OrderedDict())
    network_inside.show(stage, Item(training), partial(network_inside.drawn_for, canvas), "nothing")
    assert "of the 10,000 test images" in shown[-1].text, "trained again, on what there is"
    parameters = initial_parameters(training.network, 0)
    network_inside.remember(Item(training), parameters, Facts("another set", "its digest"))
    network_inside.show(stage, Item(training), partial(network_inside.drawn_for, canvas), "nothing")
    assert "trained on another set, is not looked into: expected the test images of the data" in shown[-1].text
    assert "<figure" not in shown[-1].text
    network_inside.remember(Item(training), parameters, load_test()[2])
    network_inside.show(stage, Item(training), partial(network_inside.drawn_for, canvas), "nothing")
    assert "of the 10,000 test images" in shown[-1].text
