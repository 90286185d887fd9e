"""What is drawn of a run: one frame for all who see the same, kept for as long as the run is."""

import gc
import weakref
from dataclasses import replace

import marimo as mo
import pytest

from lib.sweeps.events import Finished
from lib.sweeps.experiments.results import Results
from lib.sweeps.workers.notes import State
from lib.sweeps.workers.queue import Request
from lib.ui import layout
from lib.ui.lab import MAX_FRAMES, Framed, _frames
from tests import made
from tests.sweeps.experiments.test_results import filled
from tests.ui.test_stage import rates, watched


@pytest.mark.slow
def test_two_runs_that_are_pinned_beside_each_other_are_forgotten():
    """What was drawn of them must not keep them: each is drawn beside the other."""
    one, other = (rates(epochs) for epochs in (1, 2))
    seats = [watched(experiment, None, None, Request()) for experiment in (one, other)]
    for experiment, seat, beside in ((one, seats[0], seats[1]), (other, seats[1], seats[0])):
        Framed(experiment, "", [""], pinned=beside).draw(seat.results)
    gone = [weakref.ref(seat.results) for seat in seats]
    del seats, seat, beside
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_saved_results_are_drawn_once_for_all_viewers(monkeypatch):
    experiment = made.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    curve = filled(experiment, (0.9, 0.9)).lines[0].curve
    assert curve is not None
    results = Results(experiment.items, experiment.labels)
    for item in experiment.items:
        results.add(Finished(item, curve, cached=True))
    results.end(State.DONE)
    drawn, shown, ago = [], [], ["“a moment” & ago"]
    monkeypatch.setattr(layout, "result", lambda *seen: drawn.append(seen) or f"frame {len(drawn)}, {seen[2]}")
    monkeypatch.setattr(layout, "progress_text", lambda _: ago[0])
    monkeypatch.setattr(mo.output, "replace", lambda page: shown.append(page.text))

    def show(target=0.9):
        view = Framed(replace(experiment, target=target), "controls of one viewer", [""])
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
    experiment = made.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results, drawn, words = Results(experiment.items, experiment.labels), [], iter(range(100))
    monkeypatch.setattr(layout, "progress_text", lambda _: f"{next(words)} s left")
    monkeypatch.setattr(layout, "result", lambda *seen: drawn.append(seen) or f"frame, {seen[2]}")
    monkeypatch.setattr(mo.output, "replace", lambda page: None)
    for _ in range(3):
        Framed(experiment, "", [""]).draw(results)
    assert len(drawn) == 1


def test_a_run_that_ends_while_it_is_drawn_is_not_yet_done_and_keeps_its_charts(monkeypatch):
    """“Done” stood below charts that lacked a line; its words took the place of each “0%”, also of a number format."""
    experiment = made.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128")
    results, shown = Results(experiment.items, experiment.labels), []
    monkeypatch.setattr(layout, "progress_text", lambda _: "2 trainings" if results.over else ".0%")
    monkeypatch.setattr(layout, "charts", lambda *_: results.end(State.DONE) or [])
    monkeypatch.setattr(layout, "details", lambda *_: 'format=".0%"')
    monkeypatch.setattr(mo.output, "replace", lambda page: shown.append(page.text))
    view = Framed(experiment, "", [""])
    assert view.draw(results) != results.version, "what was drawn is of before its end"
    view.draw(results)
    view.draw(results)
    assert [[f"<b>{state}</b>" in page for state in ("Waiting", "Done")] for page in shown] == [
        [True, False],
        [False, True],
        [False, True],
    ]
    assert all('format=".0%"' in page for page in shown)
