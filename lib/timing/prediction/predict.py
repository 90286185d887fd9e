"""What is asked of a prediction, and the answer: how long a step takes, on a device that was calibrated here or on one
that is known by its figures."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lib.model.spec import MNIST, N_PIXELS, N_TRAIN, DataSet, Network, Training
from lib.timing.prediction.calibration import Calibration
from lib.timing.prediction.device import PARTS, QUANTITIES, Device, check_memory
from lib.timing.prediction.workload import Way, Workload, fully_connected
from lib.timing.roofline import Cost

MOST_NETWORKS = 100_000
MOST_ROWS = 1_000_000_000
MOST_PER_H = QUANTITIES["price_per_h"].most
YOUR_PRICE = "your price"  # in place of a listed price's date
THERE = "the images lie where they are computed with already"


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, their 90 % interval or the range of the device's figures, and the parts they are made of."""

    step_s: float
    low_s: float
    high_s: float
    parts_s: Mapping[str, float]
    warning: str = ""  # why it may be further off than its interval says

    def of(self, steps: float) -> "Prediction":
        """The seconds of so many steps."""
        parts = {name: steps * seconds for name, seconds in self.parts_s.items()}
        return Prediction(steps * self.step_s, steps * self.low_s, steps * self.high_s, parts, self.warning)

    def plus(self, other: "Prediction") -> "Prediction":
        """The seconds of both, one after the other."""
        parts = dict(Counter(self.parts_s) + Counter(other.parts_s))
        ends = (self.step_s + other.step_s, self.low_s + other.low_s, self.high_s + other.high_s)
        return Prediction(*ends, parts, self.warning or other.warning)


def predict(workload: Workload, device: Device | Calibration) -> Prediction:
    """How long a step of a workload takes on a device.

    Args:
        workload: For a calibration, run in the way that was calibrated.
        device: Calibrated on this machine, or known by its figures: then the ends are those of the figures' ranges, and
            as many times wider as the device says.

    Raises:
        DoesNotFit: The memory of a device that is known by its figures cannot hold it.
    """
    if isinstance(device, Calibration):
        seconds, low, high = map(float, device.predicted(workload))
        outside = "" if device.is_known(workload) else "far from every step that was measured for the calibration"
        return Prediction(seconds, low, high, device.parts(workload), outside)
    device.check(workload)
    parts, low, high = (_parts_on(workload, device, end) for end in ("value", "low", "high"))
    named = {PARTS[name]: float(seconds) for name, seconds in parts.items() if seconds}
    return Prediction(*(float(sum(end.values())) for end in (parts, low, high)), named, device.warning)


@dataclass(frozen=True)
class Predictions:
    """Seconds of a step of many workloads, and the ends of their intervals: arrays; NaN where it does not fit."""

    step_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray

    def times(self, count: float) -> "Predictions":
        """The seconds of so many of them, one after another."""
        return Predictions(count * self.step_s, count * self.low_s, count * self.high_s)


def predict_many(workloads: Workload, device: Device | Calibration) -> Predictions:
    """As `predict`, of a workload that is counted as arrays."""
    if isinstance(device, Calibration):
        return Predictions(*device.predicted(workloads))
    held = workloads.working_bytes <= device.figures["memory_bytes"].value
    ends = (sum(_parts_on(workloads, device, end).values()) for end in ("value", "low", "high"))
    return Predictions(*(np.where(held, end, np.nan) for end in ends))


def _parts_on(workload: Workload, device: Device, end: str) -> dict[str, Any]:
    amounts = device.amounts(workload, end)
    return {name: amounts[name] * cost for name, cost in device.costs(end).items()}


@dataclass(frozen=True)
class Question:
    """Networks of one shape that are to be trained; raises ValueError with a sentence for what cannot be.

    Attributes:
        network: Any.
        batch_size: Examples a step.
        epochs: Of each network.
        networks: How many.
        price_per_h: Dollars of an hour of this machine, as whoever asks says; None where nobody does.
        rows: Training examples of an epoch.
    """

    network: Network
    batch_size: int = 32
    epochs: int = 1
    networks: int = 1
    price_per_h: float | None = None
    rows: int = N_TRAIN

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or not 1 <= self.rows <= MOST_ROWS:
            raise ValueError(
                f"rows: expected 1 to {MOST_ROWS:,}, got {self.rows!r}; give the training examples of an epoch"
            )
        _ = self._training  # says what is wrong with it
        if isinstance(self.networks, bool) or not 1 <= self.networks <= MOST_NETWORKS:
            raise ValueError(
                f"networks: expected 1 to {MOST_NETWORKS:,}, got {self.networks}; choose how many are to be trained"
            )
        if self.price_per_h is not None and not 0 <= self.price_per_h <= MOST_PER_H:
            raise ValueError(
                f"price: expected 0 to {MOST_PER_H:,.0f} dollars an hour, got {self.price_per_h:g}; give what an hour"
                " of this machine costs you"
            )

    @property
    def steps(self) -> int:
        """Steps that each network makes."""
        return self.epochs * self._training.steps_per_epoch()

    @property
    def of_mnist(self) -> bool:
        """Whether its inputs are MNIST's images, as far as their numbers tell."""
        return (self.network.n_inputs, self.rows) == (N_PIXELS, N_TRAIN)

    def workload(self, way: Way, at_once: int = 1, batch_size: int = 0) -> Workload:
        """What a step of so many of its networks consists of; `batch_size` 0: its own."""
        return fully_connected(self.network, batch_size or self.batch_size, way, at_once, images=self.rows)

    @property
    def _training(self) -> Training:
        data = MNIST if self.of_mnist else DataSet("asked", self.rows)
        return Training(self.network, batch_size=self.batch_size, epochs=self.epochs, data=data)


@dataclass(frozen=True)
class Calibrated:
    """A way to train, and what its steps cost: calibrated on this machine, or by the figures of a device.

    Attributes:
        calibration: What predicts its steps; None where it exists and is not calibrated.
        way: How it runs a step.
        together: Networks that one program takes, at most.
        library: What trains, and on which device.
        backend: Its key in the table of backends; empty for a device that is known by its figures.
        saves: What a step would save that were changed in one thing, by variant, for the bytes of a batch; or why
            nothing can be gained there.
        memory_bytes: That a step may use.
        worker: What runs it, where the library does not say that: ways of one can be exchanged without rewriting a
            program.
    """

    calibration: Calibration | Device | None
    way: Way
    together: int = 1
    library: str = ""
    backend: str = ""
    saves: Mapping[str, Cost | str] = field(default_factory=dict)
    memory_bytes: float = math.inf
    worker: str = ""

    @property
    def program(self) -> str:
        """Whose ways to train can be exchanged without rewriting a program."""
        return self.worker or self.library

    @property
    def is_keras(self) -> bool:
        """Whether its program is one of Keras, whichever library runs it."""
        return self.backend.startswith("keras")

    def check(self, workload: Workload) -> None:
        """Raise DoesNotFit, with a sentence for the person, where the memory cannot hold a step."""
        check_memory(workload, self.memory_bytes)
