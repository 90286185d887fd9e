"""Training with Numba, which compiles loops written in Python: a whole epoch in one call that skips the images' zeros.

Four fifths of MNIST's pixels are zero. Their weights are neither read nor updated, so a step does a fifth of the first
layer's work, by the same formulas; where few inputs are zero, it has no advantage. The loops are in
`lib.model.backends.sparse`. They are compiled once a machine, not once a network: what is compiled is kept on disk.

**Threads.** A batch is divided among as many threads as have `FLOPS_PER_THREAD` each; less takes longer to divide than
to compute.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numba import config

from lib.model.backends.base import Event, FirstCall, Parameters, epochs, initial_parameters, next_chunk
from lib.model.backends.sparse import (
    APART,
    IN_CACHE,
    LANES,
    TOGETHER,
    Columns,
    Model,
    SparseRows,
    SparseWorkspace,
    columns_of,
    evaluate,
    rows_of,
    run_steps,
    shares,
    tile_for,
)
from lib.model.data.mnist import Data, aligned, batch_starts
from lib.model.hardware.machine import usable_cores
from lib.model.spec import Network, Training

# Two threads are quicker from about 2.5 MFLOP a step on, and a fifth quicker from 3.6: measured on two cores with 128
# to 1,024 neurons in one or two layers, at batch sizes 8 to 32. Less is not worth the waiting for each other where
# another program wants a core.
FLOPS_PER_THREAD = 1.8e6
IMAGES_PER_THREAD = 4
SHARE_NOT_ZERO = 0.2  # of MNIST's inputs


def padded(width: int) -> int:
    """A width in whole vectors."""
    return -(-width // LANES) * LANES


def in_lines(array: np.ndarray) -> np.ndarray:
    """A copy that begins with a line of the cache, as each padded row then does.

    NumPy's own begins anywhere: vectors that lie across two lines take longer to read and write.
    """
    copy = aligned(array.shape, array.dtype.type)
    copy[...] = array
    return copy


def packed(parameters: Parameters, batch_size: int) -> Model:
    """Copies of the parameters as the kernels expect them, and where each layer's arrays begin."""
    weights, biases, layers, room = [], [], [], max(batch_size, TOGETHER)
    place = np.zeros(4, np.int64)  # in the flat arrays of weights, biases, activations and errors
    for index, (matrix, row) in enumerate(parameters):
        width = matrix.shape[1]
        rows = matrix.T if index else matrix  # deeper layers: (outputs, inputs)
        flat = np.zeros((rows.shape[0], padded(rows.shape[1])), np.float32)
        flat[:, : rows.shape[1]] = rows
        weights.append(flat.ravel())
        biases.append(np.pad(row, (0, padded(width) - width)))
        layers.append((width, padded(width), *place))
        place += flat.size, padded(width), room * padded(width), room * padded(width)
    return Model(in_lines(np.concatenate(weights)), in_lines(np.concatenate(biases)), np.array(layers, np.int64))


def unpacked(model: Model, network: Network) -> Parameters:
    """Copies of the parameters as `lib.model.backends.base` defines them."""
    found = []
    for index, (inputs, outputs) in enumerate(network.shapes):
        weights, biases = model.layers[index, 2:4]
        n_rows, width = (outputs, inputs) if index else (inputs, outputs)
        rows = model.weights[weights : weights + n_rows * padded(width)].reshape(n_rows, -1)[:, :width]
        matrix = np.ascontiguousarray(rows.T if index else rows)
        found.append(
            (matrix.copy() if matrix.base is not None else matrix, model.biases[biases : biases + outputs].copy())
        )
    return found


def workspace(network: Network, batch_size: int, threads: int) -> SparseWorkspace:
    """Zeros for one batch size."""
    n_activations = max(batch_size, TOGETHER) * sum(map(padded, network.widths[1:]))
    return SparseWorkspace(
        in_lines(np.zeros(n_activations, np.float32)),
        in_lines(np.zeros(n_activations, np.float32)),
        in_lines(np.zeros((threads, IN_CACHE * 2 * LANES), np.float32)),
        in_lines(np.zeros((threads, APART), np.float64)),
    )


