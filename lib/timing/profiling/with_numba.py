"""Experiments on Numba's training, which is one compiled loop."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from lib.model.backends.base import CHUNK_S
from lib.model.backends.with_numba import OPTIONS, Entries, given, in_threads, threads_for
from lib.timing.measurement import no_wait
from lib.timing.profiling.harness import StepExperiment, Subject, in_one_call, loop, nothing, repeated


def experiments(_backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments of `lib.timing.profiling.run` on Numba, by name."""
    on = given(subject.training, subject.data, 1, subject.parameters)
    starts, size = np.array(subject.starts, np.int32), subject.batch_size
    no_step, steps = _steps(subject.tiny), max(1, min(len(starts), round(CHUNK_S / _step_s(subject))))
    return {
        "python": repeated(loop(subject, nothing), steps=steps),
        "returns": repeated(lambda: no_step(0), steps=steps),
        # The next batch comes from main memory; a repeated batch is in the cache.
        "transfer": in_one_call(lambda n: fetch(on.images, np.resize(starts, n), size), no_wait),
        "transfer-base": in_one_call(lambda n: fetch(on.images, np.zeros(n, np.int32), size), no_wait),
        "many": in_one_call(_steps(subject), no_wait),
        "many-tiny": in_one_call(_steps(subject.tiny), no_wait),
    }


def _steps(subject: Subject):
    threads = threads_for(subject.training)
    others, on = (
        ThreadPoolExecutor(max(1, threads - 1)),
        given(subject.training, subject.data, threads, subject.parameters),
    )

    def call(n: int) -> None:
        in_threads(others, threads, np.zeros(n, np.int32), 0, n, np.empty(n, np.float32), *on)

    return call


def _step_s(subject: Subject) -> float:
    few = in_one_call(_steps(subject), no_wait)
    next(few)
    return next(few)


@njit(**OPTIONS)
def fetch(images: Entries, starts, batch_size):
    """Sum all entries of these batches, to read them with hardly any arithmetic."""
    total = 0.0
    for start in starts:
        for e in range(images.starts[start], images.starts[start + batch_size]):
            total += images.indices[e] * images.values[e]
    return total
