"""MNIST as float32 arrays, verified by digest, and the batch order that every backend uses.

Sources are tried in turn: the file that `MNIST_NPZ` names, the cache, a download of Keras' copy, and a download of the
four IDX files. If all fail, scikit-learn's handwritten digits (`lib/model/data/digits.py`) replace them, and pages
say so.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from lib.cache_folder import CacheUnwritable, cache_dir, cache_folder, replaced
from lib.model.data.digits import enlarged_digits, made_up_images
from lib.model.data.mnist_arrays import ARRAYS, DAMAGED, MNIST_DIGEST, DataError, Raw, read_npz, save_npz, sha256
from lib.model.data.mnist_download import download_unless_it_just_failed
from lib.model.hardware.optional import FileLock
from lib.model.hardware.optional import Timeout as LockTimeout
from lib.model.spec import N_PIXELS, N_TEST, N_TRAIN, N_VALIDATION

LOCK_TIMEOUT_S = 300


@dataclass(frozen=True)
class Facts:
    """Which data these are: source, digest, and a note, usually empty."""

    source: str
    digest: str
    note: str = ""


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: arrays cannot be
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
    """First image of each batch in one epoch, int32, shape (steps,).

    Batches are contiguous runs of the training images, which are already shuffled, in an order drawn from the seed and
    the epoch. They are contiguous because gathering 48,000 rows would cost as much as the training itself. If the batch
    size does not divide the number of images, the first batch starts at a random offset, so that no image is always
    left out. Raises ValueError for a batch size below 1 or above `n_images`.
    """
    if not 1 <= batch_size <= n_images:
        raise ValueError(
            f"batch size: expected 1 to {n_images:,} (the number of images), got {batch_size:,}; choose a smaller one"
        )
    steps = n_images // batch_size
    rng = np.random.default_rng((seed, epoch))
    offset = rng.integers(n_images - steps * batch_size + 1)
    return (rng.permutation(steps) * batch_size + offset).astype(np.int32)


def load(allow_download: bool | None = None) -> Data:
    """The data, from the first source that has them. Raises DataError only for the file that `MNIST_NPZ` names.

    `allow_download` overrides `MNIST_OFFLINE`.
    """
    raw, source, note = _find(_downloads_allowed() if allow_download is None else allow_download)
    if source == "MNIST":
        _remember_verified(_expected_file())
    return _prepare(raw, source, note)


def recognised() -> Facts | None:
    """The facts of a verified file that has not changed since, without reading it; else None.

    They suffice to look up stored trainings; before training, the arrays are verified every time. A class asks many
    times a second, so an unchanged file costs one `stat`.
    """
    global _recognised
    folder, path = cache_folder(), _expected_file()
    try:
        status = path.stat()
        found = folder, path, status.st_size, status.st_mtime_ns, status.st_ino
        if found != _recognised:
            if json.loads((folder / "verified.json").read_text()) != _stamp(path):
                return None
            _recognised = found
        return Facts("MNIST", MNIST_DIGEST)
    except (OSError, ValueError):
        return None


_recognised: tuple | None = None  # folder, file and the file's state at the last recognition


def _remember_verified(path: Path) -> None:
    with suppress(OSError):
        if recognised() is None:
            with replaced(cache_dir() / "verified.json") as temporary:
                temporary.write_text(json.dumps(_stamp(path)))


def _expected_file() -> Path:
    named = os.environ.get("MNIST_NPZ")
    return Path(named) if named else cache_folder() / "mnist.npz"


def _stamp(path: Path) -> list:
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino, MNIST_DIGEST]


def load_test() -> tuple[np.ndarray, np.ndarray, Facts]:
    """Test images (10000, 28, 28), their labels (10000,), both uint8, and the facts: a tenth of the data's memory."""
    raw, source, note = _find(_downloads_allowed())
    return raw["x_test"].copy(), raw["y_test"].copy(), Facts(source, _digest(raw, source), note)


def load_part(n_train: int, n_validation: int) -> tuple[Raw, Facts]:
    """The first training and validation images, and the facts of the data.

    The arrays are uint8: `x_train` (n_train, 784), `y_train` (n_train,), and `x_validation`, `y_validation` alike.
    """
    raw, source, note = _find(_downloads_allowed())
    parts = {"train": slice(n_train), "validation": slice(N_TRAIN, N_TRAIN + n_validation)}
    found = {
        f"{kind}_{name}": raw[f"{kind}_train"][part].reshape(-1, *([N_PIXELS] if kind == "x" else [])).copy()
        for name, part in parts.items()
        for kind in ("x", "y")
    }
    return found, Facts(source, _digest(raw, source), note)


