"""Runs in the reader's browser, under Pyodide: trains with this project's NumPy backend, and tells what happens."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.backends.base import Epoch, Steps
from lib.backends.with_numpy import train
from lib.data.mnist import Data
from lib.spec import DataSet, Network, Training


def read_images(content: bytes, source: str) -> Data:
    """The images of an `.npz` that the site's writer made: uint8 `x_train` and `x_validation` (n, 784), and labels."""
    with np.load(io.BytesIO(content)) as kept:
        x_train, x_validation = (
            kept[name].astype(np.float32) * np.float32(1 / 255) for name in ("x_train", "x_validation")
        )
        y_train, y_validation = (kept[name].astype(np.int32) for name in ("y_train", "y_validation"))
    return Data(x_train, y_train, x_validation, y_validation, x_validation[:0], y_validation[:0], source, "")


def described(settings: dict[str, Any], data: Data) -> Training:
    """The training that the page's controls ask for.

    Args:
        settings: `rate`, `size` of a batch, `width` of the hidden layer, `epochs`.
        data: What it is trained on.

    Raises:
        ValueError: A setting cannot be used; the text is a sentence for the person.
    """
    known = DataSet("in the browser", len(data.x_train), len(data.x_validation))
    return Training(Network((settings["width"],)), settings["rate"], settings["size"], settings["epochs"], data=known)


def events(settings: dict[str, Any], data: Data) -> Iterator[dict[str, Any]]:
    """What a training does, as the page wants it: losses of steps, and at the end of each epoch its accuracy.

    Yields:
        `losses` from step `first_step` of `steps`; or `epoch` (from 1) with `accuracy`, 0 to 1, `train_s`, seconds of
        training so far, and `diverged_step`, None or the step whose loss was not finite.
    """
    training, train_s = described(settings, data), 0.0
    per_epoch = training.steps_per_epoch()
    for event in train(training, data):
        if isinstance(event, Steps):
            losses = [float(loss) if np.isfinite(loss) else None for loss in event.losses]
            first = event.epoch * per_epoch + event.first_step
            yield {"losses": losses, "first_step": first, "steps": per_epoch * training.epochs}
        elif isinstance(event, Epoch):
            train_s += event.train_s
            diverged = None if event.diverged_step is None else event.epoch * per_epoch + event.diverged_step
            accuracy = event.validation_accuracy
            yield {"epoch": event.epoch + 1, "accuracy": accuracy, "train_s": train_s, "diverged_step": diverged}
