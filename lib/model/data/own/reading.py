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

from lib.model.data.mnist_arrays import DAMAGED, DataError
from lib.model.data.own import idx, npz, tables
from lib.model.data.own.prepared import Prepared
from lib.model.data.own.rows import DataRows, prepare, shortened
from lib.model.hardware.little_memory import MAX_MEMORY_BYTES, answer

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
        return _rows_in(found, label)


def _rows_in(files: list[tuple[str, IO[bytes]]], label: str) -> DataRows:
    if any(idx.is_idx(_head(file)) or _is_idx_by_name(name) for name, file in files):
        return idx.read_idx(files)
    for name, file in files:
        head = _head(file)
        if head.startswith(b"PK"):
            if len(files) > 1:
                raise DataError(f"expected one .npz, got {len(files)} files; bring “{shortened(name)}” alone")
            return npz.read_npz(file)
        looks = next((words for begins, words in _FOREIGN if head.lstrip().startswith(begins)), None)
        if looks is not None:
            raise DataError(f"“{shortened(name)}” looks like {looks}; {EXPECTED}")
        if head[257:262] == b"ustar":
            raise DataError(f"“{shortened(name)}” looks like a tar archive: unpack it, or pack it as ZIP; {EXPECTED}")
        if b"\0" in head and not tables.encoding_of(file).startswith(("utf-16", "utf-32")):
            raise DataError(f"“{shortened(name)}” is a binary file of another kind; {EXPECTED}")
    return tables.read_tables(files, label)


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
        if isinstance(error, NotImplementedError):
            raise DataError(f"{shown} is packed in an unknown way; pack it again as ZIP or gzip") from error
        raise DataError(f"{shown} is locked by a password; pack it without one") from error
    except DAMAGED as error:
        raise DataError(f"{shown} is damaged ({shortened(str(error))}); bring it again") from error
    images = [one for one in found if idx.is_idx(_head(one[1]))]
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


def main(connection: Connection) -> None:
    """The reader's process: answers each (files, built_in, label) with `Prepared`, or a sentence why not."""
    answer(connection, read)
