"""Measure how long a step takes, how certain that is, and what disturbed it. Knows nothing of machine learning.

A measurement is a series of blocks. A block has enough steps to make the clock's own cost negligible, and the device
is synchronised at its start and end. Blocks repeat until their spread is small, or until a hard cap. The result records
every block's time and which limit ended it. The rules follow torch.utils.benchmark, nvbench and pyperf.

`Watch` reads the machine's counters before and after, to detect what other programs used meanwhile.
"""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import psutil

from lib.formatting import justified
from lib.model.hardware.nvidia import Gpu, gpus

Step = Callable[[], object]
Sync = Callable[[object], object]  # waits for a step's result, like `jax.block_until_ready`
Clock = Callable[[], float]


def no_wait(result: object) -> object:
    """The `sync` for steps whose work is done when they return."""
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
    clock_share: float = 1e-3  # largest share of a block spent on reading the clock
    max_steps_per_block: int = 1_000_000


class Ended(Enum):
    SPREAD = "the spread was small enough"
    CAP = "the time limit was reached"


@dataclass(frozen=True)
class Measurement:
    """Seconds per step, from blocks of equally many steps."""

    block_s: tuple[float, ...]  # seconds per block, in the order they ran
    steps_per_block: int
    ended: Ended
    warnings: tuple[str, ...] = ()

    @property
    def step_s(self) -> np.ndarray:
        """Seconds per step in each block, (blocks,)."""
        return np.array(self.block_s) / self.steps_per_block

    @property
    def median_s(self) -> float:
        return float(np.median(self.step_s))

    @property
    def quartiles_s(self) -> tuple[float, float]:
        low, high = np.percentile(self.step_s, [25, 75])
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        low, high = self.quartiles_s
        return (high - low) / self.median_s if self.median_s else math.inf

    @property
    def text(self) -> str:
        """The median, with only as many digits as its spread justifies."""
        return justified(self.median_s, *self.quartiles_s)


@dataclass
class Meter:
    """Measure a step in its steady state, all at once (`run`) or block by block, so that several steps can take turns.

    For a use of the latter, see `lib.timing.profiling.harness.repeated`.
    """

    step: Step
    sync: Sync = no_wait  # waits for the result of a block's last step; the clock stops after it
    config: Config = field(default_factory=Config)
    clock: Clock = time.perf_counter
    wait_in_block: bool = True
    blocks: list[float] = field(default_factory=list)
    steps_per_block: int = 1
    clock_s: float = 0.0  # the cost of reading the clock

    def run(self) -> Measurement:
        """Warm up, find the block size, and repeat blocks until their spread is small, or after `max_time_s`."""
        began = self.clock()
        self.warm_up()
        self.find_block_size()
        while True:
            self.block()
            enough = len(self.blocks) >= self.config.min_blocks and sum(self.blocks) >= self.config.min_time_s
            if enough and self.spread <= self.config.spread_target:
                return self.measurement(Ended.SPREAD)
            if self.clock() - began >= self.config.max_time_s or len(self.blocks) >= MAX_BLOCKS:
                return self.measurement(Ended.CAP)

    @property
    def spread(self) -> float:
        low, middle, high = np.percentile(self.blocks, [25, 50, 75])
        return float((high - low) / middle) if middle else math.inf

    def warm_up(self) -> None:
        """Measure the cost of reading the clock, then run steps for `warm_up_s`."""
        self.clock_s = float(np.median(np.diff([self.clock() for _ in range(32)])))
        began = self.clock()
        while True:
            self._steps(1)
            if self.clock() - began >= self.config.warm_up_s:
                return

    def find_block_size(self) -> None:
        """Enlarge the block until the clock's cost and resolution no longer matter."""
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
        result: object = None
        for _ in range(steps):
            result = self.step()
        after = self.clock()
        self.sync(result)
        return self.clock() if self.wait_in_block else after

    def measurement(self, ended: Ended) -> Measurement:
        """Return the measurement so far, with its warnings."""
        plain = Measurement(tuple(self.blocks), self.steps_per_block, ended)
        return replace(plain, warnings=tuple(self._warnings(plain)))

    def _warnings(self, measured: Measurement) -> list[str]:
        empty, drift = measured.median_s < EMPTY_STEP_S, _drift(self.blocks)
        possible = (
            (
                self.wait_in_block and empty,
                f"the step returns at once ({measured.median_s * 1e9:.0f} ns, hardly more than a function call):"
                " does it work lazily, or leave its work to a device that `sync` does not wait for?",
            ),
            (
                self.wait_in_block and not empty and min(self.blocks) < self.config.min_block_s,
                "blocks are shorter than a millisecond, so the figure includes the clock; measure more steps at once",
            ),
            (
                len(self.blocks) < self.config.min_blocks,
                f"only {len(self.blocks)} blocks instead of {self.config.min_blocks}, because one takes "
                f"{max(self.blocks):.3g} s: raise max_time_s, or measure a smaller step",
            ),
            (
                len(self.blocks) >= 3 and measured.spread > 0.1,
                f"the spread is {measured.spread:.0%}: something else is using the machine, or its clock rate is"
                " changing; close other programs and measure again",
            ),
            (
                drift != 0,
                f"the time per block changed by {drift:+.0%} from early to late: the machine is warming up or slowing"
                " down; compare only measurements taken in turns",
            ),
        )
        return [warning for applies, warning in possible if applies]


