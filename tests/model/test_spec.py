# pyright: reportArgumentType=false
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import MAX_WIDTH, DataSet, Network, Training
from tests.model.programs import said_by

WIDTHS = st.lists(st.integers(1, MAX_WIDTH), max_size=8)


@given(WIDTHS, st.sampled_from([",", ", ", "→", " → ", "->", " ", ";", "–"]))
def test_widths_are_parsed_with_any_separator(widths, separator):
    assert Network.parse(separator.join(map(str, widths))).hidden == tuple(widths)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("128, abc", "“abc”"),
        ("0", "got 0"),
        ("5000", "got 5,000"),
        ("-3", "“-3”"),
        ("1.5", "“1.5”"),
        ("9," * 9, "at most 8, got 9"),
    ],
)
def test_bad_widths_are_reported(text, wanted):
    with pytest.raises(ValueError, match="expected") as caught:
        Network.parse(text)
    assert wanted in str(caught.value)


def test_counts_of_the_articles_network():
    network = Network((128,))
    assert network.n_parameters == 101_770
    # The first layer has two products, without an input gradient; the others have three. Two operations each.
    assert network.step_flops(32) == 2 * 32 * (2 * 784 * 128 + 3 * 128 * 10)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"learning_rate": 0.0}, "learning rate"),
        ({"learning_rate": float("nan")}, "learning rate"),
        ({"batch_size": 0}, "batch size"),
        ({"batch_size": 48_001}, "48,001"),
        ({"epochs": 0}, "epochs"),
        ({"seed": -1}, "seed"),
        ({"batch_size": 32.5}, "batch size: expected a whole number, got 32.5"),
        ({"epochs": True}, "epochs: expected a whole number, got True"),
        ({"seed": "0"}, "seed: expected a whole number, got '0'"),
        ({"learning_rate": "0.1"}, "learning rate: expected a number, got '0.1'"),
    ],
)
def test_bad_trainings_are_refused_with_a_sentence(change, wanted):
    with pytest.raises(ValueError, match=r"expected.*got.*(choose|usual|enter)") as caught:
        Training(**change)
    assert wanted in str(caught.value)


def test_numpy_numbers_are_accepted():
    given = Training(Network((np.int64(64),)), np.float64(0.5), np.int32(8), np.uint8(2), np.int16(1))
    assert given == Training(Network((64,)), 0.5, 8, 2, 1)
    assert all(type(value) is int for value in (*given.network.hidden, given.batch_size, given.epochs, given.seed))
    assert type(given.learning_rate) is float


def test_a_long_text_is_neither_parsed_nor_repeated():
    with pytest.raises(ValueError, match="expected at most 200 characters, got 20,000,000") as caught:
        Network.parse("1, " * (20_000_000 // 3) + "xx")
    assert len(str(caught.value)) < 200


@pytest.mark.slow
def test_pages_import_neither_tensorflow_nor_jax():
    code = "import sys; from lib.ui import lab; from lib.labs import mnist_training; print(*sys.modules)"
    assert not {"jax", "tensorflow", "keras"} & set(said_by(code).split())


def test_a_training_describes_its_data_unless_it_is_mnist():
    described = Training(Network((8,)), 0.1, 32, 2, 1).described()
    assert described == {"network": {"hidden": (8,)}, "learning_rate": 0.1, "batch_size": 32, "epochs": 2, "seed": 1}
    described = Training(Network((8,), 5, 3), 0.1, 32, 2, 1, DataSet("f" * 32, 61, 9, 0.5)).described()
    assert described["network"] == {"hidden": (8,), "n_inputs": 5, "n_classes": 3}
    assert described["data"] == {"digest": "f" * 32, "n_train": 61, "n_validation": 9, "chance": 0.5}


@pytest.mark.parametrize(
    ("hidden", "inputs", "classes", "says"),
    [
        ((8,), 0, 10, "inputs of a network: expected 1 to 4,096, got 0"),
        ((8,), 4_097, 10, "inputs of a network: expected 1 to 4,096, got 4,097"),
        ((8,), 5, 1, "classes of a network: expected 2 to 100, got 1"),
        ((8,), 5, 101, "classes of a network: expected 2 to 100, got 101"),
        ((32.5,), 5, 3, "width of a hidden layer: expected a whole number, got 32.5"),
        ((True,), 5, 3, "width of a hidden layer: expected a whole number, got True"),
    ],
)
def test_bad_networks_are_refused_with_a_sentence(hidden, inputs, classes, says):
    with pytest.raises(ValueError, match=says):
        Network(hidden, inputs, classes)


@pytest.mark.parametrize(("n", "accuracy", "points"), [(12_000, 0.95, 0.56), (12_000, 0.5, 1.29), (30, 0.9, 15.5)])
def test_the_gap_by_chance_is_two_standard_errors_of_a_difference(n, accuracy, points):
    assert 100 * DataSet("f", 4 * n, n).gap_by_chance(accuracy, accuracy) == pytest.approx(points, rel=0.01)
