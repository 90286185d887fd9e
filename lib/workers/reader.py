"""Has files read in a process of its own, whose memory and time are limited: they may come from anybody."""

import time
from collections.abc import Mapping

from lib import python_path
from lib.workers.cancel import Cancel
from lib.workers.process import Process

READ_LIMIT_S = 150.0
POLL_S = 0.05
# It measures nothing, so it needs no card, and no threads of its own.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}


class Unreadable(ValueError):
    """Nothing can be read from what was given; the text says why, and what to do."""


class Reader:
    """A process that answers one question after another; it must be closed in the end.

    Args:
        module: Its `main` answers, by `lib.hardware.little_memory.answer`.
        arguments: Of `main`, beside the connection.
        advice: What to do where it takes too much memory or time.
    """

    def __init__(self, module: str, arguments: tuple[str, ...] = (), advice: str = "bring less") -> None:
        self._process, self._advice = Process(module, arguments, _environment()), advice

    def ask(self, cancel: Cancel, *question: object, limit_s: float = READ_LIMIT_S) -> object | None:
        """The answer, within `limit_s`; None where it was cancelled.

        Raises:
            Unreadable: There is none.
        """
        connection, limit = self._process.connection, time.monotonic() + limit_s
        try:
            connection.send(question)
            while not connection.poll(POLL_S):
                if cancel.is_set():
                    return None
                if time.monotonic() > limit:
                    raise Unreadable(f"reading it took more than {limit_s:.0f} s; {self._advice}")
            answer = connection.recv()
        except (EOFError, OSError):
            raise Unreadable(
                "its reader ended without an answer: it needs more memory or time than it may, or is damaged;"
                f" {self._advice}"
            ) from None
        if isinstance(answer, str):
            raise Unreadable(answer)
        return answer

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self, wait: bool = False) -> None:
        """End the process, with whatever it is doing."""
        self._process.connection.close()
        self._process.kill(wait)


def _environment() -> Mapping[str, str]:
    return _ENVIRONMENT | {"PYTHONPATH": python_path()}
