"""A training step as a list of operations, launched alike by Python and by a browser: plain data, ready for JSON.

A step's numbers are stored in one buffer, at the offsets in `Program.regions`. The kernels are the `.wgsl` files next
to this module; each does a share of an operation's work, so one list works with any number of workgroups, and with the
kernel that runs the whole list itself (`whole_steps.wgsl`).

An executor (`with_webgpu.py` in Python, `lib/ui/widgets/webgpu_on_gpu.js` in a browser) must

1. create the buffers of group 0, in the order of `BUFFERS`: `memory` of `memory_bytes`; the images in two halves of
   float32, (images, inputs), and their labels as uint32; `schedule`, uint32, with 0 and the first image of each batch;
   and `results`, two float32 per step. The device counts the steps in `schedule[0]`.
2. fill the regions `rate` and `layer 1`, … (weights, and the biases as their last row) with the training's state.
3. put the `words` of all operations into one buffer, `OPERATION_BYTES` apart. In group 1, bind a kernel of
   `sources()["dispatched"]` to its operation's words, by a dynamic offset; bind the kernel `steps` of
   `sources()["whole_steps"]` to all words, and to a number of steps.
4. launch, in order, each operation's `kernel` with its number of `groups`, submitted one by one or many steps together;
   or launch `steps` with one workgroup.
5. read `results`: for each step, the mean loss and the number of correctly classified images.

Imports nothing heavy, because it also runs in readers' browsers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import batch_starts
from lib.model.spec import Network, Training

HERE = Path(__file__).parent
# Threads per workgroup, supported by every adapter; rows and columns of a result tile; depth of its partial sums. These
# constants and `FIELDS` duplicate declarations in the kernels.
LANES, TILE, DEPTH = 256, 32, 16
MAX_GROUPS = 65_535  # workgroups per dispatch (WebGPU, maxComputeWorkgroupsPerDimension)
# Limit per step for the single kernel. A workgroup runs on one of a card's many processors, and drivers stop a kernel
# that takes seconds (Windows after two).
MAX_FLOPS_IN_ONE_KERNEL = 2e9
# Mesa's llvmpipe silently exits all loops of a kernel after this many iterations in total.
SOFTWARE_TURNS = 65_535
ALIGNMENT = 64  # numbers, 256 bytes: regions begin on multiples of it
OPERATION_BYTES = 256  # in the buffer of operations (WebGPU, minUniformBufferOffsetAlignment)
NOTHING = 0xFFFFFFFF

# Entry points of `dispatched.wgsl`; `whole_steps.wgsl` identifies them by their index here.
KERNELS = ("batch", "product", "product_and_loss", "elements", "loss", "end")
FIELDS: tuple[str, ...] = (
    "kernel",
    "rows",
    "columns",
    "inner",
    "left",
    "left_by_row",
    "left_by_column",
    "right",
    "right_by_row",
    "right_by_column",
    "row_of_ones",
    "biases",
    "result",
    "ending",
    "mask",
    "rate",
    "gradient",
    "losses",
)
STORE, RELU, RELU_GRADIENT, DESCEND = range(4)  # endings, as in `endings.wgsl`

# The buffers of group 0, in order, and how kernels use them.
BUFFERS = {
    "memory": "storage",
    "images_low": "read-only-storage",
    "images_high": "read-only-storage",
    "labels": "read-only-storage",
    "schedule": "storage",
    "results": "storage",
}

_SHARED = ("memory", "endings", "product", "loss", "batch")
PACE_SIDE = 256  # of the product that measures operations per second
MAX_STARTS = 20_000  # first images of batches sent to the browser; after the last one, the first follows
MAX_EPOCHS = 20


@cache
def sources() -> dict[str, str]:
    """WGSL sources of `dispatched`, with an entry point per kernel, and `whole_steps`, with the entry point `steps`."""
    shared = "\n".join((HERE / f"{name}.wgsl").read_text() for name in _SHARED)
    return {name: f"{shared}\n{(HERE / f'{name}.wgsl').read_text()}" for name in ("dispatched", "whole_steps")}


Region = tuple[int, tuple[int, int]]  # a matrix in the buffer: its offset, in numbers, and its shape


@dataclass(frozen=True)
class KernelLaunch:
    """One operation: display name, kernel, number of workgroups, and the values of the kernel's `FIELDS`."""

    name: str
    kernel: str
    groups: int
    words: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """The operations of a step, in order, and the buffer they share.

    Each layer's region holds its weights (inputs, outputs) and, as one more row, its biases.
    """

    batch_size: int
    operations: tuple[KernelLaunch, ...]
    regions: Mapping[str, Region]
    memory_bytes: int
    parameter_bytes: int  # from the beginning of the buffer: the learning rate and all layers
    flops: int  # of the products of a step


