"""Which of two takes less time: the one rule of all pages, benchmarks and sentences.

The result is the ratio of the two times, first over second, with an interval that contains the true ratio in 95 of
100 comparisons, and one of four verdicts: FASTER, SLOWER, SAME (certainly within 3 %) or UNCLEAR.

Steps that are measured in turns have pairs of neighbouring blocks, each pair in random order. Whatever the machine does
meanwhile, be it drift, bursts or jumps between two clock rates, then affects both sides alike, and of two equal steps
the first is the slower one in half of all pairs (R. A. Fisher, The Design of Experiments, 1935). The interval of the
median of the pairs' ratios comes from order statistics, which assume no more than that. Where measuring ends once the
comparison is decided, each look gets its share of the 5 %, so that looking repeatedly does not produce false findings
(Bonferroni's correction).

Times that were taken one after another have no pairs. For them, the ratio is that of the geometric means, and its
interval is Welch's, on the logarithms (B. L. Welch, Biometrika 34, 1947): it allows each side its own spread, and needs
two times of each. It covers what varied within each side, not what changed on the machine between them; so give it
times from several repetitions, not from one.

A machine's speed changes from day to day. So two `Repetitions` are compared only by values from a shared session;
against any other figure, `DRIFT` is allowed for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import numpy as np

from lib.formatting import factor

COVERAGE = 0.95
SAME_WITHIN = 0.03  # a ratio that is certainly within this of 1 counts as the same
SESSION = timedelta(hours=1)  # a machine's speed is assumed constant for this long
DRIFT = 0.2  # relative difference between two days: two standard deviations of 10 % each


class Verdict(Enum):
    """The outcome of a comparison: the first relative to the second."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Comparison:
    """The ratio of the first's time to the second's, with its interval and verdict.

    `low` and `high` enclose the true ratio with probability `COVERAGE`. `n` is the number of pairs, or for unpaired
    times the smaller of the two counts.
    """

    ratio: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> Verdict:
        """FASTER or SLOWER only if the interval excludes 1 and the ratio itself is beyond “the same”.

        >>> ratios = (0.5, 0.4, 0.6), (1, 0.98, 1.02), (1.3, 1.2, 1.5), (1, 0.8, 1.2)
        >>> [Comparison(*ratio, n=9).verdict.value for ratio in ratios]
        ['faster', 'the same', 'slower', 'unclear']
        """
        least, most = 1 / (1 + SAME_WITHIN), 1 + SAME_WITHIN
        if least <= self.low and self.high <= most:
            return Verdict.SAME
        if self.high < 1 and self.ratio < least:
            return Verdict.FASTER
        return Verdict.SLOWER if self.low > 1 and self.ratio > most else Verdict.UNCLEAR

    @property
    def text(self) -> str:
        """The ratio with its interval, never a bare percentage."""
        return factor(self.ratio, self.low, self.high)


def compared(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, paired: bool, looks: int = 1
) -> Comparison:
    """Compare measured times, in seconds and in the order they were taken.

    `paired` means that the k-th times of both are neighbours in time. `looks` is how often pairs are compared before
    measuring ends; the interval widens accordingly.

    Raises:
        ValueError: A side has no times, or paired sides differ in length.
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if not len(one) or not len(other) or (paired and len(one) != len(other)):
        raise ValueError(
            f"times to compare: expected some of both{', equally many' if paired else ''}, got {len(one)} and"
            f" {len(other)}; measure both"
        )
    if not paired:
        return between(Estimate.of(one), Estimate.of(other))
    ratios = _ratio(one, other)
    low, high = median_interval(ratios, 1 - (1 - COVERAGE) / looks)
    return Comparison(float(np.median(ratios)), low, high, len(ratios))


@dataclass(frozen=True)
class Estimate:
    """A summary of several independent times."""

    seconds: float  # geometric mean
    error: float = 0.0  # standard error of the logarithm of `seconds`
    n: int = 0  # number of times; with 0 or 1, their variation is unknown
    off: float = 0.0  # possible bias common to all times, such as a coarse clock's, as a share of `seconds`

    @classmethod
    def of(cls, times: Sequence[float] | np.ndarray, off_s: float = 0.0) -> "Estimate":
        """Summarise one or more independent times in seconds; a coarse clock may shift all of them by `off_s`."""
        with np.errstate(divide="ignore", invalid="ignore"):  # a time of 0 makes the error NaN: nothing is decided
            logs = np.log(np.asarray(times, dtype=float))
            error = float(np.std(logs, ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else 0.0
        seconds = float(np.exp(np.mean(logs)))
        return cls(seconds, error, len(logs), off_s / seconds if seconds and off_s else 0.0)

    def times(self, number: float) -> "Estimate":
        return replace(self, seconds=self.seconds * number)

    def on_another_day(self) -> "Estimate":
        """Return the estimate for comparison with another day's: it may be off by `DRIFT`."""
        return replace(self, off=max(self.off, DRIFT))

    def plus(self, other: "Estimate") -> "Estimate":
        """Return the estimate of the sum of both times.

        An estimate of unknown error adds none. That is acceptable for small ones, such as an evaluation after an epoch.
        """
        total_s = self.seconds + other.seconds
        error_s = math.hypot(self.seconds * self.error, other.seconds * other.error)
        off_s = self.seconds * self.off + other.seconds * other.off
        known = [one.n for one in (self, other) if one.n]
        error, off = (one / total_s if total_s else 0.0 for one in (error_s, off_s))
        return Estimate(total_s, error, min(known, default=0), off)


