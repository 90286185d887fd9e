"""User-supplied data: checked, scaled, split, and cached as one file per data set, named by its digest.

The digest covers everything in the file, including the data's name. When the files exceed `MAX_BYTES`, the least
recently used are deleted.
"""

import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import convert

from lib.cache_folder import cache_dir, replaced
from lib.model.data.mnist import Data, DataError, Facts, classes, scaled
from lib.model.spec import MAX_CLASSES, MAX_INPUTS, DataSet, Network

MAX_BYTES = 1 << 30
MAX_NUMBERS = 1 << 26  # rows times inputs of a data set: 256 MiB as float32
GONE = "these data are no longer in the cache folder; load them again"
_DIGEST = re.compile(r"[0-9a-f]{32}")
MIN_ROWS = 10
SEED = 0  # for shuffling
PART = 5  # one row in five is validation; unless the source has its own test rows, one in five is test
MAX_NAME = 60  # characters of a displayed name
PIXEL = re.compile(r"(pixel|pix|px)[\s_.]*\d+([\s_.x]+\d+)?|\d+x\d+", re.IGNORECASE)  # names of pixel columns
MIN_PIXELS = 64  # for images whose columns have other names
ALIKE = 1e-6  # relative differences below this count as rounding
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COUNTS_BY_NAME = re.compile(
    r"(.*[\W_])?(id|index|idx|row|row_?(names?|number|num|id)|nr|no|#)\.?|[a-z]+I[dD]|unnamed(: | column )\d+"
)
_ONLY_CONSTANT = "expected inputs that differ between rows, got only constant ones; use other data"


@dataclass(frozen=True)
class DataSummary:
    """Metadata of prepared data, without its arrays.

    Rows are split into training, validation and test, in this order; `split` describes how, in words. `most_common` is
    the validation accuracy of always answering the most common training class. `image` is the height and width of grey
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
    """Data that is ready for training, identified by digest."""

    digest: str
    about: DataSummary

    @property
    def data_set(self) -> DataSet:
        """The facts a training needs. `chance` includes half a row, because accuracies are float32."""
        about = self.about
        chance = min(1.0, about.most_common + 0.5 / about.n_validation)
        return DataSet(self.digest, about.n_train, about.n_validation, chance)

    @property
    def facts(self) -> Facts:
        return Facts(self.about.name, self.digest)

    def network(self, hidden: tuple[int, ...]) -> Network:
        return Network(hidden, self.about.n_inputs, len(self.about.classes))


def save(about: DataSummary, x: np.ndarray, y: np.ndarray) -> Prepared:
    """Save data in the cache folder, then delete the least recently used files beyond `MAX_BYTES`.

    Args:
        about: Metadata of the data.
        x: Rows (n, inputs), float32 in [0, 1], or uint8 in units of 1/255.
        y: The class of each row, (n,), int32 from 0.

    Raises:
        CacheUnwritable: There is no cache folder. OSError: The file cannot be written.
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


