"""What drawing costs, on played epochs: both sides have as many rounds, and their ratio is held against the limit."""

from types import SimpleNamespace

import pytest

from benchmarks import drawn
from benchmarks.report import Target
from lib.model.backends.registry import Runtime
from lib.model.spec import Training
from lib.sweeps.workers.messages import Item

pytestmark = pytest.mark.release

ITEMS = [Item(Training(epochs=2), Runtime("jax-epoch"))]


@pytest.mark.parametrize(("times", "met"), [(1.02, True), (1.1, False)])
def test_an_epoch_while_it_is_drawn_is_held_against_one_that_nobody_sees(monkeypatch, tmp_path, times, met):
    runs = []
    monkeypatch.setattr(drawn, "Engine", lambda: SimpleNamespace(close=lambda: runs.append("closed")))
    monkeypatch.setattr(drawn, "_alone_s", lambda *_: runs.append("alone") or 0.2 + 0.01 * (len(runs) // 2))
    monkeypatch.setattr(drawn, "_drawn_s", lambda *_: times * (0.2 + 0.01 * (len(runs) // 2)))
    row = drawn.measure(ITEMS, lambda: runs.append("drawn"), tmp_path / "results.sqlite")
    assert runs.count("drawn") == runs.count("alone") - 1 == drawn.ROUNDS, "the first alone only compiles"
    assert runs[-1] == "closed"
    assert {tuple(runs[1 + 2 * n : 3 + 2 * n]) for n in range(drawn.ROUNDS)} == {("alone", "drawn"), ("drawn", "alone")}
    assert row["ratio"] == pytest.approx(times, rel=0.01)
    (target,) = drawn.targets([row])
    assert ("met" in str(target)) is met
    assert isinstance(target, Target)
