"""Trace events: PyTorch's own file, begun and ended events, what is cut off, nested or absurd. XSpaces: one that JAX
writes now, and one with a card's planes, encoded by hand from the fields of `xplane.proto`."""

import gzip
import json
from pathlib import Path

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.traces import form, reading
from lib.timing.profiling.traces.form import KINDS, Refused, as_chrome_json, no_share, waited_for
from tests.timing.profiling.traces.files import chrome as text_of
from tests.timing.profiling.traces.files import event, xspace

TORCH = Path(__file__).with_name("torch_step.json")  # exported by PyTorch 2.13 on a processor: one step, batch size 4


def trace_of(folder, *events):
    return read(folder, text_of(events))


def read(folder, text, name="trace.json"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return reading.read_events(path, name)


def test_a_file_of_pytorch_is_read_as_the_standard_library_reads_it(tmp_path):
    trace = reading.read_events(TORCH, "torch")
    events = [one for one in json.loads(TORCH.read_text())["traceEvents"] if one["ph"] == "X" and one["dur"] > 0]
    expected = [one for one in events if one["cat"] != "Trace"]
    assert trace.made_by == "PyTorch's profiler"
    assert trace.n_rows == len(trace.rows) == len(expected)
    assert sum(call.total_ns for call in trace.calls) == sum(round(one["dur"] * 1e3) for one in expected)
    assert [lane.role for lane in trace.lanes] == ["python"]
    kinds = {call.name: call.kind for call in trace.calls}
    assert kinds["aten::addmm"] == kinds["aten::mm"] == "kernel"
    assert kinds["aten::linear"] == kinds["aten::t"] == "dispatch", "what only calls or renames computes nothing"
    assert read(tmp_path, gzip.compress(TORCH.read_bytes()), "torch.json.gz").calls == trace.calls


def test_a_card_s_streams_and_cuda_s_calls_are_told_apart(tmp_path):
    trace = trace_of(
        tmp_path,
        event("aten::mm", 0, 30, cat="cpu_op"),
        event("cudaLaunchKernel", 10, 5, cat="cuda_runtime", args={"correlation": 9}),
        event("cudaMemcpyAsync", 16, 5, cat="cuda_runtime", args={"correlation": 10}),
        event("cudaStreamSynchronize", 31, 20, cat="cuda_runtime"),
        event("sgemm", 20, 8, tid=7, cat="kernel", args={"correlation": 9}),
        event("Memcpy HtoD", 29, 8, tid=7, cat="gpu_memcpy", args={"correlation": 10}),
    )
    kinds = {call.name: call.kind for call in trace.calls}
    assert kinds == {
        "aten::mm": "dispatch",
        "cudaLaunchKernel": "launch",
        "cudaMemcpyAsync": "transfer",
        "cudaStreamSynchronize": "wait",
        "sgemm": "kernel",
        "Memcpy HtoD": "transfer",
    }
    assert trace.has_device
    assert sorted(trace.rows.correlation.tolist()) == [0, 0, 9, 9, 10, 10]


def test_xla_s_streams_are_read_and_what_repeats_them_is_not(tmp_path):
    """As TensorFlow's and JAX' profilers export a card: programs and operations once more, beside the streams."""

    def named(what, name, tid=0):
        return {"ph": "M", "pid": 1, "tid": tid, "name": what, "args": {"name": name}}

    lanes = ("Stream #13(Compute)", "XLA Modules", "XLA Ops")
    trace = trace_of(
        tmp_path,
        named("process_name", "/device:GPU:0"),
        *(named("thread_name", name, tid) for tid, name in enumerate(lanes)),
        event("gemm_fusion", 10, 5, tid=0),
        event("MemcpyD2H", 20, 1, tid=0),
        event("jit_step", 0, 30, tid=1),
        event("gemm_fusion", 10, 5, tid=2, args={"hlo_op": "gemm_fusion"}),
    )
    assert {(call.name, call.kind, call.count) for call in trace.calls} == {
        ("gemm_fusion", "kernel", 1),
        ("MemcpyD2H", "transfer", 1),
    }
    assert [(lane.name, lane.role) for lane in trace.lanes] == [(lanes[0], "device")]


def process(pid, name):
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def seconds_of(trace):
    return {state: round(s * 1e6) for state, s in waited_for(trace, *trace.span_ns).seconds.items() if s}


@pytest.mark.parametrize("category", ["cuda_runtime", "Runtime", "cuda_driver"])
def test_launches_without_a_card_s_rows_are_no_arithmetic_of_the_processor(tmp_path, category):
    """As PyTorch writes on WSL: the launches are there, the kernels are not."""
    trace = trace_of(
        tmp_path,
        event("aten::mm", 0, 990, cat="cpu_op"),
        event("cudaLaunchKernel", 10, 5, cat=category),
        event("sgemm", 20, 8, tid=0, cat="cuda_profiler_range"),
    )
    kinds = {call.name: call.kind for call in trace.calls}
    assert kinds == {"aten::mm": "dispatch", "cudaLaunchKernel": "launch"}
    why = no_share(trace)
    assert why.startswith("The GPU's rows are missing from this file: it has 1 launches, but no kernel")
    assert "WSL" in why
    assert "nsys profile" in why


def test_a_training_on_a_processor_that_only_asks_cuda_something_still_computes(tmp_path):
    rows = [event("aten::mm", 0, 90, cat="cpu_op"), event("cudaDeviceSynchronize", 95, 5, cat="cuda_runtime")]
    trace = read(tmp_path, text_of(rows))
    assert {call.name: call.kind for call in trace.calls}["aten::mm"] == "kernel"
    assert not no_share(trace)


PRODUCERS = {  # 500 μs of arithmetic on a card in 570 μs, as each of them writes it
    "PyTorch 1.8": [
        event("aten::mm", 0, 60, cat="Operator"),
        event("cudaLaunchKernel", 20, 30, cat="Runtime"),
        event("sgemm", 70, 500, pid=0, tid=7, cat="Kernel"),
    ],
    "PyTorch 1.5": [
        event("mm", 0, 60, pid="CPU functions"),
        event("mm", 70, 500, pid="CUDA functions", tid=0),
    ],
    "Paddle": [
        event("matmul dygraph", 0, 60, cat="Operator"),
        event("cudaLaunchKernel", 20, 30, cat="CudaRuntime"),
        event("sgemm", 70, 500, pid=9, cat="Kernel"),
    ],
    "TensorFlow 1": [
        process(1, "/job:localhost/replica:0/task:0/device:GPU:0 Compute"),
        process(2, "/device:GPU:0/stream:all Compute"),
        process(3, "/device:GPU:0/stream:13 Compute"),
        process(4, "/job:localhost/replica:0/task:0/device:CPU:0 Compute"),
        event("Const", 0, 60, pid=4, cat="Op", args={"op": "Const"}),
        event("MatMul", 20, 30, cat="Op", args={"op": "MatMul"}),
        event("MatMul", 70, 500, pid=2, cat="Op", args={"op": "MatMul"}),
        event("MatMul", 70, 500, pid=3, cat="Op", args={"op": "MatMul"}),
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
        process(1, "/host:CPU"),
        process(2, "/device:TPU:0"),
        {"ph": "M", "pid": 2, "tid": 3, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "M", "pid": 2, "tid": 1, "name": "thread_name", "args": {"name": "Steps"}},
        event("PjitFunction(step)", 0, 60),
        event("fusion.3", 70, 500, pid=2, tid=3),
        event("1", 0, 570, pid=2, tid=1),
    ],
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_producer_s_kernels_are_arithmetic_on_a_device(tmp_path, name):
    trace = trace_of(tmp_path, *PRODUCERS[name])
    assert trace.has_device
    assert seconds_of(trace)["kernel"] == 500
    assert not no_share(trace)
    assert trace.made_by.startswith("PyTorch" if name == "MTIA" else name.split(" ")[0])


def test_onnx_runtime_on_a_processor_computes_in_its_calls_and_on_a_card_without_rows_it_is_said(tmp_path):
    def rows(provider):
        args = {"provider": f"{provider}ExecutionProvider", "op_name": "Gemm"}
        return [event("Gemm_kernel_time", 0, 60, cat="Node", args=args), event("Gemm_fence_after", 60, 1, cat="Node")]

    here = read(tmp_path, json.dumps(rows("CPU")))
    assert seconds_of(here) == {"kernel": 60, "dispatch": 1}
    assert "--enable_cuda_profiling" in no_share(read(tmp_path, json.dumps(rows("CUDA"))))


def test_a_timeline_of_a_card_without_its_streams_lacks_the_card_s_rows(tmp_path):
    where = process(1, "/job:localhost/replica:0/task:0/device:GPU:0 Compute")
    trace = trace_of(tmp_path, where, event("MatMul", 0, 30, cat="Op", args={"op": "MatMul"}))
    assert no_share(trace).startswith("The GPU's rows are missing")


def test_what_cards_tell_each_other_is_no_arithmetic(tmp_path):
    trace = trace_of(tmp_path, event("ncclKernel", 0, 60, cat="kernel"), event("sgemm", 60, 40, cat="kernel"))
    assert seconds_of(trace) == {"communication": 60, "kernel": 40}


def test_shares_are_of_the_marked_steps_alone(tmp_path):
    rows = [event(f"ProfilerStep#{n}", 100 * n, 100, cat="user_annotation") for n in (1, 2)]
    trace = trace_of(
        tmp_path,
        *rows,
        event("load", 0, 100, cat="cpu_op"),
        event("sgemm", 150, 100, tid=7, cat="kernel"),
        event("save", 300, 900, cat="cpu_op"),
        event("sgemm", 290, 500, tid=7, cat="kernel"),
    )
    assert seconds_of(trace) == {"kernel": 110, "python": 90}
    assert trace.notes == ("shares are of the time of the 2 steps that it marks",)
    assert {call.name: call.total_ns for call in trace.calls}["sgemm"] == 600_000, "calls are of the whole file"


def test_a_trace_of_unknown_kinds_says_so_and_one_of_python_alone_too(tmp_path):
    unknown = read(
        tmp_path, text_of([event("Blink.Layout", 0, 90, cat="blink"), event("sgemm", 0, 10, tid=3, cat="kernel")])
    )
    assert no_share(unknown).startswith("What 89% of this trace's busy time")
    browser = trace_of(tmp_path, event("content::Paint", 0, 90, cat="toplevel"))
    assert no_share(browser).startswith("What 100% of this trace's busy time")
    for name, category in (("VizTracer", "FEE"), ("py-spy", "py-spy")):
        python = trace_of(tmp_path, event("main (a.py:1)", 0, 90, cat=category))
        assert python.made_by == name
        assert no_share(python).startswith("Its rows are functions of Python")


LOOSE = {
    "a list without its end": '[{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":2},\n',
    "a list cut off in an event": '[{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":2},{"ph":"X","na',
    "a path of Windows": r'{"traceEvents":[{"ph":"X","pid":1,"tid":1,"name":"a","cat":"C:\Users\me","ts":1,"dur":2}]}',
    "control characters": '{"traceEvents":[{"ph":"X","pid":1,"tid":1,"name":"a","cat":"b\x01\n","ts":1,"dur":2}]}',
    "times as text": '{"traceEvents":[{"ph":"X","pid":1,"tid":1,"name":"a","ts":"1","dur":"2.0"}]}',
    "no process": '[{"ph":"X","name":"a","ts":1,"dur":2}]',
    "asynchronous": '[{"ph":"b","cat":"c","id":"0x1","pid":1,"tid":1,"name":"a","ts":1},'
    '{"ph":"e","cat":"c","id":"0x1","pid":1,"tid":2,"name":"a","ts":3}]',
    "asynchronous, of old": '[{"ph":"S","cat":"c","id":7,"pid":1,"tid":1,"name":"a","ts":1},'
    '{"ph":"F","cat":"c","id":7,"pid":1,"tid":2,"name":"a","ts":3}]',
}


@pytest.mark.parametrize("name", LOOSE)
def test_what_is_not_quite_json_is_read(tmp_path, name):
    trace = read(tmp_path, LOOSE[name])
    assert [(call.name, call.total_ns) for call in trace.calls] == [("a", 2000)]
    assert bool(trace.notes) is (name == "a list cut off in an event")


@given(st.integers(15, 90))
def test_single_backslashes_are_read_wherever_the_buffer_ends(size):
    names = [r"C:\Users\me\x.py", r"D:\data\u12", r"tab\there", r"quote\"d", "\\\\\\\\host"]
    text = "[" + ",".join(f'{{"ph":"X","name":"{name}"}}' for name in names) + "]"

    class Slowly:
        at = 0

        def read(self, _):
            self.at += size
            return text[self.at - size : self.at]

    found = [one["name"] for one in reading.events(Slowly(), [])]  # pyright: ignore[reportArgumentType]
    assert found == [r"C:\Users\me\x.py", r"D:\data\u12", "tab\there", 'quote"d', r"\\host"]


def test_more_rows_than_are_kept_are_thinned_without_changing_what_is_waited_for(tmp_path, monkeypatch):
    """Functions that call each other, above a card that computes at the end: a stretch in the middle has none of it."""
    rows = [event("main", 0, 1000, cat="python_function")]
    rows += [event("inner", n, 1, cat="python_function") for n in range(900)]
    rows += [event("sgemm", 900, 100, tid=7, cat="kernel")]
    whole = seconds_of(read(tmp_path, text_of(rows)))
    monkeypatch.setattr(form, "MAX_KEPT", 50)
    few = read(tmp_path, text_of(rows))
    assert seconds_of(few) == whole == {"kernel": 100, "python": 900}
    assert len(few.rows) <= 50 < few.n_rows == 902


def test_a_stretch_in_the_middle_has_what_began_before_it_and_ends_with_its_last_row(tmp_path, monkeypatch):
    monkeypatch.setattr(form, "MAX_KEPT", 20)
    rows = [event("long kernel", 0, 1000, tid=7, cat="kernel")]
    rows += [event("call", 10 * n, 5, cat="cpu_op") for n in range(90)]
    trace = read(tmp_path, text_of(rows))
    assert set(seconds_of(trace)) == {"kernel"}
    assert trace.span_s < 250e-6
    assert trace.has_device


def test_begun_and_ended_events_and_a_bare_list(tmp_path):
    events = [
        {"ph": "B", "pid": 1, "tid": 1, "name": "outer", "ts": 0},
        {"ph": "B", "pid": 1, "tid": 1, "name": "inner", "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 10},
        {"ph": "i", "pid": 1, "tid": 1, "name": "a mark", "ts": 3},
        "no event",
    ]
    trace = read(tmp_path, json.dumps(events))
    assert {(call.name, call.total_ns, call.self_ns) for call in trace.calls} == {
        ("outer", 9000, 6000),
        ("inner", 3000, 3000),
    }


def test_what_is_saved_for_perfetto_is_read_again(tmp_path):
    trace = reading.read_events(TORCH, "torch")
    again = read(tmp_path, as_chrome_json(trace))
    for column in ("start_ns", "duration_ns", "kind", "correlation"):
        assert getattr(again.rows, column).tolist() == getattr(trace.rows, column).tolist()
    assert [again.names[n] for n in again.rows.name] == [trace.names[n] for n in trace.rows.name]
    card = trace_of(tmp_path, event("sgemm", 0, 8, tid=7, cat="kernel"), event("call", 0, 9))
    again = read(tmp_path, as_chrome_json(card))
    assert again.lanes == card.lanes, "a lane is still a card's"


@given(st.integers(20, 400), st.data())
def test_wherever_the_buffer_ends_the_events_are_the_same(size, data):
    """A buffer that ends within a name, a number or an escape."""
    names = data.draw(st.lists(st.text(max_size=12), min_size=1, max_size=12))
    text = text_of([event(name, number, 1.25, args={"deep": [{"x": "]}"}]}) for number, name in enumerate(names)])

    class Slowly:
        def __init__(self):
            self.at = 0

        def read(self, _):
            piece = text[self.at : self.at + size]
            self.at += size
            return piece

    assert list(reading.events(Slowly(), [])) == json.loads(text)["traceEvents"]  # pyright: ignore[reportArgumentType]


BAD = {
    "cut off": (TORCH.read_text()[:9000], "cut off at character"),
    "no list": ('{"a": 1}', 'no list of "traceEvents"'),
    "no rows": (text_of([{"ph": "i", "pid": 1}]), "only moments: none that lasts"),
    "nested": ('{"traceEvents": [' + "[" * 200_000, "nested too deeply"),
    "a number of 10,000 digits": ('{"traceEvents": [' + "1" * 10_000 + "]}", "damaged near"),
    "no JSON": ('{"traceEvents": [nonsense]}', "damaged near"),
    "gzipped and cut off": (gzip.compress(TORCH.read_bytes())[:2000], "gzipped, but damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_refused_by_what_it_is(tmp_path, name):
    text, why = BAD[name]
    with pytest.raises(Refused, match=why):
        read(tmp_path, text)


def test_one_endless_event_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_EVENT", 50_000)
    monkeypatch.setattr(reading, "CHUNK", 10_000)
    text = '{"traceEvents": [{"ph": "X", "name": "' + "x" * 10_000_000
    path = tmp_path / "endless.json"
    path.write_text(text)
    with pytest.raises(Refused, match=r"near character [5-8]\d,\d{3} has more"):
        reading.read_events(path, "endless")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -5, 1e300, 10**400, "7", None, True])
def test_absurd_times_are_left_out(tmp_path, bad):
    trace = trace_of(tmp_path, event("good", 1, 2), event("bad", bad, 3), event("worse", 1, bad))
    assert "good" in {call.name for call in trace.calls}
    assert all(kind in KINDS for kind in {call.kind for call in trace.calls})
    assert (trace.rows.duration_ns > 0).all()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """What JAX's own profiler writes of five calls of one compiled function."""
    folder = tmp_path_factory.mktemp("jax")
    step = jax.jit(lambda x: (x @ x).sum())
    x = jax.numpy.ones((64, 64))
    step(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        for _ in range(5):
            step(x).block_until_ready()
    return next(folder.rglob("*.xplane.pb"))


def test_a_file_of_jax_has_its_calls_and_its_arithmetic(recorded):
    trace = reading.read_xspace(recorded, "five calls")
    assert trace.made_by == "JAX's profiler"
    assert "python" in {lane.role for lane in trace.lanes}
    assert not trace.has_device
    assert {"kernel", "dispatch"} <= {call.kind for call in trace.calls}
    assert any(call.name.startswith("PjitFunction") and call.count >= 5 for call in trace.calls)


def test_the_streams_of_a_card_are_read_and_what_repeats_them_is_not(tmp_path):
    path = tmp_path / "card.xplane.pb"
    path.write_bytes(
        xspace(
            {
                "/host:CPU": {
                    "python/1": [("PjitFunction(step)", 0, 900, {}), ("a mark", 5, 0, {})],
                    "worker/2": [("cuLaunchKernel", 100, 50, {"correlation_id": 3})],
                },
                "/device:GPU:0": {
                    "Stream #13(Compute)": [("gemm_fusion", 200, 80, {"correlation_id": 3}), ("MemcpyH2D", 300, 9, {})],
                    "XLA Ops": [("dot.1", 200, 80, {})],
                },
            }
        )
    )
    trace = reading.read_xspace(path, "card")
    calls = {call.name: (call.kind, call.total_ns) for call in trace.calls}
    assert calls == {
        "PjitFunction(step)": ("dispatch", 900),
        "cuLaunchKernel": ("launch", 50),
        "gemm_fusion": ("kernel", 80),
        "MemcpyH2D": ("transfer", 9),
    }
    assert {lane.name: lane.role for lane in trace.lanes} == {
        "python": "python",
        "worker 1": "host",
        "GPU:0 Stream #13(Compute)": "device",
    }
    assert sorted(trace.rows.correlation.tolist()) == [0, 0, 3, 3]


@pytest.mark.parametrize(
    ("call", "made_by"),
    [
        ("PjitFunction(step)", "JAX's profiler"),
        ("PjRtStreamExecutorLoadedExecutable::Execute", "JAX's profiler"),
        ("EagerLocalExecute: MatMul", "TensorFlow's profiler"),
    ],
)
def test_whose_profiler_it_was_is_told_by_its_calls(tmp_path, call, made_by):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(xspace({"/host:CPU": {"python/1": [(call, 0, 900, {})]}}))
    assert reading.read_xspace(path, "host").made_by == made_by


def test_the_profiler_s_own_rows_and_what_is_outside_the_steps_count_in_no_share(tmp_path):
    def made(host):
        path = tmp_path / "profiled.xplane.pb"
        stream = {"Stream #13(Compute)": [("gemm_fusion", 900, 50, {}), ("ncclDevKernel_AllReduce", 950, 20, {})]}
        path.write_bytes(xspace({"/host:CPU": {"python/1": host}, "/device:GPU:0": stream}))
        trace = reading.read_xspace(path, "profiled")
        return {state: round(s * 1e9) for state, s in waited_for(trace, *trace.span_ns).seconds.items() if s}

    own = [("$profiler.py:101 start_trace", 0, 800, {}), ("$traceback.py:3 walk", 100, 500, {})]
    step = [("PjitFunction(step)", 820, 180, {})]
    after = [("$profiler.py:213 stop_trace", 1000, 9000, {})]
    assert made([*own, *step, *after]) == {"kernel": 50, "communication": 20, "dispatch": 110, "python": 20}
    marked = [("train", 850, 130, {"step_num": 7})]
    assert made([*own, *step, *marked, *after]) == {"kernel": 50, "communication": 20, "dispatch": 60}


def test_a_tpu_s_operations_are_its_arithmetic(tmp_path):
    path = tmp_path / "tpu.xplane.pb"
    lines = {
        "Steps": [("1", 0, 90, {})],
        "XLA Modules": [("jit_step", 0, 80, {})],
        "XLA Ops": [("fusion.1", 0, 70, {})],
    }
    path.write_bytes(xspace({"/device:TPU:0": lines}))
    trace = reading.read_xspace(path, "tpu")
    assert [(call.name, call.kind) for call in trace.calls] == [("fusion.1", "kernel")]
    assert trace.has_device


def test_one_that_is_cut_off_one_without_rows_and_one_too_large_are_refused(recorded, tmp_path, monkeypatch):
    (tmp_path / "cut.xplane.pb").write_bytes(recorded.read_bytes()[:-100])
    with pytest.raises(Refused, match="cut off or damaged"):
        reading.read_xspace(tmp_path / "cut.xplane.pb", "cut")
    path = tmp_path / "empty.xplane.pb"
    path.write_bytes(xspace({"/host:CPU": {}}))
    with pytest.raises(Refused, match="no row of a processor"):
        reading.read_xspace(path, "empty")
    monkeypatch.setattr(reading, "MAX_BYTES", 3)
    with pytest.raises(Refused, match="record fewer steps"):
        reading.read_xspace(path, "large")
