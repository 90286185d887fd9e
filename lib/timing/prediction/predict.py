"""Predict how long a step takes, on a device calibrated here or on a device known by its figures.

A calibration holds the costs of a way to train on this machine, fitted to measured steps, and how far to trust them. A
step's seconds are a sum of nonnegative costs (as for a `Device`, but with a product rate for each number of examples),
times a correction learned from the residuals. The correction is a Gaussian process in the logarithm of the seconds
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2): near measured steps it follows the
measurements; far from them it fades and the interval widens. The interval's width is calibrated too: each sample is
predicted from all others, and the interval is just wide enough to hold nine in ten of them. Few samples, such as the
epochs of a recorded machine, cannot determine that width; many calibrations determine it `together`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from lib.model.backends.registry import Runtime
from lib.model.spec import MNIST, N_PIXELS, N_TRAIN, DataSet, Network, Training
from lib.timing.prediction.workload import (
    ENDS,
    Cost,
    Device,
    NoPrediction,
    OperationKind,
    Way,
    Workload,
    check_memory,
    fully_connected,
)

# Parts of a step, with a typical cost of one unit; only its order of magnitude matters, to scale the fit.
USUAL = {
    "call": 1e-5,
    "launch": 1e-6,
    "images": 1 / 10e9,
    "elementwise": 1 / 20e9,
    "update": 1 / 20e9,
    "operands": 1 / 50e9,
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)  # numbers of examples at which the product rate is fitted
_KNOTS, _NUMBERS = np.log2(ROWS), np.arange(len(ROWS))
# How strongly the rates of neighbouring `ROWS` are pulled together. A single image is barely tied to two: libraries and
# compilers have separate code for products of a matrix and a vector. Its rate equals that of two only without samples.
SMOOTHING, SMOOTHING_OF_ONE = 1.5, 1e-3
# With few samples, how strongly all costs but the call's are pulled towards 0, relative to the sample with the most of
# each; otherwise they would fit the scatter.
SHRINKING = 0.3
# Variances of the correction and of a measurement's scatter, as squared relative differences; and the distances (in
# octaves or counts) over which samples inform each other. Steps of a single image inform no others.
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
LEAST_SAMPLES = 9  # with fewer, no 90 % quantile exists: rank (n + 1) × coverage exceeds n
LEAST_TOGETHER = 3  # samples of a calibration that shares its interval with others
NEAR, REACHED = 0.5, 0.1  # least share of the correction in common with the nearest sample to be near it, or in reach
MOST_ERROR = 0.5  # above this median error of left-out samples, a calibration is meaningless


Sample = tuple[Workload, float]  # with the seconds one step took


@dataclass(frozen=True)
class Calibration:
    """The fitted costs of a way to train on this machine. Made by `calibrate`."""

    costs: np.ndarray  # seconds per unit of each part, (parts,)
    coordinates: np.ndarray  # of the samples, (samples, len(REACH))
    weights: np.ndarray  # of the samples in the correction, (samples,)
    precision: np.ndarray  # inverse of the samples' covariance, (samples, samples)
    widening: float  # standard deviations that hold `COVERAGE` of the samples when predicted from the others
    far_widening: float  # the same, for workloads far from every sample
    left_out_errors: np.ndarray  # relative errors of the samples, each predicted from the others, (samples,)
    deviations: np.ndarray  # the same errors in standard deviations, (samples,)
    left_near: np.ndarray  # whether each sample is near another, (samples,)
    density: float = 1.0  # share of the inputs that it computes with

    @property
    def median_error(self) -> float:
        """Median relative error of samples predicted from the others."""
        return float(np.median(self.left_out_errors))

    def predicted(self, workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a step's seconds and the low and high ends of their interval, each in the workload's shape."""
        amounts, coordinates = _amounts(workload, self.density), _coordinates(workload)
        nearness = _covariance(coordinates.reshape(-1, coordinates.shape[-1]), self.coordinates)  # (n, samples)
        unknown = CORRECTION - ((nearness @ self.precision) * nearness).sum(axis=1)  # (n,)
        widening = np.where(nearness.max(axis=1) > NEAR * CORRECTION, self.widening, self.far_widening)
        spread = np.exp(widening * np.sqrt(np.maximum(unknown, 0) + SCATTER))
        factor = np.exp(nearness @ self.weights)
        factor, spread = (one.reshape(coordinates.shape[:-1]) for one in (factor, spread))
        seconds = amounts @ self.costs * factor
        return seconds, seconds / spread, seconds * spread

    def is_known(self, workload: Workload, within: float = NEAR) -> bool:
        """Whether the workload lies near a sample (`within=NEAR`), or at least in reach (`within=REACHED`)."""
        nearness = _covariance(np.array([_coordinates(workload)]), self.coordinates)
        return bool(nearness.max() > within * CORRECTION)


