import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.once import Once


def test_one_works_out_what_many_ask_for_at_the_same_moment():
    answers, made, together = Once[str, int](2), [], threading.Barrier(10)

    def ask(_: int) -> int:
        together.wait(10)
        return answers.get("a", lambda: time.sleep(0.05) or made.append(1) or 7)

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, range(10))) == [7] * 10
    assert made == [1]


def test_the_oldest_is_forgotten_and_an_error_is_not_kept():
    answers, made = Once[str, str](2), []
    for key in ("a", "b", "a", "c", "a"):
        answers.get(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "a"]
    with pytest.raises(OSError, match="gone"):
        answers.get("d", _fail)
    assert answers.get("d", lambda: "here") == "here"


def _fail() -> str:
    raise OSError("gone")
