"""A training step as operations: what they compute, what they move, and how often something is launched for them.

Counted from shapes alone, for a fully connected network of any size, a small convolutional network and ResNet-18, and
for each way of running a step. A convolution is counted as the product of matrices that it is equal to, one row for
each position of each image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from lib.model.spec import N_CLASSES, N_PIXELS, N_TRAIN, Network

FLOAT32_BYTES = 4
# Calls of a library of arrays, as the first article's NumPy makes them: 28 for a step of 784→128→10.
CALLS_OF_LOSS = 8  # largest logit, difference, exponential, sum, quotient, copy, less one, mean
CALLS_OF_RELU_GRADIENT = 2  # comparison, product
CALLS_OF_UPDATE = 4  # of weights and biases: times the learning rate, difference


class Way(StrEnum):
    """How a step is run: from one wait after every operation to one launch for many steps."""

    WAITED = "waiting for every operation"
    OPERATIONS = "operation by operation"
    STEP = "compiled step"
    EPOCH = "compiled epoch"
    GRAPH = "one graph an epoch"

    @property
    def resident(self) -> bool:
        """Whether the images lie on the device; a host that is asked for every step brings its batch."""
        return self in (Way.EPOCH, Way.GRAPH)


class OperationKind(StrEnum):
    """What an operation is."""

    PRODUCT = "product"  # of matrices; also a convolution
    ELEMENTWISE = "elementwise"  # biases, ReLU, loss and their gradients, reductions
    UPDATE = "update"  # of the parameters


@dataclass(frozen=True)
class StepOperation:
    """One operation of a step, for one network.

    Attributes:
        kind: What it is.
        flops: Floating-point operations, two for each multiply-add; of products alone.
        n_bytes: Bytes read and written if each operand is touched once; a reduction is counted as if it wrote as much
            as it reads.
        rows: Of a product: examples of its layer, which are images, or positions of images in a convolution.
        outputs: Of a product: elements of its result, which is what can be computed side by side.
        calls: Of a library of arrays that runs it without a compiler.
        by_inputs: Whether all of it is done once for each input of the network, and left out for those that are zero by
            a way to train that skips them.
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
    """The training of one or several equal networks with one batch size, step by step.

    Numbers, or arrays that are broadcast to one shape: then it is of as many workloads at once.

    Attributes:
        name: For people.
        operations: Of one step of one network.
        batch_size: Images a step.
        input_bytes: Of one network's batch, read from memory or brought to the device.
        parameter_bytes: Of one network.
        activation_bytes: Results of the layers of one network, which the backward pass needs again.
        images: Of an epoch.
        networks: Trained at once by one program.
        way: How a step is run.
        resident: Whether the images are on the device already.
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
        """Of a step of all networks."""
        return self.networks * sum(one.flops for one in self.operations)

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last, incomplete batch is dropped."""
        return self.images // self.batch_size

    @cached_property
    def launches(self) -> int:
        """Kernels that a step starts: every call of a library of arrays, or what a compiler leaves of them.

        A compiler puts what is done element by element into its neighbours: products, the loss, and an update a layer
        are left. Many networks in one program are started together.
        """
        if self.way in (Way.WAITED, Way.OPERATIONS):
            return sum(one.calls for one in self.operations)
        return 1 + sum(one.kind is not OperationKind.ELEMENTWISE for one in self.operations)

    @cached_property
    def products(self) -> tuple[tuple[int, int], ...]:
        """FLOP and elements of the result of each product, of all networks."""
        return tuple(
            (self.networks * one.flops, self.networks * one.outputs)
            for one in self.operations
            if one.kind is OperationKind.PRODUCT
        )

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes that all operations of all networks read and write."""
        return self.networks * sum(one.n_bytes for one in self.operations)

    @property
    def working_bytes(self) -> int:
        """Bytes that a step holds at least: a batch, and of each network parameters, gradients and layers' results."""
        return self.input_bytes + self.networks * (2 * self.parameter_bytes + self.activation_bytes)

    def by(self, way: Way) -> "Workload":
        """The same work, run in another way, with its images where that way has them."""
        return replace(self, way=way, resident=way.resident)


