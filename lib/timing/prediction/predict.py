"""How long a step takes, on a device that was calibrated here or on one that is known by its figures.

A calibration has the costs of a way to train on this machine, fitted to measured steps, and how far they can be
trusted. A step's seconds are a sum of costs that are not negative (as of a `Device`, but with a rate of products for
each number of examples), times a correction that is learned from what the sum leaves over. The correction is a Gaussian
process in the logarithm of the seconds (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter
2): near what was measured it follows the measurement, far from it the correction fades and the interval widens. The
width of the interval is calibrated too: each sample is predicted from all others, and the interval is as wide as it
takes to hold nine in ten of them. Few samples, such as the epochs of a recorded machine, do not say how wide that is:
many calibrations say it `together`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from lib.model.spec import MNIST, N_PIXELS, N_TRAIN, DataSet, Network, Training
from lib.timing.prediction.workload import (
    PARTS,
    QUANTITIES,
    Cost,
    Device,
    OperationKind,
    Way,
    Workload,
    check_memory,
    fully_connected,
)

# Parts of a step, and a usual cost of one unit: the fit begins from relative errors, so only its order of size matters.
USUAL = {
    "call": 1e-5,
    "launch": 1e-6,
    "images": 1 / 10e9,
    "elementwise": 1 / 20e9,
    "update": 1 / 20e9,
    "operands": 1 / 50e9,
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)  # examples of a layer at which products have a rate of their own
_KNOTS, _NUMBERS = np.log2(ROWS), np.arange(len(ROWS))
# How alike the rates of neighbouring numbers of examples are kept. A single image is hardly a neighbour of two: its
# products are those of a matrix and a vector, for which libraries and compilers have code of its own. Its rate is that
# of two only where no sample says otherwise.
SMOOTHING, SMOOTHING_OF_ONE = 1.5, 1e-3
# How much costs other than the call's are kept small where samples are few, in shares of the sample that has most of
# them: else they are fitted to the scatter.
SHRINKING = 0.3
# Variance of the correction and of a measurement's own scatter, in squares of a relative difference, and how far apart
# two samples may be, in octaves or in number, and still tell of each other; steps of one image tell of no others.
CORRECTION, SCATTER = 0.04, 0.01
REACH = {
    "examples": 2.0,
    "first product": 4.0,
    "other products": 1.5,
    "products": 10.0,
    "networks": 1.0,
    "single image": 0.05,
}
COVERAGE = 0.9
LEAST_SAMPLES = 9  # of fewer, no error is that of nine in ten: (n + 1) × coverage would lie beyond the largest
LEAST_TOGETHER = 3  # of a calibration whose interval others share
NEAR, REACHED = 0.5, 0.1  # of the correction that is shared with the nearest sample: like it, and beyond all of them
MOST_ERROR = 0.5  # of samples predicted from the others, at the median: beyond it a calibration means nothing


class NotCalibrated(ValueError):
    """The measured steps do not say what a step costs; the text is a sentence for the person."""


Sample = tuple[Workload, float]  # and the seconds that a step of it took


@dataclass(frozen=True)
class Calibration:
    """What a way to train costs on this machine. Made by `calibrate`."""

    name: str
    costs: np.ndarray  # seconds of each usual cost, (parts,)
    coordinates: np.ndarray  # of the samples, (samples, len(REACH))
    weights: np.ndarray  # of the samples in the correction, (samples,)
    precision: np.ndarray  # inverse of the samples' covariance, (samples, samples)
    widening: float  # standard deviations that hold `COVERAGE` of the samples when predicted from the others
    far_widening: float  # the same, of a workload that is not near any sample
    left_out_errors: np.ndarray  # relative errors of the samples, each predicted from the others, (samples,)
    deviations: np.ndarray  # of these in standard deviations, (samples,)
    left_near: np.ndarray  # whether each is near one of the others, (samples,)
    density: float = 1.0  # share of the inputs that it computes with

    @property
    def median_error(self) -> float:
        """Median relative error of a sample that is predicted from the others."""
        return float(np.median(self.left_out_errors))

    def predicted(self, workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds of a step with the ends of their interval, each of the shape in which the workload is counted."""
        amounts, coordinates = _amounts(workload, self.density), _coordinates(workload)
        flat = coordinates.reshape(-1, coordinates.shape[-1])
        nearness = _covariance(flat, self.coordinates)  # (n, samples)
        unknown = CORRECTION - ((nearness @ self.precision) * nearness).sum(axis=1)  # (n,)
        widening = np.where(nearness.max(axis=1) > NEAR * CORRECTION, self.widening, self.far_widening)
        spread = np.exp(widening * np.sqrt(np.maximum(unknown, 0) + SCATTER))
        factor = np.exp(nearness @ self.weights)
        factor, spread = (one.reshape(coordinates.shape[:-1]) for one in (factor, spread))
        seconds = amounts @ self.costs * factor
        return seconds, seconds / spread, seconds * spread

    def parts(self, workload: Workload) -> dict[str, float]:
        """Seconds of each part of a step, which add up to what is predicted."""
        each = _amounts(workload, self.density) * self.costs
        seconds = float(self.predicted(workload)[0])
        scale = seconds / each.sum() if each.sum() else 0.0
        found = dict(zip(USUAL, map(float, each[: len(USUAL)] * scale), strict=True))
        return {
            "calls by the host": found["call"],
            "starting kernels": found["launch"],
            "moving bytes": found["images"] + found["elementwise"] + found["update"] + found["operands"],
            "products": float(each[len(USUAL) :].sum() * scale),
        }

    def is_known(self, workload: Workload, within: float = NEAR) -> bool:
        """Whether it lies among the samples, or not far beyond them: `within` is `NEAR` or `REACHED`."""
        nearness = _covariance(np.array([_coordinates(workload)]), self.coordinates)
        return bool(nearness.max() > within * CORRECTION)


