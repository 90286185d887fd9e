"""Training a stack: the loop around the compiled program, yielding the same events as every backend.

Seconds are shares: all networks of a stack advance at the same time, and each is assigned an equal part of it, so that
the parts add up to the time that the stack took. Trainings that end early (diverged, or with fewer epochs) leave the
stack at the end of an epoch, if a smaller program is worth compiling.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import jax
import numpy as np

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
from lib.model.backends.stacked.packing import VACANT, Shape, StackGrid, arrange
from lib.model.backends.stacked.program import StackProgram, Weights, masks_of, program, zeros
from lib.model.backends.with_jax import BLOCK
from lib.model.data.mnist import Data, batch_starts
from lib.model.spec import Network, Training

WORTH_COMPILING_S = 0.5  # a smaller program must save more than it costs to compile
REPORT_S = 2e-3  # between two reports of losses, per network: a thousand networks need no sixteen reports a second


def devices_of(device: str, n_devices: int) -> tuple:
    """The first `n_devices` of this kind, across all processes of a JAX job; ValueError if there are fewer."""
    found = tuple(jax.devices(device))
    if n_devices > len(found):
        raise ValueError(f"devices: expected at most {len(found)} ({device}), got {n_devices}; choose fewer")
    return found[:n_devices]


def write(into: Weights, place: tuple[int, int], parameters: Parameters, shape: Shape) -> None:
    """Write one network's parameters into its place, in the layout of `program.zeros`; the rest stays padding."""
    *hidden, (weights, biases) = parameters
    for depth, (layer, offsets) in enumerate(hidden):
        inputs, outputs = layer.shape
        into["weights"][depth][place][:outputs, :inputs] = layer.T
        into["biases"][depth][place][:outputs] = offsets
    into["exits"][shape.exits.index(len(hidden))][place][:, : len(weights)] = weights.T
    into["last"][0][place] = biases


def read(parameters: Weights, place: tuple[int, int], network: Network, shape: Shape) -> Parameters:
    """One network's parameters without padding, weights (inputs, outputs); copies."""
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


@dataclass
class _Loaded:
    """Some of the trainings, loaded on the devices."""

    places: dict[int, tuple[int, int]]  # row and column, by index of the training
    seeds: list[int]  # of each row's batch order
    shape: Shape
    grid: StackGrid
    program: StackProgram
    current: Weights
    rates: jax.Array
    masks: list


def whole(array: jax.Array) -> np.ndarray:
    """A copy in host memory; in a job of several processes, gathered from all of them."""
    if array.is_fully_addressable:
        return np.array(array)
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(array, tiled=True))


def _load(
    trainings: Sequence[Training], members: list[int], start: Mapping[int, Parameters], devices: tuple
) -> _Loaded:
    of_members = [trainings[i] for i in members]
    shape = Shape.of([training.network for training in of_members])
    grid = arrange([training.seed for training in of_members], len(devices))
    compiled = program(shape, of_members[0].batch_size, grid.split_rows, devices)
    rows, columns = len(grid.places), len(grid.places[0])
    host, rates = zeros(shape, rows, columns), np.zeros((rows, columns), np.float32)
    for position, place in grid.where.items():
        training = of_members[position]
        write(host, place, start.get(members[position]) or initial_parameters(training.network, training.seed), shape)
        rates[place] = training.learning_rate
    masks = masks_of(shape, grid, [len(training.network.hidden) for training in of_members])
    places = {members[position]: place for position, place in grid.where.items()}
    seeds = [next((of_members[position].seed for position in row if position != VACANT), 0) for row in grid.places]
    return _Loaded(places, seeds, shape, grid, compiled, *jax.device_put((host, rates, masks), compiled.split))


@lru_cache(maxsize=2)
def _on_devices(data: Data, sharding: jax.sharding.NamedSharding):
    """Images and labels on every device, copied there once; CPU devices share the host's."""
    return jax.device_put((data.x_train, data.y_train, data.x_validation, data.y_validation), sharding)


