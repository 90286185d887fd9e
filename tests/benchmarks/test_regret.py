"""The sweeps that the picked strategy is judged by, and what is reported of them, without any training."""

import pytest

from benchmarks import regret, report
from benchmarks.report import row
from lib.model.spec import MAX_EPOCHS
from lib.sweeps.strategies import nominal_s

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


@pytest.mark.parametrize(
    ("picked_s", "word"),
    [([2.0, 2.01], "MISSED"), ([1.45, 1.6], "unclear"), ([1.2, 1.21], "met"), ([1.0, 1.01], "met")],
)
def test_the_worst_regret_is_judged_by_its_interval_and_a_time_taken_once_by_none(monkeypatch, picked_s, word):
    picked_and_best = [(picked_s, [1.0, 1.01])] + [([1.0, 1.0],) * 2] * (regret.SWEEPS - 1)
    choosing_s = iter([0.4, 1.3] + [0.5] * regret.SWEEPS)

    def played(_engine, number, _trainings):
        times = {f"{strategy}_s": 1.0 for strategy in regret.STRATEGIES}
        twice = regret._regret_of("regret", *picked_and_best[number]) | regret._regret_of(
            "regret_inside", *([[1.0]] * 2)
        )
        judged = {"picked": "vmap", "picked_inside": "vmap"} | twice
        return row("regret", [1.0], number=number + 1, choosing_s=next(choosing_s)) | judged | times

    monkeypatch.setattr(regret, "timed", lambda *_: None)
    monkeypatch.setattr(regret, "_regret", played)
    regret.main()
    written = report.RESULTS.read_text()
    assert "- unclear choosing, the longest of these: 1.3 s (once; target ≤ 1 s)" in written
    assert f"- {word} worst regret of these sweeps: {picked_s[0]:.3g} " in written
    assert "- met worst regret of these sweeps without processes: 1 " in written