K = TypeVar("K")


def together(found: Mapping[K, Calibration]) -> dict[K, Calibration]:
    """Calibrations of few samples each, with intervals as wide as it takes to hold `COVERAGE` of all their samples.

    What lies far from the samples has an interval that was as wide as it took for samples far from all others.
    """
    deviations = np.concatenate([one.deviations for one in found.values()] or [np.empty(0)])
    near = np.concatenate([one.left_near for one in found.values()] or [np.empty(0)]).astype(bool)
    widening = _holding(deviations[near]) if near.any() else _holding(deviations)
    far = max(widening, _holding(deviations[~near])) if (~near).any() else widening
    return {key: replace(one, widening=widening, far_widening=far) for key, one in found.items()}


def _holding(deviations: np.ndarray) -> float:
    """What holds `COVERAGE` of errors, each left out of its fit; 0 of none.

    The finite-sample quantile of conformal prediction: of n, the one at (n + 1) × coverage. It usually covers steps
    that are drawn as the samples were, without a guarantee (Barber, Candès, Ramdas and Tibshirani, Predictive inference
    with the jackknife+, 2021); of others it says nothing.
    """
    rank = min(len(deviations), int(np.ceil((len(deviations) + 1) * COVERAGE)))
    return float(np.sort(deviations)[rank - 1]) if len(deviations) else 0.0


def calibrate(name: str, samples: Sequence[Sample], density: float = 1.0, few: bool = False) -> Calibration:
    """Fit the costs of a way to train to measured steps.

    Args:
        name: Of the way to train, for people.
        samples: At least `LEAST_SAMPLES`, of different workloads.
        density: Share of the inputs that it computes with, as it does with all that are not zero; 1: with all.
        few: `LEAST_TOGETHER` samples are enough, for an interval that the calibration has `together` with others.

    Raises:
        NotCalibrated: There are too few, or they cannot be told from one another.
    """
    least = LEAST_TOGETHER if few else LEAST_SAMPLES
    if len(samples) < least:
        raise NotCalibrated(f"{name}: expected {least} measured steps, got {len(samples)} so far; measure the others")
    seconds = np.array([seconds for _, seconds in samples])
    wrong = seconds[~((seconds > 0) & np.isfinite(seconds))]
    if wrong.size:
        raise NotCalibrated(f"{name}: expected finite seconds above 0, got {wrong[0]:g}; measure again")
    amounts = np.array([_amounts(workload, density) for workload, _ in samples])
    coordinates = np.array([_coordinates(workload) for workload, _ in samples])
    left_out = np.empty(len(samples))
    deviations = np.empty(len(samples))
    near = np.empty(len(samples), bool)
    for index in range(len(samples)):
        others = np.arange(len(samples)) != index
        costs, weights, precision = _fitted(amounts[others], coordinates[others], seconds[others], few)
        nearness = _covariance(coordinates[index : index + 1], coordinates[others])
        log_s = np.log(max(float(amounts[index] @ costs), 1e-12)) + float((nearness @ weights)[0])
        unknown = max(CORRECTION - float((nearness @ precision @ nearness.T)[0, 0]), 0) + SCATTER
        left_out[index] = abs(np.exp(log_s) / seconds[index] - 1)
        deviations[index] = abs(log_s - np.log(seconds[index])) / np.sqrt(unknown)
        near[index] = nearness.max() > NEAR * CORRECTION
    costs, weights, precision = _fitted(amounts, coordinates, seconds, few)
    widening = _holding(deviations)
    fit = (costs, coordinates, weights, precision)
    found = Calibration(name, *fit, widening, widening, left_out, deviations, near, density)
    if found.median_error > MOST_ERROR:
        raise NotCalibrated(
            f"{name}: steps that were measured differ from what the others say by {found.median_error:.0%} at the"
            " median; expected less than half: something else uses this machine; close other programs and calibrate"
            " again"
        )
    return found


