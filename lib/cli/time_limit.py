"""Long work in a terminal: it ends when its time is up, or at Ctrl-C, and says how far it is."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lib.sweeps.workers.queue import Cancel


@contextmanager
def time_limit(minutes: float, cancel: Cancel) -> Iterator[threading.Event]:
    """Set `cancel` after so many minutes, or at SIGINT or SIGTERM, for as long as the block runs.

    Args:
        minutes: From now.
        cancel: What ends the work.

    Yields:
        An event that is set where a signal ended it.
    """
    stopped = threading.Event()
    timer = threading.Timer(minutes * 60, cancel.set)
    timer.daemon = True

    def stop(*_: object) -> None:
        stopped.set()
        cancel.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    timer.start()
    try:
        yield stopped
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def say(spent_s: float, limit_s: float, text: str) -> None:
    """Print a line with the time spent and the time left, both given in seconds from the start."""
    left_s = max(0.0, limit_s - spent_s)
    print(f"[{_clock(spent_s)}, at most {_clock(left_s)} left] {text}", flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
