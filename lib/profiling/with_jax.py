"""The experiments on the two backends of JAX."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from lib.backends.base import CHUNK_S
from lib.backends.with_jax import BLOCK, in_blocks, one_step, packed, run_steps, sgd_step
from lib.profiling.fusion import kernels
from lib.profiling.harness import IN_A_ROW, Experiment, InOneCall, Repeated, Subject, loop, nothing
from lib.spec import N_PIXELS
from lib.timing.measurement import Step

_wait = jax.block_until_ready


def experiments(backend: str, subject: Subject) -> dict[str, Experiment]:
    """The experiments of `lib.profiling.run` on a backend of JAX, by name: `jax-epoch`, or step by step."""
    return (_whole_epoch if backend == "jax-epoch" else _step_by_step)(subject) | many_steps(subject)


def _step_by_step(subject: Subject) -> dict[str, Experiment]:
    # Takes a batch from host memory, and does nothing with it.
    taken = jax.jit(lambda x, y: x[0, 0] + y[0].astype(x.dtype))
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


def _whole_epoch(subject: Subject) -> dict[str, Experiment]:
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


def many_steps(subject: Subject) -> dict[str, Experiment]:
    """The experiments `many` and `many-tiny`: steps on one batch in a compiled loop."""

    @jax.jit
    def many(parameters, x, y, rate, n):
        return in_blocks(lambda _, p: sgd_step(p, x, y, rate)[0], 0, n, parameters, BLOCK[subject.device])

    def one(of: Subject) -> Experiment:
        parameters, rate = on_device(of)
        x, y = jax.device_put(of.batch, jax.devices(of.device)[0])
        return InOneCall(lambda n: many(parameters, x, y, rate, n), _wait)

    return {"many": one(subject), "many-tiny": one(subject.tiny)}


def kernels_of_step(subject: Subject) -> int:
    """How many kernels one compiled step launches."""
    parameters, rate = on_device(subject)
    text = jax.jit(sgd_step).lower(parameters, *subject.batch, rate).compile().as_text() or ""
    return kernels(text).total()


def on_device(subject: Subject):
    """Parameters on the subject's device, packed as the compiled steps want them, and the learning rate."""
    target = jax.devices(subject.device)[0]
    return jax.device_put((packed(subject.parameters), np.float32(subject.training.learning_rate)), target)
