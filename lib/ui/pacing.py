"""How often the pages of a process draw what still runs: all of them together have a share of one core for it.

A move of a slider is answered at once, and so is a run's end; only the frames in between wait. One page has a frame
whenever it wants one; a hundred, whose trainings want the same cores, have fewer each.
"""

import threading
import time
from collections.abc import Callable

SHARE = 0.15  # of a core


class Pacer:
    """Deals out moments to draw at."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._guard = share, threading.Lock()
        self._cost_s, self._next_at = 0.0, 0.0

    def turn_in_s(self, now: float) -> float:
        """Take the next turn; seconds from `now`, a time of `time.monotonic`, until it comes."""
        with self._guard:
            at = max(now, self._next_at)
            self._next_at = at + self._cost_s / self._share
            return at - now

    def draw(self, paint: Callable[[], int]) -> int:
        """Draw, and note the CPU time that it takes; returns what `paint` returns."""
        began = time.thread_time()
        painted = paint()
        with self._guard:
            self._cost_s += (time.thread_time() - began - self._cost_s) / 8  # their mean, of the latest
        return painted


shared = Pacer()  # of all that is drawn here
