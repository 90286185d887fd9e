"""A process of its own for a worker, and the pipe to it.

Plain Python: where nothing but NumPy is installed it runs too.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from lib.hardware.optional import psutil


class Process:
    """`main(connection, *arguments)` of a module, as strings, in a fresh interpreter with an environment of its own.

    The interpreter is started, not forked: libraries with threads do not survive a fork, and read their settings when
    loaded.
    """

    def __init__(self, module: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        self.connection: Connection = ours
        code = (
            "import sys; from multiprocessing.connection import Connection; "
            f"from {module} import main; main(Connection(int(sys.argv[1])), *sys.argv[2:])"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(theirs.fileno()), *arguments],
                env=os.environ | dict(environment),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cpu_s(self) -> float | None:
        """Processor time that it has used; None where nothing tells, or it has ended."""
        if psutil is None:
            return None
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return None
        return times.user + times.system

    def kill(self, wait: bool = False) -> None:
        """End it at once. Without waiting, what the system needs longer than 50 ms to clear away is collected later."""
        _killed[:] = [process for process in _killed if process.poll() is None]
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(None if wait else 0.05)
        if self._process.returncode is None:
            _killed.append(self._process)


_killed: list[subprocess.Popen] = []
