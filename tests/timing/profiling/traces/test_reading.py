import gzip
import io
import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.traces import form, reading
from lib.timing.profiling.traces.form import KINDS, MAX_KEPT, Refused, Trace, as_chrome_json, no_share, waited_for
from tests.timing.profiling.traces.files import API_SUM, API_TRACE, GPU_TRACE, event, xspace
from tests.timing.profiling.traces.files import chrome as text_of
from tests.timing.profiling.traces.files import nsight as made

TORCH = Path(__file__).with_name("torch_step.json")  # exported by PyTorch 2.13 on a CPU: one step, batch size 4


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "b")
    return buffer.getvalue()


NO_TRACES = {  # by name: gzipped bytes hold a timestamp, which would change the test ids
    "empty": (b"", "it is empty"),
    "blank": (b" \n", "it is empty"),
    "zip": (zipped(), "looks like a ZIP archive"),
    "html": (b"<!DOCTYPE html>", "looks like an HTML"),
    "picture": (b"\x89PNG\r\n", "looks like a picture"),
    "pdf": (b"%PDF-1.7", "looks like a PDF"),
    "binary": (b"\x00\x01\x02" * 50, "another kind of binary file"),
    "text": (b"hello\n", "neither a report of nsys stats"),
    "string": (b'"a string"', "neither a report of nsys stats"),
    "table": (b"a,b\n1,2\n", "neither a report of nsys stats"),
    "report without lines": (b"Name,Total Time (ns)\n", "neither a report of nsys stats"),
    "long line": (b"x" * 2_000_000, "not a report of nsys stats"),
    "quotes": (b'"' * 5000, "neither a report of nsys stats"),
    "gzipped text": (gzip.compress(b"hello"), "gzipped, but its content is not JSON"),
    "gzipped database": (gzip.compress(b"SQLite format 3\0" + bytes(4096)), "gzipped, but its content is not JSON"),
    "nsys-rep": (b"NVIDIA Tegra Profiler Report 1..\n\x0bLocal (CLI)", "nsys export --type=sqlite"),
    "qdstrm": (b"QDSS\0\1", "open it in Nsight Systems"),
    "perfetto": (b"\x0a\x61\x32\x5a\x10\x06\x0a\x0a\x08\x06\x10\xc4\xd8\xf0\xd7\xb7\xc9\x01", "traceconv json"),
    "perfetto of a process tree": (b"\x0a\x08\x12\x06\x0a\x04\x08\x01\x10\x00\xd7\xb7", "traceconv json"),
    "speedscope": (b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "only Python functions"),
    "gzipped rocprofv3": (gzip.compress(b'{"rocprofiler-sdk-tool":[]}'), "a rocprofv3 result"),
    "rocprofv3": (b'{"rocprofiler-sdk-tool":[]}', "a rocprofv3 result"),
    "taken for text": (("\n\ufffd\ufffd\0" * 9).encode(), "treated it as text"),
    "tar": (bytes(257) + b"ustar\0", "an archive of files"),
    "gzipped tar": (gzip.compress(bytes(257) + b"ustar\0"), "unpack it"),
    "begun only": (b'[{"ph":"B","pid":1,"tid":1,"name":"a","ts":1}]', "no calls with a duration"),
    "counters": (b'[{"ph":"C","pid":1,"name":"a","ts":1,"args":{"x":1}}]', "no calls with a duration"),
    "a list of numbers": (b"[1, 2]", "no calls with a duration"),
    "nested": (gzip.compress(b'{"traceEvents": [' + b"[" * 500_000), "nested too deeply"),
    "cut off": (TORCH.read_bytes()[:9000], "cut off at character"),
    "gzipped and cut off": (gzip.compress(TORCH.read_bytes())[:2000], "gzipped, but damaged"),
    "no list": (b'{"a": 1}', 'no list of "traceEvents"'),
    "a number of 10,000 digits": (b'{"traceEvents": [' + b"1" * 10_000 + b"]}", "damaged near"),
    "no JSON": (b'{"traceEvents": [nonsense]}', "damaged near"),
}