def _drift(blocks: Sequence[float]) -> float:
    """Return the relative change from first to last third, or 0 if they overlap or differ by at most 5 %."""
    third = len(blocks) // 3
    if third < 3:
        return 0.0
    early, late = np.array(blocks[:third]), np.array(blocks[-third:])
    change = float(np.median(late) / np.median(early) - 1) if np.median(early) else 0.0
    apart = late.min() > early.max() or late.max() < early.min()
    return change if apart and abs(change) > 0.05 else 0.0


# Share of the processor time that programs wanted. Stolen time lengthens a figure by about its share. Below this it
# changes no answer: repetitions differ by a tenth anyway (`diagnosis.SPREAD`), and rented machines always lose some.
STEAL_SHARE = 0.1
# Share of the watched time. A card slowed for a tenth of it loses less than a tenth, and a boosting card always touches
# its power limit briefly.
SLOWED_SHARE = 0.1
OTHERS_CORES = 0.25
SWAP_BYTES = 2**20
LOOK_S = 0.5  # processor time is counted in ticks of 10 ms, and reading the counters takes several
_KINDS = ("other virtual machines took", "other programs kept", "MiB were swapped", "was slowed by")


@dataclass(frozen=True)
class Disturbance:
    """Everything that disturbed the machine between two moments, such as other programs or throttling."""

    seconds: float
    steal_share: float  # share of the wanted processor time that other virtual machines on the host took
    others_cores: float  # cores that other programs kept busy, on average
    swapped_bytes: int
    slowed_s: Mapping[str, float] = field(default_factory=dict)  # seconds a graphics card was slowed, by cause
    throttled_by: tuple[str, ...] = ()  # causes slowing a card at the end, for cards that do not count seconds

    @property
    def flags(self) -> list[str]:
        """One sentence for each disturbance that makes a figure untrustworthy."""
        slowed = {cause: s for cause, s in self.slowed_s.items() if s > SLOWED_SHARE * self.seconds}
        remedy = "let it cool, or state its clock rate with the figure"
        possible = (
            (
                self.steal_share > STEAL_SHARE,
                f"other virtual machines took {self.steal_share:.0%} of the CPU: measure again, or use a machine"
                " of your own",
            ),
            (
                self.others_cores > OTHERS_CORES,
                f"other programs kept {self.others_cores:.1f} cores busy: close them, and measure again",
            ),
            (
                self.swapped_bytes > SWAP_BYTES,
                f"{self.swapped_bytes / 2**20:.0f} MiB were swapped: free memory, or measure something smaller",
            ),
            (
                bool(slowed),
                "the GPU was slowed by "
                + " and ".join(f"{cause} for {s:.2g} of {self.seconds:.2g} s" for cause, s in slowed.items())
                + f": {remedy}",
            ),
            (
                bool(self.throttled_by),
                f"the GPU was slowed by {' and '.join(self.throttled_by)} at the end of the measurement (it does not"
                f" report for how long): {remedy}",
            ),
        )
        return [flag for applies, flag in possible if applies]


def disturbances(warnings: Sequence[str]) -> list[str]:
    """Return the warnings written by `Disturbance.flags`, the last of each kind."""
    return list({kind: warning for warning in warnings for kind in _KINDS if kind in warning}.values())


