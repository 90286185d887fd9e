"""Training with Numba, which compiles Python loops: a whole epoch in one call that skips the images' zeros.

Four fifths of MNIST's pixels are zero. Their weights are neither read nor updated, so a step does a fifth of the first
layer's work, by the same formulas; with few zeros, there is no advantage. The loops are compiled once per machine, not
per network, and cached on disk.

**Storage.** Each image is stored as the indices and values of its nonzero pixels (compressed sparse rows). Gradients
are added up weight by weight, so for them the entries of each `tile` of images are also sorted by pixel.

**Sums.** Every sum here adds rows of a matrix, each times a number (`add_chosen_rows`): a hidden layer is the sum of
the weight rows of an image's pixels, times their values; a pixel's new weights are its old ones plus the errors of the
images that contain it. A zero pixel is in neither sum. Deeper layers are products of dense matrices over several images
(`fill_products`, `add_products`): image by image, each would read all of their weights again. Arrays are flat, and rows
are padded with zeros to whole vectors. The first layer's weights are (pixels, width), those of deeper layers (outputs,
inputs). One compiled program serves all networks, batch sizes and rates.

**Vectors.** Numba vectorises a loop, but stores a row after each addition to it; with a few LLVM instructions, a row is
added up in registers, which takes half as long.

**Threads** run the same steps, each on its share of the images, then of the weights, so no thread waits for a lock:
they synchronise twice per step. A batch is divided among as many threads as have `FLOPS_PER_THREAD` each; smaller
shares take longer to divide than to compute.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from scipy.sparse import csr_array

from lib.model.backends.base import Loop, Parameters, backend, next_chunk
from lib.model.data.mnist import Data, aligned, batch_starts
from lib.model.hardware.machine import usable_cores
from lib.model.spec import Network, Training

# For the compiling processor: 16 with AVX-512, else 8, one AVX2 register or two smaller ones.
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
_FLOATS, _INDEX = ir.VectorType(ir.FloatType(), LANES), ir.IntType(32)
ONE, TWO, FOUR, EIGHT = ((0,) * n for n in (1, 2, 4, 8))  # numbers of vectors, for the compiler
_ZERO = ir.Constant(_FLOATS, [0.0] * LANES)
# We fix the order of every sum instead of leaving it to the compiler (`fastmath`), which picks another one when it
# inlines a function: results would differ between a freshly compiled program and a cached one. Without a cache folder
# (see `lib.model.backends.registry`), Numba would write next to this file.
OPTIONS = {"boundscheck": False, "error_model": "numpy", "nogil": True, "cache": bool(config.CACHE_DIR)}
IN_CACHE = 128  # matrix rows per panel, with two vectors of each
SMALLEST_SORTED = 16  # images per batch from which sorting them by pixel pays
NO_TILE = 2**31 - 1  # images: no batch contains so large a tile
TOGETHER = 32  # images taken through all layers together
APART = 16  # numbers between two threads' results, which keeps them in different cache lines
SPINS = 2_000  # checks of a counter before a thread yields its core, about 5 μs
# Columns of `Model.layers`: the layer's width, its padded width, and the offsets of its arrays.
WIDTH, PADDED, WEIGHTS, BIASES, OUTPUTS = range(5)  # outputs: activations and errors
give_way = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


class Vector(types.Type):
    """`LANES` float32 in a register. A tuple of them is `vectors` below."""


VECTOR = Vector(f"Vector{LANES}")
register_model(Vector)(partial(models.PrimitiveModel, be_type=_FLOATS))


def emits(returns: Any) -> Callable:
    """Decorate a function that emits LLVM instructions, so that compiled code can call it.

    It gets arrays as the address of their data, and tuples as lists; it may return a list, for a tuple.

    Args:
        returns: The type of its result, or a function of its arguments' types.
    """

    def callable_from_compiled(emit: Callable) -> Callable:
        @wraps(emit)
        def typed(_context, *kinds):
            def code(context, builder, signature, args):
                result = emit(builder, *map(partial(_simpler, context, builder), signature.args, args))
                if result is None:
                    return context.get_dummy_value()
                return cgutils.pack_array(builder, result) if isinstance(result, list) else result

            return (returns if isinstance(returns, types.Type) else returns(*kinds))(*kinds), code

        return intrinsic(typed)

    return callable_from_compiled


def _simpler(context, builder, kind, value):
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value).data
    return cgutils.unpack_tuple(builder, value) if isinstance(kind, types.UniTuple) else value


def _offsets(builder, offset, apart, count: int) -> Iterator:
    for _ in range(count):
        yield offset
        offset = builder.add(offset, apart)


def _fill(builder, number):
    """Broadcast a number to all lanes."""
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), number, _INDEX(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))


def _add_product(builder, total, a, b):
    """`total + a * b`, in one instruction if the processor has it."""
    return builder.fadd(total, builder.fmul(a, b, flags=["contract"]), flags=["contract"])


def _summed(builder, vector):
    """The sum of all lanes, by halves."""
    count = LANES
    while count > 1:
        count //= 2
        halves = [ir.Constant(ir.VectorType(_INDEX, count), list(range(n, n + count))) for n in (0, count)]
        vector = builder.fadd(*(builder.shuffle_vector(vector, vector, half) for half in halves))
    return builder.extract_element(vector, _INDEX(0))


def _element(builder, array, offset):
    """`array[offset]`, of a flat array, without Numba's check for negative offsets."""
    return builder.load(builder.gep(array, [offset]))


