"""What a browser is given to train by the programs of `description`: those as JSON, and where a training begins.

The workers of `lib/ui/widgets/webgpu_worker.js` read it. Imports nothing heavy: it runs in readers' browsers, too.
"""

from typing import Any

import numpy as np

from lib.model.backends.base import initial_parameters
from lib.model.backends.webgpu import description
from lib.model.backends.webgpu.description import Program
from lib.model.data.mnist import batch_starts
from lib.model.spec import Network, Training

PACE_SIDE = 256  # of the product that shows how many operations a second to expect
MAX_STARTS = 20_000  # first images of batches that travel; after the last the first follows
MAX_EPOCHS = 20


def as_json(program: Program) -> dict[str, Any]:
    """A program as the browser reads it, without the kernels, which it has."""
    return {
        "operations": [
            {"kernel": one.kernel, "groups": one.groups, "words": list(one.words)} for one in program.operations
        ],
        "regions": {name: {"first": one.first, "shape": list(one.shape)} for name, one in program.regions.items()},
        "turns": description.turns(program),
        "memory_bytes": program.memory_bytes,
        "parameter_bytes": program.parameter_bytes,
        "flops": program.flops,
    }


def kernels() -> dict[str, Any]:
    """What is the same for all programs: the WGSL sources, the buffers, and how an operation's fields are named.

    And two programs: the `smallest` step, by which the kernels are compiled while images come, and a product, `pace`,
    by which it is predicted what a step takes.
    """
    return {
        "smallest": as_json(description.step(Network((1,)), 1)),
        "pace": as_json(description.product(PACE_SIDE)),
        "sources": description.sources(),
        "buffers": description.BUFFERS,
        "operation_bytes": description.OPERATION_BYTES,
        "fields": list(description.FIELDS),
        "nothing": description.NOTHING,
        "software_turns": description.SOFTWARE_TURNS,
    }


def begins_with(training: Training) -> np.ndarray:
    """The parameters that all backends start from, float32, (parameters,): layer by layer, weights and biases."""
    layers = initial_parameters(training.network, training.seed)
    return np.concatenate([part.ravel() for layer in layers for part in layer]).astype("<f4")


def first_images(training: Training, n_images: int) -> np.ndarray:
    """The first image of each batch of the first epochs of so many images, uint32, at most `MAX_STARTS` of them."""
    epochs = max(1, min(MAX_EPOCHS, MAX_STARTS * training.batch_size // n_images))
    starts = [batch_starts(n_images, training.batch_size, training.seed, epoch) for epoch in range(epochs)]
    return np.concatenate(starts)[:MAX_STARTS].astype("<u4")
