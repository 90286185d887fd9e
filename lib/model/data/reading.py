"""Reads a reader's own data, in its own process because files are untrusted. Formats are recognised by content."""

import bz2
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from lib.model.data import tables
from lib.model.data.mnist import DAMAGED, DataError, is_idx, read_idx
from lib.model.data.prepared import DataRows, Prepared, prepare, shortened
from lib.model.hardware.process import MAX_MEMORY_BYTES, answer

MAX_FILE_BYTES = 256 << 20  # also of unpacked content
EXPECTED = "expected a CSV table, an .npz of NumPy or IDX files"
_TABLES = (
    "",
    ".csv",
    ".tsv",
    ".tab",
    ".txt",
    ".data",
    ".dat",
    ".train",
    ".test",
    ".all",
    ".arff",
    ".gz",
    ".npz",
    ".zip",
)
_PROSE = ("readme", "license", "licence", "index", "copyright", "notes", "sources", "citation")
_CLUTTER = ("__macosx", "thumbs.db", "desktop.ini", "icon\r", "$recycle.bin")  # and names that begin with a dot
_FOREIGN = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF"),
    (b"\x93NUMPY", "a single array (.npy): save x and y together by numpy.savez"),
    (b"SQLite format 3", "a database: export the table as CSV"),
    (b"<", "a page of HTML or XML: download the file itself, or save the table as CSV"),
    (b"{", "JSON: save the table as CSV, as by pandas.read_json(…).to_csv(…)"),
    (b"[{", "JSON: save the table as CSV, as by pandas.read_json(…).to_csv(…)"),
    (b"\x80", "a pickle, which is never loaded: save the table as CSV, or arrays by numpy.savez"),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook (.xls): save the sheet as CSV"),
    (b"\x89HDF", "HDF5: save its arrays by numpy.savez"),
    (b"MATLAB", "a MATLAB file: save the table by writetable, as CSV"),
    (b"PAR1", "Parquet: save the table as CSV, as by pandas.read_parquet(…).to_csv(…)"),
    (b"ARROW1", "Feather: save the table as CSV, as by pandas.read_feather(…).to_csv(…)"),
    (b"FEA1", "Feather: save the table as CSV, as by pandas.read_feather(…).to_csv(…)"),
    (b"RDX", "R's own format: save the table by write.csv"),
    (b"X\n", "R's own format: save the table by write.csv"),
    (b"$FL2", "SPSS's own format: save the table as CSV"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it, or pack it as ZIP"),
    (b"Rar!", "a RAR archive: unpack it, or pack it as ZIP"),
    (b"\x28\xb5\x2f\xfd", "one packed by zstd: unpack it, or pack it as ZIP"),
    (b"\x1f\x9d", "one packed by compress: unpack it, or pack it as ZIP"),
    (b"version https://git-lfs", "a pointer of Git LFS: download the file itself"),
)
_PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
_ZIPPED = (
    ("xl/workbook.xml", "an Excel workbook: save the sheet as CSV"),
    ("xl/workbook.bin", "an Excel workbook: save the sheet as CSV"),
    ("content.xml", "a document of LibreOffice: save the sheet as CSV"),
    ("index/document.iwa", "a sheet of Numbers: export it as CSV"),
    ("data.pkl", "a file of PyTorch, which is never loaded: save its arrays by numpy.savez"),
    ("model.weights.h5", "a model of Keras, no data"),
)
MAX_UNPACKED_BYTES = 512 << 20
_ROWS = "x|xs|images?|imgs?|data|features?|inputs?|samples?|pixels?"
_LABELS = "y|ys|labels?|targets?|class(?:es)?|outputs?|lbls?"
_PARTS = {"train": "train", "training": "train", "tr": "train", "test": "test", "testing": "test", "te": "test"}
_PARTS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
_PART = "|".join(_PARTS)
_NAME = re.compile(rf"(?:({_PART})[_\W]*)?(?:({_ROWS})|({_LABELS}))(?:[_\W]*({_PART}))?")


def read(files: Sequence[tuple[str, str]], built_in: str, label: str = "") -> Prepared:
    """Read, check and save data.

    Args:
        files: Name and path of each file; empty for one of scikit-learn's sets.
        built_in: A key of `tables.SETS`, used without files.
        label: A table's column of labels; empty: it is guessed.

    Raises:
        DataError: The data cannot be trained on; the text is a sentence that says why.
    """
    try:
        if not files:
            return prepare(f"scikit-learn’s {built_in.replace('_', ' ')}", tables.scikit_learn(built_in))
        found = [(name, Path(path)) for name, path in files]
        return prepare(", ".join(name for name, _ in found), rows_of(found, label))
    except ModuleNotFoundError as error:
        raise DataError(f"{error.name} is not installed, which reads such data; run `make install`") from error
    except OSError as error:
        raise DataError(f"it cannot be read or saved ({error.strerror or shortened(str(error))})") from error
    except MemoryError:
        raise DataError(f"reading it takes more than {MAX_MEMORY_BYTES >> 30} GiB; bring fewer rows") from None