def _path(digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise DataError(GONE)
    return cache_dir() / "own-data" / f"{digest}.npz"


def _make_room(newest: Path) -> None:
    """Delete the least recently used files, but never `newest`, until the total fits into `MAX_BYTES`."""
    total_bytes = 0
    with suppress(FileNotFoundError):  # then another process is making room
        for path in sorted(newest.parent.glob("*.npz"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            total_bytes += path.stat().st_size
            if total_bytes > MAX_BYTES and path != newest:
                path.unlink()


def known(digest: str) -> Prepared:
    """Return prepared data's metadata without reading its arrays.

    Raises:
        DataError: The file is gone or damaged.
    """
    return Prepared(digest, _read(digest, arrays=False)[0])


@lru_cache(maxsize=2)
def load(digest: str) -> Data:
    """Load prepared data.

    Raises:
        DataError: The file is gone or damaged.
    """
    about, x, y = _read(digest)
    with suppress(OSError):
        os.utime(_path(digest))
    stops = np.cumsum([about.n_train, about.n_validation])
    parts = zip(np.split(x, stops), np.split(y, stops), strict=True)
    return Data(*(array for rows, labels in parts for array in (scaled(rows), classes(labels))), about.name, digest)


def rows_to_train_on(digest: str) -> dict[str, np.ndarray]:
    """Training rows, then validation rows, unscaled as stored: `x_train` (n, inputs), and their classes `y_train`.

    Raises:
        DataError: The file is gone or damaged.
    """
    about, x, y = _read(digest)
    n_rows = about.n_train + about.n_validation
    return {"x_train": x[:n_rows], "y_train": y[:n_rows]}


def load_test(digest: str) -> tuple[np.ndarray, np.ndarray, DataSummary]:
    """Test rows (n, inputs), float32 in [0, 1], their classes (n,), and the metadata.

    Raises:
        DataError: The file is gone or damaged.
    """
    about, x, y = _read(digest)
    first = about.n_train + about.n_validation
    return scaled(x[first:]), y[first:], about


def _read(digest: str, arrays: bool = True) -> tuple[DataSummary, np.ndarray, np.ndarray]:
    """Return the summary, and rows and classes as stored; both are empty unless `arrays`."""
    try:
        with _path(digest).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            about = convert(json.loads(str(archive["about"])), DataSummary)
            x, y = (archive["x"], archive["y"]) if arrays else (np.empty(0), np.empty(0))
            return about, x, y
    except Exception as error:  # missing or damaged
        raise DataError(GONE) from error


@dataclass(frozen=True, eq=False)
class DataRows:
    """Rows as read from a file, not checked yet.

    `x` holds numbers, (n, inputs), or images (n, height, width) or (n, height, width, channels); `labels` holds a
    number or text per row. The last `n_test` rows are the source's own test rows.
    """

    x: np.ndarray
    labels: np.ndarray
    n_test: int = 0
    columns: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def prepare(name: str, rows: DataRows) -> Prepared:
    """Check, shuffle, scale to [0, 1], split and save rows.

    All inputs of images share one scale; each column of a table is scaled by its smallest and largest training value. A
    note lists omitted columns: row numbers, and columns that hardly vary.

    Raises:
        DataError: The rows cannot be trained on; the message says why.
        OSError: The file cannot be written.
    """
    _check_sizes(_flat(rows.x), rows)
    labels, merged = _as_seen(rows.labels)
    names, y = classes_of(labels)
    rows, counting = _without_row_numbers(rows)
    rows, is_image = _as_images(rows)
    x = _flat(rows.x)
    _check_finite(x, rows.columns)
    n_test = rows.n_test or max(1, len(x) // PART)
    n_validation = max(1, (len(x) - n_test) // PART)
    n_train = len(x) - n_test - n_validation
    # Shuffle even if the source has its own test rows, which stay last: a source may be sorted by class, and batches
    # are neighbouring rows.
    n_own = len(x) - rows.n_test
    order = np.concatenate([np.random.default_rng(SEED).permutation(n_own), np.arange(n_own, len(x))])
    x, y = x[order], y[order]
    x, same = (x, ()) if is_image else _that_differ(x, n_train, rows.columns)
    if not x.shape[1]:
        raise DataError(f"expected numbers besides the labels, got none ({'; '.join((*rows.notes, *counting, *same))})")
    stored = _to_unit_interval(x, x[:n_train], is_image)
    of_train, of_validation = y[:n_train], y[n_train : n_train + n_validation]
    said = (
        "training rows shuffled with seed 0; test rows come from the source" if rows.n_test else "shuffled with seed 0"
    )
    about = DataSummary(
        shortened(name),
        x.shape[1],
        names,
        n_train,
        n_validation,
        n_test,
        float(np.mean(of_validation == np.bincount(of_train).argmax())),
        said,
        (rows.x.shape[1], rows.x.shape[2]) if rows.x.ndim == 3 else None,
        (*rows.notes, *merged, *counting, *same),
        float(np.mean(stored[:n_train] == 0)),
    )
    return save(about, stored, y)


def shortened(name: str) -> str:
    """Shorten a name to fit a sentence, on one printable line."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name.strip()) or "no name"
    return shown if len(shown) <= MAX_NAME else shown[: MAX_NAME - 1] + "…"


def _check_sizes(x: np.ndarray, rows: DataRows) -> None:
    if len(x) - rows.n_test < MIN_ROWS:
        raise DataError(f"expected at least {MIN_ROWS} training rows, got {len(x) - rows.n_test}; use more")
    if x.shape[1] > MAX_INPUTS:
        raise DataError(f"expected at most {MAX_INPUTS:,} inputs per row, got {x.shape[1]:,}; leave some out")
    if x.size > MAX_NUMBERS:
        raise DataError(f"expected at most {MAX_NUMBERS:,} numbers (rows times inputs), got {x.size:,}; use fewer rows")


def _check_finite(x: np.ndarray, columns: Sequence[str]) -> None:
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(x)))
        value = "no value" if np.isnan(x[row, column]) else "an infinite value"
        named = f"column “{shortened(columns[column])}”" if columns else f"input {column + 1}"
        raise DataError(
            f"expected a finite number in row {row + 1}, {named}, got {value}; fill it in or remove the row"
        )


def classes_of(labels: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the class names, in order, and the class of each row, (n,) int32.

    Labels that all look like whole numbers are ordered as numbers, else as texts.

    Raises:
        DataError: A label is missing or not a class, or there are too few or too many classes.
    """
    texts = [str(label) for label in labels.tolist()]
    missing = next((row for row, text in enumerate(texts) if not text.strip()), None)
    if missing is not None:
        raise DataError(f"expected a label in every row, got none in row {missing + 1}; fill it in or remove the row")
    if labels.dtype.kind == "f" or all(map(_NUMBER.fullmatch, texts)):
        texts = [str(_whole(text, row)) for row, text in enumerate(texts)]
        names = sorted(set(texts), key=int)
    else:
        names = sorted(set(texts))
    if len(names) < 2:
        raise DataError(f"expected at least 2 classes, got one: {shortened(names[0])}; add rows of another class")
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"expected at most {MAX_CLASSES} classes, got {len(names):,} different labels; is this the right column?"
        )
    places = {name: place for place, name in enumerate(names)}
    return tuple(map(shortened, names)), np.array([places[text] for text in texts], np.int32)


def _whole(text: str, row: int) -> int:
    value = float(text)
    if not np.isfinite(value) or value != int(value):
        raise DataError(
            f"expected labels that are classes (whole numbers or texts), got {shortened(text)} in row {row + 1}; round"
            " or group them"
        )
    return int(value)


def _to_unit_interval(x: np.ndarray, of_train: np.ndarray, is_image: bool) -> np.ndarray:
    """Scale rows to float32 in [0, 1], clipped to the range of the training rows; bytes stay bytes.

    Values are halved first: the difference of two numbers near the largest float would be infinite.
    """
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    axis = None if is_image else 0
    low, high = (ends(axis=axis).astype(np.float64) / 2 for ends in (of_train.min, of_train.max))
    if np.all(high == low):  # columns that are have been left out
        raise DataError(_ONLY_CONSTANT)
    return np.clip((x / 2 - low) / (high - low), 0.0, 1.0).astype(np.float32)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1) if len(x) else x.reshape(0, 1)


def _named(columns: Sequence[str], places: Sequence[int]) -> str:
    shown = [f"“{shortened(columns[place])}”" if columns else f"input {place + 1}" for place in places[:5]]
    return ", ".join(shown) + (f" and {len(places) - 5:,} more" if len(places) > 5 else "")


def _without_row_numbers(rows: DataRows) -> tuple[DataRows, tuple[str, ...]]:
    """Drop row numbers, which would reveal the class in a source sorted by class."""
    if rows.x.ndim != 2:
        return rows, ()
    of_train = rows.x[: len(rows.x) - rows.n_test]
    names = rows.columns or [""] * rows.x.shape[1]
    found = [place for place, name in enumerate(names) if _counts_rows(of_train[:, place], name)]
    if not found:
        return rows, ()
    note = f"left out, because row numbers carry no information: {_named(rows.columns, found)}"
    left = [name for place, name in enumerate(rows.columns) if place not in found]
    return replace(rows, x=np.delete(rows.x, found, axis=1), columns=left), (note,)


def _counts_rows(column: np.ndarray, name: str) -> bool:
    """Whether distinct whole numbers rise or fall row by row, have no gap, or have a row number's name."""
    head = column[:MIN_ROWS]
    if len(np.unique(head)) < len(head) or not np.isfinite(column).all() or (column != np.floor(column)).any():
        return False
    steps = np.diff(column.astype(np.float64))
    if (steps > 0).all() or (steps < 0).all():
        return True
    is_called_so = any(_COUNTS_BY_NAME.fullmatch(said) for said in (name.strip(), name.strip().lower()))
    has_no_gap = float(column.max()) - float(column.min()) + 1 == len(column)
    return (is_called_so or has_no_gap) and len(np.unique(column)) == len(column)


def _as_images(rows: DataRows) -> tuple[DataRows, bool]:
    """Return rows as images if their column names or a square of whole numbers say so, and whether they are."""
    n_inputs = _flat(rows.x).shape[1]
    if rows.x.ndim > 2:
        return rows, True
    side, x = math.isqrt(n_inputs), rows.x
    is_bytes = x.dtype == np.uint8 or all(
        column.min() >= 0 and column.max() <= 255 and (column == np.floor(column)).all() for column in x.T
    )
    is_named = bool(rows.columns) and all(PIXEL.fullmatch(name.strip()) for name in rows.columns)
    if not is_named and not (is_bytes and n_inputs >= MIN_PIXELS and side * side == n_inputs):
        return rows, False
    if is_bytes and x.max() > 127:  # otherwise the largest possible value may be below 255
        x = x.astype(np.uint8)
    return replace(rows, x=x.reshape(len(x), side, side) if side * side == n_inputs else x), True


def _that_differ(x: np.ndarray, n_train: int, columns: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Keep the inputs that differ, beyond rounding, in more than a hundredth of the training rows."""
    usual = np.median(x[:n_train], axis=0)
    with np.errstate(over="ignore"):
        n_differ = (np.abs(x[:n_train] - usual) > ALIKE * np.abs(usual)).sum(axis=0)
    same = np.flatnonzero(n_differ <= n_train // 100)
    if not len(same):
        return x, ()
    note = "left out, because they are the same in (nearly) all training rows"
    return np.delete(x, same, axis=1), (f"{note}: {_named(columns, same.tolist())}",)


def _as_seen(labels: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Normalise invisible differences between labels: extra blanks and accent encodings."""
    if labels.dtype.kind not in "OUS":
        return labels, ()
    seen = {text: " ".join(unicodedata.normalize("NFC", str(text)).split()) for text in set(labels.tolist())}
    n_merged = len(seen) - len({*seen.values()})
    note = f"labels that differ only in blanks or invisible characters count as one class ({n_merged:,} merged)"
    return np.array([seen[text] for text in labels.tolist()], object), (note,) if n_merged else ()