def _load(builder, array, offset):
    """`array[offset : offset + LANES]`, of a flat float32 array."""
    return builder.load(builder.bitcast(builder.gep(array, [offset]), _FLOATS.as_pointer()), align=4)


def _store(builder, vector, array, offset) -> None:
    """`array[offset : offset + LANES] = vector`"""
    builder.store(vector, builder.bitcast(builder.gep(array, [offset]), _FLOATS.as_pointer()), align=4)


fill = emits(VECTOR)(_fill)
add_product = emits(VECTOR)(_add_product)
element = emits(lambda array, _offset: array.dtype)(_element)
load = emits(VECTOR)(_load)
store = emits(types.void)(_store)


@emits(VECTOR)
def relu(builder, vector):
    """The larger of each lane and zero; NaN stays NaN."""
    return builder.select(builder.fcmp_ordered("<=", vector, _ZERO), _ZERO, vector)


@emits(VECTOR)
def where_positive(builder, test, vector):
    """The lanes of `vector` where `test` is above zero, and zero elsewhere."""
    return builder.select(builder.fcmp_ordered(">", test, _ZERO), vector, _ZERO)


@emits(lambda count: types.UniTuple(VECTOR, count.count))
def zeros(_builder, count):
    return [_ZERO for _ in count]


@emits(lambda _array, _offset, _apart, count: types.UniTuple(VECTOR, count.count))
def load_vectors(builder, array, offset, apart, count):
    """Load as many vectors as `count` has items, `apart` apart."""
    return [_load(builder, array, place) for place in _offsets(builder, offset, apart, len(count))]


@emits(types.void)
def store_vectors(builder, vectors, array, offset, apart):
    for vector, place in zip(vectors, _offsets(builder, offset, apart, len(vectors)), strict=True):
        _store(builder, vector, array, place)


@emits(lambda sums, *_: sums)
def add_vectors(builder, sums, array, offset, apart, factor):
    """Add to each sum another vector of `array`, `apart` apart, times the vector `factor`."""
    loaded = [_load(builder, array, place) for place in _offsets(builder, offset, apart, len(sums))]
    return [_add_product(builder, total, vector, factor) for total, vector in zip(sums, loaded, strict=True)]


@emits(lambda sums, *_: sums)
def add_numbers(builder, sums, array, offset, apart, factor):
    """Add to each sum another number of `array`, `apart` apart, times the vector `factor`."""
    loaded = [_element(builder, array, place) for place in _offsets(builder, offset, apart, len(sums))]
    return [
        _add_product(builder, total, _fill(builder, number), factor) for total, number in zip(sums, loaded, strict=True)
    ]


