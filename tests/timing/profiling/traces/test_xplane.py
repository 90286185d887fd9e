"""XSpaces: one that JAX writes now, and one with a card's planes, encoded by hand from the fields of `xplane.proto`."""

import jax
import pytest

from lib.timing.profiling.traces import xplane
from lib.timing.profiling.traces.explanation import waited_for
from lib.timing.profiling.traces.form import Refused
from tests.timing.profiling.traces.files import xspace


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
    trace = xplane.read(recorded, "five calls")
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
    trace = xplane.read(path, "card")
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
    assert xplane.read(path, "host").made_by == made_by


def test_the_profiler_s_own_rows_and_what_is_outside_the_steps_count_in_no_share(tmp_path):
    def made(host):
        path = tmp_path / "profiled.xplane.pb"
        stream = {"Stream #13(Compute)": [("gemm_fusion", 900, 50, {}), ("ncclDevKernel_AllReduce", 950, 20, {})]}
        path.write_bytes(xspace({"/host:CPU": {"python/1": host}, "/device:GPU:0": stream}))
        trace = xplane.read(path, "profiled")
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
    trace = xplane.read(path, "tpu")
    assert [(call.name, call.kind) for call in trace.calls] == [("fusion.1", "kernel")]
    assert trace.has_device


@pytest.mark.parametrize(("share", "why"), [(0.5, "cut off or damaged"), (0.98, "cut off or damaged")])
def test_a_file_that_is_cut_off_is_refused(recorded, tmp_path, share, why):
    content = recorded.read_bytes()
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(Refused, match=why):
        xplane.read(path, "cut")


def test_one_without_rows_and_one_too_large_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "empty.xplane.pb"
    path.write_bytes(xspace({"/host:CPU": {}}))
    with pytest.raises(Refused, match="no row of a processor"):
        xplane.read(path, "empty")
    monkeypatch.setattr(xplane, "MAX_BYTES", 3)
    with pytest.raises(Refused, match="record fewer steps"):
        xplane.read(path, "large")
