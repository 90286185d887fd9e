"""A thread less for each core that other programs keep, for libraries whose threads spin while they wait.

OpenBLAS's threads, and those of OpenMP in PyTorch, keep their core while they wait for each other. Where another
takes one of the cores, all of them wait for the thread that lost it, and an epoch takes ten times as long or more; by a
thread less it takes as long as a core less is worth. `make bench BENCH=busy` measures both.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from lib.hardware.optional import psutil

LOOK_S = 0.1  # between two looks: the kernel counts a core's time in ticks of 10 ms
STALE_S = 0.3  # what happened before is no longer what happens now …
SAMPLE_S = 0.05  # … so it is looked at for so long
TOLERATED_CORES = 0.4  # a program that wants a whole core gets two thirds of one beside two threads on two cores


@dataclass(frozen=True)
class _Moment:
    """Seconds of the clock, of work on the cores that this process may use, and of its own work."""

    at_s: float
    busy_s: float
    own_s: float


def _now() -> _Moment:
    times = psutil.cpu_times(percpu=True)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    busy_s = sum(times[core].user + times[core].nice + times[core].system for core in ours if core < len(times))
    return _Moment(time.perf_counter(), busy_s, time.process_time())


class FreeCores:
    """How many threads one library uses; made once a process, because it remembers how many there were at first.

    Args:
        threads: The number that the library has now.
        use: Sets it.
    """

    def __init__(self, threads: int, use: Callable[[int], object]) -> None:
        self._most = self.threads = threads
        self._use = use
        self._before: _Moment | None = None

    def look(self) -> None:
        """Set the number of threads by what other programs have done since the last look, if that was a while ago.

        Called before the clock of a measurement starts.
        """
        if psutil is None or self._most == 1:
            return
        now = _now()
        if self._before is None or now.at_s - self._before.at_s > STALE_S:
            time.sleep(SAMPLE_S)
            self._before, now = now, _now()
        elif now.at_s - self._before.at_s < LOOK_S:
            return
        others = (now.busy_s - self._before.busy_s - (now.own_s - self._before.own_s)) / (now.at_s - self._before.at_s)
        self._before = now
        wanted = max(1, self._most - max(0, math.ceil(others - TOLERATED_CORES)))
        if wanted != self.threads:
            self._use(wanted)
            self.threads = wanted
