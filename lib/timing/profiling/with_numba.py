"""The experiments on Numba's step, which is one compiled loop: its parts cannot be called from Python and timed.

So the loop is run up to each of its parts: how much longer it takes with a part than without is what the part takes.
What it writes is never used: without the update, it makes the same step again and again.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from lib.model.backends.base import CHUNK_S
from lib.model.backends.sparse import (
    OPTIONS,
    TOGETHER,
    SparseRows,
    backward,
    cross_entropy,
    forward_deeper,
    forward_first,
    update_deeper,
    update_first,
)
from lib.model.backends.with_numba import given, in_threads, threads_for
from lib.timing.measurement import no_wait
from lib.timing.profiling.harness import InOneCall, Repeated, StepExperiment, Subject, loop, nothing
from lib.timing.profiling.step_breakdown import LOOP_PARTS, up_to


def experiments(_backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """The experiments of `lib.timing.profiling.run` on Numba, by name, and the loop up to each of its parts, on one
    core."""
    on = given(subject.training, subject.data, 1)
    starts, size = np.array(subject.starts, np.int32), subject.batch_size
    no_step, steps = _steps(subject.tiny), max(1, min(len(starts), round(CHUNK_S / _step_s(subject))))
    found: dict[str, StepExperiment] = {
        "python": Repeated(loop(subject, nothing), steps=steps),
        "returns": Repeated(lambda: no_step(0), steps=steps),
        # The entries of the next batch come from main memory; those of the same batch again are in the cache.
        "transfer": InOneCall(lambda n: fetch(on.images, np.resize(starts, n), size), no_wait),
        "transfer-base": InOneCall(lambda n: fetch(on.images, np.zeros(n, np.int32), size), no_wait),
        "many": InOneCall(_steps(subject), no_wait),
        "many-tiny": InOneCall(_steps(subject.tiny), no_wait),
    }
    for n_parts in range(len(LOOP_PARTS)):
        found[up_to(n_parts)] = InOneCall(
            lambda n, n_parts=n_parts: first_parts(n_parts, np.resize(starts, n), np.empty(n, np.float32), *on), no_wait
        )
    return found


def _steps(subject: Subject):
    """`call(n)` makes n steps on the first batch, in as many threads as training has."""
    threads = threads_for(subject.training)
    others, on = ThreadPoolExecutor(max(1, threads - 1)), given(subject.training, subject.data, threads)

    def call(n: int) -> None:
        in_threads(others, threads, np.zeros(n, np.int32), 0, n, np.empty(n, np.float32), *on)

    return call


def _step_s(subject: Subject) -> float:
    """About how long a step takes."""
    few = InOneCall(_steps(subject), no_wait)
    few.prepare()
    return few.block()


@njit(**OPTIONS)
def fetch(images: SparseRows, starts, batch_size):
    """The sum of all entries of these batches: they are read, and next to nothing is done with them."""
    total = 0.0
    for start in starts:
        for e in range(images.starts[start], images.starts[start + batch_size]):
            total += images.pixels[e] * images.values[e]
    return total


@njit(**OPTIONS)
def first_parts(
    n_parts, starts, losses, images, labels, by_pixel, tile, pixels, model, work, rate, batch_size
):  # fmt: skip
    """The steps of `run_steps` by one thread, of which only the first parts of `LOOP_PARTS` are made."""
    scale = np.float32(-rate / batch_size)
    for step in range(len(starts)):
        start, total = starts[step], 0.0
        for i in range(0, batch_size if n_parts > 0 else 0, TOGETHER):
            j = min(i + TOGETHER, batch_size)
            forward_first(i, j, start, images, model, work.activations)
            if n_parts > 1:
                forward_deeper(i, j, model, work.activations)
            if n_parts > 2:
                total += cross_entropy(i, j, start, labels, scale, model, work.activations, work.errors)
            if n_parts > 3:
                backward(i, j, model, work, work.panels[0])
        if n_parts > 4:
            update_first(start, batch_size, images, by_pixel, tile, 0, pixels[-1], model, work.errors)
        if n_parts > 5:
            update_deeper(0, 1, batch_size, model, work)
        losses[step] = total / batch_size
