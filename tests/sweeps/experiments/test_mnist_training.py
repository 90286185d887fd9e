"""From controls to trainings: what is trained, what the lines are called, and what is refused, in one sentence."""

import pytest

from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime, unavailable
from lib.model.spec import MAX_RATE
from lib.sweeps.experiments import lines, mnist_training
from lib.sweeps.strategies import AUTO
from tests import made


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: lines.rates_between(0.1, 0.1, 4), "range"),
        (lambda: lines.rates_between(0.001, 1, 1), "2 to 16"),
        (lambda: made.batch_size([], epochs=3, rate=0.1, hidden="128"), "at least one, got none"),
        (lambda: made.depth([], epochs=3, rate=0.1, batch_size=32), "at least one network"),
        (lambda: made.depth([], own="12; x", epochs=3, rate=0.1, batch_size=32), "“x”"),
        (lambda: made.learning_rate((0.1, 1.0), epochs=3, batch_size=50_000, hidden="128"), "50,000"),
    ],
)
def test_bad_controls_are_one_sentence(make, wanted):
    with pytest.raises(ValueError, match="expected") as caught:
        make()
    assert wanted in str(caught.value)


def test_lines_are_in_order_and_each_once():
    experiment = made.batch_size((512, 1, 32, 32), epochs=3, rate=0.01, hidden="128")
    assert experiment.labels == ("1", "32", "512")
    assert [item.training.batch_size for item in experiment.items] == [1, 32, 512]


def test_own_networks_follow_the_chosen_ones_without_repeating_them():
    experiment = made.depth(("128", "256"), own="64; 128; None", epochs=3, rate=0.1, batch_size=32)
    assert [item.training.network.hidden for item in experiment.items] == [(128,), (256,), (64,), ()]


def test_another_backend_is_followed_by_the_default_one_trained_one_by_one():
    values = {"epochs": 1, "batch_size": 32, "hidden": "9"}
    alone = made.learning_rate((0.1, 1.0), **values)
    beside = made.learning_rate((0.1, 1.0), **values, backend="numpy")
    assert (alone.strategy, beside.strategy) == (AUTO, "sequential")
    assert [item.runtime for item in beside.items] == [Runtime("numpy")] * 2 + [Runtime()] * 2
    assert list(beside.compared) == [0, 1]
    assert beside.labels[:2] == alone.labels
    assert all(label.endswith(f"({BACKENDS[DEFAULT].label})") for label in beside.labels[2:])


def test_backends_are_those_that_run_here_and_the_missing_are_explained():
    experiment = made.backends(batch_size=32, epochs=1, rate=0.1, hidden="9")
    assert len({item.training for item in experiment.items}) == 1
    assert all(unavailable(item.runtime) is None for item in experiment.items)
    assert not {item.runtime for item in experiment.items} & {
        runtime for runtime, *_ in mnist_training.missing_backends()
    }
    assert all(reason and remedy for _, reason, remedy in mnist_training.missing_backends())


def test_rates_keep_both_ends():
    assert lines.rates_between(0.01, MAX_RATE, 2) == (0.01, MAX_RATE)