class Watch:
    """Detect disturbances from now on. Everything timed is watched: see `marked`.

    This process, its parent (the server of a notebook's kernel) and all their children, such as workers, count as
    measured. `gpu` also compares the graphics cards' counters of slowed seconds before and after, because a card is no
    longer slowed once it is idle.
    """

    def __init__(self, gpu: bool = False) -> None:
        self._gpu = gpu
        self._before = self._look()

    def marked(self, measured: Measurement) -> Measurement:
        """Return the measurement with all disturbances so far added to its warnings."""
        return replace(measured, warnings=tuple(dict.fromkeys((*measured.warnings, *self.so_far().flags))))

    def so_far(self) -> Disturbance:
        (before, cards_before), (after, cards) = self._before, self._look()
        seconds, busy_s, steal_s, own_s, swapped_bytes = (after - before).tolist()
        wanted_s = busy_s + steal_s
        others_s = max(0.0, busy_s - max(0.0, own_s))
        return Disturbance(
            seconds,
            steal_s / wanted_s if wanted_s > 0 else 0.0,
            others_s / seconds if seconds > 0 else 0.0,
            int(swapped_bytes),
            _slowed_s(cards_before, cards),
            tuple(dict.fromkeys(cause for gpu in cards if gpu.slowed_s is None for cause in gpu.throttled_by)),
        )

    def _look(self) -> tuple[np.ndarray, tuple[Gpu, ...]]:
        """Return (clock s, busy s, stolen s, own s, swapped bytes), and the watched cards.

        Busy time is all programs' processor time, without stolen time and waiting.
        """
        cards = tuple(gpus()) if self._gpu else ()
        family = _family()  # before reading any clock, because finding children takes time
        times = psutil.cpu_times()
        own_s = _spent_s(family)
        steal_s = getattr(times, "steal", 0.0)
        # Guest time is already part of user time, and waiting for a disk keeps no core busy.
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        swap = psutil.swap_memory()
        busy_s = total_s - idle_s - steal_s
        return np.array([time.perf_counter(), busy_s, steal_s, own_s, swap.sin + swap.sout]), cards


class Turns:
    """Collect disturbances of work that takes turns with other work; `gpu` as in `Watch`.

    `flags` reads the counters at most every `LOOK_S`, so turns shorter than that are never checked.
    """

    def __init__(self, gpu: bool = False) -> None:
        self._gpu = gpu
        self._earlier: list[str] = []  # of earlier turns
        self._now: list[str] = []
        self._watch: Watch | None = None  # None between turns
        self._looked_at = 0.0  # in seconds of the monotonic clock

    def begin(self) -> None:
        """Begin a turn, ending any current turn."""
        self.end()
        self._watch, self._looked_at = Watch(self._gpu), time.monotonic()

    def end(self) -> None:
        self._earlier, self._now, self._watch = list(self.flags()), [], None

    def flags(self) -> tuple[str, ...]:
        """Return a sentence for each disturbance of any turn so far, the last of each kind."""
        if self._watch is not None and time.monotonic() - self._looked_at >= LOOK_S:
            self._now, self._looked_at = self._watch.so_far().flags, time.monotonic()
        return tuple(disturbances([*self._earlier, *self._now]))


def _family() -> "list[psutil.Process]":
    server = multiprocessing.parent_process()
    pids = (os.getpid(), *([server.pid] if server is not None and server.pid else []))
    family = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            family += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return list(dict.fromkeys(family))  # of the server we are a child ourselves


def _slowed_s(before: Sequence[Gpu], after: Sequence[Gpu]) -> dict[str, float]:
    """Return the seconds for which a card was slowed, by cause; of several cards, the maximum."""
    began = {gpu.card.uuid: gpu.slowed_s or {} for gpu in before}
    found: dict[str, float] = {}
    for gpu in after:
        for cause, until_s in (gpu.slowed_s or {}).items():
            slowed_s = until_s - began.get(gpu.card.uuid, {}).get(cause, until_s)
            found[cause] = max(found.get(cause, 0.0), slowed_s)  # below 0 if the driver was reloaded
    return found


def _spent_s(family: list[psutil.Process]) -> float:
    spent_s = 0.0
    for process in family:
        with suppress(psutil.NoSuchProcess):
            spent_s += sum(process.cpu_times()[:4])  # includes children that have ended; live ones are in the family
    return spent_s
