"""Sums of rows of matrices, compiled by Numba: of rows that an image's pixels choose, and products of dense matrices.

Arrays are flat, and rows are padded with zeros to whole vectors.
"""

import numpy as np
from numba import config, njit

from lib.model.backends.sparse.vectors import LANES, add_product, element, fill, load, store, summed

# The order of every sum is written here, not left to the compiler (`fastmath`): it chooses another where a function is
# compiled within another one, and a training would differ by whether its program was compiled now or loaded.
# Without a folder of its own (see `lib.model.backends.environment_variables`) Numba would write beside this file.
OPTIONS = {
    "boundscheck": False,
    "error_model": "numpy",
    "nogil": True,
    "cache": bool(config.CACHE_DIR),
}
IN_CACHE = 128  # rows of a matrix of which two vectors each are copied side by side


@njit(inline="always", **OPTIONS)
def add_eight(out, o, matrix, base, width, chosen, numbers, first, step, n_sums):
    """Add to eight vectors of `out`, from `o` on, those of `n_sums` rows of `matrix`: of row `chosen[e]`, times
    `numbers[e]`, for e from `first` on in steps of `step`; if `chosen` is None, of one row after the other.

    Rows are `width` long, and counted from `base`. The sums stay in registers meanwhile.
    """
    a, b, c, d = load(out, o), load(out, o + LANES), load(out, o + 2 * LANES), load(out, o + 3 * LANES)
    half = o + 4 * LANES
    p, q, r, s = load(out, half), load(out, half + LANES), load(out, half + 2 * LANES), load(out, half + 3 * LANES)
    for n in range(n_sums):
        e = first + n * step
        number, m = fill(element(numbers, e)), base + (n if chosen is None else element(chosen, e)) * width
        a = add_product(a, number, load(matrix, m))
        b = add_product(b, number, load(matrix, m + LANES))
        c = add_product(c, number, load(matrix, m + 2 * LANES))
        d = add_product(d, number, load(matrix, m + 3 * LANES))
        p = add_product(p, number, load(matrix, m + 4 * LANES))
        q = add_product(q, number, load(matrix, m + 5 * LANES))
        r = add_product(r, number, load(matrix, m + 6 * LANES))
        s = add_product(s, number, load(matrix, m + 7 * LANES))
    store(a, out, o), store(b, out, o + LANES), store(c, out, o + 2 * LANES), store(d, out, o + 3 * LANES)
    o = half
    store(p, out, o), store(q, out, o + LANES), store(r, out, o + 2 * LANES), store(s, out, o + 3 * LANES)


@njit(**OPTIONS)
def add_chosen_rows(out, at, matrix, base, width, chosen, numbers, starts, first, count):
    """Add rows of `matrix` to each of `count` rows of `out`: to row r, row `chosen[e]` times `numbers[e]`, for each e
    from `starts[first + r]` to `starts[first + r + 1]` (exclusive).

    Rows are `width` long; those of `out` begin at `at`, those of `matrix` at `base`. All rows of `out` are taken
    through some columns before any is taken through the next: most sums are of a few rows, and to ask of each of them
    which columns are left took a third of a step at batch size 32.
    """
    column = 0
    while column + 8 * LANES <= width:
        for row in range(count):
            begin, n_sums = (
                element(starts, first + row),
                element(starts, first + row + 1) - element(starts, first + row),
            )
            if n_sums:
                o = at + row * width + column
                add_eight(out, o, matrix, base + column, width, chosen, numbers, begin, 1, n_sums)
        column += 8 * LANES
    while column < width:
        for row in range(count):
            o = at + row * width + column
            a = load(out, o)
            for e in range(element(starts, first + row), element(starts, first + row + 1)):
                m = base + element(chosen, e) * width + column
                a = add_product(a, fill(element(numbers, e)), load(matrix, m))
            store(a, out, o)
        column += LANES


@njit(**OPTIONS)
def add_rows(out, at, matrix, base, width, numbers, first, step, n_sums):
    """Add `n_sums` rows of `matrix` from `base` on, `width` long, to the row of `out` that begins at `at`: row n times
    `numbers[first + n * step]`."""
    column = 0
    while column + 8 * LANES <= width:
        add_eight(out, at + column, matrix, base + column, width, None, numbers, first, step, n_sums)
        column += 8 * LANES
    while column < width:
        a = load(out, at + column)
        for n in range(n_sums):
            a = add_product(a, fill(element(numbers, first + n * step)), load(matrix, base + n * width + column))
        store(a, out, at + column)
        column += LANES


@njit(**OPTIONS)
def add_to_rows(out, width, row, at, chosen, numbers, first, stop):
    """Add `numbers[e]` times the one row of `row` that begins at `at` to row `chosen[e]` of `out`."""
    for e in range(first, stop):
        number, o = fill(element(numbers, e)), element(chosen, e) * width
        for column in range(0, width, LANES):
            store(add_product(load(out, o + column), number, load(row, at + column)), out, o + column)


