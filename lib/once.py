"""What all viewers of a server would work out alike, and at the same moment."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """The last `size` answers: each is worked out by the first who asks, while others wait.

    What raises is asked anew.
    """

    def __init__(self, size: int) -> None:
        self._size, self._guard = size, threading.Lock()
        self._answers: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, work_out: Callable[[], V]) -> V:
        with self._guard:
            if key not in self._answers:
                self._answers[key] = work_out()
                while len(self._answers) > self._size:
                    self._answers.popitem(last=False)
            return self._answers[key]


def once(function: Callable[P, V]) -> Callable[P, V]:
    """Like `functools.cache`, for arguments by position; but who asks while an answer is worked out waits for it."""
    answers = Once[tuple, V](256)

    @wraps(function)
    def shared(*arguments: Any) -> V:
        return answers.get(arguments, lambda: function(*arguments))  # pyright: ignore[reportCallIssue]

    return cast(Callable[P, V], shared)
