"""Training many networks in one compiled program, a stack, which yields the same events as every backend.

`lib.model.backends.packing` explains how the networks are laid out.

**Layout.** Activations have features first and images last, (columns, width, batch). The first layers of all networks
that read the same images are then one product of (columns × width, inputs) by (inputs, batch), the other layers are
products batched over networks, and nothing is transposed in between. On two cores this runs at 1.1 times (batch size
4,096) to 2.3 times (batch size 1) the speed of one network after another; a plain `jax.vmap` of the single step reaches
0.4 to 1.2 times (784→128→10, 4 to 16 networks).

**Seconds** are shares: all networks of a stack advance together, and each gets an equal part of the time, so the parts
add up to the stack's time. Trainings that end early (diverged, or with fewer epochs) leave the stack at the end of an
epoch, if a smaller program is worth compiling.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lib.model.backends.base import (
    CHUNK_S,
    Epoch,
    Event,
    FirstCall,
    Parameters,
    Steps,
    first_non_finite,
    initial_parameters,
    next_chunk,
)
from lib.model.backends.packing import VACANT, Shape, arrange
from lib.model.backends.with_jax import BLOCK, in_blocks, on_device, summed
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training

AXIS = "models"
SLICE_BYTES = 32 * 2**20  # of one layer's activations while evaluating

Weights = dict[str, list]  # arrays of (rows, columns, …): see `zeros`


def zeros(shape: Shape, rows: int, columns: int) -> Weights:
    """Parameters of a grid in host memory, float32: all padding until `write` adds networks."""

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
    """Multiply weights (columns, outputs, inputs) by activations → (columns, outputs, batch).

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
    """Run one SGD step of a row's networks on one batch; return new parameters and the losses (columns,) before it."""

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
    split: NamedSharding  # for arrays with an entry per network
    by_row: NamedSharding  # for arrays with an entry per row
    shared: NamedSharding  # for images and labels


@lru_cache(maxsize=64)
def program(shape: Shape, batch_size: int, split_rows: bool, devices: tuple) -> StackProgram:
    """The program for a shape, batch size and tuple of devices; XLA recompiles it for each grid size."""
    mesh = Mesh(np.array(devices), (AXIS,))
    grid = PartitionSpec(AXIS) if split_rows else PartitionSpec(None, AXIS)
    row = PartitionSpec(AXIS) if split_rows else PartitionSpec()
    everywhere = PartitionSpec()
    # Each device processes its part alone, because networks share no values.
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
    """Mean loss and accuracy of each network, (rows, columns), in slices of images to keep activations small."""
    rows, columns = parameters["last"][0].shape[:2]
    image_bytes = 4 * rows * columns * max((*shape.widths, shape.n_classes))

    def of_row(parameters, images, labels):
        logits = _logits(shape, parameters, images)
        right = jnp.argmax(logits, axis=1) == labels[None, :]
        return jnp.sum(_cross_entropy(logits, labels), axis=1), jnp.sum(right, axis=1)

    losses, right = summed(partial(_rowwise(of_row, n_shared=2), parameters), x, y, SLICE_BYTES // image_bytes)
    return losses / len(x), right / len(x)


WORTH_COMPILING_S = 0.5  # a smaller program must save more than it costs to compile
REPORT_S = 2e-3  # between two reports of losses, per network, so a thousand networks report less often


def devices_of(device: str, n_devices: int) -> tuple:
    """The first `n_devices` of this kind, across all processes of a JAX job; ValueError if there are fewer."""
    found = tuple(jax.devices(device))
    if n_devices > len(found):
        raise ValueError(f"devices: expected at most {len(found)} ({device}), got {n_devices}; choose fewer")
    return found[:n_devices]


def write(into: Weights, place: tuple[int, int], parameters: Parameters, shape: Shape) -> None:
    """Write one network's parameters into its place, in the layout of `zeros`; the rest stays padding."""
    *hidden, (weights, biases) = parameters
    for depth, (layer, offsets) in enumerate(hidden):
        inputs, outputs = layer.shape
        into["weights"][depth][place][:outputs, :inputs] = layer.T
        into["biases"][depth][place][:outputs] = offsets
    into["exits"][shape.exits.index(len(hidden))][place][:, : len(weights)] = weights.T
    into["last"][0][place] = biases


def read(parameters: Weights, place: tuple[int, int], network: Network, shape: Shape) -> Parameters:
    """Copy one network's parameters without padding, weights (inputs, outputs)."""
    hidden = [
        (
            parameters["weights"][depth][place][:outputs, :inputs].T.copy(),
            parameters["biases"][depth][place][:outputs].copy(),
        )
        for depth, (inputs, outputs) in enumerate(network.shapes[:-1])
    ]
    inputs = network.widths[-2]
    weights = parameters["exits"][shape.exits.index(len(network.hidden))][place][:, :inputs].T.copy()
    return [*hidden, (weights, parameters["last"][0][place].copy())]


def whole(array: jax.Array) -> np.ndarray:
    """Copy an array to host memory; in a job of several processes, gather it from all of them."""
    if array.is_fully_addressable:
        return np.array(array)
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(array, tiled=True))