@njit(**OPTIONS)
def add_products(out, at, n_rows, width, numbers, n, by_row, by_sum, n_sums, matrix, base, panel):
    """Add the product of two dense matrices to rows of `out`, which begin at `at`: to row r, `n_sums` rows of `matrix`
    from `base` on, row s times `numbers[n + r * by_row + s * by_sum]`.

    Rows are `width` long. Two vectors of each row of `matrix` at a time are copied to `panel`, where they lie side by
    side and stay in the cache; with them four rows of `out` are added up in registers. What is left over is added row
    by row, in the same order.
    """
    whole, two = n_rows // 4 * 4, 2 * LANES
    for begin in range(0, n_sums if whole else 0, IN_CACHE):
        count = min(IN_CACHE, n_sums - begin)
        for column in range(0, width - LANES, two):
            m = base + begin * width + column
            for e in range(0, count * two, two):
                store(load(matrix, m), panel, e)
                store(load(matrix, m + LANES), panel, e + LANES)
                m += width
            for row in range(0, whole, 4):
                o, k = at + row * width + column, n + row * by_row + begin * by_sum
                a, b, c, d = load(out, o), load(out, o + width), load(out, o + 2 * width), load(out, o + 3 * width)
                o += LANES
                p, q, r, s = load(out, o), load(out, o + width), load(out, o + 2 * width), load(out, o + 3 * width)
                for e in range(0, count * two, two):
                    left, right, number = load(panel, e), load(panel, e + LANES), fill(element(numbers, k))
                    a, p = add_product(a, number, left), add_product(p, number, right)
                    number = fill(element(numbers, k + by_row))
                    b, q = add_product(b, number, left), add_product(q, number, right)
                    number = fill(element(numbers, k + 2 * by_row))
                    c, r = add_product(c, number, left), add_product(r, number, right)
                    number = fill(element(numbers, k + 3 * by_row))
                    d, s = add_product(d, number, left), add_product(s, number, right)
                    k += by_sum
                store(p, out, o), store(q, out, o + width), store(r, out, o + 2 * width), store(s, out, o + 3 * width)
                o -= LANES
                store(a, out, o), store(b, out, o + width), store(c, out, o + 2 * width), store(d, out, o + 3 * width)
    done = width // two * two
    for row in range(n_rows):
        o, first = at + row * width, n + row * by_row
        if row >= whole:
            add_rows(out, o, matrix, base, width, numbers, first, by_sum, n_sums)
        elif done < width:
            a = load(out, o + done)
            for e in range(n_sums):
                number = fill(element(numbers, first + e * by_sum))
                a = add_product(a, number, load(matrix, base + e * width + done))
            store(a, out, o + done)


@njit(**OPTIONS)
def fill_products(out, at, step, n_outputs, biases, bias, inputs, begin, n_rows, width, matrix, base):
    """Fill rows of `out`, `step` apart from `at` on, with the products of each row of `inputs` and each of `matrix`,
    and with the biases. Rows of both are `width` long; eight rows of `inputs` at a time share what is read of `matrix`.
    """
    row, zero = 0, fill(np.float32(0))
    while row + 8 <= n_rows:
        first, o = begin + row * width, at + row * step
        for output in range(n_outputs):
            line = base + output * width
            a, b, c, d, p, q, r, s = zero, zero, zero, zero, zero, zero, zero, zero
            for column in range(0, width, LANES):
                weights, i = load(matrix, line + column), first + column
                a = add_product(a, load(inputs, i), weights)
                b = add_product(b, load(inputs, i + width), weights)
                c = add_product(c, load(inputs, i + 2 * width), weights)
                d = add_product(d, load(inputs, i + 3 * width), weights)
                i += 4 * width
                p = add_product(p, load(inputs, i), weights)
                q = add_product(q, load(inputs, i + width), weights)
                r = add_product(r, load(inputs, i + 2 * width), weights)
                s = add_product(s, load(inputs, i + 3 * width), weights)
            plus, to = biases[bias + output], o + output
            out[to], out[to + step] = summed(a) + plus, summed(b) + plus
            out[to + 2 * step], out[to + 3 * step] = summed(c) + plus, summed(d) + plus
            to += 4 * step
            out[to], out[to + step] = summed(p) + plus, summed(q) + plus
            out[to + 2 * step], out[to + 3 * step] = summed(r) + plus, summed(s) + plus
        row += 8
    while row < n_rows:
        for output in range(n_outputs):
            a = zero
            for column in range(0, width, LANES):
                a = add_product(
                    a, load(inputs, begin + row * width + column), load(matrix, base + output * width + column)
                )
            out[at + row * step + output] = summed(a) + biases[bias + output]
        row += 1
