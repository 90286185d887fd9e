"""Digest of the code that figures depend on. Results are stored under it, and workers with older code are replaced."""

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lib import ROOT

# Everything that trains and measures; pages, sweeps and the storage of results change no figure.
MEASURES = ("lib/*.py", "lib/model/**/*", "lib/timing/**/*", "lib/sweeps/workers/*.py")
CODE = (".py", ".wgsl", ".c")

LOOK_EVERY_S = 0.1
LOOK_SHARE = 0.1  # of the time, at most: alongside hundreds of threads, a check of 3 ms takes seconds
_known: tuple[dict[Path, tuple[int, int]], str] = ({}, "")  # each file's time and size; the digest of all
_look_at = 0.0  # when to check again, as `time.monotonic`
_looking = threading.Lock()


def source_digest() -> str:
    """SHA-256, cut to 16 hex digits, of the files matching `MEASURES`.

    Files are read again only after a change, because every key of the store needs the digest. At most every
    `LOOK_EVERY_S`, one thread checks for changes: each `stat` lets another thread run, and a class server has hundreds.
    """
    global _known, _look_at
    states, digest = _known
    if states and (time.monotonic() < _look_at or not _looking.acquire(blocking=False)):
        return digest  # another thread is checking
    if not states:
        _looking.acquire()  # nothing is known yet: wait for the thread that is reading
    try:
        began = time.monotonic()
        found = _states()
        if found != _known[0]:
            _known = found, digest_of(found)
        now = time.monotonic()
        _look_at = now + max(LOOK_EVERY_S, (now - began) / LOOK_SHARE)
        return _known[1]
    finally:
        _looking.release()


def benchmark_digest(name: str) -> str:
    """Like `source_digest`, but of `MEASURES` and the benchmark's own module."""
    return digest_of([*_states(), ROOT / "benchmarks" / f"{name}.py"])


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256, cut to 16 hex digits, of the names and contents of files in this project."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        total.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()[:16]


def _states() -> dict[Path, tuple[int, int]]:
    found = {}
    for path in (path for pattern in MEASURES for path in ROOT.glob(pattern) if path.suffix in CODE):
        with suppress(FileNotFoundError):  # deleted a moment ago
            state = os.stat(path)
            found[path] = state.st_mtime_ns, state.st_size
    return found
