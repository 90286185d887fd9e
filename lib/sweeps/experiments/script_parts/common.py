"""What all scripts share: the check of their data, where a training starts, and the order of its batches."""

import hashlib
import sys
from itertools import pairwise

import numpy as np

from lib.sweeps.experiments.script_parts.settings import (
    BATCH_SIZE,
    DATA_SHA256,
    HIDDEN,
    N_CLASSES,
    N_INPUTS,
    N_TRAIN,
    SEED,
)


def verified(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Rows (n, inputs) in [0, 1] and labels (n,): those to train on, then the rest."""
    for name, digest in DATA_SHA256.items():
        if not hashlib.sha256(arrays[name].tobytes()).hexdigest().startswith(digest):
            print(f"{name}: these are not the data of the exported training")
            sys.exit(2)
    x = arrays["x_train"].reshape(-1, N_INPUTS)
    if x.dtype == np.uint8:
        x = x * np.float32(1 / 255)
    y = arrays["y_train"].astype(np.int32)
    return [x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:]]


def initial_parameters(nudge: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """He-normal weights (variance 2 / inputs) and zero biases, drawn from the seed.

    With a nudge, each weight is the next float32 above or below, as if rounded.
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
    """First image of each batch: neighbours, in an order drawn from seed and epoch."""
    steps = n_images // BATCH_SIZE  # the last, incomplete batch is dropped
    rng = np.random.default_rng((SEED, epoch))
    offset = rng.integers(n_images - steps * BATCH_SIZE + 1)
    return (rng.permutation(steps) * BATCH_SIZE + offset).tolist()
