"""Which of two takes less time: the one rule of all pages, benchmarks and sentences.

What is told is the ratio of the two times, first over second, with an interval that holds the true one in 95 of 100
comparisons, and one of four words: FASTER, SLOWER, SAME (surely within 3 %) or UNCLEAR.

Steps that can be run here are measured in pairs of neighbouring blocks (`compare`), each pair in an order drawn by lot:
whatever the machine does meanwhile, drifting, bursting or jumping between two clocks, it then falls on either side
alike, and of two equal steps the first is the slower one in half of all pairs (R. A. Fisher, The Design of Experiments,
1935). The median of the pairs' ratios is enclosed by order statistics, which need no more than that. It is looked at
after so many pairs as `LOOKS` says, and measuring ends once it is decided. Each look has its share of the 5 %, so that
looking often does not find what is not there (Bonferroni's correction).

Times that were taken one after another have no pairs. Then the ratio is that of the geometric means, and its interval
Welch's, on the logarithms (B. L. Welch, Biometrika 34, 1947): it allows each side a spread of its own, and needs two
times of each. It covers what varied within each of the two, not what changed on the machine between them; so give it
times from several repetitions, not from one.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from lib.timing.measurement import Clock, Config, Meter, Step, Sync, no_wait

COVERAGE = 0.95
SAME_WITHIN = 0.03  # two whose ratio is surely within this are the same
LOOKS = (9, 14, 22, 35, 55, 86, 135, 212, 332, 520)  # numbers of pairs: each about 1.6 times the one before


class Verdict(Enum):
    """Of a comparison: the first beside the second."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Comparison:
    """The first's time over the second's, and what may be said of it.

    `low` and `high` enclose the ratio of the medians with the stated coverage; `n`: the pairs, or the times of the
    shorter row.
    """

    ratio: float
    low: float
    high: float
    n: int
    paired: bool

    @property
    def verdict(self) -> Verdict:
        """A side is taken only where the interval leaves out 1 and the ratio itself is no longer “the same”.

        >>> ratios = (0.5, 0.4, 0.6), (1, 0.98, 1.02), (1.3, 1.2, 1.5), (1, 0.8, 1.2)
        >>> [Comparison(*ratio, n=9, paired=True).verdict.value for ratio in ratios]
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
        """A ratio with its interval, never a bare percentage."""
        times = f"{self.ratio:.3g} times the time ({self.low:.3g} to {self.high:.3g})"
        return f"{self.verdict.value}: {times}"


def compare(
    first: Step,
    second: Step,
    *,
    sync: Sync | tuple[Sync, Sync] = no_wait,
    config: Config | None = None,
    clock: Clock = time.perf_counter,
    seed: int = 0,
) -> Comparison:
    """Measure two steps in pairs of blocks until it is decided, the time is up (twice `max_time_s`) or the last look is
    done.

    `sync`: waits for what a step returned; one for both, or one each. `seed` draws the order within each pair.
    Raises as `lib.timing.measurement.measure` does.
    """
    config = config or Config()
    syncs = sync if isinstance(sync, tuple) else (sync, sync)
    meters = [Meter(step, wait, config, clock) for step, wait in zip((first, second), syncs, strict=True)]
    began, lots = clock(), random.Random(seed)
    for meter in meters:
        meter.warm_up()
        meter.find_block_size()
    pairs = 0
    while True:
        pairs += 1
        for meter in lots.sample(meters, 2):
            meter.block()
        over = pairs == LOOKS[-1] or clock() - began >= 2 * config.max_time_s
        if over or pairs in LOOKS:
            # Where the time is up there is one look more.
            found = _paired(*(np.array(meter.blocks) / meter.steps_per_block for meter in meters), looks=len(LOOKS) + 1)
            if over or found.verdict is not Verdict.UNCLEAR:
                return found


def compared(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, paired: bool) -> Comparison:
    """Of times that are there already, seconds in the order in which they were taken.

    `paired`: the k-th of both are neighbours in time. Raises ValueError where there are none, or not equally many in
    pairs.
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if not len(one) or not len(other) or (paired and len(one) != len(other)):
        raise ValueError(
            f"times to compare: expected some of both{' and equally many' if paired else ''}, got {len(one)} and"
            f" {len(other)}; measure both"
        )
    if paired:
        return _paired(one, other)
    return between(Estimate.of(one), Estimate.of(other))


