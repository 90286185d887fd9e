"""Runs that several watch: who leaves keeps what there was, and the last one out ends it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from lib.sweeps.experiments.runs import SavedRuns, join
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.notes import State
from lib.sweeps.workers.queue import ALLOWANCE, Request, Urgency
from tests import made


@pytest.fixture
def engine(stub_engine):
    """These tests need no real training."""
    return stub_engine


def seats(n, engine, experiment):
    return [join(experiment, engine, None, Request()) for _ in range(n)]


@pytest.mark.slow
def test_who_leaves_a_run_keeps_what_there_was_and_the_others_see_it_end(engine):
    experiment = made.learning_rate((0.1, 0.2), epochs=3, batch_size=32, hidden="9", backend="numpy")
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
    experiment = made.learning_rate((0.1, 0.2), epochs=3, batch_size=1, hidden="9", backend="numpy")
    mine, yours = seats(2, engine, experiment)
    mine.leave()
    assert not mine.run.cancel.is_set()
    yours.leave()
    assert mine.run.cancel.is_set()
    (other,) = seats(1, engine, experiment)
    assert other.run is not mine.run
    other.leave()


@pytest.mark.slow
def test_who_leaves_is_told_at_once_and_those_who_stay_wait_on(engine, monkeypatch):
    """Who draws a run waits for its end between two frames; Stop must not wait for the next one."""
    experiment = made.learning_rate((0.1, 0.2), epochs=9, batch_size=1, hidden="9", backend="numpy")
    mine, yours = seats(2, engine, experiment)
    stop = mine.run.results.stopped

    def stopped():
        found = stop()
        time.sleep(0.2)  # whoever is woken has time to look before the seat says that it was left
        return found

    monkeypatch.setattr(mine.run.results, "stopped", stopped)
    with ThreadPoolExecutor(2) as pool:
        leaves, stays = (pool.submit(seat.wait_for_end, 60) for seat in (mine, yours))
        time.sleep(0.2)  # both wait
        mine.leave()
        assert leaves.result(30)
        assert not stays.done()
        yours.leave()
        assert stays.result(30)


def test_who_leaves_last_holds_up_nobody_who_comes_to_another_run(engine, monkeypatch):
    """To end a run waits for the queue; in front of a class each of a hundred leaves one every few seconds."""
    slow, quick = (made.learning_rate((0.1, 0.2), epochs=n, batch_size=1, hidden="9", backend="numpy") for n in (9, 2))
    (mine,) = seats(1, engine, slow)
    at_the_queue, may_go, end, was_let_go = threading.Event(), threading.Event(), mine.run.cancel.set, []

    def set_late():
        at_the_queue.set()
        was_let_go.append(may_go.wait(30))
        end()

    monkeypatch.setattr(mine.run.cancel, "set", set_late)
    leaving = threading.Thread(target=mine.leave)
    leaving.start()
    try:
        assert at_the_queue.wait(60)
        (other,) = seats(1, engine, quick)  # waits for no more than a moment
        other.leave()
    finally:
        may_go.set()
        leaving.join(60)
    assert was_let_go == [True], "somebody came while it waited"
    assert mine.run.cancel.is_set()


def test_a_run_beyond_the_allowance_says_so_and_disturbs_no_other(engine, monkeypatch):
    monkeypatch.setattr(ALLOWANCE, "most", 0)
    long, other = (made.learning_rate((0.1, 0.2), epochs=n, batch_size=1, hidden="9", backend="numpy") for n in (9, 2))
    viewer = object()
    first = join(long, engine, None, Request(viewer, Urgency.NOW))
    try:
        with first.changed:
            assert first.changed.wait_for(lambda: first.results.worth_showing, 120)
        second = join(other, engine, None, Request(viewer, Urgency.NOW))
        assert second.wait_for_end(60)
        assert second.results.state is State.FAILED
        assert "Expected at most 0 of your runs to wait" in second.results.failure
        assert not first.results.over
    finally:
        first.leave()


@pytest.mark.parametrize("first", ["who is at the limit", "who is not"])
def test_who_is_at_the_limit_is_refused_alone_at_an_equal_run(engine, monkeypatch, first):
    monkeypatch.setattr(ALLOWANCE, "most", 0)
    long, equal = (made.learning_rate((0.1, 0.2), epochs=n, batch_size=1, hidden="9", backend="numpy") for n in (9, 8))
    busy, free = (Request(object(), Urgency.NOW) for _ in range(2))
    before = join(long, engine, None, busy)
    asked = (busy, free) if first == "who is at the limit" else (free, busy)
    seats = {request: join(equal, engine, None, request) for request in asked}
    try:
        assert seats[busy].wait_for_end(0), "refused at the moment of joining"
        assert "Expected at most 0 of your runs to wait" in seats[busy].results.failure
        assert not seats[free].results.over
        assert seats[free].run.request.each == (free,), "the run is not slowed by whom it refused"
        seats[free].leave()
        assert seats[free].run.cancel.is_set(), "nor held by them"
        before.leave()
        again = join(equal, engine, None, Request(busy.viewer, Urgency.NOW))
        assert again.run is not seats[busy].run
        assert not again.results.over, "what was left no longer counts"
        again.leave()
    finally:
        before.leave()
        seats[free].leave()


def test_a_saved_run_is_shown_at_once_until_one_of_its_curves_is_trained_anew(engine, tmp_path):
    def of(*rates, epochs=2):
        return made.learning_rate(rates, epochs=epochs, batch_size=512, hidden="9", backend="numpy")

    def ended(experiment, fresh=False):
        seat = join(experiment, engine, store, Request(viewer=object()), fresh)
        at_once = seat.results.over
        assert seat.wait_for_end(120)
        return seat.run, at_once

    file = tmp_path / "results.sqlite"
    store, experiment, others = Store(file), of(0.1, 0.2), of(0.3, 0.4)
    for one in (experiment, others):
        assert ended(one)[0].results.state is State.DONE, "trained: who asks next finds it in the store"
    saved, _ = ended(experiment)
    kept, _ = ended(others)
    assert saved.results.state is State.SAVED
    assert saved.request.each == (), "it holds nobody's page"
    assert ended(experiment) == (saved, True)
    ended(of(0.2, 0.5), fresh=True)
    now, _ = ended(experiment)  # from the store, which may take it no time at all
    assert now is not saved
    pairs = zip(saved.results.lines, now.results.lines, strict=True)
    same = {was.item.training.learning_rate: was.epochs == line.epochs for was, line in pairs}
    assert same == {0.1: True, 0.2: False}, "the second was timed anew"
    assert ended(others) == (kept, True), "none of its curves was trained"
    file.unlink()
    assert ended(others)[0].results.state is State.DONE, "the file is another"


@pytest.mark.parametrize(
    ("most", "most_steps", "left"), [(2, 1000, [2, 3]), (9, 250, [2, 3]), (9, 1000, [1, 2, 3]), (9, 50, [])]
)
def test_saved_runs_are_kept_within_bounds(most, most_steps, left):
    runs, results = SavedRuns(most, most_steps), SimpleNamespace(lines=[SimpleNamespace(n_steps=100)])
    for number in (1, 2, 3):
        run = SimpleNamespace(results=results, request=SimpleNamespace())
        runs.keep(number, run, [f"curve {number}"])  # type: ignore[arg-type]
    assert [number for number in (1, 2, 3) if runs.get(number)] == left
