"""A step in parts, and the traps of timing it: tables, charts and sentences from literal figures."""

import re

import pytest

from lib.labs.inside_a_step import anatomy
from lib.labs.inside_a_step.anatomy import operations_table, parts_chart, sentence, splits, traps_chart, traps_table
from lib.model.backends.registry import Runtime, versions
from lib.model.hardware import webgpu
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import TRAPS_NETWORK, tasks
from lib.sweeps.storage.records import Kind, Record
from lib.timing.comparison import Verdict
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.operations import ALL, OPERATIONS, PRODUCT
from lib.timing.profiling.request import REFERENCE
from tests.timing.profiling.test_request import FOUND


def cached(task, seconds):
    records = []
    for name, s in seconds.items():
        subject, measured = task.subject | {"name": name, "work": 1.0}, Measurement((s, s, 1.02 * s), 1, Ended.SPREAD)
        records.append(Record.of(Kind.ANATOMY, subject, measured, versions(task.runtime)))
    return records


def rows_of(chart):
    return [row for rows in chart.spec["datasets"].values() for row in rows]


def test_the_table_and_the_chart_show_stored_measurements():
    parts, operations = tasks([Runtime("numpy")], Network((128,)), 32)
    assert "–" in operations_table({"NumPy": {}}, True)
    records = cached(operations, dict.fromkeys([*(o.key for o in OPERATIONS), ALL, PRODUCT], 10e-6))
    table = operations_table({"NumPy": operations.found(records)}, True)
    assert [text for text in (">50<", ">100<", ">541<", ">751<") if text not in table] == []
    assert "not for the sizes" in operations_table({"NumPy": operations.found(records)}, False)
    known = splits([parts], cached(parts, FOUND))
    drawn = rows_of(parts_chart(known, [Runtime("numpy")], {}))
    assert sum(row["us"] for row in drawn if "part" in row) == pytest.approx(200)
    assert "70%" in sentence(known, 32)
    assert sentence({}, 32) == ""


def test_the_readers_own_program_comes_first():
    at = anatomy.Step({"size": 32, "hidden": "128", "by": ["jax-step/cpu", "numpy/cpu"]})
    numpy, jax = wanted = anatomy.tasks("numpy/cpu", at)[:2]
    assert (numpy.runtime, jax.runtime) == (Runtime("numpy"), Runtime("jax-step"))
    known = splits(wanted, [*cached(numpy, FOUND), *cached(jax, FOUND | {"step": 190e-6})])
    assert re.findall("“(.*?)”", sentence(known, 32, "numpy/cpu")) == ["NumPy", "JAX, one call a step"]
    assert re.findall("“(.*?)”", sentence(known, 32, "jax-step/cpu")) == ["JAX, one call a step"]


def test_parts_longer_than_the_step_have_no_shares():
    (parts, _) = tasks([Runtime("numpy")], Network((128,)), 32)
    chart = parts_chart(splits([parts], cached(parts, FOUND | {"step": 100e-6})), [Runtime("numpy")], {})
    assert chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"][1] == 300, "171, and room for the step in words"
    assert {row["share"] for row in rows_of(chart) if "part" in row} == {"none"}


def test_long_names_are_quoted_in_the_sentence_and_wrapped_in_the_chart():
    runtime = Runtime("webgpu-step", "software")
    (task,) = [one for one in tasks([runtime], Network((128,)), 32) if one.examination.kind == "parts"]
    known = splits([task], cached(task, FOUND))
    assert f"with “{runtime.label}”: " in sentence(known, 32)
    axes = [layer["encoding"]["y"]["axis"] for layer in parts_chart(known, [runtime], {}).spec["layer"]]
    assert all("split(" in axis["labelExpr"] for axis in axes)


def measured(*values):
    return Measurement(values, 1, Ended.CAP)


