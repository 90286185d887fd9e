"""Runs that several watch: who leaves keeps what there was, and the last one out ends it."""

from lib.experiments import mnist_training
from lib.experiments.runs import join
from lib.workers.notes import State
from lib.workers.queue import ALLOWANCE, Request, Urgency


def seats(n, engine, experiment):
    return [join(experiment, engine, None, Request()) for _ in range(n)]


def test_who_leaves_a_run_keeps_what_there_was_and_the_others_see_it_end(engine):
    experiment = mnist_training.learning_rate((0.1, 0.2), epochs=3, batch_size=32, hidden="9", backend="numpy")
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
    experiment = mnist_training.learning_rate((0.1, 0.2), epochs=3, batch_size=1, hidden="9", backend="numpy")
    mine, yours = seats(2, engine, experiment)
    mine.leave()
    assert not mine.run.cancel.is_set()
    yours.leave()
    assert mine.run.cancel.is_set()
    (other,) = seats(1, engine, experiment)
    assert other.run is not mine.run
    other.leave()


def test_a_run_beyond_the_allowance_says_so_and_disturbs_no_other(engine, monkeypatch):
    monkeypatch.setattr(ALLOWANCE, "most", 0)
    long, other = (
        mnist_training.learning_rate((0.1, 0.2), epochs=n, batch_size=1, hidden="9", backend="numpy") for n in (9, 2)
    )
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
