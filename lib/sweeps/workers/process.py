"""A process of its own for a worker, and the pipe to it.

Plain Python, so that it also runs where nothing but NumPy is installed.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from lib.model.hardware.optional import psutil


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
