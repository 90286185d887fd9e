"""The sweeps that the picked strategy is judged by, and what is reported of them, without any training."""

import pytest

from benchmarks import regret, report
from benchmarks.report import row
from lib.spec import MAX_EPOCHS
from lib.sweeps.cost_model import nominal_s

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")


def test_twenty_sweeps_take_as_long_as_is_said_and_are_the_same_each_time():
    sweeps = regret.sweeps()
    assert len(sweeps) == regret.SWEEPS
    assert sweeps == regret.sweeps() != regret.sweeps(seed=1)
    for trainings in sweeps:
        assert nominal_s(trainings) >= regret.NOMINAL_S or trainings[0].epochs == MAX_EPOCHS


def test_the_longest_choosing_is_held_against_a_second(monkeypatch):
    choosing_s = iter([0.4, 1.3] + [0.5] * regret.SWEEPS)

    def played(_engine, number, _trainings):
        times = {f"{strategy}_s": 1.0 for strategy in regret.STRATEGIES}
        judged = {"picked": "vmap", "regret": 1.0, "picked_inside": "vmap", "regret_inside": 1.0}
        return row("regret", [1.0], number=number + 1, choosing_s=next(choosing_s)) | judged | times

    monkeypatch.setattr(regret, "timed", lambda *_: None)
    monkeypatch.setattr(regret, "_regret", played)
    regret.main()
    written = report.RESULTS.read_text()
    assert "- MISSED choosing, the longest of these: 1.3 s (target ≤ 1 s)" in written
    assert "- met worst regret of these sweeps: 1 " in written