def rows_of(files: Sequence[tuple[str, Path]], label: str = "") -> DataRows:
    """The rows in these files.

    Raises:
        DataError: As `read`. OSError: A file cannot be opened.
    """
    with ExitStack() as opened:
        found: list[tuple[str, IO[bytes]]] = []
        for name, path in files:
            if not path.exists():
                raise DataError(f"there is no file “{shortened(name)}” on this machine; correct the path")
            if not path.is_file():
                raise DataError(f"“{shortened(name)}” is not a file; {EXPECTED}")
            if path.stat().st_size > MAX_FILE_BYTES:
                raise _too_long(name, path.stat().st_size)
            if not path.stat().st_size:
                raise DataError(f"“{shortened(name)}” is empty; save it again")
            found += _unpacked(name, opened.enter_context(path.open("rb")))
        if any(is_idx(_head(file)) or _is_idx_by_name(name) for name, file in found):
            return _rows_of_idx(found)
        for name, file in found:
            head = _head(file)
            if head.startswith(b"PK"):
                if len(found) > 1:
                    raise DataError(f"expected one .npz, got {len(found)} files; bring “{shortened(name)}” alone")
                return read_npz(file)
            looks = next((words for begins, words in _FOREIGN if head.lstrip().startswith(begins)), None)
            if head[257:262] == b"ustar":
                looks = "a tar archive: unpack it, or pack it as ZIP"
            if looks is None and b"\0" in head and not tables.encoding_of(file).startswith(("utf-16", "utf-32")):
                every_second = head[::2].strip(b"\0") and head[1::2].strip(b"\0")
                looks = "a binary file of another kind" if every_second else "UTF-16 without its mark: save it as UTF-8"
            if looks is not None:
                raise DataError(f"“{shortened(name)}” looks like {looks}; {EXPECTED}")
        return tables.read_tables(found, label)


def _too_long(name: str, n_bytes: float) -> DataError:
    got = f"{n_bytes / 2**20:,.0f}" if n_bytes < float("inf") else "more than that, unpacked,"
    return DataError(
        f"expected at most {MAX_FILE_BYTES >> 20} MiB, got {got} MiB in “{shortened(name)}”; bring fewer rows"
    )


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(4096)


