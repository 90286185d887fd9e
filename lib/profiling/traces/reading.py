"""Reads a file as a trace, in a process of its own: what anybody may have dropped must not harm who shows it.

Its format is told by its content, never by its name.
"""

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from lib.hardware.little_memory import MAX_MEMORY_BYTES, answer
from lib.profiling.traces import chrome, nsight_csv, nsight_sqlite, xplane
from lib.profiling.traces.form import FORMAT, Refused, Trace, parsed

MAX_SAVED_BYTES = 16 << 20  # of a trace that the page itself saved
HEAD = 4096  # bytes by which a format is told

# What else people drop, by how it begins.
_FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"%PDF", "a PDF"),
    (b"<", "a page of HTML or XML"),
    (b"\x7fELF", "a program"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard"),
    (b"QDSS", "a report of Nsight Systems itself"),
)
_EXPECTED = (
    "expected an .xplane.pb of JAX or TensorFlow, a Chrome or PyTorch trace in JSON, or an export of Nsight Systems as"
    " SQLite or CSV"
)
_Reader = Callable[[Path, str], Trace]


def reader_of(head: bytes) -> _Reader:
    """What reads a file that begins with these bytes.

    Raises:
        Refused: No format begins like that; the text says what it looks like.
    """
    if not head.strip():
        raise Refused("it is empty; save the trace again")
    if head.startswith(b"SQLite format 3\0"):
        return nsight_sqlite.read
    if head.startswith(b"\x1f\x8b"):
        return chrome.read
    looks = next((words for begins, words in _FOREIGN if head.startswith(begins)), None)
    if looks is not None:
        raise Refused(f"it looks like {looks}; {_EXPECTED}")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"{", b"[")):
        return _saved if f'"format":"{FORMAT}"'.encode() in head[:100] else chrome.read
    if head[0] == 0x0A and b"/" in head[:64]:  # the first field of an XSpace, with a plane's name in it
        return xplane.read
    if b"\0" not in head:
        return nsight_csv.read
    raise Refused(f"it is a binary file of another kind; {_EXPECTED}")


def _saved(path: Path, title: str) -> Trace:
    if path.stat().st_size > MAX_SAVED_BYTES:
        raise Refused(f"a trace that this page saved has at most {MAX_SAVED_BYTES >> 20} MiB; save it again")
    return parsed(path.read_bytes())


def read(path: Path, title: str) -> Trace:
    """The trace in a file.

    Raises:
        Refused: It cannot be read; the text says what it looks like, and what to do.
    """
    try:
        if path.exists() and not path.is_file():
            raise Refused("it cannot be opened (it is no file)")
        with path.open("rb") as file:
            head = file.read(HEAD)
        return reader_of(head)(path, title)
    except OSError as error:
        raise Refused(f"it cannot be opened ({error.strerror or error})") from None
    except MemoryError:
        raise Refused(f"reading it takes more than {MAX_MEMORY_BYTES >> 30} GiB; record fewer steps") from None
    except RecursionError:
        raise Refused("it is nested too deeply for a trace") from None


def main(connection: Connection) -> None:
    """The reader's process: for each (path, title) that comes, send a `Trace`, or a sentence why there is none."""
    answer(connection, read)
