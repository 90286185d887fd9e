"""Sweeps through the real engine: grouping, serving what is kept, and what a run shows while it goes on."""

import threading
import time

import numpy as np
import pytest

from lib.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.backends.registry import Way
from lib.experiments import mnist_training
from lib.experiments.results import Results
from lib.experiments.runs import join
from lib.spec import Network, Training
from lib.storage.records import Curve
from lib.storage.store import Store
from lib.sweeps.events import Continued, Finished, Item, Void
from lib.sweeps.sweep import Options, updates
from lib.views import mnist_training as view
from lib.workers.cancel import Cancel
from lib.workers.engine import Progress, Waiting
from lib.workers.machine_turn import Holder
from lib.workers.notes import State
from lib.workers.queue import Claim

FAST = [Item(Training(Network((8,)), rate, 4096, 1), Way("numpy")) for rate in (0.1, 0.3)]


def finished(items, engine, store, **options):
    told = list(updates(items, engine, store, Cancel(), Options(**options)))
    return told, {update.index: update for update in told if isinstance(update, Finished)}


def test_what_is_kept_is_served_and_the_rest_trained(engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    _, first = finished(FAST, engine, store)
    assert [first[i].kept for i in (0, 1)] == [False, False]
    more = [*FAST, Item(Training(Network((8,)), 0.2, 4096, 1), Way("numpy"))]
    told, second = finished(more, engine, store)
    assert [second[i].kept for i in (0, 1, 2)] == [True, True, False]
    assert {update.index for update in told if isinstance(update, Progress)} == {2}
    np.testing.assert_array_equal(first[1].curve.losses, second[1].curve.losses)
    assert second[0].curve.measured_at == first[0].curve.measured_at, "a kept time says when it was taken"
    _, fresh = finished(FAST, engine, store, fresh=True)
    assert not fresh[0].kept
    np.testing.assert_array_equal(first[0].curve.losses, fresh[0].curve.losses, err_msg="training is deterministic")


LONGER = [Item(Training(Network((9,)), 0.1, 32, 3), Way("numpy"))]


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
    """One is trained, and all see all of it, whichever strategy they asked for: so would they if it were kept already."""
    store, strategies = Store(tmp_path / "results.sqlite"), iter(["auto", "sequential", "auto"])
    results = in_threads(3, lambda: finished(LONGER, engine, store, strategy=next(strategies)))
    assert len(results) == 3
    assert len({id(found[0].curve) for _, found in results}) == 1, "the very same seconds"
    for told, _ in results:
        assert [u.event.epoch for u in told if isinstance(u, Progress) and isinstance(u.event, Epoch)] == [0, 1, 2]


def test_who_comes_while_it_trains_sees_it_from_its_first_epoch_on_and_trains_only_the_rest(
    engine, tmp_path, monkeypatch
):
    store, trained = Store(tmp_path / "results.sqlite"), []
    run = engine.run

    def counted(way, trainings, *rest):
        trained.extend(trainings)
        return run(way, trainings, *rest)

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
    (curve,) = (update.curve for update in later if isinstance(update, Finished) and update.index == 2)
    assert curve is begun[-1].curve
    epochs = [u.event.epoch for u in later if isinstance(u, Progress) and u.index == 2 and isinstance(u.event, Epoch)]
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
    assert Void((0,)) in later
    assert isinstance(later[-1], Finished)


@pytest.mark.parametrize(("kept", "fresh"), [(True, True), (False, False)], ids=["asked anew", "not kept"])
def test_what_is_not_to_be_served_is_not_shared(engine, tmp_path, kept, fresh):
    store = Store(tmp_path / "results.sqlite") if kept else None
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
    told, again = finished(items, engine, store)
    assert again[0].kept
    assert again[0].curve.warnings == (other.disturbs,)
    results = Results(items, ["a"])
    for update in told:
        results.add(update)
    assert results.notices == (other.disturbs,)
    assert finished(items, engine, store, fresh=True)[1][0].curve.warnings == ()


def seats(n, engine, experiment):
    return [join(experiment, engine, None, Claim()) for _ in range(n)]


def test_who_leaves_a_run_keeps_what_there_was_and_the_others_see_it_end(engine):
    experiment = mnist_training.learning_rate((0.1, 0.2), 3, 32, "9", "numpy")
    mine, yours = seats(2, engine, experiment)
    assert mine.run is yours.run
    with mine.results.changed:
        mine.results.changed.wait_for(lambda: mine.results.worth_showing, 60)
    mine.leave()
    assert mine.results.state is State.STOPPED
    steps = mine.results.lines[0].n_steps
    assert yours.wait_for_end(120)
    assert yours.results.state is State.DONE
    assert (mine.results.state, mine.results.lines[0].n_steps) == (State.STOPPED, steps)


def test_a_run_ends_when_all_have_left_and_whoever_comes_then_begins_another(engine):
    experiment = mnist_training.learning_rate((0.1, 0.2), 3, 1, "9", "numpy")
    mine, yours = seats(2, engine, experiment)
    mine.leave()
    assert not mine.run.cancel.is_set()
    yours.leave()
    assert mine.run.cancel.is_set()
    (other,) = seats(1, engine, experiment)
    assert other.run is not mine.run
    other.leave()


def test_a_restart_voids_what_was_streamed():
    results = Results(FAST, ["a", "b"])
    results.add(Progress(0, FirstCall(0.1)))
    results.add(Progress(0, Steps(0, 0, np.ones(3, np.float32), 0.1)))
    results.add(Progress(1, Steps(0, 0, np.ones(2, np.float32), 0.1)))
    results.add(Void((0,)))
    assert [line.n_steps for line in results.lines] == [0, 2]


def filled(experiment, accuracies, epoch_s=0.1, diverged=()):
    """Results as if each line had finished with its accuracy."""
    results = Results(experiment.items, experiment.labels)
    for index, accuracy in enumerate(accuracies):
        training = experiment.items[index].training
        steps = training.steps_per_epoch()
        epochs = tuple(
            Epoch(e, steps, 0.3, accuracy * (0.9 + 0.1 * (e + 1) / training.epochs), epoch_s * (index + 1), 0.01, no_parameters,
                  4 if index in diverged else None)
            for e in range(training.epochs)
        )  # fmt: skip
        results.add(Finished(index, Curve(0.2, epochs, np.full(steps * training.epochs, 0.3, np.float32)), kept=False))
    results.end(State.DONE)
    return results


def test_sentences_say_what_the_rows_show():
    rates = mnist_training.learning_rate((0.01, 0.1, 10.0), 3, 32, "128")
    text = mnist_training.sentence(rates, filled(rates, (0.9, 0.965, 0.1), diverged=(2,)))
    assert "Learning rate 0.1 was best: 96.5" in text
    assert "10 diverged" in text
    assert "step 5" in text
    stuck = mnist_training.sentence(rates, filled(rates, (0.9, 0.95, 0.113)))
    assert "10 did not learn: 11.3" in stuck
    sizes = mnist_training.batch_size((1, 32), 3, 0.01, "128")
    text = mnist_training.sentence(sizes, filled(sizes, (0.97, 0.9)), 0.95)
    assert "To 95.0" in text
    assert "quickest was batch size 1" in text
    assert "32 did not reach it" in text
    depths = mnist_training.depth(("128", "256"), "", 3, 0.1, 32)
    assert "one seed cannot tell" in mnist_training.sentence(depths, filled(depths, (0.965, 0.967)))
    chosen = mnist_training.learning_rate((0.01, 0.1), 1, 32, "128", "numpy")
    text = mnist_training.sentence(chosen, filled(chosen, (0.9, 0.95, 0.9, 0.95)))
    assert "NumPy took" in text
    assert "times as long" in text


def test_states_are_told_apart():
    experiment = mnist_training.learning_rate((0.1, 1.0), 1, 32, "128")
    results = filled(experiment, (0.9, 0.1), diverged=(1,))
    assert [line.state for line in results.lines] == [State.DONE, State.DIVERGED]
    results = Results(experiment.items, experiment.labels)
    results.add(Waiting(2))
    assert results.place == 2
    results.end(State.STOPPED)
    assert "Stopped: 0 of 2" in mnist_training.sentence(experiment, results)
    kept = Results(experiment.items, experiment.labels)
    curve = filled(experiment, (0.9, 0.9)).lines[0].curve
    assert curve is not None
    for index in (0, 1):
        kept.add(Finished(index, curve, kept=True))
    kept.end(State.DONE)
    assert kept.state is State.SAVED
    assert kept.share_done == 1.0


@pytest.mark.parametrize(("end", "cut_off"), [(State.STOPPED, "stopped"), (State.FAILED, "failed")])
def test_after_the_end_nothing_runs_and_nothing_waits(end, cut_off):
    experiment = mnist_training.learning_rate((0.1, 1.0, 0.3, 0.4), 3, 32, "128")
    results = Results(experiment.items, experiment.labels)
    curve = filled(experiment, (0.9,) * 4).lines[0].curve
    assert curve is not None
    results.add(Finished(0, curve, kept=False))
    results.add(Progress(1, FirstCall(0.1)))
    results.add(Progress(1, Steps(0, 0, np.ones(3, np.float32), 0.1)))
    results.add(Continued(2, curve))
    assert results.summary_frame()["state"].tolist() == ["done", "training", "training", "waiting"]
    results.end(end, "why")
    assert results.summary_frame()["state"].tolist() == ["done", cut_off, cut_off, "not run"]


def test_thinned_lines_do_not_move_while_they_grow():
    results = Results([Item(Training(batch_size=1, epochs=3))], ["1"])
    rng = np.random.default_rng(0)
    losses = rng.random(5000).astype(np.float32)
    results.add(Progress(0, Steps(0, 0, losses[:3000], 0.1)))
    before = results.steps_frame()
    results.add(Progress(0, Steps(0, 3000, losses[3000:], 0.1)))
    after = results.steps_frame().iloc[: len(before)]
    assert before["step"].tolist() == after["step"].tolist()
    np.testing.assert_allclose(before["loss"], after["loss"])
    assert len(results.steps_frame()) <= 150


@pytest.mark.parametrize(
    "experiment",
    [
        mnist_training.learning_rate((0.01, 0.1, 10.0), 3, 32, "128"),
        mnist_training.batch_size((1, 32, 4096), 3, 0.01, "128"),
        mnist_training.depth(("128", "256→128→64"), "none", 3, 0.1, 32),
        mnist_training.backends(32, 5, 0.1, "128"),
    ],
    ids=lambda experiment: experiment.name,
)
def test_charts_of_empty_and_full_results(experiment):
    empty = view.charts(experiment, Results(experiment.items, experiment.labels))
    results = filled(experiment, [0.95] * len(experiment.items), diverged=(2,))
    full = view.charts(experiment, results)
    for before, after in zip(empty, full, strict=True):
        assert after.spec["datasets"]["rows"]
        assert before.spec["height"] == after.spec["height"]
        encodings = [layer.get("encoding", {}).get("y") for layer in before.spec["layer"]]
        assert encodings == [layer.get("encoding", {}).get("y") for layer in after.spec["layer"]], (
            "axes stay as the lines grow"
        )
    if experiment.name == "learning-rate":
        outcomes = [row["outcome"] for row in full[-1].spec["datasets"]["rows"]]
        assert outcomes == ["learnt", "learnt", "diverged"]


def test_published_figures_stand_beside_measured_ones():
    experiment = mnist_training.backends(32, 2, 0.1, "128")
    (dots,) = view.charts(experiment, filled(experiment, [0.95] * len(experiment.items)))
    quoted = {row["label"]: row["y"] for row in dots.spec["datasets"]["published"]}
    assert quoted["NumPy"] == 2.71
    assert quoted["Keras on TensorFlow"] == 11.31
    (dots,) = view.charts(*[e := mnist_training.backends(8, 2, 0.1, "128"), filled(e, [0.95] * len(e.items))])
    assert dots.spec["datasets"]["published"] == [], "the article has no batch size 8"


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: mnist_training.rates_between(0.1, 0.1, 4), "range"),
        (lambda: mnist_training.rates_between(0.001, 1, 1), "2 to 16"),
        (lambda: mnist_training.batch_size([], 3, 0.1, "128"), "at least one, got none"),
        (lambda: mnist_training.depth([], "", 3, 0.1, 32), "at least one network"),
        (lambda: mnist_training.depth([], "12; x", 3, 0.1, 32), "“x”"),
        (lambda: mnist_training.learning_rate((0.1, 1.0), 3, 50_000, "128"), "50,000"),
    ],
)
def test_bad_controls_are_one_sentence(make, wanted):
    with pytest.raises(ValueError, match="expected") as caught:
        make()
    assert wanted in str(caught.value)


def test_labels_are_spread_and_keep_their_order():
    rng = np.random.default_rng(1)
    for _ in range(50):
        wanted = rng.random(rng.integers(1, 12)).tolist()
        placed = view.spread_labels(wanted, 0.05)
        assert np.argsort(placed, kind="stable").tolist() == np.argsort(wanted, kind="stable").tolist()
        assert (np.diff(np.sort(placed)) >= 0.05 - 1e-5).all()
