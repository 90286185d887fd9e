# pyright: reportArgumentType=false
"""A control is declared once: its setting, its element and the check of what it says agree."""

import pytest

from lib.model.spec import Network
from lib.ui import controls
from lib.ui.controls import DataControls
from lib.ui.stage import button
from lib.ui.url_state import Address

PANEL = DataControls(
    controls.slider("x.size", "Batch size", 32, (8, 32, 64)),
    controls.span("x.range", "Rates", (0.1, 1.0), (0.01, 0.1, 1.0)),
    controls.several("x.by", "Trained by", ["a/cpu"], {"A on CPU": "a/cpu", "B on GPU": "b/gpu"}),
    controls.dropdown("x.target", "Target", 0.95, {"90%": 0.9, "95%": 0.95}),
    controls.number("x.price", "Price", 0.0, 0, 10, step=0.01),
    controls.checkbox("x.same", "Same images", False),
    controls.text("x.hidden", "Hidden layers", "128", Network.parse, "256, 128"),
)
USUAL = {
    "size": 32,
    "range": [0.1, 1.0],
    "by": ["a/cpu"],
    "target": 0.95,
    "price": 0.0,
    "same": False,
    "hidden": "128",
}


class Parameters(dict):
    def to_dict(self):
        return dict(self)


def test_the_elements_say_the_defaults_and_the_check_gives_them_back():
    panel = PANEL.panel(Address(), stop=button("Stop", ""))
    said = {name: list(value) if name == "range" else value for name, value in panel.value.items()}  # type: ignore[call-overload]
    assert said == {**USUAL, "stop": 0}
    assert PANEL.checked(panel.value) == {**USUAL, "stop": 0}


def test_an_address_fills_the_elements():
    given = {"x.size": "8", "x.by": "b/gpu,a/cpu", "x.target": "0.9", "x.same": "True", "x.hidden": "16"}
    value = PANEL.panel(Address(arguments=given)).value
    assert {name: value[name] for name in ("size", "by", "target", "same", "hidden")} == {
        "size": 8,
        "by": ["b/gpu", "a/cpu"],
        "target": 0.9,
        "same": True,
        "hidden": "16",
    }


def test_what_changes_is_written_into_the_address_and_a_press_is_not():
    written = Parameters()
    panel = PANEL.panel(Address(written), again=button("Again", ""))
    panel._update({"size": 2, "again": 1})  # a slider sends its position
    assert written["x.size"] == "64"
    assert "x.again" not in written
    assert set(written) == set(PANEL.settings)


def test_what_a_control_cannot_say_is_a_sentence():
    with pytest.raises(ValueError, match=r"x\.size: expected one of 8, 32, 64; the nearest is 32, got 33"):
        PANEL.checked(USUAL | {"size": 33})


@pytest.mark.slow
def test_a_runtime_is_read_as_it_is_written():
    usable = controls.runtimes()
    assert usable, "one can run everywhere: NumPy"
    for label, written in usable.items():
        assert controls.runtime(written).label == label