def without_spread(ratio: float) -> Comparison:
    """Compare two figures of unknown spread by their ratio alone."""
    return Comparison(ratio, ratio, ratio, 1)


def between(first: Estimate, second: Estimate, coverage: float = COVERAGE) -> Comparison:
    """Compare two unpaired estimates. If either is a single time, the interval is (0, inf), hence UNCLEAR.

    The interval also covers a bias of each side by its `off`, in opposite directions.
    """
    n, ratio = min(first.n, second.n), float(_ratio(first.seconds, second.seconds))
    if n < 2:
        return Comparison(ratio, 0.0, math.inf, n)
    least = ratio * max(0.0, 1 - first.off) / (1 + second.off)
    most = ratio * (1 + first.off) / (1 - second.off) if second.off < 1 else math.inf
    variances = first.error**2, second.error**2
    if not (variance := sum(variances)):
        return Comparison(ratio, least, most, n)
    from scipy.special import stdtrit  # takes a tenth of a second to import

    freedom = variance**2 / sum(v**2 / (one.n - 1) for v, one in zip(variances, (first, second), strict=True))
    widened = math.exp(float(stdtrit(freedom, (1 + coverage) / 2)) * math.sqrt(variance))
    return Comparison(ratio, least / widened, most * widened, n)


def ratio_of(first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return the first over the second, with an interval that treats their errors as independent.

    Each has a low end, a value and a high end: floats, or arrays of the same shape.

    >>> [float(end) for end in ratio_of((4.0, 8.0, 16.0), (2.0, 2.0, 2.0))]
    [2.0, 4.0, 8.0]
    """
    (low, value, high), (other_low, other, other_high) = first, second
    down = np.hypot(np.log(value / low), np.log(other_high / other))
    up = np.hypot(np.log(high / value), np.log(other / other_low))
    return value / other * np.exp(-down), value / other, value / other * np.exp(up)


@dataclass(frozen=True)
class Repetitions:
    """A figure measured several times: the value and the time (ISO 8601) of each repetition."""

    values: tuple[float, ...]
    at: tuple[str, ...] = ()  # empty: all in one session

    @property
    def middle(self) -> float:
        return float(np.median(self.values))

    def compare(self, other: "Repetitions", one_of: int = 1) -> Comparison:
        """Compare with another figure by the repetitions made within `SESSION` of each other.

        With fewer than two such repetitions on either side the comparison is unclear, because a figure's spread does
        not cover the difference between two days. If any of `one_of` comparisons alone can decide, each gets its share
        of the 5 %.
        """
        near = self.near(other), other.near(self)
        enough = min(map(len, near)) > 1
        one, two = map(Estimate.of, near if enough else (self.values, other.values))
        return between(one, two if enough else replace(two, n=1), 1 - (1 - COVERAGE) / one_of)

    def against(self, figure: float, measured: bool = False, one_of: int = 1) -> Comparison:
        """Compare with a published figure, or with a figure `measured` on another day.

        Needs at least two repetitions. They may be off by `DRIFT`, as may a `measured` figure. `one_of`: see `beside`.
        """
        known, mine = Estimate(figure, n=len(self.values)), Estimate.of(self.values).on_another_day()
        return between(mine, known.on_another_day() if measured else known, 1 - (1 - COVERAGE) / one_of)

    def near(self, other: "Repetitions") -> list[float]:
        """Return the values taken within `SESSION` of any repetition of the other figure."""
        if not self.at or not other.at:
            return list(self.values)
        theirs = [datetime.fromisoformat(at) for at in other.at]
        mine = zip(self.values, map(datetime.fromisoformat, self.at), strict=True)
        return [value for value, at in mine if any(abs(at - their) <= SESSION for their in theirs)]


def median_interval(values: Sequence[float] | np.ndarray, coverage: float = COVERAGE) -> tuple[float, float]:
    """Return a confidence interval of the median (`quantile_interval`). Fewer than six values give (0, inf) at 95 %.

    >>> median_interval([1, 2, 3, 4, 5, 6, 7, 8, 9])
    (2.0, 8.0)
    """
    return quantile_interval(values, 0.5, coverage)


def quantile_interval(
    values: Sequence[float] | np.ndarray, share: float, coverage: float = COVERAGE
) -> tuple[float, float]:
    """Return a confidence interval of a quantile from order statistics, whatever the distribution.

    The k-th smallest of n values is above the quantile with probability P(Binomial(n, share) < k): the inverted sign
    test of any textbook on nonparametric statistics. With too few values for an end, that end is 0 or inf.

    >>> quantile_interval(list(range(100)), 0.95)
    (89.0, 99.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n, tail = len(ordered), (1 - coverage) / 2
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(share)
        + (n - k) * math.log(1 - share)
        for k in range(n)
    ]
    below = np.cumsum(np.exp(logs))  # P(Binomial(n, share) <= k)
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail))
    return float(ordered[low - 1]) if low else 0.0, float(ordered[high]) if high < n else math.inf


def _ratio(first, second) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(second) > 0, np.divide(first, second), np.inf)
