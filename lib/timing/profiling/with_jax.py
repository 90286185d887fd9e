"""The experiments on the two backends of JAX."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np

from lib.model.backends.base import CHUNK_S
from lib.model.backends.with_jax import BLOCK, in_blocks, logits_of, one_step, packed, run_steps, sgd_step
from lib.model.data.mnist import Data
from lib.model.spec import N_PIXELS
from lib.timing.measurement import Ended, Measurement, Step
from lib.timing.prediction.remedies import RESIDENT, Remedy
from lib.timing.profiling import convolutional
from lib.timing.profiling.fusion import kernels
from lib.timing.profiling.harness import (
    IN_A_ROW,
    TINY,
    InOneCall,
    Repeated,
    Row,
    StepExperiment,
    Subject,
    TimedStep,
    interleaved,
    loop,
    nothing,
)
from lib.timing.profiling.request import CONVOLUTIONAL, FIRST_CALL, FROM_HOST, TAKEN

_wait = jax.block_until_ready
BATCHES = 500  # that lie on the device at once


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """The experiments of `lib.timing.profiling.run` on a backend of JAX, by name: `jax-epoch`, or step by step."""
    return (_whole_epoch if backend == "jax-epoch" else _step_by_step)(subject) | many_steps(subject)


@jax.jit
def taken(x, y):
    """Takes a batch (batch, 784) with its labels (batch,), and does next to nothing with it."""
    return x[0, 0] + y[0].astype(x.dtype)


def _step_by_step(subject: Subject) -> dict[str, StepExperiment]:
    return {
        "python": Repeated(loop(subject, nothing)),
        "returns": Repeated(one_call(subject.tiny), _wait, returns=True),
        "call": Repeated(one_call(subject), _wait, config=IN_A_ROW),  # waited for once a block, as in training
        "transfer": Repeated(loop(subject, taken), _wait, config=IN_A_ROW),
        "transfer-base": Repeated(loop(subject.tiny, taken), _wait, config=IN_A_ROW),
    }


def one_call(subject: Subject) -> Step:
    """A step on one batch that is already on the device; it returns the loss without waiting for it."""
    current, rate = on_device(subject)
    x, y = jax.device_put(subject.batch, jax.devices(subject.device)[0])

    def step() -> object:
        nonlocal current
        current, loss = one_step(current, x, y, rate)
        return loss

    return step


_undonated = jax.jit(sgd_step)


def varied(_backend: str, subject: Subject, variant: str) -> StepExperiment:
    """Steps of training as `jax-step` makes them, on batches that lie on the device, or without giving buffers away."""
    current, rate = on_device(subject)
    run = _undonated if variant == Remedy.DONATED.variant else one_step

    def step(x, y) -> object:
        nonlocal current
        current, loss = run(current, x, y, rate)
        return loss

    if variant != RESIDENT:
        return Repeated(loop(subject, step), _wait, config=IN_A_ROW)
    batches = cycle(_batches_there(subject))
    return Repeated(lambda: step(*next(batches)), _wait, config=IN_A_ROW)


def takings(data: Data, device: str) -> dict[str, StepExperiment]:
    """A batch of each size taken from host memory, as `jax-step` takes it, and the same on the device already."""
    found: dict[str, StepExperiment] = {}
    for size in (one for one in TAKEN if one <= len(data.x_train)):
        subject = Subject(TINY, size, data, device)
        there = cycle(_batches_there(subject))
        found[f"{FROM_HOST} {size}"] = Repeated(loop(subject, taken), _wait)
        found[f"{RESIDENT} {size}"] = Repeated(lambda there=there: taken(*next(there)), _wait)
    return found


def _batches_there(subject: Subject) -> list:
    """At most `BATCHES` batches of an epoch, in its order, each an array of its own on the device."""
    x, y, size = subject.data.x_train, subject.data.y_train, subject.batch_size
    few = [(x[start : start + size], y[start : start + size]) for start in subject.starts[:BATCHES]]
    return jax.block_until_ready(jax.device_put(few, jax.devices(subject.device)[0]))


def timed_step(subject: Subject) -> TimedStep:
    """A step that is one compiled call, for the traps."""
    current, rate = on_device(subject)
    x, y = subject.batch
    target = jax.devices(subject.device)[0]

    def with_transfer() -> object:
        nonlocal current
        images, labels = jax.device_put((x.copy(), y.copy()), target)
        current, loss = one_step(current, images, labels, rate)
        return _wait(loss)

    def fresh() -> Step:
        of_its_own = float(time.time_ns() % 1_000_003) * 1e-12  # a constant: no cache knows this program
        parameters, rate = on_device(subject)
        images, labels = jax.device_put(subject.batch, target)
        step = jax.jit(lambda p: sgd_step(p, images, labels, rate + of_its_own)[0])

        def call() -> object:
            nonlocal parameters
            parameters = step(parameters)
            return parameters

        return call

    return TimedStep(one_call(subject), _wait, with_transfer, fresh)


def _whole_epoch(subject: Subject) -> dict[str, StepExperiment]:
    target = jax.devices(subject.device)[0]
    x, y, starts = jax.device_put((subject.data.x_train, subject.data.y_train, np.array(subject.starts)), target)
    n = len(starts)

    def epoch(of: Subject, steps: int) -> Step:
        current, rate = on_device(of)
        losses = jax.device_put(jnp.zeros(n, jnp.float32), target)

        def call() -> object:
            nonlocal current, losses
            current, losses = run_steps(
                current, losses, starts, 0, steps, x, y, rate, batch_size=of.batch_size, block=BLOCK[of.device]
            )
            return losses

        return call

    steps = _steps_of_one_call(epoch(subject, n), n)
    empty = epoch(subject.tiny, 0)  # the call alone, without any step
    slot = jax.device_put(jnp.zeros((subject.batch_size, N_PIXELS), jnp.float32), target)
    return {
        "python": Repeated(loop(subject, nothing), steps=steps),
        "returns": Repeated(empty, _wait, steps, returns=True),
        "transfer": Repeated(lambda: _slices(x, starts, slot), _wait, n),
    }


def _steps_of_one_call(epoch: Step, n: int) -> float:
    """How many steps training makes in one call."""
    _wait(epoch())
    before = time.perf_counter()
    _wait(epoch())
    return max(1.0, min(1.0, CHUNK_S / (time.perf_counter() - before)) * n)


@jax.jit
def _slices(x, starts, slot):
    """Every batch of an epoch copied out of the images, as the compiled loop does it, and nothing else."""
    return jax.lax.fori_loop(
        0, len(starts), lambda index, _: jax.lax.dynamic_slice(x, (starts[index], 0), slot.shape), slot
    )


def many_steps(subject: Subject) -> dict[str, StepExperiment]:
    """The experiments `many` and `many-tiny`: steps on one batch in a compiled loop."""

    def one(of: Subject) -> StepExperiment:
        return _in_a_loop(of, packed(of.parameters))

    return {"many": one(subject), "many-tiny": one(subject.tiny)}


def _in_a_loop(subject: Subject, parameters, logits: Callable = logits_of) -> InOneCall:
    """Steps on the subject's first batch in a compiled loop, of a network with these parameters and this forward pass.

    Args:
        subject: Whose batch and device are taken.
        parameters: As `logits` takes them, in the host's memory.
        logits: The network.
    """

    @jax.jit
    def many(parameters, x, y, rate, n):
        step = partial(sgd_step, logits=logits)
        return in_blocks(lambda _, p: step(p, x, y, rate)[0], 0, n, parameters, BLOCK[subject.device])

    there = (parameters, *subject.batch, np.float32(subject.training.learning_rate))
    there = jax.device_put(there, jax.devices(subject.device)[0])
    return InOneCall(lambda n: many(*there, n), _wait)


def convolutional_step(subject: Subject) -> Iterator[Row | None]:
    """Steps of the small convolutional network, in a compiled loop as `jax-epoch` makes them; and its first call."""
    loop = _in_a_loop(subject, convolutional.initial(), convolutional.logits_of)
    yield from interleaved({CONVOLUTIONAL: loop})
    yield f"{CONVOLUTIONAL}/{FIRST_CALL}", Measurement((loop.first_call_s,), 1, Ended.CAP), 1.0


def kernels_of_step(subject: Subject) -> int:
    """How many kernels one compiled step launches."""
    parameters, rate = on_device(subject)
    text = jax.jit(sgd_step).lower(parameters, *subject.batch, rate).compile().as_text() or ""
    return kernels(text).total()


def on_device(subject: Subject):
    """Parameters on the subject's device, packed as the compiled steps want them, and the learning rate."""
    target = jax.devices(subject.device)[0]
    return jax.device_put((packed(subject.parameters), np.float32(subject.training.learning_rate)), target)
