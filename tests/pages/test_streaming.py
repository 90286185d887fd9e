"""What is drawn of a run: one frame for all who see the same, kept for as long as the run is."""

import gc
import weakref
from types import SimpleNamespace

import marimo as mo
import pytest

from lib.data.mnist import Facts
from lib.experiments import mnist_training
from lib.experiments.results import Results
from lib.pages import layout
from lib.pages.mnist_training import tell as tell_images
from lib.pages.streaming import MAX_FRAMES, _frames, _View
from lib.sweeps.events import Finished
from lib.workers.messages import Ready
from lib.workers.notes import State
from lib.workers.queue import Request
from tests.experiments.test_results import filled
from tests.pages.test_stage import rates, watched


@pytest.mark.slow
def test_two_runs_that_are_pinned_beside_each_other_are_forgotten():
    """What was drawn of them must not keep them: each is drawn beside the other."""
    one, other = (rates(epochs) for epochs in (1, 2))
    seats = [watched(experiment, None, None, Request()) for experiment in (one, other)]
    for experiment, seat, beside in ((one, seats[0], seats[1]), (other, seats[1], seats[0])):
        _View(experiment, None, "", 0.9, None, None, [""], pinned=beside).draw(seat.results)  # type: ignore[arg-type]
    gone = [weakref.ref(seat.results) for seat in seats]
    del seats, seat, beside
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.parametrize("facts", [Facts("MNIST", "1"), Facts("scikit-learn digits", "2", "no connection")])
def test_the_title_knows_the_images_before_a_frame_shows_what_was_trained_on_them(monkeypatch, facts):
    """While it trains, and not only once its controls have rested after “Done”; also where another viewer draws."""
    experiment = rates(1)
    results, said = Results(experiment.items, experiment.labels), []
    monkeypatch.setattr(mo.output, "replace", lambda _: said.append("frame"))
    store = SimpleNamespace(trouble="")
    tell = tell_images(said.append, store)  # type: ignore[arg-type]
    views = [_View(experiment, None, "", 0.9, None, None, [""], on_data=tell) for _ in range(2)]  # type: ignore[arg-type]
    views[0].draw(results)
    assert said == ["frame"], "nothing is known yet"
    results.add(Ready(facts))
    for view in views:
        view.draw(results)
    assert said[1:] == [(facts, ""), "frame"] * 2
    store.trouble = "the disk is full"
    results.end(State.DONE)
    views[0].draw(results)
    assert said[5:] == [(facts, "the disk is full"), "frame"]


def test_saved_results_are_drawn_once_for_all_viewers(monkeypatch):
    experiment = mnist_training.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    curve = filled(experiment, (0.9, 0.9)).lines[0].curve
    assert curve is not None
    results = Results(experiment.items, experiment.labels)
    for item in experiment.items:
        results.add(Finished(item, curve, cached=True))
    results.end(State.DONE)
    drawn, shown, ago = [], [], ["“a moment” & ago"]
    monkeypatch.setattr(layout, "result", lambda *seen: drawn.append(seen) or f"frame {len(drawn)}, {seen[3]}")
    monkeypatch.setattr(layout, "progress_text", lambda _: ago[0])
    monkeypatch.setattr(mo.output, "replace", lambda page: shown.append(page.text))

    def show(target=0.9):
        view = _View(experiment, None, "controls of one viewer", target, None, None, [""])  # type: ignore[arg-type]
        assert view.draw(results) == results.version

    show()
    show()
    assert len(drawn) == 1
    assert all("frame 1" in page and "controls of one viewer" in page for page in shown)
    ago[0] = "2 minutes ago"
    show()
    assert len(drawn) == 1
    assert "frame 1, " in shown[-1]
    assert "2 minutes ago" in shown[-1], "time has passed"
    for target in range(3 * MAX_FRAMES):
        show(target)
    assert len(_frames[results]) == MAX_FRAMES


def test_a_run_under_way_is_drawn_once_for_all_viewers_though_its_words_change(monkeypatch):
    experiment = mnist_training.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results, drawn, words = Results(experiment.items, experiment.labels), [], iter(range(100))
    monkeypatch.setattr(layout, "progress_text", lambda _: f"{next(words)} s left")
    monkeypatch.setattr(layout, "result", lambda *seen: drawn.append(seen) or f"frame, {seen[3]}")
    monkeypatch.setattr(mo.output, "replace", lambda page: None)
    for _ in range(3):
        _View(experiment, None, "", 0.9, None, None, [""]).draw(results)  # type: ignore[arg-type]
    assert len(drawn) == 1


def test_a_run_that_ends_while_it_is_drawn_is_not_yet_done_and_keeps_its_charts(monkeypatch):
    """“Done” stood below charts that lacked a line; its words took the place of each “0%”, also of a number format."""
    experiment = mnist_training.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results, shown = Results(experiment.items, experiment.labels), []
    monkeypatch.setattr(layout, "progress_text", lambda _: "2 trainings" if results.over else ".0%")
    monkeypatch.setattr(layout, "charts", lambda *_: results.end(State.DONE) or [])
    monkeypatch.setattr(layout, "_details", lambda *_: 'format=".0%"')
    monkeypatch.setattr(mo.output, "replace", lambda page: shown.append(page.text))
    view = _View(experiment, None, "", 0.9, None, None, [""])  # type: ignore[arg-type]
    assert view.draw(results) != results.version, "what was drawn is of before its end"
    view.draw(results)
    view.draw(results)
    assert [[f"<b>{state}</b>" in page for state in ("Waiting", "Done")] for page in shown] == [
        [True, False],
        [False, True],
        [False, True],
    ]
    assert all('format=".0%"' in page for page in shown)
