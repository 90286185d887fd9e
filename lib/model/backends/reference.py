"""Training in float64, written for clarity alone; tests and workers compare every backend with it.

A library that computes wrong numbers does so silently: jaxlib 0.10.2 did on a CPU, in a product followed by a sum over
more than 32,768 rows (jax#39103). So each worker process compares its library's numbers with these before its first
training (`verify`). Checks that cost a few milliseconds run in every process; checks that need compilation either use
code that the first training compiles anyway (the step), or wait until it is needed (a stack's evaluation).
"""

from collections.abc import Iterator
from contextlib import closing
from functools import cache

import numpy as np

from lib.model.backends.base import CannotTrain, Parameters, Steps, initial_parameters
from lib.model.backends.registry import BACKENDS, Runtime, load_train, versions
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import N_CLASSES, N_PIXELS, Network, Training

N_STEPS = 4
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 4e-2}  # largest relative difference of a loss, by precision
N_ROWS = 36_000  # three stacked networks, each evaluated on 12,000 images
STACKED, DISTINCT = 3, 16  # networks, and distinct images, which are repeated
Answer = tuple[str, np.ndarray, np.ndarray]  # quantity, computed here, computed in float64


def loss_and_gradients(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> tuple[float, Parameters]:
    """Return the mean cross-entropy of images (batch, 784) and labels (batch,), and its gradient by the chain rule."""
    activations = [x.astype(np.float64)]
    for index, (weights, biases) in enumerate(parameters):
        z = activations[-1] @ weights + biases
        activations.append(np.maximum(z, 0) if index + 1 < len(parameters) else z)
    logits = activations[-1]
    log_sum = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    loss = float(np.mean(log_sum - logits[np.arange(len(y)), y]))
    delta = np.exp(logits - log_sum[:, None])
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    gradients: Parameters = []
    for index in range(len(parameters) - 1, -1, -1):
        gradients.insert(0, (activations[index].T @ delta, delta.sum(0)))
        delta = (delta @ parameters[index][0].T) * (activations[index] > 0)
    return loss, gradients


def train(training: Training, data: Data, steps: int) -> tuple[np.ndarray, Parameters]:
    """Train the first steps of the first epoch; return their losses (steps,) and the resulting parameters."""
    parameters = [
        (w.astype(np.float64), b.astype(np.float64)) for w, b in initial_parameters(training.network, training.seed)
    ]
    losses = []
    for start in batch_starts(len(data.x_train), training.batch_size, training.seed, 0)[:steps]:
        stop = start + training.batch_size
        loss, gradients = loss_and_gradients(parameters, data.x_train[start:stop], data.y_train[start:stop])
        losses.append(loss)
        parameters = [
            (w - training.learning_rate * gw, b - training.learning_rate * gb)
            for (w, b), (gw, gb) in zip(parameters, gradients, strict=True)
        ]
    return np.array(losses), parameters


def verify(runtime: Runtime, data: Data, stacked: bool = False) -> None:
    """Raise CannotTrain unless this runtime computes correctly in this process; the check runs once per process.

    With `stacked`, also check several networks in one program, which only JAX offers.
    """
    for of_stacks in (False, True) if stacked else (False,):
        if complaint := _complaint(runtime, data, of_stacks):
            raise CannotTrain(complaint)


@cache
def _complaint(runtime: Runtime, data: Data, stacked: bool) -> str:
    """A sentence about the first wrong number; empty if all are right."""
    for what, here, right in _stack(runtime.device) if stacked else _answers(runtime.backend, runtime.device, data):
        off = float(np.max(np.abs(here - right) / np.maximum(np.abs(right), 1)))
        if not off <= TOLERANCE[runtime.precision]:  # true for NaN
            return (
                f"“{runtime.label}” computes wrong numbers here, so it is not used: {what} is off from its float64"
                f" value by {off:.2g} of it, expected at most {TOLERANCE[runtime.precision]:g}; unset XLA_FLAGS before"
                f" starting, or install another version of its library ({versions(runtime)})"
            )
    return ""


def _answers(backend: str, device: str, data: Data) -> Iterator[Answer]:
    yield _step(backend, device, data)
    if "jax" in BACKENDS[backend].needs:
        yield _product_and_sum(device)


def _step(backend: str, device: str, data: Data) -> Answer:
    """Compare the first steps of the default training, run by the backend's own loop."""
    training = Training(epochs=1)
    found: list[float] = []
    with closing(load_train(backend)(training, data, device)) as events:  # type: ignore[type-var]
        while len(found) < N_STEPS and (event := next(events, None)) is not None:
            found += event.losses.tolist() if isinstance(event, Steps) else []
    right, _ = train(training, data, N_STEPS)
    return "the loss of its first steps", np.array(found[:N_STEPS]), right[: len(found)]


def _product_and_sum(device: str) -> Answer:
    """Run the program of jax#39103: each row times a matrix, squared and summed."""
    import jax
    import jax.numpy as jnp

    rows = np.zeros((N_ROWS, 3), np.float32)
    rows[:, 0] = np.arange(N_ROWS)
    here = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3, dtype=row.dtype) @ row) ** 2)))
    found = np.asarray(here(jax.device_put(rows, jax.devices(device)[0])), np.float64)
    return f"a product and a sum over {N_ROWS:,} rows", found, np.sum(rows.astype(np.float64) ** 2, axis=1)


def _stack(device: str) -> Iterator[Answer]:
    """Compare the loss of stacked networks on as many images as in validation, copies of a few distinct ones."""
    from lib.model.backends.packing import Shape
    from lib.model.backends.stacked import devices_of, program, write, zeros

    networks = [Network((8,))] * STACKED
    shape = Shape.of(networks)
    starts = [initial_parameters(network, seed) for seed, network in enumerate(networks)]
    stack = zeros(shape, 1, STACKED)
    for column, parameters in enumerate(starts):
        write(stack, (0, column), parameters, shape)
    few = np.random.default_rng(0).random((DISTINCT, N_PIXELS), np.float32)
    labels = np.arange(DISTINCT, dtype=np.int32) % N_CLASSES
    times = N_ROWS // STACKED // DISTINCT
    compiled = program(shape, DISTINCT, False, devices_of(device, 1))
    losses, _ = compiled.evaluate(stack, np.tile(few, (times, 1)), np.tile(labels, times))
    right = [loss_and_gradients(parameters, few, labels)[0] for parameters in starts]
    yield "the validation loss of stacked networks", np.asarray(losses, np.float64)[0], np.array(right)
