"""A target is judged by its interval: met or missed only if the whole interval says so."""

import importlib
import math
import re

import numpy as np
import pytest

from benchmarks import report
from benchmarks.__main__ import NAMES
from benchmarks.report import Target
from lib.timing.comparison import compared, quantile_interval


@pytest.mark.parametrize(
    ("figure", "interval", "at_most", "at_least"),
    [
        (1.0, (0.9, 1.1), "met", "MISSED"),
        (1.9, (1.5, 2.3), "unclear", "unclear"),
        (3.0, (2.5, 3.5), "MISSED", "met"),
        (1.0, None, "unclear", "unclear"),
        (1.0, (0.0, math.inf), "unclear", "unclear"),
        (2.0, (2.0, 2.0), "met", "met"),
        (None, None, "not measured", "not measured"),
    ],
)
def test_a_target_is_judged_by_the_whole_interval(figure, interval, at_most, at_least):
    assert Target("it", figure, 2.0, interval=interval).word == at_most
    assert Target("it", figure, 2.0, at_least=True, interval=interval).word == at_least


def test_a_single_time_neither_meets_nor_misses_a_target():
    assert Target.of("it", [3.07], 3, "×", at_least=True).word == "unclear"
    assert "3.07 × (once; target ≥ 3 ×)" in str(Target.of("it", [3.07], 3, "×", at_least=True))
    assert Target.ratio("it", compared([71.0], [1.0, 1.1], paired=False), 30, at_least=True).word == "unclear"
    assert Target.of("it", [], 3).word == "not measured"


def test_a_share_of_few_samples_is_unclear_while_the_same_of_many_is_met():
    assert Target.share("it", 19, 20, 0.9, at_least=True).word == "unclear"
    assert Target.share("it", 950, 1000, 0.9, at_least=True).word == "met"
    assert Target.share("none", 0, 0, 0.9).word == "not measured"


@pytest.mark.parametrize(("figure", "shown"), [(1.502, "1.502"), (1.4996, "1.4996"), (1.5, "1.5"), (1.7, "1.7")])
def test_a_figure_near_the_limit_is_not_rounded_to_it(figure, shown):
    assert f": {shown} (target ≤ 1.5)" in str(Target.counted("it", figure, 1.5))


def test_quantile_intervals_have_the_stated_coverage():
    rng = np.random.default_rng(0)
    for share, true in ((0.5, math.log(2)), (0.9, math.log(10))):
        found = [quantile_interval(rng.exponential(size=120), share) for _ in range(500)]
        assert 0.93 < np.mean([low <= true <= high for low, high in found]) <= 0.99


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(report, "OUT", tmp_path)
    return tmp_path / "RESULTS.md"


@pytest.mark.slow
def test_a_section_names_its_code_and_outdated_ones_are_listed(monkeypatch, results):
    report.publish("epochs", "as written before sections said so")
    for name in ("comparison", "memory"):
        report.show(name, [], (), [])
    assert re.search(r"code \w{16}, commit \w+", results.read_text())
    said = [one.split(": ")[1].split(";")[0] for one in report.outdated(["comparison", "memory", "epochs", "regret"])]
    assert said == ["epochs is of an unknown commit", "regret has no section"]
    digest = report.benchmark_digest
    monkeypatch.setattr(report, "benchmark_digest", lambda name: "f" * 16 if name == "memory" else digest(name))
    (changed,) = report.outdated(["comparison", "memory"])
    assert re.fullmatch(
        r"RESULTS.md: memory is of commit .+, and what it measures has changed since; run `make bench BENCH=memory`.",
        changed,
    )


@pytest.mark.slow
def test_each_section_names_its_commit_and_unknown_ones_are_outdated():
    sections = report._sections()
    unsaid = [name for name, text in sections.items() if not re.search(r"code (\w{16}|unknown), commit .+\.\n", text)]
    assert unsaid == []
    assert sections.keys() <= set(NAMES)
    told = {one.split(": ")[1].split(" ")[0] for one in report.outdated(NAMES)}
    unknown = {name for name, text in sections.items() if "code unknown" in text}
    assert told >= unknown | (set(NAMES) - sections.keys())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_can_be_imported(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)
