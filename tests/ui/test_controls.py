# pyright: reportArgumentType=false
"""A control is declared once: its setting, its element and its validation agree."""

import pytest

from lib.model.spec import Network
from lib.ui import controls
from lib.ui.controls import Controls, dropdown, number, several, slider, span, text
from lib.ui.url_state import Address


class Panel(Controls):
    size = slider("Batch size", 32, (8, 32, 64))
    range = span("Rates", (0.1, 1.0), (0.01, 0.1, 1.0))
    by = several("Trained by", ["a/cpu"], {"A on CPU": "a/cpu", "B on GPU": "b/gpu"})
    target = dropdown("Target", 0.95, {"90%": 0.9, "95%": 0.95})
    price = number("Price", 0.0, 0, 10, step=0.01)
    hidden = text("Hidden layers", "128", Network.parse, "256, 128")


USUAL = {"size": 32, "range": [0.1, 1.0], "by": ["a/cpu"], "target": 0.95, "price": 0.0, "hidden": "128"}


def test_elements_have_the_defaults_and_pass_the_check():
    elements = Panel.elements("x", Address())
    said = {name: list(one.value) if name == "range" else one.value for name, one in elements.items()}
    assert said == USUAL
    assert Panel.checked("x", said).values == USUAL


def test_an_impossible_value_is_refused():
    controls._check_hidden("784, 128")
    with pytest.raises(ValueError, match="between 784 inputs and 10 classes, got both ends too"):
        controls._check_hidden("784-128-64-10")
    with pytest.raises(ValueError, match=r"x\.size: expected one of 8, 32, 64, got 33"):
        Panel.checked("x", USUAL | {"size": 33})


@pytest.mark.slow
def test_a_runtime_reads_back_from_its_text():
    usable = controls.runtimes()
    assert usable, "one can run everywhere: NumPy"
    for label, written in usable.items():
        assert controls.runtime(written).label == label
