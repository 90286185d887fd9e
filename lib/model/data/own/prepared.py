"""A reader's own data, checked and ready for training: a file each in the cache folder, named by its digest.

The digest covers everything in the file, including the data's name. Beyond `MAX_BYTES` in all, the files used longest
ago are deleted.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from lib.cache_folder import cache_dir, replaced
from lib.model.data.mnist import Data, Facts, aligned
from lib.model.data.mnist_arrays import DAMAGED, DataError
from lib.model.spec import DataSet, Network

MAX_BYTES = 1 << 30
MAX_NUMBERS = 1 << 26  # rows times inputs of a data set: 256 MiB as float32
GONE = "these data are no longer in the cache folder; bring them again"
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class DataSummary:
    """What is known about prepared data without their arrays.

    Rows are divided into training, validation and test, in this order; `split` says how, in words. `most_common` is the
    validation accuracy of always answering the most common training class. `image` is the height and width of grey
    images, else None. `zeros` is the share of zeros in the training rows' inputs; None in files of older versions.
    """

    name: str
    n_inputs: int
    classes: tuple[str, ...]
    n_train: int
    n_validation: int
    n_test: int
    most_common: float
    split: str
    image: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    zeros: float | None = None


@dataclass(frozen=True)
class Prepared:
    """Data that can be trained on, by digest."""

    digest: str
    about: DataSummary

    @property
    def data_set(self) -> DataSet:
        """What a training must know about them. Half a row allows for accuracies in float32."""
        about = self.about
        chance = min(1.0, about.most_common + 0.5 / about.n_validation)
        return DataSet(self.digest, about.n_train, about.n_validation, chance)

    @property
    def facts(self) -> Facts:
        return Facts(self.about.name, self.digest)

    def network(self, hidden: tuple[int, ...]) -> Network:
        return Network(hidden, self.about.n_inputs, len(self.about.classes))


def save(about: DataSummary, x: np.ndarray, y: np.ndarray) -> Prepared:
    """Save data in the cache folder, and make room for them.

    Args:
        about: What they are.
        x: Rows (n, inputs), float32 in [0, 1], or uint8 that stands for 255ths.
        y: The class of each row, (n,), int32 from 0.

    Raises:
        CacheUnwritable: There is no folder for them. OSError: They cannot be written.
    """
    said = json.dumps(asdict(about))
    digest = _digest(said, x, y)
    path = _path(digest)
    path.parent.mkdir(exist_ok=True)
    with replaced(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, about=np.array(said), x=x, y=y)  # pyright: ignore[reportArgumentType]
    _make_room(path)
    return Prepared(digest, about)


def _digest(said: str, x: np.ndarray, y: np.ndarray) -> str:
    found = hashlib.sha256(said.encode())
    for array in (x, y):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:32]


def is_digest(said: str) -> bool:
    """Whether a text has the form of a digest."""
    return _DIGEST.fullmatch(said) is not None


def _path(digest: str) -> Path:
    if not is_digest(digest):
        raise DataError(GONE)
    return cache_dir() / "own-data" / f"{digest}.npz"


def _make_room(newest: Path) -> None:
    """Delete the files used longest ago, but never the newest, until the rest fits into `MAX_BYTES`."""
    found = []
    for path in newest.parent.glob("*.npz"):
        with suppress(OSError):  # another process makes room too
            status = path.stat()
            found.append((path != newest, -status.st_mtime_ns, path, status.st_size))
    total_bytes = 0
    for _, _, path, n_bytes in sorted(found):
        total_bytes += n_bytes
        if total_bytes > MAX_BYTES and path != newest:
            path.unlink(missing_ok=True)


def known(digest: str) -> Prepared:
    """What is known about prepared data, without reading their arrays.

    Raises:
        DataError: They are no longer there, or damaged.
    """
    said, _ = _read(digest, arrays=False)
    return Prepared(digest, _about(said))


@lru_cache(maxsize=2)
def load(digest: str) -> Data:
    """Prepared data, verified by their digest.

    Raises:
        DataError: They are no longer there, or damaged.
    """
    said, arrays = _read(digest, arrays=True)
    about, x, y = _about(said), arrays["x"], arrays["y"]
    if _digest(said, x, y) != digest:
        raise DataError(GONE)
    with suppress(OSError):
        os.utime(_path(digest))
    stops = np.cumsum([about.n_train, about.n_validation])
    parts = zip(np.split(x, stops), np.split(y, stops), strict=True)
    return Data(*(array for rows, labels in parts for array in (_rows(rows), _labels(labels))), about.name, digest)


def rows_to_train_on(digest: str) -> dict[str, np.ndarray]:
    """Training rows, then validation rows, unscaled as stored: `x_train` (n, inputs), and their classes `y_train`.

    Raises:
        DataError: They are no longer there, or damaged.
    """
    said, arrays = _read(digest, arrays=True)
    about = _about(said)
    n_rows = about.n_train + about.n_validation
    return {"x_train": arrays["x"][:n_rows], "y_train": arrays["y"][:n_rows]}


def load_test(digest: str) -> tuple[np.ndarray, np.ndarray, DataSummary]:
    """Test rows (n, inputs), float32 in [0, 1], their classes (n,), and what is known about the data.

    Raises:
        DataError: They are no longer there, or damaged.
    """
    said, arrays = _read(digest, arrays=True)
    about = _about(said)
    first = about.n_train + about.n_validation
    return _rows(arrays["x"][first:]), arrays["y"][first:], about


def _read(digest: str, arrays: bool) -> tuple[str, Mapping[str, np.ndarray]]:
    try:
        with _path(digest).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return str(archive["about"]), {name: archive[name] for name in ("x", "y") if arrays}
    except (*DAMAGED, KeyError) as error:
        raise DataError(GONE) from error


def _about(said: str) -> DataSummary:
    found = json.loads(said)
    found |= {name: tuple(found[name]) for name in ("classes", "notes")}
    return DataSummary(**found | {"image": tuple(found["image"]) if found["image"] else None})


def _rows(x: np.ndarray) -> np.ndarray:
    rows = aligned(x.shape, np.float32)
    if x.dtype == np.uint8:
        return np.multiply(x, np.float32(1 / 255), out=rows)
    rows[:] = x
    return rows


def _labels(y: np.ndarray) -> np.ndarray:
    labels = aligned(y.shape, np.int32)
    labels[:] = y
    return labels
