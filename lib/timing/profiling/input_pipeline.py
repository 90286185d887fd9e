"""What feeds a step with batches: the data set alone, the step alone, both together, and how long the step waits.

The preprocessing of an image is a stated amount of processor time, calibrated here: Python code that holds the
interpreter's lock (GIL), or compiled code that releases it, as image decoders do. It leaves the image as it is. The
feeds themselves are in `with_tensorflow` and `with_torch`.

Each stretch of batches has a fresh iterator, whose first batches are not timed: a pipeline that works ahead in threads
of its own must neither bring batches along from the time in which something else was measured, nor work on meanwhile:
after the last batch that is asked for, it rests.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from lib.model.data.mnist import Data
from lib.timing.profiling.harness import ROUNDS, Batch, Row, Subject, row_of
from lib.timing.profiling.request import NotMeasured, Pipeline

QUANTITIES = ("data", "step", "both", "waits", "preprocessing", "first")
FIRST_BATCHES = 2  # of a fresh iterator: not timed
MIN_BATCHES, STRETCH_S = 3, 0.03  # of a timed stretch
PAUSE_S = 0.05  # between two places to stop
ENOUGH = ((6, 4.0), (3, 20.0))  # slow batches: fewer rounds than `ROUNDS`, from so many and so many seconds on
TRIES, TRY_S = 200, 2e-4  # to see how long a repetition of the preprocessing takes

_clock = time.perf_counter


@dataclass(frozen=True)
class Preprocessing:
    """So many repetitions of work on one image, which stays as it is. Can be sent to other processes."""

    repetitions: int
    holds_lock: bool

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """The image (784,), after the work."""
        if self.holds_lock:
            _checksum(image.tobytes(), self.repetitions)
        elif self.repetitions:
            hashlib.pbkdf2_hmac("sha256", image.tobytes(), b"", self.repetitions)  # releases the interpreter's lock
        return image

    def all_of(self, images: np.ndarray) -> np.ndarray:
        """The images (n, 784), after the work on each, one after another."""
        if self.repetitions:
            for image in images:
                self(image)
        return images


def _checksum(pixels: bytes, repetitions: int) -> int:
    total = 0
    for k in range(repetitions):
        total = (33 * total + pixels[k % 784]) & 0xFFFFFF
    return total


def calibrated(pipeline: Pipeline) -> Preprocessing:
    """As many repetitions as take the pipeline's milliseconds on one core of this machine when nothing disturbs it."""
    if not pipeline.preprocessing_ms:
        return Preprocessing(0, pipeline.holds_lock)
    repetitions = round(1e-3 * pipeline.preprocessing_ms / _repetition_s(pipeline.holds_lock))
    return Preprocessing(max(1, repetitions), pipeline.holds_lock)


@cache
def _repetition_s(holds_lock: bool) -> float:
    """Seconds of one repetition: of many short tries the quickest, which is the one that nothing disturbed.

    Once in a process, so that all of its pipelines have the same work.
    """
    image, repetitions = np.zeros(784, np.float32), 1
    while _quickest(Preprocessing(repetitions, holds_lock), image, 3) < TRY_S:
        repetitions *= 2
    took_s = _quickest(Preprocessing(repetitions, holds_lock), image, TRIES)
    return (took_s - _quickest(Preprocessing(1, holds_lock), image, TRIES)) / (repetitions - 1)


def _quickest(preprocess: Preprocessing, image: np.ndarray, tries: int) -> float:
    def once() -> float:
        before = _clock()
        preprocess(image)
        return _clock() - before

    return min(once() for _ in range(tries))


