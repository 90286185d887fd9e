"""Training with JAX: one call per epoch, one call per step, as the articles do it, or one call per operation.

**One call per epoch.** The loop over the batches is compiled as well: it slices each batch out of the training images,
which stay on the device, and returns to Python only at the end of an epoch (or every `CHUNK_S` of a long one). The
first and last step, the learning rate and the batch order are arguments, so none of them triggers a recompilation; only
a new network or batch size does, and the result is cached on disk.

**Blocks.** The number of steps per call is an argument, so the loop's length is unknown at compile time. On a GPU, the
host then waits in every iteration to learn whether there is another (jax#2491). So there the loop goes over blocks of
`BLOCK` steps, each a loop of known length, and then over the few remaining steps. A CPU needs no such wait: its blocks
are single steps.

Trainings of the same shape share the compiled program, so only the first one waits for it.

**Layout.** On the device, weights are stored as (outputs, inputs), and the loss selects its logit by comparison instead
of indexing. So the step avoids gathers, scatters, and a kind of matrix product that XLA runs slowly on a CPU. It saves
6 % at batch sizes 32 and 512, and a fifth at batch size 1.

**Precision.** On a card, XLA rounds the factors of a product as configured. On a CPU, it multiplies unrounded float32,
or refuses (jaxlib 0.10.2). So for `bfloat16` on a CPU we round the factors first, and processors with matrix units for
them (AMX) use these; sums remain float32.
"""

import time
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from lib.model.backends.base import (
    VALIDATION_SLICE,
    Loop,
    Parameters,
    backend,
    next_chunk,
    one_step_at_a_time,
)
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Training

ROUNDED = "bfloat16"  # JAX's own name; on a CPU, XLA ignores it, so all other products stay unrounded
OUTPUTS_FIRST = (1, 1)  # axes contracted, of images (batch, inputs) and weights (outputs, inputs)
BLOCK = {"cpu": 1, "gpu": 32}  # steps, by device
_evaluated: set[tuple] = set()  # shapes whose evaluation is compiled


def product(a, b, contracted: tuple[int, int] = (1, 0)):
    """Multiply two matrices over one axis of each, by default the last of `a` and the first of `b`."""
    return _of_rounded(contracted, a, b) if rounds_beforehand() else _dot(contracted, a, b)


def rounds_beforehand() -> bool:
    """Whether `product` rounds its factors itself."""
    return jax.config.jax_default_matmul_precision == ROUNDED and jax.default_backend() == "cpu"


