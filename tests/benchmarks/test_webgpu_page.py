"""The benchmark that watches a page train in a browser comes to its end with figures of that browser."""

import pytest

from benchmarks import webgpu_page
from benchmarks.report import LeftOut
from tests.browser import MARKS

pytestmark = [*MARKS, pytest.mark.release]


def test_the_page_of_the_readers_gpu_is_watched_while_it_trains(monkeypatch):
    monkeypatch.setattr(webgpu_page, "OPENINGS", 1)
    monkeypatch.setattr(webgpu_page, "TRAINING_S", 1.0)
    left_out = LeftOut()
    rows, targets = webgpu_page.measured(left_out)
    assert left_out == []
    by_name: dict = {one["name"]: one for one in rows}
    assert 0 < by_name["of these, marimo's"]["median_s"] < by_name["first-figure"]["median_s"]
    assert by_name["frame"]["n"] > 1
    assert [target.figure for target in targets[2:]] == [by_name["frame"][column] for column in webgpu_page.COLUMNS]
