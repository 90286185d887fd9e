"""The step in parts, as table, chart and sentence, from literal figures."""

import pytest

from lib.labs.inside_a_step.anatomy import operations_table, parts_chart, parts_table, sentence, splits
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import tasks
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.operations import ALL, ON_CARD, OPERATIONS, PRODUCT
from lib.timing.profiling.step_breakdown import ON_DEVICE
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
    assert "–" in operations_table([operations], [parts], [], True)
    records = cached(operations, dict.fromkeys([*(o.key for o in OPERATIONS), ALL, PRODUCT], 10e-6)) + cached(
        parts, FOUND
    )
    table = operations_table([operations], [parts], records, True)
    for text in (">50.0 μs", ">100 μs", "541", "751", "quartiles"):
        assert text in table, text
    assert "other sizes" in operations_table([operations], [parts], records, False)
    assert "the card’s own work" not in table, "on a processor there is no such thing"
    on_card = cached(operations, {ON_CARD + operation.key: 2e-6 for operation in OPERATIONS})
    table = operations_table([operations], [parts], [*records, *on_card], True)
    assert ">20.0 μs<" in table[table.index("the card’s own work") :].split("</tr>")[0]
    known = splits([parts], records)
    assert "unexplained" in parts_table([parts], records)
    assert "by the device’s clock" not in parts_table([parts], records), "which tells none"
    launched = parts_table([parts], records).split("launch and wait")[1]
    assert launched.startswith("</th><td>–</td>"), "NumPy works in the caller's thread"
    told = parts_table([parts], [*records, *cached(parts, {ON_DEVICE: 3e-6})])
    assert "<td>3\u202fμs<" in told[told.index("by the device’s clock") :].split("</tr>")[0]
    spec = parts_chart(known, [Runtime("numpy")]).spec
    drawn = [row for rows in spec["datasets"].values() for row in rows if "part" in row]
    assert sum(row["us"] for row in drawn) == pytest.approx(200)
    assert "70%" in sentence(known, 32)
    assert sentence({}, 32) == ""


def test_parts_that_are_more_than_the_step_have_a_minus_in_both_figures():
    (_, parts) = tasks([Runtime("numpy")], Network((128,)), 32)
    table = parts_table([parts], cached(parts, FOUND | {"step": 100e-6, "busy": 100e-6}))
    assert "<td>−71\u202fμs (−71%)</td>" in table
    chart = parts_chart(splits([parts], cached(parts, FOUND | {"step": 100e-6})), [Runtime("numpy")])
    assert chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"][1] == 500, "171, and room for the step in words"
    assert {row["share"] for rows in chart.spec["datasets"].values() for row in rows if "part" in row} == {"none"}


def test_two_precisions_of_a_library_are_two_columns_each_with_its_own_step():
    exact, rounded = Runtime("jax-epoch"), Runtime("jax-epoch", precision="bfloat16")
    *operations, first, second = tasks([exact, rounded], Network((128,)), 32)
    records = cached(first, FOUND | {"step": 1e-4}) + cached(second, FOUND | {"step": 3e-4})
    table = operations_table(operations, [first, second], records, True)
    heads = [cell.split("<")[0] for cell in table.split(">") if cell.startswith("JAX, op by op")]
    assert sorted(heads) == ["JAX, op by op", "JAX, op by op, bfloat16"]
    steps = table[table.index("a step of the training itself") :].split("</tr>")[0]
    assert all(text in steps for text in (">100 μs<", ">300 μs<"))


def test_long_names_are_whole_and_told_apart_from_the_sentence():
    runtime = Runtime("webgpu-step", "software")
    (task,) = [one for one in tasks([runtime], Network((128,)), 32) if one.examination.kind == "parts"]
    known = splits([task], cached(task, FOUND))
    assert f"by “{runtime.label}”: " in sentence(known, 32)
    axes = [layer["encoding"]["y"]["axis"] for layer in parts_chart(known, [runtime]).spec["layer"]]
    assert all("split(" in axis["labelExpr"] for axis in axes)
