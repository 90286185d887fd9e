"""How many CPU cores may be used here. A module of its own, because it imports nothing else of this project."""

import os
import threading

_here = threading.local()


def usable_cores() -> int:
    """Number of CPU cores that this thread may use, which can be fewer than its process has, or than the machine."""
    of_process = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(of_process, getattr(_here, "most", of_process))


def use_one_core() -> None:
    """Say that other threads use the other cores: `usable_cores` is 1 in this thread from now on."""
    _here.most = 1
