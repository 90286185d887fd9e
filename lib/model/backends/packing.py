"""Packing networks into one program: which ones share it, how they are padded to one shape, and what that wastes.

**Padding.** Networks of different widths and depths share a program if each hidden layer is padded to the widest one.
Unused entries are zero, and stay exactly zero: a padded neuron sees zeros, ReLU passes no gradient at zero, and its
outgoing weights get gradients of `delta × 0`.

**Depth.** A shallower network exits early: the output layer reads every hidden layer that is some network's last,
through weights that are zero for all other networks (their gradient is masked).

**Places.** A stack is a grid: a row per batch order (a seed), a column per network trained in that order. The networks
of one row read the same images, so their first layers become a single matrix product.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lib.model.spec import N_CLASSES, N_PIXELS, Network, Training

VACANT = -1
# Share of the arithmetic that padding may waste: on a CPU, stacking gains at most a factor of two.
MAX_WASTE = 0.4
MAX_VACANT = 0.25  # with a larger share of empty places, each network gets its own row
ACTIVATION_COPIES = 4  # a layer's values, their gradients, and XLA's copies of both


@dataclass(frozen=True)
class Shape:
    """The common shape to which a stack's networks are padded."""

    widths: tuple[int, ...]  # of each hidden layer
    exits: tuple[int, ...]  # depths, in hidden layers, at which some network ends
    n_inputs: int = N_PIXELS
    n_classes: int = N_CLASSES

    @classmethod
    def of(cls, networks: Sequence[Network]) -> "Shape":
        """Return the smallest shape that holds all the networks, which share inputs and classes.

        >>> Shape.of([Network((128,)), Network((64, 32))])
        Shape(widths=(128, 32), exits=(1, 2), n_inputs=784, n_classes=10)
        """
        depth = max(len(network.hidden) for network in networks)
        widths = tuple(max(network.hidden[d] for network in networks if len(network.hidden) > d) for d in range(depth))
        exits = tuple(sorted({len(network.hidden) for network in networks}))
        return cls(widths, exits, networks[0].n_inputs, networks[0].n_classes)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Input widths of each hidden layer, and of each possible exit."""
        return (self.n_inputs, *self.widths)

    @property
    def n_parameters(self) -> int:
        """Parameters per place, including padding."""
        hidden = sum(inputs * width + width for inputs, width in zip(self.inputs, self.widths, strict=False))
        return hidden + self.n_classes * (1 + sum(self.inputs[depth] for depth in self.exits))

    @property
    def step_flops(self) -> int:
        """Floating-point operations per image of a step in one place, counted like `Network.step_flops`."""
        first = self.n_inputs * ((self.widths[0] if self.widths else 0) + (self.n_classes if 0 in self.exits else 0))
        inner = sum(inputs * width for inputs, width in pairwise(self.widths))
        outputs = self.n_classes * sum(self.inputs[depth] for depth in self.exits if depth)
        return 2 * (2 * first + 3 * (inner + outputs))

    def place_bytes(self, batch_size: int) -> int:
        """Memory of one network: three copies of its parameters (values, gradients, host copy), and activations."""
        activations = ACTIVATION_COPIES * batch_size * (sum(self.widths) + self.n_classes * len(self.exits))
        return 4 * (3 * self.n_parameters + activations)


def waste(networks: Sequence[Network]) -> float:
    """Share of a stack's arithmetic that is spent on padding.

    >>> waste([Network((128,)), Network((128,))]), round(waste([Network((128,)), Network((64,))]), 2)
    (0.0, 0.25)
    """
    useful = sum(network.step_flops(1) for network in networks)
    return 1 - useful / (len(networks) * Shape.of(networks).step_flops)


@dataclass(frozen=True)
class StackGrid:
    """The place of each training: `places[row][column]` is its index, or VACANT. All rows have equally many columns."""

    places: tuple[tuple[int, ...], ...]
    split_rows: bool  # whether rows, instead of columns, are divided among the devices

    @property
    def n_places(self) -> int:
        return len(self.places) * len(self.places[0])

    @property
    def where(self) -> dict[int, tuple[int, int]]:
        """Row and column of each training, by its index."""
        return {
            index: (row, column)
            for row, of_row in enumerate(self.places)
            for column, index in enumerate(of_row)
            if index != VACANT
        }


def arrange(seeds: Sequence[int], n_devices: int = 1) -> StackGrid:
    """Return a grid for trainings with these seeds, with as few places as `n_devices` equal parts allow.

    >>> arrange([0, 0, 0]).places, arrange([0, 0, 0], 2).places
    (((0, 1, 2),), ((0, 1, 2, -1),))
    >>> arrange([1, 2, 3, 1, 2, 3]).places, arrange([5, 6], 2)
    (((0, 3), (1, 4), (2, 5)), StackGrid(places=((0,), (1,)), split_rows=True))
    """
    by_seed: dict[int, list[int]] = {}
    for index, seed in enumerate(seeds):
        by_seed.setdefault(seed, []).append(index)
    rows = list(by_seed.values())
    columns = max(map(len, rows))
    if len(rows) * columns * (1 - MAX_VACANT) > len(seeds):
        rows, columns = [[index] for index in range(len(seeds))], 1
    more_rows, more_columns = _up(len(rows), n_devices), _up(columns, n_devices)
    split_rows = n_devices > 1 and more_rows * columns < len(rows) * more_columns
    if split_rows:
        rows += [[] for _ in range(more_rows - len(rows))]
    else:
        columns = more_columns
    return StackGrid(tuple(tuple(row + [VACANT] * (columns - len(row))) for row in rows), split_rows)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def stacks(trainings: Iterable[Training], max_waste: float) -> list[tuple[Training, ...]]:
    """Group trainings that may share a program: equal batch sizes, and little arithmetic wasted on padding.

    Greedy over the networks in order of their widths. Networks without a hidden layer form their own groups, because a
    hidden layer would be pure padding for them.

    Args:
        trainings: In any order.
        max_waste: Largest share of a group's arithmetic spent on padding, 0 to 1; 0 allows one shape per group.
    """
    groups: list[tuple[Training, ...]] = []
    for training in sorted(trainings, key=lambda one: (one.batch_size, one.network.hidden)):
        joined = (*(groups[-1] if groups else ()), training)
        alike = len({(one.batch_size, bool(one.network.hidden)) for one in joined}) == 1
        if alike and waste([one.network for one in joined]) <= max_waste:
            groups[-1:] = [joined]
        else:
            groups.append((training,))
    return groups


def chunks(
    group: tuple[Training, ...], memory_bytes: float, cache_bytes: float, n_devices: int
) -> list[tuple[Training, ...]]:
    """Split a group into even parts that fit into memory, and whose parameters fit into the devices' caches.

    Args:
        group: Trainings of one batch size that may share a program.
        memory_bytes: Available to a part while it trains.
        cache_bytes: Per device, for parameters.
        n_devices: Number of devices that share a part.

    Raises:
        MemoryError: Not even one network fits; the text is a sentence for the user.
    """
    shape, batch_size = Shape.of([one.network for one in group]), group[0].batch_size
    place_bytes = shape.place_bytes(batch_size)
    in_memory = int(min(memory_bytes / place_bytes, len(group)))
    if in_memory < 1:
        raise MemoryError(
            f"a network of {group[0].network.label} at batch size {batch_size:,} needs {place_bytes / 1e6:,.0f} MB to"
            f" train, but {memory_bytes / 1e6:,.0f} MB are free; choose a smaller one, or close other programs"
        )
    in_caches = n_devices * max(1, int(min(cache_bytes / (4 * shape.n_parameters), len(group))))
    n_parts = -(-len(group) // min(in_memory, in_caches))
    size = -(-len(group) // n_parts)
    size = min(_up(size, n_devices), in_memory) if n_parts > 1 else size
    return [group[first : first + size] for first in range(0, len(group), size)]
