"""Run the walk in docs/architecture.md, from a slider to its chart: it enters exactly the modules named there."""

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import mnist_training
from lib import ROOT
from tests import made

WALK = (ROOT / "docs/architecture.md").read_text().split("## The walk")[1].split("\n## ")[0]
STATIONS = re.findall(r"^\d+\. `([\w/*]+)`", WALK, re.MULTILINE)
BESIDE = set(re.findall(r"`([\w/]+)`", WALK.split("Looked up on the way:")[1]))
ELSEWHERE = {"sweeps/workers/worker", "model/backends/with_*"}  # in the worker's process


def entered(work) -> list[str]:
    """Return the modules of `lib` that any thread enters during `work`, each once, in order."""
    found: list[str] = []
    inside = str(ROOT / "lib") + "/"

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(inside):
            name = str(Path(file).relative_to(inside).with_suffix(""))
            if name not in found:
                found.append(name)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


@pytest.mark.slow
def test_modules_entered_match_the_documented_walk(engine, tmp_path, monkeypatch):
    quick = {"rate.size": "4096", "rate.epochs": "1", "rate.count": "2"}
    lab = made.first_lab(monkeypatch, engine, tmp_path, False, **quick)
    panel = lab.controls("rate")
    found = entered(lambda: mnist_training.learning_rate.run(lab=lab, rate=panel))
    assert set(STATIONS) - ELSEWHERE <= set(found)
    assert [module for module in found if module not in STATIONS and module not in BESIDE] == []


def test_every_module_of_the_walk_exists():
    for module in [*STATIONS, *BESIDE]:
        assert list((ROOT / "lib").glob(f"{module}.py")), module
