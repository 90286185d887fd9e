"""IDX files of images and their labels, as MNIST's are, plain or gzipped."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lib.data.mnist_arrays import DataError
from lib.data.own.prepared import MAX_NUMBERS
from lib.data.own.rows import Rows, shortened


def read_idx(files: Sequence[tuple[str, Path]]) -> Rows:
    """Two IDX files, images and labels, or four, of which two have “test” or “t10k” in their names.

    Raises:
        DataError: They are damaged, or do not belong together; the text says which.
    """
    if len(files) not in (2, 4):
        raise DataError(f"expected two IDX files (images and labels) or four (the same for test), got {len(files)}")
    tests = [(name, path) for name, path in files if "test" in name.lower() or "t10k" in name.lower()]
    if len(files) == 4 and len(tests) != 2:
        raise DataError("expected two of the four IDX files to have “test” or “t10k” in their names; rename them")
    test = tests if len(files) == 4 else []
    x, labels = _pair([one for one in files if one not in test])
    if not test:
        return Rows(x, labels)
    x_test, labels_test = _pair(test)
    if x.shape[1:] != x_test.shape[1:]:
        raise DataError(f"expected training and test images of one size, got {x.shape[1:]} and {x_test.shape[1:]}")
    return Rows(np.concatenate([x, x_test]), np.concatenate([labels, labels_test]), len(x_test))


def _pair(files: Sequence[tuple[str, Path]]) -> tuple[np.ndarray, np.ndarray]:
    arrays = sorted(((_idx(name, path), name) for name, path in files), key=lambda one: -one[0].ndim)
    (x, x_name), (labels, labels_name) = arrays
    both = f"“{shortened(x_name)}” and “{shortened(labels_name)}”"
    if x.ndim != 3 or labels.ndim != 1:
        raise DataError(f"expected images (3 axes) and labels (1 axis), got {x.ndim} and {labels.ndim} axes in {both}")
    if len(x) != len(labels):
        raise DataError(f"{both} do not belong together: they hold {len(x):,} images and {len(labels):,} labels")
    return x, labels


def _idx(name: str, path: Path) -> np.ndarray:
    """The array of an IDX file of unsigned bytes (yann.lecun.com/exdb/mnist), also gzipped."""
    shown, limit = f"“{shortened(name)}”", MAX_NUMBERS + 64
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            content = gzip.GzipFile(fileobj=file).read(limit + 1) if packed else file.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"expected a gzipped IDX file in {shown}, got a damaged one; download it again") from error
    if len(content) > limit:
        raise DataError(f"expected at most {MAX_NUMBERS >> 20} MiB in {shown}, got more; bring fewer images")
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != 8 or content[3] not in (1, 3):
        raise DataError(
            f"expected an IDX file of unsigned bytes in {shown}, which begins with 0, 0, 8 and its 1 or 3 axes, got"
            f" {list(content[:4])}; bring another file"
        )
    first = 4 + 4 * content[3]
    shape = np.frombuffer(content[:first], ">u4", offset=4).tolist() if len(content) >= first else []
    if len(shape) != content[3] or len(content) != first + math.prod(shape):
        wanted = f"{first + math.prod(shape):,} bytes for {' × '.join(map(str, shape))}" if shape else "a whole header"
        raise DataError(f"expected {wanted} in {shown}, got {len(content):,} bytes; download it again")
    return np.frombuffer(content, np.uint8, offset=first).reshape(shape)