K = TypeVar("K")


def together(found: Mapping[K, Calibration]) -> dict[K, Calibration]:
    """Return calibrations of few samples each, with a common interval that holds `COVERAGE` of all their samples.

    The interval far from the samples is fitted to samples that are far from all others.
    """
    deviations = np.concatenate([one.deviations for one in found.values()] or [np.empty(0)])
    near = np.concatenate([one.left_near for one in found.values()] or [np.empty(0)]).astype(bool)
    widening = _holding(deviations[near]) if near.any() else _holding(deviations)
    far = max(widening, _holding(deviations[~near])) if (~near).any() else widening
    return {key: replace(one, widening=widening, far_widening=far) for key, one in found.items()}


def _holding(deviations: np.ndarray) -> float:
    """Return the quantile that holds `COVERAGE` of leave-one-out errors; 0 if there are none.

    This is the finite-sample quantile of conformal prediction, at rank (n + 1) × coverage. It usually covers steps
    drawn like the samples, but without a guarantee (Barber, Candès, Ramdas and Tibshirani, Predictive inference with
    the jackknife+, 2021). It says nothing about other steps.
    """
    rank = min(len(deviations), int(np.ceil((len(deviations) + 1) * COVERAGE)))
    return float(np.sort(deviations)[rank - 1]) if len(deviations) else 0.0


def calibrate(name: str, samples: Sequence[Sample], density: float = 1.0, few: bool = False) -> Calibration:
    """Fit the costs of a way to train to measured steps.

    Args:
        name: Display name of the way to train.
        samples: At least `LEAST_SAMPLES`, of different workloads.
        density: Share of the inputs that it computes with, if it skips zeros; 1: all inputs.
        few: Accept `LEAST_TOGETHER` samples, for calibrations that get their interval `together` with others.

    Raises:
        NoPrediction: There are too few samples, their seconds are not finite and above 0, or they contradict each
            other.
    """
    least = LEAST_TOGETHER if few else LEAST_SAMPLES
    if len(samples) < least:
        raise NoPrediction(f"{name}: expected {least} measured steps, got {len(samples)} so far; measure the rest")
    seconds = np.array([seconds for _, seconds in samples])
    wrong = seconds[~((seconds > 0) & np.isfinite(seconds))]
    if wrong.size:
        raise NoPrediction(f"{name}: expected finite seconds above 0, got {wrong[0]:g}; measure again")
    amounts = np.array([_amounts(workload, density) for workload, _ in samples])
    coordinates = np.array([_coordinates(workload) for workload, _ in samples])
    left: list[tuple[float, float, bool]] = []
    for index in range(len(samples)):
        others = np.arange(len(samples)) != index
        costs, weights, precision = _fitted(amounts[others], coordinates[others], seconds[others], few)
        nearness = _covariance(coordinates[index : index + 1], coordinates[others])
        log_s = np.log(max(float(amounts[index] @ costs), 1e-12)) + float((nearness @ weights)[0])
        unknown = max(CORRECTION - float((nearness @ precision @ nearness.T)[0, 0]), 0) + SCATTER
        error, deviation = abs(np.exp(log_s) / seconds[index] - 1), abs(log_s - np.log(seconds[index]))
        left.append((error, deviation / np.sqrt(unknown), nearness.max() > NEAR * CORRECTION))
    left_out, deviations, near = map(np.array, zip(*left, strict=True))
    costs, weights, precision = _fitted(amounts, coordinates, seconds, few)
    widening = _holding(deviations)
    fit = (costs, coordinates, weights, precision)
    found = Calibration(*fit, widening, widening, left_out, deviations, near, density)
    if found.median_error > MOST_ERROR:
        raise NoPrediction(
            f"{name}: expected measured steps to differ from what the others predict by less than half at the median,"
            f" got {found.median_error:.0%}: something else is using this machine; close other programs and calibrate"
            " again"
        )
    return found


