"""Caches for results that all viewers of a server would otherwise compute at the same time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """A cache of the last `size` answers: the first thread to ask computes an answer, while all others wait.

    Errors are not cached: the next call tries again.
    """

    def __init__(self, size: int) -> None:
        self._size, self._guard = size, threading.Lock()
        self._answers: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, work_out: Callable[[], V]) -> V:
        with self._guard:
            if key not in self._answers:
                self._answers[key] = work_out()
                if len(self._answers) > self._size:
                    self._answers.popitem(last=False)
            return self._answers[key]


def once(function: Callable[P, V]) -> Callable[P, V]:
    """Like `functools.cache` for positional arguments, but concurrent calls wait instead of computing twice."""
    answers = Once[tuple, V](256)

    @wraps(function)
    def shared(*arguments: Any) -> V:
        return answers.get(arguments, lambda: function(*arguments))  # pyright: ignore[reportCallIssue]

    return cast(Callable[P, V], shared)
