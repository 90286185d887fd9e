"""The step that is taken apart, what all experiments on it share, and what feeds it with batches.

A pipeline (`measure_pipelines`) is measured alone, beside the step alone, and with it. The preprocessing of an image is
a stated amount of processor time, calibrated here: Python code that holds the interpreter's lock (GIL), or compiled
code that releases it, as image decoders do. It leaves the image as it is. The feeds are in `with_tensorflow` and
`with_torch`. Each stretch of batches has a fresh iterator, whose first batches are not timed: a pipeline that works
ahead in threads of its own must neither bring batches along from the time in which something else was measured, nor
work on meanwhile: after the last batch that is asked for, it rests.
"""

# pyright: reportMissingImports=false
# PyTorch and CuPy are optional.

import hashlib
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, repeat
from typing import Any

import numpy as np

from lib.model.backends.base import Event, Parameters, Steps, initial_parameters
from lib.model.backends.registry import load_train
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training
from lib.timing.measurement import Config, Ended, Measurement, Meter, Step, Sync, no_wait
from lib.timing.profiling.request import NotMeasured, Pipeline

TINY = Network((1,))
ROUNDS = 9  # of all experiments, in turns
CONFIG = Config(warm_up_s=0.02, min_block_s=5e-3, min_time_s=0.1, max_time_s=0.4, spread_target=0.05)
# Steps that are not waited for one by one: a block as long as a chunk of training, or filling and draining the queue
# would count.
IN_A_ROW = replace(CONFIG, min_block_s=0.04)
BURSTS = 8  # before a short block counts: what ran in between has emptied the caches
REAL_S = 0.05  # of real training in a block
ONE_CALL_S = 0.03  # of steps in a compiled loop

Row = tuple[str, Measurement, float]  # name, measurement, how many training steps one measured step stands for
Batch = tuple[np.ndarray, np.ndarray]  # images (batch, 784), labels (batch,)

QUEUED = 256  # calls at a time: a card's queue holds some thousand launches, and a call makes a few
MOST_HOLDS = 512
POLL_S = 0.02  # between two looks at a process
HOLD_SIDE = 2048  # of a product of square matrices: tenths of a millisecond on the fastest card


def row_of(name: str, values: Iterable[float], work: float = 1.0) -> Row:
    """A row of these values, of blocks of one step each."""
    return name, Measurement(tuple(map(float, values)), 1, Ended.CAP), work


@dataclass(frozen=True)
class TimedStep:
    """A library's step, from which `lib.timing.profiling.run` makes the right way to time it and the wrong ones.

    Args:
        call: Makes a step on data that is on the device, and returns what `wait` waits for.
        wait: Until what a call returned is there.
        with_transfer: Brings a batch from the host's memory, in a new array as a loader makes it, makes a step on it,
            and waits.
        fresh: Makes another `call`, whose first one compiles what was never compiled in this process.
        queued: Calls that return without waiting for an earlier one, at most.
    """

    call: Step
    wait: Sync
    with_transfer: Step
    fresh: Callable[[], Step]
    queued: int = 16


# What can be measured in turns with others: the first value comes when it is warm and knows how long a block has to be,
# each later one is the seconds of one training step, from one block.
StepExperiment = Generator[float, None, None]


def repeated(
    call: Step,
    sync: Sync = no_wait,
    steps: float = 1.0,
    config: Config = CONFIG,
    returns: bool = False,
    at_most: int = 16,
) -> StepExperiment:
    """A call, made again and again, and measured in blocks.

    Args:
        call: What is measured.
        sync: Waits for what the last call of a block returned.
        steps: Training steps that one call stands for.
        config: When a block is long enough.
        returns: Measure only until the call returns: `sync` then runs untimed, and blocks are short, so that no queue
            fills up; of `BURSTS` the last counts.
        at_most: Calls in a block where `returns` is set; 1 for a long call, of which there are no bursts either.
    """
    config = replace(config, max_steps_per_block=at_most) if returns else config
    meter = Meter(call, sync, config, time.perf_counter, wait_in_block=not returns)
    meter.warm_up()
    meter.find_block_size()
    yield 0.0
    while True:
        for _ in range(BURSTS if returns and at_most > 1 else 1):
            meter.block()
        yield meter.blocks[-1] / meter.steps_per_block / steps


def self_timed(block: Callable[[], float]) -> StepExperiment:
    """A block that times itself: a function that returns the seconds of one training step."""
    while True:
        yield block()


