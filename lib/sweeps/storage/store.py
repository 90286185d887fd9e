"""Learning curves and measurements in SQLite.

A training is deterministic for its key (training, backend and device, data, source of `lib`, versions), so its curve
can be served again. Its seconds are a measurement, and come with their machine and time. A new shorter curve does not
replace a longer one: its seconds are newer, but the longer one has more epochs.

A store that cannot be written stores nothing and says why in `trouble`, without raising. Each call reopens the file
(0.2 ms), so threads and processes need no coordination beyond SQLite's own; rows are written atomically. A file that is
damaged or of an older version is renamed and replaced by a new one; invalid rows are skipped.

An export is the store as a portable JSON file: `python -m lib.cli.store export|import FILE.json`. Importing checks and
migrates each row; a damaged file is rejected as a whole.
"""

import base64
import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from filelock import FileLock
from msgspec import Meta, defstruct

from lib.cache_folder import CacheUnwritable, cache_dir, replaced
from lib.model.backends.base import Parameters
from lib.model.backends.fingerprint import source_digest
from lib.model.hardware.machine import machine_id
from lib.sweeps.storage.records import (
    ADDED,
    COLUMNS,
    Curve,
    Key,
    Record,
    Seconds,
    brief,
    check_kind,
    checked,
    curve_of,
    epochs_text,
    record_of,
    row_of,
)