def _fitted(
    amounts: np.ndarray, coordinates: np.ndarray, seconds: np.ndarray, few: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs (parts,), weights of the correction (samples,), and the inverse of the samples' covariance."""
    from scipy.optimize import nnls  # here, because steps are also measured on machines that have NumPy alone

    flops = amounts[:, len(USUAL) :].sum(axis=1)
    usual = np.array([*USUAL.values(), *[np.quantile(seconds / flops, 0.25)] * len(ROWS)])  # of this device's own rates
    relative = amounts * usual / seconds[:, None]
    smooth = np.zeros((len(ROWS) - 1, relative.shape[1]))
    for row in range(len(smooth)):
        alike = SMOOTHING if row else SMOOTHING_OF_ONE
        smooth[row, len(USUAL) + row : len(USUAL) + row + 2] = alike, -alike
    small = SHRINKING * np.diag(relative.max(axis=0))[1:] if few else smooth[:0]
    wanted = np.append(np.ones(len(seconds)), np.zeros(len(smooth) + len(small)))
    found, _ = nnls(np.vstack([relative, smooth, small]), wanted)
    costs = found * usual
    left = np.log(seconds / np.maximum(amounts @ costs, 1e-12))
    precision = np.linalg.inv(_covariance(coordinates, coordinates) + SCATTER * np.eye(len(seconds)))
    return costs, precision @ left, precision


def _amounts(counted: Workload, density: float) -> np.ndarray:
    """How much of each part a step needs, (…, parts): `USUAL`, then FLOP by number of examples.

    Args:
        counted: Of one step.
        density: Share of the inputs that are computed with.
    """
    bytes_of = dict.fromkeys(OperationKind, 0.0)
    products = np.zeros(len(ROWS))
    for one in counted.operations:
        times = counted.networks * (density if one.by_inputs else 1.0)
        bytes_of[one.kind] = bytes_of[one.kind] + times * one.n_bytes
        if one.kind is OperationKind.PRODUCT:
            flops = np.asarray(times * one.flops)
            products = products + flops[..., None] * row_shares(one.rows)
    images = counted.networks * counted.input_bytes  # each network has an order of its own
    kinds = OperationKind.ELEMENTWISE, OperationKind.UPDATE, OperationKind.PRODUCT
    plain = (1.0, counted.launches, images, *(bytes_of[kind] for kind in kinds))
    return np.concatenate([_side_by_side(plain, products.shape[:-1]), products], axis=-1)


def _side_by_side(parts: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """(…, parts): numbers, or arrays that are broadcast to the shape (…)."""
    found = np.empty((*shape, len(parts)))
    for number, one in enumerate(parts):
        found[..., number] = one
    return found


def row_shares(rows: Any) -> np.ndarray:
    """How a number of examples is shared among `ROWS`, (…, len(ROWS)): linear between neighbours in its logarithm."""
    place = np.interp(np.log2(np.maximum(rows, 1)), _KNOTS, _NUMBERS)
    return np.maximum(1 - np.abs(place[..., None] - _NUMBERS), 0)


def _coordinates(counted: Workload) -> np.ndarray:
    """Where a workload lies among others, in units of `REACH`, (…, len(REACH))."""
    products = [one for one in counted.operations if one.kind is OperationKind.PRODUCT]
    first, *others = (np.asarray(one.flops / one.rows) for one in products)
    plain = (
        np.log2(counted.batch_size),
        np.log2(first),
        np.log2(sum(others)),
        float(len(products)),
        np.log2(counted.networks),
        np.equal(counted.batch_size, 1),
    )
    shape = np.broadcast_shapes(*(np.shape(one) for one in plain))
    return _side_by_side(plain, shape) / np.array(list(REACH.values()))


def _covariance(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(some, others): how much of the correction is shared."""
    squares = ((some[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
    return CORRECTION * np.exp(-squares / 2)


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

    @property
    def interval_s(self) -> tuple[float, float, float]:
        """Low end, value and high end."""
        return self.low_s, self.step_s, self.high_s

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
