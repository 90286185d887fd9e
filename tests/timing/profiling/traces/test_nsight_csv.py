"""What `nsys stats --format csv` prints: sums, single calls, several reports in one file, and text that is none."""

import pytest

from lib.timing.profiling.traces import nsight_csv
from lib.timing.profiling.traces.form import Refused
from tests.timing.profiling.traces.files import API_SUM, API_TRACE, GPU_TRACE


def read(folder, text):
    path = folder / "report.csv"
    path.write_text(text)
    return nsight_csv.read(path, "report")


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
