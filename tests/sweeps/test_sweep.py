"""Sweeps: grouping, serving what is kept, and what a run shows while it goes on."""

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends import registry
from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime, unavailable
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps import sweep as module
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Curve
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import QUICKEST, Limits, Picked, quickest_runtime
from lib.sweeps.sweep import Continued, Finished, Options, Plan, ToTrain, share, sweep, tell, train, updates
from lib.sweeps.workers.messages import (
    Checkpoint,
    Item,
    Progress,
    Ready,
    Restarted,
    State,
    Trained,
    Waiting,
    WorkerDied,
)
from lib.sweeps.workers.queue import Cancel, Holder, Request, Urgency
from lib.timing import disturbance
from lib.timing.disturbance import Disturbance, Watch
from tests.sweeps.sweeping import MIXED, by_place, made

FAST = [Item(Training(Network((8,)), rate, 4096, 1), Runtime("numpy")) for rate in (0.1, 0.3)]


def finished(items, stub_engine, store, **options):
    events = list(updates(items, stub_engine, store, Cancel(), Options(**options)))
    return events, by_place(items, events)


def test_what_is_kept_is_served_and_the_rest_trained(stub_engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    _, first = finished(FAST, stub_engine, store)
    assert [first[i].cached for i in (0, 1)] == [False, False]
    more = [*FAST, Item(Training(Network((8,)), 0.2, 4096, 1), Runtime("numpy"))]
    events, second = finished(more, stub_engine, store)
    assert [second[i].cached for i in (0, 1, 2)] == [True, True, False]
    assert {update.item for update in events if isinstance(update, Progress)} == {more[2]}
    np.testing.assert_array_equal(first[1].curve.losses, second[1].curve.losses)
    assert second[0].curve.measured_at == first[0].curve.measured_at, "a kept time says when it was taken"
    _, fresh = finished(FAST, stub_engine, store, fresh=True)
    assert not fresh[0].cached
    np.testing.assert_array_equal(first[0].curve.losses, fresh[0].curve.losses, err_msg="training is deterministic")


LONGER = [Item(Training(Network((9,)), 0.1, 4, 3), Runtime("numpy"))]  # a stub takes two seconds for it


def in_threads(count, function):
    results: list = []
    threads = [threading.Thread(target=lambda: results.append(function())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


@pytest.mark.slow
def test_who_comes_while_it_trains_sees_it_from_its_first_epoch_on_and_trains_only_the_rest(
    stub_engine, tmp_path, monkeypatch
):
    store, trained = Store(tmp_path / "results.sqlite"), []
    run = stub_engine.run

    def counted(runtime, trainings, *rest):
        trained.extend(trainings)
        return run(runtime, trainings, *rest)

    monkeypatch.setattr(stub_engine, "run", counted)
    first = updates(LONGER, stub_engine, store, Cancel(), Options())
    begun = [next(first)]
    while not any(isinstance(u, Progress) and isinstance(u.event, Epoch) for u in begun):
        begun.append(next(first))
    later: list = []
    follower = threading.Thread(
        target=lambda: later.extend(updates([*FAST, *LONGER], stub_engine, store, Cancel(), Options()))
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
def test_a_sweep_does_not_wait_for_a_later_one_of_the_same_viewer(stub_engine, tmp_path):
    store, sooner, later = Store(tmp_path / "results.sqlite"), Request("a viewer"), Request("a viewer")
    long, short = (Item(Training(Network((9, 9)), 0.1, *how), Runtime("numpy")) for how in ((16, 12), (64, 3)))
    seen: list = []
    other = threading.Thread(
        target=lambda: seen.extend(updates([long, short], stub_engine, store, Cancel(), Options(), later))
    )
    other.start()
    while not any(isinstance(update, Progress) for update in list(seen)):
        time.sleep(0.01)
    *_, last = updates([short], stub_engine, store, Cancel(), Options(), sooner)
    assert isinstance(last, Finished)
    assert not any(isinstance(update, Finished) for update in list(seen)), "it waited for the long one"
    other.join(120)
    ends = [(update.item, update.cached) for update in seen if isinstance(update, Finished)]
    assert ends == [(long, False), (short, True)], "what was made meanwhile is not made again"


@pytest.mark.slow
def test_what_one_gives_up_another_goes_on_with(stub_engine, tmp_path):
    cancel, store = Cancel(), Store(tmp_path / "results.sqlite")
    first = updates(LONGER, stub_engine, store, cancel, Options())
    while not isinstance(next(first), Progress):
        pass
    later: list = []
    follower = threading.Thread(target=lambda: later.extend(updates(LONGER, stub_engine, store, Cancel(), Options())))
    follower.start()
    while not any(isinstance(update, Progress) for update in list(later)):
        time.sleep(0.01)
    cancel.set()
    assert not [update for update in first if isinstance(update, Finished)]
    follower.join(120)
    assert Restarted(items=(LONGER[0],)) in later
    assert isinstance(later[-1], Finished)


@pytest.mark.parametrize(("cached", "fresh"), [(True, True), (False, False)], ids=["asked anew", "not cached"])
def test_what_is_not_to_be_served_is_not_shared(stub_engine, tmp_path, cached, fresh):
    store = Store(tmp_path / "results.sqlite") if cached else None
    results = in_threads(2, lambda: finished(FAST, stub_engine, store, fresh=fresh)[1])
    assert len({id(found[0].curve) for found in results}) == 2


def test_what_was_timed_beside_another_program_says_so_whenever_it_is_shown(stub_engine, tmp_path, monkeypatch):
    store, items = Store(tmp_path / "results.sqlite"), FAST[:1]
    other = Holder("debugged.py", 17, 0.0)
    monkeypatch.setattr(stub_engine._machine, "take", lambda: True)
    monkeypatch.setattr(stub_engine._machine, "beside", other)
    _, found = finished(items, stub_engine, store)
    assert found[0].curve.warnings == (other.disturbs,)
    monkeypatch.setattr(stub_engine._machine, "beside", None)
    events, again = finished(items, stub_engine, store)
    assert again[0].cached
    assert again[0].curve.warnings == (other.disturbs,)
    results = Results(items, ["a"])
    for update in events:
        results.add(update)
    assert results.notices == (other.disturbs,)
    assert finished(items, stub_engine, store, fresh=True)[1][0].curve.warnings == ()


def test_equal_trainings_are_made_once_and_reported_twice(stub_engine, tmp_path, monkeypatch):
    items = [Item(MIXED[0]), Item(MIXED[1]), Item(MIXED[0])]
    events = list(updates(items, stub_engine, None, Cancel(), Options("sequential")))
    assert len([update for update in events if isinstance(update, Finished)]) == 2
    assert len([update for update in events if isinstance(update, Picked)]) == 1
    results = Results(items, ["a", "b", "a again"])
    for update in events:
        results.add(update)
    assert [line.state for line in results.lines] == [State.DONE] * 3
    assert results.lines[2].curve is results.lines[0].curve
    monkeypatch.setattr("lib.sweeps.sweep.shared_engine", lambda: stub_engine)
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


def test_bad_sweeps_are_one_sentence(stub_engine, monkeypatch):
    with pytest.raises(ValueError, match="expected at least one training, got none"):
        list(sweep([]))
    with pytest.raises(ValueError, match="expected auto or one of sequential"):
        Options("fastest")
    with pytest.raises(ValueError, match="got NumPy; choose sequential or processes"):
        list(updates([Item(MIXED[0], Runtime("numpy"))], stub_engine, None, Cancel(), Options("vmap")))
    with pytest.raises(ValueError, match="expected trainings by Numba, zeros left out, got JAX"):
        made(MIXED[:2], stub_engine, strategy="cores")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ValueError, match="expected an executor or DASK_SCHEDULER_ADDRESS, got neither"):
        made(MIXED[:2], stub_engine, strategy="cluster")


def test_a_stop_keeps_what_is_finished(stub_engine, tmp_path):
    store, cancel = Store(tmp_path / "results.sqlite"), Cancel()
    items = [Item(replace(MIXED[0], learning_rate=rate, batch_size=256, epochs=30)) for rate in (0.1, 0.2, 0.3)]
    items.insert(0, Item(MIXED[1]))
    events = []
    for update in updates(items, stub_engine, store, cancel, Options("sequential")):
        events.append(update)
        if isinstance(update, Finished):
            cancel.set()
    assert [update.item for update in events if isinstance(update, Finished)] == items[:1]
    assert isinstance(events[-1], Finished), "nothing is told after the stop"
    again = updates(items[:1], stub_engine, store, Cancel(), Options("sequential"))
    assert [update.cached for update in again if isinstance(update, Finished)] == [True]


def test_a_sweep_whose_worker_was_killed_resumes(stub_engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    items = [Item(MIXED[1]), Item(Training(Network((256,)), 0.1, 32, 30))]

    def kill_in_the_second():
        for update in updates(items, stub_engine, store, Cancel(), Options("sequential")):
            if isinstance(update, Progress) and update.item == items[1] and isinstance(update.event, Steps):
                os.kill(stub_engine.pids()["jax/cpu"], signal.SIGKILL)

    with pytest.raises(WorkerDied, match="Nothing else is lost"):
        kill_in_the_second()
    shorter = [items[0], Item(replace(items[1].training, epochs=1))]
    again = updates(shorter, stub_engine, store, Cancel(), Options("sequential"))
    assert {place: update.cached for place, update in by_place(shorter, again).items()} == {0: True, 1: False}


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
    monkeypatch.setattr(module, "MANY", 2)
    monkeypatch.setattr(module, "POINTS", 5)
    _, found = made(MIXED[:3], engine, strategy="vmap")
    _, whole = made(MIXED[:1], engine, strategy="sequential")
    curve = found[0].curve
    assert len(curve.losses) <= 5
    assert curve.every * len(curve.losses) >= 22
    assert curve.losses[0] == pytest.approx(whole[0].curve.losses[: curve.every].mean(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", pytest.param("processes", marks=pytest.mark.release)])
def test_what_goes_on_from_forgotten_parameters_begins_again(engine, tmp_path, monkeypatch, strategy):
    store = Store(tmp_path / "results.sqlite")
    made(MIXED[:2], engine, store, strategy="sequential")
    monkeypatch.setattr(module.Plan, "start", lambda *_: None)
    longer = [replace(training, epochs=3) for training in MIXED[:2]]
    events, found = made(longer, engine, store, strategy=strategy)
    assert any(isinstance(update, Continued) for update in events)
    assert [len(found[i].curve.epochs) for i in (0, 1)] == [3, 3]
    _, whole = made(longer, engine, strategy="sequential")
    np.testing.assert_allclose(found[0].curve.losses, whole[0].curve.losses, atol=1e-4)


@pytest.mark.slow
def test_parameters_of_a_large_sweep_are_not_held_anywhere(engine, tmp_path, monkeypatch):
    store = Store(tmp_path / "results.sqlite")
    monkeypatch.setattr(module, "MAX_PARAMETER_BYTES", 3 * MIXED[0].network.parameter_bytes)
    _, few = made(MIXED[:1], engine, store, strategy="vmap")
    assert few[0].parameters is not None
    assert len(store.rows("parameters")) == 1
    many = [replace(MIXED[0], learning_rate=rate) for rate in (0.11, 0.12, 0.13, 0.14)]
    _, found = made(many, engine, store, strategy="vmap")
    assert all(update.parameters is None for update in found.values())
    assert len(store.rows("parameters")) == 1


FACTS = Facts("MNIST", "digest")
ITEMS = [Item(Training(learning_rate=rate, epochs=2)) for rate in (0.1, 0.3)]
LIMITS = Limits(1e9, 1e9)
WEIGHTS = [(np.ones((784, 10), np.float32), np.zeros(10, np.float32))]


class Engine:
    def __init__(self, *messages):
        self.messages, self.left = messages, False

    def watch(self, _runtime):
        return Watch()

    def run(self, runtime, trainings, cancel, how, request):
        try:
            yield Ready(FACTS)
            yield from self.messages
        finally:
            self.left = True

    def run_each(self, runtime, parts, cancel, request):
        return self.run(runtime, (), cancel, None, request)


def epoch_of(item, epoch):
    yield Progress(item, Steps(epoch, 0, np.full(4, 1.0 / (epoch + 1), np.float32), 0.1))
    yield Progress(item, Epoch(epoch, 4, 0.3, 0.9, 0.1, 0.01, no_parameters))


def swept(engine, store, items=ITEMS, strategy="sequential"):
    plan = Plan(items, engine, store, Cancel(), Options(strategy), Request(), FACTS.digest)
    return list(train(plan, Runtime(), plan.items, strategy, LIMITS))


def test_what_came_before_a_restart_is_void_and_not_in_the_curve(tmp_path):
    one, other = ITEMS
    again = [*epoch_of(one, 0), *epoch_of(one, 1), Trained(one, None), *epoch_of(other, 0), Trained(other, None)]
    events = swept(
        Engine(Progress(one, FirstCall(0.5)), *epoch_of(one, 0), Restarted("it hung", (one, other)), *again), None
    )
    assert Restarted("it hung", (one, other)) in events
    curves = {event.item: event.curve for event in events if isinstance(event, Finished)}
    assert (len(curves[one].epochs), len(curves[one].losses)) == (2, 8)
    assert len(curves[other].epochs) == 1


def test_what_another_viewer_trained_meanwhile_is_served_and_not_trained(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    epochs = tuple(Epoch(e, 4, 0.3, 0.9, 0.1, 0.01, no_parameters) for e in range(2))
    plan = Plan(ITEMS, Engine(), store, Cancel(), Options("sequential"), Request(), FACTS.digest)  # type: ignore[arg-type]
    for item in ITEMS:
        plan.put(item, Curve(0.1, epochs, np.ones(8, np.float32)), None)
    engine = Engine(*epoch_of(ITEMS[0], 0))
    events = swept(engine, store)
    assert [(event.item, event.cached) for event in events] == [(item, True) for item in ITEMS]  # type: ignore[union-attr]
    assert engine.left, "the worker is free for others"


def test_a_checkpoint_is_stored_and_nobody_sees_it(tmp_path):
    store, (one, _) = Store(tmp_path / "results.sqlite"), ITEMS
    engine = Engine(*epoch_of(one, 0), Checkpoint(one, WEIGHTS))
    events = swept(engine, store, [one])
    assert not any(isinstance(event, Checkpoint | Finished) for event in events)
    assert [row["epochs"] for row in store.rows("parameters")] == [1]


@pytest.fixture
def others(monkeypatch):
    cores: list[float] = []

    def exit_(watch, *_):
        watch.disturbance = Disturbance(1.0, 0.0, cores.pop(0), 0)

    monkeypatch.setattr(disturbance, "LOOK_S", 0.0)
    monkeypatch.setattr(Watch, "__exit__", exit_)
    return cores


def curves_of(events):
    return {event.item: event.curve for event in events if isinstance(event, Finished)}


def test_a_curve_says_that_others_were_at_work(tmp_path, others):
    one, other = ITEMS
    others += [1.5, 0.0, 0.0]  # at the end of the first turn, and when each of the two is done
    store = Store(tmp_path / "results.sqlite")
    turns = [*epoch_of(one, 0), Waiting(1), Ready(FACTS), *epoch_of(one, 1), Trained(one, None), *epoch_of(other, 0)]
    found = curves_of(swept(Engine(*turns, Trained(other, None)), store))
    (flag,) = found[one].warnings
    assert "other programs kept 1.5 cores busy" in flag
    assert found[other].warnings == (flag,), "they take turns with each other"
    kept = curves_of(swept(Engine(), store, [one]))
    assert kept[one].warnings == (flag,), "whenever it is shown"


def test_what_is_continued_keeps_what_disturbed_its_beginning(tmp_path, others):
    store, one = Store(tmp_path / "results.sqlite"), Item(Training(Network(()), epochs=2))
    others += [2.0, 0.0]
    short = Item(replace(one.training, epochs=1))
    swept(Engine(*epoch_of(short, 0), Trained(short, WEIGHTS)), store, [short])
    engine = Engine(*epoch_of(one, 1), Trained(one, None))
    plan = Plan([one], engine, store, Cancel(), Options("sequential"), Request(), FACTS.digest)  # type: ignore[arg-type]
    assert plan.go_on(one) is not None
    found = curves_of(train(plan, Runtime(), plan.items, "sequential", LIMITS))
    assert len(found[one].epochs) == 2
    assert "kept 2.0 cores busy" in found[one].warnings[0]


NEWS = ToTrain(())


@pytest.fixture
def key(request):
    return request.node.name, "a"


def test_who_is_in_more_of_a_hurry_does_not_wait_for_the_same_viewers_that_waits_itself(key):
    keys, later, now = [key, (*key, "b")], Request("a viewer"), Request("a viewer", Urgency.NOW)
    (one, _), (other, _) = share(keys, later)
    tell([one, other], NEWS, at_work=True)
    tell([one], NEWS, at_work=False)
    assert [mine for _, mine in share(keys, Request("another", Urgency.NOW))] == [False, False]
    (mine, makes), (same, follows) = share(keys, now)
    assert (makes, follows, mine is not one, same is other) == (True, False, True, True)
    tell([one], over=True)
    assert share([key], later) == [(mine, False)], "the other's end is not its own"
    tell([mine, other], over=True)
