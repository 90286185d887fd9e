"""What a transfer costs: a fixed latency, and a time per byte.

Fitted by least squares of the relative errors, so that four bytes count as much as a quarter of a gigabyte (the model
is Hockney's: R. W. Hockney, Parallel Computing 20, 1994). The intervals are Student's, from the residuals: they are
wide where the cost is not a straight line, as across the levels of a cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.timing.comparison import COVERAGE


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
