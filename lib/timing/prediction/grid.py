"""Networks of many widths at many batch sizes, predicted at once: what a surface of both needs within a third of a
second.

They are counted once, with arrays in place of numbers: building each workload takes longer than predicting it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from lib.model.spec import N_CLASSES, N_PIXELS, N_TRAIN, Network
from lib.timing.prediction.calibration import Calibration
from lib.timing.prediction.device import Device
from lib.timing.prediction.predict import parts_on
from lib.timing.prediction.workload import (
    FLOAT32_BYTES,
    Layer,
    OperationKind,
    StepOperation,
    Way,
    fully_connected,
    operations_of,
)


@dataclass(frozen=True)
class Grid:
    """Networks of `depth` equal hidden layers, each width at each batch size, counted as arrays.

    Arrays have the shape (widths, batch sizes), or one that is broadcast to it.
    """

    widths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    depth: int = 1
    networks: int = 1
    way: Way = Way.EPOCH
    resident: bool = True

    @property
    def launches(self) -> int:
        """Kernels that a step of any of them starts."""
        return fully_connected(Network((1,) * self.depth), 1, self.way).launches

    @property
    def steps(self) -> np.ndarray:
        """Steps of an epoch, (1, batch sizes)."""
        return N_TRAIN // self.batch_size

    @property
    def input_bytes(self) -> np.ndarray:
        """Bytes of a batch, (1, batch sizes)."""
        return FLOAT32_BYTES * N_PIXELS * self.batch_size

    @property
    def moved_bytes(self) -> Any:
        """Bytes that all operations of all networks read and write."""
        return self.networks * sum(one.n_bytes for one in self.operations)

    @property
    def working_bytes(self) -> Any:
        """Bytes that a step holds at least."""
        parameters = sum(layer.n_parameters for layer in self._layers)
        results = sum(layer.rows * layer.outputs for layer in self._layers)
        return self.input_bytes + self.networks * FLOAT32_BYTES * (2 * parameters + results)

    @property
    def products(self) -> Sequence[tuple[Any, Any]]:
        """FLOP and elements of the result of each product, of all networks."""
        return [
            (self.networks * one.flops, self.networks * one.outputs)
            for one in self.operations
            if one.kind is OperationKind.PRODUCT
        ]

    @property
    def batch_size(self) -> np.ndarray:
        """Images a step, (1, batch sizes)."""
        return np.array(self.batch_sizes, dtype=np.int64)[None, :]

    @cached_property
    def _layers(self) -> list[Layer]:
        width: Any = np.array(self.widths, dtype=np.int64)[:, None]  # (widths, 1)
        sizes = [N_PIXELS, *[width] * self.depth, N_CLASSES]
        examples: Any = self.batch_size
        return [Layer(examples, inputs, outputs) for inputs, outputs in pairwise(sizes)]

    @cached_property
    def operations(self) -> tuple[StepOperation, ...]:
        """Of one network, with arrays in place of numbers."""
        return operations_of(self._layers)


@dataclass(frozen=True)
class Predictions:
    """Seconds of a step with the ends of their intervals, each (widths, batch sizes); NaN where it does not fit."""

    step_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray

    def times(self, count: float) -> "Predictions":
        """The seconds of so many of them, one after another."""
        return Predictions(count * self.step_s, count * self.low_s, count * self.high_s)


def predict_many(grid: Grid, device: Device | Calibration) -> Predictions:
    """How long a step of each workload takes on a device: what `predict` says, for all at once.

    Args:
        grid: For a calibration, run in the way that was calibrated.
        device: Calibrated on this machine, or known by its figures.
    """
    shape = (len(grid.widths), len(grid.batch_sizes))
    if isinstance(device, Calibration):
        return Predictions(*(np.broadcast_to(end, shape) for end in device.predicted_of(grid)))
    held = np.broadcast_to(device.holds(grid), shape)
    ends = (sum(parts_on(grid, device, end).values()) for end in ("value", "low", "high"))
    return Predictions(*(np.where(held, np.broadcast_to(end, shape), np.nan) for end in ends))
