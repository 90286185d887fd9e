"""The store as a portable JSON file, and back: `python -m lib.cli.store export|import FILE.json`.

An export is checked row by row and brought to this version; a damaged file is refused whole.
"""

import base64
import io
import json
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TextIO

from lib.cache_folder import replaced
from lib.model.hardware.optional import Meta
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.rows import ADDED, COLUMNS, Seconds, brief, check_kind, checked, curve_of, record_of
from lib.sweeps.storage.store import SCHEMA_VERSION, Store

FORMAT = "less-overhead results"
PIECE = 2**20  # characters read at a time
MAX_PIECE = 64 * 2**20  # of one row: three times the losses of 100 epochs of single images
# Notes on the whole are for people, except for these numbers, which pages calculate with.
MAX_PRICE = 1000.0  # dollars an hour
_ABOUT = {"took_s": Seconds, "price_per_h": Annotated[float, Meta(ge=0.0, le=MAX_PRICE)]}
Rows = list[dict]


class NoExport(ValueError):
    """The file cannot be imported; the text says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Export:
    """A valid file's content: each table's rows, as in a store, and the notes on the whole."""

    tables: Mapping[str, Rows]
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        return [record_of(row) for row in self.tables["measurements"]]


def export_to(path: Path, store: Store, about: Mapping[str, object] | None = None, with_losses: bool = True) -> int:
    """Write a store's sound rows to a file, in the order of their keys; the file appears whole or not at all.

    Args:
        path: Replaced if it exists.
        store: What is exported.
        about: Notes on the whole, such as the command that made it.
        with_losses: Export curves with the losses of each step, or only their epochs.

    Returns:
        The number of rows.

    Raises:
        StoreUnusable: The store cannot be read.
        OSError: The file cannot be written.
    """
    less = {"curves": {} if with_losses else {"losses": b"", "n_bytes": 0}}
    tables = {name: [_portable(row | less.get(name, {})) for row in store.rows(name)] for name in COLUMNS}
    content = {"format": FORMAT, "version": SCHEMA_VERSION, **({"about": dict(about)} if about else {}), **tables}
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return sum(map(len, tables.values()))


def import_from(path: Path, store: Store) -> tuple[int, int]:
    """Add a file's rows to the store, all or none.

    Args:
        path: An export of this version or an older one.
        store: Gets the rows that it lacks; none is replaced.

    Returns:
        How many rows the file has, and how many of them were new.

    Raises:
        NoExport: The file cannot be read, or is damaged.
        StoreUnusable: The store cannot be written.
    """

    def read() -> Iterator[tuple[str, dict]]:
        with _refusing(str(path)), path.open(encoding="utf-8") as file:
            yield from _rows(file, str(path), _head(file, str(path)))

    return store.merge(read)


def read_export(path: Path) -> Export:
    """A file's content, checked.

    Raises:
        NoExport: The file cannot be read, or is damaged.
    """
    with _refusing(str(path)), path.open(encoding="utf-8") as file:
        return _content(file, str(path))


def parse_export(text: str, name: str) -> Export:
    """The content of an export's text, checked; `name` is the file's, for errors.

    Raises:
        NoExport: The text is no valid export.
    """
    with _refusing(name):
        return _content(io.StringIO(text), name)


def _content(file: TextIO, name: str) -> Export:
    head, tables = _head(file, name), {table: [] for table in COLUMNS}
    for table, row in _rows(file, name, head):
        tables[table].append(row)
    return Export(tables, head.get("about", {}))


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn errors in reading a file of this name into NoExport."""
    try:
        yield
    except NoExport:
        raise
    except OSError as error:
        raise NoExport(f"expected a file that can be read, got {name} ({error.strerror}); correct the name") from error
    except UnicodeDecodeError as error:
        raise NoExport(f"expected an export, but {name} is no text; choose another file") from error
    except RecursionError as error:
        raise NoExport(f"expected an export, but {name} is nested too deeply for one; choose another file") from error
    except ValueError as error:
        raise NoExport(
            f"expected an export, but {name} is no JSON or was cut off ({error}); export it again"
        ) from error


