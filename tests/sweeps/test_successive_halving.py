"""Successive halving: what it costs, and that it finds what the full grid finds."""

from dataclasses import replace

import numpy as np
import pytest

from lib.spec import Network, Training
from lib.storage.store import Store
from lib.sweeps.successive_halving import cost_epochs, halved, rungs
from lib.sweeps.sweep import Options
from lib.workers.cancel import Cancel
from lib.workers.messages import Item
from tests.sweeps.sweeping import by_place, made


def test_halving_costs_what_forty_trainings_do():
    assert cost_epochs(rungs(256, 16)) == 40 * 16
    assert rungs(3, 16)[-1].epochs == 16
    assert rungs(1, 5) == rungs(1, 5, 3)
    with pytest.raises(ValueError, match="one in 1"):
        rungs(8, 8, 1)


def test_halving_finds_the_winner_of_the_full_grid(engine, tmp_path):
    rates = np.geomspace(0.003, 3.0, 16)
    trainings = [Training(Network((16,)), float(rate), 512, 4) for rate in rates]
    items = [Item(training) for training in trainings]
    store = Store(tmp_path / "results.sqlite")
    events = list(halved(items, engine, store, Cancel(), Options("vmap")))
    found = by_place(items, events)
    assert sorted(found) == list(range(16))
    epochs = [len(found[i].curve.epochs) for i in range(16)]
    assert sorted(set(epochs)) == [1, 4]
    assert epochs.count(4) == 4
    _, full = made(trainings, engine, strategy="vmap")
    best = max(full, key=lambda i: full[i].curve.epochs[-1].validation_accuracy)
    winner = max(found, key=lambda i: found[i].curve.epochs[-1].validation_accuracy)
    accuracy = [full[i].curve.epochs[-1].validation_accuracy for i in (best, winner)]
    assert accuracy[0] - accuracy[1] < 0.005, "the winner is as good as the full grid's"
    with pytest.raises(ValueError, match="one number of epochs"):
        list(halved([items[0], Item(replace(trainings[0], epochs=7))], engine, store, Cancel()))