@pytest.mark.parametrize(("content", "why"), NO_TRACES.values(), ids=NO_TRACES)
def test_other_files_are_refused_by_what_they_look_like(tmp_path, content, why):
    with pytest.raises(Refused, match=why) as refused:
        read(tmp_path, content)
    assert "again" not in str(refused.value), "the same file again would be refused again"


HEADS = [b"", b"{", b"[", b"\n\x20", b"SQLite format 3\0", b"\x1f\x8b", b"Name,"]


@given(st.binary(max_size=300), st.sampled_from(HEADS))
def test_any_bytes_give_a_trace_or_a_refusal(tmp_path_factory, content, head):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(head + content)
    told = ""
    try:
        assert isinstance(reading.read(path, "any"), Trace)
    except Refused as why:
        told = str(why)
    assert not told or 10 < len(told) < 600


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(Refused, match="cannot be opened"):
        reading.read(tmp_path / "nowhere", "nowhere")
    with pytest.raises(Refused, match="cannot be opened"):
        reading.read(tmp_path, "a folder")


def trace_of(folder, *events):
    return read(folder, text_of(events))


def read(folder, text):
    path = folder / "a trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return reading.read(path, path.name)


def kinds_of(trace):
    return {call.name: call.kind for call in trace.calls}


def test_a_pytorch_trace_matches_its_json(tmp_path):
    trace = reading.read(TORCH, "torch")
    events = [one for one in json.loads(TORCH.read_text())["traceEvents"] if one["ph"] == "X" and one["dur"] > 0]
    expected = [one for one in events if one["cat"] != "Trace"]
    assert trace.made_by == "PyTorch's profiler"
    assert trace.n_rows == len(trace.rows) == len(expected)
    assert sum(call.total_ns for call in trace.calls) == sum(round(one["dur"] * 1e3) for one in expected)
    assert [lane.role for lane in trace.lanes] == ["python"]
    kinds = kinds_of(trace)
    assert kinds["aten::addmm"] == kinds["aten::mm"] == "kernel"
    assert kinds["aten::linear"] == kinds["aten::t"] == "dispatch", "what only calls or renames computes nothing"
    assert read(tmp_path, gzip.compress(TORCH.read_bytes())).calls == trace.calls


def test_streams_of_a_card_and_cuda_calls_are_distinguished(tmp_path):
    trace = trace_of(
        tmp_path,
        event("aten::mm", 0, 30, cat="cpu_op"),
        event("cudaLaunchKernel", 10, 5, cat="cuda_runtime"),
        event("cudaMemcpyAsync", 16, 5, cat="cuda_runtime"),
        event("cudaStreamSynchronize", 31, 20, cat="cuda_runtime"),
        event("sgemm", 20, 8, tid=7, cat="kernel"),
        event("HtoD", 29, 8, tid=7, cat="gpu_memcpy"),
    )
    assert kinds_of(trace) == {
        "aten::mm": "dispatch",
        "cudaLaunchKernel": "launch",
        "cudaMemcpyAsync": "transfer",
        "cudaStreamSynchronize": "wait",
        "sgemm": "kernel",
        "HtoD": "transfer",
    }
    assert trace.has_device


def named(pid, name, tid=None):
    """The name of a process, or of its thread."""
    of = {"name": "process_name"} if tid is None else {"name": "thread_name", "tid": tid}
    return {"ph": "M", "pid": pid, "args": {"name": name}} | of


def test_xlas_streams_are_read_without_repeating_lanes(tmp_path):
    lanes = ("Stream #13(Compute)", "XLA Modules", "XLA Ops")
    trace = trace_of(
        tmp_path,
        named(1, "/device:GPU:0"),
        *(named(1, name, tid) for tid, name in enumerate(lanes)),
        event("gemm_fusion", 10, 5, tid=0),
        event("MemcpyD2H", 20, 1, tid=0),
        event("jit_step", 0, 30, tid=1),
        event("gemm_fusion", 10, 5, tid=2, args={"hlo_op": "gemm_fusion"}),
    )
    calls = {(call.name, call.kind, call.count) for call in trace.calls}
    assert calls == {("gemm_fusion", "kernel", 1), ("MemcpyD2H", "transfer", 1)}
    assert [(lane.name, lane.role) for lane in trace.lanes] == [(lanes[0], "device")]


