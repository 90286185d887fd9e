"""Single operations: what is measured of each library, what the arithmetic is, that limits end with a block; transfers,
overlap, and first uses."""

import itertools
import os
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling import harness, operations
from lib.timing.profiling.operations import (
    LIBRARIES,
    OnThreads,
    measure_operation,
    measure_overlap,
    transfers,
)
from lib.timing.profiling.request import (
    ALIASED,
    COPIED,
    EAGER,
    FUSED,
    IN_PIECES,
    IN_TURN,
    LANES,
    MOVED,
    RETURNED,
    WAITED,
    OperationRequest,
)
from tests.conftest import where_installed

WORKERS = ["numpy", "jax", *where_installed(["torch"])]


def rows_of(worker, operation):
    return {row[0]: row for row in measure_operation(worker, "cpu", operation) if row is not None}


@pytest.mark.parametrize("worker", WORKERS)
def test_a_product_is_timed_in_every_way_a_library_has(worker):
    rows = rows_of(worker, OperationRequest("product", 16))
    assert set(rows) == ({WAITED} if worker == "numpy" else {WAITED, MOVED, RETURNED})
    assert {work for _, _, work in rows.values()} == {2.0 * 16**3}
    assert all(measured.median_s > 0 and len(measured.block_s) == 9 for _, measured, _ in rows.values())


def test_nested_sines_are_made_one_by_one_and_in_one_and_read_and_write_less_so():
    rows = rows_of("jax", OperationRequest("sine", 64, depth=3))
    assert set(rows) == {f"{program}/{way}" for program in (EAGER, FUSED) for way in (WAITED, MOVED)}
    assert rows[f"{EAGER}/{WAITED}"][2] == 2 * 4 * 64 * 3, "each pass reads and writes four bytes an element"
    assert rows[f"{FUSED}/{WAITED}"][2] == 2 * 4 * 64
    assert set(rows_of("numpy", OperationRequest("sine", 64, depth=3))) == {f"{EAGER}/{WAITED}"}


@pytest.mark.slow
@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
def test_a_precision_is_what_it_says(worker, precision):
    """The result is of that type, and as exact as its digits: held against NumPy in float64."""
    if (worker, precision) == ("numpy", "bfloat16"):
        pytest.skip("NumPy has no bfloat16")
    library = LIBRARIES[worker]("cpu")
    array = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    with library.arithmetic(precision):
        host = library.host(array, precision)
        a = library.move(host)
        product: Any = library.wait(library.product(a, a, False, False))
        assert precision in str(product.dtype)
    right = array.astype(np.float64) @ array.astype(np.float64)
    found = np.array([[float(value) for value in row] for row in product])
    digits = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 2e-1}[precision]
    assert np.max(np.abs(found - right)) < digits * np.max(np.abs(right))


def test_a_large_operand_repeats_what_was_drawn(monkeypatch):
    """Drawing a billion numbers would take longer than multiplying them does."""
    library = operations._library("numpy", "cpu")
    (whole,) = operations._operands(library, (8, 8), 1, "float32")
    monkeypatch.setattr(operations, "MOST_DRAWN", 16)
    (large,) = operations._operands(library, (8, 8), 1, "float32")
    assert np.array_equal(large, np.tile(whole[:2], (4, 1)))


@pytest.mark.parametrize("worker", ["numpy", "jax", *where_installed(["torch"])])
def test_a_copy_is_other_memory_and_an_alias_the_same(worker):
    """So large that no library has reasons of its own to copy or to share."""
    library = LIBRARIES[worker]("cpu")
    back, ways = library.back, transfers(worker, "cpu", library, 2**16)
    assert list(ways) == [COPIED, ALIASED]
    alias, again, copy = (np.asarray(back(ways[name]())) for name in (ALIASED, ALIASED, COPIED))
    assert np.shares_memory(alias, again)
    assert not np.shares_memory(alias, copy)
    assert (copy == alias).all()
    assert copy.nbytes == 2**16


@given(st.integers(1, 300), st.integers(1, 3), st.integers(1, 12))
def test_both_ways_compute_the_nested_sine_of_every_element(size, depth, pieces):
    """Also where there are more pieces than elements, or pieces of different lengths."""
    stages = OnThreads(OperationRequest("overlap", size, depth=depth, pieces=pieces))
    right = np.ones(size, np.float32)
    for _ in range(depth):
        right = np.sin(right)
    try:
        for way in (stages.in_turn, stages.in_pieces):
            stages.y[:] = 0
            way()
            assert np.allclose(stages.y, right, atol=1e-6)
    finally:
        stages.close()


