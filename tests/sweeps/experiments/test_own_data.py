# pyright: reportArgumentType=false, reportOptionalIterable=false
"""Readers' own data in workers, pools, stacks and the store, kept apart from MNIST's results."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch
from lib.model.backends.registry import Runtime, versions
from lib.model.data import prepared
from lib.model.data.mnist import Facts
from lib.model.data.prepared import DataSummary, Prepared
from lib.model.spec import MNIST, Network, Training
from lib.sweeps.experiments import mnist_training as experiment
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.storage.records import Curve, Key
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import POOLED, Finished, Options, updates
from lib.sweeps.workers.messages import Item, Job, Ready, TrainingFailed
from lib.sweeps.workers.queue import Cancel
from lib.sweeps.workers.worker import expected_here, perform
from lib.ui.own_data import winner_sentence
from tests import made as experiments
from tests.conftest import draw_patterns


@pytest.fixture
def made():
    rng = np.random.default_rng(3)
    x, y = draw_patterns(rng, rng.random((3, 5), np.float32), 90)
    return prepared.save(DataSummary("three patterns", 5, ("a", "b", "c"), 61, 17, 12, 0.4, "by a test"), x, y)


def with_zeros(made, zeros):
    return replace(made, about=replace(made.about, zeros=zeros))


def trainings(made, epochs=2):
    return [Training(made.network(hidden), 0.1, 7, epochs, data=made.data_set) for hidden in [(), (4,), (6, 3)]]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", "padded", *POOLED])
def test_every_strategy_trains_own_data_and_stores_results_by_digest(strategy, made, engine, store):
    items = [Item(one) for one in trainings(made)]
    told = list(updates(items, engine, store, Cancel(), Options(strategy)))
    assert {one.data.source for one in told if isinstance(one, Ready)} == {"three patterns"}
    found = {one.item: one.curve for one in told if isinstance(one, Finished)}
    assert set(found) == set(items)
    assert all(curve.epochs[-1].steps == 61 // 7 for curve in found.values())
    again = [one for one in updates(items, engine, store, Cancel(), Options(strategy)) if isinstance(one, Finished)]
    assert [one.cached for one in again] == [True] * 3
    (row,) = {row["data"] for row in store.rows("curves")}
    assert row == made.digest


def test_deleted_data_are_reported(made, engine):
    gone = Training(made.network((4,)), batch_size=7, data=made.data_set)
    prepared._path(made.digest).unlink()
    prepared.load.cache_clear()
    for train in (
        lambda: list(updates([Item(gone)], engine, None, Cancel())),
        lambda: list(engine.run([Job(Runtime(), (gone,))], Cancel())),
        lambda: perform(Job(Runtime(), (gone,)), expected_here(Runtime(), made.digest)),
    ):
        with pytest.raises(TrainingFailed, match="no longer in the cache folder; load them again"):
            train()


def test_a_sweep_of_two_data_sets_is_refused(made, engine):
    with pytest.raises(ValueError, match="expected trainings on one data set"):
        list(updates([Item(Training()), Item(trainings(made)[0])], engine, None, Cancel()))


def prepared_from(*files):
    return [one for one in experiment.bring(files, "", "", Cancel()) if isinstance(one, Prepared)]


@pytest.mark.slow
def test_dropped_and_named_files_prepare_the_same_data(tmp_path):
    rows = "".join(f"{place},{place % 3},{'cd'[place % 2]}\n" for place in range(20))
    content = f"a,b,label\n{rows}".encode()
    (made,) = prepared_from(("pets.csv", content))
    assert made.about.name == "pets.csv"
    assert prepared.known(made.digest) == made
    (tmp_path / "pets.csv").write_bytes(content)
    assert prepared_from(("pets.csv", tmp_path / "pets.csv")) == [made], "the same, whether it is dropped or named"


def test_an_unusable_file_is_reported_by_name():
    with pytest.raises(TrainingFailed) as caught:
        prepared_from(("pets.csv", b""))
    assert str(caught.value) == "pets.csv cannot be trained on: “pets.csv” is empty; save it again."


def curve(accuracy, train_s=(1.0, 1.0, 1.0), diverged=None):
    epochs = [Epoch(n, 9, 0.1, accuracy, s, 0.0, list, diverged) for n, s in enumerate(train_s)]
    return Curve(0.0, tuple(epochs), np.ones(3, np.float32))


def of_three(made, name="learning-rate"):
    items = tuple(Item(Training(made.network((4,)), rate, 7, 3, data=made.data_set)) for rate in (0.1, 0.2, 0.3))
    return Experiment(name, items, ("0.1", "0.2", "0.3"), "learning rate", 3)


@pytest.mark.parametrize(
    ("accuracies", "n", "expected"),
    [
        ((0.5, 0.9, 0.895), 1000, ["0.2", "0.3"]),  # the standard error is 0.0095
        ((0.5, 0.9, 0.895), 100_000, ["0.2"]),
        ((1.0, 1.0, 0.99), 1000, ["0.1", "0.2"]),
    ],
)
def test_accuracies_within_a_standard_error_of_the_best_win_with_it(made, accuracies, n, expected):
    assert experiment.winners(of_three(made), [curve(one) for one in accuracies], n) == expected


def test_a_diverged_training_does_not_win(made):
    curves = [curve(0.99, diverged=3), curve(0.5), curve(0.6)]
    assert experiment.winners(of_three(made), curves, 1000) == ["0.3"]


def test_times_are_judged_by_the_common_comparison_rule(made):
    quick, alike, slow = (1.0, 1.0, 1.1, 0.9), (1.0, 1.05, 0.95, 1.1), (9.0, 2.0, 2.1, 1.9)
    curves = [curve(0.9, seconds) for seconds in (slow, quick, alike)]
    assert experiment.winners(of_three(made, "backend"), curves, 1000) == ["0.2", "0.3"]


def test_the_winner_is_compared_with_stored_mnist_results(made, tmp_path):
    shown, store, mnist = of_three(made), Store(tmp_path / "results.sqlite"), Facts("MNIST", "digest")
    assert experiment.both_winners(shown, [None] * 3, store, mnist) is None, "nothing is finished"
    curves = [curve(accuracy) for accuracy in (0.5, 0.95, 0.6)]
    found = experiment.both_winners(shown, curves, store, mnist)
    assert found == (["0.2"], None)
    assert "is unknown: no MNIST results for these settings are stored" in winner_sentence(shown, "pets", *found)
    for item, accuracy in zip(shown.items, (0.5, 0.6, 0.95), strict=True):
        training = replace(item.training, network=Network((4,)), data=MNIST)
        store.put(Key(training, Runtime(), mnist.digest, versions(Runtime())), curve(accuracy))
    found = experiment.both_winners(shown, curves, store, mnist)
    assert found == (["0.2"], ["0.3"])
    assert winner_sentence(shown, "pets", *found) == (
        "pets changes the winner. On pets learning rate 0.2 is most accurate;"
        " on MNIST learning rate 0.3 is most accurate."
    )


@pytest.mark.parametrize(
    ("own", "mnist", "says"),
    [
        (("0.2",), ("0.2",), "pets does not change the winner: 0.2, as on MNIST."),
        (("0.2", "0.3"), ("0.3",), "No change of winner is certain: 0.3 may be best on both."),
        (("0.1", "0.2"), ("0.3",), "pets changes the winner. On pets 0.1 and 0.2 are equally accurate"),
    ],
)
def test_the_sentence_separates_certain_from_possible_winners(made, own, mnist, says):
    told = winner_sentence(of_three(made), "pets", list(own), list(mnist))
    assert told.startswith(says)


def test_an_experiment_moves_to_the_data_and_back_and_keeps_its_settings(made):
    on_mnist = experiments.learning_rate((0.1, 0.2), epochs=2, batch_size=8, hidden="6, 3", backend="numpy")
    moved = experiment.experiment_on(made, on_mnist)
    assert {item.training.network.widths for item in moved.items} == {(5, 6, 3, 3)}
    assert moved.labels == on_mnist.labels
    back = experiment.moved_to_mnist(moved)
    assert (back.items, back.labels, back.data) == (on_mnist.items, ("0.1", "0.2"), MNIST)


def test_a_batch_size_above_the_number_of_rows_is_refused(made):
    with pytest.raises(ValueError, match=r"expected 1 to 61 \(the number of training rows\), got 512"):
        experiment.experiment_on(made, experiments.learning_rate((0.1, 0.2), epochs=2, batch_size=512, hidden="6"))
    assert experiment.that_fit(made, [1, 32, 256]) == (1, 32)
    assert experiment.that_fit(None, [1, 32, 256]) == (1, 32, 256)
    with pytest.raises(ValueError, match="expected one of at most 61"):
        experiment.that_fit(made, [256])


@pytest.mark.parametrize(("zeros", "stays"), [(0.0, False), (0.5, False), (0.75, True), (None, True)])
def test_zero_skipping_backends_are_compared_only_with_many_zeros(made, zeros, stays):
    runtimes, of_data = (Runtime(), Runtime("numpy"), Runtime("numba")), with_zeros(made, zeros)
    items = tuple(Item(Training(batch_size=8), runtime) for runtime in runtimes)
    asked = Experiment("backend", items, tuple(runtime.label for runtime in runtimes), "backend")
    moved = experiment.experiment_on(of_data, asked)
    expected = runtimes if stays else runtimes[:2]
    assert tuple(item.runtime for item in moved.items) == expected
    assert moved.labels == tuple(runtime.label for runtime in expected)
    gaps = experiment.not_used(of_data, runtimes)
    assert [runtime.backend for runtime, _, _ in gaps] == ([] if stays else ["numba"])


def test_the_default_replaces_zero_skipping_when_zeros_are_few(made):
    asked = experiments.learning_rate((0.1, 0.2), epochs=2, batch_size=8, hidden="6", backend="numba")
    moved = experiment.experiment_on(with_zeros(made, 0.018), asked)
    assert [item.runtime for item in moved.items] == [Runtime()] * 2
    assert moved.labels == asked.labels
    assert experiment.experiment_on(None, asked) == asked, "MNIST"