def train_stack(
    trainings: Sequence[Training],
    data: Data,
    device: str = "cpu",
    n_devices: int = 1,
    parameters: Mapping[int, Parameters] | None = None,
    first_epoch: int = 0,
) -> Iterator[tuple[int, Event] | None]:
    """Train all of them together; yield (index, event) pairs, and None at points where it can be paused or stopped.

    All trainings have the same batch size. `parameters` maps the index of each training that does not start from its
    seed to its parameters after `first_epoch` epochs.

    In a job of several JAX processes (`jax.distributed`), each process calls this with the same arguments and all
    devices of the job, and receives the same events.
    """
    run = _StackRun(trainings, data, devices_of(device, n_devices), first_epoch)
    yield from run.begin(dict(parameters or {}))
    for epoch in range(first_epoch, max(training.epochs for training in trainings)):
        yield from run.epoch(epoch)
        run.drop_finished(epoch)
        if not run.alive:
            return


class _StackRun:
    def __init__(self, trainings: Sequence[Training], data: Data, devices: tuple, first_epoch: int) -> None:
        self.trainings, self.data, self.devices = trainings, data, devices
        self.size = trainings[0].batch_size
        self.n_steps = trainings[0].steps_per_epoch(len(data.x_train))
        self.alive = [i for i, training in enumerate(trainings) if training.epochs > first_epoch]
        self.block = BLOCK[devices[0].platform]
        self.step_s: float | None = None
        # A job's processes must make the same decisions, so none may depend on measured times: they run whole epochs,
        # and never shrink the stack.
        self.in_step = len({device.process_index for device in devices}) > 1

    def begin(self, start: dict[int, Parameters]) -> Iterator[tuple[int, Event] | None]:
        began = time.perf_counter()
        self._load(start)
        self.images = on_device(self.data, self.program.shared)
        self._compile()
        first_call_s = (time.perf_counter() - began) / len(self.alive)
        for index in self.alive:
            yield index, FirstCall(first_call_s)

    def _load(self, start: Mapping[int, Parameters]) -> None:
        members = [self.trainings[index] for index in self.alive]
        self.shape = Shape.of([training.network for training in members])
        self.grid = arrange([training.seed for training in members], len(self.devices))
        self.program = program(self.shape, self.size, self.grid.split_rows, self.devices)
        rows, columns = len(self.grid.places), len(self.grid.places[0])
        host, rates = zeros(self.shape, rows, columns), np.zeros((rows, columns), np.float32)
        masks = [np.zeros((rows, columns), np.float32) for _ in self.shape.exits]  # 1 where a place's network ends
        self.places: dict[int, tuple[int, int]] = {}  # row and column, by index of the training
        for position, place in self.grid.where.items():
            index, training = self.alive[position], members[position]
            begins = start.get(index) or initial_parameters(training.network, training.seed)
            write(host, place, begins, self.shape)
            rates[place] = training.learning_rate
            masks[self.shape.exits.index(len(training.network.hidden))][place] = 1
            self.places[index] = place
        # One batch order per row.
        self.seeds = [next((members[one].seed for one in row if one != VACANT), 0) for row in self.grid.places]
        self.current, self.rates, self.masks = jax.device_put((host, rates, masks), self.program.split)

    def _compile(self) -> None:
        self.current, losses = self._steps(self._losses(), self._starts(0), 0, 0)
        jax.block_until_ready((losses, self.program.evaluate(self.current, *self.images[2:])))

    def _losses(self) -> jax.Array:
        empty = np.zeros((self.n_steps, len(self.grid.places), len(self.grid.places[0])), np.float32)
        sharding = self.program.split
        return jax.device_put(empty, sharding.update(spec=jax.sharding.PartitionSpec(None, *sharding.spec)))

    def _starts(self, epoch: int) -> jax.Array:
        """First image of each batch, (rows, steps); rows differ in their seed."""
        n_images = len(self.data.x_train)
        starts = np.stack([batch_starts(n_images, self.size, seed, epoch) for seed in self.seeds])
        return jax.device_put(starts, self.program.by_row)

    def _steps(self, losses: jax.Array, starts: jax.Array, first: int, stop: int):
        return self.program.steps(self.current, losses, self.masks, starts, first, stop, *self.images[:2], self.rates)

    def epoch(self, epoch: int) -> Iterator[tuple[int, Event] | None]:
        losses, starts = self._losses(), self._starts(epoch)
        self.diverged: dict[int, int] = {}
        self.taken = dict.fromkeys(self.alive, 0)
        done, reported, train_s, unreported_s = 0, 0, 0.0, 0.0
        while done < self.n_steps and len(self.diverged) < len(self.alive):
            stop = self.n_steps if self.in_step else done + next_chunk(self.n_steps - done, self.step_s, self.block)
            before = time.perf_counter()
            self.current, losses = self._steps(losses, starts, done, stop)
            losses.block_until_ready()
            chunk_s = time.perf_counter() - before
            self.step_s, done = chunk_s / (stop - done), stop
            train_s, unreported_s = train_s + chunk_s, unreported_s + chunk_s
            yield None
            if unreported_s >= max(CHUNK_S, REPORT_S * len(self.alive)) or done == self.n_steps:
                yield from self._report(epoch, whole(losses)[reported:done], reported, unreported_s)
                reported, unreported_s = done, 0.0
        before = time.perf_counter()
        found = jax.tree.map(whole, self.program.evaluate(self.current, *self.images[2:]))
        evaluation_s = (time.perf_counter() - before) / len(self.alive)
        yield from self._end(epoch, found, train_s / len(self.alive), evaluation_s)

    def _report(self, epoch: int, losses: np.ndarray, first: int, spent_s: float) -> Iterator[tuple[int, Event]]:
        """Report losses (steps, rows, columns) since the last report, for trainings that had not diverged before."""
        for index in [i for i in self.alive if i not in self.diverged]:
            own = losses[(slice(None), *self.places[index])].copy()
            self.taken[index] = first + len(own)
            yield index, Steps(epoch, first, own, spent_s / len(self.alive))
            if (bad := first_non_finite(own)) is not None:
                self.diverged[index] = first + bad

    def _end(
        self, epoch: int, found: tuple[np.ndarray, np.ndarray], train_s: float, evaluation_s: float
    ) -> Iterator[tuple[int, Event]]:
        """End the epoch of each training; `found` are validation losses and accuracies, (rows, columns)."""
        current, places, shape = self.current, self.places, self.shape  # bind now, because a smaller stack may follow
        # One host copy of the stack serves all parameters that are read before the next epoch begins.
        host = cache(lambda: jax.tree.map(whole, current))
        for index in self.alive:
            loss, accuracy = (float(values[places[index]]) for values in found)
            yield (
                index,
                Epoch(
                    epoch,
                    self.taken[index],
                    loss,
                    accuracy,
                    train_s,
                    evaluation_s,
                    lambda index=index: read(host(), places[index], self.trainings[index].network, shape),
                    self.diverged.get(index),
                ),
            )

    def drop_finished(self, epoch: int) -> None:
        """Drop finished trainings after an epoch, and shrink the program if that saves more than it costs."""
        self.alive = [i for i in self.alive if i not in self.diverged and self.trainings[i].epochs > epoch + 1]
        if not self.alive or self.step_s is None or self.in_step:
            return
        left = max(self.trainings[i].epochs for i in self.alive) - epoch - 1
        smaller = arrange([self.trainings[i].seed for i in self.alive], len(self.devices))
        saved = 1 - smaller.n_places / self.grid.n_places
        if saved * left * self.n_steps * self.step_s > WORTH_COMPILING_S:
            host = jax.tree.map(whole, self.current)
            unfinished = {i: read(host, self.places[i], self.trainings[i].network, self.shape) for i in self.alive}
            self._load(unfinished)
            self._compile()
