"""Learning curves already computed, kept in SQLite and served again at once.

A training is deterministic for its key (training, backend and device, data, source of `lib`, versions), so its curve may be
served again. Its seconds are a measurement: they come back with the machine and the time that they were taken.

A store that cannot be written says why in `trouble` and keeps nothing; nothing fails because of it. Each call opens the
file anew (0.2 ms), so threads and processes need no coordination beyond SQLite's own; a row is written whole or not at all.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from lib.backends import Way
from lib.backends.base import Epoch, no_parameters
from lib.machine import machine_id
from lib.paths import CacheUnwritable, cache_dir
from lib.sources import source_digest
from lib.spec import Training

SCHEMA_VERSION = 1
MAX_BYTES = 256 * 2**20
_SCHEMA = """
CREATE TABLE IF NOT EXISTS curves (
    key TEXT PRIMARY KEY, training TEXT NOT NULL, backend TEXT NOT NULL, device TEXT NOT NULL, data TEXT NOT NULL,
    sources TEXT NOT NULL, versions TEXT NOT NULL, machine TEXT NOT NULL, measured_at TEXT NOT NULL,
    first_call_s REAL NOT NULL, epochs TEXT NOT NULL, losses BLOB NOT NULL, n_bytes INTEGER NOT NULL, used_at REAL NOT NULL
)"""


@dataclass(frozen=True)
class Curve:
    """One finished training: its epochs, its losses (all steps, float32), and when and where it was timed."""

    first_call_s: float
    epochs: tuple[Epoch, ...]
    losses: np.ndarray
    measured_at: str = ""  # ISO 8601, UTC
    machine: str = ""


@dataclass(frozen=True)
class Key:
    """Everything that a curve depends on."""

    training: Training
    way: Way
    data_digest: str
    versions: str

    def digest(self) -> str:
        parts = (
            asdict(self.training),
            asdict(self.way),
            self.data_digest,
            self.versions,
            source_digest(),
            machine_id(),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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

    def get(self, key: Key) -> Curve | None:
        """The curve kept under the key, if any."""
        with self._open() as database:
            if database is None:
                return None
            row = database.execute(
                "SELECT first_call_s, epochs, losses, measured_at, machine FROM curves WHERE key = ?", (key.digest(),)
            ).fetchone()
            if row is None:
                return None
            epochs = tuple(Epoch(**epoch, parameters=no_parameters) for epoch in json.loads(row[1]))
            return Curve(row[0], epochs, np.frombuffer(row[2], np.float32), row[3], row[4])
        return None

    def put(self, key: Key, curve: Curve) -> Curve:
        """Keep a curve, replacing an older one; returns it with the time and machine filled in."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        curve = replace(curve, measured_at=now, machine=machine_id())
        epochs = json.dumps([{k: v for k, v in vars(epoch).items() if k != "parameters"} for epoch in curve.epochs])
        losses = np.ascontiguousarray(curve.losses, np.float32).tobytes()
        row = (
            key.digest(), json.dumps(asdict(key.training)), key.way.backend, key.way.device, key.data_digest,
            source_digest(), key.versions, curve.machine, now, curve.first_call_s, epochs, losses, len(losses), time.time(),
        )  # fmt: skip
        with self._open() as database:
            if database is not None:
                database.execute(f"INSERT OR REPLACE INTO curves VALUES ({','.join('?' * len(row))})", row)
                self._make_room(database)
                self.trouble = ""
        return curve

    def _make_room(self, database: sqlite3.Connection) -> None:
        """Forget the oldest curves beyond 256 MB."""
        database.execute(
            "DELETE FROM curves WHERE key IN (SELECT key FROM (SELECT key, SUM(n_bytes) OVER (ORDER BY used_at DESC) AS total"
            " FROM curves) WHERE total > ?)",
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
        database = sqlite3.connect(path, timeout=5)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise sqlite3.OperationalError(
                    f"it was written by a newer version (schema {version}, this one knows {SCHEMA_VERSION})"
                )
            if version < SCHEMA_VERSION:
                database.execute(_SCHEMA)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                database.commit()
        except BaseException:
            database.close()
            raise
        return database
