"""Six ways to mistime a training step, each beside the right one: the same JAX step, timed wrongly and well.

Runs in JAX's worker. The rows come in pairs, `<trap>/wrong` and `<trap>/right`; where the wrong way is to take one value of
many, the blocks are all the values that could have been taken.
"""

import time
from collections.abc import Iterator

import jax
import numpy as np

from lib.anatomy.subject import CONFIG, Row, Subject
from lib.anatomy.with_jax import on_device, one_call
from lib.backends.with_jax import sgd_step
from lib.gpu import gpus, watched_activity
from lib.timing import Ended, Measurement, Step, measure, measure_dispatch

SAMPLES = 60
EPOCHS = 5  # that a first call is averaged with
EPOCH_S = 0.05  # of such an epoch: short, so that a stop does not wait for it
IN_A_ROW = 50  # steps between two looks at the card
BUSY_S = 1.5  # nvidia-smi's share is of the last second or less
_wait = jax.block_until_ready


def measure_traps(subject: Subject) -> Iterator[Row]:
    """All pairs. On a card the same code shows larger gaps, because more is queued and transfers are real."""
    step = one_call(subject)
    _wait(step())
    yield "synchronisation/wrong", measure_dispatch(step, sync=_wait, config=CONFIG), 1.0
    steady = measure(lambda: _wait(step()), config=CONFIG)
    yield "synchronisation/right", steady, 1.0
    yield from _first_call(subject, max(4, round(EPOCH_S / steady.median_s)))
    samples = _singles(step)
    yield "one sample/wrong", samples, 1.0
    yield "one sample/right", steady, 1.0
    yield "best of n/wrong", Measurement((min(samples.block_s),), 1, Ended.CAP), 1.0
    yield "best of n/right", samples, 1.0
    yield "transfer inside/wrong", measure(_with_transfer(subject), config=CONFIG), 1.0
    yield "transfer inside/right", steady, 1.0
    yield from _busy_is_not_working(subject)


def _first_call(subject: Subject, steps: int) -> Iterator[Row]:
    """Short epochs of a program that was never compiled before: with the first one, and without it."""
    fresh = float(time.time_ns() % 1_000_003) * 1e-12  # a constant of its own: no cache knows this program
    parameters, rate = on_device(subject)
    x, y = jax.device_put(subject.batch, jax.devices(subject.device)[0])
    step = jax.jit(lambda p: sgd_step(p, x, y, rate + fresh)[0])
    epochs_s = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        for _ in range(steps):
            parameters = step(parameters)
        _wait(parameters)
        epochs_s.append((time.perf_counter() - began) / steps)
    yield "first call counted/wrong", Measurement((float(np.mean(epochs_s)),), 1, Ended.CAP), 1.0
    yield "first call counted/right", Measurement(tuple(epochs_s[1:]), 1, Ended.CAP), 1.0


def _singles(step: Step) -> Measurement:
    """Single steps, each timed by itself after a little pause, as somebody does who tries it by hand."""
    taken = []
    for _ in range(SAMPLES):
        time.sleep(0.002)
        began = time.perf_counter()
        _wait(step())
        taken.append(time.perf_counter() - began)
    return Measurement(tuple(taken), 1, Ended.CAP)


def _with_transfer(subject: Subject) -> Step:
    """The step with its batch brought along from the host's memory each time, in a new array as a loader makes it."""
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


def _busy_is_not_working(subject: Subject) -> Iterator[Row]:
    """Processor seconds of all cores in a step: what a monitor shows as busy. The view holds the arithmetic against it."""
    step = one_call(subject)
    wall = measure(step, sync=_wait, config=CONFIG)
    busy = measure(step, sync=_wait, config=CONFIG, clock=time.process_time)
    yield "busy is not working/wrong", busy, 1.0
    yield "busy is not working/right", wall, 1.0
    if subject.device == "gpu":
        yield from _occupancy(step)


def _occupancy(step: Step) -> Iterator[Row]:
    """Shares, not seconds: what `nvidia-smi` shows while steps run, and what the chip's own counters say (from Hopper on)."""
    utilisations, until = [], time.perf_counter() + BUSY_S
    with watched_activity() as found:
        while time.perf_counter() < until:
            _wait([step() for _ in range(IN_A_ROW)])
            utilisations += [gpu.utilisation for gpu in gpus()[:1] if gpu.utilisation is not None]
    if utilisations:
        yield "occupancy/utilisation", Measurement(tuple(utilisations), 1, Ended.CAP), 1.0
    for activity in found:
        yield "occupancy/activity", Measurement((activity.sm_activity,), 1, Ended.CAP), 1.0
        yield "occupancy/warps", Measurement((activity.sm_occupancy,), 1, Ended.CAP), 1.0
