"""Trainings under way in this process: each is made once, and its events go to all who want it, from the first one on.

A sweep boards what nobody trains yet, and follows the rest. What it boarded is abandoned if it ends early: a follower
then boards it. It does not wait for a less urgent sweep of the same viewer that waits for its own turn, but makes the
training itself; the other finds it in the store.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from lib.workers.cancel import Cancel
from lib.workers.queue import AnyRequest, more_urgent

T = TypeVar("T")


class Flight(Generic[T]):
    """One training under way: for whom, its events so far, whether it has its turn and whether it is over."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.events: list[T] = []
        self.at_work = self.over = False

    def is_late_for(self, request: AnyRequest) -> bool:
        """Whether who makes it waits for a turn that comes after the request's own."""
        return not self.at_work and not self.over and more_urgent(request, self.request)


class Flights(Generic[T]):
    """The trainings under way in this process, by key. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._flights: dict[Hashable, Flight[T]] = {}

    def board(
        self, keys: Sequence[Hashable], request: AnyRequest, anew: bool = False
    ) -> tuple[list[Flight[T]], list[bool]]:
        """The flight of each key, and whether the caller has to make it, because nobody does yet.

        Args:
            keys: What each training depends on.
            request: For whom, and how urgently, they are wanted.
            anew: Whether the caller makes all of them, even what others make already.

        Returns:
            Two lists, in the order of the keys; a flight of the caller's own must be ended by `end`.
        """
        with self._changed:
            there = [self._flights.get(key) for key in keys]
            own = [anew or one is None or one.is_late_for(request) for one in there]
            for key, mine in zip(keys, own, strict=True):
                if mine:
                    self._flights[key] = Flight(request)
            return [self._flights[key] for key in keys], own

    def tell(self, flights: Sequence[Flight[T]], news: T, at_work: bool | None = None) -> None:
        """Add an event to these flights, for all who follow them now or later.

        Args:
            flights: The trainings that it is about.
            news: The event.
            at_work: Whether it shows that they have their turn, or wait for it; None: neither.
        """
        with self._changed:
            for flight in flights:
                flight.events.append(news)
                flight.at_work = flight.at_work if at_work is None else at_work
            self._changed.notify_all()

    def end(self, flights: Sequence[Flight[T]]) -> None:
        """Mark these flights as over: they are done, or abandoned, and no more events come."""
        with self._changed:
            for flight in flights:
                flight.over = True
            self._flights = {key: flight for key, flight in self._flights.items() if not flight.over}
            self._changed.notify_all()

    def wait_for(self, news: Callable[[], bool], cancel: Cancel) -> None:
        """Sleep until `news()` is true, or `cancel` is set.

        `news` is called after each event and each end of a flight, with the lock held.
        """
        with cancel.calling(self._wake), self._changed:
            self._changed.wait_for(lambda: cancel.is_set() or news())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
