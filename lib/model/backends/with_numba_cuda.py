"""Training in one launch: a cooperative Numba kernel runs all steps of an epoch, and the host waits for it once.

Each block owns some neurons of each hidden layer. It keeps its slice of the first layer's weights in shared memory, and
writes its neurons' activations for all blocks to read: one grid synchronisation per hidden layer. Every block then
computes logits, loss and the output layer's gradient itself, and updates its own copy of that layer: all copies stay
equal, which is checked after each epoch. Errors propagate back through the other hidden layers with one more
synchronisation each; the first layer needs none. Blocks exchange data through two alternating buffers, so a fast block
may begin the next step while a slow one still reads.

**Sums** have a fixed order, so the same training gives the same bits: each of n lanes adds every n-th product, then one
thread adds the lanes' sums. **Indices** in inner loops are constants behind a slice, and tiles read beyond their last
row, because Numba computes any other index in 64 bits and checks its sign. This cut a step on an H200 from 24 to 14 μs.
**Barriers** occur only in the kernel and in `_product`, under no condition that differs between threads of a block, or
between blocks where the grid waits. Validation runs in NumPy on the host.
"""

# pyright: reportArgumentType=false, reportOptionalSubscript=false, reportOperatorIssue=false
# Only Numba's compiler knows the types of `cuda` in a kernel. numba-cuda is in requirements-gpu.txt.

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, void

from lib.model.backends.base import CannotTrain, Loop, Parameters, backend, next_chunk
from lib.model.backends.with_numpy import evaluate
from lib.model.data.mnist import Data
from lib.model.spec import Network, Training

THREADS, LANES = 256, 64  # threads per block, and at most per sum
TILE, SUMS = 4, 16  # side of a tile, whose sums share their reads; TILE²
# How many inputs of a sum, and images, a thread reads before using any, to overlap the latencies.
INPUTS_AHEAD, IMAGES_AHEAD = 14, 8
LINEAR, RELU, MASKED = 0, 1, 2  # endings of a sum: add the bias; add it, then ReLU; zero where the activation is

Array = Any  # in GPU memory
device_function = partial(cuda.jit, device=True, forceinline=True)


