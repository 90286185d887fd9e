"""Reads what somebody brought as data to train on, in a process of its own: it may come from anybody.

A format is told by content, never by name.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from lib.data.mnist_arrays import DataError
from lib.data.own import idx, tables
from lib.data.own.prepared import Prepared
from lib.data.own.rows import Rows, prepare, shortened
from lib.hardware.little_memory import MAX_MEMORY_BYTES, answer

MAX_FILE_BYTES = 256 << 20
EXPECTED = "expected a CSV table, an .npz of NumPy or IDX files"
_FOREIGN = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"%PDF", "a PDF"),
    (b"\x93NUMPY", "a single array (.npy): save x and y together by numpy.savez"),
    (b"SQLite format 3", "a database"),
    (b"<", "a page of HTML or XML"),
    (b"{", "JSON"),
    (b"\x80", "a pickle, which is never loaded"),
)


def read(files: Sequence[tuple[str, str]], built_in: str) -> Prepared:
    """Read, check and save what was brought.

    Args:
        files: Name and path of each file; empty for a set that scikit-learn brings.
        built_in: A key of `tables.SETS`, where there are no files.

    Raises:
        DataError: It cannot be trained on; the text is a sentence that says why.
    """
    try:
        if not files:
            return prepare(f"scikit-learn’s {built_in.replace('_', ' ')}", tables.scikit_learn(built_in))
        found = [(name, Path(path)) for name, path in files]
        return prepare(", ".join(name for name, _ in found), rows_of(found))
    except ModuleNotFoundError as error:
        raise DataError(f"{error.name} is not installed, which reads such data; run `make install`") from error
    except OSError as error:
        raise DataError(f"it cannot be read or saved ({error.strerror or shortened(str(error))})") from error
    except MemoryError:
        raise DataError(f"reading it takes more than {MAX_MEMORY_BYTES >> 30} GiB; bring fewer rows") from None


def rows_of(files: Sequence[tuple[str, Path]]) -> Rows:
    """The rows in these files.

    Raises:
        DataError: As `read`. OSError: A file cannot be opened.
    """
    for name, path in files:
        if not path.exists():
            raise DataError(f"there is no file “{shortened(name)}” on this machine; correct the path")
        if not path.is_file():
            raise DataError(f"“{shortened(name)}” is not a file; {EXPECTED}")
        if (n_bytes := path.stat().st_size) > MAX_FILE_BYTES:
            raise DataError(
                f"expected at most {MAX_FILE_BYTES >> 20} MiB, got {n_bytes / 2**20:,.0f} MiB in “{shortened(name)}”;"
                " bring fewer rows"
            )
        if not n_bytes:
            raise DataError(f"“{shortened(name)}” is empty; save it again")
    (name, path), *others = files
    head = _head(path)
    if head[:2] in (b"\0\0", b"\x1f\x8b") or _is_idx_by_name(name):
        return idx.read_idx(files)
    if others:
        raise DataError(
            f"expected one file, or the two or four IDX files that belong together, got {len(files)} others"
        )
    if head.startswith(b"PK"):
        return tables.read_npz(path)
    looks = next((words for begins, words in _FOREIGN if head.lstrip().startswith(begins)), None)
    if looks is not None:
        raise DataError(f"“{shortened(name)}” looks like {looks}; {EXPECTED}")
    if b"\0" in head:
        raise DataError(f"“{shortened(name)}” is a binary file of another kind; {EXPECTED}")
    return tables.read_csv(path)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def _is_idx_by_name(name: str) -> bool:
    return name.lower().removesuffix(".gz").endswith(("-ubyte", ".idx", ".idx1", ".idx3"))


def main(connection: Connection) -> None:
    """The reader's process: for each (files, built_in) that comes, send `Prepared`, or a sentence why there is none."""
    answer(connection, read)
