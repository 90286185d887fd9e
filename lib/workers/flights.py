"""Trainings under way in this process: each is made once, and its events go to all who want it, from the first one on.

A sweep boards what nobody trains yet, and follows the rest. What it boarded is abandoned if it ends early: a follower
then boards it.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from lib.workers.cancel import Cancel

T = TypeVar("T")


class Flight(Generic[T]):
    """One training under way: its events so far, and whether it is over."""

    def __init__(self) -> None:
        self.events: list[T] = []
        self.over = False


class Flights(Generic[T]):
    """The trainings under way in this process, by key. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._flights: dict[Hashable, Flight[T]] = {}

    def board(self, keys: Sequence[Hashable], anew: bool = False) -> tuple[list[Flight[T]], list[bool]]:
        """The flight of each key, and whether the caller has to make it, because nobody does yet.

        Args:
            keys: What each training depends on.
            anew: Whether the caller makes all of them, even what others make already.

        Returns:
            Two lists, in the order of the keys; a flight of the caller's own must be ended by `end`.
        """
        with self._changed:
            own = [anew or key not in self._flights for key in keys]
            for key, mine in zip(keys, own, strict=True):
                if mine:
                    self._flights[key] = Flight()
            return [self._flights[key] for key in keys], own

    def tell(self, flights: Sequence[Flight[T]], news: T) -> None:
        """Add an event to these flights, for all who follow them now or later."""
        with self._changed:
            for flight in flights:
                flight.events.append(news)
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
