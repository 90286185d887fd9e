"""The profiled step, the code that all experiments on it share, and the measurement of input pipelines.

`measure_pipeline` measures a pipeline alone, the step alone, and both together. Preprocessing an image takes a given
processor time, calibrated here, and leaves the image unchanged. It is Python code that holds the interpreter's lock
(GIL), or compiled code that releases it, as image decoders do. The feeds are in `with_tensorflow` and `with_torch`.
Each stretch of batches has a fresh iterator, whose first batches are not timed: a pipeline that works ahead in its own
threads must not carry over batches made during other measurements. Nor may it work during them, so the iterator is
dropped after the last requested batch.
"""

import hashlib
import math
import re
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from lib.model.backends.base import Event, Parameters, Steps, initial_parameters
from lib.model.backends.registry import load_train
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training
from lib.timing.measurement import Config, Ended, Measurement, Meter, Step, Sync, no_wait
from lib.timing.profiling.request import NotMeasured, Pipeline

TINY = Network((1,))
ROUNDS = 9  # blocks of each experiment; experiments take turns
CONFIG = Config(warm_up_s=0.02, min_block_s=5e-3, min_time_s=0.1, max_time_s=0.4, spread_target=0.05)
# For steps without a wait after each. Blocks are as long as a chunk of training, or else filling and draining the queue
# would count.
IN_A_ROW = replace(CONFIG, min_block_s=0.04)
BURSTS = 8  # short blocks per round; only the last counts, because the other experiments have emptied the caches
REAL_S = 0.05  # seconds of real training in a block
ONE_CALL_S = 0.03  # seconds of steps in a compiled loop

Row = tuple[str, Measurement, float]  # name, measurement, number of training steps that one measured step stands for
Batch = tuple[np.ndarray, np.ndarray]  # images (batch, 784), labels (batch,)

QUEUED = 256  # calls: a card's queue holds about a thousand launches, and a call makes a few
MOST_HOLDS = 512
POLL_S = 0.02  # between two polls of a process
HOLD_SIDE = 2048  # side of square matrices whose product holds a card for tenths of a millisecond, even the fastest


def row_of(name: str, values: Iterable[float], work: float = 1.0) -> Row:
    """Return a row of these values, as blocks of one step each."""
    return name, Measurement(tuple(map(float, values)), 1, Ended.CAP), work


@dataclass(frozen=True)
class TimedStep:
    """A library's step, which `lib.timing.profiling.run` times in the right way and in wrong ways.

    Args:
        call: Make a step on data on the device; `wait` takes the result.
        wait: Wait until the result of a call is ready.
        with_transfer: Move a batch from host memory, in a new array as a loader makes it, make a step on it, and wait.
        fresh: Return a new `call`, whose first use compiles a program never compiled in this process.
        queued: Maximum number of calls that return without waiting for an earlier one.
    """

    call: Step
    wait: Sync
    with_transfer: Step
    fresh: Callable[[], Step]
    queued: int = 16


# An experiment that takes turns with others. It yields a first value once it is warm and knows its block size, then
# the seconds of one training step from each block.
StepExperiment = Generator[float, None, None]


def repeated(
    call: Step,
    sync: Sync = no_wait,
    steps: float = 1.0,
    config: Config = CONFIG,
    returns: bool = False,
    at_most: int = 16,
) -> StepExperiment:
    """Measure a repeated call in blocks.

    Args:
        call: The call to measure.
        sync: Waits for the result of a block's last call.
        steps: Training steps that one call stands for.
        config: When a block is long enough.
        returns: Measure only until the call returns. `sync` then runs untimed, and blocks are short, so that no queue
            fills up; the last of `BURSTS` blocks counts.
        at_most: Maximum number of calls in a block if `returns` is set; 1 for a long call, which has no bursts.
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
    """Measure a block that times itself and returns the seconds of one training step."""
    while True:
        yield block()


def in_one_call(call: Callable[[int], object], sync: Sync) -> StepExperiment:
    """Measure a compiled loop of about `ONE_CALL_S`; the first value is the seconds of the call that compiles it.

    Args:
        call: `call(n)` makes n steps.
        sync: Waits for the result of `call`.
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
    """Yield the events of a backend's own training, restarted forever: with few images its epochs end soon."""
    while True:
        yield from load_train(backend)(subject.training, subject.data, subject.device)