def _dot(contracted: tuple[int, int], a, b):
    axis, other = contracted
    return jax.lax.dot_general(a, b, (((axis,), (other,)), ((), ())), preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_rounded(contracted: tuple[int, int], a, b):
    return _dot(contracted, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def _forward(contracted: tuple[int, int], a, b):
    factors = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _dot(contracted, *factors), factors


def _backward(contracted: tuple[int, int], factors, gradient):
    """Round the gradient like the other factor of its product, as on a card."""
    (a, b), (axis, other) = factors, contracted
    gradient = gradient.astype(jnp.bfloat16)  # (a's other axis, b's other axis)
    of_a = _dot((1, 1 - other), gradient, b)  # (a's other axis, contracted)
    of_b = _dot((0, 1 - axis), gradient, a)  # (b's other axis, contracted)
    return of_a if axis == 1 else of_a.T, of_b if other == 1 else of_b.T


_of_rounded.defvjp(_forward, _backward)


def packed(parameters: Parameters):
    """Parameters in the layout of the functions below, weights (outputs, inputs).

    Copies, because compiled steps overwrite their arguments.
    """
    return [(np.ascontiguousarray(weights.T), biases.copy()) for weights, biases in parameters]


def unpacked(parameters) -> Parameters:
    """Parameters in the layout of `lib.model.backends.base`, weights (inputs, outputs), in host memory."""
    return [(np.ascontiguousarray(np.asarray(weights).T), np.array(biases)) for weights, biases in parameters]


def logits_of(parameters, x):
    """Forward pass: (batch, inputs) → (batch, classes)."""
    for weights, biases in parameters[:-1]:
        x = jax.nn.relu(product(x, weights, OUTPUTS_FIRST) + biases[None, :])  # (batch, width)
    weights, biases = parameters[-1]
    return product(x, weights, OUTPUTS_FIRST) + biases[None, :]


def cross_entropy(logits, labels):
    """Cross-entropy of each image, (batch,)."""
    is_right = labels[:, None] == jnp.arange(logits.shape[1])[None, :]  # (batch, classes)
    return jax.nn.logsumexp(logits, axis=1) - jnp.sum(jnp.where(is_right, logits, 0), axis=1)


def sgd_step(parameters, x, y, learning_rate, logits: Callable = logits_of):
    """Take one step of plain SGD on the mean cross-entropy; return the new parameters and the loss before the step."""
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean(cross_entropy(logits(p, x), y)))(parameters)
    return jax.tree.map(lambda p, g: p - learning_rate * g, parameters, gradients), loss


def in_blocks(step: Callable, first, stop, state, block: int):
    """Run `step(index, state)` from `first` to `stop` (exclusive), in blocks of `block` steps, then one by one."""
    if block == 1:
        return jax.lax.fori_loop(first, stop, step, state)

    def whole_block(number, state):
        start = first + number * block
        return jax.lax.fori_loop(0, block, lambda offset, state: step(start + offset, state), state)  # of known length

    n_blocks = (stop - first) // block
    state = jax.lax.fori_loop(0, n_blocks, whole_block, state)
    return jax.lax.fori_loop(first + n_blocks * block, stop, step, state)


@partial(jax.jit, static_argnames=("batch_size", "block"), donate_argnames=("parameters", "losses"))
def run_steps(parameters, losses, starts, first, stop, x, y, learning_rate, *, batch_size, block=1):
    """Run steps `first` to `stop` (exclusive) of an epoch in one call; `losses` (steps,) is filled in place."""

    def step(index, state):
        parameters, losses = state
        images = jax.lax.dynamic_slice(x, (starts[index], 0), (batch_size, x.shape[1]))
        labels = jax.lax.dynamic_slice(y, (starts[index],), (batch_size,))
        parameters, loss = sgd_step(parameters, images, labels, learning_rate)
        return parameters, losses.at[index].set(loss)

    return in_blocks(step, first, stop, (parameters, losses), min(block, len(starts)))


@partial(jax.jit, donate_argnames="parameters")
def one_step(parameters, x, y, learning_rate):
    return sgd_step(parameters, x, y, learning_rate)


@jax.jit
def evaluate(parameters, x, y):
    """Mean loss and accuracy, in slices, so wide layers do not need memory for all images at once."""

    def one(images, labels):
        logits = logits_of(parameters, images)
        return jnp.sum(cross_entropy(logits, labels)), jnp.sum(jnp.argmax(logits, axis=1) == labels)

    loss, correct = summed(one, x, y, VALIDATION_SLICE)
    return loss / len(x), correct / len(x)


def summed(function: Callable, x, y, at_most: int):
    """Add up `function(images, labels)`, itself a sum over images, over equal slices and a shorter last one.

    Slices have at most `at_most` images, but at least one.
    """
    size = -(-len(x) // -(-len(x) // max(at_most, 1)))
    n_slices = len(x) // size
    whole = n_slices * size
    parts = (x[:whole].reshape(n_slices, size, -1), y[:whole].reshape(n_slices, size))
    found = jax.lax.map(lambda part: function(*part), parts)
    total = jax.tree.map(lambda part: jnp.sum(part, axis=0), found)
    return total if whole == len(x) else jax.tree.map(jnp.add, total, function(x[whole:], y[whole:]))


@lru_cache(maxsize=4)
def on_device(data: Data, where):
    """Images and labels on a device or by a sharding, copied there once; on a CPU, XLA uses the aligned arrays."""
    return jax.device_put((data.x_train, data.y_train, data.x_validation, data.y_validation), where)


@backend
def train(training: Training, data: Data, device: str, parameters: Parameters) -> Loop:
    """Train with one call per epoch, or one every `CHUNK_S` of a long epoch. See `lib.model.backends.base`."""
    clock, target, size = time.perf_counter, jax.devices(device)[0], training.batch_size
    x, y, x_validation, y_validation = on_device(data, target)
    current, rate = jax.device_put((packed(parameters), np.float32(training.learning_rate)), target)
    order = jax.device_put(batch_starts(len(data.x_train), size, training.seed, 0), target)
    losses = jax.device_put(jnp.zeros(len(order), jnp.float32), target)
    # Zero steps compile the program, or load it from the cache, without training.
    steps = partial(run_steps, batch_size=size, block=BLOCK[device])
    current, losses = steps(current, losses, order, 0, 0, x, y, rate)
    # The evaluation takes 7 ms, so it runs only once per shape.
    if (shape := (training.network, len(x_validation), size, target)) not in _evaluated:
        jax.block_until_ready(evaluate(current, x_validation, y_validation))
        _evaluated.add(shape)
    losses.block_until_ready()

    def chunk(_epoch: int, starts: np.ndarray, done: int, step_s: float | None) -> tuple[np.ndarray, float]:
        nonlocal current, losses, order
        if done == 0:
            order = jax.device_put(starts, target)
        stop = done + next_chunk(len(starts) - done, step_s, BLOCK[device])
        before = clock()
        current, losses = steps(current, losses, order, done, stop, x, y, rate)
        losses.block_until_ready()
        chunk_s = clock() - before
        return np.asarray(losses)[done:stop].copy(), chunk_s

    return chunk, lambda: _validate(current, x_validation, y_validation), lambda: unpacked(current)


def _step_by_step(run_step: Callable, training: Training, data: Data, device: str, parameters: Parameters) -> Loop:
    """Run steps with `run_step`, fed from host memory by a Python loop. See `lib.model.backends.base`."""
    target, size = jax.devices(device)[0], training.batch_size
    _, _, x_validation, y_validation = on_device(data, target)
    current, rate = jax.device_put((packed(parameters), np.float32(training.learning_rate)), target)
    spare = jax.tree.map(jnp.copy, current)
    jax.block_until_ready(run_step(spare, data.x_train[:size], data.y_train[:size], rate))
    jax.block_until_ready(evaluate(current, x_validation, y_validation))

    def step(images: np.ndarray, labels: np.ndarray) -> jax.Array:
        nonlocal current
        current, loss = run_step(current, images, labels, rate)
        return loss

    # Dispatch steps without waiting; wait for the device once per chunk.
    chunk = one_step_at_a_time(
        step,
        lambda: jax.block_until_ready(current),
        lambda losses: np.asarray(jax.device_get(losses), np.float32),
        data.x_train,
        data.y_train,
        size,
    )
    return chunk, lambda: _validate(current, x_validation, y_validation), lambda: unpacked(current)


train_by_step = backend(partial(_step_by_step, one_step))
# The same step without `jit`: JAX dispatches each operation separately, and retraces the gradient in every step.
train_by_operation = backend(partial(_step_by_step, sgd_step))


def _validate(current, x_validation, y_validation) -> tuple[float, float]:
    loss, accuracy = jax.device_get(evaluate(current, x_validation, y_validation))
    return float(loss), float(accuracy)