def seconds_of(trace):
    return {state: round(s * 1e6) for state, s in waited_for(trace, *trace.span_ns).seconds.items() if s}


@pytest.mark.parametrize("category", ["cuda_runtime", "Runtime", "cuda_driver"])
def test_launches_without_kernels_are_reported_as_missing_gpu_rows(tmp_path, category):
    trace = trace_of(
        tmp_path,
        event("aten::mm", 0, 990, cat="cpu_op"),
        event("cudaLaunchKernel", 10, 5, cat=category),
        event("sgemm", 20, 8, tid=0, cat="cuda_profiler_range"),
    )
    assert kinds_of(trace) == {"aten::mm": "dispatch", "cudaLaunchKernel": "launch"}
    why = no_share(trace)
    assert why.startswith("The GPU's rows are missing from this file: it has 1 launches, but no kernels")
    assert "WSL" in why
    assert "nsys profile" in why


def test_cpu_training_with_a_stray_cuda_call_still_counts_as_computing(tmp_path):
    stray = event("cudaDeviceSynchronize", 95, 5, cat="cuda_runtime")
    trace = trace_of(tmp_path, event("aten::mm", 0, 90, cat="cpu_op"), stray)
    assert kinds_of(trace)["aten::mm"] == "kernel"
    assert not no_share(trace)


