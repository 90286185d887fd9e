"""Look inside: the drawing of a network, on the data that it was trained on."""

import time
from collections import OrderedDict

import marimo as mo
import pytest

from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import Facts, load_test
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import Item
from lib.ui import network_inside
from tests import made

pytestmark = pytest.mark.images


@pytest.fixture
def inside(engine, tmp_path, monkeypatch):
    lab = made.first_lab(monkeypatch, engine, tmp_path)
    yield lab.inside
    lab.page.close()


@pytest.mark.slow
def test_a_network_is_shown_in_figures_and_sent_to_the_canvas():
    canvas, (*_, data) = network_inside.Inside().digit, load_test()
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
def test_a_network_is_examined_with_its_own_data_only(inside, monkeypatch):
    """It uses the training's own data, not what can be loaded now: digits must not replace MNIST once that is gone."""
    training, shown = Training(Network((16,)), 0.1, 4096, 1), []
    inside.best = Item(training)
    monkeypatch.setattr(mo.output, "replace", shown.append)
    monkeypatch.setattr(network_inside, "_parameters", OrderedDict())
    inside.show(mo.Html("prose"))
    assert "of the 10,000 test images" in shown[-1].text, "trained again, on what there is"
    parameters = initial_parameters(training.network, 0)
    network_inside.remember(Item(training), parameters, Facts("another set", "its digest"))
    inside.show(mo.Html("prose"))
    assert "trained on another set: expected test images from the data" in shown[-1].text
    assert "<figure" not in shown[-1].text
    network_inside.remember(Item(training), parameters, load_test()[2])
    inside.show(mo.Html("prose"))
    assert "of the 10,000 test images" in shown[-1].text


def test_a_network_is_drawn_only_once_scrolled_near(inside, monkeypatch):
    """Most viewers never scroll there, and a network is half a megabyte."""
    drawn, training = [], Training(Network((16,)), 0.1, 4096, 1)
    monkeypatch.setattr(inside, "_draw", lambda _showing, item: drawn.append(item))
    inside.stage.streams = True
    inside.show(mo.Html("prose"))
    inside.best = Item(training)
    inside._news.tell()
    time.sleep(0.1)
    assert drawn == []
    inside.page.come_into_sight([network_inside.INSIDE])
    deadline = time.monotonic() + 20
    while not drawn and time.monotonic() < deadline:
        time.sleep(0.01)
    assert drawn == [Item(training)]
    inside.close()
