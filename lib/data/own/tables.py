"""Tables: CSV with a column of labels, `.npz` with arrays, and the sets that come with scikit-learn."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lib.data.mnist_arrays import DAMAGED, DataError
from lib.data.own.prepared import MAX_NUMBERS
from lib.data.own.rows import Rows, shortened

LABELS = ("label", "class", "target", "species", "digit", "y")  # names of a column of labels, the surest first
MISSING = ("", "NaN", "nan", "NA", "N/A", "null", "NULL", "None", "?")  # numbers that are not there
MAX_UNPACKED_BYTES = 512 << 20
SETS = {"digits": "load_digits", "iris": "load_iris", "wine": "load_wine", "breast_cancer": "load_breast_cancer"}
_PAIRS = (("x", "y"), ("images", "labels"), ("data", "target"))


def read_csv(path: Path) -> Rows:
    """A table of numbers with a header, and a column of labels: one of `LABELS`, else the last.

    Raises:
        DataError: It is something else; the text says what.
    """
    import pandas as pd

    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline(1 << 20)
        separator = max(",;\t", key=first.count)
        names = list(pd.read_csv(path, sep=separator, nrows=0, encoding="utf-8-sig").columns)
        _check_header(names)
        lower = [name.strip().lower() for name in names]
        label = names[next((lower.index(one) for one in LABELS if one in lower), len(names) - 1)]
        inputs = [name for name in names if name != label]
        frame = pd.read_csv(
            path,
            sep=separator,
            dtype={label: str},
            keep_default_na=False,
            na_values={name: list(MISSING) for name in inputs},
            encoding="utf-8-sig",
            index_col=False,
            low_memory=False,
        )
    except UnicodeDecodeError as error:
        raise DataError("expected text in UTF-8, got other bytes; save the table as CSV again") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        said = shortened(str(error).strip().split("\n")[0])
        raise DataError(
            f"expected a table with as many values in each row as columns, got a broken one ({said})"
        ) from error
    for name in inputs:
        if frame[name].dtype.kind not in "iufb":
            _refuse_text(frame[name])
    x = frame[inputs].to_numpy(np.float64)
    return Rows(x, frame[label].to_numpy(object), columns=inputs, notes=(f"labels from column “{shortened(label)}”",))


def _check_header(names: list[str]) -> None:
    if len(names) < 2:
        raise DataError(
            "expected a column of labels and at least one of numbers, got one column; separate them by commas"
        )
    numbers = [name for name in names if _is_number(name)]
    counted = [{str(place + start) for place in range(len(numbers))} for start in (0, 1)]
    if numbers and set(numbers) not in counted:
        raise DataError(
            f"expected the names of the columns in the first line, got the number {shortened(numbers[0])}; add such a"
            " line, as in “width,height,label”"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_text(column) -> None:
    import pandas as pd

    texts = pd.to_numeric(column, errors="coerce").isna() & column.notna()
    row = int(np.flatnonzero(texts.to_numpy())[0]) if texts.any() else 0
    raise DataError(
        f"expected numbers in column “{shortened(str(column.name))}”, got “{shortened(str(column.iloc[row]))}” in row"
        f" {row + 1}; leave the column out, or write numbers for it"
    )


def read_npz(path: Path) -> Rows:
    """Arrays `x` and `y`, or `x_train`, `y_train` and, where there are any, `x_test` and `y_test`; pickles are refused.

    Raises:
        DataError: It is something else; the text says what.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked_bytes = sum(one.file_size for one in archive.infolist())
        if unpacked_bytes > MAX_UNPACKED_BYTES:
            raise DataError(
                f"expected at most {MAX_UNPACKED_BYTES >> 20} MiB of arrays, got {unpacked_bytes >> 20:,} MiB"
            )
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = {name.lower(): name for name in archive.files}
            wanted = _names_in(names)
            # NumPy returns a member that is not an array as bytes, which `_rows_of` refuses as an array without axes.
            found = {name: np.asarray(archive[names[name]]) for name in wanted}
    except DataError:
        raise
    except (*DAMAGED, RuntimeError, SyntaxError, MemoryError) as error:
        if "pickle" in str(error).lower():
            raise DataError("expected arrays of numbers, got pickled objects, which are never loaded") from error
        raise DataError(f"expected an .npz file of NumPy, got a damaged one ({shortened(str(error))})") from error
    return _rows_of(found)


def _names_in(names: Mapping[str, str]) -> list[str]:
    for x, y in _PAIRS:
        if {f"{x}_train", f"{y}_train"} <= names.keys():
            test = [f"{x}_test", f"{y}_test"]
            return [f"{x}_train", f"{y}_train", *(test if set(test) <= names.keys() else [])]
        if {x, y} <= names.keys():
            return [x, y]
    got = ", ".join(map(shortened, list(names)[:6])) or "none"
    raise DataError(
        f"expected the arrays x and y, or x_train, y_train, x_test and y_test, got {got}; save the arrays under"
        " these names"
    )


def _rows_of(found: Mapping[str, np.ndarray]) -> Rows:
    parts = list(found.items())
    for (x_name, x), (y_name, y) in zip(parts[::2], parts[1::2], strict=True):
        if x.dtype.kind not in "biuf" or not 2 <= x.ndim <= 4:
            raise DataError(f"expected numbers in {x_name}, of 2 to 4 axes, got {x.dtype} with {x.ndim}")
        if y.ndim == 0 or y.size != len(y) or y.dtype.kind not in "biufUS":
            raise DataError(
                f"expected one label a row in {y_name}, got {y.dtype} of shape {y.shape}; give class numbers"
            )
        if len(x) != len(y):
            raise DataError(
                f"expected a label for each row, got {len(y):,} labels for {len(x):,} rows ({y_name}, {x_name})"
            )
        if x.size > MAX_NUMBERS:
            raise DataError(f"expected at most {MAX_NUMBERS:,} numbers in {x_name}, got {x.size:,}; bring fewer rows")
    xs, ys = [x for _, x in parts[::2]], [_as_labels(y.reshape(-1)) for _, y in parts[1::2]]
    if len(xs) > 1 and xs[0].shape[1:] != xs[1].shape[1:]:
        raise DataError(f"expected training and test rows of one size, got {xs[0].shape[1:]} and {xs[1].shape[1:]}")
    n_test = len(xs[1]) if len(xs) > 1 else 0
    x = np.concatenate(xs)
    x = x.astype(np.float64) if x.dtype.kind in "biu" and x.dtype != np.uint8 else x
    return Rows(x, np.concatenate(ys), n_test)


def _as_labels(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "replace")
    return y.astype(np.int64) if y.dtype.kind == "b" else y


def scikit_learn(name: str) -> Rows:
    """One of `SETS`; needs scikit-learn."""
    import sklearn.datasets

    found = getattr(sklearn.datasets, SETS[name])()
    names = np.array([str(one) for one in found.target_names])
    if name == "digits":
        return Rows(found.images, names[found.target])
    return Rows(found.data, names[found.target], columns=list(found.feature_names))
