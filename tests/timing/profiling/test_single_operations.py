"""Single operations: what is measured of each library, what the arithmetic is, and that limits end with a block."""

import os
from typing import Any

import numpy as np
import pytest

from lib.timing.profiling import single_operations
from lib.timing.profiling.harness import Repeated
from lib.timing.profiling.operations import LIBRARIES, in_precision
from lib.timing.profiling.request import EAGER, FUSED, MOVED, OPERATION_PRECISIONS, RETURNED, WAITED, OperationRequest
from lib.timing.profiling.single_operations import Within, limited, measure_operation, rounds
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


def test_every_precision_has_an_array():
    array = np.ones(2, np.float32)
    assert [in_precision(array, one).dtype.itemsize for one in OPERATION_PRECISIONS] == [8, 4, 4, 2, 2]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be limited")
def test_threads_are_limited_within_a_block_only():
    """Also where the block fails: what runs next in the process has all cores."""
    all_cores = os.sched_getaffinity(0)
    seen = []

    def block():
        seen.append(len(os.sched_getaffinity(0)))
        raise RuntimeError("the card is full")

    with pytest.raises(RuntimeError, match="full"):
        Within(Repeated(block), lambda: limited(1)).prepare()
    assert seen == [1]
    assert os.sched_getaffinity(0) == all_cores
    with limited(0):
        assert os.sched_getaffinity(0) == all_cores, "0: as many as there are"


@pytest.mark.parametrize(("call_s", "expected"), [(0.0, 9), (1e-3, 9), (0.1, 6), (100.0, 3)])
def test_long_calls_are_repeated_less_often(call_s, expected):
    assert rounds(3, call_s) == expected


def test_a_large_operand_repeats_what_was_drawn(monkeypatch):
    """Drawing a billion numbers would take longer than multiplying them does."""
    library = single_operations._library("numpy", "cpu")
    (whole,) = single_operations._operands(library, (8, 8), 1, "float32")
    monkeypatch.setattr(single_operations, "MOST_DRAWN", 16)
    (large,) = single_operations._operands(library, (8, 8), 1, "float32")
    assert np.array_equal(large, np.tile(whole[:2], (4, 1)))
