"""Learning curves and measurements, kept in SQLite: the curves are served again at once, the measurements are a record.

    python -m lib.store export FILE.json
    python -m lib.store import FILE.json

A training is deterministic for its key (training, backend and device, data, source of `lib`, versions), so its curve may be
served again. Its seconds are a measurement: they come back with the machine and the time that they were taken.

A store that cannot be written says why in `trouble` and keeps nothing; nothing fails because of it. Each call opens the
file anew (0.2 ms), so threads and processes need no coordination beyond SQLite's own; a row is written whole or not at all.
"""

import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from lib.backends.base import Epoch, Parameters, no_parameters
from lib.machine import machine_id
from lib.paths import CacheUnwritable, cache_dir
from lib.records import Curve, Key, Record
from lib.sources import source_digest

MAX_BYTES = 256 * 2**20  # of losses, and as much again of parameters
BUSY_S = 5.0  # how long one writer waits for another
# From each version to the next. Two programs may migrate at once: the second finds the tables there.
_MIGRATIONS = (
    """
CREATE TABLE IF NOT EXISTS curves (
    key TEXT PRIMARY KEY, training TEXT NOT NULL, backend TEXT NOT NULL, device TEXT NOT NULL, data TEXT NOT NULL,
    sources TEXT NOT NULL, versions TEXT NOT NULL, machine TEXT NOT NULL, measured_at TEXT NOT NULL,
    first_call_s REAL NOT NULL, epochs TEXT NOT NULL, losses BLOB NOT NULL, n_bytes INTEGER NOT NULL, used_at REAL NOT NULL
)""",
    """
CREATE TABLE IF NOT EXISTS measurements (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, subject TEXT NOT NULL, machine TEXT NOT NULL, machine_line TEXT NOT NULL,
    sources TEXT NOT NULL, versions TEXT NOT NULL, measured_at TEXT NOT NULL, block_s TEXT NOT NULL,
    steps_per_block INTEGER NOT NULL, ended TEXT NOT NULL, warnings TEXT NOT NULL
)""",
    """
ALTER TABLE curves ADD COLUMN every INTEGER NOT NULL DEFAULT 1;
ALTER TABLE curves ADD COLUMN together INTEGER NOT NULL DEFAULT 1;
CREATE TABLE parameters (
    key TEXT PRIMARY KEY, epochs INTEGER NOT NULL, content BLOB NOT NULL, n_bytes INTEGER NOT NULL, used_at REAL NOT NULL
)""",
    """
ALTER TABLE measurements ADD COLUMN clocks TEXT NOT NULL DEFAULT '';
ALTER TABLE measurements ADD COLUMN command TEXT NOT NULL DEFAULT ''
""",
)
SCHEMA_VERSION = len(_MIGRATIONS)


