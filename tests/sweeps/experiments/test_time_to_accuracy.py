"""Epochs to an accuracy: chosen on one seed, judged on others, and never drawn again."""

from dataclasses import replace

import numpy as np
import pytest

from lib.labs.which_library.race import sentence, table
from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime, versions
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import Cell, Standing
from lib.sweeps.experiments.time_to_accuracy import (
    EPOCHS,
    RATES,
    SEEDS,
    TUNED_ON,
    TrialTrained,
    epochs_to,
    learn,
    learned,
    needed,
    trials,
)
from lib.sweeps.storage.records import Curve, Key
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from tests.labs.test_race import at, raced

NETWORK = Network((128,))


def curves(by_seed, rate=0.1, other=0.3):
    """Learned at batch size 32: the rate's curves by seed, and another rate that never learns."""
    made = {Training(NETWORK, rate, 32, EPOCHS[32], seed): curve for seed, curve in by_seed.items()}
    return made | {Training(NETWORK, other, 32, EPOCHS[32], seed): (0.1,) * 8 for seed in by_seed}


GOOD = {TUNED_ON: (0.9, 0.96), 1: (0.9, 0.94, 0.95), 2: (0.95,), 3: (0.9, 0.94)}


def test_three_seeds_and_more_are_judged_and_none_is_the_one_it_was_tuned_on():
    assert len(SEEDS) >= 3
    assert TUNED_ON not in SEEDS
    assert len(trials(NETWORK)) == sum(len(rates) for rates in RATES.values()) * (1 + len(SEEDS))


def test_epochs_are_counted_and_a_run_that_does_not_arrive_is_told():
    found = needed(curves(GOOD), NETWORK, 32, 0.95)
    assert found is not None
    assert (found.rate, found.epochs, found.reached) == (0.1, (3, 1, None), (1, 3))
    assert "2 of 3 runs" in found.words


def test_the_rate_is_chosen_on_its_own_seed_alone():
    """The other rate is better for all judged seeds, but not for the one that chooses."""
    known = curves(GOOD) | {Training(NETWORK, 0.3, 32, EPOCHS[32], seed): (0.99,) for seed in SEEDS}
    found = needed(known, NETWORK, 32, 0.95)
    assert found is not None
    assert found.rate == 0.1


def test_nothing_is_said_before_all_runs_are_there():
    known = curves(GOOD)
    del known[Training(NETWORK, 0.3, 32, EPOCHS[32], 2)]
    assert needed(known, NETWORK, 32, 0.95) is None
    assert needed({}, NETWORK, 7, 0.95) is None


@pytest.mark.parametrize(("curve", "expected"), [((), None), ((0.95,), 1), ((0.9, 0.9), None), ((0.9, 0.97, 0.9), 2)])
def test_epochs_to(curve, expected):
    assert epochs_to(curve, 0.95) == expected


def standing(backend, size, epoch_s, evaluation_s=0.1):
    cell = Cell(Runtime(backend), size)
    return {cell: Standing(cell, (epoch_s,) * 3, (epoch_s,), False, (), "2026-11-01T00:00:00", evaluation_s)}


def text(learned, target=0.95):
    made = raced(standing("numpy", 32, 1.0), learned)
    return table([Runtime("numpy")], (32,), made, at("target", target=target))["rows"][0]["cells"][0]


def test_the_table_multiplies_epochs_with_epoch_and_evaluation():
    cell = text(curves({**GOOD, 3: (0.9, 0.95)}))
    assert cell["text"] == "2.2 s", "two epochs of 1.0 + 0.1 s, to two digits: one to three epochs justify no more"
    assert "3 of 3 runs reached it within 8 epochs (1, 2, 3), at learning rate 0.1" in cell["title"]
    assert "2.2" in cell["title"]
    assert text(curves(GOOD))["text"].endswith("(2 of 3)")
    assert text(curves(GOOD), 0.99)["text"] == "not reached"
    assert text({})["text"] == "–", "not counted yet"


def test_the_sentence_warns_until_accuracy_is_compared():
    known = standing("numpy", 32, 1.0) | standing("numpy", 128, 0.5)
    assert "needs more epochs for the same accuracy" in sentence(raced(known), at())
    assert "To 95% accuracy the fastest is NumPy at batch size 32" in sentence(raced(known, curves(GOOD)), at("target"))


@pytest.mark.slow
def test_a_real_count_is_kept_and_not_made_again(engine, tmp_path):
    store, todo = Store(tmp_path / "r.sqlite"), [Training(Network((8,)), 0.3, 512, 2, seed) for seed in (0, 1)]
    made = [one for one in learn(todo, engine, store, Cancel(), Request()) if isinstance(one, TrialTrained)]
    assert [len(one.accuracies) for one in made] == [2, 2]
    again = [one for one in learn(todo, engine, store, Cancel(), Request()) if not isinstance(one, Note)]
    assert {one.training: one.accuracies for one in again} == {one.training: one.accuracies for one in made}
    assert learned(store, Network((128,)), engine.known_facts()) == {}


def test_what_is_learned_belongs_to_its_images_whichever_they_are(tmp_path):
    store, trial = Store(tmp_path / "r.sqlite"), trials(NETWORK)[0]
    digits = Facts("scikit-learn digits", "digest")
    epochs = tuple(Epoch(number, 1, 0.4, 0.9, 0.1, 0.01, no_parameters) for number in range(trial.epochs))
    store.put(
        Key(trial, Runtime(), digits.digest, versions(Runtime())), Curve(0.1, epochs, np.ones(trial.epochs, np.float32))
    )
    assert learned(store, NETWORK, digits) == {trial: (0.9,) * trial.epochs}
    assert learned(store, NETWORK, replace(digits, digest="another")) == learned(store, NETWORK, None) == {}
