"""Results that all viewers of a server would otherwise compute at the same moment."""

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

    An error is not cached: whoever asks next tries again.
    """

    def __init__(self, size: int) -> None:
        self._size, self._guard = size, threading.Lock()
        self._answers: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, work_out: Callable[[], V]) -> V:
        """The answer for a key, from the cache or from `work_out()`."""
        with self._guard:
            if key not in self._answers:
                self._answers[key] = work_out()
                if len(self._answers) > self._size:
                    self._answers.popitem(last=False)
            return self._answers[key]


def once(function: Callable[P, V]) -> Callable[P, V]:
    """Like `functools.cache` for positional arguments, but a call made while an answer is computed waits for it."""
    answers = Once[tuple, V](256)

    @wraps(function)
    def shared(*arguments: Any) -> V:
        return answers.get(arguments, lambda: function(*arguments))  # pyright: ignore[reportCallIssue]

    return cast(Callable[P, V], shared)
