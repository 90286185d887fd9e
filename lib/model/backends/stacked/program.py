"""The compiled program of a stack: steps and evaluation of all its networks at once.

How the networks are laid out is explained in `lib.model.backends.stacked.packing`.

**Layout.** Activations have features first and images last, (columns, width, batch). The first layers of all networks
that read the same images are then one product of (columns × width, inputs) by (inputs, batch), the other layers are
products batched over networks, and nothing is transposed in between. On two cores this runs at 1.1 times (batch size
4,096) to 2.3 times (batch size 1) the speed of one network after another; a plain `jax.vmap` of the single step reaches
0.4 to 1.2 times (784→128→10, 4 to 16 networks).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lib.model.backends.stacked.packing import Shape, StackGrid
from lib.model.backends.with_jax import BLOCK, in_blocks, summed

AXIS = "models"
SLICE_BYTES = 32 * 2**20  # of one layer's activations while evaluating
TRACES = {"steps": 0, "evaluate": 0}  # how often each was traced: a test counts them

Weights = dict[str, list]  # arrays of (rows, columns, …): see `zeros`


def zeros(shape: Shape, rows: int, columns: int) -> Weights:
    """Parameters of a grid in host memory, float32: nothing but padding until networks are written into it."""

    def empty(*of_one: int) -> np.ndarray:
        return np.zeros((rows, columns, *of_one), np.float32)

    return {
        "weights": [empty(width, inputs) for width, inputs in zip(shape.widths, shape.inputs, strict=False)],
        "biases": [empty(width) for width in shape.widths],
        "exits": [empty(shape.n_classes, shape.inputs[depth]) for depth in shape.exits],
        "last": [empty(shape.n_classes)],
    }


def _logits(shape: Shape, parameters: Weights, x):
    """Forward pass of the networks of one row: images (batch, inputs) → (columns, classes, batch)."""
    (last,) = parameters["last"]
    logits, activations = last[:, :, None], x
    for depth in range(len(shape.widths) + 1):
        if depth:
            weights, biases = parameters["weights"][depth - 1], parameters["biases"][depth - 1]
            activations = jax.nn.relu(_times(weights, activations) + biases[:, :, None])  # (columns, width, batch)
        if depth in shape.exits:
            logits = logits + _times(parameters["exits"][shape.exits.index(depth)], activations)
    return logits


def _times(weights, activations):
    """Product of (columns, outputs, inputs) and activations → (columns, outputs, batch).

    Activations are (columns, inputs, batch), or the images (batch, inputs), which all columns read.
    """
    if activations.ndim == 3:
        return jax.lax.dot_general(weights, activations, (((2,), (1,)), ((0,), (0,))))
    columns, outputs, inputs = weights.shape
    flat = weights.reshape(columns * outputs, inputs)
    product = jax.lax.dot_general(flat, activations, (((1,), (1,)), ((), ())))
    return product.reshape(columns, outputs, -1)


def _cross_entropy(logits, y):
    """(columns, classes, batch), (batch,) → (columns, batch)."""
    is_right = y[None, :] == jnp.arange(logits.shape[1])[:, None]  # (classes, batch)
    return jax.nn.logsumexp(logits, axis=1) - jnp.sum(jnp.where(is_right, logits, 0), axis=1)


def _step_of_row(shape: Shape, parameters: Weights, masks, x, y, rates):
    """One step of SGD of each network of a row on the same batch; new parameters, and losses (columns,) before it."""

    def total(parameters):
        losses = jnp.mean(_cross_entropy(_logits(shape, parameters, x), y), axis=1)
        return jnp.sum(losses), losses  # a network's gradient depends only on its own loss

    gradients, losses = jax.grad(total, has_aux=True)(parameters)
    if len(shape.exits) > 1:
        gradients["exits"] = [g * mask[:, None, None] for g, mask in zip(gradients["exits"], masks, strict=True)]
    return jax.tree.map(lambda p, g: p - rates.reshape(-1, *[1] * (p.ndim - 1)) * g, parameters, gradients), losses


def _rowwise(function: Callable, n_shared: int) -> Callable:
    """Apply `function` to each row; the last `n_shared` arguments are the same for all rows.

    A single row needs no batched products.
    """

    def rows(*arguments):
        split = len(arguments) - n_shared
        if jax.tree.leaves(arguments[0])[0].shape[0] == 1:
            one = jax.tree.map(lambda a: a[0], arguments[:split])
            return jax.tree.map(lambda a: a[None], function(*one, *arguments[split:]))
        return jax.vmap(function, in_axes=(0,) * split + (None,) * n_shared)(*arguments)

    return rows


@dataclass(frozen=True)
class StackProgram:
    """The compiled functions of one shape, batch size and grid, and how their arguments are sharded."""

    steps: Callable
    evaluate: Callable
    split: NamedSharding  # of arrays with an entry for each network
    by_row: NamedSharding  # of arrays with an entry for each row
    shared: NamedSharding  # images and labels


@lru_cache(maxsize=64)
def program(shape: Shape, batch_size: int, split_rows: bool, devices: tuple) -> StackProgram:
    """The program for a shape, batch size and tuple of devices; XLA compiles it again for each size of grid."""
    mesh = Mesh(np.array(devices), (AXIS,))
    grid = PartitionSpec(AXIS) if split_rows else PartitionSpec(None, AXIS)
    row = PartitionSpec(AXIS) if split_rows else PartitionSpec()
    everywhere = PartitionSpec()
    # Each device processes its part on its own: networks share no values.
    part = partial(jax.shard_map, mesh=mesh, check_vma=False)
    losses = PartitionSpec(None, *grid)
    steps = part(
        partial(_run_steps, shape, batch_size, BLOCK[devices[0].platform]),
        in_specs=(grid, losses, grid, row, everywhere, everywhere, everywhere, everywhere, grid),
        out_specs=(grid, losses),
    )
    evaluate = part(partial(_evaluate, shape), in_specs=(grid, everywhere, everywhere), out_specs=(grid, grid))
    return StackProgram(
        jax.jit(steps, donate_argnums=(0, 1)),
        jax.jit(evaluate),
        *(NamedSharding(mesh, spec) for spec in (grid, row, everywhere)),
    )


def _run_steps(shape: Shape, batch_size: int, block: int, parameters, losses, masks, starts, first, stop, x, y, rates):
    """Run steps `first` to `stop` (exclusive) of an epoch; `losses` (steps, rows, columns) is filled in place.

    `starts`, (rows, steps), is the first image of each batch.
    """
    TRACES["steps"] += 1

    def of_row(parameters, masks, start, rates, x, y):
        images = jax.lax.dynamic_slice(x, (start, 0), (batch_size, shape.n_inputs))
        labels = jax.lax.dynamic_slice(y, (start,), (batch_size,))
        return _step_of_row(shape, parameters, masks, images, labels, rates)

    all_rows = _rowwise(of_row, n_shared=2)

    def step(index, state):
        parameters, losses = state
        parameters, of_step = all_rows(parameters, masks, starts[:, index], rates, x, y)
        return parameters, losses.at[index].set(of_step)

    return in_blocks(step, first, stop, (parameters, losses), min(block, starts.shape[1]))


def _evaluate(shape: Shape, parameters, x, y):
    """Mean loss and accuracy of each network, (rows, columns), in slices of images so that activations stay small."""
    TRACES["evaluate"] += 1
    rows, columns = parameters["last"][0].shape[:2]
    image_bytes = 4 * rows * columns * max((*shape.widths, shape.n_classes))

    def of_row(parameters, images, labels):
        logits = _logits(shape, parameters, images)
        right = jnp.argmax(logits, axis=1) == labels[None, :]
        return jnp.sum(_cross_entropy(logits, labels), axis=1), jnp.sum(right, axis=1)

    losses, right = summed(partial(_rowwise(of_row, n_shared=2), parameters), x, y, SLICE_BYTES // image_bytes)
    return losses / len(x), right / len(x)


def masks_of(shape: Shape, grid: StackGrid, depths: list[int]) -> list[np.ndarray]:
    """For each exit an array (rows, columns), 1 where the network in that place ends there, else 0."""
    masks = [np.zeros((len(grid.places), len(grid.places[0])), np.float32) for _ in shape.exits]
    for index, place in grid.where.items():
        masks[shape.exits.index(depths[index])][place] = 1
    return masks
