import itertools
import os
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.reference import loss_and_gradients
from lib.model.backends.registry import ALL_DEVICES
from lib.model.hardware.webgpu import BROWSER, SOFTWARE
from lib.timing.measurement import Config, no_wait
from lib.timing.profiling import harness, operations
from lib.timing.profiling.operations import ALL, LIBRARIES, OPERATIONS, PRODUCT, calls_of, measure_operation, on_threads
from lib.timing.profiling.request import ALIASED, COPIED, IN_PIECES, IN_TURN, MOVED, RETURNED, WAITED, OperationRequest
from tests.conftest import where_installed
from tests.cupy_stand_in import in_cupys_place
from tests.software_adapter import needs_software_adapter


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["numpy", "jax"])
def test_the_operations_compute_a_training_step(subject, worker):
    library = LIBRARIES[worker]("cpu")
    x, y = subject.batch
    (w1, b1), (w2, b2) = subject.parameters
    onehot = np.eye(10, dtype=np.float32)[y]
    weights = [library.move(one) for one in (w1, b1[None], w2, b2[None])]
    _, values = operations.computed(library, library.move(x), library.move(onehot), weights, np.float32(0.1))
    loss, gradients = loss_and_gradients(subject.parameters, x, y)
    assert float(values["loss"]) == pytest.approx(loss, rel=1e-5)
    for name, expected in zip(("dw1", "db1", "dw2", "db2"), [g for layer in gradients for g in layer], strict=True):
        np.testing.assert_allclose(np.asarray(values[name]), np.atleast_2d(expected), rtol=1e-3, atol=1e-6)


def test_each_operation_of_the_table_is_measured(subject):
    named = {operation.key for operation in OPERATIONS}
    assert set(calls_of(LIBRARIES["numpy"]("cpu"), subject)) == named | {ALL, PRODUCT}
    assert set(calls_of(LIBRARIES["jax"]("cpu"), subject)) == named | {ALL, PRODUCT, operations.COMPILED}


def test_repeated_updates_stay_finite(subject):
    parameters = subject.parameters
    calls = calls_of(LIBRARIES["numpy"]("cpu"), subject)
    for _ in range(1000):
        calls["update"]()
    assert np.isfinite(calls["hidden"]()).all()
    assert all((a == b).all() for a, b in zip(parameters[0], subject.parameters[0], strict=True)), "the caller's stay"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(operations, "CEILINGS", Config(0.0, min_time_s=0.002, max_time_s=0.02, min_blocks=3))
    monkeypatch.setattr(operations, "COPY_BYTES", 2**12)
    monkeypatch.setattr(operations, "l2_cache_bytes", lambda: 50 * 2**20)


def rows_of(backend, device):
    return {row[0]: row for row in operations.measure_ceilings(backend, device) if row is not None}


def test_a_large_operand_repeats_the_drawn_values(monkeypatch):
    library = operations._library("numpy", "cpu")
    (whole,) = operations._operands(library, (8, 8), 1, "float32")
    monkeypatch.setattr(operations, "MOST_DRAWN", 16)
    (large,) = operations._operands(library, (8, 8), 1, "float32")
    assert np.array_equal(large, np.tile(whole[:2], (4, 1)))


def test_every_library_has_its_probes():
    assert list(operations.makers_of("keras-jax", "cpu")) == ["product", "copy", "dispatch"]
    assert set(operations.SIDES) == set(ALL_DEVICES) - {BROWSER}, "no worker of this machine runs in a browser"


@pytest.mark.slow
@needs_software_adapter
def test_an_adapter_is_probed_with_training_kernels(monkeypatch):
    monkeypatch.setattr(operations, "SIDES", {SOFTWARE: (40,)})
    found = rows_of("webgpu-step", SOFTWARE)
    assert list(found) == ["product", "copy", "dispatch"]
    assert found["product"][2] == 2.0 * 40**3


@pytest.mark.parametrize(("device", "tried", "best"), [("gpu", [2048, 4096, 8192], 4096), ("cpu", [2048], 2048)])
def test_the_best_rate_of_several_products_is_the_ceiling(monkeypatch, device, tried, best):
    made = []

    def product(side):
        made.append(side)
        return lambda: time.sleep({2048: 1e-3, 4096: 2e-3, 8192: 0.2}[side]), no_wait, 2.0 * side**3

    monkeypatch.setattr(operations, "makers_of", lambda worker, device: {"product": product})
    (_, measured, work) = rows_of("jax-epoch", device)["product"]
    assert made == tried == list(operations.SIDES[device])
    assert work == 2.0 * best**3
    assert measured.median_s < 20e-3, "of that one"


def test_the_cache_size_is_measured_on_cards_only(monkeypatch):
    monkeypatch.setattr(operations, "SIDES", {"cpu": (8,), "gpu": (8, 16)})
    with in_cupys_place():
        found = rows_of("cupy", "gpu")
    assert list(found) == ["product", "copy", "dispatch", "cache"]
    assert found["product"][2] in (2.0 * 8**3, 2.0 * 16**3)
    assert found["cache"][1].median_s == 50 * 2**20
    assert list(rows_of("numpy", "cpu")) == ["product", "copy", "dispatch"]
    monkeypatch.setattr(operations, "l2_cache_bytes", lambda: 0)
    with in_cupys_place():
        assert "cache" not in rows_of("cupy", "gpu"), "not known, and nothing is said instead"


WORKERS = ["numpy", "jax", *where_installed(["torch"])]


