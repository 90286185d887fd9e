"""Standard error while a library is loaded that prints before it can be told not to."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


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
