import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.once import Once


def test_concurrent_callers_share_one_computation():
    answers, made, together = Once[str, int](2), [], threading.Barrier(10)

    def ask(_: int) -> int:
        together.wait(10)
        return answers.get("a", lambda: time.sleep(0.05) or made.append(1) or 7)

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, range(10))) == [7] * 10
    assert made == [1]


def test_the_oldest_answer_is_dropped_and_errors_are_not_cached():
    answers, made = Once[str, str](2), []
    for key in ("a", "b", "a", "c", "a"):
        answers.get(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "a"]
    with pytest.raises(OSError, match="gone"):
        answers.get("d", _fail)
    assert answers.get("d", lambda: "here") == "here"


def _fail() -> str:
    raise OSError("gone")
