"""How many CPU cores this process may use. A module of its own, because it imports nothing else."""

import os


def usable_cores() -> int:
    """Number of CPU cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