def test_a_stage_of_a_piece_begins_when_the_one_before_has_ended():
    stages = OnThreads(OperationRequest("overlap", 2**16, depth=2, pieces=5))
    try:
        there, compute, back = stages.in_turn()
        assert [len(lane) for lane in (there, compute, back)] == [1, 1, 1]
        assert there[0][1] <= compute[0][0]
        assert compute[0][1] <= back[0][0], "nothing overlaps"
        lanes = stages.in_pieces()
    finally:
        stages.close()
    assert [len(lane) for lane in lanes] == [5, 5, 5]
    for before, after in itertools.pairwise(lanes):
        assert all(one[1] <= other[0] for one, other in zip(before, after, strict=True))
    for lane in lanes:
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(lane)), "a lane does one thing"


def test_the_rows_are_both_ways_and_their_lanes():
    operation = OperationRequest("overlap", 256, depth=1, pieces=4)
    rows = {row[0]: row[1] for row in measure_overlap("numpy", "cpu", operation) if row is not None}
    assert set(rows) == {IN_TURN, IN_PIECES} | {
        f"{way}/{lane}/{end}" for way in (IN_TURN, IN_PIECES) for lane in LANES for end in ("begins", "ends")
    }
    assert len(rows[f"{IN_PIECES}/compute/begins"].block_s) == 4
    assert len(rows[f"{IN_TURN}/compute/ends"].block_s) == 1
    assert len(rows[IN_TURN].block_s) == len(rows[IN_PIECES].block_s) == 9


def test_other_libraries_are_refused():
    with pytest.raises(ValueError, match="expected numpy on cpu or torch on gpu, got jax on cpu"):
        next(measure_overlap("jax", "cpu", OperationRequest("overlap", 4)))


FIRST_USE = OperationRequest("first use", 16, depth=2)


def first_use_of(worker):
    return [row for row in measure_operation(worker, "cpu", FIRST_USE) if row is not None]


def test_numpy_s_stages_are_measured_in_fresh_processes(monkeypatch):
    monkeypatch.setattr(operations, "REPETITIONS", 2)
    rows = first_use_of("numpy")
    assert [name for name, _, _ in rows] == ["process", "import", "context", "first", "second", "steady"]
    by_name = {name: measured for name, measured, _ in rows}
    assert {len(measured.block_s) for measured in by_name.values()} == {2}
    assert 0.001 < by_name["process"].median_s < 20, "one clock for both processes"
    assert by_name["import"].median_s > by_name["steady"].median_s


def test_a_process_that_fails_says_why(monkeypatch):
    monkeypatch.setitem(operations.MODULES, "unknown", "math")
    with pytest.raises(RuntimeError, match="of math ended with 1: KeyError: 'unknown'"):
        first_use_of("unknown")


def test_a_process_that_complains_at_length_does_not_wait_for_a_reader(monkeypatch, tmp_path):
    """More than a pipe holds."""
    (tmp_path / "talkative.py").write_text("import sys; sys.stderr.write(300_000 * 'x'); raise SystemExit('enough')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(operations.MODULES, "unknown", "talkative")
    monkeypatch.setattr(operations, "_COMMAND", [sys.executable, "-c", "import talkative"])
    with pytest.raises(RuntimeError, match=r"of talkative ended with 1: x+enough"):
        first_use_of("unknown")


def test_one_that_takes_too_long_or_is_stopped_is_ended(monkeypatch):
    started = []
    popen = harness.subprocess.Popen
    monkeypatch.setattr(harness.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    running = measure_operation("numpy", "cpu", FIRST_USE)
    assert next(running) is None
    running.close()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(operations, "LIMIT_S", 0.0)
    with pytest.raises(RuntimeError, match="took more than 0 s"):
        first_use_of("numpy")
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

    monkeypatch.setattr(harness.subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="no more"):
        first_use_of("jax")
    assert "JAX_COMPILATION_CACHE_DIR" not in seen[0]
    assert "/somewhere" not in seen[0].values()
    assert seen[0]["PATH"] == os.environ["PATH"]