def _fitted(
    amounts: np.ndarray, coordinates: np.ndarray, seconds: np.ndarray, few: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return costs (parts,), weights of the correction (samples,), and the inverse of the samples' covariance."""
    from scipy.optimize import nnls  # here, because bare machines without it measure steps, too

    flops = amounts[:, len(USUAL) :].sum(axis=1)
    usual = np.array([*USUAL.values(), *[np.quantile(seconds / flops, 0.25)] * len(ROWS)])  # from this device's rates
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
    """Return how much of each part a step needs, (…, parts): those of `USUAL`, then FLOP by number of examples."""
    bytes_of = dict.fromkeys(OperationKind, 0.0)
    products = np.zeros(len(ROWS))
    for one in counted.operations:
        times = counted.networks * (density if one.by_inputs else 1.0)
        bytes_of[one.kind] = bytes_of[one.kind] + times * one.n_bytes
        if one.kind is OperationKind.PRODUCT:
            flops = np.asarray(times * one.flops)
            products = products + flops[..., None] * row_shares(one.rows)
    images = counted.networks * counted.input_bytes  # each network shuffles separately
    kinds = OperationKind.ELEMENTWISE, OperationKind.UPDATE, OperationKind.PRODUCT
    plain = (1.0, counted.launches, images, *(bytes_of[kind] for kind in kinds))
    return np.concatenate([np.stack(np.broadcast_arrays(*plain), axis=-1), products], axis=-1)


def row_shares(rows: Any) -> np.ndarray:
    """Return interpolation weights of numbers of examples over `ROWS`, (…, len(ROWS)), linear in the logarithm."""
    place = np.interp(np.log2(np.maximum(rows, 1)), _KNOTS, _NUMBERS)
    return np.maximum(1 - np.abs(place[..., None] - _NUMBERS), 0)


def _coordinates(counted: Workload) -> np.ndarray:
    """Return a workload's coordinates in units of `REACH`, (…, len(REACH))."""
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
    return np.stack(np.broadcast_arrays(*plain), axis=-1) / np.array(list(REACH.values()))


def _covariance(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the covariance of the correction, (some, others)."""
    squares = ((some[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
    return CORRECTION * np.exp(-squares / 2)


MOST_NETWORKS = 100_000
MOST_ROWS = 1_000_000_000
MOST_PER_H = 1000.0
YOUR_PRICE = "your price"  # instead of a listed price's date
FAR = "far from every step measured for the calibration"
THERE = "the images are already on the device"


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, and their 90 % interval or the range of the device's figures.

    Of many workloads, arrays; NaN if one does not fit.
    """

    step_s: Any
    low_s: Any
    high_s: Any
    _: KW_ONLY
    warning: str = ""  # why the error may exceed the interval

    @property
    def interval_s(self) -> tuple[Any, Any, Any]:
        return self.low_s, self.step_s, self.high_s

    def of(self, steps: float) -> "Prediction":
        ends = (steps * one_s for one_s in (self.step_s, self.low_s, self.high_s))
        return Prediction(*ends, warning=self.warning)

    def plus(self, other: "Prediction") -> "Prediction":
        """Return the seconds of both, run in sequence."""
        ends = (self.step_s + other.step_s, self.low_s + other.low_s, self.high_s + other.high_s)
        return Prediction(*ends, warning=self.warning or other.warning)


def predict(workload: Workload, device: Device | Calibration) -> Prediction:
    """Predict how long a step of a workload takes on a device.

    Args:
        workload: For a calibration, its way to run a step must be the calibrated way.
        device: A calibration of this machine, or a device known by its figures; then the interval comes from the
            figures' ranges, times the device's `widening`.

    Raises:
        NoPrediction: The memory of a device known by its figures cannot hold the workload.
    """
    if isinstance(device, Calibration):
        return Prediction(*map(float, device.predicted(workload)), warning="" if device.is_known(workload) else FAR)
    device.check(workload)
    return Prediction(*(float(device.seconds(workload, end)) for end in ENDS), warning=device.warning)


def predict_many(workloads: Workload, device: Device | Calibration) -> Prediction:
    """Predict many workloads at once: like `predict`, for a workload counted as arrays."""
    if isinstance(device, Calibration):
        return Prediction(*device.predicted(workloads))
    held = workloads.working_bytes <= device.figures["memory_bytes"].value
    return Prediction(*(np.where(held, device.seconds(workloads, end), np.nan) for end in ENDS))


@dataclass(frozen=True)
class Question:
    """Equally shaped networks to train. Raises ValueError, with a sentence for the user, if a value is out of range.

    Attributes:
        network: The shape of every network.
        batch_size: Examples per step.
        epochs: Epochs of each network.
        networks: Number of networks.
        price_per_h: The user's own price of this machine in dollars per hour; None if unknown.
        rows: Training examples per epoch.
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
                f"rows: expected 1 to {MOST_ROWS:,}, got {self.rows!r}; enter the training examples per epoch"
            )
        _ = self._training  # raises for an impossible training
        if isinstance(self.networks, bool) or not 1 <= self.networks <= MOST_NETWORKS:
            raise ValueError(
                f"networks: expected 1 to {MOST_NETWORKS:,}, got {self.networks}; choose how many to train"
            )
        if self.price_per_h is not None and not 0 <= self.price_per_h <= MOST_PER_H:
            raise ValueError(
                f"price: expected 0 to {MOST_PER_H:,.0f} dollars an hour, got {self.price_per_h:g}; enter what an hour"
                " of this machine costs you"
            )

    @property
    def steps(self) -> int:
        """Steps of each network over all epochs."""
        return self.epochs * self._training.steps_per_epoch()

    @property
    def of_mnist(self) -> bool:
        """Whether the inputs are MNIST's images, judging by their number and size."""
        return (self.network.n_inputs, self.rows) == (N_PIXELS, N_TRAIN)

    def workload(self, way: Way, at_once: int = 1) -> Workload:
        """Return the workload of one step of `at_once` networks."""
        return fully_connected(self.network, self.batch_size, way, at_once, images=self.rows)

    @property
    def _training(self) -> Training:
        data = MNIST if self.of_mnist else DataSet("asked", self.rows)
        return Training(self.network, batch_size=self.batch_size, epochs=self.epochs, data=data)


@dataclass(frozen=True, eq=False)
class DrivenDevice:
    """A device driven in one way, with what predicts its steps.

    Attributes:
        device: A calibration, or a device known by its figures; None for a way that exists but is not calibrated.
        way: How it runs a step.
        together: Maximum number of networks in one program; further ones follow one after another.
        library: The library, and the device it trains on.
        saves: By variant of a step, the seconds that it would save, depending on the bytes of a batch; or why it would
            save nothing.
        memory_bytes: Memory available to a step on this machine; a known device has its own figure.
        label: Display name.
        runtime: What trains; None for a device known by its figures.
        here: Whether it is this machine.
    """

    device: Calibration | Device | None
    way: Way
    together: int = 1
    library: str = ""
    saves: Mapping[str, Cost | str] = field(default_factory=dict)
    memory_bytes: float = math.inf
    label: str = ""
    runtime: Runtime | None = None
    here: bool = False

    @property
    def backend(self) -> str:
        return self.runtime.backend if self.runtime else ""

    @property
    def program(self) -> str:
        """Identifies ways to train that are exchangeable without rewriting a program."""
        return self.runtime.process if self.runtime else self.library

    @property
    def on_gpu(self) -> bool:
        """Whether it is a graphics card; a software adapter is not."""
        known = self.device if isinstance(self.device, Device) else self.runtime
        return known is not None and known.on_gpu

    @property
    def short(self) -> str:
        """The label without the way, for charts where every device runs the same way."""
        return self.label.removesuffix(f" ({self.way})")

    def predicted(self, workload: Workload) -> Prediction:
        """Predict a step of a workload that is run this way.

        Raises:
            NoPrediction: The memory cannot hold it, or the way to train is not calibrated.
        """
        if self.device is None:
            raise NoPrediction(
                f"{self.label} is not calibrated on this machine, so it cannot be predicted; calibrate it"
            )
        check_memory(workload, self.memory_bytes)
        return predict(workload, self.device)
