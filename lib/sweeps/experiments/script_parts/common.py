"""Shared code of all exported scripts: data, initial parameters, batches and the comparison of curves.

`lib.sweeps.experiments.exported_script` assembles each script from this folder. Its own settings replace everything
between the imports and the first function here.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import numpy as np

N_INPUTS, N_CLASSES, N_TRAIN = 784, 10, 48_000  # inputs per row, classes, training rows; the rest validate
DATA_FILE = os.environ.get("MNIST_NPZ") or "mnist.npz"
DATA_URL = ""  # of MNIST; empty for data shipped with the script
HIDDEN: tuple[int, ...] = (128,)
LEARNING_RATE = 0.1
BATCH_SIZE = 32
EPOCHS = 3
SEED = 0
DATA_SHA256: dict[str, str] = {}  # of the arrays' bytes
EXPECTED: list[tuple[float, float]] = []  # validation loss and accuracy, by epoch
DIVERGED_AT: int | None = None  # first step, from 1, whose loss was not finite


def training_data() -> list[np.ndarray]:
    """Return rows (n, inputs) in [0, 1] and labels (n,) to train on, then the rest.

    MNIST is downloaded if its file is missing.
    """
    path = Path(DATA_FILE)
    if DATA_URL and not path.exists():
        path.write_bytes(urlopen(DATA_URL).read())
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in DATA_SHA256}
    for name, digest in DATA_SHA256.items():
        if hashlib.sha256(arrays[name].tobytes()).hexdigest() != digest:
            print(f"{name}: these are not the exported training's data")
            sys.exit(2)
    x = arrays["x_train"].reshape(-1, N_INPUTS)
    if x.dtype == np.uint8:
        x = x * np.float32(1 / 255)
    y = arrays["y_train"].astype(np.int32)
    return [x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:]]


def initial_parameters(nudge: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw He-normal weights (variance 2 / inputs) from the seed, with zero biases.

    A nudge moves each weight to the next float32 above or below, like a rounding error.
    """
    rng, rounding = np.random.default_rng((SEED, 0x4E)), np.random.default_rng(nudge)
    parameters = []
    for inputs, outputs in pairwise((N_INPUTS, *HIDDEN, N_CLASSES)):
        weights = rng.standard_normal((inputs, outputs), np.float32)
        weights *= np.float32(np.sqrt(2 / inputs))
        if nudge:
            ends = np.array([-np.inf, np.inf], np.float32)
            weights = np.nextafter(weights, rounding.choice(ends, weights.shape))
        parameters.append((weights, np.zeros(outputs, np.float32)))
    return parameters


def batch_starts(n_images: int, epoch: int) -> list[int]:
    """Return where each contiguous batch starts, in an order set by seed and epoch."""
    steps = n_images // BATCH_SIZE  # the last, incomplete batch is dropped
    rng = np.random.default_rng((SEED, epoch))
    offset = rng.integers(n_images - steps * BATCH_SIZE + 1)
    return (rng.permutation(steps) * BATCH_SIZE + offset).tolist()


Epochs = Iterator[tuple[np.ndarray, np.ndarray]]  # losses by step, validation logits
# Validation loss and accuracy of each epoch, and the step at which training diverged.
Curve = tuple[list[tuple[float, float]], int | None]
TOLERANCE = (0.01, 0.005, 0)  # of the expected loss; of accuracy; in steps


def loss_and_accuracy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return mean cross-entropy and accuracy of logits (n, classes)."""
    logits = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    right = logits[np.arange(len(labels)), labels]
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - right)
    return float(loss), float(np.mean(logits.argmax(axis=1) == labels))


def curve_of(epochs: Epochs, labels: np.ndarray) -> Curve:
    """Print and return each epoch's loss and accuracy, and the step of divergence."""
    curve, steps = [], 0
    print("epoch  training loss  validation loss  accuracy")
    for epoch, (losses, logits) in enumerate(epochs, 1):
        if not np.isfinite(losses).all():
            diverged_at = steps + int(np.argmin(np.isfinite(losses))) + 1
            print(f"{epoch:5}  the loss is not finite in step {diverged_at}")
            return curve, diverged_at
        steps += len(losses)
        curve.append(loss_and_accuracy(logits, labels))
        loss, accuracy = curve[-1]
        print(f"{epoch:5}  {losses.mean():13.5f}  {loss:15.5f}  {accuracy:8.2%}")
    return curve, None


def apart(one: Curve, other: Curve) -> np.ndarray:
    """Return how far two curves differ: relative loss, accuracy, steps; shape (3,)."""
    shared = min(len(one[0]), len(other[0]))
    a = np.array(one[0][:shared]).reshape(shared, 2)
    b = np.array(other[0][:shared]).reshape(shared, 2)
    loss = np.max(np.abs(a[:, 0] / b[:, 0] - 1), initial=0)
    accuracy = np.max(np.abs(a[:, 1] - b[:, 1]), initial=0)
    steps = abs((one[1] or 0) - (other[1] or 0))
    only_one_diverged = (one[1] is None) != (other[1] is None)
    return np.array([loss, accuracy, np.inf if only_one_diverged else steps])


def compare(curve_from: Callable[[int], Curve]) -> int:
    """Print whether the curve is the expected one; return exit status 0 if so, else 1.

    Outside the tolerance, measure what rounding alone does: train again from starts
    that are off by one rounding error, and allow four times that difference.
    """
    curve, limits = curve_from(0), np.array(TOLERANCE)
    off = apart(curve, (EXPECTED, DIVERGED_AT))
    if not (off <= limits).all():
        print("Outside the tolerance. Twice more, each weight rounded differently:")
        limits = limits + 4 * np.max([apart(curve_from(n), curve) for n in (1, 2)], 0)
    same = bool((off <= limits).all())
    numbers = "{:.2%} of the loss, {:.2%} of accuracy, {:g} steps"
    print("same curve within" if same else "different curve, not within", end=" ")
    print(f"{numbers.format(*limits)}: off by {numbers.format(*off)}")
    return 0 if same else 1