def in_one_call(call: Callable[[int], object], sync: Sync) -> StepExperiment:
    """A compiled loop over as many steps as take `ONE_CALL_S`; the first value is the seconds of compiling it.

    Args:
        call: `call(n)` makes n steps.
        sync: Waits for what it returned.
    """
    began = time.perf_counter()
    sync(call(2))  # compiles
    first_call_s = (before := time.perf_counter()) - began
    sync(call(8))
    steps = int(np.clip(8 * ONE_CALL_S / (time.perf_counter() - before), 4, 4096))
    blocks = repeated(lambda: call(steps), sync, steps)
    next(blocks)
    yield first_call_s
    yield from blocks


def endless_training(backend: str, subject: "Subject") -> Generator[Event, None, None]:
    """The events of a backend's own training of a step, again and again: few images make its epochs end soon."""
    while True:
        yield from load_train(backend)(subject.training, subject.data, subject.device)


def trained_step(backend: str, subject: "Subject", busy_s: list[float] | None = None) -> StepExperiment:
    """The backend's own training; a block is its `Steps` until they took `REAL_S`, evaluations left out.

    It must be closed in the end.

    Args:
        backend: Key of the backend.
        subject: The step.
        busy_s: Gets the processor seconds of all cores, a step, of each block.
    """
    events = endless_training(backend, subject)
    try:
        for limit_s in chain([0.0], repeat(REAL_S)):  # the first steps warm up
            train_s, steps, worked_s, used_s = 0.0, 0, 0.0, time.process_time()
            while not steps or train_s < limit_s:
                event, now_s = next(events), time.process_time()
                if isinstance(event, Steps):
                    train_s, steps = train_s + event.train_s, steps + len(event.losses)
                    worked_s += now_s - used_s
                used_s = now_s  # not across an evaluation
            if busy_s is not None:
                busy_s.append(worked_s / steps)
            yield train_s / steps
    finally:
        events.close()


@dataclass(frozen=True)
class CardQueue:
    """What a library can do with its card's queue.

    Args:
        hold: Puts one piece of long work into the queue.
        mark: Puts an event into the queue, and returns it.
        passed: Whether the card has come to an event.
        between_s: Waits for the second of two events; seconds from the first to it, by the card's clock.
    """

    hold: Callable[[], object]
    mark: Callable[[], Any]
    passed: Callable[[Any], bool]
    between_s: Callable[[Any, Any], float]