def fully_connected(
    network: Network,
    batch_size: int,
    way: Way = Way.STEP,
    networks: int = 1,
    resident: bool | None = None,
    images: int = N_TRAIN,
) -> Workload:
    """The workload of this project's networks: inputs → hidden layers with ReLU → classes, plain SGD.

    Args:
        network: Any.
        batch_size: Images a step.
        way: How a step is run.
        networks: Trained at once by one program.
        resident: Whether the images are on the device already; None: as that way of running a step has it.
        images: Of an epoch.
    """
    layers = [Layer(batch_size, inputs, outputs) for inputs, outputs in network.shapes]
    return _of(network.label, layers, batch_size, network.n_inputs, way, networks, resident, images)


@dataclass(frozen=True)
class Layer:
    """A layer as a product: `rows` examples of `inputs` by `outputs`; a convolution has one row for each position."""

    rows: int
    inputs: int
    outputs: int
    parameters: int = 0  # 0: inputs × outputs and the biases
    input_elements: int = 0  # that are read; 0: rows × inputs. A convolution's patches overlap.

    @property
    def n_parameters(self) -> int:
        return self.parameters or (self.inputs + 1) * self.outputs

    @property
    def read_elements(self) -> int:
        return self.input_elements or self.rows * self.inputs


def even_networks(
    widths: Sequence[int] | np.ndarray,
    batch_sizes: Sequence[int] | np.ndarray,
    depth: int = 1,
    networks: int = 1,
    way: Way = Way.EPOCH,
) -> Workload:
    """Networks of equal hidden layers, counted at once: every width at every batch size, (widths, batch sizes).

    Building each workload by itself takes longer than predicting it.

    Args:
        widths: Of the hidden layers.
        batch_sizes: Images a step.
        depth: How many hidden layers.
        networks: As of `fully_connected`.
        way: As of `fully_connected`.
    """
    width: Any = np.array(widths, dtype=np.int64)[:, None]  # (widths, 1)
    sizes: Any = np.array(batch_sizes, dtype=np.int64)[None, :]  # (1, batch sizes)
    shapes = pairwise([N_PIXELS, *[width] * depth, N_CLASSES])
    layers = [Layer(sizes, inputs, outputs) for inputs, outputs in shapes]
    return _of("even networks", layers, sizes, N_PIXELS, way, networks, None)


def _operations_of(layers: Sequence[Layer]) -> tuple[StepOperation, ...]:
    """Forward, backward and update of layers with ReLU in between and a cross-entropy at the end."""
    operations: list[StepOperation] = []
    for number, layer in enumerate(layers):
        result = layer.rows * layer.outputs
        operations.append(_product(layer, result, by_inputs=not number))
        operations += [_elementwise(result)] * (2 if number < len(layers) - 1 else 1)  # biases, ReLU
    logits = layers[-1].rows * layers[-1].outputs
    operations += [_elementwise(logits, CALLS_OF_LOSS // 2)] * 2  # the loss and its gradient
    for number, layer in reversed(list(enumerate(layers))):
        operations.append(_product(layer, layer.inputs * layer.outputs, by_inputs=not number))  # the weights' gradient
        operations.append(_elementwise(layer.rows * layer.outputs))  # … of the biases
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
    """One of the three products of a layer, which all touch the same three matrices."""
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


def convolutional(batch_size: int, way: Way = Way.STEP, networks: int = 1, resident: bool | None = None) -> Workload:
    """A small convolutional network for MNIST: 3×3×32, 2×2 pooling, 3×3×64, 2×2 pooling, 128, 10.

    Its pooling is left out: it has no products, and moves less than the ReLU before it.
    """
    layers = [
        _convolution(batch_size, 28, 1, 32, 3),
        _convolution(batch_size, 14, 32, 64, 3),
        Layer(batch_size, 7 * 7 * 64, 128),
        Layer(batch_size, 128, 10),
    ]
    return _of("a small convolutional network", layers, batch_size, N_PIXELS, way, networks, resident)


def resnet18(batch_size: int, way: Way = Way.STEP, networks: int = 1, resident: bool | None = None) -> Workload:
    """ResNet-18 on images of 224 × 224 × 3: 1.8 billion multiply-adds forward and 11.7 million parameters an image.

    He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2015, table 1. Its batch normalisation is left
    out: it moves bytes, which are counted as the biases' and ReLU's, and has 0.1 % of the parameters. Pooling and the
    sums of shortcuts are left out too.
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
    layers.append(Layer(batch_size, 512, 1000))
    return _of("ResNet-18", layers, batch_size, 224 * 224 * 3, way, networks, resident)


def _of(
    name: str,
    layers: Sequence[Layer],
    batch_size: int,
    inputs: int,
    way: Way,
    networks: int,
    resident: bool | None,
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