def of(*ratios):
    """Nine blocks, each a multiple of the reference's block in its round."""
    return measured(*(2e-4 * ratio for ratio in ratios * (9 // len(ratios))))


TRAPPED = {
    REFERENCE: measured(*[2e-4] * 9),
    "synchronisation": of(0.1),
    "first call counted": of(5.0),
    "one sample": of(0.5, 2.0, 4.5),
    "best of n": of(1.0),
    "transfer inside": of(1.5),
    "busy is not working": of(1.9),
}


@pytest.mark.parametrize("allowed", [False, True])
def test_webgpu_devices_are_those_with_an_adapter(monkeypatch, allowed):
    """The software adapter is offered only on request, and named as one."""
    monkeypatch.setenv("WEBGPU_SOFTWARE", "1" if allowed else "")
    monkeypatch.setattr("lib.model.backends.registry._installed", lambda *_: True)
    found = (webgpu.Adapter("integrated", "a GPU", "", ""), webgpu.Adapter("software", "llvmpipe", "", ""))
    software = ["WebGPU, software adapter"] if allowed else []
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found)
    assert set(anatomy.trap_devices()) - {"gpu"} == {"cpu", "WebGPU, integrated GPU", *software}
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found[1:])
    assert set(anatomy.trap_devices()) - {"gpu"} == {"cpu", *software}


def test_all_traps_compare_with_one_reference_figure():
    assert traps_table(TRAPPED, 32, 200e9, 2).count("200 μs (200\u202fμs to 200\u202fμs)") == 1
    rows = rows_of(traps_chart(TRAPPED, {}))
    assert sum(row["way"] == "right" for row in rows) == 9 + 1
    assert sum(row["label"] == "one sample" for row in rows) == 9 + 1, "every sample"
    assert traps_chart({}, {}).spec["height"] == traps_chart(TRAPPED, {}).spec["height"], "nothing jumps while it fills"


@pytest.mark.parametrize(
    ("ratios", "verdict", "words"),
    [
        ((1.04,), Verdict.SLOWER, "1.04\xa0(1.04–1.04), too long"),
        ((0.9,), Verdict.FASTER, "0.9\xa0(0.9–0.9), too short"),
        ((1.02,), Verdict.SAME, "no difference here"),
        ((0.5, 1.0, 1.5), Verdict.UNCLEAR, "unclear here"),
    ],
)
def test_traps_are_judged_by_the_common_comparison_rule(ratios, verdict, words):
    found = TRAPPED | {"best of n": of(*ratios)}
    known = anatomy.comparisons(found)
    assert known["best of n"].verdict is verdict
    assert words in traps_table(found, 32, None, 2)
    told_apart = verdict in (Verdict.SLOWER, Verdict.FASTER)
    assert ("best of n" in anatomy.traps_sentence(known).split("Indistinguishable")[0]) is told_apart


def test_the_traps_table_shows_ratios_and_reasons():
    text = traps_table(TRAPPED, 32, 200e9, 2)
    share = f"{TRAPS_NETWORK.step_flops(32) / 200e9 / 2e-4:.0%} of the arithmetic"
    for said in (
        "0.1\xa0(0.1–0.1), too short",
        "Wait for the result before reading the clock",
        "Report the first call separately",
        "the first took 4.2",  # 5 × 1 ms − 4 × 0.2 ms
        "100\u202fμs to 900\u202fμs",
        "Move the whole data set to",
        "95% busy",
        share,
    ):
        assert said in text
    unclear = traps_table(TRAPPED | {"transfer inside": of(0.5, 1.1, 1.9)}, 32, None, 2)
    assert "Move the whole data set to" not in unclear, "what was not told apart is not explained"
    assert "of the arithmetic it could do" not in unclear, "without a ceiling"


def test_a_cards_utilisation_is_shown_beside_its_occupancy():
    shown = {"occupancy/utilisation": measured(0.98, 0.97, 0.98)}
    counted = shown | {"occupancy/activity": measured(0.035), "occupancy/warps": measured(0.0125)}
    text = anatomy.occupancy(counted, "gpu")
    for share in ("98 % utilisation", "3.5 % of its multiprocessors", "1.25 % of the warps"):
        assert share in text
    assert "this chip does not report" in anatomy.occupancy(shown, "gpu"), "an L4, say"
    assert anatomy.occupancy(counted, "cpu") == ""