@cache
def share_not_zero() -> float:
    """The share of nonzero inputs in the training images that `load` returns; a fifth for MNIST.

    Counted once per process; raises DataError like `load`.
    """
    raw, *_ = _find(_downloads_allowed())
    images = raw["x_train"][:N_TRAIN]
    return np.count_nonzero(images) / images.size


def _downloads_allowed() -> bool:
    return os.environ.get("MNIST_OFFLINE", "") in ("", "0")


def _find(allow_download: bool) -> tuple[Raw, str, str]:
    named = os.environ.get("MNIST_NPZ")
    if named:
        try:
            return read_npz(Path(named), "MNIST_NPZ"), "MNIST", ""
        except DataError as error:
            raise DataError(f"{error}; correct MNIST_NPZ, or unset it to use the cache or a download") from error
    try:
        folder = cache_dir()
    except CacheUnwritable as error:
        return _offline(str(error))
    path = folder / "mnist.npz"
    if (raw := _from_cache(path)) is not None:
        return raw, "MNIST", ""
    if not allow_download:
        return _offline("downloads are switched off by MNIST_OFFLINE")
    try:
        # Of two processes that start at once, the second waits here, then finds the first one's file.
        with FileLock(folder / "mnist.lock", timeout=LOCK_TIMEOUT_S):
            return _from_cache(path) or download_unless_it_just_failed(path), "MNIST", ""
    except (OSError, DataError, LockTimeout) as error:
        return _offline(str(error))


def _from_cache(path: Path) -> Raw | None:
    if not path.exists():
        return None
    try:
        return read_npz(path, "cache")
    except DataError:
        path.unlink(missing_ok=True)  # partial or damaged: never used, downloaded again
        return None


def _offline(why: str) -> tuple[Raw, str, str]:
    try:
        note = (
            f"This is not MNIST but scikit-learn's handwritten digits, enlarged: {why}. Set MNIST_NPZ to a copy of"
            " mnist.npz."
        )
        return _cached_digits(), "scikit-learn digits", note
    except ModuleNotFoundError:
        note = (
            f"These are not digits but made-up patterns and noise: {why}, and scikit-learn is not installed. Times are"
            " valid, accuracies are not."
        )
        return made_up_images(), "made-up images", note


def _cached_digits() -> Raw:
    """The enlarged digits, cached: computing them takes seconds, and every worker needs them."""
    try:
        path = cache_dir() / "digits.npz"
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            raw = {name: archive[name] for name in ARRAYS}
            if str(archive["digest"]) == sha256(raw["x_train"]):
                return raw
    except (*DAMAGED, KeyError):
        pass  # missing, damaged, or no cache folder: computed again
    raw = enlarged_digits()
    with suppress(CacheUnwritable):  # the note says so already
        save_npz(cache_dir() / "digits.npz", raw | {"digest": np.array(sha256(raw["x_train"]))})
    return raw


def aligned(shape: tuple[int, ...], dtype: type, alignment: int = 64) -> np.ndarray:
    """An uninitialised array, aligned so that XLA uses it in place instead of copying it."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.empty(n_bytes + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    return buffer[start : start + n_bytes].view(dtype).reshape(shape)


def _images(pixels: np.ndarray) -> np.ndarray:
    flat = aligned((len(pixels), N_PIXELS), np.float32)
    return np.multiply(pixels.reshape(len(pixels), N_PIXELS), np.float32(1 / 255), out=flat)


def _labels(classes: np.ndarray) -> np.ndarray:
    labels = aligned((len(classes),), np.int32)
    labels[:] = classes
    return labels


def _prepare(raw: Raw, source: str, note: str) -> Data:
    assert len(raw["x_train"]) == N_TRAIN + N_VALIDATION, "sizes are checked before"
    assert len(raw["x_test"]) == N_TEST, "sizes are checked before"
    return Data(
        x_train=_images(raw["x_train"][:N_TRAIN]),
        y_train=_labels(raw["y_train"][:N_TRAIN]),
        x_validation=_images(raw["x_train"][N_TRAIN:]),
        y_validation=_labels(raw["y_train"][N_TRAIN:]),
        x_test=_images(raw["x_test"]),
        y_test=_labels(raw["y_test"]),
        source=source,
        digest=_digest(raw, source),
        note=note,
    )


def _digest(raw: Raw, source: str) -> str:
    return MNIST_DIGEST if source == "MNIST" else sha256(raw["x_train"])[:32]
