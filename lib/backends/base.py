"""The contract that all backends keep: what goes in, what comes out, and where every training starts.

A backend is a generator, `train(training, data, device, parameters=None, first_epoch=0)`. It yields `FirstCall`
once, then `Steps` as they are done (several times an epoch where an epoch takes long) and `Epoch` at the end of
each. State goes in and comes out; stopping is not asking for the next one. After a loss that is not finite there is
nothing left to train: the epoch is marked and the generator ends.

The clock runs only while training: `train_s` excludes evaluation, compilation and any time that the generator waits.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lib.data.mnist import batch_starts
from lib.spec import Network, Training

Layer = tuple[np.ndarray, np.ndarray]  # weights (inputs, outputs), biases (outputs,)
Parameters = list[Layer]

# A pause, a cancel and a new point on the chart all wait for the end of a chunk of steps.
CHUNK_S = 0.06
VALIDATION_SLICE = 2_000  # bounds the memory of an evaluation: 4,096 activations of 12,000 images are 200 MB


@dataclass(frozen=True)
class FirstCall:
    """What is paid once before steady training: building the model, tracing, compiling (or loading the compiled)."""

    first_call_s: float


@dataclass(frozen=True)
class Steps:
    """Training loss of consecutive steps, float32 (n,), and the seconds that they took."""

    epoch: int
    first_step: int  # within the epoch
    losses: np.ndarray
    train_s: float


@dataclass(frozen=True)
class Epoch:
    """The end of an epoch. `parameters()` copies the current parameters to host memory; only who needs them asks."""

    epoch: int
    steps: int
    validation_loss: float
    validation_accuracy: float
    train_s: float
    evaluation_s: float
    parameters: Callable[[], Parameters]
    diverged_step: int | None = None  # first step of this epoch whose loss was not finite


Event = FirstCall | Steps | Epoch
Train = Callable[..., Iterator[Event]]


def initial_parameters(network: Network, seed: int) -> Parameters:
    """He-normal weights (variance 2 / inputs) and zero biases in float32, drawn with NumPy from the seed.

    He et al., Delving Deep into Rectifiers, 2015, equation 10.
    """
    rng = np.random.default_rng((seed, 0x4E))  # another stream than the batch order's
    return [
        (
            (rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / shape[0]))),
            np.zeros(shape[1], np.float32),
        )
        for shape in network.shapes
    ]


def no_parameters() -> Parameters:
    """Stands for parameters where they were left behind: in the worker, or in what the store keeps."""
    return []


def first_non_finite(losses: np.ndarray) -> int | None:
    """Index of the first NaN or infinity, if any."""
    bad = np.flatnonzero(~np.isfinite(losses))
    return int(bad[0]) if bad.size else None


Chunk = Callable[[int, np.ndarray, int, float | None], tuple[np.ndarray, float]]


def epochs(
    training: Training,
    n_images: int,
    first_epoch: int,
    chunk: Chunk,
    evaluate: Callable[[], tuple[float, float]],
    parameters: Callable[[], Parameters],
) -> Iterator[Event]:
    """The loop that all backends share which are asked for a few steps at a time.

    `chunk(epoch, starts, done, step_s)` takes the next steps of an epoch, whose batches begin at `starts`, and returns
    their losses and seconds; `step_s` is what a step took last. `evaluate()` gives validation loss and accuracy.
    """
    step_s = None
    for epoch in range(first_epoch, training.epochs):
        starts = batch_starts(n_images, training.batch_size, training.seed, epoch)
        done, train_s, diverged = 0, 0.0, None
        while done < len(starts) and diverged is None:
            losses, chunk_s = chunk(epoch, starts, done, step_s)
            yield Steps(epoch, done, losses, chunk_s)
            bad = first_non_finite(losses)
            diverged = None if bad is None else done + bad
            done, train_s, step_s = done + len(losses), train_s + chunk_s, chunk_s / len(losses)
        before = time.perf_counter()
        loss, accuracy = evaluate()
        evaluation_s = time.perf_counter() - before
        yield Epoch(epoch, done, loss, accuracy, train_s, evaluation_s, parameters, diverged)
        if diverged is not None:
            return


def next_chunk(steps_left: int, step_s: float | None) -> int:
    """How many steps to take before looking up again: a few to learn the pace, then equal parts of what is left.

    >>> next_chunk(1500, None), next_chunk(1500, 60e-6), next_chunk(48000, 10e-6)
    (16, 750, 6000)
    """
    if step_s is None:
        return min(16, steps_left)
    parts = max(1, round(steps_left * step_s / CHUNK_S))
    return max(1, -(-steps_left // parts))
