"""Steps of training over images without their zeros, compiled by Numba.

Whatever is added up here is a sum of rows of a matrix, each times a number (`add_rows`): a hidden layer is the rows of
weights of an image's pixels, times their values; the new weights of a pixel are the old ones and the errors of the
images that have it. A pixel that is zero is in neither sum.

Arrays are flat, and rows are padded with zeros to whole vectors. The first layer's weights are (pixels, width), those
of deeper layers (outputs, inputs). One compiled program serves all networks, batch sizes and rates.

Several threads run the same steps, each on its share of the images, then of the weights, so none waits for a lock:
they meet twice a step.
"""

import math
import sys
from typing import NamedTuple

import numpy as np
from numba import config, njit, types

from lib.backends.sparse.vectors import (
    LANES,
    add_product,
    arrive,
    arrived,
    fill,
    load,
    relu,
    store,
    summed,
    where_positive,
)

# The order of every sum is written here, not left to the compiler (`fastmath`): it chooses another where a function is
# compiled within another one, and a training would differ by whether its program was compiled now or loaded.
# Without a folder of its own (see `lib.backends.environment_variables`) Numba would write beside this file.
OPTIONS = {
    "boundscheck": False,
    "error_model": "numpy",
    "nogil": True,
    "cache": bool(config.CACHE_DIR),
}
SMALLEST_SORTED = 16  # images a batch, from which sorting them by pixel pays
APART = 16  # numbers: what two threads write is so far apart, in different lines of the cache
IN_CACHE = 64  # images whose activations are read for one output after the other
SPINS = 2_000  # looks at a counter before a thread offers its core to others, about 5 μs

# Columns of `Model.layers`: the layer's width, the padded one, and where its arrays begin.
WIDTH, PADDED, WEIGHTS, BIASES, ACTIVATIONS, ERRORS = range(6)
give_way = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


class Model(NamedTuple):
    """The parameters of a network, which the steps update in place."""

    weights: np.ndarray  # float32, flat
    biases: np.ndarray  # float32, flat
    layers: np.ndarray  # int64, (layers, 6)


class Workspace(NamedTuple):
    """What a step writes. Errors are the loss's gradient by a layer's outputs, times minus the learning rate."""

    activations: np.ndarray  # float32, flat: (batch, padded width) a layer
    errors: np.ndarray  # float32, flat: (batch, padded width) of the first layer, (width, batch) of the others
    scratch: np.ndarray  # float32, (threads, all padded widths): one image's gradients by its outputs
    losses: np.ndarray  # float64, (threads, APART): the first is a thread's sum


@njit(**OPTIONS)
def add_rows(out, at, matrix, base, width, chosen, numbers, first, stop):
    """Add `numbers[e]` times a row of `matrix` to the row of `out` that begins at `at`, for e from `first` to `stop`.

    Rows are `width` long and counted from `base`: row `chosen[e]`; if that is None, the first row for the first e, and
    so on. Eight vectors of the sum stay in registers meanwhile.
    """
    column, eight = 0, 8 * LANES
    while column + eight <= width:
        o = at + column
        a, b, c, d = load(out, o), load(out, o + LANES), load(out, o + 2 * LANES), load(out, o + 3 * LANES)
        o += 4 * LANES
        p, q, r, s = load(out, o), load(out, o + LANES), load(out, o + 2 * LANES), load(out, o + 3 * LANES)
        for e in range(first, stop):
            number = fill(numbers[e])
            m = base + (e - first if chosen is None else chosen[e]) * width + column
            a = add_product(a, number, load(matrix, m))
            b = add_product(b, number, load(matrix, m + LANES))
            c = add_product(c, number, load(matrix, m + 2 * LANES))
            d = add_product(d, number, load(matrix, m + 3 * LANES))
            p = add_product(p, number, load(matrix, m + 4 * LANES))
            q = add_product(q, number, load(matrix, m + 5 * LANES))
            r = add_product(r, number, load(matrix, m + 6 * LANES))
            s = add_product(s, number, load(matrix, m + 7 * LANES))
        o = at + column
        store(a, out, o), store(b, out, o + LANES), store(c, out, o + 2 * LANES), store(d, out, o + 3 * LANES)
        o += 4 * LANES
        store(p, out, o), store(q, out, o + LANES), store(r, out, o + 2 * LANES), store(s, out, o + 3 * LANES)
        column += eight
    while column < width:
        a = load(out, at + column)
        for e in range(first, stop):
            m = base + (e - first if chosen is None else chosen[e]) * width + column
            a = add_product(a, fill(numbers[e]), load(matrix, m))
        store(a, out, at + column)
        column += LANES


