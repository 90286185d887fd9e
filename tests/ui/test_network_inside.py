"""Look inside: a network's counts on the data that it was trained on, and legible pictures."""

import time
from collections import OrderedDict

import marimo as mo
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import Facts, load_test
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import Item
from lib.ui import network_inside
from tests import made
from tests.contrast import channels, contrast

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
    seen = network_inside.look([(weights, np.zeros(10, np.float32))], images, labels)
    assert {(t, s): n for (t, s), n in np.ndenumerate(seen.confusion) if n} == {(4, 4): 1, (2, 4): 1, (7, 7): 1}
    assert seen.accuracy == 2 / 3
    ((index, said, probability),) = seen.wrong
    assert (index, said) == (1, 4)
    assert probability == pytest.approx(np.exp(0.2) / (np.exp(0.2) + 9), rel=1e-6)


def test_counts_in_the_confusion_matrix_have_enough_contrast():
    confusion = np.full((10, 10), 1)
    confusion[np.triu_indices(10, 1)] = range(1, 46)  # all shares of the largest count
    axes = network_inside.confusion_figure(network_inside.NetworkView(confusion, ())).axes[0]
    (shown,) = axes.get_images()
    assert len(axes.texts) == 100
    for text in axes.texts:
        x, y = text.get_position()
        rgba = shown.to_rgba(np.ma.asarray(shown.get_array()))[int(y), int(x)]
        ground = channels("#f2f3f5") if x == y else list(rgba[:3])
        assert contrast(list(to_rgb(text.get_color())), ground) >= 4.5, (x, y)


def test_a_confusion_matrix_is_described_by_its_largest_confusions():
    confusion = np.diag([50, 40, 30])
    confusion[0, 2], confusion[2, 0], confusion[1, 2] = 7, 1, 2
    view = network_inside.NetworkView(confusion, ())
    text = network_inside.confusion_text(view, ("ant", "bee", "<wasp>"))
    assert text.content == (
        "120 of 130 are correct, 92.3\u202f%. Most confused: ant mistaken for <wasp> (7 times), bee mistaken for <wasp>"
        " (2 times), <wasp> mistaken for ant (1 time)."
    )
    (values,) = text.values
    assert values.rows[0] == ("ant", "57", "50", "<wasp> (7 times)")
    shown = network_inside.as_svg(network_inside.confusion_figure(view), "Which", text)
    assert "&lt;wasp&gt; (7 times)" in shown
    assert "<wasp>" not in shown


def test_mistakes_are_described():
    inside = network_inside.NetworkView(np.eye(3, dtype=int), ((4, 2, 0.996), (1, 0, 0.5)))
    text = network_inside.wrong_text(inside, np.array([0, 1, 2, 0, 1]))
    assert text.content == "2 images. The most confident: 1, mistaken for 2, 100 % sure."
    assert text.values[0].rows == (("1", "1", "2", "100 %"), ("2", "1", "0", "50 %"))
    none = network_inside.NetworkView(np.eye(3), ())
    assert network_inside.wrong_text(none, np.zeros(1, int)).content == "There are no mistakes."


@pytest.mark.parametrize("names", [("$0_$50", "$10k-$20k"), ("\\(a^b_c$", "$x_{1}$ <b>")])
def test_names_of_classes_are_not_drawn_as_formulas(names):
    """matplotlib would read text between two dollar signs as a formula, which may not even parse."""
    confusion, images = np.array([[5, 2], [1, 5]]), np.zeros((1, 8, 8), np.uint8)
    inside = network_inside.NetworkView(confusion, ((0, 1, 0.9),))
    wrong = network_inside.wrong_figure(inside, images, np.array([0]), names)
    for figure in (network_inside.confusion_figure(inside, names), wrong):
        assert f"<!-- {names[0]}" in network_inside.as_svg(figure, "Which", network_inside.ChartText("", ""))