@emits(types.void)
def store_sums(builder, vectors, plus, array, offset, apart):
    """Store the sum of each vector's lanes and `plus`."""
    for vector, place in zip(vectors, _offsets(builder, offset, apart, len(vectors)), strict=True):
        builder.store(builder.fadd(_summed(builder, vector), plus), builder.gep(array, [place]))


@emits(types.int64)
def arrive(builder, counter):
    """Atomically add one to `counter[0]`."""
    return builder.atomic_rmw("add", counter, ir.IntType(64)(1), "acq_rel")


@emits(types.int64)
def arrived(builder, counter):
    """Load `counter[0]` atomically; writes made before other threads' `arrive` are visible afterwards."""
    return builder.load_atomic(counter, "acquire", 8)


@njit(inline="always", **OPTIONS)
def add_rows_to(out, o, matrix, base, width, chosen, numbers, first, step, n_sums, count):
    """Add `n_sums` rows of `matrix` to the vectors of `out` that begin at `o`, as many as `count` has items: row
    `chosen[e]`, times `numbers[e]`, for e from `first` in steps of `step`; consecutive rows if `chosen` is None.

    Rows are `width` long, and counted from `base`. The sums stay in registers meanwhile.
    """
    sums = load_vectors(out, o, LANES, count)
    for n in range(n_sums):
        e = first + n * step
        m = base + (n if chosen is None else element(chosen, e)) * width
        sums = add_vectors(sums, matrix, m, LANES, fill(element(numbers, e)))
    store_vectors(sums, out, o, LANES)


@njit(**OPTIONS)
def add_chosen_rows(out, at, matrix, base, width, chosen, numbers, starts, first, count):
    """Add rows of `matrix` to each of `count` rows of `out`: to row r, row `chosen[e]` times `numbers[e]`, for each e
    from `starts[first + r]` to `starts[first + r + 1]` (exclusive).

    Rows are `width` long; those of `out` begin at `at`, those of `matrix` at `base`. The outer loop is over blocks of
    columns: most sums have only a few rows, and checking the remaining columns per row took a third of a step at batch
    size 32.
    """
    whole = width // (8 * LANES) * 8 * LANES
    for column in range(0, whole, 8 * LANES):
        for row in range(count):
            begin = element(starts, first + row)
            n_sums = element(starts, first + row + 1) - begin
            if n_sums:
                o = at + row * width + column
                add_rows_to(out, o, matrix, base + column, width, chosen, numbers, begin, 1, n_sums, EIGHT)
    for column in range(whole, width, LANES):
        for row in range(count):
            begin, o = element(starts, first + row), at + row * width + column
            n_sums = element(starts, first + row + 1) - begin
            add_rows_to(out, o, matrix, base + column, width, chosen, numbers, begin, 1, n_sums, ONE)


@njit(**OPTIONS)
def add_rows(out, at, matrix, base, width, numbers, first, step, n_sums):
    """Add `n_sums` rows of `matrix`, from `base`, to the row at `out[at]`: row n times `numbers[first + n * step]`."""
    whole = width // (8 * LANES) * 8 * LANES
    for column in range(0, whole, 8 * LANES):
        add_rows_to(out, at + column, matrix, base + column, width, None, numbers, first, step, n_sums, EIGHT)
    for column in range(whole, width, LANES):
        add_rows_to(out, at + column, matrix, base + column, width, None, numbers, first, step, n_sums, ONE)


@njit(**OPTIONS)
def add_to_rows(out, width, row, at, chosen, numbers, first, stop):
    """Add `numbers[e]` times the row that begins at `row[at]` to row `chosen[e]` of `out`."""
    for e in range(first, stop):
        number, o = fill(element(numbers, e)), element(chosen, e) * width
        for column in range(0, width, LANES):
            store(add_product(load(out, o + column), number, load(row, at + column)), out, o + column)


