"""Trace events: PyTorch's own file, begun and ended events, what is cut off, nested or absurd."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.profiling.traces import chrome
from lib.profiling.traces.form import Refused, as_chrome_json
from lib.profiling.traces.kinds import KINDS
from tests.profiling.traces.files import chrome as text_of
from tests.profiling.traces.files import event

TORCH = Path(__file__).with_name("torch_step.json")  # exported by PyTorch 2.13 on a processor: one step, batch size 4


def read(folder, text, name="trace.json"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return chrome.read(path, name)


def test_a_file_of_pytorch_is_read_as_the_standard_library_reads_it():
    trace = chrome.read(TORCH, "torch")
    events = [one for one in json.loads(TORCH.read_text())["traceEvents"] if one["ph"] == "X" and one["dur"] > 0]
    expected = [one for one in events if one["cat"] != "Trace"]
    assert trace.made_by == "PyTorch's profiler"
    assert trace.n_rows == len(trace.rows) == len(expected)
    assert sum(call.total_ns for call in trace.calls) == sum(round(one["dur"] * 1e3) for one in expected)
    assert [lane.role for lane in trace.lanes] == ["python"]
    kinds = {call.name: call.kind for call in trace.calls}
    assert kinds["aten::addmm"] == kinds["aten::mm"] == "kernel"
    assert kinds["aten::linear"] == kinds["aten::t"] == "dispatch", "what only calls or renames computes nothing"


def test_gzipped_is_the_same(tmp_path):
    packed = read(tmp_path, gzip.compress(TORCH.read_bytes()), "torch.json.gz")
    assert packed.calls == chrome.read(TORCH, "torch").calls


def test_a_card_s_streams_and_cuda_s_calls_are_told_apart(tmp_path):
    trace = read(
        tmp_path,
        text_of(
            [
                event("aten::mm", 0, 30, cat="cpu_op"),
                event("cudaLaunchKernel", 10, 5, cat="cuda_runtime", args={"correlation": 9}),
                event("cudaMemcpyAsync", 16, 5, cat="cuda_runtime", args={"correlation": 10}),
                event("cudaStreamSynchronize", 31, 20, cat="cuda_runtime"),
                event("sgemm", 20, 8, tid=7, cat="kernel", args={"correlation": 9}),
                event("Memcpy HtoD", 29, 8, tid=7, cat="gpu_memcpy", args={"correlation": 10}),
            ]
        ),
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
    trace = read(
        tmp_path,
        text_of(
            [
                named("process_name", "/device:GPU:0"),
                *(named("thread_name", name, tid) for tid, name in enumerate(lanes)),
                event("gemm_fusion", 10, 5, tid=0),
                event("MemcpyD2H", 20, 1, tid=0),
                event("jit_step", 0, 30, tid=1),
                event("gemm_fusion", 10, 5, tid=2, args={"hlo_op": "gemm_fusion"}),
            ]
        ),
    )
    assert {(call.name, call.kind, call.count) for call in trace.calls} == {
        ("gemm_fusion", "kernel", 1),
        ("MemcpyD2H", "transfer", 1),
    }
    assert [(lane.name, lane.role) for lane in trace.lanes] == [(lanes[0], "device")]


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
    trace = chrome.read(TORCH, "torch")
    again = read(tmp_path, as_chrome_json(trace))
    for column in ("start_ns", "duration_ns", "kind", "correlation"):
        assert getattr(again.rows, column).tolist() == getattr(trace.rows, column).tolist()
    assert [again.names[n] for n in again.rows.name] == [trace.names[n] for n in trace.rows.name]
    card = read(tmp_path, text_of([event("sgemm", 0, 8, tid=7, cat="kernel"), event("call", 0, 9)]))
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

    assert list(chrome._events(Slowly())) == json.loads(text)["traceEvents"]  # pyright: ignore[reportArgumentType]


BAD = {
    "cut off": (TORCH.read_text()[:9000], "cut off or damaged"),
    "no list": ('{"a": 1}', 'no list of "traceEvents"'),
    "no rows": (text_of([{"ph": "i"}]), "none with a duration"),
    "nested": ('{"traceEvents": [' + "[" * 200_000, "nested too deeply"),
    "a number of 10,000 digits": ('{"traceEvents": [' + "1" * 10_000 + "]}", "cut off or damaged"),
    "no JSON": ('{"traceEvents": [nonsense]}', "cut off or damaged"),
    "gzipped and cut off": (gzip.compress(TORCH.read_bytes())[:2000], "gzipped, but damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_refused_by_what_it_is(tmp_path, name):
    text, why = BAD[name]
    with pytest.raises(Refused, match=why):
        read(tmp_path, text)


def test_one_endless_event_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome, "MAX_EVENT", 50_000)
    monkeypatch.setattr(chrome, "CHUNK", 10_000)
    text = '{"traceEvents": [{"ph": "X", "name": "' + "x" * 10_000_000
    path = tmp_path / "endless.json"
    path.write_text(text)
    with pytest.raises(Refused, match=r"damaged near character [5-8]\d,\d{3}\b"):
        chrome.read(path, "endless")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -5, 1e300, 10**400, "7", None, True])
def test_absurd_times_are_left_out(tmp_path, bad):
    trace = read(tmp_path, text_of([event("good", 1, 2), event("bad", bad, 3), event("worse", 1, bad)]))
    assert "good" in {call.name for call in trace.calls}
    assert all(kind in KINDS for kind in {call.kind for call in trace.calls})
    assert (trace.rows.duration_ns > 0).all()