def _use_wal(database: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for its busy time-out here, so two that create a file at once must."""
    limit = time.monotonic() + BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > limit:
                raise
            time.sleep(0.01)


_RECORD_COLUMNS = "id, kind, subject, machine, machine_line, sources, versions, measured_at, block_s, steps_per_block, ended, warnings, clocks, command"
_INSERT_RECORD = f"INSERT OR IGNORE INTO measurements ({_RECORD_COLUMNS}) VALUES ({', '.join('?' * 14)})"


def _record_row(record: Record) -> tuple:
    return (
        record.id, record.kind, json.dumps(dict(record.subject), sort_keys=True), record.machine, record.machine_line, record.sources,
        record.versions, record.measured_at, json.dumps(record.block_s), record.steps_per_block, record.ended,
        json.dumps(record.warnings), record.clocks, record.command,
    )  # fmt: skip


def record_of(row: tuple) -> Record:
    """A row of the table, its columns in their order, as what it stands for."""
    _, kind, subject, machine, line, sources, versions, measured_at, block_s, steps, ended, warnings, *rest = row
    return Record(
        kind, json.loads(subject), tuple(json.loads(block_s)), steps, ended, tuple(json.loads(warnings)), versions, machine, line,
        sources, measured_at, *rest,
    )  # fmt: skip


class Store:
    """Curves by key. `path` defaults to the cache folder; `trouble` is a sentence where something is wrong."""

    def __init__(self, path: Path | None = None) -> None:
        self.trouble = ""
        self._path: Path | None = path
        if path is None:
            try:
                self._path = cache_dir() / "results.sqlite"
            except CacheUnwritable as error:
                self.trouble = f"Results are not kept: {error}."

    @property
    def path(self) -> Path | None:
        """The file; None where there is no folder for it."""
        return self._path

    def get(self, key: Key) -> Curve | None:
        """The curve of the key's training, if as many epochs of it are kept."""
        curve = self.begun(key)
        return curve.cut(key.training.epochs) if curve is not None and curve.lasts(key.training.epochs) else None

    def begun(self, key: Key) -> Curve | None:
        """The curve kept under the key, however many epochs it has."""
        with self._open() as database:
            if database is None:
                return None
            row = database.execute(
                "SELECT first_call_s, epochs, losses, measured_at, machine, every, together FROM curves WHERE key = ?",
                (key.digest(),),
            ).fetchone()
            if row is None:
                return None
            epochs = tuple(Epoch(**epoch, parameters=no_parameters) for epoch in json.loads(row[1]))
            return Curve(row[0], epochs, np.frombuffer(row[2], np.float32), *row[3:])
        return None

    def put(self, key: Key, curve: Curve, parameters: Parameters | None = None) -> Curve:
        """Keep a curve, replacing an older one; returns it with the time and machine filled in.

        `parameters` are those after its last epoch: from them the training can go on.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        curve = replace(curve, measured_at=now, machine=machine_id())
        epochs = json.dumps([{k: v for k, v in vars(epoch).items() if k != "parameters"} for epoch in curve.epochs])
        losses = np.ascontiguousarray(curve.losses, np.float32).tobytes()
        row = (
            key.digest(), json.dumps(asdict(key.training)), key.way.backend, key.way.device, key.data_digest,
            source_digest(), key.versions, curve.machine, now, curve.first_call_s, epochs, losses, len(losses), time.time(),
            curve.every, curve.together,
        )  # fmt: skip
        with self._open() as database:
            if database is not None:
                database.execute(f"INSERT OR REPLACE INTO curves VALUES ({','.join('?' * len(row))})", row)
                self._make_room(database, "curves")
                if parameters:
                    content = b"".join(np.ascontiguousarray(part).tobytes() for layer in parameters for part in layer)
                    kept = (key.digest(), len(curve.epochs), content, len(content), time.time())
                    database.execute("INSERT OR REPLACE INTO parameters VALUES (?, ?, ?, ?, ?)", kept)
                    self._make_room(database, "parameters")
                self.trouble = ""
        return curve

    def parameters(self, key: Key) -> tuple[int, Parameters] | None:
        """Epochs after which a training's parameters are kept, and these, float32."""
        with self._open() as database:
            if database is None:
                return None
            row = database.execute("SELECT epochs, content FROM parameters WHERE key = ?", (key.digest(),)).fetchone()
            network = key.training.network
            if row is None or len(row[1]) != network.parameter_bytes:
                return None
            values, first, layers = np.frombuffer(row[1], np.float32), 0, []
            for inputs, outputs in network.shapes:
                weights = values[first : first + inputs * outputs].reshape(inputs, outputs)
                first += inputs * outputs
                layers.append((weights, values[first : first + outputs]))
                first += outputs
            return row[0], layers
        return None

    def add(self, record: Record) -> None:
        """Keep a measurement; the same one a second time changes nothing. Whole or not at all, whatever ends the process."""
        with self._open() as database:
            if database is not None:
                database.execute(_INSERT_RECORD, _record_row(record))

    def records(self, kind: str | None = None) -> list[Record]:
        """The measurements kept, all or of one kind, in the order of their ids (which says nothing)."""
        with self._open() as database:
            if database is None:
                return []
            where, values = ("", ()) if kind is None else (" WHERE kind = ?", (kind,))
            return [
                record_of(row)
                for row in database.execute(f"SELECT {_RECORD_COLUMNS} FROM measurements{where} ORDER BY id", values)
            ]
        return []

    def rows(self, table: str) -> list[dict]:
        """All rows of a table as they lie there, in the order of their key: for the export."""
        with self._open() as database:
            if database is None:
                return []
            cursor = database.execute(f"SELECT * FROM {table} ORDER BY 1")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        return []

    def merge(self, table: str, rows: Sequence[dict]) -> int:
        """Add rows that are not there yet, all or none; returns how many were new."""
        with self._open() as database:
            if database is None:
                return 0
            before = database.total_changes
            for row in rows:
                marks = ", ".join("?" * len(row))
                database.execute(
                    f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
                )
            return database.total_changes - before
        return 0

    def _make_room(self, database: sqlite3.Connection, table: str) -> None:
        """Forget the oldest beyond 256 MB."""
        database.execute(
            f"DELETE FROM {table} WHERE key IN (SELECT key FROM (SELECT key, SUM(n_bytes) OVER (ORDER BY used_at DESC) AS total"
            f" FROM {table}) WHERE total > ?)",
            (MAX_BYTES,),
        )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """A connection in a transaction, or None where there is no usable file. Troubles become a sentence."""
        if self._path is None:
            yield None
            return
        entered = False
        try:
            with closing(self._connect(self._path)) as database, database:
                entered = True
                yield database
        except (sqlite3.Error, OSError) as error:
            self.trouble = (
                f"Results are not kept: {self._path} cannot be used ({error}); free the disk or set MNIST_CACHE_DIR."
            )
            if not entered:
                yield None

    def _connect(self, path: Path) -> sqlite3.Connection:
        try:
            return self._prepared(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, full, read-only: the file itself is sound
                raise
            aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
            os.replace(path, aside)
            self.trouble = (
                f"The file of kept results was damaged; it was set aside as {aside}, and a new one was begun."
            )
            return self._prepared(path)

    def _prepared(self, path: Path) -> sqlite3.Connection:
        database = sqlite3.connect(path, timeout=BUSY_S)
        try:
            _use_wal(database)
            database.execute("PRAGMA synchronous = NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise sqlite3.OperationalError(
                    f"it was written by a newer version (schema {version}, this one knows {SCHEMA_VERSION})"
                )
            if version < SCHEMA_VERSION:
                database.execute("BEGIN IMMEDIATE")  # who comes second waits, and finds the tables there
                # Who waited for the other's migration finds it made.
                (version,) = database.execute("PRAGMA user_version").fetchone()
                for migration in _MIGRATIONS[version:]:
                    for statement in migration.split(";"):
                        database.execute(statement)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                database.commit()
        except BaseException:
            database.close()
            raise
        return database


if __name__ == "__main__":
    from lib.exchange import main

    sys.exit(main())