def on_card(calls: Sequence[Step], card: CardQueue) -> StepExperiment:
    """Several calls, queued one after another, timed by the card's own events.

    The host's clock cannot see them: a kernel of two microseconds lasts as long as its launch. So the card is first
    held by long work; the calls are queued behind that, between two events, and when the card comes to them it goes
    from one to the next without anybody. Where it had passed the first event before the last call was queued, it has
    waited for the host: that figure is thrown away, and the card held for longer.

    Args:
        calls: Together they make one training step; none of them may wait for the card.
        card: Whose queue they go into.

    Raises:
        RuntimeError: The calls cannot be queued while the card is held: one of them waits for it.
    """
    repetitions, holds = max(1, QUEUED // len(calls)), 1

    def timed() -> float | None:
        """Seconds of all repetitions; None where the card waited for the host meanwhile."""
        for _ in range(holds):
            card.hold()
        first = card.mark()
        for _ in range(repetitions):
            for call in calls:
                call()
        last = card.mark()
        waited = card.passed(first)
        spent_s = card.between_s(first, last)
        return None if waited else spent_s

    timed()  # compiles, and loads what is loaded late
    while True:
        while (spent_s := timed()) is None:
            if repetitions == 1 and holds >= MOST_HOLDS:
                raise RuntimeError(
                    f"expected {len(calls)} calls to be queued within {MOST_HOLDS} products of {HOLD_SIDE:,}, and the"
                    " card was done with these before: one of the calls waits for it; leave that one out"
                )
            repetitions, holds = max(1, repetitions // 2), min(2 * holds, MOST_HOLDS)
        yield spent_s / repetitions


def torch_card() -> CardQueue:
    """PyTorch's card."""
    import torch

    a, out = (torch.ones(HOLD_SIDE, HOLD_SIDE, device="cuda") for _ in range(2))
    return _card(
        lambda: torch.mm(a, a, out=out),
        lambda: torch.cuda.Event(enable_timing=True),
        lambda event: event.query(),
        lambda first, last: first.elapsed_time(last),
    )


def cupy_card() -> CardQueue:
    """CuPy's card."""
    import cupy as cp

    a, out = (cp.ones((HOLD_SIDE, HOLD_SIDE), np.float32) for _ in range(2))
    return _card(lambda: cp.matmul(a, a, out=out), cp.cuda.Event, lambda event: event.done, cp.cuda.get_elapsed_time)


def _card(
    hold: Callable[[], object],
    new: Callable[[], Any],
    passed: Callable[[Any], bool],
    between_ms: Callable[[Any, Any], float],
) -> CardQueue:
    def mark() -> Any:
        event = new()
        event.record()
        return event

    def between_s(first: Any, last: Any) -> float:
        last.synchronize()
        return between_ms(first, last) / 1e3

    return CardQueue(hold, mark, passed, between_s)


def interleaved(experiments: Mapping[str, StepExperiment], rounds: int = ROUNDS) -> Iterator[Row | None]:
    """Measure blocks of all experiments in turns, in a new random order each round, so that drift is the same for all.

    Args:
        experiments: By the name of their row.
        rounds: Blocks of each experiment.

    Yields:
        None after each block, so that the caller can stop it; in the end a row for each experiment, whose blocks are
        seconds of one training step.
    """
    for experiment in experiments.values():
        next(experiment)
        yield None
    rng, names = np.random.default_rng(0), list(experiments)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for index in rng.permutation(len(names)):
            found[names[index]].append(next(experiments[names[index]]))
            yield None
    yield from (row_of(name, blocks) for name, blocks in found.items())


def in_a_fresh_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    what: str,
    error: type[RuntimeError] = RuntimeError,
) -> Generator[None, None, str]:
    """Run a command, which can be stopped while it runs; the value is what it printed.

    Args:
        command: Its words.
        environment: Its environment variables.
        limit_s: After which it is ended.
        what: It is, in the error.
        error: That is raised where it fails or takes too long; the text has the last line that it wrote.
    """
    # No pipes: nobody reads before the end, and a full one is waited for.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        began_s = time.perf_counter()
        with subprocess.Popen(command, env=environment, stdout=said, stderr=complaints) as process:
            try:
                while process.poll() is None:
                    if time.perf_counter() - began_s > limit_s:
                        raise error(f"{what} took more than {limit_s:.0f} s")
                    yield
                    time.sleep(POLL_S)
            finally:
                process.kill()
        said.seek(0)
        complaints.seek(0)
        if process.returncode:
            last = (complaints.read().strip().splitlines() or ["nothing was written"])[-1]
            raise error(f"{what} ended with {process.returncode}: {last}")
        return said.read()


@dataclass(frozen=True)
class Subject:
    """A step to take apart: its network, its batch, and the data and device that it runs on."""

    network: Network
    batch_size: int
    data: Data
    device: str

    @property
    def tiny(self) -> "Subject":
        """The same step with next to nothing to compute: one hidden neuron, one image."""
        return replace(self, network=TINY, batch_size=1)

    @property
    def parameters(self) -> Parameters:
        """The parameters that the step begins with."""
        return initial_parameters(self.network, 0)

    @property
    def training(self) -> Training:
        """A training at so small a learning rate that many steps change next to nothing, and none ends as NaN."""
        return Training(self.network, 1e-6, self.batch_size, 100)

    @property
    def starts(self) -> list[int]:
        """Index of the first image of each batch of an epoch."""
        return batch_starts(len(self.data.x_train), self.batch_size, 0, 0).tolist()

    @property
    def batch(self) -> Batch:
        """The first batch of the data: images (batch, 784) and labels (batch,)."""
        return self.data.x_train[: self.batch_size], self.data.y_train[: self.batch_size]


def loop(subject: Subject, call: Callable[[np.ndarray, np.ndarray], object]) -> Step:
    """A step that takes the next batch from the data, as the backends' loops do, and passes it to a call.

    Args:
        subject: Whose batches are taken; after the last the first comes again.
        call: Receives images (batch, 784) and labels (batch,).
    """
    x, y, size, starts = subject.data.x_train, subject.data.y_train, subject.batch_size, subject.starts
    number = 0

    def one() -> object:
        nonlocal number
        start = starts[number]
        number = number + 1 if number + 1 < len(starts) else 0
        return call(x[start : start + size], y[start : start + size])

    return one


def nothing(_x: np.ndarray, _y: np.ndarray) -> None:
    """Stands in for the library's call, and does nothing."""


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
