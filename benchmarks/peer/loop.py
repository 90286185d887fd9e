"""The loop around a peer's own code: the order of batches, the clock, the accuracy. The same for all of them.

The first epoch includes what a library pays once (tracing, compiling); whoever measures leaves it out.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from lib.model.backends.base import Epoch, Event, Parameters, Steps
from lib.model.backends.with_numpy import evaluate
from lib.model.data.mnist import Data, aligned, batch_starts
from lib.model.spec import Training

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
    for epoch in range(training.epochs):
        starts = batch_starts(len(data.x_train), training.batch_size, training.seed, epoch).tolist()
        before = time.perf_counter()
        losses = np.asarray(read([step(start) for start in starts]), np.float32)
        yield from _ended(epoch, losses, time.perf_counter() - before, data, parameters)


def by_fit(
    training: Training,
    data: Data,
    fit: Callable[[np.ndarray, np.ndarray, int], Iterable[float]],
    restart: Callable[[], None],
    parameters: Callable[[], Parameters],
) -> Iterator[Event]:
    """For a library that has the loop: `fit` trains a number of epochs on the arrays, in order, and yields each
    epoch's mean loss; the next epoch waits until it is asked for.

    Every epoch has the order of the first, because arrays are given once. The library tells no loss of a single step:
    the checked ones are a `fit` each, ahead of the training, which `restart` lets begin from where they did.
    """
    size = training.batch_size
    starts = batch_starts(len(data.x_train), size, training.seed, 0)
    x, y = aligned((len(starts) * size, data.x_train.shape[1]), np.float32), aligned((len(starts) * size,), np.int32)
    batches = [slice(index * size, (index + 1) * size) for index in range(len(starts))]
    for batch, start in zip(batches, starts, strict=True):
        x[batch], y[batch] = data.x_train[start : start + size], data.y_train[start : start + size]
    checked = [loss for batch in batches[:CHECKED_STEPS] for loss in fit(x[batch], y[batch], 1)]
    restart()
    before = time.perf_counter()
    for epoch, loss in enumerate(fit(x, y, training.epochs)):
        train_s = time.perf_counter() - before
        losses = np.full(len(batches), loss, np.float32)
        losses[: len(checked)] = checked if epoch == 0 else loss
        yield from _ended(epoch, losses, train_s, data, parameters)
        before = time.perf_counter()


def _ended(
    epoch: int, losses: np.ndarray, train_s: float, data: Data, parameters: Callable[[], Parameters]
) -> Iterator[Event]:
    """What an epoch did; its accuracy is by one judge for all, whatever the library has for it."""
    yield Steps(epoch, 0, losses, train_s)
    before = time.perf_counter()
    loss, accuracy = evaluate(parameters(), data.x_validation, data.y_validation)
    yield Epoch(epoch, len(losses), loss, accuracy, train_s, time.perf_counter() - before, parameters)
