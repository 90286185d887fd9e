"""NumPy as a stand-in for CuPy, to check code for a GPU against the reference without one.

It checks the arithmetic, but neither speed nor CuPy's own limits.
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
    """Return a stand-in for `cupy`; unlisted names raise an error, since they were never compared with CuPy's."""

    class Device:
        def synchronize(self) -> None:
            pass

    names = {name: getattr(np, name) for name in NAMES}
    return SimpleNamespace(
        **names, asnumpy=np.asarray, fuse=lambda function: function, cuda=SimpleNamespace(Device=Device)
    )


@contextmanager
def in_cupys_place() -> Iterator[None]:
    sys.modules["cupy"] = stand_in()  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in ("cupy", "lib.model.backends.with_cupy"):
            sys.modules.pop(name, None)
