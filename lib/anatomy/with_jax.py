"""The experiments on the two ways of training with JAX."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from lib.anatomy.subject import CONFIG, IN_A_ROW, IN_ONE_CALL, Row, Subject, loop, measured, nothing
from lib.backends.base import CHUNK_S
from lib.backends.with_jax import one_step, packed, run_steps, sgd_step
from lib.spec import N_PIXELS
from lib.timing import Step, measure, measure_dispatch

_wait = jax.block_until_ready


def experiments(backend: str, subject: Subject) -> Iterator[Row]:
    """See `lib.anatomy.experiments`."""
    yield from (_whole_epoch if backend == "jax-epoch" else _step_by_step)(subject)
    yield from many_steps(subject)


def _step_by_step(subject: Subject) -> Iterator[Row]:
    yield measured("python", loop(subject, nothing))
    yield "returns", measure_dispatch(one_call(subject.tiny), sync=_wait, config=CONFIG), 1.0
    yield measured("call", one_call(subject), _wait, config=IN_A_ROW)  # waited for once a block, as in training
    taken = jax.jit(lambda x, y: x[0, 0] + y[0])  # takes a batch from host memory, and does nothing with it
    with jax.default_device(jax.devices(subject.device)[0]):
        yield measured("transfer", loop(subject, taken), _wait, config=IN_A_ROW)
        yield measured("transfer-base", loop(subject.tiny, taken), _wait, config=IN_A_ROW)


def one_call(subject: Subject) -> Step:
    current, rate = on_device(subject)
    x, y = jax.device_put(subject.batch, jax.devices(subject.device)[0])

    def step() -> object:
        nonlocal current
        current, loss = one_step(current, x, y, rate)
        return loss

    return step


def _whole_epoch(subject: Subject) -> Iterator[Row]:
    target = jax.devices(subject.device)[0]
    x, y, starts = jax.device_put((subject.data.x_train, subject.data.y_train, np.array(subject.starts)), target)
    n = len(starts)

    def epoch(of: Subject, steps: int) -> Step:
        current, rate = on_device(of)
        losses = jax.device_put(jnp.zeros(len(starts), jnp.float32), target)

        def call() -> object:
            nonlocal current, losses
            current, losses = run_steps(current, losses, starts, 0, steps, x, y, rate, batch_size=of.batch_size)
            return losses

        return call

    epoch_s = measure(epoch(subject, n), sync=_wait, config=CONFIG).median_s
    steps = max(1.0, min(1.0, CHUNK_S / epoch_s) * n)  # that one call makes in training
    empty = epoch(subject.tiny, 0)  # the call alone, without any step
    yield measured("python", loop(subject, nothing), steps=steps)
    yield "returns", measure_dispatch(empty, sync=_wait, config=CONFIG), steps
    slot = jax.device_put(jnp.zeros((subject.batch_size, N_PIXELS), jnp.float32), target)
    yield measured("transfer", lambda: _slices(x, starts, slot), _wait, n)


@jax.jit
def _slices(x, starts, slot):
    """Every batch of an epoch copied out of the images, as the compiled loop does it, and nothing else."""
    return jax.lax.fori_loop(
        0, len(starts), lambda index, _: jax.lax.dynamic_slice(x, (starts[index], 0), slot.shape), slot
    )


def many_steps(subject: Subject) -> Iterator[Row]:
    """Steps on one batch in a compiled loop."""

    @jax.jit
    def many(parameters, x, y, rate):
        return jax.lax.fori_loop(0, IN_ONE_CALL, lambda _, p: sgd_step(p, x, y, rate)[0], parameters)

    for name, of in (("many", subject), ("many-tiny", subject.tiny)):
        parameters, rate = on_device(of)
        x, y = jax.device_put(of.batch, jax.devices(of.device)[0])
        yield measured(name, lambda arguments=(parameters, x, y, rate): many(*arguments), _wait, IN_ONE_CALL)


def on_device(subject: Subject):
    """Parameters, as the compiled steps want them, and the learning rate."""
    target = jax.devices(subject.device)[0]
    return jax.device_put((packed(subject.parameters), np.float32(subject.training.learning_rate)), target)
