"""Sweeps: grouping, serving what is kept, and what a run shows while it goes on."""

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends import registry
from lib.model.backends.base import Epoch, Steps
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network, Training
from lib.sweeps.events import Finished, Picked, Void
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import QUICKEST, quickest_runtime
from lib.sweeps.sweep import Options, sweep, updates
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.machine_lock import Holder
from lib.sweeps.workers.messages import Item, Progress, WorkerDied
from lib.sweeps.workers.notes import State
from lib.sweeps.workers.queue import Request
from tests.sweeps.sweeping import MIXED, by_place, made


@pytest.fixture
def engine(stub_engine):
    """These tests need no real training."""
    return stub_engine


FAST = [Item(Training(Network((8,)), rate, 4096, 1), Runtime("numpy")) for rate in (0.1, 0.3)]


def finished(items, engine, store, **options):
    events = list(updates(items, engine, store, Cancel(), Options(**options)))
    return events, by_place(items, events)


def test_what_is_kept_is_served_and_the_rest_trained(engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    _, first = finished(FAST, engine, store)
    assert [first[i].cached for i in (0, 1)] == [False, False]
    more = [*FAST, Item(Training(Network((8,)), 0.2, 4096, 1), Runtime("numpy"))]
    events, second = finished(more, engine, store)
    assert [second[i].cached for i in (0, 1, 2)] == [True, True, False]
    assert {update.item for update in events if isinstance(update, Progress)} == {more[2]}
    np.testing.assert_array_equal(first[1].curve.losses, second[1].curve.losses)
    assert second[0].curve.measured_at == first[0].curve.measured_at, "a kept time says when it was taken"
    _, fresh = finished(FAST, engine, store, fresh=True)
    assert not fresh[0].cached
    np.testing.assert_array_equal(first[0].curve.losses, fresh[0].curve.losses, err_msg="training is deterministic")


LONGER = [Item(Training(Network((9,)), 0.1, 4, 3), Runtime("numpy"))]  # a stub takes two seconds for it


def in_threads(count, function):
    """What so many calls at once return."""
    results: list = []
    threads = [threading.Thread(target=lambda: results.append(function())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


@pytest.mark.slow
def test_viewers_share_a_training_that_is_under_way(engine, tmp_path):
    """One is trained, and all see all of it, whichever strategy they asked for: so would they if it were kept
    already."""
    store, strategies = Store(tmp_path / "results.sqlite"), iter(["auto", "sequential", "auto"])
    results = in_threads(3, lambda: finished(LONGER, engine, store, strategy=next(strategies)))
    assert len(results) == 3
    assert len({id(found[0].curve) for _, found in results}) == 1, "the very same seconds"
    for events, _ in results:
        assert [u.event.epoch for u in events if isinstance(u, Progress) and isinstance(u.event, Epoch)] == [0, 1, 2]


@pytest.mark.slow
def test_who_comes_while_it_trains_sees_it_from_its_first_epoch_on_and_trains_only_the_rest(
    engine, tmp_path, monkeypatch
):
    store, trained = Store(tmp_path / "results.sqlite"), []
    run = engine.run

    def counted(runtime, trainings, *rest):
        trained.extend(trainings)
        return run(runtime, trainings, *rest)

    monkeypatch.setattr(engine, "run", counted)
    first = updates(LONGER, engine, store, Cancel(), Options())
    begun = [next(first)]
    while not any(isinstance(u, Progress) and isinstance(u.event, Epoch) for u in begun):
        begun.append(next(first))
    later: list = []
    follower = threading.Thread(
        target=lambda: later.extend(updates([*FAST, *LONGER], engine, store, Cancel(), Options()))
    )
    follower.start()
    begun += first
    follower.join(120)
    (curve,) = (update.curve for update in later if isinstance(update, Finished) and update.item == LONGER[0])
    assert curve is begun[-1].curve
    epochs = [
        u.event.epoch for u in later if isinstance(u, Progress) and u.item == LONGER[0] and isinstance(u.event, Epoch)
    ]
    assert epochs == [0, 1, 2]
    assert sorted(map(str, trained)) == sorted(str(item.training) for item in (*FAST, *LONGER))


@pytest.mark.slow
def test_a_sweep_does_not_wait_for_a_later_one_of_the_same_viewer_that_boarded_its_training_first(engine, tmp_path):
    """As where four experiments open with the page: who comes first to look at the store is not who goes first."""
    store, sooner, later = Store(tmp_path / "results.sqlite"), Request("a viewer"), Request("a viewer")
    long, short = (Item(Training(Network((9, 9)), 0.1, *how), Runtime("numpy")) for how in ((16, 12), (64, 3)))
    seen: list = []
    other = threading.Thread(
        target=lambda: seen.extend(updates([long, short], engine, store, Cancel(), Options(), later))
    )
    other.start()
    while not any(isinstance(update, Progress) for update in list(seen)):
        time.sleep(0.01)
    *_, last = updates([short], engine, store, Cancel(), Options(), sooner)
    assert isinstance(last, Finished)
    assert not any(isinstance(update, Finished) for update in list(seen)), "it waited for the long one"
    other.join(120)
    ends = [(update.item, update.cached) for update in seen if isinstance(update, Finished)]
    assert ends == [(long, False), (short, True)], "what was made meanwhile is not made again"


@pytest.mark.slow
def test_what_one_gives_up_another_goes_on_with(engine, tmp_path):
    cancel, store = Cancel(), Store(tmp_path / "results.sqlite")
    first = updates(LONGER, engine, store, cancel, Options())
    while not isinstance(next(first), Progress):
        pass
    later: list = []
    follower = threading.Thread(target=lambda: later.extend(updates(LONGER, engine, store, Cancel(), Options())))
    follower.start()
    while not any(isinstance(update, Progress) for update in list(later)):
        time.sleep(0.01)
    cancel.set()
    assert not [update for update in first if isinstance(update, Finished)]
    follower.join(120)
    assert Void((LONGER[0],)) in later
    assert isinstance(later[-1], Finished)


def test_who_follows_is_woken_by_a_cancel(engine, tmp_path):
    store, cancel = Store(tmp_path / "results.sqlite"), Cancel()
    first = updates(LONGER, engine, store, Cancel(), Options())
    while not isinstance(next(first), Progress):
        pass
    seen: list = []
    follower = threading.Thread(target=lambda: seen.extend(updates(LONGER, engine, store, cancel, Options())))
    follower.start()
    while not any(isinstance(update, Progress) for update in list(seen)):
        time.sleep(0.01)
    cancel.set()
    follower.join(30)
    assert not follower.is_alive()
    first.close()


@pytest.mark.parametrize(("cached", "fresh"), [(True, True), (False, False)], ids=["asked anew", "not cached"])
def test_what_is_not_to_be_served_is_not_shared(engine, tmp_path, cached, fresh):
    store = Store(tmp_path / "results.sqlite") if cached else None
    results = in_threads(2, lambda: finished(FAST, engine, store, fresh=fresh)[1])
    assert len({id(found[0].curve) for found in results}) == 2


def test_what_was_timed_beside_another_program_says_so_whenever_it_is_shown(engine, tmp_path, monkeypatch):
    store, items = Store(tmp_path / "results.sqlite"), FAST[:1]
    other = Holder("debugged.py", 17, 0.0)
    monkeypatch.setattr(engine._machine, "take", lambda: True)
    monkeypatch.setattr(engine._machine, "beside", other)
    _, found = finished(items, engine, store)
    assert found[0].curve.warnings == (other.disturbs,)
    monkeypatch.setattr(engine._machine, "beside", None)
    events, again = finished(items, engine, store)
    assert again[0].cached
    assert again[0].curve.warnings == (other.disturbs,)
    results = Results(items, ["a"])
    for update in events:
        results.add(update)
    assert results.notices == (other.disturbs,)
    assert finished(items, engine, store, fresh=True)[1][0].curve.warnings == ()


@pytest.mark.slow
def test_the_call_of_the_readme(tmp_path):
    rows = list(sweep(MIXED[:2], "sequential", store=Store(tmp_path / "results.sqlite")))
    assert sorted(row["learning_rate"] for row in rows) == [0.1, 0.3]  # type: ignore[type-var]
    assert all(0.1 < row["validation_accuracy"] < 1 and row["train_s"] > 0 for row in rows)  # type: ignore[operator]


def test_equal_trainings_are_made_once_and_reported_twice(engine, tmp_path, monkeypatch):
    items = [Item(MIXED[0]), Item(MIXED[1]), Item(MIXED[0])]
    events = list(updates(items, engine, None, Cancel(), Options("sequential")))
    assert len([update for update in events if isinstance(update, Finished)]) == 2
    assert len([update for update in events if isinstance(update, Picked)]) == 1
    results = Results(items, ["a", "b", "a again"])
    for update in events:
        results.add(update)
    assert [line.state for line in results.lines] == [State.DONE] * 3
    assert results.lines[2].curve is results.lines[0].curve
    monkeypatch.setattr("lib.sweeps.sweep.shared_engine", lambda: engine)
    rows = list(sweep(items, "sequential", store=Store(tmp_path / "results.sqlite")))
    assert sorted(row["learning_rate"] for row in rows) == [0.1, 0.1, 0.3]  # type: ignore[type-var]


@pytest.mark.slow
@pytest.mark.skipif(unavailable(Runtime(QUICKEST)) is not None, reason="Numba is not installed")
def test_who_names_no_backend_gets_the_one_that_is_quickest_and_can_use_the_strategy(tmp_path, monkeypatch):
    store, asked = Store(tmp_path / "results.sqlite"), [replace(MIXED[0], epochs=1), replace(MIXED[1], epochs=1)]
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)

    def backends(strategy, trainings=asked):
        return [row["backend"] for row in sweep(trainings, strategy, store=store)]

    assert backends("auto") == [QUICKEST, QUICKEST]
    assert backends("vmap") == ["jax-epoch", "jax-epoch"], "stacks are JAX's"
    assert backends("auto", [asked[0], Item(asked[1], Runtime("numpy"))]) == [QUICKEST, "numpy"], "who names one"
    assert quickest_runtime(zeros=0.1) == Runtime(), "nothing is gained where inputs are not zero"
    monkeypatch.setattr(registry, "_installed", lambda _, name: name != "numba")
    assert backends("auto") == ["jax-epoch", "jax-epoch"]


def test_bad_sweeps_are_one_sentence(engine, monkeypatch):
    with pytest.raises(ValueError, match="expected at least one training, got none"):
        list(sweep([]))
    with pytest.raises(ValueError, match="expected auto or one of sequential"):
        Options("fastest")
    with pytest.raises(ValueError, match="got NumPy; choose sequential or processes"):
        list(updates([Item(MIXED[0], Runtime("numpy"))], engine, None, Cancel(), Options("vmap")))
    with pytest.raises(ValueError, match="expected trainings by Numba, zeros left out, got JAX"):
        made(MIXED[:2], engine, strategy="cores")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ValueError, match="expected an executor or DASK_SCHEDULER_ADDRESS, got neither"):
        made(MIXED[:2], engine, strategy="cluster")


def test_a_stop_keeps_what_is_finished(engine, tmp_path):
    store, cancel = Store(tmp_path / "results.sqlite"), Cancel()
    items = [Item(replace(MIXED[0], learning_rate=rate, batch_size=256, epochs=30)) for rate in (0.1, 0.2, 0.3)]
    items.insert(0, Item(MIXED[1]))
    events = []
    for update in updates(items, engine, store, cancel, Options("sequential")):
        events.append(update)
        if isinstance(update, Finished):
            cancel.set()
    assert [update.item for update in events if isinstance(update, Finished)] == items[:1]
    assert isinstance(events[-1], Finished), "nothing is told after the stop"
    again = updates(items[:1], engine, store, Cancel(), Options("sequential"))
    assert [update.cached for update in again if isinstance(update, Finished)] == [True]


def test_a_sweep_whose_worker_was_killed_resumes(engine, tmp_path):
    """What was finished is served, the rest is trained, by a new worker."""
    store = Store(tmp_path / "results.sqlite")
    items = [Item(MIXED[1]), Item(Training(Network((256,)), 0.1, 32, 30))]

    def kill_in_the_second():
        for update in updates(items, engine, store, Cancel(), Options("sequential")):
            if isinstance(update, Progress) and update.item == items[1] and isinstance(update.event, Steps):
                os.kill(engine.pids()["jax/cpu"], signal.SIGKILL)

    with pytest.raises(WorkerDied, match="Nothing else is lost"):
        kill_in_the_second()
    shorter = [items[0], Item(replace(items[1].training, epochs=1))]
    again = updates(shorter, engine, store, Cancel(), Options("sequential"))
    assert {place: update.cached for place, update in by_place(shorter, again).items()} == {0: True, 1: False}
