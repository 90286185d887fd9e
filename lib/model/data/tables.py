"""Tables as text, and the sets that come with scikit-learn.

The first lines show the layout: separator, lines above the header, whether there is one, decimal commas. pandas reads
the rest.
"""

import codecs
import csv
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from lib.model.data.mnist import DataError
from lib.model.data.prepared import MAX_NUMBERS, MIN_ROWS, PIXEL, DataRows, shortened
from lib.model.spec import MAX_CLASSES

SURE = ("label", "labels", "class", "target")  # names of a column of labels, whatever it holds
LIKELY = ("species", "diagnosis", "outcome", "category", "survived", "digit")  # if it can be one
FEW_CLASSES = 20  # a column of more distinct numbers is probably an input
MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "?")  # missing numbers
SETS = {"digits": "load_digits", "iris": "load_iris", "wine": "load_wine", "breast_cancer": "load_breast_cancer"}
_SEPARATORS = ("\t", ";", "|", ",", " ")  # the surest first; the blank stands for any number of them
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
_SVMLIGHT = re.compile(rb"\s*[+-]?[\d.]+([ \t]+\d+:[-+.\deE]+)+[ \t]*(#.*)?[\r\n]")
_UNNAMED = re.compile(r"unnamed column \d+|Unnamed: \d+")
_ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE)


def encoding_of(file: IO[bytes]) -> str:
    """UTF-16 or UTF-32 if it says so, UTF-8 if all of it is valid, else Windows-1252."""
    file.seek(0)
    head = file.read(4)
    for bom, name in _BOMS.items():
        if head.startswith(bom):
            return name
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for part in (head, *iter(lambda: file.read(1 << 20), b"")):
            decoder.decode(part)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def read_tables(files: Sequence[tuple[str, IO[bytes]]], label: str = "") -> DataRows:
    """Read a table of numbers with a column of labels; of several tables, the test rows have “test” in their name.

    Args:
        files: Name and content of each.
        label: The name of the column of labels; empty: it is guessed.

    Raises:
        DataError: The files hold something else; the text says what.
    """
    import pandas as pd

    (name, file), others = _to_train_on(files)
    file.seek(0)
    if not others and _SVMLIGHT.match(file.read(4096)):
        return _svmlight(file)
    table = _TableReader(name, file)
    chosen, is_guess = table.label(label)
    ask = "; if another holds them, write its name into “Column of labels”" if is_guess else ""
    frames, notes = [table.with_labels(chosen)], [f"labels from column “{shortened(chosen)}”{ask}", *table.notes]
    n_test = 0
    for name, file in others:
        other = _TableReader(name, file)
        missing = [one for one in table.frame.columns if one not in other.frame.columns]
        if missing or n_test or "test" not in name.lower():
            why = f"it has no column “{shortened(missing[0])}”" if missing else "it is one table too many"
            notes.append(f"“{shortened(name)}” is left out: {why}")
        else:
            frames.append(other.with_labels(chosen)[table.frame.columns])
            n_test = len(frames[-1])
    frame: Any = pd.concat(frames) if len(frames) > 1 else frames[0]
    inputs = [one for one in frame.columns if one != chosen]
    names = [one for one in inputs if frame[one].dtype.kind not in "iufb" and _only_names(frame[one])]
    if names:
        notes.append(f"left out, as texts that hardly repeat: {', '.join(f'“{shortened(one)}”' for one in names[:5])}")
    inputs = [one for one in inputs if one not in names]
    labels = frame[chosen].to_numpy(object)
    x = np.empty((len(frame), len(inputs)), np.float64)
    for place, one in enumerate(inputs):  # column by column: pandas would copy the table twice
        x[:, place] = frame[one]
    return DataRows(x, labels, n_test, columns=inputs, notes=tuple(notes))


def _svmlight(file: IO[bytes]) -> DataRows:
    """Rows in LIBSVM's format: nonzero numbers with their positions."""
    import sklearn.datasets

    file.seek(0)
    try:
        x, labels = sklearn.datasets.load_svmlight_file(file)[:2]
    except ValueError as error:
        raise DataError(f"expected rows as LIBSVM writes them, got a broken one ({shortened(str(error))})") from error
    if math.prod(x.shape) > MAX_NUMBERS:
        raise DataError(f"expected at most {MAX_NUMBERS:,} numbers, got {x.shape[0]:,} × {x.shape[1]:,}; bring fewer")
    return DataRows(x.toarray(), np.asarray(labels))


