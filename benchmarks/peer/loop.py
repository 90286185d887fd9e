"""The loop around a peer's own code: the order of batches, the clock, the accuracy. The same for all of them.

The first epoch includes what a library pays once (tracing, compiling); whoever measures leaves it out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from lib.backends.base import Epoch, Event, Parameters, Steps
from lib.backends.with_numpy import evaluate
from lib.data.mnist import Data, aligned, batch_starts
from lib.spec import Training

PART_S = 3.0  # an epoch is interrupted only where it takes longer
CHECKED_STEPS = 20  # whose losses are compared between all participants

Loss = TypeVar("Loss")


def by_step(
    training: Training,
    data: Data,
    step: Callable[[int], Loss],
    read: Callable[[Sequence[Loss]], Sequence[float] | np.ndarray],
    parameters: Callable[[], Parameters],
) -> Iterator[Event]:
    """For a library whose users write the loop: `step` gets a batch's first image, `read` waits for the losses."""
    clock = time.perf_counter
    for epoch in range(training.epochs):
        starts = batch_starts(len(data.x_train), training.batch_size, training.seed, epoch).tolist()
        done, train_s = 0, 0.0
        while done < len(starts):
            losses, before = [], clock()
            while done + len(losses) < len(starts) and clock() - before < PART_S:
                losses.append(step(starts[done + len(losses)]))
            values = np.asarray(read(losses), np.float32)
            part_s = clock() - before
            yield Steps(epoch, done, values, part_s)
            done, train_s = done + len(losses), train_s + part_s
        yield _end(epoch, done, train_s, data, parameters)


def by_fit(
    training: Training,
    data: Data,
    fit: Callable[[np.ndarray, np.ndarray], float],
    parameters: Callable[[], Parameters],
) -> Iterator[Event]:
    """For a library that has the loop: `fit` trains once over what it gets, in order, and returns the mean loss.

    The images are put into the epoch's order before the clock starts. In the first epoch, which nobody times, the
    checked steps are a `fit` each, because the library tells no loss of a single step.
    """
    size, step_s = training.batch_size, 0.0
    n_steps = training.steps_per_epoch(len(data.x_train))
    x, y = aligned((n_steps * size, data.x_train.shape[1]), np.float32), aligned((n_steps * size,), np.int32)
    for epoch in range(training.epochs):
        for index, start in enumerate(batch_starts(len(data.x_train), size, training.seed, epoch)):
            x[index * size : (index + 1) * size] = data.x_train[start : start + size]
            y[index * size : (index + 1) * size] = data.y_train[start : start + size]
        done, train_s = 0, 0.0
        while done < n_steps:
            wanted = round(PART_S / step_s) if step_s else n_steps
            steps = 1 if epoch == 0 and done < CHECKED_STEPS else max(1, min(wanted, n_steps - done))
            part = slice(done * size, (done + steps) * size)
            before = time.perf_counter()
            loss = fit(x[part], y[part])
            part_s = time.perf_counter() - before
            yield Steps(epoch, done, np.full(steps, loss, np.float32), part_s)
            done, train_s = done + steps, train_s + part_s
            step_s = part_s / steps if steps > 1 else step_s
        yield _end(epoch, done, train_s, data, parameters)


def _end(epoch: int, steps: int, train_s: float, data: Data, parameters: Callable[[], Parameters]) -> Epoch:
    """The accuracy by one judge for all, whatever the library has for it."""
    before = time.perf_counter()
    loss, accuracy = evaluate(parameters(), data.x_validation, data.y_validation)
    return Epoch(epoch, steps, loss, accuracy, train_s, time.perf_counter() - before, parameters)
