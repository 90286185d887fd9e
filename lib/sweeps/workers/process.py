"""A process of its own for a worker, and the pipe to it; `read` has files of anybody's read in one, with limits.

One reads at a time, so that together they take no more memory than one may. Plain Python, so that it also runs where
nothing but NumPy is installed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from lib import python_path
from lib.model.hardware.optional import psutil
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import Cancel, Queue, Request


class Process:
    """`main(connection, *arguments)` of a module, run in a fresh interpreter with an environment of its own.

    The interpreter is started, not forked: libraries with threads do not survive a fork, and read their settings when
    loaded.

    Args:
        module: Its dotted name.
        arguments: Strings, passed on the command line.
        environment: Variables added to this process's own.
        python: The interpreter that runs it; its packages need not be those of this one.
        niceness: Added to this process's own, as the `nice` command does; 0 for the same priority.
    """

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        python: str = sys.executable,
        niceness: int = 0,
    ) -> None:
        ours, theirs = Pipe()
        self.connection: Connection = ours
        code = (
            "import sys; from multiprocessing.connection import Connection; "
            f"from {module} import main; main(Connection(int(sys.argv[1])), *sys.argv[2:])"
        )
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-c", code, str(theirs.fileno()), *arguments],
                env=os.environ | dict(environment),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
            if niceness:  # before it starts threads, which inherit it
                os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def cpu_s(self) -> float | None:
        """Processor seconds that it has used; None where psutil is not installed, or the process has ended."""
        if psutil is None:
            return None
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return None
        return times.user + times.system

    def kill(self, wait: bool = False) -> None:
        """End the process at once; `wait`: until it is gone.

        Without waiting, a process that takes longer than 50 ms to end is collected at a later call.
        """
        _killed[:] = [process for process in _killed if process.poll() is None]
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(None if wait else 0.05)
        if self._process.returncode is None:
            _killed.append(self._process)


_killed: list[subprocess.Popen] = []


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