class _Reader:
    """Reads the JSON values of a text one by one and drops their text, so that a large file needs little memory."""

    def __init__(self, file: TextIO, name: str) -> None:
        self._file, self._name = file, name
        self._text, self._at = "", 0

    def peek(self) -> str:
        """The next character other than white space; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, among: str) -> str:
        """The next character, which must be one of these."""
        found = self.peek()
        if not found or found not in among:
            raise ValueError(f"expected {' or '.join(among)}, got {brief(found) if found else 'the end'}")
        self._at += 1
        return found

    def value(self) -> object:
        """The next value, of any type. Raises ValueError and RecursionError."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _MARGIN
                if not cut or not self._more():
                    raise ValueError(error.msg) from error
                continue
            length = end - self._at
            if end < len(self._text) - _MARGIN or not self._more():  # else a number may continue
                self._at += length
                return value

    def members(self) -> Iterator[str]:
        """The names of an object's members; read a member's value before the next name."""
        self.take("{")
        while self.peek() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise ValueError(f"expected a name, got {brief(name)}")
            self.take(":")
            yield name
            if self.peek() != "}":
                self.take(",")
        self.take("}")

    def items(self) -> Iterator[object]:
        self.take("[")
        while self.peek() != "]":
            yield self.value()
            if self.peek() != "]":
                self.take(",")
        self.take("]")

    def _more(self) -> bool:
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > MAX_PIECE:
            raise NoExport(
                f"{self._name}: expected rows of at most {MAX_PIECE // 2**20} MiB, got a longer one; export it again"
            )
        piece = self._file.read(max(PIECE, len(self._text)))  # doubles each time: few attempts per row
        self._text += piece
        return bool(piece)


_DECODER, _SPACE, _MARGIN = json.JSONDecoder(), re.compile(r"[ \t\n\r]*"), 32


def _head(file: TextIO, name: str) -> dict:
    """All of an export except its rows, which can be checked only with the version, which may follow them."""
    reader, head = _Reader(file, name), {}
    if reader.peek() == "{":
        for member in reader.members():
            if member in COLUMNS and reader.peek() == "[":
                head[member] = []
                deque(reader.items(), maxlen=0)  # read and dropped
            else:
                head[member] = reader.value()
    else:
        reader.value()
    if reader.peek():
        raise ValueError(f"expected the end, got {brief(reader.peek())}")
    if head.get("format") != FORMAT:
        raise NoExport(
            f"expected an export of this program, but {name} is another kind of file; export it with `python -m"
            " lib.cli.store export`"
        )
    version = head.get("version")
    if type(version) is not int or version > SCHEMA_VERSION:
        raise NoExport(
            f"{name} was written by a newer version (schema {brief(version)}, this one knows {SCHEMA_VERSION}); update"
            " this program"
        )
    for table in COLUMNS:
        if not isinstance(head.get(table, []), list):
            raise NoExport(f"{name}: expected rows in {table}, got {type(head[table]).__name__}; export it again")
    _check_about(head.setdefault("about", {}), name)
    return head


def _check_about(about: object, name: str) -> None:
    try:
        if not isinstance(about, dict):
            raise ValueError(f"expected notes by name, got {brief(about)}")
        for name, kind in _ABOUT.items():
            checked(about.get(name, 0.0), kind, name)
        json.dumps(about, ensure_ascii=False).encode()
    except ValueError as error:
        raise NoExport(f"{name}: its notes are damaged ({error}); export it again") from error


def _rows(file: TextIO, name: str, head: Mapping[str, object]) -> Iterator[tuple[str, dict]]:
    """Each row with its table, checked, as in a store."""
    file.seek(0)
    reader = _Reader(file, name)
    for member in reader.members():
        if member not in COLUMNS:
            reader.value()
            continue
        added = {column: value for column, (since, value) in ADDED[member].items() if head["version"] < since}  # type: ignore[operator]
        for row in reader.items():
            yield member, _checked(member, added | row if isinstance(row, dict) else row, name)


def _checked(table: str, row: object, name: str) -> dict:
    """A file's row as the store holds it; raises NoExport if it is damaged."""
    columns = COLUMNS[table]
    if not isinstance(row, dict) or row.keys() != columns.keys():
        got = brief(", ".join(sorted(row))) if isinstance(row, dict) else type(row).__name__
        raise NoExport(
            f"{name}: expected the columns {', '.join(sorted(columns))} in {table}, got {got}; export it again"
        )
    try:
        if table == "measurements":
            check_kind(record_of(row))
        else:
            row["losses"] = base64.b64decode(row["losses"], validate=True)
            row["n_bytes"] = len(row["losses"])
            row["used_at"] = min(checked(row["used_at"], COLUMNS[table]["used_at"], "used_at"), time.time())
            curve_of(row)
    except (ValueError, TypeError) as error:
        which = row["subject"] if table == "measurements" else row["training"]
        raise NoExport(
            f"{name}: in {table}, the row of {brief(which)} is damaged ({error}); export it again"
        ) from error
    return row


def _portable(row: dict) -> dict:
    """A row with bytes as base64 text."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()
    }