def trained_step(backend: str, subject: "Subject", busy_s: list[float]) -> StepExperiment:
    """Measure the backend's own training, in blocks of `REAL_S` without evaluations. Close it when done.

    Args:
        backend: Key of the backend.
        subject: The step.
        busy_s: Receives each block's processor seconds per step, over all cores.
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
            busy_s.append(worked_s / steps)
            yield train_s / steps
    finally:
        events.close()


def on_card(calls: Sequence[Step], hold: Callable[[], object], event: Callable[[], Any]) -> StepExperiment:
    """Measure calls, queued one after another, by the card's own events.

    The host's clock cannot time them: a kernel of two microseconds takes as long as its launch. So long work first
    holds the card, and the calls are queued behind it, between two events. The card then runs them without waiting for
    the host. If it passes the first event before the last call is queued, it has waited for the host: the figure is
    discarded, and the card is held for longer.

    Args:
        calls: Together they make one training step; none may wait for the card.
        hold: Queues one long piece of work.
        event: Returns a new event with the methods of `torch.cuda.Event`.

    Raises:
        RuntimeError: The calls cannot be queued while the card is held, because one of them waits for it.
    """
    repetitions, holds = max(1, QUEUED // len(calls)), 1

    def timed() -> float | None:
        """Return the seconds of all repetitions, or None if the card waited for the host meanwhile."""
        first, last = event(), event()
        for _ in range(holds):
            hold()
        first.record()
        for _ in range(repetitions):
            for call in calls:
                call()
        last.record()
        waited = first.query()
        last.synchronize()
        return None if waited else first.elapsed_time(last) / 1e3

    timed()  # compiles, and triggers lazy loading
    while True:
        while (spent_s := timed()) is None:
            if repetitions == 1 and holds >= MOST_HOLDS:
                raise RuntimeError(
                    f"expected {len(calls)} calls to be queued within {MOST_HOLDS} products of {HOLD_SIDE:,}, but"
                    " the GPU finished those first: one of the calls waits for it; leave that call out"
                )
            repetitions, holds = max(1, repetitions // 2), min(2 * holds, MOST_HOLDS)
        yield spent_s / repetitions


def interleaved(experiments: Mapping[str, StepExperiment], rounds: int = ROUNDS) -> Iterator[Row | None]:
    """Measure blocks of all experiments in turns, in a new random order each round, so that drift affects all alike.

    Args:
        experiments: Experiments by the name of their row.
        rounds: Blocks of each experiment.

    Yields:
        None after each block, so that the caller can stop; finally a row for each experiment, whose blocks are seconds
        of one training step.
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
) -> Generator[None, None, str]:
    """Run a command and return its output; closing the generator kills it.

    Args:
        command: The command's words.
        environment: Its environment variables.
        limit_s: Seconds after which it is killed.
        what: Its description in error messages.

    Raises:
        RuntimeError: It failed or took too long; for a failure, the text quotes the last line of its error output.
    """
    # No pipes: they are not read before the end, and the command would block on a full one.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        began_s = time.perf_counter()
        with subprocess.Popen(command, env=environment, stdout=said, stderr=complaints) as process:
            try:
                while process.poll() is None:
                    if time.perf_counter() - began_s > limit_s:
                        raise RuntimeError(f"{what} took longer than {limit_s:.0f} s")
                    yield
                    time.sleep(POLL_S)
            finally:
                process.kill()
        said.seek(0)
        complaints.seek(0)
        if process.returncode:
            last = (complaints.read().strip().splitlines() or ["it wrote nothing; often memory has run out"])[-1]
            raise RuntimeError(f"{what} exited with {process.returncode}: {last}")
        return said.read()


