"""Command-line programs. Long ones report their progress, and end when their time is up or at Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lib.sweeps.workers.queue import Cancel

UNUSABLE, INCOMPLETE = 1, 3  # exit statuses; 2 is argparse's own


class Unusable(ValueError):
    """An option, file or folder is unusable; the text says what was expected, what was received and what to do."""


def check_minutes(minutes: float, most: float, usual: float) -> None:
    if not 0 < minutes <= most:
        raise Unusable(f"minutes: expected more than 0, up to {most:g}, got {minutes:g}; choose for example {usual:g}")


@contextmanager
def time_limit(minutes: float, cancel: Cancel) -> Iterator[threading.Event]:
    """Within the block, set `cancel` when the minutes are over, or at SIGINT or SIGTERM.

    Yields:
        An event that is set by these signals.
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
    spent, left = (f"{int(seconds) // 60}:{int(seconds) % 60:02d}" for seconds in (spent_s, max(0, limit_s - spent_s)))
    print(f"[{spent}, at most {left} left] {text}", flush=True)
