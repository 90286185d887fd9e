"""Six ways to mistime a training step, and the right one beside each: the same JAX step, timed wrongly and well.

Runs in JAX's worker. There is one reference for all: the step in blocks that end when its result has arrived. Every
round takes a block of it and a value by each wrong way, in turns, so that a wrong way's value and the reference of its
round are of the same state of the machine.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import jax

from lib.backends.with_jax import sgd_step
from lib.hardware.nvml import Busy, watched_activity
from lib.profiling.harness import Experiment, Repeated, Row, Subject, interleaved
from lib.profiling.request import REFERENCE, TRAP_EPOCHS, TRAP_SAMPLES, TRAPS
from lib.profiling.with_jax import on_device, one_call
from lib.timing.measurement import Ended, Measurement, Step

EPOCH_S = 0.02  # of such an epoch: short, so that a stop does not wait for it
IN_A_ROW = 50  # steps between two places where it can be stopped
BUSY_S = 4.0  # of which the watching thread leaves out the first second
PAUSED_S = 0.1  # away for longer, and the card was idle or somebody else's
_wait = jax.block_until_ready


def measure_traps(subject: Subject) -> Iterator[Row | None]:
    """Measure the reference and all wrong ways, in turns.

    On a graphics card the same code shows larger gaps: more is queued, and transfers are real.

    Yields:
        None after each block; then a row for `REFERENCE` and each of `TRAPS`, in seconds of a step. On a graphics card
        also rows of `occupancy/…`, which are shares.
    """
    step = one_call(subject)
    reference = Repeated(lambda: _wait(step()))
    wrong: tuple[Experiment, ...] = (
        Repeated(step, _wait, returns=True),
        FirstCallCounted(subject, step),
        BestOf(step, samples=1),
        BestOf(step),
        Repeated(_with_transfer(subject)),
        BusyProcessors(reference),
    )
    yield from interleaved({REFERENCE: reference, **dict(zip(TRAPS, wrong, strict=True))})
    if subject.device == "gpu":
        yield from _occupancy(step)


@dataclass
class FirstCallCounted:
    """The average of short epochs of a program that was never compiled before, with the first call counted."""

    subject: Subject
    step: Step

    def prepare(self) -> None:
        """Find how many steps such epochs have."""
        self._steps = TRAP_EPOCHS * max(4, round(EPOCH_S / min(_single(self.step) for _ in range(4))))

    def block(self) -> float:
        """Seconds of one step, on average, the compilation included."""
        fresh = float(time.time_ns() % 1_000_003) * 1e-12  # a constant of its own: no cache knows this program
        parameters, rate = on_device(self.subject)
        x, y = jax.device_put(self.subject.batch, jax.devices(self.subject.device)[0])
        step = jax.jit(lambda p: sgd_step(p, x, y, rate + fresh)[0])
        began = time.perf_counter()
        for _ in range(self._steps):
            parameters = step(parameters)
        _wait(parameters)
        return (time.perf_counter() - began) / self._steps


@dataclass
class BestOf:
    """The smallest of `samples` single steps in a row, each timed by itself."""

    step: Step
    samples: int = TRAP_SAMPLES

    def prepare(self) -> None:
        """Make the steps once."""
        self.block()

    def block(self) -> float:
        """Seconds of the quickest step."""
        if self.samples == 1:
            time.sleep(0.002)  # the pause of somebody who tries it by hand
        return min(_single(self.step) for _ in range(self.samples))


def _single(step: Step) -> float:
    began = time.perf_counter()
    _wait(step())
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


def _with_transfer(subject: Subject) -> Step:
    """The step with its batch copied from the host's memory each time, in a new array, as a loader makes it."""
    from lib.backends.with_jax import one_step

    current, rate = on_device(subject)
    x, y = subject.batch
    target = jax.devices(subject.device)[0]

    def step() -> object:
        nonlocal current
        images, labels = jax.device_put((x.copy(), y.copy()), target)
        current, loss = one_step(current, images, labels, rate)
        return _wait(loss)

    return step


def _occupancy(step: Step) -> Iterator[Row | None]:
    """Shares, not seconds: what `nvidia-smi` shows while steps run, and the chip's own counters (from Hopper on)."""
    while (busy := (yield from _watched(step))) is None:
        pass  # it was paused
    if busy.utilisations:
        yield "occupancy/utilisation", Measurement(tuple(busy.utilisations), 1, Ended.CAP), 1.0
    if busy.activity is not None:
        yield "occupancy/activity", Measurement((busy.activity.sm_activity,), 1, Ended.CAP), 1.0
        yield "occupancy/warps", Measurement((busy.activity.sm_occupancy,), 1, Ended.CAP), 1.0


def _watched(step: Step) -> Generator[None, None, Busy | None]:
    """Keep the card at work for `BUSY_S`; the value is how busy it was, None where others had their turn meanwhile."""
    until = time.perf_counter() + BUSY_S
    with watched_activity() as busy:
        running = [step() for _ in range(IN_A_ROW)]
        while (before := time.perf_counter()) < until:
            yield None
            if time.perf_counter() - before > PAUSED_S:
                return None
            queued = [step() for _ in range(IN_A_ROW)]  # before the others are waited for: the card never waits for us
            _wait(running)
            running = queued
        _wait(running)
    return busy
