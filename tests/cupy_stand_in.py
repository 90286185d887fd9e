"""NumPy in CuPy's place: the same names, so that what is written for a card is held against the reference without one.

It shows that the arithmetic is right, and nothing about speed or about CuPy's own limits.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

NAMES = (
    "arange",
    "array",
    "asarray",
    "copy",
    "exp",
    "log",
    "maximum",
    "mean",
    "ones",
    "sin",
    "stack",
    "sum",
    "zeros",
    "zeros_like",
)


def stand_in() -> SimpleNamespace:
    """A module of that name; a name that is not listed fails, as it would be one that nobody compared with CuPy's."""

    class Device:
        def synchronize(self) -> None:
            pass

    names = {name: getattr(np, name) for name in NAMES}
    return SimpleNamespace(
        **names, asnumpy=np.asarray, fuse=lambda function: function, cuda=SimpleNamespace(Device=Device)
    )


@contextmanager
def in_cupys_place() -> Iterator[None]:
    """A context in which `import cupy` gives the stand-in."""
    sys.modules["cupy"] = stand_in()  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in ("cupy", "lib.model.backends.with_cupy"):
            sys.modules.pop(name, None)