MAX_BYTES = 256 * 2**20  # of losses, and as much again of parameters
BUSY_S = 5.0  # how long a writer waits for another
SCHEMA_VERSION = 8  # of the file and of exports; `records.ADDED` lists the columns that older exports lack
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE curves (
    key TEXT NOT NULL, training TEXT NOT NULL, backend TEXT NOT NULL, device TEXT NOT NULL, precision TEXT NOT NULL,
    data TEXT NOT NULL, sources TEXT NOT NULL, versions TEXT NOT NULL, machine TEXT NOT NULL, measured_at TEXT NOT NULL,
    first_call_s REAL NOT NULL, epochs TEXT NOT NULL, losses BLOB NOT NULL, n_bytes INTEGER NOT NULL,
    used_at REAL NOT NULL, every INTEGER NOT NULL, together INTEGER NOT NULL, warnings TEXT NOT NULL,
    PRIMARY KEY (key, measured_at)
);
CREATE TABLE parameters (
    key TEXT PRIMARY KEY, epochs INTEGER NOT NULL, content BLOB NOT NULL, n_bytes INTEGER NOT NULL,
    used_at REAL NOT NULL
);
CREATE TABLE measurements (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, subject TEXT NOT NULL, machine TEXT NOT NULL, machine_line TEXT NOT NULL,
    sources TEXT NOT NULL, versions TEXT NOT NULL, measured_at TEXT NOT NULL, block_s TEXT NOT NULL,
    steps_per_block INTEGER NOT NULL, ended TEXT NOT NULL, warnings TEXT NOT NULL, clocks TEXT NOT NULL,
    command TEXT NOT NULL
);
-- What `_make_room` reads of each row lies behind its content: without these, each writer reads the whole file.
CREATE INDEX room_of_curves ON curves (used_at, every, n_bytes);
CREATE INDEX room_of_parameters ON parameters (used_at, n_bytes);
PRAGMA user_version = {SCHEMA_VERSION}
"""

T = TypeVar("T")

# SQLite's primary result codes: why a file is unusable, and what to do.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full; free some disk space, or set MNIST_CACHE_DIR to a folder on another disk",
    sqlite3.SQLITE_IOERR: (
        "the disk cannot read or write it; check whether the disk is full or failing, or set MNIST_CACHE_DIR to a "
        "folder on another disk"
    ),
    sqlite3.SQLITE_BUSY: f"another program has kept it locked for {BUSY_S:g} s; end that program",
    sqlite3.SQLITE_READONLY: "it is read-only; make it writable, or set MNIST_CACHE_DIR to another folder",
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened; check that its folder exists and is writable, or set MNIST_CACHE_DIR to another folder"
    ),
} | dict.fromkeys(
    _DAMAGED,
    "it keeps getting damaged; check whether the disk is failing, or set MNIST_CACHE_DIR to a folder on another disk",
)


class StoreUnusable(OSError):
    """The store can be neither read nor written; the text says why and what to do."""


class Store:
    """Curves by key, and measurements, in an SQLite file; without a `path`, in the cache folder.

    If the file is unusable, methods find nothing and `trouble` says why. Only methods with a `Raises` section raise.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._why_not = ""  # why nothing is stored
        self._renamed = ""  # the sentence about an unreadable file
        self.path = path
        try:
            self.path = path or cache_dir() / "results.sqlite"
        except CacheUnwritable as error:  # then `path` is None
            self._why_not = f"Results are not being saved: {error}."

    @property
    def trouble(self) -> str:
        """The store's problems, in sentences for the user; empty if there are none."""
        return " ".join(filter(None, (self._renamed, self._why_not)))

    def get(self, key: Key) -> Curve | None:
        """Return the key's curve, cut to its epochs; None unless a stored one is that long, or diverged."""
        return self.get_all([key]).get(key)

    def get_all(self, keys: Collection[Key]) -> dict[Key, Curve]:
        """Return the curves that `get` finds for these keys, in one read."""
        found = {}
        for key, curves in self._curves({key: key.digest() for key in keys}).items():
            n_epochs = key.training.epochs
            if lasting := [curve for curve in curves if curve.lasts(n_epochs)]:
                newest = max(lasting, key=lambda curve: (len(curve.epochs) >= n_epochs, curve.measured_at))
                found[key] = newest.cut(n_epochs)
        return found

    def _curves(self, digests: Mapping[Key, str]) -> dict[Key, list[Curve]]:
        marks = ", ".join("?" * len(digests))
        rows = self._read(lambda database: _rows_of(database, "curves", f"key IN ({marks})", *digests.values()))
        found = defaultdict[str, list[Curve]](list)
        for digest, curve in _sound(rows or [], lambda row: (row["key"], curve_of(row))):
            found[digest].append(curve)
        return {key: found[digest] for key, digest in digests.items()}

    def put(self, key: Key, curve: Curve, parameters: Parameters | None = None) -> Curve:
        """Store a whole curve, and return it with time and machine filled in.

        It replaces the key's curves that have no more epochs and no finer losses. Beyond `MAX_BYTES` of losses, the
        oldest curves are deleted, thinned ones last; likewise for parameters.

        Args:
            key: What the curve depends on.
            curve: With all epochs.
            parameters: Those after the last epoch, to continue from. They replace the stored ones, unless those belong
                to a longer curve. None: keep the stored ones.
        """
        curve = replace(curve, measured_at=datetime.now(UTC).isoformat(timespec="microseconds"), machine=machine_id())
        losses = np.ascontiguousarray(curve.losses, np.float32).tobytes()
        row = {
            "key": key.digest(),
            "training": json.dumps(key.training.described()),
            "backend": key.runtime.backend,
            "device": key.runtime.device,
            "precision": key.runtime.precision,
            "data": key.data_digest,
            "sources": source_digest(),
            "versions": key.versions,
            "machine": curve.machine,
            "measured_at": curve.measured_at,
            "first_call_s": curve.first_call_s,
            "epochs": epochs_text(curve),
            "losses": losses,
            "n_bytes": len(losses),
            "used_at": time.time(),
            "every": curve.every,
            "together": curve.together,
            "warnings": json.dumps(curve.warnings),
        }
        content = b"".join(np.ascontiguousarray(part).tobytes() for layer in parameters or () for part in layer)
        last = {
            "key": key.digest(),
            "epochs": len(curve.epochs),
            "content": content,
            "n_bytes": len(content),
            "used_at": time.time(),
        }

        def work(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")  # else another process could write between our read and our write
            longest = 0  # epochs of the curves that can be continued
            for one in database.execute("SELECT rowid, * FROM curves WHERE key = ?", (row["key"],)).fetchall():
                other = next(_sound([dict(one)], curve_of), None)
                if other is None or (len(other.epochs) <= len(curve.epochs) and other.every >= curve.every):
                    database.execute("DELETE FROM curves WHERE rowid = ?", (one["rowid"],))
                elif other.every == 1:
                    longest = max(longest, len(other.epochs))
            _insert(database, "curves", row, "REPLACE")
            # Thinned curves are deleted last: they are small, and one sweep stores thousands.
            _make_room(database, "curves", "every > 1 DESC, used_at DESC")
            kept = _rows_of(database, "parameters", "key = ?", row["key"])
            if parameters and not any(last["epochs"] < one["epochs"] <= longest for one in kept):
                _insert(database, "parameters", last, "REPLACE")
                _make_room(database, "parameters", "used_at DESC")

        self._write(work)
        return curve

    def begun(self, key: Key) -> tuple[Curve, Parameters] | None:
        """Return the curve that a longer training continues, and the parameters after it (read-only float32 arrays).

        None if no parameters of the network's size are stored, or no curve of as many epochs with all losses.
        """
        found = self._read(lambda database: _rows_of(database, "parameters", "key = ?", key.digest()))
        network = key.training.network
        if not found or len(found[0]["content"]) != network.parameter_bytes:
            return None
        n_epochs, curves = found[0]["epochs"], self._curves({key: key.digest()})[key]
        whole = [curve.cut(n_epochs) for curve in curves if curve.every == 1 and len(curve.epochs) >= n_epochs]
        if not whole:
            return None
        sizes = [size for inputs, outputs in network.shapes for size in (inputs * outputs, outputs)]
        parts = np.split(np.frombuffer(found[0]["content"], np.float32), np.cumsum(sizes)[:-1])
        layers = zip(parts[::2], parts[1::2], network.shapes, strict=True)
        return whole[0], [(weights.reshape(shape), biases) for weights, biases, shape in layers]

    def add(self, record: Record) -> None:
        """Store a measurement; storing it again changes nothing."""
        self._write(lambda database: _insert(database, "measurements", row_of(record), "IGNORE"))

    def records(self, kind: str | None = None, naming: str | None = None) -> list[Record]:
        """Return the measurements of this `kind` with the word `naming` in their subject, in any order."""
        where, values = "kind = COALESCE(?, kind) AND instr(subject, ?)", (kind, f'"{naming}"' if naming else "")
        found = self._read(lambda database: _rows_of(database, "measurements", where, *values))
        return list(_sound(found or [], record_of))

    @property
    def identity(self) -> tuple:
        """Path and inode: changes when the file is replaced."""
        return self.path, _identity(self.path) if self.path is not None else None

    def stamp(self) -> tuple:
        """Changes whenever any process writes to the store: times and sizes of its files."""
        found = []
        for suffix in ("", "-wal"):
            with suppress(OSError):
                status = os.stat(f"{self.path}{suffix}")
                found.append((suffix, status.st_mtime_ns, status.st_size))
        return tuple(found)

    def rows(self, table: str, without: Collection[str] = ()) -> list[dict]:
        """Return all valid rows of a table (`curves` or `measurements`) as stored, ordered by key.

        Raises:
            StoreUnusable: The store cannot be used.
        """

        def sound(row: dict) -> dict:
            _READ.get(table, dict)(row)
            return {name: value for name, value in row.items() if name not in without}

        def work(database: sqlite3.Connection) -> list[dict]:
            rows = (dict(row) for row in database.execute(f"SELECT * FROM {table} ORDER BY 1"))
            return list(_sound(rows, sound))

        return self._work(work)

    def merge(self, tables: Mapping[str, Iterable[dict]]) -> int:
        """Add the rows that are not stored yet, all or none; return how many were added.

        Raises:
            StoreUnusable: The store cannot be used.
        """

        def work(database: sqlite3.Connection) -> int:
            before = database.total_changes
            for table, rows in tables.items():
                for row in rows:
                    _insert(database, table, row, "IGNORE")
            return database.total_changes - before

        return self._work(work)

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        try:
            return self._work(work)
        except StoreUnusable as error:
            self._why_not = str(error)
            return None

    def _write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        try:
            self._work(work)
            self._why_not = ""
        except StoreUnusable as error:
            self._why_not = str(error)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do the work in a transaction; if the file is unreadable, retry in a new file. Raises StoreUnusable."""
        path = self.path
        if path is None:
            raise StoreUnusable(self._why_not)
        try:
            found = _identity(path)
            try:
                return self._transaction(path, found, work)
            except (sqlite3.Error, OSError) as error:
                if found is not None and _code(error) not in _DAMAGED and _identity(path) == found:
                    raise
                self._begin(path, found, error)
                return self._transaction(path, _identity(path), work)
        except StoreUnusable:
            raise
        except (sqlite3.Error, OSError) as error:
            reason = _REASONS.get(_code(error), f"{error}; set MNIST_CACHE_DIR to another folder")
            raise StoreUnusable(f"Results are not being saved: {path} cannot be used: {reason}.") from error

    def _transaction(self, path: Path, inode: int | None, work: Callable[[sqlite3.Connection], T]) -> T:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as database, database:
            _prepare(database, path)
            if _identity(path) != inode:  # the log may belong to another file
                raise _damaged("another program has renamed the file")
            return work(database)

    def _begin(self, path: Path, unreadable: int | None, error: Exception) -> None:
        """Rename the unreadable file, given by its inode, and create a new one, unless another program already has.

        The new file gets its name after the old log is gone: SQLite would apply that log to it.
        """
        with FileLock(f"{path}.lock", timeout=BUSY_S):
            if _identity(path) != unreadable:
                return
            aside = path.with_name(f"{path.name}.old-{datetime.now(UTC):%Y-%m-%d-%H%M%S-%f}")
            for suffix in ("", "-wal", "-shm"):  # the file itself first, to stop writes to it
                with suppress(FileNotFoundError):
                    os.replace(f"{path}{suffix}", f"{aside}{suffix}")
            if unreadable is not None:
                self._renamed = (
                    f"The stored results cannot be read ({error}); their file was renamed to {aside}, and a new one was"
                    " started."
                )
            with replaced(path) as new, closing(sqlite3.connect(new)) as database:
                database.executescript(_SCHEMA)


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    database.row_factory, database.text_factory = sqlite3.Row, _text
    database.execute("PRAGMA synchronous = NORMAL")
    (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
    if path.stat().st_size % page_bytes:
        raise _damaged("the file is cut off")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"Results are not being saved: {path} was written by a newer version (schema {version}, this one"
            f" knows {SCHEMA_VERSION}); update this program, or set MNIST_CACHE_DIR to another folder."
        )
    if version < SCHEMA_VERSION:
        raise _damaged(f"they are from an older version, with schema {version}")


_READ: dict[str, Callable[[dict], object]] = {"curves": curve_of, "measurements": record_of}


def _insert(database: sqlite3.Connection, table: str, row: dict, otherwise: str) -> None:
    marks = ", ".join("?" * len(row))
    database.execute(f"INSERT OR {otherwise} INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _rows_of(database: sqlite3.Connection, table: str, where: str = "1", *values: object) -> list[dict]:
    return [dict(row) for row in database.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY 1", values)]


def _sound(rows: Iterable[dict], read: Callable[[dict], T]) -> Iterator[T]:
    for row in rows:
        with suppress(ValueError):
            yield read(row)


def _make_room(database: sqlite3.Connection, table: str, order: str) -> None:
    database.execute(f"DELETE FROM {table} WHERE rowid IN ({beyond_room(table, order)})", (MAX_BYTES,))


def beyond_room(table: str, order: str) -> str:
    """Return SQL that selects the row ids beyond the first `?` bytes of a table's content, in this order."""
    total = f"SELECT rowid, SUM(n_bytes) OVER (ORDER BY {order}) AS total FROM {table}"
    return f"SELECT rowid FROM ({total}) WHERE total > ?"


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _damaged(how: str) -> sqlite3.Error:
    """An error for damage that SQLite does not report: it reads a truncated page as zeros, and accepts any schema."""
    error = sqlite3.DatabaseError(how)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _identity(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def _text(content: bytes) -> str:
    """Decode SQLite's text, replacing damaged bytes: this must not raise, and the row will fail its checks."""
    return content.decode(errors="replace")


FORMAT = "less-overhead results"
MAX_PRICE = 1000.0  # dollars per hour
# An export's notes are for people, except for these numbers, which pages use in calculations.
_ABOUT = defstruct(
    "About", [("took_s", Seconds, 0.0), ("price_per_h", Annotated[float, Meta(ge=0.0, le=MAX_PRICE)], 0.0)]
)
Rows = list[dict]


class NoExport(ValueError):
    """The file cannot be imported; the text says what was expected, what was found and what to do."""


@dataclass(frozen=True)
class Export:
    """A valid file's content: each table's rows, as in a store, and notes about the export."""

    tables: Mapping[str, Rows]
    about: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        return [record_of(row) for row in self.tables["measurements"]]


def export_to(path: Path, store: Store, about: Mapping[str, object] | None = None, with_losses: bool = True) -> int:
    """Write a store's valid rows to a file atomically, ordered by key.

    Args:
        path: Replaced if it exists.
        store: The store to export.
        about: Notes about the export, such as the command that made it.
        with_losses: Whether to include the losses of curves, or only their epochs.

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
        store: Gets the rows that it lacks; existing rows stay.

    Returns:
        The number of rows in the file, and how many of them were new.

    Raises:
        NoExport: The file cannot be read, or is damaged.
        StoreUnusable: The store cannot be written.
    """
    tables = read_export(path).tables
    return sum(map(len, tables.values())), store.merge(tables)


def read_export(path: Path) -> Export:
    """Read and check an export file.

    Raises:
        NoExport: The file cannot be read, or is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NoExport(f"expected a readable file, got {path} ({error.strerror}); correct the name") from error
    except UnicodeDecodeError as error:
        raise NoExport(f"expected an export, but {path} is not text; choose another file") from error
    return parse_export(text, str(path))


def parse_export(text: str | bytes, name: str) -> Export:
    """Parse and check an export's text; `name` is the file's name for errors.

    Raises:
        NoExport: The text is not a valid export.
    """
    try:
        content = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise NoExport(
            f"expected an export, but {name} is not JSON or was cut off or nested too deeply ({error}); export it again"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise NoExport(
            f"expected an export of this program, but {name} is another kind of file; export it with `python -m"
            " lib.cli.store export`"
        )
    version = content.get("version")
    if type(version) is not int or version > SCHEMA_VERSION:
        raise NoExport(
            f"{name} was written by a newer version (schema {brief(version)}, this one knows {SCHEMA_VERSION}); update"
            " this program"
        )
    tables: dict[str, Rows] = {}
    for table in COLUMNS:
        rows = content.get(table, [])
        if not isinstance(rows, list):
            raise NoExport(f"{name}: expected rows in {table}, got {type(rows).__name__}; export it again")
        added = {column: value for column, (since, value) in ADDED[table].items() if version < since}
        tables[table] = [_checked(table, added | row if isinstance(row, dict) else row, name) for row in rows]
    about = content.get("about", {})
    try:
        checked(about, _ABOUT, "about")
        json.dumps(about, ensure_ascii=False).encode()
    except ValueError as error:
        raise NoExport(f"{name}: its notes are damaged ({error}); export it again") from error
    return Export(tables, about)


def _checked(table: str, row: object, name: str) -> dict:
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
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()
    }
