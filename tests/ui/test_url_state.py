"""Settings and the address: values round-trip, and unusable text is answered by a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.ui import controls, url_state
from lib.ui.url_state import Address


@pytest.mark.parametrize(
    ("setting", "said", "value"),
    [
        (url_state.choice("x", 1, (1, 2, 4)), "4", 4),
        (url_state.choice("x", 0.1, (0.001, 0.1)), "1e-3", 0.001),
        (url_state.choice("x", False, (False, True)), "True", True),
        (url_state.choices("x", [1], (1, 2, 4)), "4,1", [4, 1]),
        (url_state.choices("x", [1], (1, 2, 4)), "", []),
        (url_state.ends("x", (1, 2), (1, 2, 4)), "2,4", [2, 4]),
        (url_state.number("x", 0, 0, 9, whole=True), "7", 7),
        (url_state.number("x", 0.0, 0, 9), "0.25", 0.25),
        (url_state.text("x", "", int), "12", "12"),
    ],
)
def test_a_text_is_read_as_the_type_of_its_setting(setting, said, value):
    found = setting.read(said)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("setting", "said", "sentence"),
    [
        (url_state.choice("x", 1, (1, 2, 4)), "5", "expected one of 1, 2, 4"),
        (url_state.choice("x", "a", ("alpha", "beta")), "alpa", "expected one of alpha, beta"),
        (url_state.ends("x", (1, 2), (1, 2, 4)), "4,2", "expected two of 1, 2, 4, the smaller first"),
        (url_state.number("x", 0, 0, 9, whole=True), "1.5", "expected a whole number from 0 to 9"),
        (url_state.number("x", 0, 0, 9), "nan", "expected a number from 0 to 9"),
        (url_state.text("x", "", int), "1" * 201, "x: expected at most 200 characters, got 201; shorten it"),
    ],
)
def test_unusable_text_is_refused_with_what_was_expected(setting, said, sentence):
    with pytest.raises(ValueError, match="expected") as caught:
        setting.read(said)
    assert str(caught.value).startswith(sentence)


def test_a_cleared_address_has_defaults_and_no_problems():
    setting = url_state.choice("x.a", 1, (1, 2))
    address = Address(arguments={"x.a": "2", "x.b": "3"})
    address.check({"x.a": setting})
    assert address.read(setting) == 2
    assert len(address.problems) == 1
    address.clear()
    assert address.read(setting) == 1
    assert address.problems == []


MEMBERS = (url_state.number("rate.epochs", 3, 1, 20, whole=True), url_state.text("rate.hidden", "128", str))


@given(st.integers(1, 20), st.text(st.characters(codec="utf-8"), max_size=40))
def test_the_state_of_a_panel_reads_back_unchanged(epochs, hidden):
    address = Address(arguments={"rate.epochs": str(epochs), "rate.hidden": hidden})
    said = address.state(MEMBERS)
    assert url_state.state_of("rate.pin", MEMBERS).read(said) == said
    assert url_state.values_of(said, MEMBERS) == {"epochs": epochs, "hidden": hidden}
    assert (said == url_state.ALL_USUAL) == (epochs == 3 and hidden == "128")


@pytest.mark.parametrize("said", ["epochs=99", "rate.epochs=4", "epochs", "epochs=4&epochs=5&hidden=1", "&&&=&"])
def test_a_state_with_other_settings_is_refused(said):
    with pytest.raises(ValueError, match="expected settings of this panel"):
        url_state.state_of("rate.pin", MEMBERS).read(said)


def test_an_empty_state_has_no_values():
    assert url_state.values_of("", MEMBERS) is None
    assert url_state.values_of(url_state.ALL_USUAL, MEMBERS) == {"epochs": 3, "hidden": "128"}


def test_the_readers_network_is_the_default_of_sections():
    one = controls.batch_size("Batch size", 32).make("rate.size").setting
    for said, size in (({}, 32), ({"net.size": "64"}, 64), ({"net.size": "64", "rate.size": "8"}, 8)):
        assert Address(arguments=said).read(one) == size
    assert Address(arguments={"net.size": "many"}).read(one) == 32
    hidden = controls.hidden().make("rate.hidden").setting
    assert Address(arguments={"net.hidden": "64, 32"}).read(hidden) == "64, 32"
    address = Address(arguments={"net.hidden": "a"})
    address.check(controls.SHARED)
    assert "net.hidden=a" in address.problems[0]
