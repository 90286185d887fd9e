"""Runs in the reader's browser, under Pyodide: streams the events of the four experiments on the NumPy backend."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.formatting import format_rate
from lib.model.backends import webgpu
from lib.model.backends.base import Epoch, Steps
from lib.model.backends.webgpu import as_json, begins_with, first_images
from lib.model.backends.with_numpy import train
from lib.model.data.mnist import Data
from lib.model.spec import DataSet, Network, Training
from lib.sweeps.experiments.lines import TrainedEpochs, batch_sizes_of, networks_of, rates_between
from lib.ui.views.conclusions import best_network, best_rate, fastest_backend, first_to_the_target

NUMPY = "NumPy"  # the only backend here; the page's JavaScript runs the others
CONCLUSIONS = {
    "learning-rate": best_rate,
    "batch-size": first_to_the_target,
    "depth": best_network,
    "backend": fastest_backend,
}
SLICE = 500  # images that the page evaluates at a time


def read_images(content: bytes, source: str) -> Data:
    """Read the site's `.npz`: uint8 `x_train` and `x_validation` (n, 784), and their labels."""
    with np.load(io.BytesIO(content)) as kept:
        x_train, x_validation = (
            kept[name].astype(np.float32) * np.float32(1 / 255) for name in ("x_train", "x_validation")
        )
        y_train, y_validation = (kept[name].astype(np.int32) for name in ("y_train", "y_validation"))
    return Data(x_train, y_train, x_validation, y_validation, x_validation[:0], y_validation[:0], source, "")


def trainings(experiment: str, settings: Mapping[str, Any], data: Data) -> list[tuple[str, Training]]:
    """Return label and training of each line that Python trains.

    Args:
        experiment: `learning-rate`, `batch-size`, `depth` or `backend`.
        settings: Values of its controls, by their names in `lib.site.in_your_browser`.

    Raises:
        ValueError: A setting is unusable; the text is a sentence for the user.
    """
    known = DataSet("in the browser", len(data.x_train), len(data.x_validation))
    chosen = {"rate": 0.1, "size": 32, "hidden": ""} | dict(settings)
    network, epochs = Network.parse(chosen["hidden"]), chosen["epochs"]
    rate, size = chosen["rate"], chosen["size"]
    if experiment == "learning-rate":
        rates = rates_between(chosen["low"], chosen["high"], chosen["count"])
        lines = [(format_rate(one), network, one, size) for one in rates]
    elif experiment == "batch-size":
        lines = [(str(one), network, rate, one) for one in batch_sizes_of(chosen["sizes"])]
    elif experiment == "depth":
        lines = [(one.label, one, rate, size) for one in networks_of(chosen["networks"], chosen["own"])]
    else:
        lines = [(NUMPY, network, rate, size)]
    return [(label, Training(*training, epochs, data=known)) for label, *training in lines]


def begin(experiment: str, settings: Mapping[str, Any], data: Data) -> dict[str, Any]:
    """Return what the page needs first: the `lines`, each with its `label` and its `steps` over all epochs.

    For the experiment `backend`, also the `job` for the other backends. Raises as `trainings` does.
    """
    made = trainings(experiment, settings, data)
    lines = [{"label": label, "steps": training.steps_per_epoch() * training.epochs} for label, training in made]
    return {"lines": lines} | ({"job": _job(made[0][1])} if experiment == "backend" else {})


def _job(training: Training) -> dict[str, Any]:
    return {
        "train": {
            "program": as_json(webgpu.step(training.network, training.batch_size)),
            "evaluation": as_json(webgpu.evaluation(training.network, SLICE)),
            "slice": SLICE,
            "rate": training.learning_rate,
        },
        "parameters": begins_with(training).tolist(),
        "starts": first_images(training, training.data.n_train).tolist(),
        "epochs": training.epochs,
        "steps": training.steps_per_epoch(),
    }


def events(experiment: str, settings: Mapping[str, Any], data: Data) -> Iterator[dict[str, Any]]:
    """Run the trainings one after another.

    Yields:
        For a `line`, from 0: `losses` from step `first_step`, counted over all epochs; or the end of an `epoch`, from
        1, with `accuracy` (0 to 1), `steps`, `train_s` and `evaluation_s` in seconds, and `diverged_step`: None, or the
        step in the epoch, from 0, whose loss was not finite. Losses that are not finite are None.
    """
    for line, (_, training) in enumerate(trainings(experiment, settings, data)):
        per_epoch = training.steps_per_epoch()
        for event in train(training, data):
            if isinstance(event, Steps):
                losses = [float(loss) if np.isfinite(loss) else None for loss in event.losses]
                yield {"line": line, "losses": losses, "first_step": event.epoch * per_epoch + event.first_step}
            elif isinstance(event, Epoch):
                yield {
                    "line": line,
                    "epoch": event.epoch + 1,
                    "accuracy": event.validation_accuracy,
                    "steps": event.steps,
                    "train_s": event.train_s,
                    "evaluation_s": event.evaluation_s,
                    "diverged_step": event.diverged_step,
                }


@dataclass
class _Told(TrainedEpochs):
    training: Training
    epochs: list[Epoch]
    train_s: float


def concluded(
    experiment: str, settings: Mapping[str, Any], data: Data, lines: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]
) -> str:
    """Return the sentence below an experiment, as in the notebook.

    `lines` has the label of each line, trained by Python or the page, and its epochs as `events` yields them.
    """
    made = trainings(experiment, settings, data)
    told = []
    for place, (label, epochs) in enumerate(lines):
        _, training = made[min(place, len(made) - 1)]  # all backends train the same network
        told.append((label, _Told(training, list(map(_epoch, epochs)), sum(one["train_s"] for one in epochs))))
    return CONCLUSIONS[experiment](told, settings.get("target", 0.0))


def _epoch(one: Mapping[str, Any]) -> Epoch:
    return Epoch(
        epoch=one["epoch"] - 1,
        steps=one["steps"],
        validation_loss=float("nan"),
        validation_accuracy=one["accuracy"],
        train_s=one["train_s"],
        evaluation_s=one["evaluation_s"],
        parameters=list,
        diverged_step=one["diverged_step"],
    )
