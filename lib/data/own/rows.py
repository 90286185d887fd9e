"""Rows and labels as a format's reader found them; and how they are checked, scaled, divided and saved."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.data.mnist_arrays import DataError
from lib.data.own import prepared
from lib.data.own.prepared import MAX_NUMBERS, About, Prepared
from lib.spec import MAX_CLASSES, MAX_INPUTS

MIN_ROWS = 10
SEED = 0  # of the shuffling
PART = 5  # one row in so many is validation, and where the source has no test rows, one in so many is test
MAX_NAME = 60  # characters of a name that is shown
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, eq=False)
class Rows:
    """What a format's reader found, before it is checked.

    `x` holds numbers, (n, inputs), or images (n, height, width) or (n, height, width, channels); `labels` one number or
    text for each row. Where the source is divided by itself, its last `n_test` rows are test.
    """

    x: np.ndarray
    labels: np.ndarray
    n_test: int = 0
    columns: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def prepare(name: str, rows: Rows) -> Prepared:
    """Check, shuffle, scale to [0, 1] and divide rows, and save them.

    Inputs of images are scaled alike, those of a table each by its smallest and largest training value.

    Raises:
        DataError: They cannot be trained on; the text is a sentence that says why.
        OSError: They cannot be saved.
    """
    x = rows.x.reshape(len(rows.x), -1) if len(rows.x) else rows.x.reshape(0, 1)
    _check_sizes(x, rows)
    classes, y = classes_of(rows.labels)
    _check_finite(x, rows.columns)
    n_test = rows.n_test or max(1, len(x) // PART)
    n_validation = max(1, (len(x) - n_test) // PART)
    n_train = len(x) - n_test - n_validation
    order = _order(len(x), rows.n_test)
    x, y = x[order], y[order]
    scaled, notes = _scaled(x, x[:n_train], is_image=rows.x.ndim > 2)
    of_train, of_validation = y[:n_train], y[n_train : n_train + n_validation]
    said = (
        "training rows shuffled with seed 0; test rows are the source's own" if rows.n_test else "shuffled with seed 0"
    )
    about = About(
        shortened(name),
        x.shape[1],
        classes,
        n_train,
        n_validation,
        n_test,
        float(np.mean(of_validation == np.bincount(of_train).argmax())),
        said,
        (rows.x.shape[1], rows.x.shape[2]) if rows.x.ndim == 3 else None,
        (*rows.notes, *notes),
        float(np.mean(scaled[:n_train] == 0)),
    )
    return prepared.save(about, scaled, y)


def shortened(name: str) -> str:
    """A name that fits into a sentence, on one line and printable."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name.strip()) or "no name"
    return shown if len(shown) <= MAX_NAME else shown[: MAX_NAME - 1] + "…"


def _check_sizes(x: np.ndarray, rows: Rows) -> None:
    if len(rows.labels) != len(x):
        raise DataError(f"expected a label for each row, got {len(rows.labels):,} labels for {len(x):,} rows")
    if len(x) < MIN_ROWS:
        raise DataError(f"expected at least {MIN_ROWS} rows, got {len(x)}; bring more")
    if len(x) - rows.n_test < MIN_ROWS:
        raise DataError(f"expected at least {MIN_ROWS} training rows, got {len(x) - rows.n_test}; bring more")
    if not 1 <= x.shape[1] <= MAX_INPUTS:
        raise DataError(f"expected 1 to {MAX_INPUTS:,} inputs a row, got {x.shape[1]:,}; leave some out")
    if x.size > MAX_NUMBERS:
        raise DataError(
            f"expected at most {MAX_NUMBERS:,} numbers (rows times inputs), got {x.size:,}; bring fewer rows"
        )


def _check_finite(x: np.ndarray, columns: Sequence[str]) -> None:
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(x)))
        value = "no value" if np.isnan(x[row, column]) else "an infinite value"
        named = f"column “{shortened(columns[column])}”" if columns else f"input {column + 1}"
        raise DataError(
            f"expected a finite number in row {row + 1}, {named}, got {value}; fill it in or remove the row"
        )


def classes_of(labels: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes by name, in order, and the class of each row, (n,) int32.

    Labels that all look like whole numbers are ordered as numbers, others as texts.

    Raises:
        DataError: A label is missing or no class, or there are too few or too many classes.
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
        raise DataError(f"expected at least 2 classes, got one: {shortened(names[0])}; bring rows of another class too")
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
            " them or make groups"
        )
    return int(value)


def _order(n: int, n_test: int) -> np.ndarray:
    """A shuffled order of the rows, in which the source's own test rows stay the last.

    The others are shuffled also there: a source may be sorted by class, and batches are neighbouring rows.
    """
    shuffled = np.random.default_rng(SEED).permutation(n - n_test)
    return np.concatenate([shuffled, np.arange(n - n_test, n)])


def _scaled(x: np.ndarray, of_train: np.ndarray, is_image: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Rows in [0, 1] as float32, or as bytes where they were bytes; values beyond those in training are cut off."""
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x), ()
    axis = None if is_image else 0
    low, high = of_train.min(axis=axis).astype(np.float64), of_train.max(axis=axis).astype(np.float64)
    constant = int(np.sum(high == low))
    if constant == np.size(high):
        raise DataError("expected inputs that differ between rows, got only constant ones; bring others")
    notes = (f"{constant:,} of {x.shape[1]:,} inputs are constant and teach nothing",) if constant else ()
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (x - low) / np.where(high == low, 1.0, high - low)
    scaled = np.clip(np.where(high == low, 0.0, scaled), 0.0, 1.0).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise DataError("expected numbers whose differences can be calculated, got some near the largest there are")
    return scaled, notes
