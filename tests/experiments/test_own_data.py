"""Data that somebody brought, on their way: into workers, pools, stacks and the store, and never beside MNIST's."""

import numpy as np
import pytest

from lib.backends.registry import Runtime
from lib.data.own import prepared
from lib.data.own.prepared import About
from lib.spec import Network, Training
from lib.storage.records import Key
from lib.storage.store import Store
from lib.sweeps.events import Finished
from lib.sweeps.process_pool import Expected, OtherVersions, PoolTask, perform
from lib.sweeps.strategies import POOLED
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.messages import Item, Ready, TrainingFailed
from tests.conftest import draw_patterns


@pytest.fixture
def made():
    rng = np.random.default_rng(3)
    x, y = draw_patterns(rng, rng.random((3, 5), np.float32), 90)
    return prepared.save(About("three patterns", 5, ("a", "b", "c"), 61, 17, 12, 0.4, "by a test"), x, y)


def trainings(made, epochs=2):
    return [Training(made.network(hidden), 0.1, 7, epochs, data=made.data_set) for hidden in [(), (4,), (6, 3)]]


@pytest.mark.parametrize("strategy", ["sequential", "padded", *POOLED])
def test_every_strategy_trains_it_and_stores_it_under_its_digest(strategy, made, engine, tmp_path):
    store, items = Store(tmp_path / "results.sqlite"), [Item(one) for one in trainings(made)]
    told = list(updates(items, engine, store, Cancel(), Options(strategy)))
    assert {one.data.source for one in told if isinstance(one, Ready)} == {"three patterns"}
    found = {one.item: one.curve for one in told if isinstance(one, Finished)}
    assert set(found) == set(items)
    assert all(curve.epochs[-1].steps == 61 // 7 for curve in found.values())
    again = [one for one in updates(items, engine, store, Cancel(), Options(strategy)) if isinstance(one, Finished)]
    assert [one.cached for one in again] == [True] * 3
    (row,) = {row["data"] for row in store.rows("curves")}
    assert row == made.digest


def test_numpy_and_jax_agree_on_it_through_their_workers(made, engine):
    accuracies = []
    for runtime in (Runtime(), Runtime("numpy")):
        told = updates([Item(one, runtime) for one in trainings(made, 4)], engine, None, Cancel())
        accuracies.append([one.curve.epochs[-1].validation_loss for one in told if isinstance(one, Finished)])
    np.testing.assert_allclose(*accuracies, rtol=1e-4)


def test_what_is_gone_is_said_in_a_sentence(made, engine):
    gone = Training(made.network((4,)), batch_size=7, data=made.data_set)
    path = prepared._path(made.digest)
    path.unlink()
    with pytest.raises(TrainingFailed, match="no longer in the cache folder; bring them again"):
        list(updates([Item(gone)], engine, None, Cancel()))
    with pytest.raises(TrainingFailed, match="no longer in the cache folder; bring them again"):
        list(engine.run(Runtime(), [gone], Cancel()))
    prepared.load.cache_clear()
    task = PoolTask(Runtime(), (gone,), Expected.here(Runtime(), made.digest))
    with pytest.raises(OtherVersions, match="no longer in the cache folder"):
        perform(task)


def test_two_data_sets_make_no_sweep(made, engine):
    with pytest.raises(ValueError, match="expected trainings on one data set"):
        list(updates([Item(Training()), Item(trainings(made)[0])], engine, None, Cancel()))


def test_the_key_depends_on_the_data(made):
    on_own = trainings(made)[0]
    on_mnist = Training(Network(()), 0.1, 7, 2)
    digests = {Key(one, Runtime(), "same", "versions").digest() for one in (on_own, on_mnist)}
    assert len(digests) == 2