class Feed(ABC):
    """What a library makes of a pipeline: fresh iterators over its batches, for ever, and the step that takes them."""

    @abstractmethod
    def open(self) -> Iterator[Any]:
        """A fresh iterator. The one before is not used any more."""

    @abstractmethod
    def rest(self) -> int:
        """Make no more batches until it is opened again; how many may still be on their way."""

    @abstractmethod
    def step(self, batch: Any) -> object:
        """One training step, waited for."""

    def fill_batches(self) -> int:
        """How many batches have to be read once before it is what it is to be: those of a cache."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """End its threads and processes."""


def rows_of(data: Data, rows: int) -> Batch:
    """The first rows of the training images (rows, 784) and labels (rows,); repeated where there are too few."""
    if rows <= len(data.x_train):
        return data.x_train[:rows], data.y_train[:rows]
    index = np.arange(rows) % len(data.x_train)
    return data.x_train[index], data.y_train[index]


def measure_pipelines(library: Any, subject: Subject, pipelines: Sequence[Pipeline]) -> Iterator[Row | None]:
    """Measure pipelines in turns, round by round, so that drift is the same for all.

    Args:
        library: The module whose feeds they are: `with_tensorflow` or `with_torch`.
        subject: Network, data and device; each pipeline has a batch size of its own.
        pipelines: One, or several that are compared.

    Yields:
        None at each place to stop; then a row for each pipeline and each of `QUANTITIES`, named `0/data` and so on by
        its place among the pipelines. Seconds of a batch, but `first`, the seconds from asking for the first batch of
        all until it is there, and `preprocessing`, the seconds of one image, alone.

    Raises:
        NotMeasured: A pipeline raised an error, or its cache would take too long to fill.
    """
    opened: list[_Rounds] = []
    try:
        for pipeline in pipelines:
            preprocess = calibrated(pipeline)
            opened.append(_Rounds(library.feed(pipeline, preprocess, subject), preprocess, library.explained))
            yield from opened[-1].prepare()
        rng, began = np.random.default_rng(0), _clock()
        for number in range(ROUNDS):
            for index in rng.permutation(len(opened)):
                yield from opened[index].round()
            spent_s = (_clock() - began) / len(opened)
            if any(number + 1 >= rounds and spent_s > seconds for rounds, seconds in ENOUGH):
                break
        for index, rounds in enumerate(opened):
            for name, values in rounds.found.items():
                yield row_of(f"{index}/{name}", values)
    finally:
        for rounds in opened:
            rounds.feed.close()


@dataclass
class _Rounds:
    """One pipeline, being measured round by round."""

    feed: Feed
    preprocess: Preprocessing
    explained: Callable[[Exception], str]
    found: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in QUANTITIES})

    def prepare(self) -> Iterator[None]:
        """Note when the first batch is there, compile the step, and let the feed get ready: a cache is filled."""
        # In a thread: while other processes start, this one does nothing for seconds, and would be taken for hung.
        with ThreadPoolExecutor(1) as thread:
            opened = thread.submit(self._open)
            while not wait([opened], PAUSE_S).done:
                yield
        batches = opened.result()
        self.feed.step(self._ready)
        yield
        for _ in range(self.feed.fill_batches()):
            self._next(batches)
            yield
        self.feed.rest()

    def _open(self) -> Iterator[Any]:
        before = _clock()
        batches = self.feed.open()
        self._ready = self._next(batches)
        self.found["first"].append(_clock() - before)
        return batches

    def round(self) -> Iterator[None]:
        data_s, _ = yield from self._stretch(self.feed.open(), None)
        yield
        both_s, waits_s = yield from self._stretch(self.feed.open(), self.feed.step)
        until = _clock() + self.feed.rest() * data_s
        while (left_s := until - _clock()) > 0:
            time.sleep(min(left_s, PAUSE_S))
            yield
        step_s, _ = yield from self._stretch(None, self.feed.step)
        yield
        image = np.zeros(784, np.float32)
        before = _clock()
        self.preprocess(image)
        values = {"data": data_s, "step": step_s, "both": both_s, "waits": waits_s, "preprocessing": _clock() - before}
        for name, value in values.items():
            self.found[name].append(value)
        yield

    def _stretch(
        self, batches: Iterator[Any] | None, step: Callable[[Any], object] | None
    ) -> Generator[None, None, tuple[float, float]]:
        """Seconds of a batch, and those of them in which nothing but the next batch was waited for.

        Args:
            batches: None: the same batch again and again, which is there already.
            step: None: each batch is dropped.
        """
        for _ in range(FIRST_BATCHES if batches is not None else 0):
            self._next(batches)
        total_s = waited_s = 0.0
        count, stopped_at = 0, _clock()
        while count < MIN_BATCHES or total_s < STRETCH_S:
            before = _clock()
            batch = self._ready if batches is None else self._next(batches)
            there = _clock()
            if step is not None:
                step(batch)
            after = _clock()
            total_s, waited_s, count = total_s + after - before, waited_s + there - before, count + 1
            if after - stopped_at > PAUSE_S:
                yield
                stopped_at = _clock()
        return total_s / count, waited_s / count

    def _next(self, batches: Iterator[Any] | None) -> Any:
        assert batches is not None, "opened"
        try:
            return next(batches)
        except Exception as error:  # whatever the reader's own code raises there
            raise NotMeasured(f"reading a batch raised {self.explained(error)}") from error
