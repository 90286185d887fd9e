"""NumPy's `.npz` files: names distinguish rows from labels, or else shapes do."""

import re
import zipfile
from collections.abc import Mapping
from typing import IO

import numpy as np

from lib.model.data.mnist_arrays import DAMAGED, DataError
from lib.model.data.own.prepared import MAX_NUMBERS
from lib.model.data.own.rows import DataRows, shortened

MAX_UNPACKED_BYTES = 512 << 20
_ROWS = "x|xs|images?|imgs?|data|features?|inputs?|samples?|pixels?"
_LABELS = "y|ys|labels?|targets?|class(?:es)?|outputs?|lbls?"
_PARTS = {"train": "train", "training": "train", "tr": "train", "test": "test", "testing": "test", "te": "test"}
_PARTS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
_PART = "|".join(_PARTS)
Named = tuple[str, np.ndarray]
_NAME = re.compile(rf"(?:({_PART})[_\W]*)?(?:({_ROWS})|({_LABELS}))(?:[_\W]*({_PART}))?")
_EXPECTED = "expected the arrays x and y, or x_train, y_train, x_test and y_test"


def read_npz(file: IO[bytes]) -> DataRows:
    """Read arrays of rows and labels, such as `x` and `y`, or `train_images` and `train_labels`; never pickles.

    The source's validation rows join its training rows; its test rows stay test.

    Raises:
        DataError: The file holds something else; the text says what.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked_bytes = sum(one.file_size for one in archive.infolist())
        if unpacked_bytes > MAX_UNPACKED_BYTES:
            raise DataError(
                f"expected at most {MAX_UNPACKED_BYTES >> 20} MiB of arrays, got {unpacked_bytes >> 20:,} MiB; save"
                " fewer rows"
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            # NumPy returns other members as bytes, which `_check` refuses as arrays without axes.
            found = {name: np.asarray(archive[name]) for name in _wanted(archive.files)}
    except DataError:
        raise
    except (*DAMAGED, RuntimeError, SyntaxError, MemoryError) as error:
        if "pickle" in str(error).lower():
            raise DataError(
                "expected arrays of numbers, got pickled objects, which are never loaded; save texts as"
                " labels.astype(str)"
            ) from error
        raise DataError(f"expected an .npz file of NumPy, got a damaged one ({shortened(str(error))})") from error
    return _rows_of(found)


def _wanted(names: list[str]) -> list[str]:
    """The arrays with telling names, or else all, if they are few enough to tell apart by shape."""
    roles = {name: role for name in names if (role := _role(name)) is not None}
    if {is_label for _, is_label in roles.values()} == {False, True}:
        return list(roles)
    if not 2 <= len(names) <= 6 or not all(re.fullmatch(r"\w+", name) for name in names):
        got = ", ".join(map(shortened, names[:6])) or "none"
        raise DataError(f"{_EXPECTED}, got {got}; save the arrays under these names")
    return names


def _role(name: str) -> tuple[str, bool] | None:
    """The part of the data that an array holds, and whether they are labels; None if its name does not tell."""
    match = _NAME.fullmatch(name.rpartition("/")[2].lower())
    return (_PARTS.get(match[1] or match[4] or "", "train"), bool(match[3])) if match is not None else None


def _rows_of(found: Mapping[str, np.ndarray]) -> DataRows:
    pairs = _pairs(found)
    for (x_name, x), (y_name, y) in pairs.values():
        _check(x_name, x, y_name, y)
    order = [part for part in ("train", "validation", "test") if part in pairs]
    xs = [pairs[part][0][1] for part in order]
    if any(x.shape[1:] != xs[0].shape[1:] for x in xs):
        raise DataError(f"expected training and test rows of one size, got {xs[0].shape[1:]} and {xs[-1].shape[1:]}")
    n_test = len(xs[-1]) if len(xs) > 1 and order[-1] == "test" else 0
    x = np.concatenate(xs)
    x = x.astype(np.float64) if x.dtype.kind in "biu" and x.dtype != np.uint8 else x
    notes = tuple(
        f"rows from “{shortened(x_name)}”, labels from “{shortened(y_name)}”"
        for (x_name, _), (y_name, _) in pairs.values()
        if {x_name.lower(), y_name.lower()} not in ({"x", "y"}, {"x_train", "y_train"}, {"x_test", "y_test"})
    )
    return DataRows(
        x, np.concatenate([_as_labels(pairs[part][1][1].reshape(-1)) for part in order]), n_test, notes=notes
    )


def _pairs(found: Mapping[str, np.ndarray]) -> dict[str, tuple[Named, Named]]:
    """Rows and labels of each part; without telling names, arrays of one length are a pair, the longest training."""
    places: dict = {}
    for name, array in found.items():
        role = _role(name) or (len(array) if array.ndim else 0, array.ndim == 0 or array.size == len(array))
        places.setdefault(role, (name, array))
    keys = dict.fromkeys(key for key, _ in places)
    pairs = {key: (places[key, False], places[key, True]) for key in keys if {(key, False), (key, True)} <= {*places}}
    if pairs and not any(isinstance(key, str) for key in keys):
        longest = sorted(pairs, reverse=True)
        pairs = {part: pairs[length] for part, length in zip(("train", "test"), longest, strict=False)}
    if "train" not in pairs:
        got = ", ".join(f"{shortened(name)} {array.shape}" for name, array in found.items())
        raise DataError(f"{_EXPECTED}, got {got}; save the arrays under these names")
    return pairs


def _check(x_name: str, x: np.ndarray, y_name: str, y: np.ndarray) -> None:
    if x.dtype.kind not in "biuf" or not 2 <= x.ndim <= 4:
        raise DataError(f"expected numbers in {shortened(x_name)}, of 2 to 4 axes, got {x.dtype} with {x.ndim}")
    if y.ndim == 0 or y.size != len(y) or y.dtype.kind not in "biufUS":
        raise DataError(
            f"expected one label a row in {shortened(y_name)}, got {y.dtype} of shape {y.shape}; give class numbers, as"
            " argmax(axis=1) makes them of columns of 0 and 1"
        )
    if len(x) != len(y):
        raise DataError(
            f"expected a label for each row, got {len(y):,} labels for {len(x):,} rows ({shortened(y_name)},"
            f" {shortened(x_name)})"
        )
    if x.size > MAX_NUMBERS:
        raise DataError(
            f"expected at most {MAX_NUMBERS:,} numbers in {shortened(x_name)}, got {x.size:,}; bring fewer rows"
        )


def _as_labels(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "replace")
    return y.astype(np.int64) if y.dtype.kind == "b" else y
