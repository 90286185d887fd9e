"""Sweeps through the real engine: grouping, serving what is kept, and what a run shows while it goes on."""

import threading
import time

import numpy as np
import pytest

from lib.backends.base import Epoch
from lib.backends.registry import Runtime
from lib.experiments.results import Results
from lib.spec import Network, Training
from lib.storage.store import Store
from lib.sweeps.events import Finished, Void
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.machine_lock import Holder
from lib.workers.messages import Item, Progress

FAST = [Item(Training(Network((8,)), rate, 4096, 1), Runtime("numpy")) for rate in (0.1, 0.3)]


def finished(items, engine, store, **options):
    events = list(updates(items, engine, store, Cancel(), Options(**options)))
    return events, by_place(items, events)


def by_place(items, events):
    """What finished, by its place among the items."""
    found = {update.item: update for update in events if isinstance(update, Finished)}
    return {place: found[item] for place, item in enumerate(items) if item in found}


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


LONGER = [Item(Training(Network((9,)), 0.1, 32, 3), Runtime("numpy"))]


def in_threads(count, function):
    """What so many calls at once return."""
    results: list = []
    threads = [threading.Thread(target=lambda: results.append(function())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


def test_viewers_share_a_training_that_is_under_way(engine, tmp_path):
    """One is trained, and all see all of it, whichever strategy they asked for: so would they if it were kept
    already."""
    store, strategies = Store(tmp_path / "results.sqlite"), iter(["auto", "sequential", "auto"])
    results = in_threads(3, lambda: finished(LONGER, engine, store, strategy=next(strategies)))
    assert len(results) == 3
    assert len({id(found[0].curve) for _, found in results}) == 1, "the very same seconds"
    for events, _ in results:
        assert [u.event.epoch for u in events if isinstance(u, Progress) and isinstance(u.event, Epoch)] == [0, 1, 2]


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
