"""Look inside: a network's counts on the data that it was trained on, and legible pictures."""

import base64
import io
import re
import time
from collections import OrderedDict

import marimo as mo
import numpy as np
import pytest
from PIL import Image

from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import Facts, load_test
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import Item
from lib.ui import network_inside

pytestmark = pytest.mark.images


@pytest.fixture
def inside(lab):
    here = lab()
    yield here.inside
    here.page.close()


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
def test_a_network_is_examined_with_its_own_data_only(inside, monkeypatch, shown):
    """It uses the training's own data, not what can be loaded now: digits must not replace MNIST once that is gone."""
    training = Training(Network((16,)), 0.1, 4096, 1)
    inside.best = Item(training)
    monkeypatch.setattr(network_inside, "_parameters", OrderedDict())
    inside.show(mo.Html("prose"))
    assert "of the 10,000 test images" in shown[-1], "trained again, on what there is"
    parameters = initial_parameters(training.network, 0)
    network_inside.remember(Item(training), parameters, Facts("another set", "its digest"))
    inside.show(mo.Html("prose"))
    assert "trained on another set: expected test images from the data" in shown[-1]
    assert "<figure" not in shown[-1]
    network_inside.remember(Item(training), parameters, load_test()[2])
    inside.show(mo.Html("prose"))
    assert "of the 10,000 test images" in shown[-1]


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


def test_counts_of_a_network_without_hidden_layers_match_a_hand_count():
    """Its logits are the first ten pixels, so it predicts the brightest of them."""
    weights = np.eye(784, 10, dtype=np.float32)
    images = np.zeros((3, 28, 28), np.uint8)
    images[[0, 1, 2], 0, [4, 4, 7]] = [255, 51, 255]
    labels = np.array([4, 2, 7], np.uint8)
    confusion, worst = network_inside.look([(weights, np.zeros(10, np.float32))], images, labels)
    assert {(t, s): n for (t, s), n in np.ndenumerate(confusion) if n} == {(4, 4): 1, (2, 4): 1, (7, 7): 1}
    ((index, said, probability),) = worst
    assert (index, said) == (1, 4)
    assert probability == pytest.approx(np.exp(0.2) / (np.exp(0.2) + 9), rel=1e-6)


def test_a_confusion_matrix_names_its_largest_confusions():
    confusion = np.diag([50, 40, 30])
    confusion[0, 2], confusion[2, 0], confusion[1, 2] = 7, 1, 2
    shown = network_inside.confusion_table(confusion, ("ant", "bee", "<wasp>"))
    assert (
        "Most confused: ant mistaken for &lt;wasp&gt; (7 times), bee mistaken for &lt;wasp&gt; (2 times), &lt;wasp&gt;"
        " mistaken for ant (1 time)."
    ) in shown
    assert re.findall(r'<i style="--share: ([\d.]+)">(\d*)</i>', shown) == [
        *(("0.00", "50"), ("0.00", ""), ("1.00", "7")),
        *(("0.00", ""), ("0.00", "40"), ("0.29", "2")),
        *(("0.14", "1"), ("0.00", ""), ("0.00", "30")),
    ]
    assert "<wasp>" not in shown


def test_mistakes_are_described():
    worst = ((4, 2, 0.996), (1, 0, 0.5))
    images, labels = np.zeros((5, 28, 28), np.uint8), np.array([0, 1, 2, 0, 1])
    shown = network_inside.mistakes(worst, images, labels, ("<a>", "b", "c"))
    assert re.findall(r">([^<>]+)<br>([^<]+)<", shown) == [
        ("b, says c", "100 % sure"),
        ("b, says &lt;a&gt;", "50 % sure"),
    ]
    assert "There are no mistakes." in network_inside.mistakes((), images, labels, "abc")


def test_weights_are_blue_where_they_add_and_red_where_they_subtract():
    weights = np.zeros((4, 2), np.float32)
    weights[:, 1] = [2, -2, 1, 0]
    shown = network_inside.weights_image([(weights, np.zeros(2, np.float32))], (2, 2))
    (content,) = re.findall('base64,([^"]+)', shown)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert pixels[1:3, 1:3].tolist() == [[[33, 102, 172], [178, 24, 43]], [[144, 178, 213], [255, 255, 255]]]
    assert "All 2 units, each as an image of 2 × 2 weights" in shown
    assert "weights: 0 to 3." in shown