@njit(**OPTIONS)
def add_to_rows(out, width, row, at, chosen, numbers, first, stop):
    """Add `numbers[e]` times the one row of `row` that begins at `at` to row `chosen[e]` of `out`."""
    for e in range(first, stop):
        number, o = fill(numbers[e]), chosen[e] * width
        for column in range(0, width, LANES):
            store(add_product(load(out, o + column), number, load(row, at + column)), out, o + column)


@njit(**OPTIONS)
def dot(a, a_at, b, b_at, width):
    """The product of two rows of padded width."""
    total = fill(np.float32(0))
    for column in range(0, width, LANES):
        total = add_product(total, load(a, a_at + column), load(b, b_at + column))
    return summed(total)


@njit(**OPTIONS)
def sum_of(numbers, first, stop):
    """The sum of some numbers, of whole vectors first."""
    total = fill(np.float32(0))
    while first + LANES <= stop:
        total = add_product(total, fill(np.float32(1)), load(numbers, first))
        first += LANES
    rest = summed(total)
    for e in range(first, stop):
        rest += numbers[e]
    return rest


@njit(**OPTIONS)
def forward_first(i, row, images, model, activations):
    """Image `row` of all, the i-th of its batch: fill what the first layer adds up; return where it begins."""
    width = model.layers[0, PADDED]
    at = model.layers[0, ACTIVATIONS] + i * width
    for column in range(0, width, LANES):
        store(load(model.biases, column), activations, at + column)
    first, stop = images.starts[row], images.starts[row + 1]
    add_rows(activations, at, model.weights, 0, width, images.pixels, images.values, first, stop)
    return at


@njit(**OPTIONS)
def forward_deeper(i, at, model, activations):
    """From where the first layer of the i-th image begins, fill all others; return where its logits begin."""
    layers, width = model.layers, model.layers[0, PADDED]
    for layer in range(1, len(layers)):
        for column in range(0, width, LANES):
            store(relu(load(activations, at + column)), activations, at + column)
        out = layers[layer, ACTIVATIONS] + i * layers[layer, PADDED]
        for output in range(layers[layer, WIDTH]):
            z = dot(activations, at, model.weights, layers[layer, WEIGHTS] + output * width, width)
            activations[out + output] = z + model.biases[layers[layer, BIASES] + output]
        width, at = layers[layer, PADDED], out
    return at


@njit(**OPTIONS)
def forward(i, row, images, model, activations):
    """Image `row` of all, the i-th of its batch: fill its activations; return where its logits begin."""
    return forward_deeper(i, forward_first(i, row, images, model, activations), model, activations)


@njit(**OPTIONS)
def cross_entropy(logits, at, n_classes, label, gradient):
    """Loss of one image, and its gradient by the logits, which begin at `at`."""
    largest, total = logits[at], np.float32(0)
    for k in range(1, n_classes):
        largest = max(largest, logits[at + k])
    for k in range(n_classes):
        gradient[k] = math.exp(logits[at + k] - largest)
        total += gradient[k]
    for k in range(n_classes):
        gradient[k] *= np.float32(1) / total
    gradient[label] -= np.float32(1)
    return math.log(total) - (logits[at + label] - largest)


@njit(**OPTIONS)
def backward(i, batch_size, scale, model, work, gradient):
    """From one image's gradient by the logits to its errors in all layers; `scale` is minus rate over batch size."""
    layers, here = model.layers, 0
    for layer in range(len(layers) - 1, 0, -1):
        n_outputs, width = layers[layer, WIDTH], layers[layer - 1, PADDED]
        for output in range(n_outputs):
            work.errors[layers[layer, ERRORS] + output * batch_size + i] = gradient[here + output] * scale
        below = here + layers[layer, PADDED]
        for column in range(below, below + width, LANES):
            store(fill(np.float32(0)), gradient, column)
        weights = layers[layer, WEIGHTS]
        add_rows(gradient, below, model.weights, weights, width, None, gradient, here, here + n_outputs)
        inputs = layers[layer - 1, ACTIVATIONS] + i * width
        for column in range(0, width, LANES):
            by_input = load(gradient, below + column)
            store(where_positive(load(work.activations, inputs + column), by_input), gradient, below + column)
        here = below
    width, zero, scales = layers[0, PADDED], fill(np.float32(0)), fill(scale)
    for column in range(0, width, LANES):
        scaled = add_product(zero, scales, load(gradient, here + column))
        store(scaled, work.errors, layers[0, ERRORS] + i * width + column)