def turns(program: Program) -> int:
    """Upper bound on the loop iterations of a step that runs in one workgroup."""
    return sum(_turns(operation) for operation in program.operations)


def _turns(operation: KernelLaunch) -> int:
    field = dict(zip(FIELDS, operation.words, strict=True))
    rows, columns, inner = (field[name] for name in ("rows", "columns", "inner"))
    if operation.kernel in ("product", "product_and_loss"):
        of_loss = 4 * columns if operation.kernel == "product_and_loss" else 0
        return _tiles(rows, columns) * (8 * -(-inner // DEPTH) + of_loss + 4)
    if operation.kernel in ("batch", "elements"):
        return -(-rows * columns // LANES) + 1
    return (4 * columns if operation.kernel == "loss" else 1) * -(-rows // LANES) + 10


class _Builder:
    """Collects regions and operations; operations refer to memory by the name of a region."""

    def __init__(self) -> None:
        self.regions: dict[str, Region] = {}
        self.operations: list[KernelLaunch] = []
        self.length = 0

    def region(self, name: str, rows: int, columns: int) -> str:
        self.regions[name] = self.length, (rows, columns)
        self.length += -(-rows * columns // ALIGNMENT) * ALIGNMENT
        return name

    def operation(self, name: str, kernel: str, groups: int, **fields: int | str) -> None:
        """Replace region names by their offsets, and omitted fields by `NOTHING`."""
        values = fields | {"kernel": KERNELS.index(kernel)}
        words = (values.get(one, NOTHING) for one in FIELDS)
        positions = tuple(self.regions[word][0] if isinstance(word, str) else word for word in words)
        self.operations.append(KernelLaunch(name, kernel, min(groups, MAX_GROUPS), positions))

    def program(self, flops: int) -> Program:
        first, (batch_size, _) = self.regions["values 0"]
        return Program(batch_size, tuple(self.operations), self.regions, 4 * self.length, 4 * first, flops)


def step(network: Network, batch_size: int) -> Program:
    """One step of plain SGD on mean cross-entropy: batch, forward, loss, gradients and update.

    A product and the elementwise work that follows it are one operation.
    """
    return _on_a_batch(network, batch_size, range(len(network.shapes), 0, -1), network.step_flops(batch_size))


def evaluation(network: Network, batch_size: int) -> Program:
    """Loss and number of correct answers of `batch_size` images. Parameters have the same offsets as in `step`."""
    return _on_a_batch(network, batch_size, (), 2 * batch_size * sum(map(prod, network.shapes)))


def product(side: int) -> Program:
    """One product of two square matrices, `left` and `right`, computed like those of a step."""
    build = _Builder()
    for name in ("values 0", "right", "result"):
        build.region(name, side, side)
    build.operation(
        "product",
        "product",
        _tiles(side, side),
        rows=side,
        columns=side,
        inner=side,
        left="values 0",
        left_by_row=side,
        left_by_column=1,
        right="right",
        right_by_row=side,
        right_by_column=1,
        result="result",
        ending=STORE,
    )
    return build.program(2 * side**3)


def nothing(n_operations: int) -> Program:
    """A program of empty operations: its time is the cost of launching them."""
    build = _Builder()
    build.region("values 0", 0, 0)
    for number in range(n_operations):
        of_it = {"rows": 0, "columns": 0, "left": "values 0", "result": "values 0", "ending": STORE}
        build.operation(f"nothing {number}", "elements", 1, **of_it)
    return build.program(0)


def _on_a_batch(network: Network, batch_size: int, updated: Iterable[int], flops: int) -> Program:
    """Forward pass and loss, and the updates of these layers."""
    build = _Builder()
    build.region("rate", 1, 1)
    for layer, (inputs, outputs) in enumerate(network.shapes, 1):
        build.region(f"layer {layer}", inputs + 1, outputs)
    for layer, width in enumerate(network.widths):
        build.region(f"values {layer}", batch_size, width)  # 0: the images; the last: the logits
    for layer, width in enumerate(network.widths[1:], 1):
        build.region(f"delta {layer}", batch_size, width)  # the loss's gradient w.r.t. the layer's pre-activations
    build.region("losses", 2, batch_size)
    _forward(build, network, batch_size)
    for layer in updated:
        _backward(build, network, batch_size, layer)
    build.operation("sum of the losses", "end", 1, rows=batch_size, losses="losses")
    return build.program(flops)


def _forward(build: _Builder, network: Network, batch_size: int) -> None:
    pixels = -(-batch_size * network.n_inputs // LANES)
    build.operation("batch of images", "batch", pixels, rows=batch_size, columns=network.n_inputs, result="values 0")
    last, n_classes = len(network.shapes), network.n_classes
    in_one_tile = n_classes <= TILE  # all logits of an image, which the loss needs
    of_loss: dict[str, int | str] = {"gradient": f"delta {last}", "losses": "losses"}
    for layer, (inputs, outputs) in enumerate(network.shapes, 1):
        weights, with_loss = build.regions[f"layer {layer}"][0], layer == last and in_one_tile
        what = f"biases{' and ReLU' if layer < last else ' and loss' if with_loss else ''}"
        build.operation(
            f"{_named(layer, last)}: product, {what}",
            "product_and_loss" if with_loss else "product",
            _tiles(batch_size, outputs),
            rows=batch_size,
            columns=outputs,
            inner=inputs,
            left=f"values {layer - 1}",
            left_by_row=inputs,
            left_by_column=1,
            right=weights,
            right_by_row=outputs,
            right_by_column=1,
            biases=weights + inputs * outputs,
            result=f"values {layer}",
            ending=RELU if layer < last else STORE,
            **of_loss if with_loss else {},
        )
    if not in_one_tile:
        groups = -(-batch_size // LANES)
        build.operation("loss", "loss", groups, rows=batch_size, columns=n_classes, result=f"values {last}", **of_loss)


def _backward(build: _Builder, network: Network, batch_size: int, layer: int) -> None:
    """The gradient w.r.t. the layer's inputs, taken before its weights change; then the update of these weights."""
    inputs, outputs = network.shapes[layer - 1]
    delta, weights, where = f"delta {layer}", f"layer {layer}", _named(layer, len(network.shapes))
    if layer > 1:
        build.operation(
            f"{where}: gradient by its inputs, through ReLU",
            "product",
            _tiles(batch_size, inputs),
            rows=batch_size,
            columns=inputs,
            inner=outputs,
            left=delta,
            left_by_row=outputs,
            left_by_column=1,
            right=weights,
            right_by_row=1,
            right_by_column=outputs,
            result=f"delta {layer - 1}",
            ending=RELU_GRADIENT,
            mask=f"values {layer - 1}",
        )
    build.operation(
        f"{where}: gradient by its weights and update",
        "product",
        _tiles(inputs + 1, outputs),
        rows=inputs + 1,
        columns=outputs,
        inner=batch_size,
        left=f"values {layer - 1}",
        left_by_row=1,
        left_by_column=inputs,
        right=delta,
        right_by_row=outputs,
        right_by_column=1,
        row_of_ones=inputs,
        result=weights,
        ending=DESCEND,
        rate="rate",
    )


def _named(layer: int, last: int) -> str:
    return "output layer" if layer == last else f"hidden layer {layer}"


def _tiles(rows: int, columns: int) -> int:
    return prod(-(-length // TILE) for length in (rows, columns))


def as_json(program: Program) -> dict[str, Any]:
    """Return a program in the browser's format, without the kernels, which the browser already has."""
    return {
        "operations": [
            {"kernel": one.kernel, "groups": one.groups, "words": list(one.words)} for one in program.operations
        ],
        "regions": {name: {"first": first, "shape": list(shape)} for name, (first, shape) in program.regions.items()},
        "turns": turns(program),
        "memory_bytes": program.memory_bytes,
        "parameter_bytes": program.parameter_bytes,
        "flops": program.flops,
    }


def kernels() -> dict[str, Any]:
    """Everything common to all programs: the WGSL sources, the buffers, and the names of an operation's fields.

    Also two programs: the `smallest` step, used to compile the kernels while images arrive, and the product `pace`,
    used to predict the time of a step.
    """
    return {
        "smallest": as_json(step(Network((1,)), 1)),
        "pace": as_json(product(PACE_SIDE)),
        "sources": sources(),
        "buffers": BUFFERS,
        "operation_bytes": OPERATION_BYTES,
        "fields": list(FIELDS),
        "nothing": NOTHING,
        "software_turns": SOFTWARE_TURNS,
    }


def begins_with(training: Training) -> np.ndarray:
    """The initial parameters of all backends, float32, (parameters,): layer by layer, weights and biases."""
    layers = initial_parameters(training.network, training.seed)
    return np.concatenate([part.ravel() for layer in layers for part in layer]).astype("<f4")


def first_images(training: Training, n_images: int) -> np.ndarray:
    """The first image of each batch of the first epochs on `n_images`, uint32, at most `MAX_STARTS` of them."""
    epochs = max(1, min(MAX_EPOCHS, MAX_STARTS * training.batch_size // n_images))
    starts = [batch_starts(n_images, training.batch_size, training.seed, epoch) for epoch in range(epochs)]
    return np.concatenate(starts)[:MAX_STARTS].astype("<u4")
