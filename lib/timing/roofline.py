"""The least time that a training step can take here: its arithmetic and bytes over this machine's measured rates.

This is the roofline model (Williams, Waterman and Patterson, Communications of the ACM 52, 2009). A floor is not a
prediction: it shows which ceiling is nearest, and how far above it a measured step lies. The rest is overhead.

And what a transfer costs: a fixed latency, and a time per byte (R. W. Hockney, Parallel Computing 20, 1994), fitted by
least squares of the relative errors, so that four bytes count as much as a quarter of a gigabyte. The intervals are
Student's, from the residuals: they are wide where the cost is not a straight line, as across the levels of a cache.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from lib.model.spec import N_PIXELS, Network
from lib.timing.comparison import COVERAGE

FLOAT32_BYTES = 4


class Ceiling(Enum):
    """What limits the speed of a step."""

    PRODUCT = "the matrix product"
    COPY = "the memory"
    DISPATCH = "the call"


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


def step_work(network: Network, batch_size: int, cache_bytes: int = 0) -> tuple[int, int]:
    """FLOPs of the matrix products (see `Network.step_flops`) and the fewest bytes that one step must move.

    The images are read once. Parameters are read and written once, but only the part that does not fit into the cache,
    where the rest can stay from step to step; activations never need to leave it. Every real step moves more.
    """
    images = FLOAT32_BYTES * N_PIXELS * batch_size
    beyond_cache = max(0, network.parameter_bytes - cache_bytes)
    return network.step_flops(batch_size), images + 2 * beyond_cache


def intensity(network: Network, batch_size: int) -> float:
    """FLOPs of a step's products per byte that it moves, if no cache keeps the parameters from step to step.

    >>> intensity(Network((128,)), 1) < 1 < intensity(Network((128,)), 32)
    True
    """
    flops, n_bytes = step_work(network, batch_size)
    return flops / n_bytes


def step_floor(
    network: Network, batch_size: int, ceilings: Ceilings, backend: str | None = None, calls_per_step: float = 1.0
) -> Floor:
    """The floor of one step.

    `backend` adds the cost of its calls, of which a step has `calls_per_step` (with one call per epoch, 1 over the
    number of steps). Ceilings are assumed to overlap, so the floor is the largest of their times, not the sum.
    """
    flops, n_bytes = step_work(network, batch_size, ceilings.cache_bytes)
    parts = {
        Ceiling.PRODUCT: flops / ceilings.product_flops_per_s,
        Ceiling.COPY: n_bytes / ceilings.copy_bytes_per_s,
        Ceiling.DISPATCH: calls_per_step * ceilings.dispatch_s.get(backend or "", 0.0),
    }
    by = max(parts, key=parts.__getitem__)
    return Floor(parts[by], by, parts, ceilings.cache_bytes > 0)


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
        """95 % interval of the bandwidth, in bytes per second; its upper end is infinite if the size may not matter."""
        low, high = self.byte_interval_s
        return 1 / high if high > 0 else math.inf, 1 / low if low > 0 else math.inf

    @property
    def grows(self) -> bool:
        """Whether more bytes certainly take more time."""
        return self.byte_interval_s[0] > 0

    @property
    def half_bytes(self) -> float:
        """The size at which latency is half of the time."""
        return max(0.0, self.latency_s) * self.bytes_per_s

    def less(self, other: "Cost") -> "Cost":
        """What this costs beyond another, perhaps below 0. Independent errors add in quadrature.

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
    """Fit latency and seconds per byte to the times of different sizes; None for fewer than three.

    Raises:
        ValueError: There are not as many sizes as times, or a time is not above 0.

    >>> cost = cost_of([4, 1024, 2**20], [1e-5 + n / 1e9 for n in (4, 1024, 2**20)])
    >>> round(cost.latency_s * 1e6, 3), round(cost.bytes_per_s / 1e9, 3), round(cost.half_bytes)
    (10.0, 1.0, 10000)
    """
    sizes, times = np.asarray(sizes_bytes, float), np.asarray(times_s, float)
    if len(sizes) != len(times) or not (times > 0).all():
        raise ValueError(
            f"transfers: expected as many sizes as times above 0, got {len(sizes)} and {len(times)}; measure them again"
        )
    if len(sizes) < 3:
        return None
    from scipy.special import stdtrit  # takes a tenth of a second to import

    scale = max(float(sizes.max()), 1.0)  # the two columns differ by eight orders of magnitude otherwise
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
