"""Inside a trained network: what is counted, and that its pictures can be read."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lib.views import network_inside
from tests.contrast import channels, contrast


def test_a_network_without_hidden_layers_is_counted_by_hand():
    """Its logits are the first ten pixels: the brightest of them is what it says."""
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


def test_a_count_in_the_confusion_matrix_is_read_on_its_ground():
    """Each cell of the drawn figure: its colour on the map, and the colour of its number."""
    confusion = np.full((10, 10), 1)
    confusion[np.triu_indices(10, 1)] = range(1, 46)  # every share of the most mistakes
    axes = network_inside.confusion_figure(network_inside.Inside(confusion, ())).axes[0]
    (shown,) = axes.get_images()
    assert len(axes.texts) == 100
    for text in axes.texts:
        x, y = text.get_position()
        rgba = shown.to_rgba(np.ma.asarray(shown.get_array()))[int(y), int(x)]
        ground = channels("#f2f3f5") if x == y else list(rgba[:3])
        assert contrast(list(to_rgb(text.get_color())), ground) >= 4.5, (x, y)


def test_a_drawn_figure_takes_the_text_colour_of_the_page():
    figure = network_inside.confusion_figure(network_inside.Inside(np.eye(10, dtype=int), ()))
    svg = network_inside.as_svg(figure, "Which digits it confuses")
    assert 'aria-label="Which digits it confuses"' in svg
    assert svg.count("currentColor") >= 20, "the digits along both axes"