@njit(**OPTIONS)
def add_products(out, at, n_rows, width, numbers, n, by_row, by_sum, n_sums, matrix, base, panel):
    """Add the product of two dense matrices to the rows of `out` that begin at `at`: to row r, `n_sums` rows of
    `matrix` from `base`, row s times `numbers[n + r * by_row + s * by_sum]`.

    Rows are `width` long. Two vectors of each row of `matrix` are copied to `panel`, contiguously, so they stay in the
    cache; with them, four rows of `out` are added up in registers. The remainder is added row by row, in the same
    order.
    """
    whole, two = n_rows // 4 * 4, 2 * LANES
    for begin in range(0, n_sums if whole else 0, IN_CACHE):
        count = min(IN_CACHE, n_sums - begin)
        for column in range(0, width - LANES, two):
            m = base + begin * width + column
            for e in range(count):
                store_vectors(load_vectors(matrix, m + e * width, LANES, TWO), panel, e * two, LANES)
            for row in range(0, whole, 4):
                o, k = at + row * width + column, n + row * by_row + begin * by_sum
                left, right = load_vectors(out, o, width, FOUR), load_vectors(out, o + LANES, width, FOUR)
                for e in range(0, count * two, two):
                    left = add_numbers(left, numbers, k, by_row, load(panel, e))
                    right = add_numbers(right, numbers, k, by_row, load(panel, e + LANES))
                    k += by_sum
                store_vectors(left, out, o, width)
                store_vectors(right, out, o + LANES, width)
    done = width // two * two
    for row in range(n_rows):
        o, first = at + row * width, n + row * by_row
        if row >= whole:
            add_rows(out, o, matrix, base, width, numbers, first, by_sum, n_sums)
        elif done < width:
            add_rows_to(out, o + done, matrix, base + done, width, None, numbers, first, by_sum, n_sums, ONE)


@njit(inline="always", **OPTIONS)
def fill_rows(out, at, step, n_outputs, biases, bias, inputs, begin, width, matrix, base, count):
    """Fill as many rows of `out` as `count` has items; the rest is as for `fill_products`."""
    for output in range(n_outputs):
        sums = zeros(count)
        for column in range(0, width, LANES):
            weights = load(matrix, base + output * width + column)
            sums = add_vectors(sums, inputs, begin + column, width, weights)
        store_sums(sums, biases[bias + output], out, at + output, step)


@njit(**OPTIONS)
def fill_products(out, at, step, n_outputs, biases, bias, inputs, begin, n_rows, width, matrix, base):
    """Fill rows of `out`, `step` apart from `at`, with the products of each row of `inputs` and each of `matrix`, plus
    the biases. Rows of both are `width` long; eight rows of `inputs` share each load from `matrix`.
    """
    whole = n_rows // 8 * 8
    for row in range(0, whole, 8):
        o, i = at + row * step, begin + row * width
        fill_rows(out, o, step, n_outputs, biases, bias, inputs, i, width, matrix, base, EIGHT)
    for row in range(whole, n_rows):
        o, i = at + row * step, begin + row * width
        fill_rows(out, o, step, n_outputs, biases, bias, inputs, i, width, matrix, base, ONE)


class Entries(NamedTuple):
    """The inputs that are not zero: image i has those from `starts[i]` to `starts[i + 1]`.

    Or by pixel, in tiles of images: pixel p of tile t has those from `starts[t, p]` to `starts[t, p + 1]`.
    """

    starts: np.ndarray  # int64, (images + 1,) or (tiles, pixels + 1)
    indices: np.ndarray  # int32, (entries,): of pixels; or of images, counted from the tile's first
    values: np.ndarray  # float32, (entries,)


@lru_cache(maxsize=2)
def by_image(data: Data) -> tuple[Entries, Entries]:
    """The entries of the training and of the validation images."""
    return _entries(data.x_train), _entries(data.x_validation)


def _entries(x: np.ndarray) -> Entries:
    n, n_pixels = x.shape
    places = np.flatnonzero(x)
    starts = np.searchsorted(places, np.arange(n + 1) * n_pixels)
    return Entries(starts, (places % n_pixels).astype(np.int32), x.ravel()[places])


