"""Has files read in a process of its own, whose memory and time are limited: they may come from anybody.

One reads at a time, so that together they take no more memory than one may.
"""

import time
from collections.abc import Generator, Mapping
from multiprocessing.connection import Connection

from lib import python_path
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.notes import Note, State
from lib.sweeps.workers.process import Process
from lib.sweeps.workers.queue import Queue, Request

READ_LIMIT_S = 150.0
POLL_S = 0.05
# It measures nothing, so it needs no card, and no threads of its own.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}


class Unreadable(ValueError):
    """Nothing can be read from what was given; the text says why, and what to do."""


_queue = Queue()


def read(
    module: str,
    *question: object,
    cancel: Cancel,
    request: Request | None = None,
    niceness: int = 0,
    doing: str = "reading it",
    advice: str = "bring less",
    limit_s: float = READ_LIMIT_S,
) -> Generator[Note, None, object | None]:
    """Ask a process of its own when its turn has come; all files that are brought to this server share one queue.

    Args:
        module: Its `main` answers, by `lib.model.hardware.process.answer`.
        question: What it is asked.
        cancel: Ends the waiting and the reading.
        request: For whom it is read; None: a viewer of its own.
        niceness: Of the process, above this one's.
        doing: What to say while it is read.
        advice: What to do where it takes too much memory or time.
        limit_s: For the reading, without the waiting.

    Yields:
        The place in the queue whenever that changes, and `doing` when the turn has come.

    Returns:
        The answer; None where it was cancelled.

    Raises:
        Unreadable: There is none.
    """
    ticket = _queue.join(request or Request())
    try:
        while place := _queue.take(ticket):
            yield Note(f"{place} before this: files are read one at a time", State.WAITING)
            _queue.wait(ticket, place, cancel)
            if cancel.is_set():
                return None
        yield Note(doing)
        process = Process(module, (), _environment(), niceness=niceness)
        try:
            return _answer(process.connection, question, cancel, advice, limit_s)
        finally:
            process.connection.close()
            process.kill(wait=True)  # the next one may have its memory
    finally:
        _queue.leave(ticket)


def _answer(
    connection: Connection, question: tuple[object, ...], cancel: Cancel, advice: str, limit_s: float
) -> object | None:
    limit = time.monotonic() + limit_s
    try:
        connection.send(question)
        while not connection.poll(POLL_S):
            if cancel.is_set():
                return None
            if time.monotonic() > limit:
                raise Unreadable(f"reading it took more than {limit_s:.0f} s; {advice}")
        answer = connection.recv()
    except (EOFError, OSError):
        raise Unreadable(
            f"its reader ended without an answer: it needs more memory or time than it may, or is damaged; {advice}"
        ) from None
    if isinstance(answer, str):
        raise Unreadable(answer)
    return answer


def _environment() -> Mapping[str, str]:
    return _ENVIRONMENT | {"PYTHONPATH": python_path()}
