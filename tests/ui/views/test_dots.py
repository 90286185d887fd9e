"""Marks with ranges: a row per name, and a shape per source of a value."""

from lib.sweeps.experiments.recorded_machines import MEASURED, PUBLISHED
from lib.ui.views.chart import Chart
from lib.ui.views.dots import Dot, dots_chart


def dots_of(chart: Chart) -> list[dict]:
    return next((rows for rows in chart.spec["datasets"].values() if rows and "known" in rows[0]), [])


def test_the_smallest_is_on_top_and_each_source_has_its_shape():
    dots = [Dot("slow", "CPU", PUBLISHED, 9.0, 9.0, 9.0), Dot("quick", "GPU", MEASURED, 1.0, 0.9, 2.0)]
    chart = dots_chart(dots, {"CPU": "#000", "GPU": "#fff"}, "seconds", "who is quick", even=1.0)
    assert len(dots_of(chart)) == 2
    *_, points = chart.spec["layer"]
    assert points["encoding"]["y"]["sort"] == ["quick", "slow"]
    assert points["encoding"]["shape"]["scale"]["domain"] == [MEASURED, PUBLISHED]
    low, high = points["encoding"]["x"]["scale"]["domain"]
    assert low < 0.5
    assert high > 9
    assert dots_of(dots_chart([], {}, "seconds", "nothing yet", ["a"])) == []