@lru_cache(maxsize=2)
def by_pixel(data: Data, tile: int) -> Entries:
    """The entries of the training images, pixel by pixel in each whole tile; leftover images are omitted."""
    (starts, pixels, values), _ = by_image(data)
    n_pixels, n_tiles = data.x_train.shape[1], len(data.x_train) // tile
    starts = starts[: n_tiles * tile + 1]
    first_columns = np.arange(n_tiles, dtype=np.int32) * n_pixels  # twice as fast as int64
    columns = pixels[: starts[-1]] + np.repeat(first_columns, np.diff(starts[::tile]))
    shape = (n_tiles * tile, n_tiles * n_pixels)
    found = csr_array((values[: starts[-1]], columns, starts.astype(np.int32)), shape=shape).tocsc()
    ends = found.indptr[n_pixels::n_pixels]
    of_tiles = np.column_stack((found.indptr[:-1].reshape(n_tiles, n_pixels), ends))
    return Entries(of_tiles.astype(np.int64), found.indices % tile, found.data)


def tile_for(batch_size: int) -> int:
    """How many images are sorted by pixel together for batches of this size; `NO_TILE`: image by image is faster.

    Larger tiles touch each row of weights less often, until their errors no longer fit the first-level cache. If a
    batch begins or ends within a tile, those images are taken one by one.
    """
    if batch_size < SMALLEST_SORTED:
        return NO_TILE
    if batch_size >= 256:
        return 64
    return 32 if batch_size % 32 == 0 else 16


@lru_cache(maxsize=2)
def shares(data: Data, threads: int) -> np.ndarray:
    """Offsets of each thread's pixels, and the end: int64 (threads + 1,), about equally many entries per thread."""
    n_pixels = data.x_train.shape[1]
    entries = np.cumsum(np.bincount(by_image(data)[0].indices, minlength=n_pixels))
    inner = np.searchsorted(entries, entries[-1] * np.arange(1, threads) / threads)
    return np.array([0, *inner, n_pixels], np.int64)


class Model(NamedTuple):
    """A network's parameters, which the steps update in place, and the buffers of a step.

    Errors are the loss's gradient w.r.t. a layer's outputs, times minus the learning rate.
    """

    layers: np.ndarray  # int64, (layers, 5)
    weights: np.ndarray  # float32, flat
    biases: np.ndarray  # float32, flat
    activations: np.ndarray  # float32, flat: (batch, padded width) per layer
    errors: np.ndarray  # float32, flat: (batch, padded width) per layer
    panels: np.ndarray  # float32, (threads, two vectors of each of `IN_CACHE` rows)
    losses: np.ndarray  # float64, (threads, APART): a thread's sum comes first


@njit(inline="always", **OPTIONS)
def forward_first(first, stop, start, images, model):
    """Fill the first layer's pre-activations for images `first` to `stop` of the batch that begins at image `start`."""
    width = model.layers[0, PADDED]
    at = model.layers[0, OUTPUTS] + first * width
    for row in range(at, at + (stop - first) * width, width):
        for column in range(0, width, LANES):
            store(load(model.biases, column), model.activations, row + column)
    add_chosen_rows(
        model.activations,
        at,
        model.weights,
        0,
        width,
        images.indices,
        images.values,
        images.starts,
        start + first,
        stop - first,
    )


@njit(inline="always", **OPTIONS)
def forward_deeper(first, stop, model):
    """From the first layer's pre-activations for these images, fill all other layers, up to the logits."""
    layers, activations, width = model.layers, model.activations, model.layers[0, PADDED]
    for layer in range(1, len(layers)):
        at, step = layers[layer - 1, OUTPUTS] + first * width, layers[layer, PADDED]
        for place in range(at, at + (stop - first) * width, LANES):
            store(relu(load(activations, place)), activations, place)
        fill_products(
            activations,
            layers[layer, OUTPUTS] + first * step,
            step,
            layers[layer, WIDTH],
            model.biases,
            layers[layer, BIASES],
            activations,
            at,
            stop - first,
            width,
            model.weights,
            layers[layer, WEIGHTS],
        )
        width = step


