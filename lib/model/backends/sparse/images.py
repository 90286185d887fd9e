"""Images without their zeros: row by row, and the same entries sorted by pixel.

Four fifths of MNIST's pixels are zero. What is kept of an image are its other pixels: which they are, and their values
(the format is known as compressed sparse rows). A gradient is added up weight by weight, so for it the entries of
each `tile` of images are sorted by pixel as well.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from lib.model.backends.sparse.kernels import SMALLEST_SORTED
from lib.model.backends.sparse.products import OPTIONS


class SparseRows(NamedTuple):
    """Entries image by image: those of image i are `starts[i]` to `starts[i + 1]`."""

    starts: np.ndarray  # int64, (images + 1,)
    pixels: np.ndarray  # int32, (entries,)
    values: np.ndarray  # float32, (entries,)


class Columns(NamedTuple):
    """Entries pixel by pixel in each tile of images: of pixel p in tile t, those from `starts[t, p]` to the next."""

    starts: np.ndarray  # int64, (tiles, pixels + 1)
    images: np.ndarray  # int32, (entries,), counted from the tile's first
    values: np.ndarray  # float32, (entries,)


@njit(**OPTIONS)
def rows_of(x: np.ndarray) -> tuple:
    """`starts`, `pixels` and `values` of images (n, pixels)."""
    n, n_pixels = x.shape
    starts = np.zeros(n + 1, np.int64)
    for i in range(n):
        count = 0
        for p in range(n_pixels):
            count += x[i, p] != 0
        starts[i + 1] = starts[i] + count
    pixels, values = np.empty(starts[n], np.int32), np.empty(starts[n], np.float32)
    for i in range(n):
        e = starts[i]
        for p in range(n_pixels):
            if x[i, p] != 0:
                pixels[e], values[e] = p, x[i, p]
                e += 1
    return starts, pixels, values


@njit(**OPTIONS)
def columns_of(rows: SparseRows, n_pixels: int, tile: int) -> tuple:
    """`starts`, `images` and `values`, by a counting sort of each whole tile; images left over have none."""
    n_tiles = (len(rows.starts) - 1) // tile
    starts = np.zeros((n_tiles, n_pixels + 1), np.int64)
    images, values = np.empty(len(rows.pixels), np.int32), np.empty(len(rows.values), np.float32)
    free = np.empty(n_pixels, np.int64)  # the next free place of each pixel
    for t in range(n_tiles):
        first, stop = rows.starts[t * tile], rows.starts[(t + 1) * tile]
        starts[t, 0] = first
        for e in range(first, stop):
            starts[t, rows.pixels[e] + 1] += 1
        for p in range(n_pixels):
            free[p] = starts[t, p]
            starts[t, p + 1] += starts[t, p]
        for i in range(tile):
            for e in range(rows.starts[t * tile + i], rows.starts[t * tile + i + 1]):
                place = free[rows.pixels[e]]
                images[place], values[place] = i, rows.values[e]
                free[rows.pixels[e]] += 1
    return starts, images, values


def tile_for(batch_size: int) -> int:
    """How many images are sorted together for batches of this size; 0: none, image by image is faster.

    Larger tiles touch each row of weights less often, until their errors no longer fit the first-level cache. A batch
    that begins or ends within a tile takes those images one by one.
    """
    if batch_size < SMALLEST_SORTED:
        return 0
    if batch_size >= 256:
        return 64
    return 32 if batch_size % 32 == 0 else 16


def shares(rows: SparseRows, n_pixels: int, threads: int) -> np.ndarray:
    """Where each thread's pixels begin, and the end: int64 (threads + 1,), about equally many entries each."""
    entries = np.cumsum(np.bincount(rows.pixels, minlength=n_pixels))
    inner = np.searchsorted(entries, entries[-1] * np.arange(1, threads) / threads)
    return np.array([0, *inner, n_pixels], np.int64)
