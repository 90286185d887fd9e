"""A digest of the code that figures depend on: results are stored under it, and workers with older code replaced."""

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lib import ROOT

# All that trains and measures; pages, sweeps and how results are stored change no figure.
MEASURES = ("lib/*.py", "lib/model/**/*", "lib/timing/**/*", "lib/sweeps/workers/*.py")
CODE = (".py", ".wgsl", ".c")

LOOK_EVERY_S = 0.1
LOOK_SHARE = 0.1  # of the time, at most: beside hundreds of threads a look of 3 ms takes seconds
_known: tuple[dict[Path, tuple[int, int]], str] = ({}, "")  # each file's last change and size, and their digest
_look_at = 0.0  # when to look again, a time of `time.monotonic`
_looking = threading.Lock()


def source_digest() -> str:
    """SHA-256, cut to 16 hex digits, of the files that `MEASURES` names.

    They are read again only when one has changed: every key of the store needs it. Whether one has changed is looked at
    every `LOOK_EVERY_S`, and by one thread at a time: each look at a file lets another thread go on, of which the
    server of a class has hundreds.
    """
    global _known, _look_at
    states, digest = _known
    if states and (time.monotonic() < _look_at or not _looking.acquire(blocking=False)):
        return digest  # another thread looks just now
    if not states:
        _looking.acquire()  # nothing is known yet: wait for whoever reads
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
    """The same of a benchmark: of its module, and of what trains and measures."""
    return digest_of([*_states(), ROOT / "benchmarks" / f"{name}.py"])


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256, cut to 16 hex digits, of files in this project: of their names and contents."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        total.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()[:16]


def _states() -> dict[Path, tuple[int, int]]:
    found = {}
    for path in (path for pattern in MEASURES for path in ROOT.glob(pattern) if path.suffix in CODE):
        with suppress(FileNotFoundError):  # it was there a moment ago
            state = os.stat(path)
            found[path] = state.st_mtime_ns, state.st_size
    return found
