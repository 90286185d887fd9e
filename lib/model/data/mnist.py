"""MNIST as float32 arrays, verified by digest, and the batch order that every backend uses.

Sources are tried in turn: the file named by `MNIST_NPZ`, the cache, and a download of Keras' copy. If all fail,
scikit-learn's handwritten digits (`lib/model/data/digits.py`) replace MNIST, and pages say so. We verify the arrays,
not the files, because public copies differ in their containers.
"""

import hashlib
import json
import logging
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from lib.cache_folder import CacheUnwritable, cache_dir, cache_folder, replaced
from lib.model.data.digits import enlarged_digits
from lib.model.spec import N_PIXELS, N_TRAIN, N_VALIDATION

ARRAYS = {
    "x_train": ((60_000, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"),
    "y_train": ((60_000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
    "x_test": ((10_000, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"),
    "y_test": ((10_000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
}
_IDX_KINDS = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # NumPy's type for each IDX type code
MNIST_DIGEST = "".join(digest[:8] for _, digest in ARRAYS.values())
Raw = dict[str, np.ndarray]  # uint8 arrays by their names in `ARRAYS`
KERAS_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
DOWNLOAD_TIMEOUT_S = 10  # to connect, and between bytes
RETRY_DOWNLOAD_AFTER_S = 600  # every worker loads the data; without a network, only the first one waits
LOCK_TIMEOUT_S = 300


class DataError(ValueError):
    """Unusable data, such as a file named by the user; the text says what was expected and what to do."""


def sha256(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes in C order, as 64 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def read_npz(path: Path, where: str) -> Raw:
    """Read and verify an .npz file, never loading pickles; DataErrors refer to the file as `where`."""
    if not path.is_file():
        raise DataError(f"{where}: expected a file, got {path}, which is not one")
    try:
        # Opened here because NumPy leaves its own file open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            raw = {name: archive[name] for name in archive.files}
    except Exception as error:  # NumPy raises a dozen kinds for a file that is damaged or packed in an unknown way
        raise DataError(f"{where}: expected arrays of bytes in {path}, got an unreadable file ({error})") from error
    for name, (shape, digest) in ARRAYS.items():
        if name not in raw:
            raise DataError(f"{where}: expected {', '.join(ARRAYS)} in {path}, got {', '.join(raw) or 'none'}")
        array = raw[name]
        if array.dtype != np.uint8 or array.shape != shape or sha256(array) != digest:
            raise DataError(
                f"{where}: expected MNIST's {name}, uint8 {shape}, in {path}, got other {array.dtype} {array.shape}"
            )
    return {name: raw[name] for name in ARRAYS}


def is_idx(head: bytes) -> bool:
    """Whether `head` starts an IDX file (yann.lecun.com/exdb/mnist)."""
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _IDX_KINDS and 1 <= head[3] <= 4


def read_idx(content: bytes) -> np.ndarray:
    """Read the array of an IDX file: two zero bytes, the type, the number of axes, big-endian sizes, values.

    Bytes stay bytes; all other numbers become float64. Raises DataError for any other format or a wrong length.
    """
    if not is_idx(content):
        raise DataError(
            "expected an IDX file, which begins with 0, 0, its type (8 for bytes) and its number of axes, got"
            f" {list(content[:4])}"
        )
    kind, n_axes = np.dtype(_IDX_KINDS[content[2]]), content[3]
    try:
        shape = np.frombuffer(content, ">u4", n_axes, offset=4).tolist()
        array = np.frombuffer(content, kind, offset=4 + 4 * n_axes).reshape(shape)
    except ValueError as error:
        raise DataError(f"expected as many bytes as the header says, got {len(content):,}: {error}") from error
    return array if kind == np.uint8 else array.astype(np.float64)


def save_npz(path: Path, raw: Raw) -> None:
    """Write a file atomically; on a full disk, log a warning."""
    try:
        with replaced(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **raw)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        logging.getLogger(__name__).warning("%s was not saved: %s; it will be fetched again next time", path, error)


def _download_unless_it_just_failed(path: Path) -> Raw:
    """Download and verify the arrays, save them to `path`, and return them.

    Raises DataError, and repeats it for ten minutes without another attempt.
    """
    from urllib.request import urlopen  # imported here because a start from the cache does not need it

    failure = path.with_name("download-failed.txt")
    if failure.exists() and 0 <= time.time() - failure.stat().st_mtime < RETRY_DOWNLOAD_AFTER_S:
        raise DataError(failure.read_text())
    part = path.with_name(f"mnist-{os.getpid()}.part")
    try:
        with urlopen(KERAS_URL, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            part.write_bytes(answer.read())
        raw = read_npz(part, "download")
    except Exception as error:  # any network error
        failure.write_text(f"no copy could be downloaded ({str(error) or type(error).__name__})")
        raise DataError(failure.read_text()) from error
    finally:
        part.unlink(missing_ok=True)
    save_npz(path, raw)
    failure.unlink(missing_ok=True)
    return raw


@dataclass(frozen=True)
class Facts:
    """Identity of a data set: source, digest, and a note, usually empty."""

    source: str
    digest: str
    note: str = ""


_MNIST = Facts("MNIST", MNIST_DIGEST)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, because arrays can't be
class Data:
    """Images as float32 in [0, 1], shape (n, 784), aligned for zero-copy use by XLA; labels as int32, shape (n,)."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_validation: np.ndarray
    y_validation: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str
    digest: str
    note: str = ""  # why this is not MNIST; empty if it is

    @property
    def facts(self) -> Facts:
        return Facts(self.source, self.digest, self.note)


def batch_starts(n_images: int, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Return the first image of each batch in one epoch, int32, shape (steps,).

    Batches are contiguous runs of the training images, which are already shuffled, in an order drawn from the seed and
    the epoch. They are contiguous because gathering 48,000 rows would cost as much as the training itself. If the batch
    size does not divide the number of images, the first batch starts at a random offset, so no image is always left
    out. Raises ValueError for a batch size below 1 or above `n_images`.
    """
    if not 1 <= batch_size <= n_images:
        raise ValueError(
            f"batch size: expected 1 to {n_images:,} (the number of images), got {batch_size:,}; choose a smaller one"
        )
    steps = n_images // batch_size
    rng = np.random.default_rng((seed, epoch))
    offset = rng.integers(n_images - steps * batch_size + 1)
    return (rng.permutation(steps) * batch_size + offset).astype(np.int32)


def load() -> Data:
    """Load the data from the first source that has it. Raises DataError only for the file named by `MNIST_NPZ`."""
    raw, facts = _find()
    if facts == _MNIST:
        _remember_verified(_expected_file())
    assert len(raw["x_train"]) == N_TRAIN + N_VALIDATION, "sizes are checked before"
    x, y = raw["x_train"], raw["y_train"]
    parts = (x[:N_TRAIN], y[:N_TRAIN]), (x[N_TRAIN:], y[N_TRAIN:]), (raw["x_test"], raw["y_test"])
    arrays = (array for x, y in parts for array in (scaled(x), classes(y)))
    return Data(*arrays, facts.source, facts.digest, facts.note)


def recognised() -> Facts | None:
    """Return the facts of a previously verified, unchanged file without reading it; else None.

    Enough to look up stored trainings; before training, the arrays are verified every time.
    """
    try:
        known = json.loads((cache_folder() / "verified.json").read_text())
        return _MNIST if known == _stamp(_expected_file()) else None
    except (OSError, ValueError):
        return None


def _remember_verified(path: Path) -> None:
    with suppress(OSError):
        if recognised() is None:
            with replaced(cache_dir() / "verified.json") as temporary:
                temporary.write_text(json.dumps(_stamp(path)))


def _expected_file() -> Path:
    return Path(os.environ.get("MNIST_NPZ") or cache_folder() / "mnist.npz")


def _stamp(path: Path) -> list:
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino, MNIST_DIGEST]


def load_test() -> tuple[np.ndarray, np.ndarray, Facts]:
    """Test images (10000, 28, 28) and labels (10000,), both uint8, and the facts, in a tenth of the data's memory."""
    raw, facts = _find()
    return raw["x_test"].copy(), raw["y_test"].copy(), facts


def load_part(n_train: int, n_validation: int) -> tuple[Raw, Facts]:
    """Return the first training and validation images, and the facts of the data.

    The arrays are uint8: `x_train` (n_train, 784), `y_train` (n_train,), and likewise `x_validation`, `y_validation`.
    """
    raw, facts = _find()
    parts = {"train": slice(n_train), "validation": slice(N_TRAIN, N_TRAIN + n_validation)}
    found = {
        f"{kind}_{name}": raw[f"{kind}_train"][part].reshape(-1, *([N_PIXELS] if kind == "x" else [])).copy()
        for name, part in parts.items()
        for kind in ("x", "y")
    }
    return found, facts


@cache
def share_not_zero() -> float:
    """Share of nonzero inputs in the training images that `load` returns; a fifth for MNIST.

    Counted once per process; raises DataError like `load`.
    """
    raw, _ = _find()
    images = raw["x_train"][:N_TRAIN]
    return np.count_nonzero(images) / images.size


def _find() -> tuple[Raw, Facts]:
    """Return the arrays and their facts; downloads MNIST unless `MNIST_OFFLINE` forbids it."""
    if os.environ.get("MNIST_NPZ"):
        try:
            return read_npz(_expected_file(), "MNIST_NPZ"), _MNIST
        except DataError as error:
            raise DataError(f"{error}; correct MNIST_NPZ, or unset it to use the cache or a download") from error
    try:
        folder = cache_dir()
    except CacheUnwritable as error:
        return _offline(str(error))
    path = folder / "mnist.npz"
    if (raw := _from_cache(path)) is not None:
        return raw, _MNIST
    if os.environ.get("MNIST_OFFLINE", "") not in ("", "0"):
        return _offline("MNIST_OFFLINE turns downloads off")
    from filelock import FileLock, Timeout  # imported here because readers' browsers lack it

    try:
        # If two processes start at once, the second waits here, then finds the first one's file.
        with FileLock(folder / "mnist.lock", timeout=LOCK_TIMEOUT_S):
            return _from_cache(path) or _download_unless_it_just_failed(path), _MNIST
    except (OSError, DataError, Timeout) as error:
        return _offline(str(error))


def _from_cache(path: Path) -> Raw | None:
    try:
        return read_npz(path, "cache")
    except DataError:
        path.unlink(missing_ok=True)  # missing, partial or damaged: download again
        return None


def _offline(why: str) -> tuple[Raw, Facts]:
    note = (
        f"These are scikit-learn's handwritten digits, enlarged, not MNIST: {why}. Set MNIST_NPZ to a copy of"
        " mnist.npz."
    )
    raw = _cached_digits()
    return raw, Facts("scikit-learn digits", sha256(raw["x_train"])[:32], note)


def _cached_digits() -> Raw:
    """Return the enlarged digits, cached because computing them takes seconds and every worker needs them."""
    try:
        path = cache_dir() / "digits.npz"
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in ARRAYS}
    except Exception:  # missing, damaged, or no cache folder: compute again
        raw = enlarged_digits()
    with suppress(CacheUnwritable):  # the note already says so
        save_npz(cache_dir() / "digits.npz", raw)
    return raw


def aligned(shape: tuple[int, ...], dtype: type, alignment: int = 64) -> np.ndarray:
    """Return an uninitialised array, aligned so that XLA uses it in place instead of copying it."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.empty(n_bytes + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    return buffer[start : start + n_bytes].view(dtype).reshape(shape)


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Return rows (n, inputs) as aligned float32; bytes are divided by 255."""
    rows = aligned((len(pixels), math.prod(pixels.shape[1:])), np.float32)
    flat = pixels.reshape(rows.shape)
    return np.multiply(flat, np.float32(1 / 255 if flat.dtype == np.uint8 else 1), out=rows)


def classes(labels: np.ndarray) -> np.ndarray:
    found = aligned(labels.shape, np.int32)
    found[:] = labels
    return found
