"""The operations of a training step, and their cost on a device: its figures, its ceilings, its transfers.

Operations are counted from shapes alone, for a fully connected network of any size, a small convolutional network and
ResNet-18, and for each way of running a step. A convolution counts as the equivalent matrix product, with one row for
each position of each image.

A device's figures (`Device`) cover calls, launches, transfers, memory and products, each with its source. The model is
a sum: the amount of each part that a step needs, times its unit cost. Real devices overlap parts, which makes the sum
too high: a card computes while the host dispatches, and moves bytes while it multiplies. A calibrated device's figures
have absorbed that.

A floor (`step_floors`) is a lower bound of a step's time: its arithmetic and bytes over a machine's measured rates.
This is the roofline model (Williams, Waterman and Patterson, Communications of the ACM 52, 2009). A floor is not a
prediction: it shows which ceiling is nearest, and how far above it a measured step lies. The rest is overhead.

A transfer costs a fixed latency plus a time per byte (R. W. Hockney, Parallel Computing 20, 1994), fitted by least
squares of relative errors, so that four bytes count as much as a quarter of a gigabyte (`cost_of`). The intervals are
Student's, from the residuals: they are wide where the cost is not linear, such as across the levels of a cache.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import convert

from lib import ROOT
from lib.model.spec import N_CLASSES, N_PIXELS, N_TRAIN, Network
from lib.timing.comparison import COVERAGE

FLOAT32_BYTES = 4
# Calls of an array library, counted in the first article's NumPy code: 28 for a step of 784→128→10.
CALLS_OF_LOSS = 8  # maximum, difference, exponential, sum, quotient, copy, minus one, mean
CALLS_OF_RELU_GRADIENT = 2  # comparison, product
CALLS_OF_UPDATE = 4  # two each for weights and biases: product with the learning rate, difference


class Way(StrEnum):
    """How a step is run, from waiting after every operation to one launch for many steps."""

    WAITED = "waiting for every operation"
    OPERATIONS = "operation by operation"
    STEP = "compiled step"
    EPOCH = "compiled epoch"
    GRAPH = "one graph an epoch"

    @property
    def resident(self) -> bool:
        """Whether the images stay on the device; a host that runs every step also transfers its batch."""
        return self in (Way.EPOCH, Way.GRAPH)


class OperationKind(StrEnum):
    PRODUCT = "product"  # matrix products and convolutions
    ELEMENTWISE = "elementwise"  # biases, ReLU, loss and their gradients, reductions
    UPDATE = "update"  # of the parameters


@dataclass(frozen=True)
class StepOperation:
    """One operation of a step, for one network.

    Attributes:
        kind: The kind of operation.
        flops: Floating-point operations, two for each multiply-add; only for products.
        n_bytes: Bytes read and written if each operand is touched once; a reduction counts as if it wrote as much as it
            reads.
        rows: For a product: its layer's examples, which are images, or positions of images in a convolution.
        outputs: For a product: elements of its result, which can be computed in parallel.
        calls: Calls of an array library that runs it without a compiler.
        by_inputs: Whether it scales with the network's inputs, so that a way to train that skips zero inputs does less.
    """

    kind: OperationKind
    flops: int = 0
    n_bytes: int = 0
    rows: int = 0
    outputs: int = 0
    calls: int = 1
    by_inputs: bool = False


@dataclass(frozen=True)
class Workload:
    """The training of one or several equal networks with one batch size.

    Its numbers may be arrays that broadcast to one shape; then it stands for that many workloads.

    Attributes:
        name: Display name.
        operations: Operations of one step of one network.
        batch_size: Images per step.
        input_bytes: Bytes of one network's batch, read from memory or transferred to the device.
        parameter_bytes: Bytes of one network's parameters.
        activation_bytes: Bytes of one network's layer results, which the backward pass needs again.
        images: Images per epoch.
        networks: Networks trained at once by one program.
        way: How a step is run.
        resident: Whether the images are already on the device.
    """

    name: str
    operations: tuple[StepOperation, ...]
    batch_size: int
    input_bytes: int
    parameter_bytes: int
    activation_bytes: int
    images: int = N_TRAIN
    networks: int = 1
    way: Way = Way.STEP
    resident: bool = True

    @property
    def flops(self) -> int:
        """FLOPs of a step of all networks."""
        return self.networks * sum(one.flops for one in self.operations)

    @property
    def steps(self) -> int:
        """Steps per epoch; a last, incomplete batch is dropped."""
        return self.images // self.batch_size

    @cached_property
    def launches(self) -> int:
        """Kernels that a step launches: every call of an array library, or those that remain after compilation.

        A compiler fuses elementwise operations into their neighbours, so that products, the loss, and one update per
        layer remain. Networks in one program share their launches.
        """
        if self.way in (Way.WAITED, Way.OPERATIONS):
            return sum(one.calls for one in self.operations)
        return 1 + sum(one.kind is not OperationKind.ELEMENTWISE for one in self.operations)

    @cached_property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(FLOP, elements of the result) of each product, summed over the networks."""
        return tuple(
            (self.networks * one.flops, self.networks * one.outputs)
            for one in self.operations
            if one.kind is OperationKind.PRODUCT
        )

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes that all operations of all networks read and write in a step."""
        return self.networks * sum(one.n_bytes for one in self.operations)

    @property
    def working_bytes(self) -> int:
        """Least bytes that a step holds: a batch, and each network's parameters, gradients and layer results."""
        return self.input_bytes + self.networks * (2 * self.parameter_bytes + self.activation_bytes)

    def by(self, way: Way) -> "Workload":
        """Return the same work run in another way, with the images where that way keeps them."""
        return replace(self, way=way, resident=way.resident)


