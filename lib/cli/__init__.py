"""What is started from the command line. Long work ends when its time is up, or at Ctrl-C, and says how far it is."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lib.sweeps.workers.queue import Cancel

UNUSABLE, INCOMPLETE = 1, 3  # exit statuses; 2 is argparse's own


class Unusable(ValueError):
    """An option, a file or a folder cannot be used; the text says what was expected, what was received, what to do."""


def check_minutes(minutes: float, most: float, usual: float) -> None:
    """Raise Unusable for a time limit of less than nothing or more than the most."""
    if not 0 < minutes <= most:
        raise Unusable(f"minutes: expected more than 0, up to {most:g}, got {minutes:g}; choose for example {usual:g}")


@contextmanager
def time_limit(minutes: float, cancel: Cancel) -> Iterator[threading.Event]:
    """While the block runs, set `cancel` when the minutes are over, or at SIGINT or SIGTERM.

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
    spent, left = (f"{int(seconds) // 60}:{int(seconds) % 60:02d}" for seconds in (spent_s, max(0, limit_s - spent_s)))
    print(f"[{spent}, at most {left} left] {text}", flush=True)
