"""MNIST's four arrays, in files. The arrays are verified, not the files: public copies differ in their containers."""

import hashlib
import logging
import zipfile
import zlib
from pathlib import Path

import numpy as np

from lib.cache_folder import replaced

try:
    from lzma import LZMAError
except ImportError:  # a Python built without it
    LZMAError = zlib.error

ARRAYS = {
    "x_train": ((60_000, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"),
    "y_train": ((60_000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
    "x_test": ((10_000, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"),
    "y_test": ((10_000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
}
MNIST_DIGEST = "".join(digest[:8] for _, digest in ARRAYS.values())
Raw = dict[str, np.ndarray]  # uint8 arrays by their names in `ARRAYS`

# Raised by NumPy for an .npz file that is missing, no archive, damaged, or packed in an unknown way.
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    LZMAError,
    NotImplementedError,
)


class DataError(ValueError):
    """Unusable data, such as a file named by the user; the text says what was expected and what to do."""


def sha256(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes in C order, as 64 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def check_arrays(raw: Raw, where: str) -> Raw:
    """Return the four arrays if they are MNIST's; else raise DataError, which names the wrong one and `where` it is."""
    for name, (shape, digest) in ARRAYS.items():
        if name not in raw:
            raise DataError(f"{where}: expected the arrays {', '.join(ARRAYS)}, got {', '.join(raw) or 'none'}")
        array = raw[name]
        if array.dtype != np.uint8 or array.shape != shape:
            raise DataError(f"{where}: expected {name} as uint8 {shape}, got {array.dtype} {array.shape}")
        if sha256(array) != digest:
            raise DataError(f"{where}: {name} is not MNIST's (its digest differs)")
    return {name: raw[name] for name in ARRAYS}


def read_npz(path: Path, where: str) -> Raw:
    """Read and verify an .npz file, never loading pickles; raises DataError, which calls the file `where`."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
        raise DataError(f"{where}: expected a file, got {path}, which {what}")
    try:
        # Opened here: NumPy leaves its own file open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            raw = {name: archive[name] for name in archive.files if name in ARRAYS}
            raw = raw or {name: np.empty(0) for name in archive.files[:4]}
    except (*DAMAGED, AttributeError) as error:
        pickled = "pickle" in str(error).lower()
        kind = "pickled objects, which are never loaded" if pickled else f"an unreadable file ({error})"
        raise DataError(f"{where}: expected the uint8 arrays {', '.join(ARRAYS)} in {path}, got {kind}") from error
    return check_arrays(raw, f"{where} ({path})")


def read_idx(content: bytes) -> np.ndarray:
    """Decode an IDX file of unsigned bytes: two zero bytes, type 8, number of axes, big-endian sizes, values.

    Raises ValueError for a file of another type, or one too short for its sizes.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError("no IDX header of unsigned bytes")
    n_axes = content[3]
    shape = np.frombuffer(content, ">u4", n_axes, offset=4).tolist()
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def save_npz(path: Path, raw: Raw) -> None:
    """Write a file whole or not at all; on a full disk, log a warning."""
    try:
        with replaced(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **raw)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        logging.getLogger(__name__).warning("%s was not saved: %s; it will be fetched again next time", path, error)