@dataclass(frozen=True)
class Estimate:
    """A time that stands for many: their geometric mean, the standard error of its logarithm, and how many
    independent times there were."""

    seconds: float
    error: float = 0.0
    n: int = 0  # 0 or 1: nobody knows how much it varies

    @classmethod
    def of(cls, times: Sequence[float] | np.ndarray) -> "Estimate":
        """Of independent times in seconds, at least one."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.asarray(times, dtype=float))
        error = float(np.std(logs, ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else 0.0
        return cls(float(np.exp(np.mean(logs))), error, len(logs))

    def times(self, factor: float) -> "Estimate":
        """So many times as long."""
        return Estimate(self.seconds * factor, self.error, self.n)

    def plus(self, other: "Estimate") -> "Estimate":
        """One after the other.

        What comes without an error adds none: where it is small, as an evaluation beside an epoch is, that is allowed.
        """
        total_s = self.seconds + other.seconds
        error_s = math.hypot(self.seconds * self.error, other.seconds * other.error)
        known = [one.n for one in (self, other) if one.n]
        return Estimate(total_s, error_s / total_s if total_s else 0.0, min(known, default=0))


def without_spread(ratio: float) -> Comparison:
    """Of two figures that nobody knows the spread of: only whether they are further apart than what counts as the
    same."""
    return Comparison(ratio, ratio, ratio, 1, False)


def between(first: Estimate, second: Estimate) -> Comparison:
    """Of two estimates, unpaired. Where one of them is a single time, the interval is (0, inf): it cannot be told."""
    n, ratio = min(first.n, second.n), float(_ratio(first.seconds, second.seconds))
    if n < 2:
        return Comparison(ratio, 0.0, math.inf, n, False)
    variances = first.error**2, second.error**2
    if not (variance := sum(variances)):
        return Comparison(ratio, ratio, ratio, n, False)
    from scipy.special import stdtrit  # a tenth of a second to import

    freedom = variance**2 / sum(v**2 / (one.n - 1) for v, one in zip(variances, (first, second), strict=True))
    off = math.exp(float(stdtrit(freedom, (1 + COVERAGE) / 2)) * math.sqrt(variance))
    return Comparison(ratio, ratio / off, ratio * off, n, False)


def median_interval(values: Sequence[float] | np.ndarray, coverage: float = 0.95) -> tuple[float, float]:
    """A confidence interval of the median from order statistics: no assumption about the distribution, no random
    numbers.

    The k-th smallest and k-th largest of n enclose the median with probability 1 − 2·P(Binomial(n, ½) < k) (any
    textbook of nonparametric statistics, as the sign test's inversion). With fewer than six values 95 % cannot be had:
    (0, inf).

    >>> median_interval([1, 2, 3, 4, 5, 6, 7, 8, 9])
    (2.0, 8.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    k, below = 0, 0.0
    while k < n // 2 and 2 * (below + math.comb(n, k) / 2**n) <= 1 - coverage:
        below += math.comb(n, k) / 2**n
        k += 1
    if k == 0:
        return 0.0, math.inf
    return float(ordered[k - 1]), float(ordered[n - k])


def _paired(first: np.ndarray, second: np.ndarray, looks: int = 1) -> Comparison:
    ratios = _ratio(first, second)
    low, high = median_interval(ratios, 1 - (1 - COVERAGE) / looks)
    return Comparison(float(np.median(ratios)), low, high, len(ratios), True)


def _ratio(first, second) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(second) > 0, np.divide(first, second), np.inf)
