"""A card that disappears in the middle marks its rows and ends nothing else; no card is needed to see that."""

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import MNIST
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_ceilings, measure_tasks
from lib.sweeps.experiments.backend_race import Cell, race
from lib.sweeps.experiments.parallel_sweeps import Method, compare
from lib.sweeps.experiments.results import BackgroundTask
from lib.sweeps.measuring import ALL_BUT_THE_CPU, Attempts, words
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import (
    CardLost,
    Item,
    Measured,
    Progress,
    Ready,
    State,
    Trained,
    TrainingFailed,
    WorkerDied,
)
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import Examination
from tests.generators import collected

LOST, OTHER, CPU = Runtime("jax-epoch", "gpu"), Runtime("torch", "gpu"), Runtime("numpy")
WHY = "the graphics card no longer answers"


class Losing(Engine):
    def __init__(self, failing: dict[Runtime, Exception] | None = None) -> None:
        super().__init__()
        self.failing, self.asked = {LOST: CardLost(WHY)} if failing is None else failing, []

    def data_facts(self, cancel, which=MNIST):
        yield from ()
        return Facts("MNIST", "digest")

    def _perform(self, jobs, cancel, request, n=0):
        (job,) = jobs
        self.asked.append(job.runtime)
        yield Ready(Facts("MNIST", "digest"))
        if job.runtime in self.failing:
            raise self.failing[job.runtime]
        if job.examination is not None:
            yield Measured("product", Measurement((1e-3,) * 3, 1, Ended.CAP), 1e9)
        for item in (Item(training, job.runtime) for training in job.trainings):
            yield Progress(item, FirstCall(0.1))
            for epoch in range(item.training.epochs):
                for first in (0, 1):
                    yield Progress(item, Steps(epoch, first, np.ones(1, np.float32), 1e-3))
                yield Progress(item, Epoch(epoch, 2, 0.3, 0.9, 1e-3, 1e-4, no_parameters))
            yield Trained(item, None)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


CELLS = [Cell(runtime, size) for size in (32, 512, 4096) for runtime in (LOST, OTHER, CPU)]


def test_a_race_goes_on_with_the_others(store):
    engine = Losing()
    events = list(race(CELLS, engine, store, Cancel(), Request()))
    made = [event for event in events if isinstance(event, Record) and event.kind == Kind.RACE]
    asked = [cell for cell in CELLS if cell.runtime != LOST]
    assert all(one.is_about(cell.subject) for one, cell in zip(made, asked, strict=True))
    assert engine.asked.count(LOST) == 1, "its card is gone: nobody waits for it again"
    marked = [event for event in events if isinstance(event, Record) and event.kind == Kind.FAILURE]
    assert {one.id for one in marked} == {one.id for one in store.records(Kind.FAILURE)}
    assert [(one.subject["batch_size"], one.warnings) for one in marked] == [(size, (WHY,)) for size in (32, 512, 4096)]


MEASURED = {
    "ceilings": lambda engine, store: measure_ceilings([LOST, OTHER, CPU], engine, store, Cancel()),
    "anatomy": lambda engine, store: measure_tasks(
        [AnatomyTask(runtime, Examination("parts")) for runtime in (LOST, OTHER, CPU)],
        engine,
        store,
        Cancel(),
        Request(),
    ),
    "sweeps": lambda engine, store: compare(
        [Method(runtime.backend, runtime.label, "", runtime, "sequential") for runtime in (LOST, OTHER, CPU)],
        1,
        engine,
        store,
        Cancel(),
        Request(),
    ),
}


@pytest.mark.parametrize("measured", MEASURED)
def test_whatever_is_measured_goes_on_with_the_others(measured, store):
    events = list(MEASURED[measured](Losing(), store))
    (marked,) = store.records(Kind.FAILURE)
    assert marked in events
    assert (marked.subject["backend"], marked.subject["device"], marked.warnings) == ("jax-epoch", "gpu", (WHY,))
    assert len([one for one in store.records() if one.kind != Kind.FAILURE]) == 2


def rows(store, runtime, outcomes):
    def measure(error):
        yield "begun"
        if error is not None:
            raise error

    attempts = Attempts(ALL_BUT_THE_CPU)
    for number, error in enumerate(outcomes):
        subject = {"batch_size": number}
        yield list(attempts.marked(store, f"row {number}", runtime, subject, lambda error=error: measure(error)))


def test_what_fails_once_is_tried_again_and_twice_in_a_row_is_given_up(store):
    error = TrainingFailed("there is not enough memory")
    found = list(rows(store, OTHER, [error, None, WorkerDied("it died"), error, None]))
    assert [len(one) for one in found] == [2, 1, 2, 2, 1]
    assert found[1] == ["begun"]
    (last,) = [one for one in store.records() if one.subject["batch_size"] == 4]
    assert words(last).startswith("PyTorch, eager, GPU: not tried any more after 2 failures in a row: there is not")


def test_attempts_go_on_on_a_processor_too_and_a_lost_card_ends_only_its_own():
    def measure(error=None):
        yield "begun"
        if error is not None:
            raise error

    def outcome(runtime, error=None):
        return collected(attempts.row(runtime, lambda: measure(error)))

    attempts, died = Attempts(), WorkerDied("it died")
    assert [outcome(CPU, died), outcome(CPU), outcome(CPU, died), outcome(CPU)] == [
        (["begun"], "it died"),
        (["begun"], ""),
    ] * 2
    assert outcome(LOST, CardLost(WHY)) == (["begun"], WHY)
    assert outcome(LOST) == ([], WHY), "not asked again"
    assert outcome(OTHER) == (["begun"], "")
    assert (attempts.given_up(LOST), attempts.given_up(OTHER)) == (WHY, "")


def test_on_a_processor_an_error_ends_it(store):
    with pytest.raises(TrainingFailed, match="no memory"):
        list(rows(store, CPU, [TrainingFailed("no memory")]))
    assert store.records() == []


def test_who_watches_is_told_and_the_rest_arrives(store):
    task = BackgroundTask(lambda: race(CELLS, Losing(), store, Cancel(), Request()), Cancel())
    task.thread.join(20)
    now = task.view()
    assert (now.state, now.problem) == (State.FAILED, f"JAX, one call an epoch, GPU: {WHY}")
    assert len([item for item in now.items if item.kind == Kind.RACE]) == 6
