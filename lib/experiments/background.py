"""Background tasks: work in a thread, and whoever watches what comes of it. Knows nothing of pages."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from lib.workers.cancel import Cancel
from lib.workers.messages import TrainingFailed, WorkerDied
from lib.workers.notes import Note, State

T = TypeVar("T")


def in_background(
    work: Callable[[], None], end: Callable[[State, str], None], cancel: Cancel, name: str
) -> threading.Thread:
    """Do the work in a thread, and tell `end` how it ended: its state, and a sentence where it failed."""

    def run() -> None:
        try:
            work()
            end(State.STOPPED if cancel.is_set() else State.DONE, "")
        except (WorkerDied, TrainingFailed, MemoryError, OSError) as error:
            end(State.FAILED, str(error))
        except Exception as error:
            fault = (
                f"The run ended by a fault of this program ({type(error).__name__}: {error}); the terminal has the"
                " details."
            )
            end(State.FAILED, fault)
            raise

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


class Watchable:
    """Waiting for `now` to change: what one thread changes and others watch."""

    changed: threading.Condition

    @property
    def now(self) -> "Watched":
        """What is watched; each kind says what that is."""
        raise NotImplementedError

    def over_at(self, version: int) -> bool:
        """Whether it is over, and this version shows it."""
        with self.changed:
            return self.now.over and self.now.version == version

    def wait_for_news(self, version: int, timeout_s: float) -> bool:
        """Wait until there is a later version than this one, but not longer than the time-out; whether there is."""
        with self.changed:
            return self.changed.wait_for(lambda: self.now.version != version, timeout_s)

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, but not longer than the time-out; whether it is over."""
        with self.changed:
            return self.changed.wait_for(lambda: self.now.over, timeout_s)


class Watched(Watchable):
    """What is watched. `version` grows with each change."""

    def __init__(self, state: State) -> None:
        self.changed = threading.Condition()
        self.state, self.version = state, 0

    @property
    def now(self) -> "Watched":
        return self

    @property
    def over(self) -> bool:
        return self.state.over

    def _tell(self) -> None:
        """There is news. To be called with `changed` held."""
        self.version += 1
        self.changed.notify_all()


@dataclass(frozen=True)
class View(Generic[T]):
    """A background task at one moment."""

    items: list[T]
    state: State
    problem: str
    note: str
    version: int

    @property
    def over(self) -> bool:
        return self.state.over


class BackgroundTask(Watched, Generic[T]):
    """Takes what `make` yields, in a thread, until it ends or `cancel` is set.

    The thread holds neither page nor stage.
    """

    def __init__(self, make: Callable[[], Iterator[T | Note]], cancel: Cancel) -> None:
        super().__init__(State.MEASURING)
        self._items: list[T] = []
        self._problem, self._note = "", ""

        def work() -> None:
            for item in make():
                self._take(item)

        self.thread = in_background(work, self._end, cancel, "background task")

    def view(self) -> View[T]:
        with self.changed:
            return View(list(self._items), self.state, self._problem, self._note, self.version)

    def _take(self, item: T | Note) -> None:
        with self.changed:
            if isinstance(item, Note):
                self.state, self._note = item.state, item.text
            else:
                self._items.append(item)
                self.state, self._note = State.MEASURING, ""
            self._tell()

    def _end(self, state: State, problem: str) -> None:
        with self.changed:
            self.state, self._problem, self._note = state, problem, ""
            self._tell()
