"""A sweep's items in the workers of a stand-in for the engine: what happens in the middle."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps import in_workers
from lib.sweeps.events import Finished, Void
from lib.sweeps.plan import Options, Plan
from lib.sweeps.storage.records import Curve
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import Limits
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Checkpoint, Item, Progress, Ready, Restarted, Trained, Waiting
from lib.sweeps.workers.queue import Request
from lib.timing import disturbance
from lib.timing.disturbance import Disturbance, Watch

FACTS = Facts("MNIST", "digest")
ITEMS = [Item(Training(learning_rate=rate, epochs=2)) for rate in (0.1, 0.3)]
LIMITS = Limits(1e9, 1e9)
WEIGHTS = [(np.ones((784, 10), np.float32), np.zeros(10, np.float32))]


class Engine:
    """Answers with the messages that it was given."""

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


def made(engine, store, items=ITEMS, strategy="sequential"):
    plan = Plan.of(items, engine, store, Cancel(), Options(strategy), Request(), FACTS)
    return list(in_workers.train(plan, Runtime(), plan.items, strategy, LIMITS))


def test_what_came_before_a_restart_is_void_and_not_in_the_curve(tmp_path):
    one, other = ITEMS
    trainings = (one.training, other.training)
    again = [*epoch_of(one, 0), *epoch_of(one, 1), Trained(one, None), *epoch_of(other, 0), Trained(other, None)]
    events = made(
        Engine(Progress(one, FirstCall(0.5)), *epoch_of(one, 0), Restarted("it hung", trainings), *again), None
    )
    assert Void((one, other)) in events
    curves = {event.item: event.curve for event in events if isinstance(event, Finished)}
    assert (len(curves[one].epochs), len(curves[one].losses)) == (2, 8)
    assert len(curves[other].epochs) == 1


def test_of_several_processes_only_the_trainings_of_the_one_that_died_begin_again():
    one, other = ITEMS
    died = [*epoch_of(one, 0), *epoch_of(other, 0), Restarted("", (other.training,)), Ready(FACTS), *epoch_of(one, 1)]
    messages = [*died, Trained(one, None), *epoch_of(other, 0), *epoch_of(other, 1), Trained(other, None)]
    events = made(Engine(*messages), None, strategy="processes")
    assert [event for event in events if isinstance(event, Void)] == [Void((other,))]
    assert {len(curve.losses) for curve in curves_of(events).values()} == {8}


def test_what_another_viewer_trained_meanwhile_is_served_and_not_trained(tmp_path):
    """While it waited in the queue."""
    store = Store(tmp_path / "results.sqlite")
    epochs = tuple(Epoch(e, 4, 0.3, 0.9, 0.1, 0.01, no_parameters) for e in range(2))
    plan = Plan.of(ITEMS, Engine(), store, Cancel(), Options("sequential"), Request(), FACTS)  # type: ignore[arg-type]
    for item in ITEMS:
        plan.cached.put(item, Curve(0.1, epochs, np.ones(8, np.float32)), None)
    engine = Engine(*epoch_of(ITEMS[0], 0))
    events = made(engine, store)
    assert [(event.item, event.cached) for event in events] == [(item, True) for item in ITEMS]  # type: ignore[union-attr]
    assert engine.left, "the worker is free for others"


def test_a_checkpoint_is_stored_and_nobody_sees_it(tmp_path):
    store, (one, _) = Store(tmp_path / "results.sqlite"), ITEMS
    engine = Engine(*epoch_of(one, 0), Checkpoint(one, 1, WEIGHTS))
    events = made(engine, store, [one])
    assert not any(isinstance(event, Checkpoint | Finished) for event in events)
    assert [row["epochs"] for row in store.rows("parameters")] == [1]


@pytest.fixture
def others(monkeypatch):
    """How many cores others keep busy, turn by turn."""
    cores: list[float] = []

    def exit_(watch, *_):
        watch.disturbance = Disturbance(1.0, 0.0, cores.pop(0), 0)

    monkeypatch.setattr(disturbance, "LOOK_S", 0.0)
    monkeypatch.setattr(Watch, "__exit__", exit_)
    return cores


def curves_of(events):
    return {event.item: event.curve for event in events if isinstance(event, Finished)}


def test_a_curve_says_that_others_were_at_work(tmp_path, others):
    """Also where that was in its first turn, and it waited for another viewer since."""
    one, other = ITEMS
    others += [1.5, 0.0, 0.0]  # at the end of the first turn, and when each of the two is done
    store = Store(tmp_path / "results.sqlite")
    turns = [*epoch_of(one, 0), Waiting(1), Ready(FACTS), *epoch_of(one, 1), Trained(one, None), *epoch_of(other, 0)]
    found = curves_of(made(Engine(*turns, Trained(other, None)), store))
    (flag,) = found[one].warnings
    assert "other programs kept 1.5 cores busy" in flag
    assert found[other].warnings == (flag,), "they take turns with each other"
    kept = curves_of(made(Engine(), store, [one]))
    assert kept[one].warnings == (flag,), "whenever it is shown"


def test_what_disturbed_a_worker_that_was_replaced_disturbed_nothing(others):
    one, _ = ITEMS
    others += [0.0]
    again = [Ready(FACTS), *epoch_of(one, 0), *epoch_of(one, 1), Trained(one, None)]
    found = curves_of(made(Engine(*epoch_of(one, 0), Restarted("it hung", (one.training,)), *again), None, [one]))
    assert found[one].warnings == ()
    assert not others


def test_what_is_continued_keeps_what_disturbed_its_beginning(tmp_path, others):
    store, one = Store(tmp_path / "results.sqlite"), Item(Training(Network(()), epochs=2))
    others += [2.0, 0.0]
    short = Item(replace(one.training, epochs=1))
    made(Engine(*epoch_of(short, 0), Trained(short, WEIGHTS)), store, [short])
    engine = Engine(*epoch_of(one, 1), Trained(one, None))
    plan = Plan.of([one], engine, store, Cancel(), Options("sequential"), Request(), FACTS)  # type: ignore[arg-type]
    assert plan.cached.go_on(one) is not None
    found = curves_of(in_workers.train(plan, Runtime(), plan.items, "sequential", LIMITS))
    assert len(found[one].epochs) == 2
    assert "kept 2.0 cores busy" in found[one].warnings[0]
