"""The least time that a training step can take here: its arithmetic and bytes over this machine's measured rates.

This is the roofline model (Williams, Waterman and Patterson, Communications of the ACM 52, 2009). A floor is not a
prediction: it shows which ceiling is nearest, and how far above it a measured step lies. The rest is overhead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lib.model.spec import N_PIXELS, Network

FLOAT32_BYTES = 4


class Ceiling(Enum):
    """What limits the speed of a step."""

    PRODUCT = "the matrix product"
    COPY = "the memory"
    DISPATCH = "the call"


@dataclass(frozen=True)
class Work:
    """The arithmetic and the memory traffic that one training step cannot avoid."""

    flops: int
    n_bytes: int


@dataclass(frozen=True)
class Ceilings:
    """The best rates measured on one machine and device; raises ValueError for rates that are not above 0."""

    product_flops_per_s: float  # one large float32 product
    copy_bytes_per_s: float  # reading plus writing main memory
    dispatch_s: Mapping[str, float] = field(default_factory=dict)  # an empty call and waiting for it, by backend
    cache_bytes: int = 0  # of the last-level cache, or a card's L2, whose content causes no memory traffic; 0: unknown

    def __post_init__(self) -> None:
        if not self.product_flops_per_s > 0 or not self.copy_bytes_per_s > 0:
            raise ValueError(
                f"ceilings: expected rates above 0, got {self.product_flops_per_s} FLOP/s and {self.copy_bytes_per_s} "
                "byte/s; measure them again"
            )


@dataclass(frozen=True)
class Floor:
    """The least seconds of a step, the ceiling that sets them, and the seconds that each ceiling alone would set."""

    seconds: float
    by: Ceiling
    parts_s: Mapping[Ceiling, float]
    cache_known: bool = True  # if not, all parameters count as moved in each step, and this is no lower bound


def step_work(network: Network, batch_size: int, cache_bytes: int = 0) -> Work:
    """FLOPs of the matrix products (see `Network.step_flops`) and the fewest bytes that one step must move.

    The images are read once. Parameters are read and written once, but only the part that does not fit into the cache,
    where the rest can stay from step to step; activations never need to leave it. Every real step moves more.
    """
    images = FLOAT32_BYTES * N_PIXELS * batch_size
    beyond_cache = max(0, network.parameter_bytes - cache_bytes)
    return Work(network.step_flops(batch_size), images + 2 * beyond_cache)


def intensity(network: Network, batch_size: int) -> float:
    """FLOPs of a step's products per byte that it moves, if no cache keeps the parameters from step to step.

    >>> intensity(Network((128,)), 1) < 1 < intensity(Network((128,)), 32)
    True
    """
    work = step_work(network, batch_size)
    return work.flops / work.n_bytes


def step_floor(
    network: Network, batch_size: int, ceilings: Ceilings, backend: str | None = None, calls_per_step: float = 1.0
) -> Floor:
    """The floor of one step.

    `backend` adds the cost of its calls, of which a step has `calls_per_step` (with one call per epoch, 1 over the
    number of steps). Ceilings are assumed to overlap, so the floor is the largest of their times, not the sum.
    """
    work = step_work(network, batch_size, ceilings.cache_bytes)
    parts = {
        Ceiling.PRODUCT: work.flops / ceilings.product_flops_per_s,
        Ceiling.COPY: work.n_bytes / ceilings.copy_bytes_per_s,
        Ceiling.DISPATCH: calls_per_step * ceilings.dispatch_s.get(backend or "", 0.0),
    }
    by = max(parts, key=parts.__getitem__)
    return Floor(parts[by], by, parts, ceilings.cache_bytes > 0)
