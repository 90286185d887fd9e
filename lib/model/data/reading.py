"""Read user-supplied data, in a separate process because files are untrusted. Formats are recognised by content."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from lib.model.data.mnist import DataError, is_idx, read_idx
from lib.model.data.prepared import PIXEL, DataRows, Prepared, prepare, shortened
from lib.model.hardware.process import MAX_MEMORY_BYTES, answer
from lib.model.spec import MAX_CLASSES

SURE = ("label", "labels", "class", "target")  # label column names, regardless of content
LIKELY = ("species", "diagnosis", "outcome", "category", "survived", "digit")  # label column names if the content fits
FEW_CLASSES = 20  # a column of more distinct numbers is probably an input
MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "?")  # missing numbers
SETS = {"digits": "load_digits", "iris": "load_iris", "wine": "load_wine", "breast_cancer": "load_breast_cancer"}
_SEPARATORS = ("\t", ";", "|", ",", " ")  # most reliable first; a blank stands for any number of blanks
_SAMPLE_BYTES, _SAMPLE_RECORDS = 1 << 20, 60
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_NUMBER = re.compile(r"[+-]?(\d[\d.,]*|[.,]\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?[\d.]*,\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_TWO_NUMBERS = re.compile(r"\d+ +[+-]?\d")
_UNNAMED = re.compile(r"unnamed column \d+|Unnamed: \d+")


def encoding_of(file: IO[bytes]) -> str:
    """UTF-16 or UTF-32 if a BOM says so, UTF-8 if all of it is valid, else Windows-1252."""
    file.seek(0)
    content = file.read()
    for bom, name in _BOMS.items():
        if content.startswith(bom):
            return name
    try:
        content.decode()
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def read_tables(files: Sequence[tuple[str, IO[bytes]]], label: str = "") -> DataRows:
    """Read a table of numbers with a label column; a second table is used as test rows if its name contains “test”.

    Args:
        files: Name and content of each.
        label: The name of the label column; empty to guess it.

    Raises:
        DataError: The files hold something else; the message says what.
    """
    import pandas as pd

    (name, file), others = _to_train_on(files)
    table = _TableReader(name, file)
    chosen, is_guess = table.label(label)
    ask = "; if another column holds them, enter its name under “Label column”" if is_guess else ""
    frames, notes = [table.with_labels(chosen)], [f"labels from column “{shortened(chosen)}”{ask}", *table.notes]
    n_test = 0
    for name, file in others:
        other = _TableReader(name, file)
        missing = [one for one in table.frame.columns if one not in other.frame.columns]
        if missing or n_test or "test" not in name.lower():
            why = f"it has no column “{shortened(missing[0])}”" if missing else "only one test table is used"
            notes.append(f"“{shortened(name)}” is left out: {why}")
        else:
            frames.append(other.with_labels(chosen)[table.frame.columns])
            n_test = len(frames[-1])
    frame: Any = pd.concat(frames) if len(frames) > 1 else frames[0]
    inputs = [one for one in frame.columns if one != chosen]
    names = [one for one in inputs if frame[one].dtype.kind not in "iufb" and _only_names(frame[one])]
    if names:
        notes.append(
            f"left out, because their texts hardly repeat: {', '.join(f'“{shortened(one)}”' for one in names[:5])}"
        )
    inputs = [one for one in inputs if one not in names]
    labels = frame[chosen].to_numpy(object)
    x = np.empty((len(frame), len(inputs)), np.float64)
    for place, one in enumerate(inputs):  # column by column, because pandas would copy the table twice
        x[:, place] = frame[one]
    return DataRows(x, labels, n_test, columns=inputs, notes=tuple(notes))


def _to_train_on(files: Sequence[tuple[str, IO[bytes]]]) -> tuple[tuple[str, IO[bytes]], list[tuple[str, IO[bytes]]]]:
    for is_it in (lambda _: True, lambda name: "test" not in name, lambda name: "train" in name):
        found = [one for one in files if is_it(one[0].lower())]
        if len(found) == 1:
            return found[0], [one for one in files if one is not found[0]]
    names = ", ".join(shortened(name) for name, _ in files[:6])
    raise DataError(
        f"expected one table, or two with “train” and “test” in their names, got {len(files)} ({names}); provide only"
        " the one to train on"
    )


class _TableReader:
    """A table as pandas reads it, with one type per column; labels are read again, as texts."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._shown, self._file = f"“{shortened(name)}”", file
        self._encoding = encoding_of(file)
        file.seek(0)
        sample = file.read(_SAMPLE_BYTES)
        text = codecs.getincrementaldecoder(self._encoding)("replace").decode(sample, final=len(sample) < _SAMPLE_BYTES)
        lines = re.split(r"\r\n|\n|\r", text)
        self._layout = _layout(lines if len(sample) < _SAMPLE_BYTES else lines[:-1])
        self.notes = ()
        if self._encoding == "cp1252":
            self.notes = ("it is not UTF-8, so Windows-1252 was assumed; if names look wrong, save it as UTF-8",)
        frame = self._read(na_values=list(MISSING))
        empty = [one for one in frame.columns if _UNNAMED.fullmatch(one) and frame[one].isna().all()]
        self._filled = frame.notna().any(axis=1).to_numpy()
        frame = frame.drop(columns=empty)
        self.frame: Any = frame if self._filled.all() else frame[self._filled]

    def _read(self, **options) -> Any:
        import pandas as pd

        self._file.seek(0)
        try:
            with warnings.catch_warnings(action="ignore", category=pd.errors.DtypeWarning):  # for columns with texts
                return pd.read_csv(
                    self._file,  # type: ignore[arg-type]
                    header=None,
                    index_col=False,
                    skipinitialspace=True,
                    keep_default_na=False,
                    encoding=self._encoding,
                    encoding_errors="replace",
                    **self._layout,
                    **options,
                )
        except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
            said = shortened(str(error).strip().split("\n")[0])
            raise DataError(
                f"expected a table with one value per column in each row, got a broken one ({said})"
            ) from error

    def label(self, wanted: str) -> tuple[str, bool]:
        """Return the label column, and whether it is a guess."""
        columns = list(self.frame.columns)
        listed = ", ".join(map(shortened, columns[:8])) + (", …" if len(columns) > 8 else "")
        by_name = {name.strip().lower(): name for name in reversed(columns)}
        for name in (wanted.strip().lower(),) if wanted else SURE:
            if name in by_name:
                return by_name[name], False
        if wanted:
            raise DataError(
                f"expected “{shortened(wanted)}” among the columns of {self._shown}, got {listed}; correct the label"
                " column, or leave it empty"
            )
        ranks = {name: rank for name in columns if (rank := self._rank(name)) is not None}
        if ranks:
            return min(ranks, key=ranks.__getitem__), True
        raise DataError(
            f"expected a label column (whole numbers or texts, 2 to {MAX_CLASSES} classes), got none among {listed};"
            " enter its name under “Label column”, or use rows that have labels"
        )

    def _rank(self, name: str) -> tuple | None:
        """A sort key, lowest for the column most likely to hold labels; None if it cannot hold labels."""
        column, columns = self.frame[name], list(self.frame.columns)
        given = column.dropna()
        is_number = column.dtype.kind in "iufb"
        if PIXEL.fullmatch(name.strip()) or (column.dtype.kind == "f" and (given != np.floor(given)).any()):
            return None
        n_classes = column.nunique()
        if not 2 <= n_classes <= min(MAX_CLASSES, len(given) // 2):
            return None
        said = name.strip().lower()
        is_last, is_first = name == columns[-1], name == columns[0]
        return (
            said not in LIKELY,
            is_number,
            said != "y",
            n_classes > FEW_CLASSES,
            not (is_first or is_last),
            n_classes,
            is_first,
        )

    def with_labels(self, label: str) -> Any:
        """Return the table with its labels as they are written in the file."""
        if self.frame[label].dtype.kind in "iu":
            return self.frame.assign(**{label: self.frame[label].astype(str)})
        texts = self._read(usecols=[label], dtype=str)[label]
        return self.frame.assign(**{label: texts[self._filled]})


def _layout(lines: list[str]) -> dict[str, Any]:
    """Guess the table's layout from its first lines, as arguments for pandas."""
    separator, records = _records([re.sub(r"^[#%]\s*", "", line) for line in lines])
    width = _usual_width(records)
    if width < 2:
        raise DataError(
            "expected a label column and at least one numeric column, got one column; separate columns by commas"
        )
    # Titles above the table are narrower or have one text; R's first line lacks a name for the row names.
    widths = [len(fields) * (sum(bool(one.strip()) for one in fields) >= min(2, width - 1)) for _, fields in records]
    place = 0 if 2 <= widths[0] == width - 1 else next((n for n, one in enumerate(widths) if one == width), 0)
    end, first = records[place]
    rows = [fields for _, fields in records[place + 1 :] if len(fields) == width]
    numbers = [field.strip() for fields in (first, *rows) for field in fields if _is_number(field)]
    thousands = separator == "," and all(_THOUSANDS.fullmatch(one) for one in numbers if "," in one)
    decimal = "," if not thousands and any(map(_DECIMAL_COMMA.fullmatch, numbers)) else "."
    if _is_row(first, rows):
        end = records[place - 1][0] if place else 0
        first = [f"column {n}" for n in range(1, width + 1)]
    elif len(first) < width:  # row names, as R writes them, or a separator at the end of each row
        ends_empty = all(not fields[-1].strip() for fields in rows)
        first = [*first, ""] if ends_empty else ["", *first]
    sep = r"\s+" if separator == " " else separator
    return {"names": _distinct(first), "sep": sep, "skiprows": end, "decimal": decimal}


def _records(lines: list[str]) -> tuple[str, list[tuple[int, list[str]]]]:
    """Return the separator, and each record with the number of records and empty lines up to its end."""
    found = {one: list(_split(lines, one)) for one in _SEPARATORS}
    for one, records in found.items():
        width = _usual_width(records)
        if one == "," and 2 * sum(any(map(_TWO_NUMBERS.match, fields)) for _, fields in records) > len(records):
            continue  # decimal commas between blanks
        if width > 1 and 2 * sum(len(fields) == width for _, fields in records) >= len(records):
            return one, records
    separator = max(_SEPARATORS[:-1], key=lambda one: _usual_width(found[one]))
    return separator, found[separator]


def _split(lines: list[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    shown = [" ".join(line.split()) for line in lines] if separator == " " else lines
    reader = csv.reader(io.StringIO("\n".join(shown), newline=""), delimiter=separator, skipinitialspace=True)
    counted = enumerate(reader, 1)  # as pandas counts `skiprows`
    records = ((place, fields) for place, fields in counted if any(field.strip() for field in fields))
    with suppress(csv.Error):
        yield from islice(records, _SAMPLE_RECORDS)


def _usual_width(records: list[tuple[int, list[str]]]) -> int:
    """The most common width in the second half, because other lines may precede the table."""
    widths = Counter(len(fields) for _, fields in records[len(records) // 2 :])
    return max(widths, key=lambda width: (widths[width], width), default=0)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def _is_row(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first line holds values, not names: numbers above numbers, and texts that recur below."""
    numbers = [text for text in first if _is_number(text)]
    if not numbers or not rows or any(numbers == [str(n + s) for n in range(len(numbers))] for s in (0, 1)):
        return False
    texts = [place for place, text in enumerate(first) if text.strip() not in MISSING and not _is_number(text)]
    return not texts or any(first[place] == fields[place] for place in texts for fields in rows)


def _distinct(names: Sequence[str]) -> list[str]:
    made: list[str] = []
    for place, name in enumerate(names):
        shown = name.strip() or f"unnamed column {place + 1}"
        while shown in made:
            shown += " again"
        made.append(shown)
    return made


def _only_names(column: Any) -> bool:
    """Whether the column's texts hardly repeat, so it can be left out; DataError for other texts."""
    texts = column.notna() & ~column.map(lambda value: _is_number(str(value)))
    if 2 * texts.sum() >= len(column) and 2 * column.nunique() > len(column):
        return True
    row = int(np.flatnonzero(texts)[0]) if texts.any() else 0
    raise DataError(
        f"expected numbers in column “{shortened(str(column.name))}”, got “{shortened(str(column.iloc[row]))}” in row"
        f" {row + 1}; correct it, or remove the column; if it holds the labels, enter it under “Label column”"
    )


def scikit_learn(name: str) -> DataRows:
    """Load one of `SETS`; needs scikit-learn."""
    import sklearn.datasets

    found = getattr(sklearn.datasets, SETS[name])()
    names = np.array([str(one) for one in found.target_names])
    if name == "digits":
        return DataRows(found.images, names[found.target])
    return DataRows(found.data, names[found.target], columns=list(found.feature_names))


MAX_FILE_BYTES = 256 << 20  # applies to unpacked content too
EXPECTED = "expected a CSV table, a NumPy .npz or IDX files"
_TABLES = ("", ".csv", ".tsv", ".tab", ".txt", ".data", ".dat", ".train", ".test", ".all", ".gz", ".npz", ".zip")
# Names that begin so hold no rows; operating systems leave files that begin with a dot.
_NO_ROWS = (".", "readme", "license", "licence", "index", "copyright", "notes", "sources", "citation")
_FOREIGN = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF"),
    (b"\x93NUMPY", "a single array (.npy): save x and y together with numpy.savez"),
    (b"SQLite format 3", "a database: export the table as CSV"),
    (b"<", "an HTML or XML page: download the file itself, or save the table as CSV"),
    (b"{", "JSON: save the table as CSV, for example with pandas.read_json(…).to_csv(…)"),
    (b"[{", "JSON: save the table as CSV, for example with pandas.read_json(…).to_csv(…)"),
    (b"\x80", "a pickle, which is never loaded: save the table as CSV, or arrays with numpy.savez"),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook (.xls): save the sheet as CSV"),
    (b"\x89HDF", "HDF5: save its arrays with numpy.savez"),
    (b"MATLAB", "a MATLAB file: save the table as CSV with writetable"),
    (b"PAR1", "Parquet: save the table as CSV, for example with pandas.read_parquet(…).to_csv(…)"),
    (b"ARROW1", "Feather: save the table as CSV, for example with pandas.read_feather(…).to_csv(…)"),
    (b"FEA1", "Feather: save the table as CSV, for example with pandas.read_feather(…).to_csv(…)"),
    (b"RDX", "R's own format: save the table with write.csv"),
    (b"X\n", "R's own format: save the table with write.csv"),
    (b"$FL2", "SPSS's own format: save the table as CSV"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it, or zip it"),
    (b"Rar!", "a RAR archive: unpack it, or zip it"),
    (b"\x28\xb5\x2f\xfd", "a file packed by zstd: unpack it, or zip it"),
    (b"\x1f\x9d", "a file packed by compress: unpack it, or zip it"),
    (b"version https://git-lfs", "a Git LFS pointer: download the file itself"),
)
_PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
_ZIPPED = (
    ("xl/workbook.xml", "an Excel workbook: save the sheet as CSV"),
    ("xl/workbook.bin", "an Excel workbook: save the sheet as CSV"),
    ("content.xml", "a LibreOffice document: save the sheet as CSV"),
    ("index/document.iwa", "a Numbers sheet: export it as CSV"),
    ("data.pkl", "a PyTorch file, which is never loaded: save its arrays with numpy.savez"),
    ("model.weights.h5", "a Keras model, not data"),
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
        built_in: A key of `SETS`, used if there are no files.
        label: A table's label column; empty to guess it.

    Raises:
        DataError: The data cannot be trained on; the message says why.
    """
    try:
        if not files:
            return prepare(f"scikit-learn’s {built_in.replace('_', ' ')}", scikit_learn(built_in))
        found = [(name, Path(path)) for name, path in files]
        return prepare(", ".join(name for name, _ in found), rows_of(found, label))
    except OSError as error:  # also of gzip, for damaged files
        raise DataError(f"it cannot be read or saved ({error.strerror or shortened(str(error))})") from error
    except MemoryError:
        raise DataError(f"reading it takes more than {MAX_MEMORY_BYTES >> 30} GiB; use fewer rows") from None
    except DataError:
        raise
    except Exception as error:  # the libraries raise a dozen kinds
        if "pickle" in str(error).lower():
            raise DataError("pickled objects are never loaded; save texts as labels.astype(str)") from error
        raise DataError(f"it is damaged or locked ({shortened(str(error))}); get a new copy, unlocked") from error


def rows_of(files: Sequence[tuple[str, Path]], label: str = "") -> DataRows:
    """Read the rows in these files.

    Raises:
        DataError: As in `read`. Other errors: A file is damaged, or cannot be opened.
    """
    with ExitStack() as opened:
        found: list[tuple[str, IO[bytes]]] = []
        for name, path in files:
            if not path.is_file():
                raise DataError(f"there is no file “{shortened(name)}” on this machine; correct the path")
            _check_size(name, path.stat().st_size, MAX_FILE_BYTES)
            if not path.stat().st_size:
                raise DataError(f"“{shortened(name)}” is empty; save it again")
            found += _unpacked(name, opened.enter_context(path.open("rb")))
        if any(is_idx(_head(file)) or _is_idx_by_name(name) for name, file in found):
            return _rows_of_idx(found)
        for name, file in found:
            head = _head(file)
            if head.startswith(b"PK"):
                if len(found) > 1:
                    raise DataError(f"expected one .npz, got {len(found)} files; provide only “{shortened(name)}”")
                return read_npz(file)
            looks = next((words for begins, words in _FOREIGN if head.lstrip().startswith(begins)), None)
            if head[257:262] == b"ustar":
                looks = "a tar archive: unpack it, or zip it"
            if looks is None and b"\0" in head and not encoding_of(file).startswith(("utf-16", "utf-32")):
                looks = "a binary file of another kind, or UTF-16 without a BOM: save it as UTF-8"
            if looks is not None:
                raise DataError(f"“{shortened(name)}” looks like {looks}; {EXPECTED}")
        return read_tables(found, label)


def _check_size(name: str, n_bytes: int, most_bytes: int) -> None:
    if n_bytes > most_bytes:
        raise DataError(f"{shortened(name)}: expected at most {most_bytes >> 20} MiB, got more; use fewer rows")


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(4096)


def _unpacked(name: str, file: IO[bytes], depth: int = 0) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in a ZIP, gzip, bzip2 or xz; else the file itself. An .npz is not unpacked, although it is a ZIP."""
    head = _head(file)
    file.seek(0)
    unpack = next((unpack for begins, unpack in _PACKED if head.startswith(begins)), None)
    if depth < 3 and unpack is not None:
        content = unpack(file).read(MAX_FILE_BYTES + 1)
        _check_size(name, len(content), MAX_FILE_BYTES)
        yield from _unpacked(re.sub(r"\.(gz|bz2|xz)$", "", name), io.BytesIO(content), depth + 1)
    elif depth < 3 and head.startswith(b"PK"):
        yield from _unzipped(name, file, depth)
    else:
        yield name, file


def _unzipped(name: str, file: IO[bytes], depth: int) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(file) as archive:
        members = [one for one in archive.infolist() if not one.is_dir()]
        names = [one.filename.lower() for one in members]
        if any(one.endswith(".npy") for one in names):
            yield name, file
            return
        looks = next((words for ends, words in _ZIPPED if any(one.endswith(ends) for one in names)), None)
        if looks is not None:
            raise DataError(f"“{shortened(name)}” looks like {looks}; {EXPECTED}")
        # Some archives hold each file twice.
        wanted = {(one.CRC, one.file_size): one for one in reversed(members) if _may_hold_rows(one.filename)}
        if not wanted:
            got = ", ".join(shortened(one.filename) for one in members[:3]) or "nothing"
            raise DataError(f"{EXPECTED} in “{shortened(name)}”, got {got}; include one of these")
        _check_size(name, sum(one.file_size for one in wanted.values()), MAX_FILE_BYTES)
        for one in reversed(wanted.values()):
            yield from _unpacked(PurePosixPath(one.filename).name, io.BytesIO(archive.read(one.filename)), depth + 1)


def _may_hold_rows(path: str) -> bool:
    name = PurePosixPath(path).name.lower()
    suffix = PurePosixPath(name).suffix
    return _is_idx_by_name(name) or (suffix in _TABLES and not name.startswith(_NO_ROWS))


def _is_idx_by_name(name: str) -> bool:
    return name.lower().removesuffix(".gz").endswith(("-ubyte", ".idx", ".idx1", ".idx3"))


def _rows_of_idx(files: Sequence[tuple[str, IO[bytes]]]) -> DataRows:
    """Read two IDX files, images and labels, or four, two of them with “test” or “t10k” in their names."""
    tests = [(name, file) for name, file in files if "test" in name.lower() or "t10k" in name.lower()]
    if len(files) not in (2, 4) or (len(files) == 4 and len(tests) != 2):
        raise DataError(
            "expected two IDX files (images and labels), or two more for test with “test” or “t10k” in their names, got"
            f" {len(files)} ({', '.join(shortened(name) for name, _ in files[:6])})"
        )
    train = _pair([one for one in files if len(files) == 2 or one not in tests])
    return _joined({"train": train} if len(files) == 2 else {"train": train, "test": _pair(tests)})


def _pair(files: Sequence[tuple[str, IO[bytes]]]) -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels, given in either order."""
    arrays = []
    for name, file in files:
        file.seek(0)
        try:
            arrays.append(read_idx(file.read()))
        except DataError as error:
            raise DataError(f"“{shortened(name)}”: {error}; use another file") from error
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
        DataError: The file holds something else; the message says what.
    """
    with zipfile.ZipFile(file) as archive:
        _check_size("the arrays", sum(one.file_size for one in archive.infolist()), MAX_UNPACKED_BYTES)
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        names = {role: name for name in reversed(archive.files) if (role := _role(name)) is not None}
        parts = [part for part in ("train", "validation", "test") if {(part, False), (part, True)} <= names.keys()]
        if "train" not in parts:
            raise DataError(
                "expected the arrays x and y, or x_train, y_train, x_test and y_test, got"
                f" {', '.join(map(shortened, archive.files[:6])) or 'none'}; save the arrays under these names"
            )
        # NumPy returns other members as bytes, which `_check` rejects as arrays without axes.
        found = {role: np.asarray(archive[name]) for role, name in names.items() if role[0] in parts}
    for part in parts:
        _check(names[part, False], found[part, False], names[part, True], found[part, True])
    return _joined({part: (found[part, False], _as_labels(found[part, True].reshape(-1))) for part in parts})


def _joined(parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> DataRows:
    """Join rows and labels of each part, of which “test” is the last."""
    xs, labels = zip(*parts.values(), strict=True)
    if any(x.shape[1:] != xs[0].shape[1:] for x in xs):
        raise DataError(f"expected training and test rows of one size, got {xs[0].shape[1:]} and {xs[-1].shape[1:]}")
    x = np.concatenate(xs)
    x = x.astype(np.float64) if x.dtype.kind in "biu" and x.dtype != np.uint8 else x
    return DataRows(x, np.concatenate(labels), len(xs[-1]) if "test" in parts else 0)


def _role(name: str) -> tuple[str, bool] | None:
    """The part of the data that an array holds, and whether it holds labels; None if its name does not say."""
    match = _NAME.fullmatch(name.rpartition("/")[2].lower())
    return (_PARTS.get(match[1] or match[4] or "", "train"), bool(match[3])) if match is not None else None


def _check(x_name: str, x: np.ndarray, y_name: str, y: np.ndarray) -> None:
    if x.dtype.kind not in "biuf" or not 2 <= x.ndim <= 4:
        raise DataError(f"expected numbers in {shortened(x_name)}, of 2 to 4 axes, got {x.dtype} with {x.ndim}")
    if y.ndim == 0 or y.size != len(y) or y.dtype.kind not in "biufUS":
        raise DataError(
            f"expected one label per row in {shortened(y_name)}, got {y.dtype} of shape {y.shape}; give class numbers,"
            " such as argmax(axis=1) of one-hot columns"
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
    """Run the reader process: answer each (files, built_in, label) with `Prepared`, or a sentence saying why not."""
    answer(connection, read)
