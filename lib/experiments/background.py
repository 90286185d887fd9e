"""Measurements that come one by one in a thread, and whoever watches them come. Knows nothing of pages."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from lib.workers.cancel import Cancel
from lib.workers.engine import TrainingFailed, WorkerDied
from lib.workers.notes import MEASURING, Note

T = TypeVar("T")
DONE, STOPPED, FAILED = "Done", "Stopped", "Failed"
OVER = (DONE, STOPPED, FAILED)


@dataclass(frozen=True)
class View(Generic[T]):
    """A filling at one moment."""

    items: list[T]
    state: str
    problem: str
    note: str
    version: int

    @property
    def over(self) -> bool:
        return self.state in OVER


class Filling(Generic[T]):
    """Takes what `make` yields, in a thread, until it ends or `cancel` is set. The thread holds neither page nor stage."""

    def __init__(self, make: Callable[[], Iterator[T | Note]], cancel: Cancel) -> None:
        self.changed = threading.Condition()
        self._items: list[T] = []
        self._state, self._problem, self._note, self._version = MEASURING, "", "", 0
        self.thread = threading.Thread(target=self._fill, args=(make, cancel), daemon=True, name="filling")
        self.thread.start()

    def view(self) -> View[T]:
        with self.changed:
            return View(list(self._items), self._state, self._problem, self._note, self._version)

    def over_at(self, version: int) -> bool:
        """Whether it is over, and this version shows it."""
        with self.changed:
            return self._state in OVER and self._version == version

    def wait_for_news(self, version: int, timeout_s: float) -> bool:
        """Wait until there is a later version than this one, but not longer than the time-out; whether there is."""
        with self.changed:
            return self.changed.wait_for(lambda: self._version != version, timeout_s)

    def _fill(self, make: Callable[[], Iterator[T | Note]], cancel: Cancel) -> None:
        try:
            for item in make():
                self._tell(item=item)
            self._tell(STOPPED if cancel.is_set() else DONE)
        except (WorkerDied, TrainingFailed, MemoryError, OSError) as error:
            self._tell(FAILED, str(error))
        except Exception as error:
            self._tell(FAILED, f"It ended by a fault of this program ({type(error).__name__}: {error}).")
            raise

    def _tell(self, state: str = MEASURING, problem: str = "", item: T | Note | None = None) -> None:
        with self.changed:
            note = item if isinstance(item, Note) else Note("", state)
            if item is not None and not isinstance(item, Note):
                self._items.append(item)
            self._state, self._note, self._problem = note.state, note.text, problem
            self._version += 1
            self.changed.notify_all()