PRODUCERS = {  # 570 μs with 500 μs of arithmetic on a card, in each program's format
    "PyTorch 1.8": [
        event("aten::mm", 0, 60, cat="Operator"),
        event("cudaLaunchKernel", 20, 30, cat="Runtime"),
        event("sgemm", 70, 500, pid=0, tid=7, cat="Kernel"),
    ],
    "Paddle": [
        event("matmul dygraph", 0, 60, cat="Operator"),
        event("cudaLaunchKernel", 20, 30, cat="CudaRuntime"),
        event("sgemm", 70, 500, pid=9, cat="Kernel"),
    ],
    "ONNX Runtime": [
        event("model_run", 0, 570, cat="Session"),
        event("Gemm_kernel_time", 0, 60, cat="Node", args={"provider": "CUDAExecutionProvider", "op_name": "Gemm"}),
        event("sgemm", 70, 500, cat="Kernel"),
    ],
    "MTIA": [
        event("aten::mm", 0, 60, cat="cpu_op"),
        event("runFunction - submit", 20, 30, cat="mtia_runtime"),
        event("fc-dtype_Float", 70, 500, pid=9, cat="mtia_ccp_events"),
    ],
    "JAX on a TPU": [
        named(1, "/host:CPU"),
        named(2, "/device:TPU:0"),
        named(2, "XLA Ops", 3),
        named(2, "Steps", 1),
        event("PjitFunction(step)", 0, 60),
        event("fusion.3", 70, 500, pid=2, tid=3),
        event("1", 0, 570, pid=2, tid=1),
    ],
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_producers_kernels_count_as_device_arithmetic(tmp_path, name):
    trace = trace_of(tmp_path, *PRODUCERS[name])
    assert trace.has_device
    assert seconds_of(trace)["kernel"] == 500
    assert not no_share(trace)
    assert trace.made_by.startswith("PyTorch" if name == "MTIA" else name.split(" ")[0])


def test_onnx_runtime_computes_on_cpu_and_misses_rows_on_cuda(tmp_path):
    def by(provider):
        args = {"provider": f"{provider}ExecutionProvider", "op_name": "Gemm"}
        timed = event("Gemm_kernel_time", 0, 60, cat="Node", args=args)
        return trace_of(tmp_path, timed, event("Gemm_fence_after", 60, 1, cat="Node"))

    assert seconds_of(by("CPU")) == {"kernel": 60, "dispatch": 1}
    assert "--enable_cuda_profiling" in no_share(by("CUDA"))


def test_nccl_kernels_are_communication(tmp_path):
    trace = trace_of(tmp_path, event("ncclKernel", 0, 60, cat="kernel"), event("sgemm", 60, 40, cat="kernel"))
    assert seconds_of(trace) == {"communication": 60, "kernel": 40}


def test_shares_cover_only_the_marked_steps(tmp_path):
    trace = trace_of(
        tmp_path,
        *(event(f"ProfilerStep#{n}", 100 * n, 100, cat="user_annotation") for n in (1, 2)),
        event("load", 0, 100, cat="cpu_op"),
        event("sgemm", 150, 100, tid=7, cat="kernel"),
        event("save", 300, 900, cat="cpu_op"),
        event("sgemm", 290, 500, tid=7, cat="kernel"),
    )
    assert seconds_of(trace) == {"kernel": 110, "python": 90}
    assert trace.notes == ("shares are of the time of the 2 marked steps",)
    assert {call.name: call.total_ns for call in trace.calls}["sgemm"] == 600_000, "calls are of the whole file"


def test_traces_of_unknown_kinds_or_only_python_have_no_shares(tmp_path):
    kernel = event("sgemm", 0, 10, tid=3, cat="kernel")
    unknown = trace_of(tmp_path, event("Blink.Layout", 0, 90, cat="blink"), kernel)
    assert "do not say what 89% of its busy time" in no_share(unknown)
    browser = trace_of(tmp_path, event("content::Paint", 0, 90, cat="toplevel"))
    assert "do not say what 100% of its busy time" in no_share(browser)
    for name, category in (("VizTracer", "FEE"), ("py-spy", "py-spy")):
        python = trace_of(tmp_path, event("main (a.py:1)", 0, 90, cat=category))
        assert python.made_by == name
        assert no_share(python).startswith("Its rows are Python functions")


LOOSE = {
    "a list without its end": '[{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":2},\n',
    "a list cut off in an event": '[{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":2},{"ph":"X","na',
    "control characters": '{"traceEvents":[{"ph":"X","pid":1,"tid":1,"name":"a","cat":"b\x01\n","ts":1,"dur":2}]}',
    "times as text": '{"traceEvents":[{"ph":"X","pid":1,"tid":1,"name":"a","ts":"1","dur":"2.0"}]}',
    "blanks before it": ' \n[{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":2}]',
    "no process": '[{"ph":"X","name":"a","ts":1,"dur":2}]',
}


@pytest.mark.parametrize("name", LOOSE)
def test_slightly_malformed_json_is_read(tmp_path, name):
    trace = read(tmp_path, LOOSE[name])
    assert [(call.name, call.total_ns) for call in trace.calls] == [("a", 2000)]
    assert bool(trace.notes) is (name == "a list cut off in an event")


def test_thinning_rows_does_not_change_the_shares(tmp_path, monkeypatch):
    rows = [event("main", 0, 1000, cat="python_function")]
    rows += [event("inner", n, 1, cat="python_function") for n in range(900)]
    rows += [event("sgemm", 900, 100, tid=7, cat="kernel")]
    whole = seconds_of(trace_of(tmp_path, *rows))
    monkeypatch.setattr(form, "MAX_KEPT", 50)
    few = trace_of(tmp_path, *rows)
    assert seconds_of(few) == whole == {"kernel": 100, "python": 900}
    assert len(few.rows) <= 50 < few.n_rows == 902


def test_a_kept_middle_part_includes_rows_that_began_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(form, "MAX_KEPT", 20)
    calls = (event("call", 10 * n, 5, cat="cpu_op") for n in range(90))
    trace = trace_of(tmp_path, event("long kernel", 0, 1000, tid=7, cat="kernel"), *calls)
    assert set(seconds_of(trace)) == {"kernel"}
    assert trace.span_s < 250e-6
    assert trace.has_device


def test_begin_and_end_events_in_a_bare_list_are_read(tmp_path):
    begun = [{"ph": "B", "pid": 1, "tid": 1, "name": name, "ts": ts} for name, ts in (("outer", 0), ("inner", 2))]
    ended = [{"ph": "E", "pid": 1, "tid": 1, "ts": ts} for ts in (5, 9, 10)]
    mark = {"ph": "i", "pid": 1, "tid": 1, "name": "a mark", "ts": 3}
    trace = read(tmp_path, json.dumps([*begun, *ended, mark, "no event"]))
    calls = {(call.name, call.total_ns, call.self_ns) for call in trace.calls}
    assert calls == {("outer", 9000, 6000), ("inner", 3000, 3000)}


def test_a_trace_saved_for_perfetto_reads_back_unchanged(tmp_path):
    trace = reading.read(TORCH, "torch")
    again = read(tmp_path, as_chrome_json(trace))
    for column in ("start_ns", "duration_ns", "kind"):
        assert getattr(again.rows, column).tolist() == getattr(trace.rows, column).tolist()
    assert [again.names[n] for n in again.rows.name] == [trace.names[n] for n in trace.rows.name]
    card = trace_of(tmp_path, event("sgemm", 0, 8, tid=7, cat="kernel"), event("call", 0, 9))
    again = read(tmp_path, as_chrome_json(card))
    assert again.lanes == card.lanes, "a lane is still a card's"


@given(st.integers(20, 400), st.data())
def test_events_do_not_depend_on_buffer_boundaries(size, data):
    names = data.draw(st.lists(st.text(max_size=12), min_size=1, max_size=12))
    text = text_of([event(name, number, 1.25, args={"deep": [{"x": "]}"}]}) for number, name in enumerate(names)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "CHUNK", size)
        assert list(reading.events(io.StringIO(text), [])) == json.loads(text)["traceEvents"]


def test_an_endless_event_is_refused_early(monkeypatch):
    monkeypatch.setattr(reading, "MAX_EVENT", 50_000)
    monkeypatch.setattr(reading, "CHUNK", 10_000)
    endless = io.StringIO('{"traceEvents": [{"ph": "X", "name": "' + "x" * 1_000_000)
    with pytest.raises(Refused, match=r"damaged near character 17, .* or has an event of more than"):
        next(reading.events(endless, []))
    assert endless.tell() < 100_000


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -5, 1e300, 10**400, "7", None, True])
def test_absurd_times_are_left_out(tmp_path, bad):
    trace = trace_of(tmp_path, event("good", 1, 2), event("bad", bad, 3), event("worse", 1, bad))
    assert "good" in kinds_of(trace)
    assert set(kinds_of(trace).values()) <= set(KINDS)
    assert (trace.rows.duration_ns > 0).all()


