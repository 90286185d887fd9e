"""The least time that a training step can take here: its arithmetic and its bytes, over what this machine was measured
to do.

A floor is not a prediction. It says which ceiling is nearest, and how far above it a measured step stands; the rest is
overhead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lib.spec import N_PIXELS, Network

FLOAT32_BYTES = 4


class Ceiling(Enum):
    """What keeps a step from being faster."""

    PRODUCT = "the matrix product"
    COPY = "the memory"
    DISPATCH = "the call"


@dataclass(frozen=True)
class Work:
    """What one training step cannot avoid."""

    flops: int
    n_bytes: int


@dataclass(frozen=True)
class Ceilings:
    """The best that was measured on one machine and device."""

    product_flops_per_s: float  # one large float32 product
    copy_bytes_per_s: float  # reading and writing main memory; both count
    dispatch_s: Mapping[str, float] = field(default_factory=dict)  # an empty call that is waited for, by backend
    cache_bytes: int = 0  # the last-level cache: what fits in it need not cross the memory's ceiling

    def __post_init__(self) -> None:
        if not self.product_flops_per_s > 0 or not self.copy_bytes_per_s > 0:
            raise ValueError(
                f"ceilings: expected rates above 0, got {self.product_flops_per_s} FLOP/s and {self.copy_bytes_per_s} "
                "byte/s; measure them again"
            )


@dataclass(frozen=True)
class Floor:
    """The least seconds of a step, and what sets them."""

    seconds: float
    by: Ceiling
    parts_s: Mapping[Ceiling, float]


def step_work(network: Network, batch_size: int, cache_bytes: int = 0) -> Work:
    """FLOPs of the products (see `Network.step_flops`) and the fewest bytes that one step must move.

    The images are read once. Parameters are read and written once, but only as far as they do not fit into the cache,
    where they can stay from step to step; activations never need to leave it. Every real step moves more.
    """
    images = FLOAT32_BYTES * N_PIXELS * batch_size
    beyond_cache = max(0, network.parameter_bytes - cache_bytes)
    return Work(network.step_flops(batch_size), images + 2 * beyond_cache)


def step_floor(
    network: Network, batch_size: int, ceilings: Ceilings, backend: str | None = None, calls_per_step: float = 1.0
) -> Floor:
    """The floor of one step. `backend` adds its call's cost, `calls_per_step` times (one call an epoch: 1 over the
    steps).

    The ceilings are taken as working side by side, so the floor is the largest of their times, not the sum.
    """
    work = step_work(network, batch_size, ceilings.cache_bytes)
    parts = {
        Ceiling.PRODUCT: work.flops / ceilings.product_flops_per_s,
        Ceiling.COPY: work.n_bytes / ceilings.copy_bytes_per_s,
        Ceiling.DISPATCH: calls_per_step * ceilings.dispatch_s.get(backend or "", 0.0),
    }
    by = max(parts, key=parts.__getitem__)
    return Floor(parts[by], by, parts)