def _to_train_on(files: Sequence[tuple[str, IO[bytes]]]) -> tuple[tuple[str, IO[bytes]], list[tuple[str, IO[bytes]]]]:
    for is_it in (lambda _: True, lambda name: "test" not in name, lambda name: "train" in name):
        found = [one for one in files if is_it(one[0].lower())]
        if len(found) == 1:
            return found[0], [one for one in files if one is not found[0]]
    names = ", ".join(shortened(name) for name, _ in files[:6])
    raise DataError(
        f"expected one table, or two with “train” and “test” in their names, got {len(files)} ({names}); bring the one"
        " to train on alone"
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
            with warnings.catch_warnings(action="ignore", category=pd.errors.DtypeWarning):  # of columns with texts
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
                f"expected a table with as many values in each row as columns, got a broken one ({said})"
            ) from error

    def label(self, wanted: str) -> tuple[str, bool]:
        """The column of labels, and whether it is a guess."""
        columns = list(self.frame.columns)
        listed = ", ".join(map(shortened, columns[:8])) + (", …" if len(columns) > 8 else "")
        by_name = {name.strip().lower(): name for name in reversed(columns)}
        if wanted:
            if wanted.strip().lower() in by_name:
                return by_name[wanted.strip().lower()], False
            raise DataError(
                f"expected “{shortened(wanted)}” among the columns of {self._shown}, got {listed}; correct the"
                " column of labels, or leave it empty"
            )
        for name in SURE:
            if name in by_name:
                return by_name[name], False
        if len(self.frame) < MIN_ROWS:
            raise DataError(f"expected at least {MIN_ROWS} rows, got {len(self.frame)}; bring more")
        ranks = {name: rank for name in columns if (rank := self._rank(name)) is not None}
        if ranks:
            return min(ranks, key=ranks.__getitem__), True
        raise DataError(
            f"expected a column of labels (whole numbers or texts, 2 to {MAX_CLASSES} classes), got none among"
            f" {listed}; write its name into “Column of labels”, or bring the rows that have labels"
        )

    def _rank(self, name: str) -> tuple | None:
        """How unlike labels a column is, for comparison; None if it cannot hold labels."""
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
        """The table, with its labels as the texts in the file."""
        if self.frame[label].dtype.kind in "iu":
            return self.frame.assign(**{label: self.frame[label].astype(str)})
        texts = self._read(usecols=[label], dtype=str)[label]
        return self.frame.assign(**{label: texts[self._filled]})


def _layout(lines: list[str]) -> dict[str, Any]:
    """How a table that begins with these lines is written, as pandas is told."""
    start = next((number for number, line in enumerate(lines) if line.strip().lower() == "@data"), None)
    if start is not None:  # ARFF, as Weka and OpenML write it
        names = [found[1].strip("'\"") for line in lines[:start] if (found := _ATTRIBUTE.match(line.strip()))]
        return {"names": _distinct(names), "sep": ",", "skiprows": start + 1, "quotechar": "'", "comment": "%"}
    separator, records = _records([re.sub(r"^[#%]\s*", "", line) for line in lines])
    width = _usual_width(records)
    if width < 2:
        raise DataError(
            "expected a column of labels and at least one of numbers, got one column; separate them by commas"
        )
    place = next(place for place in range(len(records)) if _may_be_first(records, place, width))
    end, first = records[place]
    rows = [fields for _, fields in records[place + 1 :] if len(fields) == width]
    numbers = [field.strip() for fields in (first, *rows) for field in fields if _is_number(field)]
    thousands = separator == "," and all(_THOUSANDS.fullmatch(one) for one in numbers if "," in one)
    decimal = "," if not thousands and any(map(_DECIMAL_COMMA.fullmatch, numbers)) else "."
    if _is_row(first, rows):
        end = records[place - 1][0] if place else 0
        first = [f"column {n}" for n in range(1, width + 1)]
    elif len(first) < width:  # a column of row names, as R writes it; or a separator at the end of each row
        ends_empty = all(not fields[-1].strip() for fields in rows)
        first = [*first, ""] if ends_empty else ["", *first]
    sep = r"\s+" if separator == " " else separator
    return {"names": _distinct(first), "sep": sep, "skiprows": end, "decimal": decimal}


