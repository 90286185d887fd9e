"""The same work on each core of this process: how evenly a rented machine's cores run, and what its host takes away.

Runs in NumPy's worker. A core that is slower than its neighbours, or whose blocks are far apart, explains a wide spread
of every other time of that machine.
"""

import os
import time
from collections.abc import Iterator

from lib.model.hardware.optional import psutil
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import Row

BLOCKS = 20
STEPS = 100_000  # of a loop: some milliseconds, as long as a scheduler's turn


def measure_cores() -> Iterator[Row | None]:
    """Time the same loop on one core after another.

    Yields:
        None after each core; then a row for each, `core 0` and on, in seconds of the loop; and, where the system tells,
        `steal`: a share, not seconds, of the processor time that other virtual machines took meanwhile.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("expected a system that binds a process to a core, got none; on Linux there is one")
    allowed, before = os.sched_getaffinity(0), _stolen()
    found: dict[int, list[float]] = {}
    try:
        for core in sorted(allowed):
            os.sched_setaffinity(0, {core})
            found[core] = [_loop_s() for _ in range(BLOCKS + 1)][1:]  # the first moves there
            yield None
    finally:
        os.sched_setaffinity(0, allowed)
    for core, blocks in found.items():
        yield f"core {core}", Measurement(tuple(blocks), 1, Ended.CAP), 1.0
    if before is not None and (after := _stolen()) is not None and after[1] > before[1]:
        share = (after[0] - before[0]) / (after[1] - before[1])
        yield "steal", Measurement((share,), 1, Ended.CAP), 1.0


def _loop_s() -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        pass
    return time.perf_counter() - began


def _stolen() -> tuple[float, float] | None:
    """Processor seconds of all cores that other virtual machines took, and all that there were; None for unknown."""
    times = psutil.cpu_times() if psutil is not None else None
    return (times.steal, sum(times)) if times is not None and hasattr(times, "steal") else None
