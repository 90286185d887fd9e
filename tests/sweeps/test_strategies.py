"""The strategies: the same results by each, and what each does when something goes wrong."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from lib.backends.base import Steps
from lib.backends.registry import Runtime, versions
from lib.backends.stacked.packing import Shape
from lib.spec import Network, Training
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.sweeps import cached as cached_module
from lib.sweeps import cost_model
from lib.sweeps import plan as plan_module
from lib.sweeps.cached import Cached
from lib.sweeps.cost_model import candidates, expected_s, makespan, nominal_s
from lib.sweeps.events import Continued, Finished, Item, Picked, Void
from lib.sweeps.process_pool import Died, Expected, OtherVersions, PoolTask, TaskFailed, local_pool, perform, run_tasks
from lib.sweeps.strategies import STRATEGIES, Limits, Part, parts
from lib.sweeps.successive_halving import cost_epochs, halved, rungs
from lib.sweeps.sweep import Options, sweep, updates
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine, Progress, TrainingFailed, WorkerDied
from lib.workers.queue import Request, Urgency

MIXED = [
    Training(Network(hidden), rate, 4096, 2, seed)
    for hidden, rate, seed in (
        ((12,), 0.1, 0),
        ((12,), 0.3, 0),
        ((7, 5), 0.1, 0),
        ((12,), 0.1, 1),
        ((64, 64, 64), 1000.0, 0),
        ((), 0.1, 0),
    )
]


def made(trainings, engine, store=None, **options):
    """Everything that was told, and what finished, by index."""
    items = [Item(training) for training in trainings]
    events = list(updates(items, engine, store, Cancel(), Options(**options)))
    return events, {update.index: update for update in events if isinstance(update, Finished)}


@pytest.fixture(scope="module")
def alone(engine):
    return made(MIXED, engine, strategy="sequential")[1]


@pytest.fixture
def executor():
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as found:
        yield found


def assert_the_same(found, expected):
    assert sorted(found) == sorted(expected)
    for index, one in found.items():
        other = expected[index].curve
        assert [e.diverged_step for e in one.curve.epochs] == [e.diverged_step for e in other.epochs]
        if other.epochs[-1].diverged_step is None:
            np.testing.assert_allclose(one.curve.losses, other.losses, atol=1e-4)
            assert one.curve.epochs[-1].validation_accuracy == pytest.approx(
                other.epochs[-1].validation_accuracy, abs=2e-3
            )


@pytest.mark.parametrize("strategy", ["processes", "vmap", "padded", "sharded", "stacks"])
def test_every_strategy_trains_the_same(engine, alone, strategy):
    events, found = made(MIXED, engine, strategy=strategy, max_waste=1.0)
    assert_the_same(found, alone)
    assert alone[4].curve.epochs[-1].diverged_step is not None, "one diverges, and the others are unharmed"
    assert {update.strategy for update in found.values()} == {strategy}
    stacked = found[0].curve.together
    assert stacked > 1 if STRATEGIES[strategy].stacked else stacked == 1
    assert any(isinstance(update, Picked) and update.strategy == strategy for update in events)


def test_any_executor_will_do(engine, alone, executor):
    items = [Item(training) for training in MIXED]
    events = updates(items, engine, None, Cancel(), Options(executor=executor, max_waste=1.0))
    assert_the_same({update.index: update for update in events if isinstance(update, Finished)}, alone)


def test_the_call_of_the_readme(tmp_path):
    rows = list(sweep(MIXED[:2], "sequential", store=Store(tmp_path / "results.sqlite")))
    assert sorted(row["learning_rate"] for row in rows) == [0.1, 0.3]  # type: ignore[type-var]
    assert all(0.1 < row["validation_accuracy"] < 1 and row["train_s"] > 0 for row in rows)  # type: ignore[operator]


@pytest.mark.parametrize("strategy", ["sequential", "sharded", "processes"])
def test_one_more_epoch_and_one_more_rate_train_only_that(engine, tmp_path, strategy):
    store = Store(tmp_path / "results.sqlite")
    made(MIXED[:2], engine, store, strategy=strategy)
    longer = [replace(training, epochs=3) for training in MIXED[:2]]
    events, found = made([*longer, replace(MIXED[0], learning_rate=0.2)], engine, store, strategy=strategy)
    assert {update.index: len(update.curve.epochs) for update in events if isinstance(update, Continued)} == {
        0: 2,
        1: 2,
    }
    if strategy != "processes":
        steps = {
            update.event.epoch
            for update in events
            if isinstance(update, Progress) and update.index < 2 and hasattr(update.event, "epoch")
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


def test_equal_trainings_are_made_once_and_reported_twice(engine):
    events, found = made([MIXED[0], MIXED[1], MIXED[0]], engine, strategy="sequential")
    assert sorted(found) == [0, 1, 2]
    assert found[2].curve is found[0].curve
    assert len([update for update in events if isinstance(update, Picked)]) == 1


def test_bad_sweeps_are_one_sentence(engine, monkeypatch):
    with pytest.raises(ValueError, match="expected at least one training, got none"):
        list(sweep([]))
    with pytest.raises(ValueError, match="expected auto or one of sequential"):
        Options("fastest")
    with pytest.raises(ValueError, match="got NumPy; choose sequential or processes"):
        list(updates([Item(MIXED[0], Runtime("numpy"))], engine, None, Cancel(), Options("vmap")))
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ValueError, match="expected an executor or DASK_SCHEDULER_ADDRESS, got neither"):
        made(MIXED[:2], engine, strategy="cluster")


def test_more_models_than_memory_are_made_in_parts(engine, monkeypatch):
    many = [Training(Network((4,)), float(rate), 4096, 1) for rate in np.linspace(0.01, 0.2, 9)]
    free_bytes = 5.5 * Shape.of([many[0].network]).place_bytes(4096) / plan_module.MEMORY_SHARE
    monkeypatch.setattr(plan_module, "free_memory_bytes", lambda: free_bytes)
    _, found = made(many, engine, strategy="vmap")
    assert len(found) == 9
    assert {update.curve.together for update in found.values()} == {5, 4}
    free_bytes = 1e4
    with pytest.raises(MemoryError, match="MB are free; choose a smaller one"):
        made(many, engine, strategy="vmap")


def test_a_stop_keeps_what_is_finished(engine, tmp_path):
    store, cancel = Store(tmp_path / "results.sqlite"), Cancel()
    items = [Item(replace(MIXED[0], learning_rate=rate, batch_size=256, epochs=30)) for rate in (0.1, 0.2, 0.3)]
    items.insert(0, Item(MIXED[1]))
    events = []
    for update in updates(items, engine, store, cancel, Options("sequential")):
        events.append(update)
        if isinstance(update, Finished):
            cancel.set()
    assert [update.index for update in events if isinstance(update, Finished)] == [0]
    assert isinstance(events[-1], Finished), "nothing is told after the stop"
    again = updates(items[:1], engine, store, Cancel(), Options("sequential"))
    assert [update.cached for update in again if isinstance(update, Finished)] == [True]


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


def test_a_killed_process_costs_only_its_training(engine, alone):
    """The pool loses a process in the middle; what it had runs again."""
    trainings = [replace(training, epochs=20, batch_size=512) for training in MIXED[:4]]
    events, killed = [], False
    for update in updates([Item(t) for t in trainings], engine, None, Cancel(), Options("processes")):
        events.append(update)
        if not killed and (children := pooled_processes()):
            killed = True
            time.sleep(0.5)
            os.kill(children[0], signal.SIGKILL)
    finished = [update.index for update in events if isinstance(update, Finished)]
    assert killed
    assert sorted(finished) == [0, 1, 2, 3]
    assert any(isinstance(update, Void) for update in events)


def pooled_processes() -> list[int]:
    executor = local_pool(Runtime()).executor
    return [pid for pid in list(executor._processes or {}) if psutil.pid_exists(pid)]


def test_a_cancelled_pool_is_free_at_once(engine):
    cancel = Cancel()
    items = [Item(Training(Network((256,)), rate, 32, 50)) for rate in (0.1, 0.2, 0.3, 0.4)]
    busy: list[psutil.Process] = []

    def cancel_when_they_are_there():
        while not (pids := pooled_processes()):
            time.sleep(0.05)
        busy.extend(map(psutil.Process, pids))
        cancel.set()

    local_pool(Runtime(), fresh=True)
    threading.Thread(target=cancel_when_they_are_there, daemon=True).start()
    for _ in updates(items, engine, None, cancel, Options("processes")):
        pass
    _, alive = psutil.wait_procs(busy, timeout=60)
    assert busy
    assert not alive, "nothing goes on in the background"
    assert sorted(made(MIXED[:1], engine, strategy="sequential")[1]) == [0]


def expected_here():
    return Expected.here(Runtime(), "")


def test_a_worker_of_other_versions_refuses_by_name():
    task = PoolTask(Runtime(), MIXED[:1], replace(expected_here(), versions="jax 0.0.1"))  # type: ignore[arg-type]
    with pytest.raises(
        OtherVersions, match=r"process \d+ has .*jax.*expected jax 0.0.1; install the same requirements"
    ):
        perform(task)
    task = replace(task, expected=replace(expected_here(), sources="other"))
    with pytest.raises(OtherVersions, match="another state of this project's code"):
        perform(task)
    task = replace(task, expected=Expected(versions("jax-epoch"), expected_here().sources, "0" * 64))
    with pytest.raises(OtherVersions, match="other training images"):
        perform(task)


class Broken(concurrent.futures.Executor):
    """Breaks so many times, then fails whatever fails."""

    def __init__(self, times):
        self.times = times

    def submit(self, function, *arguments):  # type: ignore[override]
        future: concurrent.futures.Future = concurrent.futures.Future()
        self.times -= 1
        error = concurrent.futures.BrokenExecutor("gone") if self.times >= 0 else ValueError("no such thing")
        future.set_exception(error)
        return future


def test_a_task_that_kills_its_process_again_and_again_is_given_up():
    task = PoolTask(Runtime(), (MIXED[0],), expected_here())
    with pytest.raises(TaskFailed, match="its process ended 3 times"):
        list(run_tasks([task], Broken(99), 1, Cancel(), lambda: Broken(99)))
    found = []
    with pytest.raises(TaskFailed, match=r"1 of 1 tasks failed.*ValueError: no such thing"):
        found.extend(run_tasks([task], Broken(1), 1, Cancel(), lambda: Broken(0)))
    assert any(isinstance(events, Died) for events in found)


def test_an_executor_that_breaks_is_a_sentence(engine):
    with pytest.raises(TrainingFailed, match="tasks failed"):
        list(updates([Item(MIXED[0])], engine, None, Cancel(), Options(executor=Broken(99))))


def test_parts_hold_every_training_once():
    limits = Limits(1e9, 4e6, 2, 0.4)
    devices_of_many = {"sequential": 0, "vmap": 1, "padded": 1, "sharded": 2}
    for key, n_devices in devices_of_many.items():
        plan = parts(STRATEGIES[key], MIXED, range(len(MIXED)), limits)
        assert sorted(i for part in plan for i in part.indices) == list(range(len(MIXED)))
        assert [part.devices for part in plan] == [n_devices if len(part.indices) > 1 else 0 for part in plan]
        unlike = [part for part in plan if len({MIXED[i].network for i in part.indices}) > 1]
        assert bool(unlike) == STRATEGIES[key].padded, "only padding puts different networks into one program"


def test_candidates_are_those_that_differ():
    limits = Limits(1e9, 4e6, 1, 0.4)
    sizes = [Training(batch_size=size) for size in (1, 32, 512)]
    assert candidates(sizes, range(3), limits) == ["sequential"], "nothing can share a program"
    rates = [Training(learning_rate=rate) for rate in (0.1, 0.2)]
    assert candidates(rates, range(2), limits) == ["sequential", "vmap"]
    assert candidates(rates, range(2), replace(limits, n_devices=2)) == ["sequential", "vmap", "sharded"]
    shapes = [Training(Network((width,))) for width in (100, 128)]
    assert candidates(shapes, range(2), limits) == ["sequential", "padded"]


def test_expectation_is_arithmetic_on_step_times():
    from lib.sweeps.cost_model import COMPILED_S, StepTime, evaluation_flops, step_flops

    trainings = [Training(learning_rate=rate, epochs=2) for rate in (0.1, 0.2)]
    alone, together = [Part((0, 1))], [Part((0, 1), 1)]
    step_time = StepTime(100e-6, 0.5)
    for plan, steps in ((alone, 2 * 2 * 1500), (together, 2 * 1500)):
        rate = step_flops(plan[0], trainings) / step_time.step_s
        evaluation_s = evaluation_flops(plan[0], trainings) / rate
        assert expected_s(plan, trainings, {0: step_time}) == pytest.approx(steps * 100e-6 + evaluation_s + COMPILED_S)
    assert makespan([4, 3, 3], 2) == 6
    assert nominal_s(trainings, [0, 1]) == pytest.approx(2 * nominal_s(trainings, [0]))


def test_auto_says_what_it_picked_and_measures_nothing_for_a_short_sweep(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(cost_model, "MAX_DISTURBED", 1)  # what else the machine does is no part of this test
    store = Store(tmp_path / "results.sqlite")
    events, _ = made(MIXED[:2], engine, store, strategy="auto")
    (picked,) = [update for update in events if isinstance(update, Picked)]
    assert picked.strategy == "sequential"
    assert "nothing else would pay" in picked.why
    assert not store.records(Kind.PACE)
    events, found = made(MIXED[:4], engine, store, strategy="auto", worth_s=0.0, fresh=True)
    (picked,) = [update for update in events if isinstance(update, Picked)]
    assert "expected from measured steps" in picked.why
    assert picked.strategy == min(picked.expected_s, key=lambda key: picked.expected_s[key])
    assert len(found) == 4
    n_measured = len(store.records(Kind.PACE))
    assert n_measured >= 2
    made(MIXED[:4], engine, store, strategy="auto", worth_s=0.0, fresh=True)
    assert len(store.records(Kind.PACE)) == n_measured, "measured once"


def test_large_sweeps_keep_thinned_losses(engine, monkeypatch):
    monkeypatch.setattr(plan_module, "MANY", 2)
    monkeypatch.setattr(cached_module, "POINTS", 5)
    _, found = made(MIXED[:3], engine, strategy="vmap")
    _, whole = made(MIXED[:1], engine, strategy="sequential")
    curve = found[0].curve
    assert len(curve.losses) <= 5
    assert curve.every * len(curve.losses) >= 22
    assert curve.losses[0] == pytest.approx(whole[0].curve.losses[: curve.every].mean(), abs=1e-4)


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
    found = {update.index: update for update in events if isinstance(update, Finished)}
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


def test_what_goes_on_from_forgotten_parameters_begins_again(engine, tmp_path, monkeypatch):
    """Their place in the store may be taken by others between two looks."""
    store = Store(tmp_path / "results.sqlite")
    made(MIXED[:2], engine, store, strategy="sequential")
    monkeypatch.setattr(Cached, "start", lambda *_: None)
    longer = [replace(training, epochs=3) for training in MIXED[:2]]
    for strategy in ("sequential", "processes"):
        events, found = made(longer, engine, store, strategy=strategy)
        assert any(isinstance(update, Continued) for update in events)
        assert [len(found[i].curve.epochs) for i in (0, 1)] == [3, 3]
        _, whole = made(longer, engine, strategy="sequential")
        np.testing.assert_allclose(found[0].curve.losses, whole[0].curve.losses, atol=1e-4)
        store = Store(tmp_path / "other.sqlite")
        made(MIXED[:2], engine, store, strategy="sequential")


def test_a_moved_slider_does_not_wait_for_a_pool(engine):
    """Another run of the same viewer gets its turn while processes train, and these go on afterwards."""
    viewer, cancel = object(), Cancel()
    slow = [Item(Training(Network((256,)), rate, 32, 8)) for rate in (0.1, 0.2)]
    found: list[Finished] = []

    def pooled():
        events = updates(slow, engine, None, cancel, Options("processes"), Request(viewer, Urgency.IN_ORDER))
        found.extend(update for update in events if isinstance(update, Finished))

    made(MIXED[:1], engine, strategy="sequential")
    thread = threading.Thread(target=pooled)
    thread.start()
    while not pooled_processes():
        time.sleep(0.05)
    list(updates([Item(MIXED[1])], engine, None, Cancel(), Options("sequential"), Request(viewer, Urgency.NOW)))
    assert not found, "it did not wait for the others' end"
    thread.join(200)
    assert sorted(update.index for update in found) == [0, 1]


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


def test_who_watches_lines_grow_gets_no_processes(engine, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("processes were asked how fast they are")

    monkeypatch.setattr(cost_model.StepTimes, "pooled_s", never)
    items = [Item(training) for training in MIXED[:2]]
    store = Store(tmp_path / "results.sqlite")
    events = updates(items, engine, store, Cancel(), Options(worth_s=0.0, streams=True))
    assert len([update for update in events if isinstance(update, Finished)]) == 2
    with pytest.raises(AssertionError, match="were asked"):
        list(updates(items, engine, store, Cancel(), Options(worth_s=0.0, fresh=True)))


def test_a_sweep_whose_worker_was_killed_resumes(tmp_path):
    """What was finished is served, the rest is trained, by a new worker."""
    engine, store = Engine(), Store(tmp_path / "results.sqlite")
    items = [Item(MIXED[1]), Item(Training(Network((256,)), 0.1, 32, 30))]

    def kill_in_the_second():
        for update in updates(items, engine, store, Cancel(), Options("sequential")):
            if isinstance(update, Progress) and update.index == 1 and isinstance(update.event, Steps):
                os.kill(engine.pids()["jax/cpu"], signal.SIGKILL)

    with pytest.raises(WorkerDied, match="Nothing else is lost"):
        kill_in_the_second()
    shorter = [items[0], Item(replace(items[1].training, epochs=1))]
    again = updates(shorter, engine, store, Cancel(), Options("sequential"))
    assert {update.index: update.cached for update in again if isinstance(update, Finished)} == {0: True, 1: False}
    engine.close()
