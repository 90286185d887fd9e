"""The event that ends a run, and wakes whoever waits for something else meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancel(threading.Event):
    """An event that calls functions when it is set, so that nobody has to poll it.

    `why` is a sentence for the person where somebody else set it, else empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], object]] = []
        self.why = ""
        self._guard = threading.RLock()  # a signal's handler may set it, in whatever its thread is at

    def set(self, why: str = "") -> None:
        """Set the event, and call what was registered by `calling`. From any thread, any number of times."""
        with self._guard:
            self.why = self.why if self.is_set() else why
            super().set()
            calls = list(self._calls)
        for call in calls:
            call()

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Within the block, call this function when the event is set; at once where it is set already.

        Args:
            call: Without arguments; it runs in whichever thread sets the event.
        """
        with self._guard:
            self._calls.append(call)
            already = self.is_set()
        if already:
            call()
        try:
            yield
        finally:
            with self._guard:
                self._calls.remove(call)