@dataclass(frozen=True)
class Subject:
    """A step to profile: its network, its batch, and the data and device that it runs on."""

    network: Network
    batch_size: int
    data: Data
    device: str

    @property
    def tiny(self) -> "Subject":
        """The same step with almost nothing to compute: one hidden neuron, one image."""
        return replace(self, network=TINY, batch_size=1)

    @property
    def parameters(self) -> Parameters:
        return initial_parameters(self.network, 0)

    @property
    def training(self) -> Training:
        """A training whose learning rate is so small that many steps change almost nothing and never reach NaN."""
        return Training(self.network, 1e-6, self.batch_size, 100)

    @property
    def starts(self) -> list[int]:
        """Index of the first image of each batch in an epoch."""
        return batch_starts(len(self.data.x_train), self.batch_size, 0, 0).tolist()

    @property
    def batch(self) -> Batch:
        """The first batch of the data: images (batch, 784) and labels (batch,)."""
        return self.data.x_train[: self.batch_size], self.data.y_train[: self.batch_size]


def loop(subject: Subject, call: Callable[[np.ndarray, np.ndarray], object]) -> Step:
    """Return a step that takes the next batch, like the backends' loops, and passes it to a call.

    Args:
        subject: Source of the batches; after the last comes the first.
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


def nested_sine(sine: Callable, depth: int) -> Callable:
    def nested(x):
        for _ in range(depth):
            x = sine(x)
        return x

    return nested


def nothing(_x: np.ndarray, _y: np.ndarray) -> None:
    """A placeholder for the library's call that does nothing."""


QUANTITIES = ("data", "step", "both", "waits", "preprocessing", "first")
FIRST_BATCHES = 2  # untimed batches of a fresh iterator
MIN_BATCHES, STRETCH_S = 3, 0.03  # of a timed stretch
PAUSE_S = 0.05  # between two yields
ENOUGH = ((6, 4.0), (3, 20.0))  # for slow batches: (rounds, seconds) after which fewer than `ROUNDS` are enough
TRIES, TRY_S = 200, 2e-4  # to time a repetition of the preprocessing

_clock = time.perf_counter


@dataclass(frozen=True)
class Preprocessing:
    """Repeated work on one image, which stays unchanged. Can be sent to other processes."""

    repetitions: int
    holds_lock: bool

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return the image (784,) after the work."""
        if self.repetitions and self.holds_lock:
            pixels, checksum = image.tobytes(), 0
            for k in range(self.repetitions):
                checksum = (33 * checksum + pixels[k % 784]) & 0xFFFFFF
        elif self.repetitions:
            hashlib.pbkdf2_hmac("sha256", image.tobytes(), b"", self.repetitions)  # releases the interpreter's lock
        return image

    def all_of(self, images: np.ndarray) -> np.ndarray:
        """Return the images (n, 784) after working on each in turn."""
        if self.repetitions:
            for image in images:
                self(image)
        return images


def calibrated(pipeline: Pipeline) -> Preprocessing:
    """Return a preprocessing that takes the pipeline's milliseconds on one undisturbed core of this machine."""
    repetitions = math.ceil(1e-3 * pipeline.preprocessing_ms / _repetition_s(pipeline.holds_lock))
    return Preprocessing(repetitions, pipeline.holds_lock)


@cache
def _repetition_s(holds_lock: bool) -> float:
    """Return the seconds of one undisturbed repetition: the quickest of many short tries.

    Cached for the process, so that all its pipelines do the same work.
    """
    image, repetitions = np.zeros(784, np.float32), 1

    def quickest_s(repetitions: int, tries: int) -> float:
        work = partial(Preprocessing(repetitions, holds_lock), image)
        return min(timeit.repeat(work, number=1, repeat=tries))

    while quickest_s(repetitions, 3) < TRY_S:
        repetitions *= 2
    return (quickest_s(repetitions, TRIES) - quickest_s(1, TRIES)) / (repetitions - 1)


class Feed(NamedTuple):
    """A library's implementation of a pipeline.

    Args:
        open: Return a fresh endless iterator over its batches. Dropping the iterator ends its work, except on the
            batches `on_their_way`.
        step: Make one training step on a batch and wait for it.
        fill_batches: How many batches must be read to fill its cache.
        on_their_way: How many batches may still be in preparation after the iterator was dropped.
    """

    open: Callable[[], Iterator[Any]]
    step: Callable[[Any], object]
    fill_batches: int = 0
    on_their_way: int = 0


