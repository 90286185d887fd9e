"""Skipping zero inputs changes no result; a second start compiles nothing. More in `test_backends.py`."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lib.model.backends import reference
from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import Data
from lib.model.spec import DataSet, Network, Training
from tests.model.backends.comparing import assert_near, losses_of
from tests.model.programs import said_by

with_numba = pytest.importorskip("lib.model.backends.with_numba", reason="numba: it is not installed")
from lib.model.backends.with_numba import by_image, by_pixel, shares  # noqa: E402

N_IMAGES = 200
DATA_SET = DataSet("sparse", n_train=N_IMAGES, n_validation=7, chance=0.5)


def sparse_data(n_inputs: int, n_classes: int, density: float, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    arrays = []
    for n in (N_IMAGES, 7, 3):
        x = rng.random((n, n_inputs), np.float32) * (rng.random((n, n_inputs)) < density).astype(np.float32)
        arrays += [x, rng.integers(n_classes, size=n).astype(np.int32)]
    return Data(*arrays, source="test", digest=f"{n_inputs} {n_classes} {density} {seed}")


def trained(training: Training, data: Data, threads: int) -> tuple[np.ndarray, list]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(with_numba, "FLOPS_PER_THREAD", 1e-9)
        patched.setattr(with_numba, "IMAGES_PER_THREAD", 1)
        patched.setattr(with_numba, "usable_cores", lambda: threads)
        patched.setattr(with_numba.config, "NUMBA_NUM_THREADS", threads)
        events = list(with_numba.train(training, data))
    return losses_of(events), events[-1].parameters()


@example(n_inputs=784, n_classes=10, hidden=[128], batch_size=64, density=0.2, threads=2)  # whole tiles
@example(n_inputs=30, n_classes=3, hidden=[130, 17], batch_size=70, density=0.3, threads=3)  # batches start mid-tile
@example(n_inputs=9, n_classes=2, hidden=[], batch_size=1, density=0.0, threads=1)  # only zeros
@example(n_inputs=20, n_classes=10, hidden=[5], batch_size=N_IMAGES, density=1.0, threads=2)  # no zeros
@given(
    n_inputs=st.integers(1, 60),
    n_classes=st.integers(2, 40),
    hidden=st.lists(st.integers(1, 150), max_size=3),
    batch_size=st.integers(1, N_IMAGES),
    density=st.floats(0, 1),
    threads=st.integers(1, 2),
)
def test_skipping_zeros_does_not_change_the_training(n_inputs, n_classes, hidden, batch_size, density, threads):
    data = sparse_data(n_inputs, n_classes, density)
    training = Training(Network(tuple(hidden), n_inputs, n_classes), 0.05, batch_size, epochs=1, data=DATA_SET)
    losses, parameters = trained(training, data, threads)
    expected, right = reference.train(training, data, len(losses))
    assert len(losses) == N_IMAGES // batch_size
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    assert_near(parameters, right, atol=2e-5)


@given(density=st.floats(0, 1), tile=st.integers(1, 70), n_inputs=st.integers(1, 40), seed=st.integers(0, 9))
def test_rows_and_columns_hold_the_same_entries(density, tile, n_inputs, seed):
    data = sparse_data(n_inputs, 2, density, seed)
    x, rows = data.x_train, by_image(data)[0]
    dense = np.zeros_like(x)
    dense[np.repeat(np.arange(len(x)), np.diff(rows.starts)), rows.indices] = rows.values
    np.testing.assert_array_equal(dense, x)
    starts, images, values = by_pixel(data, tile)
    assert len(starts) == len(x) // tile, "whole tiles only"
    for t, of_tile in enumerate(starts):
        dense = np.zeros((tile, n_inputs), np.float32)
        for pixel in range(n_inputs):
            these = slice(of_tile[pixel], of_tile[pixel + 1])
            dense[images[these], pixel] = values[these]
        np.testing.assert_array_equal(dense, x[t * tile : (t + 1) * tile])
    parts = shares(data, 3)
    assert (parts[0], parts[-1]) == (0, n_inputs)
    assert np.all(np.diff(parts) >= 0), "each pixel has one thread"


@given(
    hidden=st.lists(st.sampled_from((8, 32, 128, 512)), max_size=3),
    sizes=st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    cores=st.integers(1, 16),
)
def test_threads_grow_with_the_work_up_to_the_cores(hidden, sizes, cores):
    small, large = (Training(Network(tuple(hidden)), batch_size=size) for size in sorted(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(with_numba, "usable_cores", lambda: cores)
        patch.setattr(with_numba.config, "NUMBA_NUM_THREADS", 8)
        threads = [with_numba.threads_for(training) for training in (small, large)]
        assert with_numba.threads_for(Training(Network(tuple(hidden)), batch_size=1)) == 1, "an image is not divided"
    assert 1 <= threads[0] <= threads[1] <= min(cores, 8)
    assert min(sizes) >= threads[0], "none without an image"


def test_written_arrays_are_aligned_to_cache_lines():
    for batch_size in range(1, 9):  # at these sizes NumPy itself does not align arrays
        network = Network((150, 7), 60, 3)
        for array in with_numba.packed(initial_parameters(network, 0), batch_size, 2)[1:]:
            assert array.ctypes.data % 64 == 0


SECOND_START = """
from lib.model.backends import with_numba
from tests.model.backends.test_with_numba import DATA_SET, sparse_data
from lib.model.spec import Network, Training
list(with_numba.train(Training(Network((3,), 5, 2), 0.1, 32, 1, data=DATA_SET), sparse_data(5, 2, 0.5)))
functions = with_numba.run_steps, with_numba.evaluate
print(sum(sum(one.stats.cache_hits.values()) for one in functions))
print(sum(sum(one.stats.cache_misses.values()) for one in functions))
"""


@pytest.mark.slow
def test_a_second_start_compiles_nothing():
    training = Training(Network((3,), 5, 2), 0.1, 32, 1, data=DATA_SET)
    trained(training, sparse_data(5, 2, 0.5), 1)  # compiles, unless an earlier test did
    assert said_by(SECOND_START).split() == ["2", "0"], "hits and misses of the cache on disk"


TRAINED = """
import hashlib
from lib.model.backends import with_numba
from lib.model.backends.with_numba import run_steps
from lib.model.spec import Network, Training
from tests.model.backends.test_with_numba import DATA_SET, sparse_data
*_, last = with_numba.train(Training(Network((20, 4), 50, 10), 0.1, 32, 1, data=DATA_SET), sparse_data(50, 10, 0.5))
as_bytes = b"".join(array.tobytes() for layer in last.parameters() for array in layer)
print(len(run_steps.stats.cache_hits), hashlib.sha256(as_bytes).hexdigest())
"""


@pytest.mark.release
def test_compiled_and_loaded_programs_train_bit_identically(tmp_path):
    (first, compiled), (second, loaded) = (said_by(TRAINED, NUMBA_CACHE_DIR=str(tmp_path)).split() for _ in range(2))
    assert (first, second) == ("0", "1"), "the second loads what the first has compiled"
    assert loaded == compiled
