"""Six ways to mistime a training step, and the right one beside each: one step of a library, timed wrongly and well.

Runs in the library's worker, which gives its step as a `TimedStep`. There is one reference for all: the step in blocks
that end when its result has arrived. Every round takes a block of it and a value by each wrong way, in turns, so that a
wrong way's value and the reference of its round are of the same state of the machine.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from lib.model.hardware.nvidia import Busy, watched_activity
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import Repeated, Row, StepExperiment, TimedStep, interleaved
from lib.timing.profiling.request import REFERENCE, TRAP_EPOCHS, TRAP_SAMPLES, TRAPS

EPOCH_S = 0.02  # of such an epoch: short, so that a stop does not wait for it
IN_A_ROW = 50  # steps between two places where it can be stopped
BUSY_S = 4.0  # of which the watching thread leaves out the first second
PAUSED_S = 0.1  # away for longer, and the card was idle or somebody else's


def measure_traps(step: TimedStep, device: str) -> Iterator[Row | None]:
    """Measure the reference and all wrong ways, in turns.

    On a graphics card the same code shows larger gaps: more is queued, and transfers are real.

    Args:
        step: What is timed.
        device: Where it runs.

    Yields:
        None after each block; then a row for `REFERENCE` and each of `TRAPS`, in seconds of a step. On a graphics card
        also rows of `occupancy/…`, which are shares.
    """
    reference = Repeated(lambda: step.wait(step.call()))
    wrong: tuple[StepExperiment, ...] = (
        Repeated(step.call, step.wait, returns=True, at_most=step.queued),
        FirstCallCounted(step),
        BestOf(step, samples=1),
        BestOf(step),
        Repeated(step.with_transfer),
        BusyProcessors(reference),
    )
    yield from interleaved({REFERENCE: reference, **dict(zip(TRAPS, wrong, strict=True))})
    if device == "gpu":
        yield from _occupancy(step)


@dataclass
class FirstCallCounted:
    """The average of short epochs of a program that was never compiled before, with the first call counted."""

    step: TimedStep

    def prepare(self) -> None:
        """Find how many steps such epochs have."""
        self._steps = TRAP_EPOCHS * max(4, round(EPOCH_S / min(_single(self.step) for _ in range(4))))

    def block(self) -> float:
        """Seconds of one step, on average, the compilation included."""
        call, last = self.step.fresh(), None
        began = time.perf_counter()
        for _ in range(self._steps):
            last = call()
        self.step.wait(last)
        return (time.perf_counter() - began) / self._steps


@dataclass
class BestOf:
    """The smallest of `samples` single steps in a row, each timed by itself."""

    step: TimedStep
    samples: int = TRAP_SAMPLES

    def prepare(self) -> None:
        """Make the steps once."""
        self.block()

    def block(self) -> float:
        """Seconds of the quickest step."""
        if self.samples == 1:
            time.sleep(0.002)  # the pause of somebody who tries it by hand
        return min(_single(self.step) for _ in range(self.samples))


def _single(step: TimedStep) -> float:
    began = time.perf_counter()
    step.wait(step.call())
    return time.perf_counter() - began


@dataclass
class BusyProcessors:
    """Processor seconds of all cores in a step: what a monitor shows as busy.

    `steps` is the reference; the view compares the result with the arithmetic.
    """

    steps: Repeated

    def prepare(self) -> None:
        """Nothing: the reference is prepared already."""

    def block(self) -> float:
        """Processor seconds of one step."""
        busy_s, wall_s = time.process_time(), time.perf_counter()
        a_step_s = self.steps.block()
        busy_s, wall_s = time.process_time() - busy_s, time.perf_counter() - wall_s
        return busy_s / wall_s * a_step_s


def _occupancy(step: TimedStep) -> Iterator[Row | None]:
    """Shares, not seconds: what `nvidia-smi` shows while steps run, and the chip's own counters (from Hopper on)."""
    while (busy := (yield from _watched(step))) is None:
        pass  # it was paused
    if busy.utilisations:
        yield "occupancy/utilisation", Measurement(tuple(busy.utilisations), 1, Ended.CAP), 1.0
    if busy.activity is not None:
        yield "occupancy/activity", Measurement((busy.activity.sm_activity,), 1, Ended.CAP), 1.0
        yield "occupancy/warps", Measurement((busy.activity.sm_occupancy,), 1, Ended.CAP), 1.0


def _watched(step: TimedStep) -> Generator[None, None, Busy | None]:
    """Keep the card at work for `BUSY_S`; the value is how busy it was, None where others had their turn meanwhile."""
    until = time.perf_counter() + BUSY_S
    with watched_activity() as busy:
        running = [step.call() for _ in range(IN_A_ROW)]
        while (before := time.perf_counter()) < until:
            yield None
            if time.perf_counter() - before > PAUSED_S:
                return None
            # Before the others are waited for: the card never waits for us.
            queued = [step.call() for _ in range(IN_A_ROW)]
            step.wait(running)
            running = queued
        step.wait(running)
    return busy
