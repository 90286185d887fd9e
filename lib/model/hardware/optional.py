"""Fallbacks for libraries that a bare machine lacks, because `lib.cli.record` also runs with NumPy alone.

- filelock: locks between this machine's programs. Without it, we assume that no other program of ours runs.
- psutil: memory, and other programs' activity during a measurement. Without it, nothing is reported about them.
- msgspec: validation of rows that are read. Without it, rows are trusted to be valid.
- platformdirs (see `lib.cache_folder`): location of the cache folder. Without it, `~/.cache`.
"""

import os

try:
    from filelock import FileLock, Timeout  # pyright: ignore[reportAssignmentType]
except ModuleNotFoundError:

    class Timeout(TimeoutError):
        """Never raised: without filelock, a lock is always free."""

    class FileLock:
        """A lock that is always free."""

        def __init__(self, *_: object, **__: object) -> None:
            self.is_locked = False

        def acquire(self, timeout: float = -1) -> None:
            self.is_locked = True

        def release(self) -> None:
            self.is_locked = False

        def __enter__(self) -> "FileLock":
            self.acquire()
            return self

        def __exit__(self, *_: object) -> None:
            self.release()


try:
    from msgspec import Meta, ValidationError, convert, defstruct  # pyright: ignore[reportAssignmentType]
except ModuleNotFoundError:
    ValidationError = ValueError

    def Meta(**_: object) -> None:
        """Set no limits."""

    def convert(value: object, _type: object) -> object:
        return value

    def defstruct(_name: str, _fields: object, **_: object) -> type:
        return dict


try:
    import psutil
except ModuleNotFoundError:
    psutil = None  # type: ignore[assignment]


def total_memory_bytes() -> int:
    return psutil.virtual_memory().total if psutil else _pages_bytes("SC_PHYS_PAGES")


def free_memory_bytes() -> int:
    """Memory that this program can still allocate, in bytes."""
    return psutil.virtual_memory().available if psutil else _pages_bytes("SC_AVPHYS_PAGES")


def _pages_bytes(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


__all__ = [
    "FileLock",
    "Meta",
    "Timeout",
    "ValidationError",
    "convert",
    "defstruct",
    "free_memory_bytes",
    "psutil",
    "total_memory_bytes",
]