def train_stack(
    trainings: Sequence[Training],
    data: Data,
    device: str = "cpu",
    n_devices: int = 1,
    parameters: Mapping[int, Parameters] | None = None,
    first_epoch: int = 0,
) -> Iterator[tuple[int, Event] | None]:
    """Train all of them at once; yields (index, event) pairs, and None at points where it can be paused or stopped.

    All trainings have the same batch size. `parameters` holds those of the trainings that do not start from their seed,
    by index, as they are after `first_epoch` epochs.

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
    """The state of `train_stack`."""

    def __init__(self, trainings: Sequence[Training], data: Data, devices: tuple, first_epoch: int) -> None:
        self.trainings, self.data, self.devices = trainings, data, devices
        self.size = trainings[0].batch_size
        self.n_steps = trainings[0].steps_per_epoch(len(data.x_train))
        self.alive = [i for i, training in enumerate(trainings) if training.epochs > first_epoch]
        self.block = BLOCK[devices[0].platform]
        self.step_s: float | None = None
        # The processes of a job must make the same decisions, so none may depend on measured times: they run whole
        # epochs, and never shrink the stack.
        self.in_step = len({device.process_index for device in devices}) > 1

    def begin(self, start: dict[int, Parameters]) -> Iterator[tuple[int, Event] | None]:
        """Load and compile, without any steps yet."""
        began = time.perf_counter()
        self.loaded = _load(self.trainings, self.alive, start, self.devices)
        self.images = _on_devices(self.data, self.loaded.program.shared)
        self._compile()
        first_call_s = (time.perf_counter() - began) / len(self.alive)
        for index in self.alive:
            yield index, FirstCall(first_call_s)

    def _compile(self) -> None:
        loaded = self.loaded
        loaded.current, losses = self._steps(self._losses(), self._starts(0), 0, 0)
        jax.block_until_ready((losses, loaded.program.evaluate(loaded.current, *self.images[2:])))

    def _losses(self) -> jax.Array:
        grid = self.loaded.grid
        empty = np.zeros((self.n_steps, len(grid.places), len(grid.places[0])), np.float32)
        sharding = self.loaded.program.split
        return jax.device_put(empty, sharding.update(spec=jax.sharding.PartitionSpec(None, *sharding.spec)))

    def _starts(self, epoch: int) -> jax.Array:
        """First image of each batch, (rows, steps); rows differ in their seed."""
        n_images = len(self.data.x_train)
        starts = np.stack([batch_starts(n_images, self.size, seed, epoch) for seed in self.loaded.seeds])
        return jax.device_put(starts, self.loaded.program.by_row)

    def _steps(self, losses: jax.Array, starts: jax.Array, first: int, stop: int):
        loaded = self.loaded
        return loaded.program.steps(
            loaded.current, losses, loaded.masks, starts, first, stop, *self.images[:2], loaded.rates
        )

    def epoch(self, epoch: int) -> Iterator[tuple[int, Event] | None]:
        """All steps of an epoch, and the evaluation at its end."""
        loaded, losses, starts = self.loaded, self._losses(), self._starts(epoch)
        self.diverged: dict[int, int] = {}
        self.taken = dict.fromkeys(self.alive, 0)
        done, reported, train_s, unreported_s = 0, 0, 0.0, 0.0
        while done < self.n_steps and len(self.diverged) < len(self.alive):
            stop = self.n_steps if self.in_step else done + next_chunk(self.n_steps - done, self.step_s, self.block)
            before = time.perf_counter()
            loaded.current, losses = self._steps(losses, starts, done, stop)
            losses.block_until_ready()
            chunk_s = time.perf_counter() - before
            self.step_s, done = chunk_s / (stop - done), stop
            train_s, unreported_s = train_s + chunk_s, unreported_s + chunk_s
            yield None
            if unreported_s >= max(CHUNK_S, REPORT_S * len(self.alive)) or done == self.n_steps:
                yield from self._report(epoch, whole(losses)[reported:done], reported, unreported_s)
                reported, unreported_s = done, 0.0
        before = time.perf_counter()
        found = jax.tree.map(whole, loaded.program.evaluate(loaded.current, *self.images[2:]))
        evaluation_s = (time.perf_counter() - before) / len(self.alive)
        yield from self._end(epoch, found, train_s / len(self.alive), evaluation_s)

    def _report(self, epoch: int, losses: np.ndarray, first: int, spent_s: float) -> Iterator[tuple[int, Event]]:
        """The losses (steps, rows, columns) since the last report, of the trainings that had not diverged by then."""
        for index in [i for i in self.alive if i not in self.diverged]:
            own = losses[(slice(None), *self.loaded.places[index])].copy()
            self.taken[index] = first + len(own)
            yield index, Steps(epoch, first, own, spent_s / len(self.alive))
            if (bad := first_non_finite(own)) is not None:
                self.diverged[index] = first + bad

    def _end(
        self, epoch: int, found: tuple[np.ndarray, np.ndarray], train_s: float, evaluation_s: float
    ) -> Iterator[tuple[int, Event]]:
        """The end of the epoch for each training; `found` are validation losses and accuracies, (rows, columns)."""
        loaded = self.loaded
        # A single copy of the stack in host memory, for all parameters that are read before the next epoch begins.
        host = cache(lambda: jax.tree.map(whole, loaded.current))
        for index in self.alive:
            loss, accuracy = (float(values[loaded.places[index]]) for values in found)
            yield (
                index,
                Epoch(
                    epoch,
                    self.taken[index],
                    loss,
                    accuracy,
                    train_s,
                    evaluation_s,
                    lambda index=index: read(host(), loaded.places[index], self.trainings[index].network, loaded.shape),
                    self.diverged.get(index),
                ),
            )

    def drop_finished(self, epoch: int) -> None:
        """After an epoch, drop the trainings that are done, and shrink the program if that saves more than it costs."""
        self.alive = [i for i in self.alive if i not in self.diverged and self.trainings[i].epochs > epoch + 1]
        if not self.alive or self.step_s is None or self.in_step:
            return
        loaded = self.loaded
        left = max(self.trainings[i].epochs for i in self.alive) - epoch - 1
        smaller = arrange([self.trainings[i].seed for i in self.alive], len(self.devices))
        saved = 1 - smaller.n_places / loaded.grid.n_places
        if saved * left * self.n_steps * self.step_s > WORTH_COMPILING_S:
            host = jax.tree.map(whole, loaded.current)
            unfinished = {i: read(host, loaded.places[i], self.trainings[i].network, loaded.shape) for i in self.alive}
            self.loaded = _load(self.trainings, self.alive, unfinished, self.devices)
            self._compile()