def fully_connected(
    network: Network,
    batch_size: int,
    way: Way = Way.STEP,
    networks: int = 1,
    resident: bool | None = None,
    images: int = N_TRAIN,
) -> Workload:
    """Return the workload of this project's networks: inputs → hidden layers with ReLU → classes, plain SGD.

    Args:
        network: The network's shape.
        batch_size: Images per step.
        way: How a step is run.
        networks: Networks trained at once by one program.
        resident: Whether the images are already on the device; None: `way.resident`.
        images: Images per epoch.
    """
    layers = [_dense(batch_size, inputs, outputs) for inputs, outputs in network.shapes]
    return _of(network.label, layers, batch_size, network.n_inputs, way, networks, resident, images)


@dataclass(frozen=True)
class Layer:
    """A layer as a matrix product, (rows, inputs) × (inputs, outputs); a convolution has one row for each position."""

    rows: int
    inputs: int
    outputs: int
    n_parameters: int
    read_elements: int  # fewer than rows × inputs for a convolution, because its patches overlap


def _dense(rows: int, inputs: int, outputs: int) -> Layer:
    return Layer(rows, inputs, outputs, (inputs + 1) * outputs, rows * inputs)


def even_networks(
    widths: Sequence[int] | np.ndarray,
    batch_sizes: Sequence[int] | np.ndarray,
    depth: int = 1,
    networks: int = 1,
    way: Way = Way.EPOCH,
) -> Workload:
    """Return one workload for every width at every batch size, (widths, batch sizes); hidden layers are equally wide.

    Building each workload separately takes longer than predicting it.

    Args:
        widths: Widths of the hidden layers.
        batch_sizes: Images per step.
        depth: Number of hidden layers.
        networks: See `fully_connected`.
        way: See `fully_connected`.
    """
    width: Any = np.array(widths, dtype=np.int64)[:, None]  # (widths, 1)
    sizes: Any = np.array(batch_sizes, dtype=np.int64)[None, :]  # (1, batch sizes)
    shapes = pairwise([N_PIXELS, *[width] * depth, N_CLASSES])
    layers = [_dense(sizes, inputs, outputs) for inputs, outputs in shapes]
    return _of("even networks", layers, sizes, N_PIXELS, way, networks)


