"""Exports of Nsight Systems, of the schema that its documentation gives, made by a script: none is from a card; and
what `nsys stats --format csv` prints."""

import sqlite3

import pytest

from lib.timing.profiling.traces import reading
from lib.timing.profiling.traces.form import MAX_KEPT, Refused, no_share
from tests.timing.profiling.traces.files import API_SUM, API_TRACE, GPU_TRACE
from tests.timing.profiling.traces.files import nsight as made

STEPS = 40


@pytest.fixture
def export(tmp_path):
    return made(tmp_path / "profile.sqlite", STEPS)


def test_calls_are_added_up_and_rows_drawn_and_the_file_is_not_written(export):
    before = export.read_bytes()
    trace = reading.read_export(export, "profile")
    assert (export.read_bytes(), [path.name for path in export.parent.iterdir()]) == (before, [export.name])
    assert {(call.name, call.kind, call.count, call.total_ns) for call in trace.calls} == {
        ("cuStreamSynchronize", "wait", STEPS, STEPS * 60_000),
        ("gemm", "kernel", STEPS, STEPS * 20_000),
        ("cuMemcpyHtoDAsync", "transfer", STEPS, STEPS * 10_000),
        ("cuGraphLaunch", "launch", STEPS, STEPS * 8_000),
        ("cuLaunchKernel", "launch", STEPS, STEPS * 5_000),
        ("relu_kernel", "kernel", STEPS, STEPS * 5_000),
        ("Memcpy, host to device", "transfer", STEPS, STEPS * 4_000),
    }
    assert {lane.name: lane.role for lane in trace.lanes} == {
        "thread 4711": "host",
        "device 0, stream 7": "device",
    }
    assert trace.n_rows == len(trace.rows) == 7 * STEPS


def test_an_export_without_the_card_s_rows_says_so_and_communication_is_told(export):
    assert not no_share(reading.read_export(export, "profile"))
    with sqlite3.connect(export) as database:
        database.execute("UPDATE StringIds SET value = 'ncclDevKernel_AllReduce_Sum_f32' WHERE value = 'gemm'")
    calls = {call.name: call.kind for call in reading.read_export(export, "profile").calls}
    assert calls["ncclDevKernel_AllReduce_Sum_f32"] == "communication"
    with sqlite3.connect(export) as database:
        for table in ("KERNEL", "MEMCPY"):
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    assert no_share(reading.read_export(export, "profile")).startswith("The GPU's rows are missing")


def test_of_a_long_profile_the_middle_is_drawn_and_all_is_counted(tmp_path):
    steps = 8_000
    trace = reading.read_export(made(tmp_path / "long.sqlite", steps), "long")
    assert trace.n_rows == 7 * steps
    assert MAX_KEPT * 0.5 < len(trace.rows) <= MAX_KEPT
    assert sum(call.count for call in trace.calls) == 7 * steps
    assert trace.span_s < 0.6 * steps * 1e-4
    burst = reading.read_export(made(tmp_path / "burst.sqlite", 4_000, step_ns=0), "all at one moment")
    assert 0 < len(burst.rows) <= MAX_KEPT


def foreign(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE moz_places (url TEXT)")


def without_cuda(path):
    made(path, 0)


def a_view(path):
    """A view that never ends, in the name of a table."""
    made(path, 1)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
        for name in ("KERNEL", "MEMCPY"):
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{name}")
        database.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
            " SELECT x AS start, x + 1 AS end, 1 AS globalTid, 1 AS correlationId, 1 AS nameId FROM n"
        )


def other_columns(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (begin INTEGER)")


def cut_off(path):
    made(path, 500)
    path.write_bytes(path.read_bytes()[:9000])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (foreign, "SQLite file of something else .moz_places"),
        (without_cuda, "without CUDA"),
        (a_view, "something else"),
        (other_columns, "cannot be read"),
        (cut_off, "damaged or cut off"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_no_export_is_refused_by_what_it_is(tmp_path, make, why):
    path = tmp_path / "bad.sqlite"
    make(path)
    with pytest.raises(Refused, match=why):
        reading.read_export(path, "bad")


def test_values_of_another_type_are_left_out(export):
    with sqlite3.connect(export) as database:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ('x', X'00', NULL, NULL, NULL, 0, 0, NULL),"
            " (10, 5, NULL, 1, 1, 0, 0, NULL), (-5, 4611686018427387999, NULL, 1, 'y', 99, 0, NULL)"
        )
    database.close()
    calls = {call.name: call.count for call in reading.read_export(export, "odd").calls}
    assert calls["cuLaunchKernel"] == STEPS


def test_reading_ends_when_its_time_is_up(export, monkeypatch):
    monkeypatch.setattr(reading, "MAX_READ_S", -1.0)
    monkeypatch.setattr(reading, "_LOOK", 1)
    with pytest.raises(Refused, match="export a shorter range"):
        reading.read_export(export, "slow")


def read(folder, text):
    path = folder / "report.csv"
    path.write_text(text)
    return reading.read_report(path, "report")


def test_a_report_of_sums_has_calls_and_nothing_to_draw(tmp_path):
    trace = read(tmp_path, API_SUM)
    assert [(call.name, call.kind, call.count, call.total_ns) for call in trace.calls] == [
        ("cuCtxSetCurrent", "launch", 98_168, 870_000_000),
        ("cuMemcpyDtoHAsync", "transfer", 6_144, 560_000_000),
    ]
    assert len(trace.rows) == 0
    assert trace.n_rows == 98_168 + 6_144


def test_reports_of_single_calls_are_drawn_together(tmp_path):
    trace = read(tmp_path, f"\n ** CUDA GPU Trace:\n\n{GPU_TRACE}\nProcessing with cuda_api_trace...\n{API_TRACE}")
    assert {(call.name, call.kind, call.total_ns) for call in trace.calls} == {
        ("gemm<float, 4>", "kernel", 500),
        ("[CUDA memcpy Host-to-Device]", "transfer", 300),
        ("cuLaunchKernel", "launch", 50),
    }
    assert {lane.role for lane in trace.lanes} == {"device", "host"}
    assert trace.rows.correlation.tolist() == [11, 11, 12]


def test_units_are_those_of_the_head(tmp_path):
    trace = read(tmp_path, API_SUM.replace("Total Time (ns)", "Total Time (ms)").replace("870000000", "870.0"))
    assert {call.name: call.total_ns for call in trace.calls}["cuCtxSetCurrent"] == 870_000_000


@pytest.mark.parametrize("text", ["hello\n", "a,b\n1,2\n", "Name,Total Time (ns)\n", "x" * 2_000_000, '"' * 5000])
def test_other_text_is_refused(tmp_path, text):
    with pytest.raises(Refused, match="nsys stats"):
        read(tmp_path, text)


def test_lines_that_are_no_numbers_are_left_out(tmp_path):
    trace = read(tmp_path, API_SUM + " 1.0,NaN,5,1,1,1,1,1,odd\n 1.0,1e400,5,1,1,1,1,1,odd\n 1.0,-5,5,1,1,1,1,1,odd\n")
    assert "odd" not in {call.name for call in trace.calls}