def _unpacked(name: str, file: IO[bytes], depth: int = 0) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in a ZIP, gzip, bzip2 or xz; else the file itself, including an .npz, which is a ZIP too."""
    head = _head(file)
    file.seek(0)
    unpack = next((unpack for begins, unpack in _PACKED if head.startswith(begins)), None)
    if depth < 3 and unpack is not None:
        try:
            content = unpack(file).read(MAX_FILE_BYTES + 1)
        except DAMAGED as error:
            raise DataError(
                f"expected a packed file in “{shortened(name)}”, got a damaged one; bring it again"
            ) from error
        if len(content) > MAX_FILE_BYTES:
            raise _too_long(name, float("inf"))
        yield from _unpacked(re.sub(r"\.(gz|bz2|xz)$", "", name), io.BytesIO(content), depth + 1)
    elif depth < 3 and head.startswith(b"PK"):
        yield from _unzipped(name, file, depth)
    else:
        yield name, file


def _unzipped(name: str, file: IO[bytes], depth: int) -> Iterator[tuple[str, IO[bytes]]]:
    shown = f"“{shortened(name)}”"
    try:
        with zipfile.ZipFile(file) as archive:
            members = [one for one in archive.infolist() if not one.is_dir() and not _is_clutter(one.filename)]
            names = [one.filename.lower() for one in members]
            if any(one.endswith(".npy") for one in names):
                yield name, file
                return
            looks = next((words for ends, words in _ZIPPED if any(one.endswith(ends) for one in names)), None)
            if looks is not None:
                raise DataError(f"{shown} looks like {looks}; {EXPECTED}")
            wanted = {(one.CRC, one.file_size): one for one in reversed(members) if _may_hold_rows(one.filename)}
            if not wanted:
                got = ", ".join(shortened(one.filename) for one in members[:3]) or "nothing"
                raise DataError(f"{EXPECTED} in {shown}, got {got}; pack one of these")
            if (n_bytes := sum(one.file_size for one in wanted.values())) > MAX_FILE_BYTES:
                raise _too_long(name, n_bytes)
            found = []
            for one in reversed(wanted.values()):
                with archive.open(one) as member:
                    content = member.read(MAX_FILE_BYTES + 1)
                if content:
                    found += _unpacked(PurePosixPath(one.filename).name, io.BytesIO(content), depth + 1)
    except DataError:
        raise
    except RuntimeError as error:
        raise DataError(
            f"{shown} is locked by a password, or packed in an unknown way; pack it again as ZIP or gzip"
        ) from error
    except DAMAGED as error:
        raise DataError(f"{shown} is damaged ({shortened(str(error))}); bring it again") from error
    images = [one for one in found if is_idx(_head(one[1]))]
    yield from images or found


def _is_clutter(path: str) -> bool:
    """Whether an operating system left it in an archive."""
    return any(
        part.startswith(".") or part.lower() in _CLUTTER for part in PurePosixPath(path.replace("\\", "/")).parts
    )


def _may_hold_rows(path: str) -> bool:
    name = PurePosixPath(path).name.lower()
    suffix = PurePosixPath(name).suffix
    return _is_idx_by_name(name) or (suffix in _TABLES and not name.startswith(_PROSE))


def _is_idx_by_name(name: str) -> bool:
    return name.lower().removesuffix(".gz").endswith(("-ubyte", ".idx", ".idx1", ".idx3"))


def _rows_of_idx(files: Sequence[tuple[str, IO[bytes]]]) -> DataRows:
    """Two IDX files, images and labels, or four, two of them with “test” or “t10k” in their names."""
    tests = [(name, file) for name, file in files if "test" in name.lower() or "t10k" in name.lower()]
    if len(files) not in (2, 4) or (len(files) == 4 and len(tests) != 2):
        raise DataError(
            "expected two IDX files (images and labels), or two more for test with “test” or “t10k” in their names, got"
            f" {len(files)} ({', '.join(shortened(name) for name, _ in files[:6])})"
        )
    x, labels = _pair([one for one in files if len(files) == 2 or one not in tests])
    if len(files) == 2:
        return DataRows(x, labels)
    x_test, labels_test = _pair(tests)
    if x.shape[1:] != x_test.shape[1:]:
        raise DataError(f"expected training and test images of one size, got {x.shape[1:]} and {x_test.shape[1:]}")
    return DataRows(np.concatenate([x, x_test]), np.concatenate([labels, labels_test]), len(x_test))


def _pair(files: Sequence[tuple[str, IO[bytes]]]) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, whichever file comes first."""
    arrays = []
    for name, file in files:
        file.seek(0)
        try:
            arrays.append(read_idx(file.read()))
        except DataError as error:
            raise DataError(f"“{shortened(name)}”: {error}; bring another file") from error
    labels, x = sorted(arrays, key=np.ndim)
    both = " and ".join(f"“{shortened(name)}”" for name, _ in files)
    if x.ndim < 2 or labels.ndim != 1:
        raise DataError(f"expected images (3 axes) and labels (1 axis), got {x.ndim} and {labels.ndim} axes in {both}")
    if len(x) != len(labels):
        raise DataError(f"{both} do not belong together: they hold {len(x):,} images and {len(labels):,} labels")
    return x, labels


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
            names = {role: name for name in reversed(archive.files) if (role := _role(name)) is not None}
            parts = [part for part in ("train", "validation", "test") if {(part, False), (part, True)} <= names.keys()]
            if "train" not in parts:
                raise DataError(
                    "expected the arrays x and y, or x_train, y_train, x_test and y_test, got"
                    f" {', '.join(map(shortened, archive.files[:6])) or 'none'}; save the arrays under these names"
                )
            # NumPy returns other members as bytes, which `_check` refuses as arrays without axes.
            found = {role: np.asarray(archive[name]) for role, name in names.items() if role[0] in parts}
    except DataError:
        raise
    except (*DAMAGED, RuntimeError, SyntaxError, MemoryError) as error:
        if "pickle" in str(error).lower():
            raise DataError(
                "expected arrays of numbers, got pickled objects, which are never loaded; save texts as"
                " labels.astype(str)"
            ) from error
        raise DataError(f"expected an .npz file of NumPy, got a damaged one ({shortened(str(error))})") from error
    for part in parts:
        _check(names[part, False], found[part, False], names[part, True], found[part, True])
    xs, ys = ([found[part, is_label] for part in parts] for is_label in (False, True))
    if any(x.shape[1:] != xs[0].shape[1:] for x in xs):
        raise DataError(f"expected training and test rows of one size, got {xs[0].shape[1:]} and {xs[-1].shape[1:]}")
    x, labels = np.concatenate(xs), np.concatenate([_as_labels(y.reshape(-1)) for y in ys])
    x = x.astype(np.float64) if x.dtype.kind in "biu" and x.dtype != np.uint8 else x
    return DataRows(x, labels, len(xs[-1]) if parts[-1] == "test" else 0)


def _role(name: str) -> tuple[str, bool] | None:
    """The part of the data that an array holds, and whether they are labels; None if its name does not tell."""
    match = _NAME.fullmatch(name.rpartition("/")[2].lower())
    return (_PARTS.get(match[1] or match[4] or "", "train"), bool(match[3])) if match is not None else None


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


def _as_labels(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "replace")
    return y.astype(np.int64) if y.dtype.kind == "b" else y


def main(connection: Connection) -> None:
    """The reader's process: answers each (files, built_in, label) with `Prepared`, or a sentence why not."""
    answer(connection, read)
