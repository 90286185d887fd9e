"""What a bare machine lacks. `lib.cli.record` runs where there is only NumPy, so these few libraries have a plain
stand-in each.

filelock: the turn between programs of a machine; without it there is no other program of ours to wait for. psutil:
  memory, and what other programs did meanwhile, of which nothing is said then. msgspec: whether a row that is read is
  sound; without it a row is taken to be as this program wrote it. platformdirs: the cache folder, which is
  then `~/.cache`.
"""

import os

try:
    from filelock import FileLock, Timeout  # pyright: ignore[reportAssignmentType]
except ModuleNotFoundError:

    class Timeout(TimeoutError):
        """Never raised: nobody else holds a lock that is none."""

    class FileLock:
        """Always free."""

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
        """No limits."""

    def convert(value: object, _type: object) -> object:
        """Any value is of any type."""
        return value

    def defstruct(_name: str, _fields: object, **_: object) -> type:
        """Some object."""
        return dict


try:
    import psutil
except ModuleNotFoundError:
    psutil = None  # type: ignore[assignment]


def total_memory_bytes() -> int:
    """Of this machine."""
    return psutil.virtual_memory().total if psutil else _pages_bytes("SC_PHYS_PAGES")


def free_memory_bytes() -> int:
    """What this program could still take."""
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
