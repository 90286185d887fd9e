"""What must be closed before this process ends; otherwise loky would wait for it forever."""

import threading
import weakref
from typing import Protocol


class Closable(Protocol):
    """What can be closed; `wait`: return only when it has ended."""

    def close(self, wait: bool = False) -> None: ...


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_at_exit(thing: Closable) -> None:
    """Close this when the interpreter ends, unless it is collected before. Call it after the pool's first `submit`.

    At exit loky waits for the tasks of all its pools, and ours need not end. loky's hook runs before `atexit`, so ours
    has to be of the same kind, and registered after the one that loky adds with each pool, to run before it.
    """
    _open.add(thing)
    threading._register_atexit(_close_all)  # type: ignore[attr-defined]


def _close_all() -> None:
    for thing in list(_open):
        thing.close()
    for thing in list(_open):
        thing.close(wait=True)
