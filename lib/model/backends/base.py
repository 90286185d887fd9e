"""The contract of all backends: their inputs, their events, and the parameters every training starts from.

A backend is a generator, `train(training, data, device, parameters=None, first_epoch=0)`; most are made by `backend`.
It yields `FirstCall` once, then `Steps` as they are done (several times per epoch if an epoch takes long) and an
`Epoch` at the end of each. All state is passed in and comes back out; to stop a training, close the generator or stop
iterating. A loss that is not finite ends the training: the epoch is marked as diverged and the generator returns.

The clock runs only while training: `train_s` excludes evaluation, compilation and any time the generator is suspended.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training

Layer = tuple[np.ndarray, np.ndarray]  # weights (inputs, outputs), biases (outputs,)
Parameters = list[Layer]

# Pausing, cancelling and drawing a new point all wait for the end of a chunk of steps.
CHUNK_S = 0.06
VALIDATION_SLICE = 2_000  # limits the memory of an evaluation: 4,096 activations of 12,000 images are 200 MB


class CannotTrain(ValueError):
    """A backend cannot run this training, as its figures show before anything is allocated, or cannot train at all.

    The latter happens if a library computes wrong numbers or cannot use the requested card. The text is a sentence for
    the user: what was expected, what came, and what to do.
    """


@dataclass(frozen=True)
class FirstCall:
    """The one-time cost before steady training: building the model, tracing, compiling or loading compiled code."""

    first_call_s: float


@dataclass(frozen=True)
class Steps:
    """Training losses of consecutive steps, float32 (n,), and the seconds those steps took."""

    epoch: int
    first_step: int  # within the epoch
    losses: np.ndarray
    train_s: float

    @property
    def first(self) -> tuple[int, int]:
        """Epoch and index of the first step: the same for all networks of a stack."""
        return self.epoch, self.first_step


@dataclass(frozen=True)
class Epoch:
    """The end of an epoch. `parameters()` copies the current parameters to host memory, so call it only if needed."""

    epoch: int
    steps: int
    validation_loss: float
    validation_accuracy: float
    train_s: float
    evaluation_s: float
    parameters: Callable[[], Parameters]
    # First step of this epoch with a non-finite loss, or after which the parameters were found not to be finite.
    diverged_step: int | None = None


Event = FirstCall | Steps | Epoch
Train = Callable[..., Iterator[Event]]


def initial_parameters(network: Network, seed: int) -> Parameters:
    """Draw He-normal weights (variance 2 / inputs) in float32 with NumPy from the seed; biases are zero.

    He et al., Delving Deep into Rectifiers, 2015, equation 10.
    """
    rng = np.random.default_rng((seed, 0x4E))  # a different stream from the batch order's
    return [
        (rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / shape[0])), np.zeros(shape[1], np.float32))
        for shape in network.shapes
    ]


def no_parameters() -> Parameters:
    """Stand-in for `Epoch.parameters` if the parameters stayed in a worker or were never stored."""
    return []


def first_non_finite(losses: np.ndarray) -> int | None:
    """Index of the first NaN or infinity, if any."""
    return next(map(int, np.flatnonzero(~np.isfinite(losses))), None)


Chunk = Callable[[int, np.ndarray, int, float | None], tuple[np.ndarray, float]]
Loop = tuple[Chunk, Callable[[], tuple[float, float]], Callable[[], Parameters]]


def backend(begin: Callable[[Training, Data, str, Parameters], Loop]) -> Train:
    """Return the backend that trains with `chunk`, `evaluate` and `parameters` of `epochs`, which `begin` returns.

    `begin(training, data, device, parameters)` does what is done once; its time is that of the first call.
    """

    def train(
        training: Training, data: Data, device: str = "cpu", parameters: Parameters | None = None, first_epoch: int = 0
    ) -> Iterator[Event]:
        began = time.perf_counter()
        loop = begin(training, data, device, parameters or initial_parameters(training.network, training.seed))
        yield FirstCall(time.perf_counter() - began)
        yield from epochs(training, len(data.x_train), first_epoch, *loop)

    return train


def epochs(
    training: Training,
    n_images: int,
    first_epoch: int,
    chunk: Chunk,
    evaluate: Callable[[], tuple[float, float]],
    parameters: Callable[[], Parameters],
) -> Iterator[Event]:
    """Run the loop shared by all backends that train a few steps per call.

    `chunk(epoch, starts, done, step_s)` runs the next steps of an epoch and returns their losses and seconds. `starts`
    holds the first image of each batch of the epoch, `done` counts the finished steps, and `step_s` is the latest time
    per step. `evaluate()` returns validation loss and accuracy.
    """
    step_s = None
    for epoch in range(first_epoch, training.epochs):
        starts = batch_starts(n_images, training.batch_size, training.seed, epoch)
        done, train_s, diverged = 0, 0.0, None
        while done < len(starts) and diverged is None:
            with np.errstate(all="ignore"):  # overflow is a legitimate outcome: it is reported as divergence
                losses, chunk_s = chunk(epoch, starts, done, step_s)
            yield Steps(epoch, done, losses, chunk_s)
            bad = first_non_finite(losses)
            diverged = None if bad is None else done + bad
            done, train_s, step_s = done + len(losses), train_s + chunk_s, chunk_s / len(losses)
        before = time.perf_counter()
        with np.errstate(all="ignore"):
            loss, accuracy = evaluate()
        evaluation_s = time.perf_counter() - before
        yield Epoch(epoch, done, loss, accuracy, train_s, evaluation_s, parameters, diverged)
        if diverged is not None:
            return


def one_step_at_a_time(
    step: Callable, wait: Callable[[], object], on_host: Callable[[list], np.ndarray], x, y, batch_size: int
) -> Chunk:
    """Return a `chunk` for `epochs` that launches each step from a Python loop, for about `CHUNK_S`.

    `step(images, labels)` returns its loss, which may not be computed yet; `wait()` blocks until the device is done;
    `on_host` turns a list of losses into an array (n,), outside the measured time.
    """
    clock = time.perf_counter

    def chunk(_epoch: int, starts: np.ndarray, done: int, _step_s: float | None) -> tuple[np.ndarray, float]:
        losses, before = [], clock()
        for first in starts[done:].tolist():
            losses.append(step(x[first : first + batch_size], y[first : first + batch_size]))
            if clock() - before >= CHUNK_S:
                break
        wait()
        chunk_s = clock() - before
        return on_host(losses), chunk_s

    return chunk


def next_chunk(steps_left: int, step_s: float | None, block: int = 1) -> int:
    """Number of steps until the next return to the caller: a few to learn the pace, then equal parts of the rest.

    A multiple of `block`, unless fewer steps are left.

    >>> next_chunk(1500, None), next_chunk(1500, 60e-6), next_chunk(48000, 10e-6)
    (16, 750, 6000)
    >>> next_chunk(1500, None, 32), next_chunk(1500, 60e-6, 32), next_chunk(11, 1.0, 32)
    (32, 768, 11)
    """
    parts = max(1, round(steps_left * step_s / CHUNK_S)) if step_s is not None else None
    wanted = max(1, -(-steps_left // parts)) if parts else 16
    return min(-(-wanted // block) * block, steps_left)