def _operations_of(layers: Sequence[Layer]) -> tuple[StepOperation, ...]:
    operations: list[StepOperation] = []
    for number, layer in enumerate(layers):
        result = layer.rows * layer.outputs
        operations.append(_product(layer, result, by_inputs=not number))
        operations += [_elementwise(result)] * (2 if number < len(layers) - 1 else 1)  # biases, ReLU
    logits = layers[-1].rows * layers[-1].outputs
    operations += [_elementwise(logits, CALLS_OF_LOSS // 2)] * 2  # the loss and its gradient
    for number, layer in reversed(list(enumerate(layers))):
        operations.append(_product(layer, layer.inputs * layer.outputs, by_inputs=not number))  # the weights' gradient
        operations.append(_elementwise(layer.rows * layer.outputs))  # the biases' gradient
        if number:
            operations.append(_product(layer, layer.read_elements))
            operations.append(_elementwise(layer.read_elements, CALLS_OF_RELU_GRADIENT))
    for number, layer in enumerate(layers):
        n_bytes = FLOAT32_BYTES * 3 * layer.n_parameters  # parameters read and written, gradients read
        operations.append(
            StepOperation(OperationKind.UPDATE, n_bytes=n_bytes, calls=CALLS_OF_UPDATE, by_inputs=not number)
        )
    return tuple(operations)


def _product(layer: Layer, outputs: int, by_inputs: bool = False) -> StepOperation:
    # The three products of a layer all touch the same three matrices.
    elements = layer.read_elements + layer.inputs * layer.outputs + layer.rows * layer.outputs
    return StepOperation(
        OperationKind.PRODUCT,
        2 * layer.rows * layer.inputs * layer.outputs,
        FLOAT32_BYTES * elements,
        layer.rows,
        outputs,
        by_inputs=by_inputs,
    )


def _elementwise(elements: int, calls: int = 1) -> StepOperation:
    return StepOperation(OperationKind.ELEMENTWISE, n_bytes=FLOAT32_BYTES * 2 * elements, calls=calls)


def _convolution(batch_size: int, side: int, channels: int, filters: int, kernel: int, stride: int = 1) -> Layer:
    """A convolution without biases whose result is `side / stride` on a side."""
    positions = batch_size * (side // stride) ** 2
    inputs = kernel * kernel * channels
    return Layer(positions, inputs, filters, inputs * filters, batch_size * side * side * channels)


def convolutional(batch_size: int) -> Workload:
    """Return the workload of a small network for MNIST: 3×3×32, 2×2 pooling, 3×3×64, 2×2 pooling, 128, 10.

    Pooling is left out: it has no products, and moves less than the ReLU before it.
    """
    layers = [
        _convolution(batch_size, 28, 1, 32, 3),
        _convolution(batch_size, 14, 32, 64, 3),
        _dense(batch_size, 7 * 7 * 64, 128),
        _dense(batch_size, 128, 10),
    ]
    return _of("a small convolutional network", layers, batch_size, N_PIXELS)


def resnet18(batch_size: int) -> Workload:
    """Return the workload of ResNet-18 on images of 224 × 224 × 3.

    It has 1.8 billion multiply-adds forward per image and 11.7 million parameters (He, Zhang, Ren and Sun, Deep
    Residual Learning for Image Recognition, 2015, table 1). Batch normalisation is left out: the bytes that it moves
    are counted as the biases' and ReLU's, and it has 0.1 % of the parameters. Pooling and the sums of shortcuts are
    left out too.
    """
    layers = [_convolution(batch_size, 224, 3, 64, 7, 2)]
    side, channels = 56, 64
    for filters in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if filters > 64 and block == 0 else 1
            layers.append(_convolution(batch_size, side, channels, filters, 3, stride))
            if stride == 2:
                layers.append(_convolution(batch_size, side, channels, filters, 1, stride))
            side, channels = side // stride, filters
            layers.append(_convolution(batch_size, side, channels, filters, 3))
    layers.append(_dense(batch_size, 512, 1000))
    return _of("ResNet-18", layers, batch_size, 224 * 224 * 3)


def _of(
    name: str,
    layers: Sequence[Layer],
    batch_size: int,
    inputs: int,
    way: Way = Way.STEP,
    networks: int = 1,
    resident: bool | None = None,
    images: int = N_TRAIN,
) -> Workload:
    return Workload(
        name,
        _operations_of(layers),
        batch_size,
        input_bytes=FLOAT32_BYTES * batch_size * inputs,
        parameter_bytes=FLOAT32_BYTES * sum(layer.n_parameters for layer in layers),
        activation_bytes=FLOAT32_BYTES * sum(layer.rows * layer.outputs for layer in layers),
        images=images,
        networks=networks,
        way=way,
        resident=way.resident if resident is None else resident,
    )


FILE = ROOT / "recorded" / "devices.json"
DRIVEN = (Way.OPERATIONS, Way.STEP, Way.EPOCH, Way.GRAPH)  # for devices known by their figures; plainest first


@dataclass(frozen=True)
class SheetFigure:
    """A figure with its range."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "SheetFigure":
        return SheetFigure(factor * self.value, factor * self.low, factor * self.high)


ENDS = ("value", "low", "high")
# By end of the seconds' interval, the end of a rate or size that causes it.
OPPOSITE: Mapping[str, str] = MappingProxyType({"value": "value", "low": "high", "high": "low"})


class NoPrediction(ValueError):
    """Why there is no prediction, as a sentence for the user.

    A device's memory cannot hold the workload, the measured steps do not determine what a step costs, or a remedy is
    already applied or does not exist.
    """


def check_memory(workload: Workload, memory_bytes: float, memory: str = "") -> None:
    """Raise NoPrediction, with a sentence for the user, if a step needs more memory than is available.

    Args:
        workload: The workload to check.
        memory_bytes: Memory available to it.
        memory: Which memory that is, in words; empty: this machine's free memory.
    """
    if workload.working_bytes > memory_bytes:
        raise NoPrediction(
            f"{workload.name}: expected a step of at most {memory or f'{memory_bytes / 1e9:.3g} GB, the free memory'},"
            f" got at least {workload.working_bytes / 1e9:.3g} GB for batch size {workload.batch_size:,} and"
            f" {workload.networks:,} at once; choose a smaller batch, or fewer or smaller networks"
        )


@dataclass(frozen=True)
class Device:
    """A processor or a graphics card with its figures.

    Attributes:
        name: Display name.
        on_gpu: Whether it is a graphics card.
        figures: Its figures, as in `FILE`. `host_call_s` is the host's call to a compiled program, `dispatch_s` of one
            operation with its kernel launch, `wait_s` waiting for the device, `example_s` the host's work per example;
            `filled_by` are the elements of a product's result that fill the device.
        dated: Date of its price, ISO 8601.
        library: The library that the host's costs belong to; empty if to none in particular.
        ways: The ways of running a step that its figures cover.
        together: Maximum number of networks in one program.
        widening: Factor by which the ends of its seconds lie beyond its figures' ranges.
        warning: Why the error may exceed the ranges.
        judged: Whether there are figures that show how far off such predictions are.
    """

    name: str
    on_gpu: bool
    figures: Mapping[str, SheetFigure]
    dated: str = ""
    library: str = ""
    ways: tuple[Way, ...] = DRIVEN
    together: int = 2**30
    widening: float = 1.0
    warning: str = ""
    judged: bool = True

    def driven(self, way: Way) -> str:
        """Describe how it trains: the way of running a step, and the library."""
        return f"{way}, {self.library}" if self.library else str(way)

    def costs(self, end: str = "value") -> dict[str, float]:
        """Return the seconds of one unit of each part of a step.

        Args:
            end: "value", "low" or "high" end of the seconds, so "low" takes the largest rates.
        """
        times = {"value": 1.0, "low": 1 / self.widening, "high": self.widening}[end]

        def rate(name: str) -> float:
            return times / getattr(self.figures[name], OPPOSITE[end])

        def cost(name: str) -> float:
            return times * getattr(self.figures[name], end)

        return {
            "call": cost("host_call_s"),
            "dispatch": cost("dispatch_s"),
            "launch": cost("launch_s"),
            "graph": cost("graph_launch_s"),
            "wait": cost("wait_s"),
            "transfer latency": cost("transfer_latency_s"),
            "transfer": rate("transfer_bytes_per_s"),
            "example": cost("example_s") if "example_s" in self.figures else 0.0,
            "cache": rate("cache_bytes_per_s"),
            "memory": rate("memory_bytes_per_s"),
            "products": rate("product_flops_per_s"),
        }

    def seconds(self, workload: Workload, end: str = "value") -> Any:
        """Return the seconds of a step: the sum of its parts; `end` as in `costs`."""
        amounts = self.amounts(workload, end)
        return sum(amounts[part] * cost for part, cost in self.costs(end).items())

    def check(self, workload: Workload) -> None:
        """Raise NoPrediction, with a sentence for the user, if the device's memory cannot hold the workload."""
        memory_bytes = self.figures["memory_bytes"].value
        check_memory(workload, memory_bytes, f"the {memory_bytes / 1e9:.3g} GB of {self.name}")

    def amounts(self, workload: Workload, end: str = "value") -> dict[str, Any]:
        """Return the amount of each part that a step needs on this device: calls, launches, bytes, FLOP.

        A product too small to fill the device counts as if it did.

        Args:
            workload: A workload, counted as numbers or as arrays.
            end: See `costs`; "low" takes the largest cache, and the fewest elements that fill the device.
        """
        way = workload.way
        by_host = way in (Way.WAITED, Way.OPERATIONS)
        moved = workload.moved_bytes * 1.0
        in_cache = workload.working_bytes <= getattr(self.figures["cache_bytes"], OPPOSITE[end])
        filled_by = getattr(self.figures["filled_by"], end)
        return {
            "call": 0.0 if by_host else 1.0 if way is Way.STEP else 1.0 / workload.steps,
            "dispatch": float(workload.launches * by_host),
            "launch": float(workload.launches * (way in (Way.STEP, Way.EPOCH))),
            "graph": float(workload.launches * (way is Way.GRAPH)),
            "wait": float(workload.launches) if way is Way.WAITED else 0.0,
            "transfer latency": float(not workload.resident),
            "transfer": workload.input_bytes * float(not workload.resident),
            "example": workload.batch_size * float(not workload.resident),
            "cache": moved * in_cache,
            "memory": moved * (1 - in_cache),
            "products": sum(flops / np.minimum(1.0, outputs / filled_by) for flops, outputs in workload.products),
        }


def read_devices() -> dict[str, Device]:
    """Return the devices of `FILE` by key. The file also has each figure's origin and source."""
    rows = json.loads(FILE.read_bytes())["devices"]
    figures = (convert(row["figures"], dict[str, SheetFigure]) for row in rows)
    return {
        row["key"]: Device(row["name"], row["on_gpu"], found, row.get("dated", ""))
        for row, found in zip(rows, figures, strict=True)
    }


class Ceiling(Enum):
    PRODUCT = "the matrix product"
    COPY = "the memory"
    DISPATCH = "the call"


@dataclass(frozen=True)
class Ceilings:
    """The best rates measured on one machine and device."""

    product_flops_per_s: float  # one large float32 product
    copy_bytes_per_s: float  # reading plus writing main memory
    dispatch_s: Mapping[str, float] = field(default_factory=dict)  # an empty call and waiting for it, by backend
    cache_bytes: int = 0  # last-level cache, or a card's L2; its content causes no memory traffic; 0: unknown


def step_floors(
    network: Network, batch_size: int, ceilings: Ceilings, backend: str = "", calls_per_step: float = 1.0
) -> dict[Ceiling, float]:
    """Return the least seconds of one step that each ceiling alone would allow.

    The images are read once. Parameters beyond the cache's size are read and written once; the rest can stay in the
    cache from step to step. Activations never need to leave it. Every real step moves more. Without a known cache, all
    parameters count as moved, so the memory's time is no lower bound.

    `backend` adds the cost of its calls, `calls_per_step` for each step (with one call per epoch, 1 over the number of
    steps). Ceilings are assumed to overlap, so a step's floor is the largest of these times, not their sum.
    """
    images = FLOAT32_BYTES * N_PIXELS * batch_size
    beyond_cache = max(0, network.parameter_bytes - ceilings.cache_bytes)
    return {
        Ceiling.PRODUCT: network.step_flops(batch_size) / ceilings.product_flops_per_s,
        Ceiling.COPY: (images + 2 * beyond_cache) / ceilings.copy_bytes_per_s,
        Ceiling.DISPATCH: calls_per_step * ceilings.dispatch_s.get(backend, 0.0),
    }


@dataclass(frozen=True)
class Cost:
    """Seconds of a transfer: latency plus size times seconds per byte, each with its 95 % interval."""

    latency_s: float
    latency_interval_s: tuple[float, float]
    byte_s: float
    byte_interval_s: tuple[float, float]

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth; infinite if more bytes take no more time."""
        return 1 / self.byte_s if self.byte_s > 0 else math.inf

    @property
    def bandwidth_interval(self) -> tuple[float, float]:
        """95 % interval of the bandwidth in bytes per second; the upper end is infinite if the size may not matter."""
        low, high = self.byte_interval_s
        return 1 / high if high > 0 else math.inf, 1 / low if low > 0 else math.inf

    @property
    def grows(self) -> bool:
        """Whether more bytes certainly take more time."""
        return self.byte_interval_s[0] > 0

    @property
    def half_bytes(self) -> float:
        """The size in bytes at which latency is half of the time."""
        return max(0.0, self.latency_s) * self.bytes_per_s

    def less(self, other: "Cost") -> "Cost":
        """Return this cost minus another, perhaps below 0. Independent errors add in quadrature.

        >>> cost = Cost(3.0, (2.0, 4.0), 1.0, (1.0, 1.0)).less(Cost(1.0, (1.0, 1.0), 1.0, (1.0, 1.0)))
        >>> cost.latency_s, cost.latency_interval_s, cost.byte_s
        (2.0, (1.0, 3.0), 0.0)
        """

        def apart(value: float, one: tuple[float, float], another: tuple[float, float]) -> tuple[float, float]:
            half = math.hypot(*((high - low) / 2 for low, high in (one, another)))
            return value - half, value + half

        latency_s, byte_s = self.latency_s - other.latency_s, self.byte_s - other.byte_s
        return Cost(
            latency_s,
            apart(latency_s, self.latency_interval_s, other.latency_interval_s),
            byte_s,
            apart(byte_s, self.byte_interval_s, other.byte_interval_s),
        )

    def seconds(self, n_bytes: float) -> float:
        """Expected time of a transfer of this size."""
        return self.latency_s + self.byte_s * n_bytes


def cost_of(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> Cost | None:
    """Fit latency and seconds per byte to transfer times of different sizes; None for fewer than three.

    >>> cost = cost_of([4, 1024, 2**20], [1e-5 + n / 1e9 for n in (4, 1024, 2**20)])
    >>> round(cost.latency_s * 1e6, 3), round(cost.bytes_per_s / 1e9, 3), round(cost.half_bytes)
    (10.0, 1.0, 10000)
    """
    sizes, times = np.asarray(sizes_bytes, float), np.asarray(times_s, float)
    if len(sizes) < 3:
        return None
    from scipy.special import stdtrit  # takes a tenth of a second to import

    scale = max(float(sizes.max()), 1.0)  # otherwise the columns differ by eight orders of magnitude
    columns = np.stack([1 / times, sizes / scale / times], axis=1)  # (sizes, 2): each row is 1, up to its error
    inverse = np.linalg.pinv(columns.T @ columns)
    latency_s, whole_s = inverse @ columns.T @ np.ones(len(times))
    off = columns @ np.array([latency_s, whole_s]) - 1
    freedom = len(times) - 2
    width = float(stdtrit(freedom, (1 + COVERAGE) / 2)) * np.sqrt(np.diag(inverse) * float(off @ off) / freedom)
    return Cost(
        float(latency_s),
        (float(latency_s - width[0]), float(latency_s + width[0])),
        float(whole_s) / scale,
        (float(whole_s - width[1]) / scale, float(whole_s + width[1]) / scale),
    )
