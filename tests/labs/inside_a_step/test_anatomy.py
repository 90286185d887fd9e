"""The step in parts, as table, chart and sentence, from literal figures."""

import pytest

from lib.labs.inside_a_step.anatomy import operations_table, parts_chart, sentence, splits
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import tasks
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.operations import ALL, OPERATIONS, PRODUCT
from tests.timing.profiling.test_step_breakdown import FOUND


def cached(task, seconds):
    """Records as a worker would have made them."""
    return [
        Record.of(
            Kind.ANATOMY,
            task.subject | {"name": name, "work": 1.0},
            Measurement((s, s, 1.02 * s), 1, Ended.SPREAD),
            versions(task.runtime),
        )
        for name, s in seconds.items()
    ]


def test_the_table_and_the_chart_show_what_is_kept():
    operations, parts = tasks([Runtime("numpy")], Network((128,)), 32)
    assert "–" in operations_table([operations], [], True)
    records = cached(operations, dict.fromkeys([*(o.key for o in OPERATIONS), ALL, PRODUCT], 10e-6))
    table = operations_table([operations], records, True)
    for text in (">50<", ">100<", ">541<", ">751<"):
        assert text in table, text
    assert "other sizes" in operations_table([operations], records, False)
    known = splits([parts], cached(parts, FOUND))
    drawn = [row for rows in parts_chart(known, [Runtime("numpy")]).spec["datasets"].values() for row in rows]
    assert sum(row["us"] for row in drawn if "part" in row) == pytest.approx(200)
    assert "70%" in sentence(known, 32)
    assert sentence({}, 32) == ""


def test_parts_that_are_more_than_the_step_are_no_shares():
    (_, parts) = tasks([Runtime("numpy")], Network((128,)), 32)
    chart = parts_chart(splits([parts], cached(parts, FOUND | {"step": 100e-6})), [Runtime("numpy")])
    assert chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"][1] == 500, "171, and room for the step in words"
    assert {row["share"] for rows in chart.spec["datasets"].values() for row in rows if "part" in row} == {"none"}


def test_long_names_are_whole_and_told_apart_from_the_sentence():
    runtime = Runtime("webgpu-step", "software")
    (task,) = [one for one in tasks([runtime], Network((128,)), 32) if one.examination.kind == "parts"]
    known = splits([task], cached(task, FOUND))
    assert f"by “{runtime.label}”: " in sentence(known, 32)
    axes = [layer["encoding"]["y"]["axis"] for layer in parts_chart(known, [runtime]).spec["layer"]]
    assert all("split(" in axis["labelExpr"] for axis in axes)
