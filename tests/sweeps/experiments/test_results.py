# pyright: reportArgumentType=false
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.spec import DataSet, Training
from lib.sweeps.experiments import results as module
from lib.sweeps.experiments.results import BackgroundTask, Results, Watched, join
from lib.sweeps.storage.records import Curve
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Continued, Finished
from lib.sweeps.workers.messages import Item, Note, Progress, Restarted, State, TrainingFailed, Waiting
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request, Urgency
from lib.ui.views.mnist_training import run_sentence
from tests import made
from tests.sweeps.test_sweep import FAST


def test_a_restart_discards_streamed_steps():
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
    for index, (item, accuracy) in enumerate(zip(experiment.items, accuracies, strict=False)):
        training, epochs = item.training, []
        steps, ended = training.steps_per_epoch(), 4 if index in diverged else None
        for number in range(training.epochs):
            reached = accuracy * (0.9 + 0.1 * (number + 1) / training.epochs)
            epochs.append(Epoch(number, steps, 0.3, reached, epoch_s * (index + 1), 0.01, no_parameters, ended))
        losses = np.full(steps * training.epochs, 0.3, np.float32)
        results.add(Finished(item, Curve(0.2, tuple(epochs), losses), cached=False))
    results.end(State.DONE)
    return results


def test_lines_and_runs_have_the_right_state():
    experiment = made.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results = filled(experiment, (0.9, 0.1), diverged=(1,))
    assert [line.state for line in results.lines] == [State.DONE, State.DIVERGED]
    results = Results(experiment.items, experiment.labels)
    results.add(Waiting(2))
    assert results.place == 2
    results.end(State.STOPPED)
    assert "Stopped: 0 of 2" in run_sentence(experiment, results)
    cached = Results(experiment.items, experiment.labels)
    for line in filled(experiment, (0.9, 0.9)).lines:
        cached.add(Finished(line.item, line.curve, cached=True))
    cached.end(State.DONE)
    assert cached.state is State.SAVED
    assert cached.share_done == 1.0


@pytest.mark.parametrize(("end", "cut_off"), [(State.STOPPED, "stopped"), (State.FAILED, "failed")])
def test_after_the_end_no_line_is_training_or_waiting(end, cut_off):
    experiment = made.learning_rate((0.1, 1.0, 0.3, 0.4), epochs=3, batch_size=32, hidden="128")
    results, items = Results(experiment.items, experiment.labels), experiment.items
    curve = filled(experiment, (0.9,)).lines[0].curve
    results.add(Finished(items[0], curve, cached=False))
    results.add(Progress(items[1], FirstCall(0.1)))
    results.add(Progress(items[1], Steps(0, 0, np.ones(3, np.float32), 0.1)))
    results.add(Continued(items[2], curve))
    assert results.summary_frame()["state"].tolist() == ["done", "training", "training", "waiting"]
    results.end(end, "why")
    assert results.summary_frame()["state"].tolist() == ["done", cut_off, cut_off, "not run"]


def test_thinned_points_do_not_move_while_a_line_grows():
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


@pytest.fixture
def engine(stub_engine):
    return stub_engine


def of(*rates, epochs=2, batch_size=512):
    return made.learning_rate(rates, epochs=epochs, batch_size=batch_size, hidden="9", backend="numpy")


def two_join(engine, experiment):
    return [join(experiment, engine, None, Request()) for _ in range(2)]


@pytest.mark.slow
def test_leaving_a_run_keeps_its_results_and_others_see_it_end(engine):
    mine, yours = two_join(engine, of(0.1, 0.2, epochs=3, batch_size=32))
    assert mine.run is yours.run
    with mine.results.changed:
        mine.results.changed.wait_for(lambda: mine.results.worth_showing, 60)
    mine.leave()
    assert mine.results.state is State.STOPPED
    steps = mine.results.lines[0].n_steps
    assert yours.wait_for_end(120)
    assert yours.results.state is State.DONE
    assert (mine.results.state, mine.results.lines[0].n_steps) == (State.STOPPED, steps)


def test_a_run_ends_when_all_have_left_and_the_next_viewer_starts_another(engine):
    experiment = of(0.1, 0.2, epochs=3, batch_size=1)
    mine, yours = two_join(engine, experiment)
    mine.leave()
    assert not mine.run.cancel.is_set()
    yours.leave()
    assert mine.run.cancel.is_set()
    other = join(experiment, engine, None, Request())
    assert other.run is not mine.run
    other.leave()


@pytest.mark.slow
def test_leaving_wakes_the_leaver_at_once_while_others_keep_waiting(engine, monkeypatch):
    mine, yours = two_join(engine, of(0.1, 0.2, epochs=9, batch_size=1))
    stop = mine.run.results.stopped

    def stopped():
        found = stop()
        time.sleep(0.2)  # time for the woken threads to look before this viewer counts as gone
        return found

    monkeypatch.setattr(mine.run.results, "stopped", stopped)
    with ThreadPoolExecutor(2) as pool:
        leaves, stays = (pool.submit(joined.wait_for_end, 60) for joined in (mine, yours))
        time.sleep(0.2)  # both wait by now
        mine.leave()
        assert leaves.result(30)
        assert not stays.done()
        yours.leave()
        assert stays.result(30)


