"""First use: stages of fresh processes, and of processes that fail or are stopped."""

import os
import sys

import pytest

from lib.timing.profiling import first_use
from lib.timing.profiling.first_use import first_uses
from lib.timing.profiling.request import OperationRequest
from lib.timing.profiling.single_operations import measure_operation


def test_numpy_s_stages_are_measured_in_fresh_processes(monkeypatch):
    monkeypatch.setattr(first_use, "REPETITIONS", 2)
    rows = [
        row for row in measure_operation("numpy", "cpu", OperationRequest("first use", 16, depth=2)) if row is not None
    ]
    assert [name for name, _, _ in rows] == ["process", "import", "context", "first", "second", "steady"]
    by_name = {name: measured for name, measured, _ in rows}
    assert {len(measured.block_s) for measured in by_name.values()} == {2}
    assert 0.001 < by_name["process"].median_s < 20, "one clock for both processes"
    assert by_name["import"].median_s > by_name["steady"].median_s


def test_a_process_that_fails_says_why(monkeypatch):
    monkeypatch.setitem(first_use.MODULES, "unknown", "math")
    with pytest.raises(RuntimeError, match="of math ended with 1: KeyError: 'unknown'"):
        list(first_uses("unknown", "cpu", 1, 1))


def test_a_process_that_complains_at_length_does_not_wait_for_a_reader(monkeypatch, tmp_path):
    """More than a pipe holds."""
    (tmp_path / "talkative.py").write_text("import sys; sys.stderr.write(300_000 * 'x'); raise SystemExit('enough')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(first_use.MODULES, "unknown", "talkative")
    monkeypatch.setattr(first_use, "_command", lambda *_: [sys.executable, "-c", "import talkative"])
    with pytest.raises(RuntimeError, match=r"of talkative ended with 1: x+enough"):
        list(first_uses("unknown", "cpu", 1, 1))


def test_one_that_takes_too_long_or_is_stopped_is_ended(monkeypatch):
    started = []
    popen = first_use.subprocess.Popen
    monkeypatch.setattr(first_use.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    running = first_uses("numpy", "cpu", 1, 1)
    assert next(running) is None
    running.close()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(first_use, "LIMIT_S", 0.0)
    with pytest.raises(RuntimeError, match="took more than 0 s"):
        list(first_uses("numpy", "cpu", 1, 1))
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_no_program_of_an_earlier_process_is_found(monkeypatch):
    """Nor of the worker, into whose environment PyTorch has written its own folders."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "/somewhere")
    seen = []

    def refuse(command, env, **_):
        seen.append(env)
        raise OSError("no more processes")

    monkeypatch.setattr(first_use.subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="no more"):
        list(first_uses("jax", "cpu", 1, 1))
    assert "JAX_COMPILATION_CACHE_DIR" not in seen[0]
    assert "/somewhere" not in seen[0].values()
    assert seen[0]["PATH"] == os.environ["PATH"]
