"""What a process does to itself: it limits its memory and time to read strangers' files, or mutes a library."""

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
    """For each question that comes, send what was read, or a sentence why nothing was.

    The process gives itself little memory and time first, and returns when the other end is closed.

    Args:
        connection: To the other end; each question is the tuple of the arguments of `read`.
        read: Raises ValueError, with a sentence, for what it refuses. It answers anything but a text. What else it
            raises is told as a sentence, and shown in the terminal.
    """
    for what, limit in ((resource.RLIMIT_DATA, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_S)):
        with suppress(ValueError, OSError):  # a lower limit is set already
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
                connection.send(
                    f"it is damaged, or of a kind that nobody expected ({type(error).__name__}); save it again"
                )


@contextmanager
def kept_away() -> Iterator[IO[bytes]]:
    """Keep what native code prints to standard error meanwhile: TensorFlow prints a greeting.

    Yields:
        The file that it goes to instead.
    """
    with tempfile.TemporaryFile() as written:
        kept = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(kept, 2)
            os.close(kept)