def rows_of(data: Data, rows: int) -> Batch:
    """Return the first training images (rows, 784) and labels (rows,), repeated if there are too few."""
    index = np.arange(rows) % len(data.x_train)
    return data.x_train[index], data.y_train[index]


def measure_pipeline(
    make: Callable[[Pipeline, Preprocessing, Subject], AbstractContextManager[Feed]],
    subject: Subject,
    pipeline: Pipeline,
) -> Iterator[Row | None]:
    """Measure a pipeline, the step, and both together, in turns.

    Args:
        make: Makes the feed: `with_tensorflow.feed` or `with_torch.feed`.
        subject: Network, data and device; the pipeline has its own batch size.
        pipeline: The pipeline.

    Yields:
        None wherever the caller may stop; then a row for each of `QUANTITIES`, named `0/data` etc. Values are seconds
        per batch, except `first`, the seconds from opening the pipeline to its first batch, and `preprocessing`, the
        seconds of preprocessing one image alone.

    Raises:
        NotMeasured: The pipeline raised an error, or its cache would take too long to fill.
    """
    preprocess, image = calibrated(pipeline), np.zeros(784, np.float32)
    found: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    with make(pipeline, preprocess, subject) as feed:
        ready, first_s = yield from _first_batch(feed)
        found["first"].append(first_s)
        began = _clock()
        for number in range(1, ROUNDS + 1):
            data_s, _ = yield from _stretch(_opened(feed), no_wait)
            yield
            both_s, waits_s = yield from _stretch(_opened(feed), feed.step)
            until = _clock() + feed.on_their_way * data_s
            while (left_s := until - _clock()) > 0:
                time.sleep(min(left_s, PAUSE_S))
                yield
            step_s, _ = yield from _stretch(repeat(ready), feed.step)
            yield
            before = _clock()
            preprocess(image)
            values = {
                "preprocessing": _clock() - before,
                "data": data_s,
                "step": step_s,
                "both": both_s,
                "waits": waits_s,
            }
            for name, value in values.items():
                found[name].append(value)
            yield
            if any(number >= rounds and _clock() - began > seconds for rounds, seconds in ENOUGH):
                break
    yield from (row_of(f"0/{name}", values) for name, values in found.items())


def _first_batch(feed: Feed) -> Generator[None, None, tuple[Any, float]]:
    """Return the first batch and the seconds it took; also compile the step, and fill the feed's cache."""

    def first() -> tuple[Iterator[Any], Any, float]:
        before = _clock()
        batches = _opened(feed)
        batch = next(batches)
        return batches, batch, _clock() - before

    # In a thread: otherwise this process would look hung for the seconds in which other processes start.
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(first)
        while not wait([opening], PAUSE_S).done:
            yield
    batches, ready, first_s = opening.result()
    feed.step(ready)
    yield
    for _ in range(feed.fill_batches):
        next(batches)
        yield
    return ready, first_s


def _stretch(batches: Iterator[Any], step: Callable[[Any], object]) -> Generator[None, None, tuple[float, float]]:
    """Return the seconds per batch, and the part of them spent waiting for the batch; drop the iterator."""
    for _ in range(FIRST_BATCHES):
        next(batches)
    total_s = waited_s = 0.0
    count, stopped_at = 0, _clock()
    while count < MIN_BATCHES or total_s < STRETCH_S:
        before = _clock()
        batch = next(batches)
        there = _clock()
        step(batch)
        after = _clock()
        total_s, waited_s, count = total_s + after - before, waited_s + there - before, count + 1
        if after - stopped_at > PAUSE_S:
            yield
            stopped_at = _clock()
    return total_s / count, waited_s / count


def _opened(feed: Feed) -> Iterator[Any]:
    try:
        yield from feed.open()
    except Exception as error:  # library code in the feed may raise anything
        raise NotMeasured(f"reading a batch raised {explained(error)}") from error


def explained(error: Exception) -> str:
    """Describe a feed's error in one line: the error of the called function, without a library's own frames."""
    found = re.findall(r"(?m)^.*?\b([A-Z]\w*(?:Error|Exception|Iteration): .+)$", str(error))
    text = found[-1] if found else f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return re.sub(r"\s*\[(?:\[\{|Op:).*", "", text)[:200].rstrip(": ")