@njit(inline="always", **OPTIONS)
def cross_entropy(first, stop, start, labels, scale, model):
    """Return the sum of these images' losses; fill the last layer's errors, gradients w.r.t. logits times `scale`."""
    activations, errors = model.activations, model.errors
    last, sum_of_losses = len(model.layers) - 1, 0.0
    width, n_classes = model.layers[last, PADDED], model.layers[last, WIDTH]
    for i in range(first, stop):
        at, to = model.layers[last, OUTPUTS] + i * width, model.layers[last, OUTPUTS] + i * width
        largest, total, label = activations[at], np.float32(0), labels[start + i]
        for k in range(1, n_classes):
            largest = max(largest, activations[at + k])
        for k in range(n_classes):
            errors[to + k] = math.exp(activations[at + k] - largest)
            total += errors[to + k]
        for k in range(n_classes):
            errors[to + k] *= np.float32(1) / total
        errors[to + label] -= np.float32(1)
        for k in range(n_classes):
            errors[to + k] *= scale
        sum_of_losses += math.log(total) - (activations[at + label] - largest)
    return sum_of_losses


@njit(inline="always", **OPTIONS)
def backward(first, stop, model, panel):
    """Propagate these images' errors from the last layer to all other layers."""
    layers, zero = model.layers, fill(np.float32(0))
    for layer in range(len(layers) - 1, 0, -1):
        step, width = layers[layer, PADDED], layers[layer - 1, PADDED]
        at = layers[layer - 1, OUTPUTS] + first * width
        inputs = layers[layer - 1, OUTPUTS] + first * width
        for place in range(0, (stop - first) * width, LANES):
            store(zero, model.errors, at + place)
        add_products(
            model.errors,
            at,
            stop - first,
            width,
            model.errors,
            layers[layer, OUTPUTS] + first * step,
            step,
            1,
            layers[layer, WIDTH],
            model.weights,
            layers[layer, WEIGHTS],
            panel,
        )
        for place in range(0, (stop - first) * width, LANES):
            by_input = load(model.errors, at + place)
            store(where_positive(load(model.activations, inputs + place), by_input), model.errors, at + place)


