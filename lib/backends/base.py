"""The contract between the ways of training: what goes in, what comes out, and where every training starts.

A backend is a generator, `train(training, data, device, parameters=None, first_epoch=0)`. It yields `FirstCall`
once, then `Steps` as they are done (several times an epoch where an epoch takes long) and `Epoch` at the end of
each. State goes in and comes out; stopping is not asking for the next one. After a loss that is not finite there is
nothing left to train: the epoch is marked and the generator ends.

The clock runs only while training: `train_s` excludes evaluation, compilation and any time that the generator waits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lib.spec import Network

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


def next_chunk(steps_left: int, step_s: float | None) -> int:
    """How many steps to take before looking up again: a few to learn the pace, then equal parts of what is left.

    >>> next_chunk(1500, None), next_chunk(1500, 60e-6), next_chunk(48000, 10e-6)
    (16, 750, 6000)
    """
    if step_s is None:
        return min(16, steps_left)
    parts = max(1, round(steps_left * step_s / CHUNK_S))
    return max(1, -(-steps_left // parts))