def read_planes(folder, planes):
    return read(folder, xspace(planes))


def test_an_xspace_of_a_card_is_read_without_repeating_lanes(tmp_path):
    host = {
        "python/1": [("PjitFunction(step)", 0, 900, {}), ("a mark", 5, 0, {})],
        "worker/2": [("cuLaunchKernel", 100, 50, {"correlation_id": 3})],
    }
    card = {
        "Stream #13(Compute)": [("gemm_fusion", 200, 80, {"correlation_id": 3}), ("MemcpyH2D", 300, 9, {})],
        "XLA Ops": [("dot.1", 200, 80, {})],
    }
    tpu = {"Steps": [("1", 0, 90, {})], "XLA Modules": [("jit_step", 0, 80, {})], "XLA Ops": [("dot", 0, 70, {})]}
    trace = read_planes(tmp_path, {"/host:CPU": host, "/device:GPU:0": card, "/device:TPU:0": tpu})
    calls = {call.name: (call.kind, call.total_ns) for call in trace.calls}
    assert calls == {
        "PjitFunction(step)": ("dispatch", 900),
        "cuLaunchKernel": ("launch", 50),
        "gemm_fusion": ("kernel", 80),
        "MemcpyH2D": ("transfer", 9),
        "dot": ("kernel", 70),
    }
    assert {lane.name: lane.role for lane in trace.lanes} == {
        "python 1": "python",
        "worker 2": "host",
        "GPU:0 Stream #13(Compute)": "device",
        "TPU:0 XLA Ops": "device",
    }


