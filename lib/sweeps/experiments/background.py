"""Background tasks: work in a thread, and waiting for its results. Knows nothing of pages."""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from lib.sweeps.experiments.failures import words
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import TrainingFailed, WorkerDied
from lib.sweeps.workers.notes import Note, State

T = TypeVar("T")


def in_background(
    work: Callable[[], None], end: Callable[[State, str], None], cancel: Cancel, name: str
) -> threading.Thread:
    """Do the work in a thread, and report how it ended.

    An unexpected error is raised again in the thread, so that the terminal shows it.

    Args:
        work: Without arguments; it ends early when `cancel` is set.
        end: Called in the thread, with `DONE`, `STOPPED` or `FAILED`, and a sentence where it failed or somebody else
            stopped it, else an empty text.
        cancel: Where it is set when the work returns, the work was stopped.
        name: Of the thread.

    Returns:
        The thread, which is running and does not hold up the end of the program.
    """

    def run() -> None:
        try:
            work()
            end(State.STOPPED if cancel.is_set() else State.DONE, cancel.why)
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


class Watchable(ABC):
    """What one thread changes and others watch: they wait for `now` to change, or for its end.

    `ended` shares the lock of `changed`: whoever waits for the end is not woken by every change before it.
    """

    changed: threading.Condition
    ended: threading.Condition

    @property
    @abstractmethod
    def now(self) -> "Watched":
        """What is watched at present."""

    def over_at(self, version: int) -> bool:
        """Whether it is over, and no change came after this version."""
        with self.changed:
            return self.now.over and self.now.version == version

    def wait_for_news(self, version: int, timeout_s: float | None = None) -> bool:
        """Wait until the version is no longer this one, at most `timeout_s` seconds (None: no limit); whether it is."""
        with self.changed:
            return self.changed.wait_for(lambda: self.now.version != version, timeout_s)

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, at most `timeout_s` seconds (None: without limit); whether it is."""
        with self.changed:
            return self.ended.wait_for(lambda: self.now.over, timeout_s)


class Watched(Watchable):
    """What is watched. `version` grows with each change, and `changed` is held while it changes."""

    def __init__(self, state: State) -> None:
        lock = threading.RLock()
        self.changed, self.ended = threading.Condition(lock), threading.Condition(lock)
        self.state, self.version = state, 0
        self._followers: weakref.WeakSet[Watched] = weakref.WeakSet()

    @property
    def now(self) -> "Watched":
        """This object."""
        return self

    @property
    def over(self) -> bool:
        """Whether no more changes come."""
        return self.state.over

    def followed_by(self, other: "Watched") -> None:
        """Have the other one change whenever this does: who shows several things watches one that follows all.

        It is held weakly, and must not be followed by this one.
        """
        with self.changed:
            self._followers.add(other)

    def left_by(self, other: "Watched") -> None:
        """Have the other one change no more with this."""
        with self.changed:
            self._followers.discard(other)

    def _tell(self) -> None:
        """Count a change, and wake all who wait. To be called with `changed` held."""
        self.version += 1
        self.changed.notify_all()
        if self.over:
            self.ended.notify_all()
        for follower in list(self._followers):
            with follower.changed:
                follower._tell()


class News(Watched):
    """What changes and never ends, such as all that is drawn together."""

    def __init__(self) -> None:
        super().__init__(State.MEASURING)

    def tell(self) -> None:
        """Wake all who watch."""
        with self.changed:
            self._tell()


@dataclass(frozen=True)
class View(Generic[T]):
    """A background task at one moment: its items so far, its state, and what there is to say.

    `problem` is a sentence where it failed, or a part of it did; `note` says what is happening meanwhile. Either may be
    empty.
    """

    items: list[T]
    state: State
    problem: str
    note: str
    version: int

    @property
    def over(self) -> bool:
        """Whether no more items come."""
        return self.state.over


class BackgroundTask(Watched, Generic[T]):
    """Collects what `make` yields, in a thread, until it ends or `cancel` is set.

    The thread holds neither page nor stage.

    Args:
        make: Yields items, and notes on what is happening meanwhile; it ends itself when `cancel` is set.
        cancel: Ends the task.
    """

    def __init__(self, make: Callable[[], Iterator[T | Note]], cancel: Cancel) -> None:
        super().__init__(State.MEASURING)
        self._items: list[T] = []
        self._problems: list[str] = []
        self._note = ""

        def work() -> None:
            for item in make():
                self._take(item)

        self.thread = in_background(work, self._end, cancel, "background task")

    def view(self) -> View[T]:
        """The task as it is now."""
        with self.changed:
            return View(list(self._items), self.state, " ".join(self._problems), self._note, self.version)

    def _take(self, item: T | Note) -> None:
        with self.changed:
            if isinstance(item, Note):
                self.state, self._note = item.state, item.text
            else:
                self._items.append(item)
                self.state, self._note = State.MEASURING, ""
                if (
                    isinstance(item, Record)
                    and item.kind == Kind.FAILURE
                    and (why := words(item)) not in self._problems
                ):
                    self._problems.append(why)
            self._tell()

    def _end(self, state: State, problem: str) -> None:
        with self.changed:
            self._problems += [problem] if problem else []
            self.state = State.FAILED if self._problems and state is State.DONE else state
            self._note = ""
            self._tell()
