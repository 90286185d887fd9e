"""Steps of training over images without their zeros, compiled by Numba.

Whatever is added up here is a sum of rows of a matrix, each times a number (`add_chosen_rows`): a hidden layer is the
rows of weights of an image's pixels, times their values; the new weights of a pixel are the old ones and the errors of
the images that have it. A pixel that is zero is in neither sum. Deeper layers are products of dense matrices, some
images at a time (`fill_products`, `add_products`): taken one by one, each image would read all of their weights again.

Arrays are flat, and rows are padded with zeros to whole vectors. The first layer's weights are (pixels, width), those
of deeper layers (outputs, inputs). One compiled program serves all networks, batch sizes and rates.

Several threads run the same steps, each on its share of the images, then of the weights, so none waits for a lock:
they meet twice a step.
"""

import math
import sys
from typing import NamedTuple

import numpy as np
from numba import njit, types

from lib.model.backends.sparse.products import OPTIONS, add_chosen_rows, add_products, add_to_rows, fill_products
from lib.model.backends.sparse.vectors import (
    LANES,
    add_product,
    arrive,
    arrived,
    fill,
    load,
    relu,
    store,
    where_positive,
)

SMALLEST_SORTED = 16  # images a batch, from which sorting them by pixel pays
TOGETHER = 32  # images that are taken through all layers at a time
APART = 16  # numbers: what two threads write is so far apart, in different lines of the cache
SPINS = 2_000  # looks at a counter before a thread offers its core to others, about 5 μs

# Columns of `Model.layers`: the layer's width, the padded one, and where its arrays begin.
WIDTH, PADDED, WEIGHTS, BIASES, ACTIVATIONS, ERRORS = range(6)
give_way = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


class Model(NamedTuple):
    """The parameters of a network, which the steps update in place."""

    weights: np.ndarray  # float32, flat
    biases: np.ndarray  # float32, flat
    layers: np.ndarray  # int64, (layers, 6)


class SparseWorkspace(NamedTuple):
    """What a step writes. Errors are the loss's gradient by a layer's outputs, times minus the learning rate."""

    activations: np.ndarray  # float32, flat: (batch, padded width) a layer
    errors: np.ndarray  # float32, flat: (batch, padded width) a layer
    panels: np.ndarray  # float32, (threads, two vectors of each of `IN_CACHE` rows)
    losses: np.ndarray  # float64, (threads, APART): the first is a thread's sum


@njit(**OPTIONS)
def forward_first(first, stop, start, images, model, activations):
    """Of a batch that begins with image `start`, the images from `first` to `stop`: fill what the first layer adds
    up."""
    width = model.layers[0, PADDED]
    at = model.layers[0, ACTIVATIONS] + first * width
    for row in range(at, at + (stop - first) * width, width):
        for column in range(0, width, LANES):
            store(load(model.biases, column), activations, row + column)
    add_chosen_rows(
        activations,
        at,
        model.weights,
        0,
        width,
        images.pixels,
        images.values,
        images.starts,
        start + first,
        stop - first,
    )


