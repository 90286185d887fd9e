"""Per-process limits and redirection: cap memory and CPU time to read untrusted files; mute a library's output."""

import os
import resource
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import IO

MAX_MEMORY_BYTES = 2 << 30
MAX_CPU_S = 120


def answer(connection: Connection, read: Callable[..., object]) -> None:
    """Answer each question with the value read, or with a sentence that says why it could not be.

    Limits the process's memory and CPU time first, and returns when the other end is closed.

    Args:
        connection: Each question is the tuple of the arguments of `read`.
        read: Returns anything but a text. Raises ValueError, with a sentence, for what it rejects. Any other exception
            is sent as a sentence, and its traceback printed to the terminal.
    """
    for what, limit in ((resource.RLIMIT_DATA, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_S)):
        with suppress(ValueError, OSError):  # a lower limit is already set
            resource.setrlimit(what, (limit, limit))
    with suppress(EOFError, OSError):
        while True:
            question = connection.recv()
            try:
                connection.send(read(*question))
            except ValueError as why:
                connection.send(str(why))
            except Exception as error:
                traceback.print_exc()
                connection.send(f"it is damaged or of an unexpected kind ({type(error).__name__}); save it again")


@contextmanager
def stderr_redirected() -> Iterator[IO[bytes]]:
    """Redirect native code's standard error, because TensorFlow prints a greeting.

    Yields:
        The file that receives the output.
    """
    with tempfile.TemporaryFile() as written:
        kept = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(kept, 2)
            os.close(kept)