@njit(**OPTIONS)
def update_first(start, batch_size, images, by_pixel, tile, first_pixel, stop_pixel, model, errors):
    """The weights of some pixels: tile by tile where one lies in the batch whole, the other images one by one."""
    width, at, i = model.layers[0, PADDED], model.layers[0, ERRORS], 0
    while i < batch_size:
        if tile and (start + i) % tile == 0 and i + tile <= batch_size:
            t = (start + i) // tile
            for pixel in range(first_pixel, stop_pixel):
                first, stop = by_pixel.starts[t, pixel], by_pixel.starts[t, pixel + 1]
                if first < stop:
                    add_rows(
                        model.weights,
                        pixel * width,
                        errors,
                        at + i * width,
                        width,
                        by_pixel.images,
                        by_pixel.values,
                        first,
                        stop,
                    )
            i += tile
        else:
            first, stop = images.starts[start + i], images.starts[start + i + 1]
            while first < stop and images.pixels[first] < first_pixel:
                first += 1
            while first < stop and images.pixels[stop - 1] >= stop_pixel:
                stop -= 1
            add_to_rows(model.weights, width, errors, at + i * width, images.pixels, images.values, first, stop)
            i += 1


@njit(**OPTIONS)
def update_deeper(share, threads, batch_size, model, work):
    """The weights and biases of a share of each deeper layer's outputs, and the biases of the first layer."""
    layers = model.layers
    for layer in range(1, len(layers)):
        n_outputs, width, inputs = layers[layer, WIDTH], layers[layer - 1, PADDED], layers[layer - 1, ACTIVATIONS]
        for i in range(0, batch_size, IN_CACHE):
            count = min(IN_CACHE, batch_size - i)
            for output in range(share * n_outputs // threads, (share + 1) * n_outputs // threads):
                row, error = layers[layer, WEIGHTS] + output * width, layers[layer, ERRORS] + output * batch_size + i
                add_rows(
                    model.weights,
                    row,
                    work.activations,
                    inputs + i * width,
                    width,
                    None,
                    work.errors,
                    error,
                    error + count,
                )
                model.biases[layers[layer, BIASES] + output] += sum_of(work.errors, error, error + count)
    if share == 0:
        width = layers[0, PADDED]
        for column in range(0, width, LANES):
            total = load(model.biases, column)
            for i in range(batch_size):
                total = add_product(
                    total, fill(np.float32(1)), load(work.errors, layers[0, ERRORS] + i * width + column)
                )
            store(total, model.biases, column)


@njit(**OPTIONS)
def meet(counter, n_arrivals):
    """Wait until threads have arrived here so often in all."""
    arrive(counter)
    spins = 0
    while arrived(counter) < n_arrivals:
        spins += 1
        if spins > SPINS:
            give_way()


@njit(**OPTIONS)
def run_steps(
    share, threads, counter, starts, first, stop, losses, images, labels, by_pixel, tile, pixels, model, work, rate,
    batch_size,
):  # fmt: skip
    """Steps `first` to `stop` (exclusive) of an epoch, one thread's share of them; fills `losses` (steps,)."""
    scale, gradient, n_arrivals = np.float32(-rate / batch_size), work.scratch[share], 0
    n_classes = model.layers[-1, WIDTH]
    for step in range(first, stop):
        start, total = starts[step], 0.0
        for i in range(share * batch_size // threads, (share + 1) * batch_size // threads):
            logits = forward(i, start + i, images, model, work.activations)
            total += cross_entropy(work.activations, logits, n_classes, labels[start + i], gradient)
            backward(i, batch_size, scale, model, work, gradient)
        work.losses[share, 0] = total
        if threads > 1:
            n_arrivals += threads
            meet(counter, n_arrivals)
        update_first(start, batch_size, images, by_pixel, tile, pixels[share], pixels[share + 1], model, work.errors)
        update_deeper(share, threads, batch_size, model, work)
        if share == 0:
            losses[step] = work.losses[:, 0].sum() / batch_size
        if threads > 1:
            n_arrivals += threads
            meet(counter, n_arrivals)


@njit(**OPTIONS)
def evaluate(images, labels, model, activations, gradient):
    """Sum of the losses of all images, and how many are classified rightly."""
    loss, right, n_classes = 0.0, 0, model.layers[-1, WIDTH]
    for row in range(len(labels)):
        at = forward(0, row, images, model, activations)
        loss += cross_entropy(activations, at, n_classes, labels[row], gradient)
        best = 0
        for k in range(1, n_classes):
            if activations[at + k] > activations[at + best]:
                best = k
        right += best == labels[row]
    return loss, right