def test_the_profiler_is_recognised_by_its_calls(tmp_path):
    calls = {"JAX": "PjRtStreamExecutorLoadedExecutable::Execute", "TensorFlow": "EagerLocalExecute: MatMul"}
    for library, call in calls.items():
        trace = read_planes(tmp_path, {"/host:CPU": {"python/1": [(call, 0, 900, {})]}})
        assert trace.made_by == f"{library}'s profiler"


def test_profiler_rows_and_rows_outside_steps_are_not_in_shares(tmp_path):
    def made(host):
        stream = {"Stream #13(Compute)": [("gemm_fusion", 900, 50, {}), ("ncclDevKernel_AllReduce", 950, 20, {})]}
        trace = read_planes(tmp_path, {"/host:CPU": {"python/1": host}, "/device:GPU:0": stream})
        return {state: round(s * 1e9) for state, s in waited_for(trace, *trace.span_ns).seconds.items() if s}

    own = [("$profiler.py:101 start_trace", 0, 800, {}), ("$traceback.py:3 walk", 100, 500, {})]
    step = [("PjitFunction(step)", 820, 180, {})]
    after = [("$profiler.py:213 stop_trace", 1000, 9000, {})]
    assert made([*own, *step, *after]) == {"kernel": 50, "communication": 20, "dispatch": 110, "python": 20}
    marked = [("train", 850, 130, {"step_num": 7})]
    assert made([*own, *step, *marked, *after]) == {"kernel": 50, "communication": 20, "dispatch": 60}


def test_truncated_empty_or_too_large_xspaces_are_refused(tmp_path, monkeypatch):
    with pytest.raises(Refused, match="cut off or damaged"):
        read(tmp_path, xspace({"/host:CPU": {"python/1": [("PjitFunction(step)", 0, 900, {})]}})[:-9])
    with pytest.raises(Refused, match="no rows of a CPU"):
        read_planes(tmp_path, {"/host:CPU": {}})
    monkeypatch.setattr(reading, "MAX_BYTES", 3)
    with pytest.raises(Refused, match="record fewer steps"):
        read_planes(tmp_path, {"/host:CPU": {}})


STEPS = 40


@pytest.fixture
def export(tmp_path):
    return made(tmp_path / "profile.sqlite", STEPS)


def test_an_nsight_export_is_read_without_changing_the_file(export):
    before = export.read_bytes()
    trace = reading.read(export, "profile")
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
    assert {lane.name: lane.role for lane in trace.lanes} == {"thread 4711": "host", "device 0, stream 7": "device"}
    assert trace.n_rows == len(trace.rows) == 7 * STEPS


def changed(path, script):
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


WITHOUT_CARD = "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY;"


def test_an_nsight_export_reports_missing_rows_and_communication(export):
    assert not no_share(reading.read(export, "profile"))
    changed(export, "UPDATE StringIds SET value = 'ncclDevKernel_AllReduce_Sum_f32' WHERE value = 'gemm'")
    assert kinds_of(reading.read(export, "profile"))["ncclDevKernel_AllReduce_Sum_f32"] == "communication"
    changed(export, WITHOUT_CARD)
    assert no_share(reading.read(export, "profile")).startswith("The GPU's rows are missing")


def test_a_long_profile_keeps_its_middle_and_counts_all_calls(tmp_path):
    steps = 8_000
    trace = reading.read(made(tmp_path / "long.sqlite", steps), "long")
    assert trace.n_rows == 7 * steps
    assert MAX_KEPT * 0.5 < len(trace.rows) <= MAX_KEPT
    assert sum(call.count for call in trace.calls) == 7 * steps
    assert trace.span_s < 0.6 * steps * 1e-4
    burst = reading.read(made(tmp_path / "burst.sqlite", 4_000, step_ns=0), "all at one moment")
    assert 0 < len(burst.rows) <= MAX_KEPT