@dataclass(frozen=True)
class LaunchPlan:
    """How a network is divided among blocks.

    Args:
        network: The network to train.
        batch_size: Images per step.
        blocks: Blocks in the grid, all of which must run at once.
        each: Neurons per block in each hidden layer; the last block may have fewer.
        loss_in_shared: Whether a batch's logits also fit into shared memory.
        threads: Threads per block.
        most_lanes: Largest number of threads that share a sum.
    """

    network: Network
    batch_size: int
    blocks: int
    each: tuple[int, ...]
    loss_in_shared: bool
    threads: int = THREADS
    most_lanes: int = LANES

    @property
    def lanes(self) -> tuple[int, int, int]:
        """Threads that share a sum in the first hidden layer, in others, and in the output layer."""
        network, row_tiles = self.network, -(-self.batch_size // TILE)

        def sharing(n: int, columns: int) -> int:
            return _divisor(n, max(1, min(self.most_lanes, self.threads // (row_tiles * -(-columns // TILE)))))

        widest = max(self.each, default=1)
        return (
            sharing(network.n_inputs, widest),
            sharing(math.gcd(*network.hidden) or 1, widest),
            sharing(network.widths[-2], network.n_classes),
        )

    @property
    def n_partial(self) -> int:
        """Partial sums per block."""
        return self.threads * SUMS * 9 // 8  # rows of eight lanes have the most padding

    @property
    def n_slice(self) -> int:
        """First-layer weights and biases held by a block, and what its last tile reads beyond them."""
        width = self.each[0] if self.each else 0
        whole_tiles = width if width < TILE else -(-width // TILE) * TILE  # a narrower tile reads only rows that exist
        return whole_tiles * (self.network.n_inputs + 1)

    @property
    def n_loss(self) -> int:
        """A batch's logits, and each thread's loss."""
        return self.batch_size * self.network.n_classes + self.threads

    @property
    def shared_bytes(self) -> int:
        return 4 * (self.n_partial + self.n_slice + (self.n_loss if self.loss_in_shared else 0))


def plan(network: Network, batch_size: int, processors: int, shared_bytes: int, threads: int, lanes: int) -> LaunchPlan:
    """Divide a network among at most as many blocks as the card has multiprocessors, or more if a slice needs it.

    Args:
        network: The network to train.
        batch_size: Images per step.
        processors: Multiprocessors of the card.
        shared_bytes: Shared memory available per block.
        threads: Threads per block.
        lanes: Largest number of threads that share a sum.

    Raises:
        CannotTrain: Not even one neuron fits into the shared memory.
    """
    alone = LaunchPlan(network, batch_size, 1, (), False, threads, lanes)
    neuron_bytes = 4 * (network.n_inputs + 1)
    blocks, each = 1, ()
    if hidden := network.hidden:
        room = (shared_bytes - alone.shared_bytes) // neuron_bytes
        room -= room % TILE if room > TILE else 0
        if room < 1:
            raise CannotTrain(
                f"shared memory: expected at least {alone.shared_bytes + neuron_bytes:,} bytes a block for a neuron of"
                f" {network.n_inputs:,} inputs, got {shared_bytes:,}; choose data with fewer inputs"
            )
        tiles = -(-max(hidden) // (TILE * processors))
        blocks = max(-(-max(hidden) // (TILE * tiles)), -(-hidden[0] // room))
        each = tuple(-(-width // blocks) for width in hidden)
    found = LaunchPlan(network, batch_size, blocks, each, True, threads, lanes)
    return found if found.shared_bytes <= shared_bytes else replace(found, loss_in_shared=False)


@device_function
def _row_length(lanes):
    """Row length of partial sums: odd if there are many lanes, so no two threads read the same bank."""
    return lanes | 1 if lanes >= 8 else lanes


@device_function
def _partial_sums(
    thread, threads, lanes, first, n_rows, n_columns, n, x, x_at, w, w_at, w_stride, sums, ahead, inputs_ahead, partials
):
    """Sum a tile's products x[row, k] w[column, k], one tile per group; each lane adds every `lanes`-th product."""
    group, lane = thread // lanes, thread % lanes
    row_tiles, column_tiles = (n_rows + TILE - 1) // TILE, (n_columns + TILE - 1) // TILE
    tile, row_length = first + group, _row_length(lanes)
    if group >= threads // lanes or tile >= row_tiles * column_tiles:
        return
    row, column = tile % row_tiles * TILE, tile // row_tiles * TILE
    for s in range(SUMS):
        sums[s] = 0
    for begin in range(lane, n, lanes * inputs_ahead):
        inputs, weights = x[x_at + row * n + begin :], w[w_at + column * w_stride + begin :]
        for u in range(inputs_ahead):
            for i in range(TILE):
                ahead[u * TILE + i] = inputs[i * n + u * lanes]
        for u in range(inputs_ahead):
            for j in range(TILE):
                weight = weights[min(j, n_columns - 1) * w_stride + u * lanes]
                for i in range(TILE):
                    sums[i * TILE + j] += ahead[u * TILE + i] * weight
    mine = partials[group * SUMS * row_length + lane :]
    for s in range(SUMS):
        mine[s * row_length] = sums[s]


@device_function
def _add_lanes(
    thread, threads, lanes, first, n_rows, n_columns, count, n, kind, partials, w, w_at, w_stride, mask, out, out_at,
    out_stride,
):  # fmt: skip
    """Add the lanes of each sum, in order, apply the ending, and store it."""
    row_tiles, column_tiles = (n_rows + TILE - 1) // TILE, (n_columns + TILE - 1) // TILE
    for index in range(thread, threads // lanes * SUMS, threads):
        tile, s = first + index // SUMS, index % SUMS
        row, column = tile % row_tiles * TILE + s // TILE, tile // row_tiles * TILE + s % TILE
        if tile < row_tiles * column_tiles and row < n_rows and column < count:
            total, by_lane = np.float32(0), partials[index * _row_length(lanes) :]
            for lane in range(lanes):
                total += by_lane[lane]
            place = out_at + row * out_stride + column
            if kind == MASKED:
                total = total if mask[place] > 0 else np.float32(0)
            else:
                total += w[w_at + column * w_stride + n]  # the bias
                if kind == RELU and total < 0:  # NaN stays NaN
                    total = np.float32(0)
            out[place] = total


@device_function
def _product(
    thread, threads, lanes, n_rows, n_columns, count, n, kind, x, x_at, w, w_at, w_stride, mask, out, out_at,
    out_stride, sums, ahead, inputs_ahead, partials,
):  # fmt: skip
    """Multiply x (rows, n) by w (columns, n) with all threads of a block; they leave it together.

    Only the first `count` columns are written.
    """
    tiles = ((n_rows + TILE - 1) // TILE) * ((n_columns + TILE - 1) // TILE)
    for first in range(0, tiles, threads // lanes):
        _partial_sums(
            thread, threads, lanes, first, n_rows, n_columns, n, x, x_at, w, w_at, w_stride, sums, ahead, inputs_ahead,
            partials,
        )  # fmt: skip
        cuda.syncthreads()
        _add_lanes(
            thread, threads, lanes, first, n_rows, n_columns, count, n, kind, partials, w, w_at, w_stride, mask, out,
            out_at, out_stride,
        )  # fmt: skip
        cuda.syncthreads()


@device_function
def _loss(thread, threads, n_images, n_classes, logits, y, y_at, exponentials):
    """Replace each image's logits with the mean loss's gradient; after them, store each thread's part of the loss."""
    total, share = np.float32(0), np.float32(1) / np.float32(n_images)
    for image in range(thread, n_images, threads):
        mine, label = logits[image * n_classes :], y[y_at + image]
        largest, right, together = mine[0], mine[label], np.float32(0)
        for c in range(n_classes):
            exponentials[c] = mine[c]
            if not exponentials[c] <= largest:  # true for NaN
                largest = exponentials[c]
        for c in range(n_classes):
            exponentials[c] = math.exp(exponentials[c] - largest)
            together += exponentials[c]
        each = share / together
        for c in range(n_classes):
            mine[c] = exponentials[c] * each - (share if c == label else np.float32(0))
        total += math.log(together) - (right - largest)
    logits[n_images * n_classes + thread] = total


@device_function
def _mean_loss(thread, threads, n_images, n_classes, logits, losses, step):
    """Store the batch's mean loss, using the last thread, which has the least other work."""
    if thread == threads - 1:
        total, parts = np.float32(0), logits[n_images * n_classes :]
        for other in range(min(threads, n_images)):
            total += parts[other]
        losses[step] = total / np.float32(n_images)


@device_function
def _errors(
    thread, threads, n_images, n_classes, n, lo, each, count, by_logits, last, last_at, activations, deltas, at
):
    """Compute a block's errors in the last hidden layer, (images, n), from the loss's gradient w.r.t. the logits."""
    for index in range(thread, n_images * each, threads):
        image, column = index // each, index % each
        if column < count:
            gradient, weights = by_logits[image * n_classes :], last[last_at + lo + column :]
            total = np.float32(0)
            for c in range(n_classes):
                total += gradient[c] * weights[c * (n + 1)]
            place = at + image * n + lo + column
            deltas[place] = total if activations[place] > 0 else np.float32(0)


@device_function
def _descend(
    thread, threads, rate, n_images, n, n_columns, count, x, x_at, d, d_at, d_stride, w, w_at, w_stride, sums, ahead,
    images_ahead,
):  # fmt: skip
    """w[column, k] -= rate × the sum over images of x[image, k] d[image, column], for the first `count` columns."""
    apart = (n + TILE - 1) // TILE  # stride between a thread's weights, so neighbouring threads read neighbouring ones
    for item in range(thread, apart * ((n_columns + TILE - 1) // TILE), threads):
        first, column = item % apart, item // apart * TILE
        for s in range(SUMS):
            sums[s] = 0
        for begin in range(0, n_images, images_ahead):
            inputs, errors = x[x_at + begin * n + first :], d[d_at + begin * d_stride + column :]
            for u in range(images_ahead):
                for i in range(TILE):
                    ahead[u * TILE + i] = inputs[u * n + i * apart]
            for u in range(images_ahead):
                for j in range(TILE):
                    error = errors[u * d_stride + min(j, n_columns - 1)]
                    for i in range(TILE):
                        sums[i * TILE + j] += ahead[u * TILE + i] * error
        weights = w[w_at + column * w_stride + first :]
        for i in range(TILE):
            for j in range(TILE):
                if first + i * apart < n and column + j < count:
                    weights[j * w_stride + i * apart] -= rate * sums[i * TILE + j]


@device_function
def _descend_biases(thread, threads, rate, n_images, n, count, d, d_at, d_stride, w, w_at, w_stride):
    """Like `_descend`, for the biases, using the last threads."""
    for column in range(threads - 1 - thread, count, threads):
        total, errors = np.float32(0), d[d_at + column :]
        for image in range(n_images):
            total += errors[image * d_stride]
        w[w_at + column * w_stride + n] -= rate * total


@device_function
def _copy(thread, threads, n, source, source_at, target, target_at):
    for index in range(thread, n, threads):
        target[target_at + index] = source[source_at + index]


SIGNATURE = void(
    float32[::1], int32[::1], int32[::1], int64, int64, float32,
    float32[::1], float32[::1], float32[::1], float32[::1], float32[::1], float32[:, ::1], float32[::1],
)  # fmt: skip


@lru_cache(maxsize=16)
def compiled(divided: LaunchPlan) -> Any:
    """Compile the plan's kernel for the card, with all sizes as constants."""
    network, size, depth = divided.network, divided.batch_size, len(divided.network.hidden)
    threads, n_partial, n_slice = divided.threads, divided.n_partial, divided.n_slice
    loss_in_shared, n_inputs, n_classes = divided.loss_in_shared, network.n_inputs, network.n_classes
    # Without hidden layers there is nothing to loop over, but the indexed tuples still need a type.
    widths, each = network.hidden or (1,), divided.each or (0,)
    n_last = network.widths[-2]
    weights_at, outgoing_at = _offsets(network)
    exchange_at = (0, *np.cumsum([size * width for width in widths]).tolist())
    in_buffer = exchange_at[-1]
    (lanes, middle_lanes, last_lanes), images_ahead = divided.lanes, _divisor(size, IMAGES_AHEAD)
    inputs_ahead, middle_ahead, last_ahead = (
        _divisor(n // sharing, INPUTS_AHEAD)
        for n, sharing in zip((n_inputs, math.gcd(*widths), n_last), divided.lanes, strict=True)
    )
    n_ahead = TILE * max(inputs_ahead, middle_ahead, last_ahead, images_ahead)

    def epoch(
        x, y, starts, begin, end, rate, weights, outgoing, copies, activations, deltas, scratch, losses
    ):  # fmt: skip
        """Run steps `begin` to `end` (exclusive); all arrays but `scratch`, (blocks, …), are flat."""
        thread, block, grid = cuda.threadIdx.x, cuda.blockIdx.x, cuda.cg.this_grid()
        sums, ahead = cuda.local.array(SUMS, float32), cuda.local.array(n_ahead, float32)
        exponentials = cuda.local.array(n_classes, float32)
        shared = cuda.shared.array(0, float32)
        partials, own = shared[:n_partial], shared[n_partial : n_partial + n_slice]
        logits = shared[n_partial + n_slice :] if loss_in_shared else scratch[block]
        last_at, row = block * n_classes * (n_last + 1), n_inputs + 1
        lo = min(block * each[0], widths[0])
        count = min(each[0], widths[0] - lo)
        _copy(thread, threads, count * row, weights, lo * row, own, 0)
        cuda.syncthreads()
        for step in range(begin, end):
            first, buffer = starts[step], step % 2 * in_buffer
            images = first * n_inputs
            if depth:
                _product(
                    thread, threads, lanes, size, each[0], count, n_inputs, RELU, x, images, own, 0, row, activations,
                    activations, buffer + lo, widths[0], sums, ahead, inputs_ahead, partials,
                )  # fmt: skip
                grid.sync()
            for layer in range(1, depth):
                n, width, below = widths[layer - 1], widths[layer], buffer + exchange_at[layer - 1]
                start = min(block * each[layer], width)
                _product(
                    thread, threads, middle_lanes, size, each[layer], min(each[layer], width - start), n, RELU,
                    activations, below, weights, weights_at[layer] + start * (n + 1), n + 1, activations, activations,
                    buffer + exchange_at[layer] + start, width, sums, ahead, middle_ahead, partials,
                )  # fmt: skip
                grid.sync()
            source, source_at = (activations, buffer + exchange_at[depth - 1]) if depth else (x, images)
            _product(
                thread, threads, last_lanes, size, n_classes, n_classes, n_last, LINEAR, source, source_at, copies,
                last_at, n_last + 1, source, logits, 0, n_classes, sums, ahead, last_ahead, partials,
            )  # fmt: skip
            _loss(thread, threads, size, n_classes, logits, y, first, exponentials)
            cuda.syncthreads()
            if depth:
                top = min(block * each[depth - 1], n_last)
                _errors(
                    thread, threads, size, n_classes, n_last, top, each[depth - 1], min(each[depth - 1], n_last - top),
                    logits, copies, last_at, activations, deltas, source_at,
                )  # fmt: skip
            cuda.syncthreads()
            if block == 0:
                _mean_loss(thread, threads, size, n_classes, logits, losses, step)
            for layer in range(depth - 1, 0, -1):
                n, width, below = widths[layer - 1], widths[layer], buffer + exchange_at[layer - 1]
                start = min(block * each[layer - 1], n)
                grid.sync()
                _product(
                    thread, threads, middle_lanes, size, each[layer - 1], min(each[layer - 1], n - start), width,
                    MASKED, deltas, buffer + exchange_at[layer], outgoing, outgoing_at[layer] + start * width, width,
                    activations, deltas, below + start, n, sums, ahead, middle_ahead, partials,
                )  # fmt: skip
            _descend(
                thread, threads, rate, size, n_last, n_classes, n_classes, source, source_at, logits, 0, n_classes,
                copies, last_at, n_last + 1, sums, ahead, images_ahead,
            )  # fmt: skip
            _descend_biases(
                thread, threads, rate, size, n_last, n_classes, logits, 0, n_classes, copies, last_at, n_last + 1
            )
            for layer in range(1, depth):
                n, width, below, here = (
                    widths[layer - 1], widths[layer], buffer + exchange_at[layer - 1], buffer + exchange_at[layer],
                )  # fmt: skip
                start = min(block * each[layer], width)
                _descend(
                    thread, threads, rate, size, n, each[layer], min(each[layer], width - start), activations, below,
                    deltas, here + start, width, weights, weights_at[layer] + start * (n + 1), n + 1, sums, ahead,
                    images_ahead,
                )  # fmt: skip
                _descend_biases(
                    thread, threads, rate, size, n, min(each[layer], width - start), deltas, here + start, width,
                    weights, weights_at[layer] + start * (n + 1), n + 1,
                )  # fmt: skip
                start = min(block * each[layer - 1], n)
                _descend(
                    thread, threads, rate, size, width, each[layer - 1], min(each[layer - 1], n - start), deltas, here,
                    activations, below + start, n, outgoing, outgoing_at[layer] + start * width, width, sums, ahead,
                    images_ahead,
                )  # fmt: skip
            if depth:
                _descend(
                    thread, threads, rate, size, n_inputs, each[0], count, x, images, deltas, buffer + lo, widths[0],
                    own, 0, row, sums, ahead, images_ahead,
                )  # fmt: skip
                _descend_biases(
                    thread, threads, rate, size, n_inputs, count, deltas, buffer + lo, widths[0], own, 0, row
                )
            cuda.syncthreads()
        _copy(thread, threads, count * row, own, 0, weights, lo * row)

    return cuda.jit(SIGNATURE)(epoch)


def _divisor(n: int, most: int) -> int:
    """The largest divisor of `n` up to `most`."""
    return next(one for one in range(min(n, most), 0, -1) if n % one == 0)


def _offsets(network: Network) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets of each hidden layer's weights, by neuron; and those by source neuron."""
    incoming = np.cumsum([0, *((inputs + 1) * outputs for inputs, outputs in network.shapes[:-1])])
    outgoing = np.cumsum([0, 0, *(inputs * outputs for inputs, outputs in network.shapes[1:-1])])
    return tuple(incoming.tolist()), tuple(outgoing.tolist())


class CardArrays:
    """A network's parameters on the card, divided among blocks, and the buffers of its steps.

    Hidden layers are stored neuron by neuron, each neuron's bias after its weights. Layers between two hidden ones have
    two copies, by target neuron and by source neuron; the output layer has one copy per block.
    """

    def __init__(self, divided: LaunchPlan, parameters: Parameters) -> None:
        self.plan = divided
        rows = [np.column_stack((weights.T, biases)).ravel() for weights, biases in parameters]
        middle = [weights.ravel() for weights, _ in parameters[1:-1]]
        exchange = 2 * divided.batch_size * sum(divided.network.hidden)
        beyond = max(divided.network.widths) + 1
        self.weights, self.outgoing = _to_card(rows[:-1], beyond), _to_card(middle, beyond)
        self.copies = _to_card([np.tile(rows[-1], divided.blocks)], beyond)
        self.activations, self.deltas = (_to_card([np.zeros(exchange, np.float32)], beyond) for _ in range(2))
        n_scratch = 1 if divided.loss_in_shared else divided.n_loss
        self.scratch = cuda.to_device(np.zeros((divided.blocks, n_scratch), np.float32))

    @property
    def arrays(self) -> tuple[Array, ...]:
        """In the order of the kernel's arguments."""
        return self.weights, self.outgoing, self.copies, self.activations, self.deltas, self.scratch

    def parameters(self) -> Parameters:
        """Copy the parameters to host memory.

        Raises:
            RuntimeError: The copies of a layer differ.
        """
        network, found = self.plan.network, []
        inputs, outputs = network.shapes[-1]
        copies = self.copies.copy_to_host()[: self.plan.blocks * (inputs + 1) * outputs].reshape(self.plan.blocks, -1)
        flat = np.concatenate(
            [self.weights.copy_to_host()[: sum((n + 1) * m for n, m in network.shapes[:-1])], copies[0]]
        )
        for inputs, outputs in network.shapes:
            size = (inputs + 1) * outputs
            matrix, flat = flat[:size].reshape(outputs, inputs + 1), flat[size:]
            found.append((np.ascontiguousarray(matrix[:, :-1].T), matrix[:, -1].copy()))
        middle = np.concatenate([np.zeros(0, np.float32), *(weights.ravel() for weights, _ in found[1:-1])])
        # A compiler may round a middle layer's two sums differently; all sums of the output layer use the same code.
        alike = np.allclose(middle, self.outgoing.copy_to_host()[: len(middle)], rtol=1e-4, atol=1e-5, equal_nan=True)
        if not alike or not (copies.view(np.uint32) == copies.view(np.uint32)[0]).all():
            raise RuntimeError(
                f"expected identical copies of the weights in all {self.plan.blocks} blocks, but they differ; train"
                " with another backend, and report the card and its driver"
            )
        return found


def _to_card(arrays: list[np.ndarray], row: int) -> Array:
    """Concatenate all arrays, plus unused padding for a tile that reads beyond the last row."""
    return cuda.to_device(np.concatenate([*arrays, np.zeros(TILE * row, np.float32)]))


@lru_cache(maxsize=1)
def images(data: Data) -> tuple[Array, Array]:
    """Training images, flat, and their labels, copied to the card once."""
    return _to_card([data.x_train.ravel()], data.x_train.shape[1]), cuda.to_device(data.y_train)


@backend
def train(training: Training, data: Data, _device: str, parameters: Parameters) -> Loop:
    """Train on the GPU. See `lib.model.backends.base`.

    Raises:
        CannotTrain: The blocks cannot all run at once, or a neuron's weights do not fit into one.
        RuntimeError: The card computed wrongly.
    """
    clock, rate, card = time.perf_counter, np.float32(training.learning_rate), cuda.get_current_device()
    divided = plan(
        training.network, training.batch_size, card.MULTIPROCESSOR_COUNT, card.MAX_SHARED_MEMORY_PER_BLOCK, THREADS,
        LANES,
    )  # fmt: skip
    kernel = compiled(divided)
    most = kernel.overloads[SIGNATURE.args].max_cooperative_grid_blocks(THREADS, divided.shared_bytes)
    if divided.blocks > most:
        raise CannotTrain(
            f"one launch of {training.network.label} needs {divided.blocks:,} blocks to run at once, but this card runs"
            f" {most:,} with {divided.shared_bytes:,} bytes of shared memory; choose fewer neurons, or another backend"
        )
    current = CardArrays(divided, parameters)
    x, y = images(data)
    launch = kernel[divided.blocks, THREADS, 0, divided.shared_bytes]
    steps: dict[int, tuple[Array, Array]] = {}  # for the current epoch: first images of its batches, and their losses

    def run(starts: np.ndarray, begin: int, end: int) -> Array:
        if begin == 0:
            steps[0] = cuda.to_device(starts), cuda.to_device(np.zeros(len(starts), np.float32))
        on_card, losses = steps[0]
        launch(x, y, on_card, begin, end, rate, *current.arrays, losses)
        cuda.synchronize()
        return losses

    def chunk(_epoch: int, starts: np.ndarray, done: int, step_s: float | None) -> tuple[np.ndarray, float]:
        end = done + next_chunk(len(starts) - done, step_s)
        before = clock()
        losses = run(starts, done, end)
        chunk_s = clock() - before
        return losses.copy_to_host()[done:end], chunk_s

    def validate() -> tuple[float, float]:
        return evaluate(current.parameters(), data.x_validation, data.y_validation)

    run(np.zeros(1, np.int32), 0, 0)
    return chunk, validate, current.parameters
