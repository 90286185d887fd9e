"""Trainings under way in this process: each is made once, and told from its first event on to all who want it.

A sweep boards what nobody trains yet, and follows the rest. What it boarded is abandoned if it ends early: a follower
then boards it.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from lib.workers.cancel import Cancel

T = TypeVar("T")


class Flight(Generic[T]):
    """One training under way: what it has told so far."""

    def __init__(self) -> None:
        self.events: list[T] = []
        self.over = False


class Flights(Generic[T]):
    """Those of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._flights: dict[Hashable, Flight[T]] = {}

    def board(self, keys: Sequence[Hashable], anew: bool = False) -> tuple[list[Flight[T]], list[bool]]:
        """A flight for each key, and whether it is the caller's own to make, because nobody does yet.

        `anew`: all are.
        """
        with self._changed:
            own = [anew or key not in self._flights for key in keys]
            for key, mine in zip(keys, own, strict=True):
                if mine:
                    self._flights[key] = Flight()
            return [self._flights[key] for key in keys], own

    def tell(self, flights: Sequence[Flight[T]], news: T) -> None:
        """To all who follow these, and who will."""
        with self._changed:
            for flight in flights:
                flight.events.append(news)
            self._changed.notify_all()

    def end(self, flights: Sequence[Flight[T]]) -> None:
        """Nothing more will be told of these: they are done, or abandoned."""
        with self._changed:
            for flight in flights:
                flight.over = True
            self._flights = {key: flight for key, flight in self._flights.items() if not flight.over}
            self._changed.notify_all()

    def wait_for(self, news: Callable[[], bool], cancel: Cancel) -> None:
        """Sleep until there is news, or `cancel` is set."""
        with cancel.calling(self._wake), self._changed:
            self._changed.wait_for(lambda: cancel.is_set() or news())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
