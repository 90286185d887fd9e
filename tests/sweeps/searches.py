"""Searches whose truth is known, and the rows that a chart of them holds."""

import csv
import io

import numpy as np
import pandas as pd

from lib.sweeps.importance import Dimension

DIMENSIONS = (
    Dimension("learning_rate", 1e-3, 1, log=True),
    Dimension("batch_size", 8, 512, log=True, whole=True),
    Dimension("width", 16, 512, log=True, whole=True),
    Dimension("depth", 1, 4, whole=True, label="hidden layers"),
)


def curves(models, points, seed=0):
    """Losses (models, points) that fall from 2.3, and the frame of them."""
    rng = np.random.default_rng(seed)
    steps = (np.arange(points) + 0.5) * 25
    loss = 2.3 / (1 + steps * rng.lognormal(0, 1, (models, 1)) / 60) * rng.lognormal(0, 0.05, (models, points))
    return loss, as_frame(steps, loss)


def as_frame(steps, loss):
    return pd.DataFrame(
        {"model": np.repeat(np.arange(len(loss)), len(steps)), "step": np.tile(steps, len(loss)), "loss": loss.ravel()}
    )


def search(seed, error, n=64):
    """A random search whose error is a function of its frame."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({one.column: one.low * (one.high / one.low) ** rng.random(n) for one in DIMENSIONS})
    for one in DIMENSIONS[1:]:
        frame[one.column] = frame[one.column].round().astype(int)
    frame["accuracy"] = 1 - np.clip(error(frame, rng), 0.01, 0.9)
    frame["diverged"] = False
    return frame


def only_rate_matters(frame, rng):
    return 10 ** (-1.5 + 0.4 * np.abs(np.log10(frame["learning_rate"]) + 1) + rng.normal(0, 0.05, len(frame)))


def nothing_matters(frame, rng):
    return 10 ** rng.normal(-1.3, 0.15, len(frame))


def rows_of(chart, name):
    return [
        {key: float(value) for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(chart.spec["datasets"][name]))
    ]