@njit(inline="always", **OPTIONS)
def update_first(start, batch_size, images, tiles, tile, first_pixel, stop_pixel, model):
    """Update some pixels' weights: tile by tile if the batch contains all of a tile, else image by image."""
    width, at, i = model.layers[0, PADDED], model.layers[0, OUTPUTS], 0
    while i < batch_size:
        if i + tile <= batch_size and (start + i) % tile == 0:
            add_chosen_rows(
                model.weights,
                first_pixel * width,
                model.errors,
                at + i * width,
                width,
                tiles.indices,
                tiles.values,
                tiles.starts[(start + i) // tile],
                first_pixel,
                stop_pixel - first_pixel,
            )
            i += tile
        else:
            first, stop = images.starts[start + i], images.starts[start + i + 1]
            while first < stop and images.indices[first] < first_pixel:
                first += 1
            while first < stop and images.indices[stop - 1] >= stop_pixel:
                stop -= 1
            add_to_rows(model.weights, width, model.errors, at + i * width, images.indices, images.values, first, stop)
            i += 1


@njit(inline="always", **OPTIONS)
def update_deeper(share, threads, batch_size, model):
    """Update the weights of a share of each deeper layer's outputs; the first share's thread updates all biases too."""
    layers = model.layers
    for layer in range(1, len(layers)):
        n_outputs, step, width = layers[layer, WIDTH], layers[layer, PADDED], layers[layer - 1, PADDED]
        first, stop = share * n_outputs // threads, (share + 1) * n_outputs // threads
        add_products(
            model.weights,
            layers[layer, WEIGHTS] + first * width,
            stop - first,
            width,
            model.errors,
            layers[layer, OUTPUTS] + first,
            1,
            step,
            batch_size,
            model.activations,
            layers[layer - 1, OUTPUTS],
            model.panels[share],
        )
    for layer in range(len(layers) if share == 0 else 0):
        width, ones = layers[layer, PADDED], fill(np.float32(1))
        for column in range(0, width, LANES):
            total = load(model.biases, layers[layer, BIASES] + column)
            for i in range(batch_size):
                total = add_product(total, ones, load(model.errors, layers[layer, OUTPUTS] + i * width + column))
            store(total, model.biases, layers[layer, BIASES] + column)


@njit(**OPTIONS)
def meet(counter, n_arrivals):
    """Count this thread's arrival, then wait until `n_arrivals` have been counted in total."""
    arrive(counter)
    spins = 0
    while arrived(counter) < n_arrivals:
        spins += 1
        if spins > SPINS:
            give_way()


@njit(**OPTIONS)
def run_steps(
    share, threads, counter, starts, first, stop, losses, images, labels, tiles, tile, pixels, model, rate,
    batch_size,
):  # fmt: skip
    """Run one thread's share of steps `first` to `stop` (exclusive) of an epoch; fill `losses` (steps,)."""
    scale, n_arrivals = np.float32(-rate / batch_size), 0
    for step in range(first, stop):
        start, total, end = starts[step], 0.0, (share + 1) * batch_size // threads
        for i in range(share * batch_size // threads, end, TOGETHER):
            j = min(i + TOGETHER, end)
            forward_first(i, j, start, images, model)
            forward_deeper(i, j, model)
            total += cross_entropy(i, j, start, labels, scale, model)
            backward(i, j, model, model.panels[share])
        model.losses[share, 0] = total
        if threads > 1:
            n_arrivals += threads
            meet(counter, n_arrivals)
        update_first(start, batch_size, images, tiles, tile, pixels[share], pixels[share + 1], model)
        update_deeper(share, threads, batch_size, model)
        if share == 0:
            losses[step] = model.losses[:, 0].sum() / batch_size
        if threads > 1:
            n_arrivals += threads
            meet(counter, n_arrivals)


@njit(**OPTIONS)
def evaluate(images, labels, model):
    """Return the sum of all images' losses, and the number classified correctly."""
    last, loss, right = len(model.layers) - 1, 0.0, 0
    width, n_classes, at = model.layers[last, PADDED], model.layers[last, WIDTH], model.layers[last, OUTPUTS]
    for start in range(0, len(labels), TOGETHER):
        count = min(TOGETHER, len(labels) - start)
        forward_first(0, count, start, images, model)
        forward_deeper(0, count, model)
        loss += cross_entropy(0, count, start, labels, np.float32(1), model)
        for i in range(count):
            logits, best = at + i * width, 0
            for k in range(1, n_classes):
                if model.activations[logits + k] > model.activations[logits + best]:
                    best = k
            right += best == labels[start + i]
    return loss, right


# Two threads are faster from about 2.5 MFLOP per step, and a fifth faster from 3.6: measured on two cores with 128 to
# 1,024 neurons in one or two layers, at batch sizes 8 to 32. Below that, synchronisation is not worth it if another
# program wants a core.
FLOPS_PER_THREAD = 1.8e6
IMAGES_PER_THREAD = 4
SHARE_NOT_ZERO = 0.2  # of MNIST's inputs


def in_lines(array: np.ndarray) -> np.ndarray:
    """Copy an array to the start of a cache line, which also aligns each padded row.

    NumPy's arrays start anywhere, and vectors that straddle two lines take longer to read and write.
    """
    copy = aligned(array.shape, array.dtype.type)
    copy[...] = array
    return copy


def _rows_padded(array: np.ndarray) -> np.ndarray:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % LANES)])


def packed(parameters: Parameters, batch_size: int, threads: int) -> Model:
    """Copies of the parameters in the kernels' layout, and zeroed buffers for one batch size."""
    # Deeper layers: (outputs, inputs).
    weights = [_rows_padded(matrix.T if index else matrix) for index, (matrix, _) in enumerate(parameters)]
    biases = [_rows_padded(row) for _, row in parameters]
    widths, room = [row.size for row in biases], max(batch_size, TOGETHER)
    sizes = np.array([[matrix.size for matrix in weights], widths, [room * width for width in widths]]).T
    layers = np.column_stack(([row.size for _, row in parameters], widths, np.cumsum(sizes, axis=0) - sizes))
    return Model(
        layers,
        in_lines(np.concatenate([matrix.ravel() for matrix in weights])),
        in_lines(np.concatenate(biases)),
        in_lines(np.zeros(room * sum(widths), np.float32)),
        in_lines(np.zeros(room * sum(widths), np.float32)),
        in_lines(np.zeros((threads, IN_CACHE * 2 * LANES), np.float32)),
        in_lines(np.zeros((threads, APART), np.float64)),
    )


