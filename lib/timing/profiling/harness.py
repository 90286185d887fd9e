"""The step that is taken apart, and what all experiments on it share."""

# pyright: reportMissingImports=false
# PyTorch and CuPy are optional.

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from lib.model.backends.base import Event, Parameters, Steps, initial_parameters
from lib.model.backends.registry import load_train
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training
from lib.timing.measurement import Config, Ended, Measurement, Meter, Step, Sync, no_wait

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


class StepExperiment(Protocol):
    """Something that can be measured in turns with others."""

    def prepare(self) -> None:
        """Warm up, and find how long a block has to be."""
        ...

    def block(self) -> float:
        """Seconds of one training step, from one block."""
        ...


@dataclass
class Repeated:
    """A call, made again and again, and measured in blocks.

    Args:
        call: What is measured.
        sync: Waits for what the last call of a block returned.
        steps: Training steps that one call stands for.
        config: When a block is long enough.
        returns: Measure only until the call returns: `sync` then runs untimed, and blocks are short, so that no queue
            fills up.
        at_most: Calls in a block where `returns` is set; 1 for a long call, of which there are no bursts either.
    """

    call: Step
    sync: Sync = no_wait
    steps: float = 1.0
    config: Config = CONFIG
    returns: bool = False
    at_most: int = 16

    def prepare(self) -> None:
        config = replace(self.config, max_steps_per_block=self.at_most) if self.returns else self.config
        self._meter = Meter(self.call, self.sync, config, time.perf_counter, wait_in_block=not self.returns)
        self._meter.warm_up()
        self._meter.find_block_size()

    def block(self) -> float:
        """Seconds of one training step, from one block, or from the last of `BURSTS` where `returns` is set."""
        for _ in range(BURSTS if self.returns and self.at_most > 1 else 1):
            self._meter.block()
        return self._meter.blocks[-1] / self._meter.steps_per_block / self.steps


@dataclass
class SelfTimed:
    """A block that times itself: a function that returns the seconds of one training step. It is made once before."""

    block: Callable[[], float]

    def prepare(self) -> None:
        self.block()


@dataclass
class InOneCall:
    """A compiled loop over as many steps as take `ONE_CALL_S`.

    Args:
        call: `call(n)` makes n steps.
        sync: Waits for what it returned.
    """

    call: Callable[[int], object]
    sync: Sync
    first_call_s: float = 0.0  # of compiling, once it is prepared

    def prepare(self) -> None:
        began = time.perf_counter()
        self.sync(self.call(2))  # compiles
        self.first_call_s = (before := time.perf_counter()) - began
        self.sync(self.call(8))
        steps = int(np.clip(8 * ONE_CALL_S / (time.perf_counter() - before), 4, 4096))
        self._loop = Repeated(lambda: self.call(steps), self.sync, steps)
        self._loop.prepare()

    def block(self) -> float:
        return self._loop.block()


def endless_training(backend: str, subject: "Subject") -> Iterator[Event]:
    """The events of a backend's own training of a step, again and again: few images make its epochs end soon."""
    while True:
        yield from load_train(backend)(subject.training, subject.data, subject.device)


@dataclass
class TrainedStep:
    """The backend's own training; a block is its `Steps` until they took `REAL_S`, evaluations left out.

    It must be closed in the end.

    Args:
        backend: Key of the backend.
        subject: The step.
    """

    backend: str
    subject: "Subject"
    busy_s: list[float] = field(default_factory=list)  # processor seconds of all cores, a step, of each block
    _events: Iterator[Event] | None = None  # none before it is prepared: it may be stopped before that

    def prepare(self) -> None:
        self._events = endless_training(self.backend, self.subject)
        self._advance(0.0)  # the first steps warm up

    def block(self) -> float:
        """Seconds of one training step; processor seconds are added to `busy_s`."""
        return self._advance(REAL_S)

    def _advance(self, limit_s: float) -> float:
        assert self._events is not None, "prepared first"
        train_s, steps, busy_s, used_s = 0.0, 0, 0.0, time.process_time()
        while not steps or train_s < limit_s:
            event, now_s = next(self._events), time.process_time()
            if isinstance(event, Steps):
                train_s, steps, busy_s = train_s + event.train_s, steps + len(event.losses), busy_s + now_s - used_s
            used_s = now_s  # not across an evaluation
        self.busy_s.append(busy_s / steps)
        return train_s / steps

    def close(self) -> None:
        if self._events is not None:
            self._events.close()  # type: ignore[attr-defined]


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


@dataclass
class OnCard:
    """Several calls, queued one after another, timed by the card's own events.

    The host's clock cannot see them: a kernel of two microseconds lasts as long as its launch. So the card is first
    held by long work; the calls are queued behind that, between two events, and when the card comes to them it goes
    from one to the next without anybody. Where it had passed the first event before the last call was queued, it has
    waited for the host: that figure is thrown away, and the card held for longer.

    Args:
        calls: Together they make one training step; none of them may wait for the card.
        card: Whose queue they go into.
    """

    calls: Sequence[Step]
    card: CardQueue

    def prepare(self) -> None:
        self._repetitions, self._holds = max(1, QUEUED // len(self.calls)), 1
        self._timed()  # compiles, and loads what is loaded late
        self.block()

    def block(self) -> float:
        """Seconds of one training step.

        Raises:
            RuntimeError: The calls cannot be queued while the card is held: one of them waits for it.
        """
        while (spent_s := self._timed()) is None:
            if self._repetitions == 1 and self._holds >= MOST_HOLDS:
                raise RuntimeError(
                    f"expected {len(self.calls)} calls to be queued within {MOST_HOLDS} products of {HOLD_SIDE:,}, and"
                    " the card was done with these before: one of the calls waits for it; leave that one out"
                )
            self._repetitions, self._holds = max(1, self._repetitions // 2), min(2 * self._holds, MOST_HOLDS)
        return spent_s / self._repetitions

    def _timed(self) -> float | None:
        """Seconds of all repetitions; None where the card waited for the host meanwhile."""
        for _ in range(self._holds):
            self.card.hold()
        first = self.card.mark()
        for _ in range(self._repetitions):
            for call in self.calls:
                call()
        last = self.card.mark()
        waited = self.card.passed(first)
        spent_s = self.card.between_s(first, last)
        return None if waited else spent_s


def torch_card() -> CardQueue:
    """PyTorch's card."""
    import torch

    a, out = (torch.ones(HOLD_SIDE, HOLD_SIDE, device="cuda") for _ in range(2))

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(first: Any, last: Any) -> float:
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    return CardQueue(lambda: torch.mm(a, a, out=out), mark, lambda event: event.query(), between_s)


def cupy_card() -> CardQueue:
    """CuPy's card."""
    import cupy as cp

    a, out = (cp.ones((HOLD_SIDE, HOLD_SIDE), np.float32) for _ in range(2))

    def mark() -> Any:
        event = cp.cuda.Event()
        event.record()
        return event

    def between_s(first: Any, last: Any) -> float:
        last.synchronize()
        return cp.cuda.get_elapsed_time(first, last) / 1e3

    return CardQueue(lambda: cp.matmul(a, a, out=out), mark, lambda event: event.done, between_s)


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
        experiment.prepare()
        yield None
    rng, names = np.random.default_rng(0), list(experiments)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for index in rng.permutation(len(names)):
            found[names[index]].append(experiments[names[index]].block())
            yield None
    yield from (row_of(name, blocks) for name, blocks in found.items())


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