@pytest.mark.parametrize("first", ["who is at the limit", "who is not"])
def test_a_viewer_at_the_limit_is_refused_without_affecting_others(engine, monkeypatch, first):
    monkeypatch.setattr(ALLOWANCE, "most", 0)
    long, equal = (of(0.1, 0.2, epochs=epochs, batch_size=1) for epochs in (9, 8))
    busy, free = (Request(object(), Urgency.NOW) for _ in range(2))
    before = join(long, engine, None, busy)
    asked = (busy, free) if first == "who is at the limit" else (free, busy)
    subscriptions = {request: join(equal, engine, None, request) for request in asked}
    try:
        assert subscriptions[busy].wait_for_end(0), "refused at the moment of joining"
        assert "Expected at most 0 of your runs to wait" in subscriptions[busy].results.failure
        assert not subscriptions[free].results.over
        assert subscriptions[free].run.requests == [free], "the run is not slowed by whom it refused"
        subscriptions[free].leave()
        assert subscriptions[free].run.cancel.is_set(), "nor held by them"
        before.leave()
        again = join(equal, engine, None, Request(busy.viewer, Urgency.NOW))
        assert again.run is not subscriptions[busy].run
        assert not again.results.over, "what was left no longer counts"
        again.leave()
    finally:
        before.leave()
        subscriptions[free].leave()


def test_a_saved_run_is_reused_until_one_of_its_curves_is_retrained(engine, tmp_path):
    def ended(experiment, fresh=False):
        joined = join(experiment, engine, store, Request(viewer=object()), fresh)
        at_once = joined.results.over
        assert joined.wait_for_end(120)
        return joined.run, at_once

    file = tmp_path / "results.sqlite"
    store, experiment, others = Store(file), of(0.1, 0.2), of(0.3, 0.4)
    for one in (experiment, others):
        assert ended(one)[0].results.state is State.DONE, "trained: who asks next finds it in the store"
    saved, _ = ended(experiment)
    kept, _ = ended(others)
    assert saved.results.state is State.SAVED
    assert saved.requests == [], "it holds nobody's page"
    assert ended(experiment) == (saved, True)
    ended(of(0.2, 0.5), fresh=True)
    now, _ = ended(experiment)  # from the store, perhaps instantly
    assert now is not saved
    pairs = zip(saved.results.lines, now.results.lines, strict=True)
    same = {was.item.training.learning_rate: was.epochs == line.epochs for was, line in pairs}
    assert same == {0.1: True, 0.2: False}, "the second was timed again"
    assert ended(others) == (kept, True), "none of its curves was trained"
    file.unlink()
    assert ended(others)[0].results.state is State.DONE, "the file is another"


@pytest.mark.parametrize(
    ("most", "most_steps", "left"), [(2, 1000, [2, 3]), (9, 250, [2, 3]), (9, 1000, [1, 2, 3]), (9, 50, [])]
)
def test_saved_runs_are_kept_within_bounds(monkeypatch, most, most_steps, left):
    monkeypatch.setattr(module, "_saved", kept := OrderedDict())
    monkeypatch.setattr(module, "MAX_SAVED_RUNS", most)
    monkeypatch.setattr(module, "MAX_SAVED_STEPS", most_steps)
    for number in (1, 2, 3):
        run = module.Run(of(0.1, 0.2))
        for line in run.results.lines:
            line.n_steps, line.cached = 50, True
        module._end(run, number, number, State.DONE, "")
    assert list(kept) == left


def finished(make, cancel=None):
    task = BackgroundTask(make, cancel or Cancel())
    task.thread.join(5)
    return task.view()


def test_a_task_collects_items_and_clears_its_note_at_the_end():
    now = finished(lambda: iter([Note("starting"), 1, 2, Note("almost")]))
    assert (now.items, now.state, now.version) == ([1, 2], State.DONE, 5)
    assert now.note == "", "at the end nothing is going on"


def test_a_cancelled_task_is_stopped_not_done():
    cancel = Cancel()

    def make():
        yield 1
        cancel.set()

    assert finished(make, cancel).state == State.STOPPED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "words"), [(TrainingFailed("it was killed"), "it was killed"), (KeyError("x"), "a bug in this program")]
)
def test_items_before_a_failure_are_kept(error, words):
    def make():
        yield 1
        raise error

    now = finished(make)
    assert (now.items, now.state) == ([1], State.FAILED)
    assert words in now.problem


def test_a_follower_is_notified_by_each_source_and_held_weakly():
    both, one, other = (Watched(State.MEASURING) for _ in range(3))
    one.followed_by(both)
    other.followed_by(both)
    task = BackgroundTask(lambda: iter([1, 2]), Cancel())
    task.followed_by(both)
    task.thread.join(5)
    before = both.version
    for changed in (one, other, one):
        changed.tell()
    assert both.version == before + 3
    del both
    one.tell()
    assert one.version == 3, "whoever follows is held weakly"
