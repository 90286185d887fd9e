"""A card lost while measuring fails its own rows and nothing else. A stand-in engine loses it."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import MNIST, Training
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_ceilings, measure_tasks
from lib.sweeps.experiments.backend_race import Cell, race
from lib.sweeps.experiments.parallel_sweeps import Method, compare
from lib.sweeps.experiments.results import BackgroundTask
from lib.sweeps.measuring import ALL_BUT_THE_CPU, Attempts, StepTime, measured_s, step_times, words
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.sweep import Part, evaluation_flops, nominal_s, step_flops
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import CardLost, Item, Measured, Progress, Ready, State, Trained, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import Examination
from tests.generators import collected

LOST, OTHER, CPU = Runtime("jax-epoch", "gpu"), Runtime("torch", "gpu"), Runtime("numpy")
WHY = "the GPU no longer responds"


class Losing(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    def data_facts(self, cancel, which=MNIST):
        yield from ()
        return Facts("MNIST", "digest")

    def run(self, jobs, cancel, request=None, n_workers=0):
        (job,) = jobs
        self.asked.append(job.runtime)
        yield Ready(Facts("MNIST", "digest"))
        if job.runtime == LOST:
            raise CardLost(WHY)
        if job.examination is not None:
            yield Measured("product", Measurement((1e-3,) * 3, 1, Ended.CAP), 1e9)
        for item in (Item(training, job.runtime) for training in job.trainings):
            yield Progress(item, FirstCall(0.1))
            for epoch in range(item.training.epochs):
                for first in (0, 1):
                    yield Progress(item, Steps(epoch, first, np.ones(1, np.float32), 1e-3))
                yield Progress(item, Epoch(epoch, 2, 0.3, 0.9, 1e-3, 1e-4, no_parameters))
            yield Trained(item, None)


RUNTIMES = [LOST, OTHER, CPU]
CELLS = [Cell(runtime, size) for size in (32, 512, 4096) for runtime in RUNTIMES]


def test_a_race_continues_without_a_lost_card_and_says_so(store):
    engine = Losing()
    task = BackgroundTask(lambda: race(CELLS, engine, store, Cancel(), Request()), Cancel())
    task.thread.join(20)
    now = task.view()
    assert (now.state, now.problem) == (State.FAILED, f"JAX, one call an epoch, GPU: {WHY}")
    made = [item for item in now.items if item.kind == Kind.RACE]
    asked = [cell for cell in CELLS if cell.runtime != LOST]
    assert all(one.is_about(cell.subject) for one, cell in zip(made, asked, strict=True))
    assert engine.asked.count(LOST) == 1, "its card is gone: nobody waits for it again"
    marked = [item for item in now.items if item.kind == Kind.FAILURE]
    assert {one.id for one in marked} == {one.id for one in store.records(Kind.FAILURE)}
    assert [(one.subject["batch_size"], one.warnings) for one in marked] == [(size, (WHY,)) for size in (32, 512, 4096)]


TASKS = [AnatomyTask(runtime, Examination("parts")) for runtime in RUNTIMES]
METHODS = [Method(runtime.backend, runtime.label, "", runtime, "sequential") for runtime in RUNTIMES]


@pytest.mark.parametrize(
    ("measuring", "asked"),
    [(measure_ceilings, (RUNTIMES,)), (measure_tasks, (TASKS,)), (compare, (METHODS, 1))],
    ids=["ceilings", "anatomy", "sweeps"],
)
def test_other_measurements_continue_without_a_lost_card(measuring, asked, store):
    events = list(measuring(*asked, Losing(), store, Cancel(), Request()))
    (marked,) = store.records(Kind.FAILURE)
    assert marked in events
    assert (marked.subject["backend"], marked.subject["device"], marked.warnings) == ("jax-epoch", "gpu", (WHY,))
    assert len([one for one in store.records() if one.kind != Kind.FAILURE]) == 2


def measure(error=None):
    yield "begun"
    if error is not None:
        raise error


def rows(store, runtime, outcomes):
    attempts = Attempts(ALL_BUT_THE_CPU)
    for number, error in enumerate(outcomes):
        subject = {"batch_size": number}
        yield list(attempts.marked(store, f"row {number}", runtime, subject, lambda error=error: measure(error)))


def test_a_runtime_is_given_up_after_two_failures_in_a_row(store):
    error = TrainingFailed("there is not enough memory")
    found = list(rows(store, OTHER, [error, None, TrainingFailed("it died"), error, None]))
    assert [len(one) for one in found] == [2, 1, 2, 2, 1], "a success in between starts the count over"
    assert found[1] == ["begun"]
    (last,) = [one for one in store.records() if one.subject["batch_size"] == 4]
    assert words(last).startswith("PyTorch, eager, GPU: no longer tried after 2 failures in a row: there is not")


def test_a_lost_card_is_given_up_at_once_and_no_other_runtime():
    attempts = Attempts()
    asked = [(LOST, CardLost(WHY)), (LOST, None), (OTHER, None), (CPU, TrainingFailed("it died"))]
    outcomes = [collected(attempts.row(runtime, lambda error=error: measure(error))) for runtime, error in asked]
    assert outcomes == [(["begun"], WHY), ([], WHY), (["begun"], ""), (["begun"], "it died")]
    assert (attempts.given_up(LOST), attempts.given_up(OTHER)) == (WHY, "")


def test_an_error_on_a_processor_is_raised(store):
    with pytest.raises(TrainingFailed, match="no memory"):
        list(rows(store, CPU, [TrainingFailed("no memory")]))
    assert store.records() == []


def test_seconds_are_computed_from_step_times():
    trainings = tuple(Training(learning_rate=rate, epochs=2) for rate in (0.1, 0.2))
    step_time = StepTime(100e-6, 0.5)
    for part, steps in ((Part(trainings), 2 * 2 * 1500), (Part(trainings, 1), 2 * 1500)):
        evaluation_s = evaluation_flops(part) / (step_flops(part) / step_time.step_s)
        assert measured_s({part: step_time}) == pytest.approx(steps * 100e-6 + evaluation_s)
    assert nominal_s(trainings) == pytest.approx(2 * nominal_s(trainings[:1]))


class ShortEpochs:
    def run(self, jobs, *_):
        for epoch in range(3):
            for item in jobs[0].items:
                yield Progress(item, Steps(epoch, 0, np.ones(11, np.float32), 0.011))


def test_short_epochs_and_stacks_have_the_right_step_time(store):
    training = Training(batch_size=4096, epochs=3)
    for part, step_s in ((Part((training,)), 1e-3), (Part((training, replace(training, seed=1)), 1), 2e-3)):
        times = step_times([part], ShortEpochs(), store, Runtime(), Cancel(), Request())  # type: ignore[arg-type]
        _, found = collected(times)
        assert found[part].step_s == pytest.approx(step_s)


def test_a_step_time_prefers_undisturbed_measurements():
    def took(step_s, *warnings):
        measured = Measurement((step_s,), 1, Ended.CAP, warnings=warnings)
        return Record.of(Kind.STEP_TIME, {"first_call_s": 0.5}, measured)

    records = [took(2.0), took(9.0, "busy"), took(4.0), took(7.0, "busy")]
    found = StepTime.of(records)
    assert (found.step_s, found.low_s, found.high_s, found.disturbed, found.times) == (3.0, 2.0, 4.0, (), 4)
    found = StepTime.of(records[1::2])
    assert (found.step_s, found.disturbed) == (8.0, ("busy",)), "better than nothing"