def _records(lines: list[str]) -> tuple[str, list[tuple[int, list[str]]]]:
    """The separator, and each record with the number of records and empty lines up to its end."""
    found = {one: list(_split(lines, one)) for one in _SEPARATORS}
    for one, records in found.items():
        width = _usual_width(records)
        if one == "," and 2 * sum(any(map(_TWO_NUMBERS.match, fields)) for _, fields in records) > len(records):
            continue  # decimal commas between blanks
        if one == " " and 2 * sum(any(map(_is_number, fields)) for _, fields in records) < len(records):
            continue  # it is prose
        if width > 1 and 2 * sum(len(fields) == width for _, fields in records) >= len(records):
            return one, records
    separator = max(_SEPARATORS[:-1], key=lambda one: _usual_width(found[one]))
    return separator, found[separator]


def _split(lines: list[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    shown = [" ".join(line.split()) for line in lines] if separator == " " else lines
    reader = csv.reader(io.StringIO("\n".join(shown), newline=""), delimiter=separator, skipinitialspace=True)
    n_records = 0
    try:
        for place, fields in enumerate(reader, 1):
            if any(field.strip() for field in fields):
                yield place, fields  # as pandas counts skipped lines
                n_records += 1
            if n_records == _SAMPLE_RECORDS:
                return
    except csv.Error:
        return


def _usual_width(records: list[tuple[int, list[str]]]) -> int:
    """The usual width in the later half: other lines may precede the table."""
    widths = Counter(len(fields) for _, fields in records[len(records) // 2 :])
    return max(widths, key=lambda width: (widths[width], width), default=0)


def _may_be_first(records: list[tuple[int, list[str]]], place: int, width: int) -> bool:
    """Whether a record can be the header or first row, rather than a title above them."""
    fields = records[place][1]
    if place + 1 == len(records):
        return True
    if len(fields) == width:
        return sum(bool(field.strip()) for field in fields) >= min(2, width - 1)
    following = records[place + 1][1]
    return 2 <= len(fields) == width - 1 and len(following) == width and any(map(_is_number, following))


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def _is_row(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first line holds values, not names: numbers above numbers, and texts that recur below."""
    numbers = [text for text in first if _is_number(text)]
    if not numbers or not rows or any(numbers == [str(n + s) for n in range(len(numbers))] for s in (0, 1)):
        return False
    texts = [place for place, text in enumerate(first) if text.strip() not in MISSING and not _is_number(text)]
    comes_again = False
    for place in texts:
        below = [fields[place] for fields in rows if fields[place].strip() not in MISSING]
        comes_again |= first[place] in below
        if first[place] not in below and 2 * len({*below}) <= len(below):
            return False
    return comes_again or not texts


def _distinct(names: Sequence[str]) -> list[str]:
    """Unique column names; unnamed columns get one."""
    made: list[str] = []
    for place, name in enumerate(names):
        shown = name.strip() or f"unnamed column {place + 1}"
        while shown in made:
            shown += " again"
        made.append(shown)
    return made


def _only_names(column: Any) -> bool:
    """Whether the texts of a column hardly repeat, so that it can be left out; DataError for other texts."""
    texts = column.notna() & ~column.astype(str).map(_is_number)
    if 2 * texts.sum() >= len(column) and 2 * column.nunique() > len(column):
        return True
    row = int(np.flatnonzero(texts)[0]) if texts.any() else 0
    remedy = "correct this value" if texts.sum() == 1 else "leave the column out, or write numbers for it"
    raise DataError(
        f"expected numbers in column “{shortened(str(column.name))}”, got “{shortened(str(column.iloc[row]))}” in row"
        f" {row + 1}; {remedy}; if it holds the labels, name it as the column of labels"
    )


def scikit_learn(name: str) -> DataRows:
    """One of `SETS`; needs scikit-learn."""
    import sklearn.datasets

    found = getattr(sklearn.datasets, SETS[name])()
    names = np.array([str(one) for one in found.target_names])
    if name == "digits":
        return DataRows(found.images, names[found.target])
    return DataRows(found.data, names[found.target], columns=list(found.feature_names))