@njit(**OPTIONS)
def forward_deeper(first, stop, model, activations):
    """From what the first layer adds up for these images of the batch, fill all others, up to the logits."""
    layers, width = model.layers, model.layers[0, PADDED]
    for layer in range(1, len(layers)):
        at, step = layers[layer - 1, ACTIVATIONS] + first * width, layers[layer, PADDED]
        for place in range(at, at + (stop - first) * width, LANES):
            store(relu(load(activations, place)), activations, place)
        fill_products(
            activations,
            layers[layer, ACTIVATIONS] + first * step,
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


@njit(**OPTIONS)
def cross_entropy(first, stop, start, labels, scale, model, activations, errors):
    """The sum of these images' losses; fills the errors of the last layer, their gradient by the logits times
    `scale`."""
    last, sum_of_losses = len(model.layers) - 1, 0.0
    width, n_classes = model.layers[last, PADDED], model.layers[last, WIDTH]
    for i in range(first, stop):
        at, to = model.layers[last, ACTIVATIONS] + i * width, model.layers[last, ERRORS] + i * width
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


@njit(**OPTIONS)
def backward(first, stop, model, work, panel):
    """From the last layer's errors for these images of the batch to those of all others."""
    layers, zero = model.layers, fill(np.float32(0))
    for layer in range(len(layers) - 1, 0, -1):
        step, width = layers[layer, PADDED], layers[layer - 1, PADDED]
        at = layers[layer - 1, ERRORS] + first * width
        inputs = layers[layer - 1, ACTIVATIONS] + first * width
        for place in range(0, (stop - first) * width, LANES):
            store(zero, work.errors, at + place)
        add_products(
            work.errors,
            at,
            stop - first,
            width,
            work.errors,
            layers[layer, ERRORS] + first * step,
            step,
            1,
            layers[layer, WIDTH],
            model.weights,
            layers[layer, WEIGHTS],
            panel,
        )
        for place in range(0, (stop - first) * width, LANES):
            by_input = load(work.errors, at + place)
            store(where_positive(load(work.activations, inputs + place), by_input), work.errors, at + place)


@njit(**OPTIONS)
def update_first(start, batch_size, images, by_pixel, tile, first_pixel, stop_pixel, model, errors):
    """The weights of some pixels: tile by tile where one lies in the batch whole, the other images one by one."""
    width, at, i = model.layers[0, PADDED], model.layers[0, ERRORS], 0
    while i < batch_size:
        if tile and (start + i) % tile == 0 and i + tile <= batch_size:
            add_chosen_rows(
                model.weights,
                first_pixel * width,
                errors,
                at + i * width,
                width,
                by_pixel.images,
                by_pixel.values,
                by_pixel.starts[(start + i) // tile],
                first_pixel,
                stop_pixel - first_pixel,
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
    """The weights of a share of each deeper layer's outputs, and all biases by the first share's thread."""
    layers = model.layers
    for layer in range(1, len(layers)):
        n_outputs, step, width = layers[layer, WIDTH], layers[layer, PADDED], layers[layer - 1, PADDED]
        first, stop = share * n_outputs // threads, (share + 1) * n_outputs // threads
        add_products(
            model.weights,
            layers[layer, WEIGHTS] + first * width,
            stop - first,
            width,
            work.errors,
            layers[layer, ERRORS] + first,
            1,
            step,
            batch_size,
            work.activations,
            layers[layer - 1, ACTIVATIONS],
            work.panels[share],
        )
    for layer in range(len(layers) if share == 0 else 0):
        width, ones = layers[layer, PADDED], fill(np.float32(1))
        for column in range(0, width, LANES):
            total = load(model.biases, layers[layer, BIASES] + column)
            for i in range(batch_size):
                total = add_product(total, ones, load(work.errors, layers[layer, ERRORS] + i * width + column))
            store(total, model.biases, layers[layer, BIASES] + column)


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
    scale, n_arrivals = np.float32(-rate / batch_size), 0
    for step in range(first, stop):
        start, total, end = starts[step], 0.0, (share + 1) * batch_size // threads
        for i in range(share * batch_size // threads, end, TOGETHER):
            j = min(i + TOGETHER, end)
            forward_first(i, j, start, images, model, work.activations)
            forward_deeper(i, j, model, work.activations)
            total += cross_entropy(i, j, start, labels, scale, model, work.activations, work.errors)
            backward(i, j, model, work, work.panels[share])
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
def evaluate(images, labels, model, work):
    """Sum of the losses of all images, and how many are classified rightly."""
    last, loss, right = len(model.layers) - 1, 0.0, 0
    width, n_classes, at = model.layers[last, PADDED], model.layers[last, WIDTH], model.layers[last, ACTIVATIONS]
    for start in range(0, len(labels), TOGETHER):
        count = min(TOGETHER, len(labels) - start)
        forward_first(0, count, start, images, model, work.activations)
        forward_deeper(0, count, model, work.activations)
        loss += cross_entropy(0, count, start, labels, np.float32(1), model, work.activations, work.errors)
        for i in range(count):
            logits, best = at + i * width, 0
            for k in range(1, n_classes):
                if work.activations[logits + k] > work.activations[logits + best]:
                    best = k
            right += best == labels[start + i]
    return loss, right