@lru_cache(maxsize=2)
def _rows(data: Data) -> tuple[SparseRows, SparseRows]:
    """The images for training and validation without their zeros."""
    return SparseRows(*rows_of(data.x_train)), SparseRows(*rows_of(data.x_validation))


@lru_cache(maxsize=2)
def _columns(data: Data, tile: int) -> Columns:
    """The images for training, sorted by pixel; of none where tiles have no images."""
    rows, _ = _rows(data)
    if tile:
        return Columns(*columns_of(rows, data.x_train.shape[1], tile))
    return Columns(np.zeros((0, 1), np.int64), rows.pixels[:0], rows.values[:0])


@lru_cache(maxsize=2)
def _shares(data: Data, threads: int) -> np.ndarray:
    """Which pixels each thread updates."""
    return shares(_rows(data)[0], data.x_train.shape[1], threads)


class Given(NamedTuple):
    """What the steps of a training read and write, as `run_steps` takes it."""

    images: SparseRows
    labels: np.ndarray  # int32, (images,)
    by_pixel: Columns
    tile: int
    pixels: np.ndarray  # int64, (threads + 1,), see `shares`
    model: Model
    work: SparseWorkspace
    rate: np.float32
    batch_size: int


def threads_for(training: Training) -> int:
    """Among how many threads a batch is divided."""
    first, *deeper = (inputs * outputs for inputs, outputs in training.network.shapes)
    flops = 2 * training.batch_size * (2 * SHARE_NOT_ZERO * first + 3 * sum(deeper))
    worth = min(training.batch_size // IMAGES_PER_THREAD, int(flops / FLOPS_PER_THREAD))
    return max(1, min(config.NUMBA_NUM_THREADS, usable_cores(), worth))


def given(training: Training, data: Data, threads: int, parameters: Parameters | None = None) -> Given:
    """A training's images, a model that begins with these parameters or the usual ones, and room for its steps."""
    size, network = training.batch_size, training.network
    (images, _), tile = _rows(data), tile_for(size)
    return Given(
        images,
        data.y_train,
        _columns(data, tile),
        tile,
        _shares(data, threads),
        packed(parameters or initial_parameters(network, training.seed), size),
        workspace(network, size, threads),
        np.float32(training.learning_rate),
        size,
    )


def train(
    training: Training, data: Data, device: str = "cpu", parameters: Parameters | None = None, first_epoch: int = 0
) -> Iterator[Event]:
    """See `lib.model.backends.base`. `device` is always the CPU here."""
    clock, size, network = time.perf_counter, training.batch_size, training.network
    started, threads = clock(), threads_for(training)
    _, validation = _rows(data)
    run_on = given(training, data, threads, parameters)
    model, work = run_on.model, run_on.work

    with ThreadPoolExecutor(max(1, threads - 1)) as others:

        def steps(starts: np.ndarray, done: int, stop: int) -> np.ndarray:
            losses = np.empty(len(starts), np.float32)
            in_threads(others, threads, starts, done, stop, losses, *run_on)
            return losses[done:stop]

        def chunk(_epoch: int, starts: np.ndarray, done: int, step_s: float | None) -> tuple[np.ndarray, float]:
            stop = done + next_chunk(len(starts) - done, step_s)
            before = clock()
            losses = steps(starts, done, stop)
            return losses, clock() - before

        def validate() -> tuple[float, float]:
            n = len(data.y_validation)
            loss, right = evaluate(validation, data.y_validation, model, work)
            return loss / n, right / n

        # Zero steps and no image: both are compiled, or loaded from disk.
        steps(batch_starts(len(data.x_train), size, training.seed, first_epoch), 0, 0)
        evaluate(validation, data.y_validation[:0], model, work)
        yield FirstCall(clock() - started)
        copy = partial(unpacked, model, network)
        yield from epochs(training, len(data.x_train), first_epoch, chunk, validate, copy)


def in_threads(others: ThreadPoolExecutor, threads: int, *arguments) -> None:
    """The same steps in all threads, of which this is the first; they count each other's arrivals.

    Args:
        others: Has the other threads.
        threads: All of them.
        arguments: Of `run_steps` from `starts` on.
    """
    counter = np.zeros(1, np.int64)
    running = [others.submit(run_steps, share, threads, counter, *arguments) for share in range(1, threads)]
    run_steps(0, threads, counter, *arguments)
    for one in running:
        one.result()
