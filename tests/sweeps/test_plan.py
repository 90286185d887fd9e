"""What is known of a sweep: only what is missing is trained, from where an earlier one was left."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.spec import Network, Training
from lib.sweeps import plan as plan_module
from lib.sweeps.events import Continued
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Item, Progress
from tests.sweeps.sweeping import MIXED, made


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", "sharded", pytest.param("processes", marks=pytest.mark.release)])
def test_one_more_epoch_and_one_more_rate_train_only_that(engine, tmp_path, strategy):
    store = Store(tmp_path / "results.sqlite")
    made(MIXED[:2], engine, store, strategy=strategy)
    longer = [replace(training, epochs=3) for training in MIXED[:2]]
    events, found = made([*longer, replace(MIXED[0], learning_rate=0.2)], engine, store, strategy=strategy)
    goes_on = {update.item.training: len(update.curve.epochs) for update in events if isinstance(update, Continued)}
    assert goes_on == dict.fromkeys(longer, 2)
    steps = {
        update.event.epoch
        for update in events
        if isinstance(update, Progress) and update.item.training in longer and hasattr(update.event, "epoch")
    }
    assert steps == {2}, "only the third epoch is trained"
    _, whole = made(longer, engine, strategy=strategy)
    for index in (0, 1):
        assert len(found[index].curve.epochs) == 3
        np.testing.assert_allclose(found[index].curve.losses, whole[index].curve.losses, atol=1e-5)
    _, again = made(MIXED[:2], engine, store, strategy=strategy)
    assert all(update.cached and len(update.curve.epochs) == 2 for update in again.values()), (
        "the shorter one is its start"
    )


@pytest.mark.release
def test_what_was_trained_before_a_stop_is_gone_on_with(engine, tmp_path, monkeypatch):
    """Parameters come every few seconds while a training goes on; after a stop it begins there, not at its start."""
    store, cancel = Store(tmp_path / "results.sqlite"), Cancel()
    items = [Item(Training(Network((64,)), 0.1, 32, 100))]
    for _ in updates(items, engine, store, cancel, Options("sequential")):
        if store.rows("parameters"):
            cancel.set()
    assert cancel.is_set()
    cached = store.rows("parameters")[0]["epochs"]
    cancel = Cancel()
    for update in updates(items, engine, store, cancel, Options("sequential")):
        if isinstance(update, Continued):
            assert len(update.curve.epochs) == cached >= 1
            cancel.set()
    assert cancel.is_set()


@pytest.mark.slow
def test_large_sweeps_keep_thinned_losses(engine, monkeypatch):
    monkeypatch.setattr(plan_module, "MANY", 2)
    monkeypatch.setattr(plan_module, "POINTS", 5)
    _, found = made(MIXED[:3], engine, strategy="vmap")
    _, whole = made(MIXED[:1], engine, strategy="sequential")
    curve = found[0].curve
    assert len(curve.losses) <= 5
    assert curve.every * len(curve.losses) >= 22
    assert curve.losses[0] == pytest.approx(whole[0].curve.losses[: curve.every].mean(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", pytest.param("processes", marks=pytest.mark.release)])
def test_what_goes_on_from_forgotten_parameters_begins_again(engine, tmp_path, monkeypatch, strategy):
    """Their place in the store may be taken by others between two looks."""
    store = Store(tmp_path / "results.sqlite")
    made(MIXED[:2], engine, store, strategy="sequential")
    monkeypatch.setattr(plan_module.Cached, "start", lambda *_: None)
    longer = [replace(training, epochs=3) for training in MIXED[:2]]
    events, found = made(longer, engine, store, strategy=strategy)
    assert any(isinstance(update, Continued) for update in events)
    assert [len(found[i].curve.epochs) for i in (0, 1)] == [3, 3]
    _, whole = made(longer, engine, strategy="sequential")
    np.testing.assert_allclose(found[0].curve.losses, whole[0].curve.losses, atol=1e-4)


@pytest.mark.slow
def test_parameters_of_a_large_sweep_are_not_held_anywhere(engine, tmp_path, monkeypatch):
    store = Store(tmp_path / "results.sqlite")
    monkeypatch.setattr(plan_module, "MAX_PARAMETER_BYTES", 3 * MIXED[0].network.parameter_bytes)
    _, few = made(MIXED[:1], engine, store, strategy="vmap")
    assert few[0].parameters is not None
    assert len(store.rows("parameters")) == 1
    many = [replace(MIXED[0], learning_rate=rate) for rate in (0.11, 0.12, 0.13, 0.14)]
    _, found = made(many, engine, store, strategy="vmap")
    assert all(update.parameters is None for update in found.values())
    assert len(store.rows("parameters")) == 1
