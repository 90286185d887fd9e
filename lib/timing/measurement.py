"""How long a step takes, and how certain that is. Knows nothing of machine learning or of machines.

A measurement is a series of blocks. A block has as many steps as it takes to make the clock's own cost negligible, and
the device is synchronised at its start and end. Blocks are repeated until their spread is small, or until a hard cap;
the result records which of the two it was, and every block's time. The rules follow torch.utils.benchmark, nvbench and
pyperf.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from lib.formatting import justified

Step = Callable[[], object]
Sync = Callable[[object], object]  # waits for what a step returned, as `jax.block_until_ready` does
Clock = Callable[[], float]


def no_wait(result: object) -> object:
    """The `sync` of a step whose work is done when it returns."""
    return result


MAX_BLOCKS = 10_000  # ends a measurement even if the clock stands still
EMPTY_STEP_S = 0.5e-6


@dataclass(frozen=True)
class Config:
    """When to stop measuring. Seconds are wall time."""

    warm_up_s: float = 0.1  # by time, not by count: CPUs and GPUs raise their clock rates over time
    min_blocks: int = 9
    min_time_s: float = 0.3
    spread_target: float = 0.02  # interquartile range over median
    max_time_s: float = 10.0  # of warm-up and blocks together
    min_block_s: float = 1e-3
    clock_share: float = 1e-3  # of a block, at most, spent on reading the clock
    max_steps_per_block: int = 1_000_000


class Ended(Enum):
    """What ended a measurement."""

    SPREAD = "the spread was small enough"
    CAP = "the time was up"


@dataclass(frozen=True)
class Measurement:
    """Seconds per step, from blocks of equally many steps."""

    block_s: tuple[float, ...]  # of whole blocks, in the order in which they ran
    steps_per_block: int
    ended: Ended
    warnings: tuple[str, ...] = ()

    @property
    def step_s(self) -> np.ndarray:
        """Seconds per step in each block, (blocks,)."""
        return np.array(self.block_s) / self.steps_per_block

    @property
    def median_s(self) -> float:
        """Median over the blocks of the seconds per step."""
        return float(np.median(self.step_s))

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile over the blocks of the seconds per step."""
        low, high = np.percentile(self.step_s, [25, 75])
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        low, high = self.quartiles_s
        return (high - low) / self.median_s if self.median_s else math.inf

    @property
    def text(self) -> str:
        """The median with no more digits than its spread justifies."""
        return justified(self.median_s, *self.quartiles_s)


def measure(
    step: Step, *, sync: Sync = no_wait, config: Config | None = None, clock: Clock = time.perf_counter
) -> Measurement:
    """Measure a step in its steady state: warm up, find the block size, repeat blocks until their spread is small.

    `sync` waits for what the last step of a block returned; the clock stops after it. Blocks also end when the time in
    `config` is up.
    """
    return Meter(step, sync, config or Config(), clock).run()


@dataclass
class Meter:
    """A step measured block by block, so that several can be measured in turns.

    For the arguments, see `measure`; for its use, `lib.timing.profiling.harness.Repeated`.
    """

    step: Step
    sync: Sync
    config: Config
    clock: Clock
    wait_in_block: bool = True
    blocks: list[float] = field(default_factory=list)
    steps_per_block: int = 1
    clock_s: float = 0.0  # what reading the clock costs

    def run(self) -> Measurement:
        """Measure until the spread is small or the time is up."""
        began = self.clock()
        self.warm_up()
        self.find_block_size()
        while True:
            self.block()
            spent_s = self.clock() - began
            enough = len(self.blocks) >= self.config.min_blocks and sum(self.blocks) >= self.config.min_time_s
            if enough and self.spread <= self.config.spread_target:
                return self.measurement(Ended.SPREAD)
            if spent_s >= self.config.max_time_s or len(self.blocks) >= MAX_BLOCKS:
                return self.measurement(Ended.CAP)

    @property
    def spread(self) -> float:
        low, middle, high = np.percentile(self.blocks, [25, 50, 75])
        return float((high - low) / middle) if middle else math.inf

    def warm_up(self) -> None:
        """Measure what reading the clock costs, then run steps for `warm_up_s`."""
        self.clock_s = float(np.median(np.diff([self.clock() for _ in range(32)])))
        began = self.clock()
        while True:
            self._steps(1)
            if self.clock() - began >= self.config.warm_up_s:
                return

    def find_block_size(self) -> None:
        """Enlarge the block until neither the clock's cost nor its resolution matters."""
        wanted_s = max(self.config.min_block_s, self.clock_s / self.config.clock_share)
        while (block_s := self._timed(self.steps_per_block)) < wanted_s:
            if self.steps_per_block >= self.config.max_steps_per_block:
                return
            factor = min(max(1.2 * wanted_s / block_s, 2.0), 10.0) if block_s > 0 else 10.0
            self.steps_per_block = min(math.ceil(self.steps_per_block * factor), self.config.max_steps_per_block)

    def block(self) -> None:
        self.blocks.append(self._timed(self.steps_per_block))

    def _timed(self, steps: int) -> float:
        before = self.clock()
        return self._steps(steps) - before

    def _steps(self, steps: int) -> float:
        """Run the steps, wait for the last one's result, and return the time at which the block ended."""
        result: object = None
        for _ in range(steps):
            result = self.step()
        after = self.clock()
        self.sync(result)
        return self.clock() if self.wait_in_block else after

    def measurement(self, ended: Ended) -> Measurement:
        """What has been measured so far, with its warnings."""
        plain = Measurement(tuple(self.blocks), self.steps_per_block, ended)
        return replace(plain, warnings=tuple(self._warnings(plain)))

    def _warnings(self, measured: Measurement) -> list[str]:
        empty, drift = measured.median_s < EMPTY_STEP_S, _drift(self.blocks)
        possible = (
            (
                self.wait_in_block and empty,
                f"the step returns at once ({measured.median_s * 1e9:.0f} ns, hardly more than calling a function):"
                " does it work lazily, or leave its work to a device that `sync` does not wait for?",
            ),
            (
                self.wait_in_block and not empty and min(self.blocks) < self.config.min_block_s,
                "blocks are shorter than a millisecond: the clock is part of the figure; measure more steps at once",
            ),
            (
                len(self.blocks) < self.config.min_blocks,
                f"only {len(self.blocks)} blocks instead of {self.config.min_blocks}, because one takes "
                f"{max(self.blocks):.3g} s: raise max_time_s, or measure a smaller step",
            ),
            (
                len(self.blocks) >= 3 and measured.spread > 0.1,
                f"the spread is {measured.spread:.0%}: something else uses the machine, or its clock changes; close"
                " other programs and measure again",
            ),
            (
                drift != 0,
                f"later blocks took {drift:+.0%} of the time of early ones: the machine warms up or slows down; compare"
                " only what is measured in turns",
            ),
        )
        return [warning for applies, warning in possible if applies]


def _drift(blocks: Sequence[float]) -> float:
    """Relative change from the first to the last third, if larger than the blocks' own spread and 5 %; else 0."""
    third = len(blocks) // 3
    if third < 3:
        return 0.0
    early, late = np.array(blocks[:third]), np.array(blocks[-third:])
    change = float(np.median(late) / np.median(early) - 1) if np.median(early) else 0.0
    apart = late.min() > early.max() or late.max() < early.min()
    return change if apart and abs(change) > 0.05 else 0.0
