"""IDX files of images and labels, like MNIST's."""

import math
from collections.abc import Sequence
from typing import IO

import numpy as np

from lib.model.data.mnist_arrays import DataError
from lib.model.data.own.rows import DataRows, shortened

_KINDS = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(files: Sequence[tuple[str, IO[bytes]]]) -> DataRows:
    """Read two IDX files, images and labels, or four, two of them with “test” or “t10k” in their names.

    Raises:
        DataError: They are damaged, or do not belong together.
    """
    if len(files) not in (2, 4):
        raise DataError(
            f"expected two IDX files (images and labels) or four (the same for test), got {len(files)}"
            f" ({', '.join(shortened(name) for name, _ in files[:6])})"
        )
    tests = [(name, file) for name, file in files if "test" in name.lower() or "t10k" in name.lower()]
    if len(files) == 4 and len(tests) != 2:
        raise DataError("expected two of the four IDX files to have “test” or “t10k” in their names; rename them")
    test = tests if len(files) == 4 else []
    x, labels = _pair([one for one in files if one not in test])
    if not test:
        return DataRows(x, labels)
    x_test, labels_test = _pair(test)
    if x.shape[1:] != x_test.shape[1:]:
        raise DataError(f"expected training and test images of one size, got {x.shape[1:]} and {x_test.shape[1:]}")
    return DataRows(np.concatenate([x, x_test]), np.concatenate([labels, labels_test]), len(x_test))


def _pair(files: Sequence[tuple[str, IO[bytes]]]) -> tuple[np.ndarray, np.ndarray]:
    arrays = sorted(((_idx(name, file), name) for name, file in files), key=lambda one: -one[0].ndim)
    (x, x_name), (labels, labels_name) = arrays
    both = f"“{shortened(x_name)}” and “{shortened(labels_name)}”"
    if x.ndim < 2 or labels.ndim != 1:
        raise DataError(f"expected images (3 axes) and labels (1 axis), got {x.ndim} and {labels.ndim} axes in {both}")
    if len(x) != len(labels):
        raise DataError(f"{both} do not belong together: they hold {len(x):,} images and {len(labels):,} labels")
    return x, labels


def _idx(name: str, file: IO[bytes]) -> np.ndarray:
    """The array of an IDX file (yann.lecun.com/exdb/mnist)."""
    shown = f"“{shortened(name)}”"
    file.seek(0)
    content = file.read()
    if not is_idx(content):
        raise DataError(
            f"expected an IDX file in {shown}, which begins with 0, 0, its type (8 for bytes) and its number of axes,"
            f" got {list(content[:4])}; bring another file"
        )
    kind, n_axes = np.dtype(_KINDS[content[2]]), content[3]
    first = 4 + 4 * n_axes
    shape = np.frombuffer(content[:first], ">u4", offset=4).tolist() if len(content) >= first else []
    wanted_bytes = first + kind.itemsize * math.prod(shape)
    if len(shape) != n_axes or len(content) != wanted_bytes:
        wanted = f"{wanted_bytes:,} bytes for {' × '.join(map(str, shape))}" if shape else "a whole header"
        raise DataError(f"expected {wanted} in {shown}, got {len(content):,} bytes; download it again")
    array = np.frombuffer(content, kind, offset=first).reshape(shape)
    return array if kind == np.uint8 else array.astype(np.float64)


def is_idx(head: bytes) -> bool:
    """Whether this is the beginning of an IDX file."""
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _KINDS and 1 <= head[3] <= 4
