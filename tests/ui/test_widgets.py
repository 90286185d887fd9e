"""The widgets: what they send to the browser, and when."""

import base64

import numpy as np
from anywidget import AnyWidget

from lib import ROOT
from lib.model.backends.base import initial_parameters
from lib.model.spec import Network
from lib.ui import widgets


def test_a_network_is_sent_as_shapes_and_float32_values():
    parameters = initial_parameters(Network((16, 8)), 0)
    sent = widgets.encode(parameters)
    assert sent["shapes"] == [[784, 16], [16, 8], [8, 10]]
    values = np.frombuffer(base64.b64decode(sent["values"]), "<f4")
    at = 0
    for weights, biases in parameters:
        for part in (weights, biases):
            np.testing.assert_array_equal(values[at : at + part.size], part.ravel())
            at += part.size
    assert at == len(values)


def test_two_test_images_of_each_digit_are_offered():
    labels = np.arange(40) % 10
    images = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None], (40, 28, 28))  # each in one shade of grey
    greys = [set(base64.b64decode(one)) for one in widgets.sample_digits(images, labels)]
    assert greys == [{n} for n in range(20)], "the first of each digit, then the second"


def test_near_sections_are_reported_to_a_weakly_held_listener():
    class Listener:
        def near(self, names):
            self.names = names

    listener = Listener()
    widget = widgets.WholePage(listener.near)
    widget._handle_custom_msg({"near": ["depth"]}, [])
    assert listener.names == ["depth"]
    del listener
    widget._handle_custom_msg({"near": ["depth"]}, [])


def test_every_script_of_the_folder_is_used_and_every_widget_draws():
    declared = [one for one in vars(widgets).values() if isinstance(one, type) and issubclass(one, AnyWidget)]
    declared.remove(widgets.Scripted)
    drawn = [str(one._esm) for one in (*declared, *map(widgets.Scripted, widgets.SCRIPTS))]
    assert all("export default { render }" in esm for esm in drawn)
    brought = [*drawn, *widgets.worker_scripts().values()]
    for path in (ROOT / "lib/ui/widgets").glob("*.js"):
        assert any(path.read_text() in script for script in brought), path.name