def rows_of_operation(worker, operation):
    return {row[0]: row for row in measure_operation(worker, "cpu", operation) if row is not None}


@pytest.mark.parametrize("worker", WORKERS)
def test_a_product_is_timed_in_every_way_of_a_library(worker):
    rows = rows_of_operation(worker, OperationRequest("product", 16))
    assert set(rows) == ({WAITED} if worker == "numpy" else {WAITED, MOVED, RETURNED})
    assert {work for _, _, work in rows.values()} == {2.0 * 16**3}
    assert all(measured.median_s > 0 and len(measured.block_s) == 9 for _, measured, _ in rows.values())


def test_nested_sines_are_timed_eager_and_fused_with_fewer_bytes():
    rows = rows_of_operation("jax", OperationRequest("sine", 64, depth=3))
    assert set(rows) == {"eager/waited", "eager/moved", "fused/waited", "fused/moved"}
    assert rows["eager/waited"][2] == 2 * 4 * 64 * 3, "each pass reads and writes four bytes an element"
    assert rows["fused/waited"][2] == 2 * 4 * 64
    assert set(rows_of_operation("numpy", OperationRequest("sine", 64, depth=3))) == {"eager/waited"}


@pytest.mark.slow
@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
def test_products_are_computed_in_the_named_precision(worker, precision):
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


@pytest.mark.parametrize("worker", WORKERS)
def test_a_copy_has_its_own_memory_and_an_alias_shares_it(worker):
    library = LIBRARIES[worker]("cpu")
    back, ways = library.back, operations.transfers(worker, "cpu", library, OperationRequest("transfer", 2**16))
    assert list(ways) == [COPIED, ALIASED]
    alias, again, copy = (np.asarray(back(ways[name]())) for name in (ALIASED, ALIASED, COPIED))
    assert np.shares_memory(alias, again)
    assert not np.shares_memory(alias, copy)
    assert (copy == alias).all()
    assert copy.nbytes == 2**16


@given(st.integers(1, 300), st.integers(1, 3), st.integers(1, 12))
def test_both_overlap_variants_compute_the_nested_sine(size, depth, pieces):
    right = np.ones(size, np.float32)
    for _ in range(depth):
        right = np.sin(right)
    with on_threads(OperationRequest("overlap", size, depth=depth, pieces=pieces)) as (ways, y):
        for way in ways.values():
            y[:] = 0
            way()
            assert np.allclose(y, right, atol=1e-6)


def test_stages_of_a_piece_run_in_order():
    with on_threads(OperationRequest("overlap", 2**16, depth=2, pieces=5)) as (ways, _):
        [[there], [compute], [back]] = ways[IN_TURN]()
        lanes = ways[IN_PIECES]()
    assert there[1] <= compute[0] <= compute[1] <= back[0], "nothing overlaps"
    assert [len(lane) for lane in lanes] == [5, 5, 5]
    for before, after in itertools.pairwise(lanes):
        assert all(one[1] <= other[0] for one, other in zip(before, after, strict=True))
    for lane in lanes:
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(lane)), "a lane does one thing"


def test_overlap_rows_cover_both_variants_and_their_lanes():
    operation = OperationRequest("overlap", 256, depth=1, pieces=4)
    rows = {row[0]: row[1] for row in operations.measure_overlap("numpy", "cpu", operation) if row is not None}
    ends = {f"{lane}/{end}" for lane in ("there", "compute", "back") for end in ("begins", "ends")}
    assert set(rows) == {IN_TURN, IN_PIECES} | {f"{way}/{end}" for way in (IN_TURN, IN_PIECES) for end in ends}
    assert len(rows[f"{IN_PIECES}/compute/begins"].block_s) == 4
    assert len(rows[f"{IN_TURN}/compute/ends"].block_s) == 1
    assert len(rows[IN_TURN].block_s) == len(rows[IN_PIECES].block_s) == 9


FIRST_USE = OperationRequest("first use", 16, depth=2)


def first_use_of(worker):
    return [row for row in measure_operation(worker, "cpu", FIRST_USE) if row is not None]


def test_numpys_stages_are_measured_in_fresh_processes(monkeypatch):
    monkeypatch.setattr(operations, "REPETITIONS", 2)
    rows = first_use_of("numpy")
    assert [name for name, _, _ in rows] == ["process", "import", "context", "first", "steady"]
    by_name = {name: measured for name, measured, _ in rows}
    assert {len(measured.block_s) for measured in by_name.values()} == {2}
    assert 0.001 < by_name["process"].median_s < 20, "one clock for both processes"
    assert by_name["import"].median_s > by_name["steady"].median_s


def test_a_process_that_fails_says_why_even_after_much_output(monkeypatch):
    program = r"import sys; sys.stderr.write(300_000 * 'x\n'); raise SystemExit('enough')"
    monkeypatch.setattr(operations, "_COMMAND", [sys.executable, "-c", program])
    with pytest.raises(RuntimeError, match=r"of numpy exited with 1: enough$"):
        first_use_of("numpy")


def test_a_slow_or_stopped_process_is_ended(monkeypatch):
    started = []
    popen = harness.subprocess.Popen
    monkeypatch.setattr(harness.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    running = measure_operation("numpy", "cpu", FIRST_USE)
    assert next(running) is None
    running.close()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(operations, "LIMIT_S", 0.0)
    with pytest.raises(RuntimeError, match="took longer than 0 s"):
        first_use_of("numpy")
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_compilation_caches_are_hidden_from_fresh_processes(monkeypatch):
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
