"""What a run has shown so far: its states, its rows, and what a restart voids."""

from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.spec import DataSet, Training
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import Continued, Finished
from lib.sweeps.workers.messages import Item, Progress, Restarted, State, Waiting
from lib.ui.views.mnist_training import run_sentence
from tests import made
from tests.sweeps.test_sweep import FAST


def test_a_restart_voids_what_was_streamed():
    results, (one, other) = Results(FAST, ["a", "b"]), FAST
    results.add(Progress(one, FirstCall(0.1)))
    results.add(Progress(one, Steps(0, 0, np.ones(3, np.float32), 0.1)))
    results.add(Progress(other, Steps(0, 0, np.ones(2, np.float32), 0.1)))
    results.add(Restarted(items=(one,)))
    assert [line.n_steps for line in results.lines] == [0, 2]


def on_rows(experiment, n):
    data = DataSet("f" * 32, 4 * n, n)
    items = tuple(replace(item, training=replace(item.training, data=data)) for item in experiment.items)
    return replace(experiment, items=items)


def filled(experiment, accuracies, epoch_s=0.1, diverged=()):
    results = Results(experiment.items, experiment.labels)
    for index, accuracy in enumerate(accuracies):
        training = experiment.items[index].training
        steps = training.steps_per_epoch()
        epochs = tuple(
            Epoch(
                e,
                steps,
                0.3,
                accuracy * (0.9 + 0.1 * (e + 1) / training.epochs),
                epoch_s * (index + 1),
                0.01,
                no_parameters,
                4 if index in diverged else None,
            )
            for e in range(training.epochs)
        )
        results.add(
            Finished(
                experiment.items[index],
                Curve(0.2, epochs, np.full(steps * training.epochs, 0.3, np.float32)),
                cached=False,
            )
        )
    results.end(State.DONE)
    return results


def test_states_are_told_apart():
    experiment = made.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results = filled(experiment, (0.9, 0.1), diverged=(1,))
    assert [line.state for line in results.lines] == [State.DONE, State.DIVERGED]
    results = Results(experiment.items, experiment.labels)
    results.add(Waiting(2))
    assert results.place == 2
    results.end(State.STOPPED)
    assert "Stopped: 0 of 2" in run_sentence(experiment, results)
    cached = Results(experiment.items, experiment.labels)
    curve = filled(experiment, (0.9, 0.9)).lines[0].curve
    assert curve is not None
    for item in experiment.items:
        cached.add(Finished(item, curve, cached=True))
    cached.end(State.DONE)
    assert cached.state is State.SAVED
    assert cached.share_done == 1.0


@pytest.mark.parametrize(("end", "cut_off"), [(State.STOPPED, "stopped"), (State.FAILED, "failed")])
def test_after_the_end_nothing_runs_and_nothing_waits(end, cut_off):
    experiment = made.learning_rate((0.1, 1.0, 0.3, 0.4), epochs=3, batch_size=32, hidden="128")
    results = Results(experiment.items, experiment.labels)
    curve = filled(experiment, (0.9,) * 4).lines[0].curve
    assert curve is not None
    items = experiment.items
    results.add(Finished(items[0], curve, cached=False))
    results.add(Progress(items[1], FirstCall(0.1)))
    results.add(Progress(items[1], Steps(0, 0, np.ones(3, np.float32), 0.1)))
    results.add(Continued(items[2], curve))
    assert results.summary_frame()["state"].tolist() == ["done", "training", "training", "waiting"]
    results.end(end, "why")
    assert results.summary_frame()["state"].tolist() == ["done", cut_off, cut_off, "not run"]


def test_thinned_lines_do_not_move_while_they_grow():
    item = Item(Training(batch_size=1, epochs=3))
    results = Results([item], ["1"])
    rng = np.random.default_rng(0)
    losses = rng.random(5000).astype(np.float32)
    results.add(Progress(item, Steps(0, 0, losses[:3000], 0.1)))
    before = results.steps_frame()
    results.add(Progress(item, Steps(0, 3000, losses[3000:], 0.1)))
    after = results.steps_frame().iloc[: len(before)]
    assert before["step"].tolist() == after["step"].tolist()
    np.testing.assert_allclose(before["loss"], after["loss"])
    assert len(results.steps_frame()) <= 150