ENDLESS = """
DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME;
CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
    SELECT x AS start, x + 1 AS end, 1 AS globalTid, 1 AS correlationId, 1 AS nameId FROM n;
"""
OTHER_COLUMNS = "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (begin INTEGER);"


@pytest.mark.parametrize(
    ("steps", "script", "why"),
    [
        (None, "CREATE TABLE moz_places (url TEXT);", "another kind of SQLite file .moz_places"),
        (0, "", "without CUDA"),
        (1, WITHOUT_CARD + ENDLESS, "another kind"),
        (None, OTHER_COLUMNS, "cannot be read"),
    ],
    ids=["foreign", "without CUDA", "an endless view in place of a table", "other columns"],
)
def test_other_sqlite_files_are_refused_with_the_reason(tmp_path, steps, script, why):
    path = tmp_path / "bad.sqlite"
    if steps is not None:
        made(path, steps)
    changed(path, script)
    with pytest.raises(Refused, match=why):
        reading.read(path, "bad")


def test_a_truncated_export_is_refused(export):
    export.write_bytes(export.read_bytes()[:9000])
    with pytest.raises(Refused, match="damaged or cut off"):
        reading.read(export, "bad")


def test_values_of_another_type_are_left_out(export):
    changed(
        export,
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ('x', X'00', NULL, NULL, 0), (10, 5, 1, 1, 0),"
        " (-5, 4611686018427387999, 1, 'y', 99)",
    )
    calls = {call.name: call.count for call in reading.read(export, "odd").calls}
    assert calls["cuLaunchKernel"] == STEPS


def test_reading_stops_at_its_time_limit(export, monkeypatch):
    monkeypatch.setattr(reading, "MAX_READ_S", -1.0)
    monkeypatch.setattr(reading, "_LOOK", 1)
    with pytest.raises(Refused, match="export a shorter range"):
        reading.read(export, "slow")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_summary_report_has_calls_but_no_rows(tmp_path, encoding):
    trace = read(tmp_path, API_SUM.encode(encoding))
    assert [(call.name, call.kind, call.count, call.total_ns) for call in trace.calls] == [
        ("cuCtxSetCurrent", "launch", 98_168, 870_000_000),
        ("cuMemcpyDtoHAsync", "transfer", 6_144, 560_000_000),
    ]
    assert len(trace.rows) == 0
    assert trace.n_rows == 98_168 + 6_144


def test_reports_of_single_calls_are_combined_in_one_trace(tmp_path):
    between = "\nProcessing with cuda_api_trace...\n"
    trace = read(tmp_path, f"\n ** CUDA GPU Trace:\n\n{GPU_TRACE}{between}{API_TRACE}")
    assert {(call.name, call.kind, call.total_ns) for call in trace.calls} == {
        ("gemm<float, 4>", "kernel", 500),
        ("[CUDA memcpy Host-to-Device]", "transfer", 300),
        ("cuLaunchKernel", "launch", 50),
    }
    lanes = {lane.name: lane.role for lane in trace.lanes}
    assert lanes == {"NVIDIA L4 (0), stream 7": "device", "thread 4": "host"}


def test_units_are_read_from_the_header(tmp_path):
    trace = read(tmp_path, API_SUM.replace("Total Time (ns)", "Total Time (ms)").replace("870000000", "870.0"))
    assert {call.name: call.total_ns for call in trace.calls}["cuCtxSetCurrent"] == 870_000_000


def test_lines_with_invalid_numbers_are_left_out(tmp_path):
    odd = [f" 1.0,{number},5,1,1,1,1,1,odd\n" for number in ("NaN", "1e400", "-5")]
    assert "odd" not in kinds_of(read(tmp_path, API_SUM + "".join(odd)))