def unpacked(model: Model, network: Network) -> Parameters:
    """Copies of the parameters in the layout of `lib.model.backends.base`."""
    found = []
    for index, (inputs, outputs) in enumerate(network.shapes):
        weights, biases = model.layers[index, WEIGHTS : BIASES + 1]
        n_rows, width = (outputs, inputs) if index else (inputs, outputs)
        step = -(-width // LANES) * LANES
        rows = model.weights[weights : weights + n_rows * step].reshape(n_rows, step)[:, :width]
        found.append((np.array(rows.T if index else rows, order="C"), model.biases[biases : biases + outputs].copy()))
    return found


class Given(NamedTuple):
    """The inputs and the model of a training's steps, in the order of `run_steps`."""

    images: Entries
    labels: np.ndarray  # int32, (images,)
    tiles: Entries
    tile: int
    pixels: np.ndarray  # int64, (threads + 1,), see `shares`
    model: Model
    rate: np.float32
    batch_size: int


def threads_for(training: Training) -> int:
    """The number of threads that share a batch."""
    first, *deeper = (inputs * outputs for inputs, outputs in training.network.shapes)
    flops = 2 * training.batch_size * (2 * SHARE_NOT_ZERO * first + 3 * sum(deeper))
    worth = min(training.batch_size // IMAGES_PER_THREAD, int(flops / FLOPS_PER_THREAD))
    return max(1, min(config.NUMBA_NUM_THREADS, usable_cores(), worth))


def given(training: Training, data: Data, threads: int, parameters: Parameters) -> Given:
    """Collect a training's images, and a model with these parameters."""
    size, tile = training.batch_size, tile_for(training.batch_size)
    return Given(
        by_image(data)[0],
        data.y_train,
        by_pixel(data, tile),
        tile,
        shares(data, threads),
        packed(parameters, size, threads),
        np.float32(training.learning_rate),
        size,
    )


@backend
def train(training: Training, data: Data, _device: str, parameters: Parameters) -> Loop:
    """Train on the CPU. See `lib.model.backends.base`."""
    clock, threads = time.perf_counter, threads_for(training)
    others, (_, validation) = ThreadPoolExecutor(max(1, threads - 1)), by_image(data)
    run_on = given(training, data, threads, parameters)

    def steps(starts: np.ndarray, done: int, stop: int) -> np.ndarray:
        losses = np.empty(len(starts), np.float32)
        in_threads(others, threads, starts, done, stop, losses, *run_on)
        return losses[done:stop]

    def chunk(_epoch: int, starts: np.ndarray, done: int, step_s: float | None) -> tuple[np.ndarray, float]:
        before = clock()
        losses = steps(starts, done, done + next_chunk(len(starts) - done, step_s))
        return losses, clock() - before

    def validate() -> tuple[float, float]:
        loss, right = evaluate(validation, data.y_validation, run_on.model)
        return loss / len(data.y_validation), right / len(data.y_validation)

    # Zero steps and no images: compiles both, or loads them from disk.
    steps(batch_starts(len(data.x_train), training.batch_size, training.seed, 0), 0, 0)
    evaluate(validation, data.y_validation[:0], run_on.model)
    return chunk, validate, partial(unpacked, run_on.model, training.network)


def in_threads(others: ThreadPoolExecutor, threads: int, *arguments) -> None:
    """Run the same steps in all threads, this one included; they count each other's arrivals.

    Args:
        others: Pool of the other threads.
        threads: Total number of threads.
        arguments: Of `run_steps` from `starts` on.
    """
    counter = np.zeros(1, np.int64)
    running = [others.submit(run_steps, share, threads, counter, *arguments) for share in range(1, threads)]
    run_steps(0, threads, counter, *arguments)
    for one in running:
        one.result()
