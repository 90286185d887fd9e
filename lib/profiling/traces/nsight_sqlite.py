"""Traces that Nsight Systems exported as SQLite: `nsys export --type=sqlite`.

SQLite adds up the calls, so a file of any size needs little memory; rows are read of one stretch of time only. A file
from anybody may define views and damaged pages: it is opened read-only, only tables are read, and not for long.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import pathname2url

from lib.profiling.traces.form import MAX_CALLS, MAX_KEPT, MAX_NS, Call, Collector, Refused, Trace, most
from lib.profiling.traces.kinds import KERNEL, TRANSFER, cuda_kind

MAX_READ_S = 60.0
_LOOK = 100_000  # of SQLite's instructions between two looks at the clock
_BATCH = 10_000
_COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}


@dataclass(frozen=True)
class Table:
    """A table of the export, and SQL for what each of its rows is; `name` may look into `StringIds`."""

    table: str
    name: str  # SQL: the call's name
    lane: str  # SQL: what tells lanes apart
    role: str
    kind: str = ""  # empty: by the name
    correlation: str = "correlationId"


def _string(column: str) -> str:
    return f"coalesce((SELECT value FROM StringIds WHERE id = {column}), 'call ' || {column})"


_COPY = " ".join(f"WHEN {number} THEN 'Memcpy, {words}'" for number, words in _COPIES.items())
_STREAM = "'device ' || deviceId || ', stream ' || streamId"
_THREAD = "'thread ' || (globalTid & 16777215)"
TABLES = (
    Table("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", _THREAD, "host"),
    Table("CUPTI_ACTIVITY_KIND_KERNEL", "shortName", _STREAM, "device", KERNEL),
    Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "'a whole CUDA graph'", _STREAM, "device", KERNEL),
    Table("CUPTI_ACTIVITY_KIND_MEMCPY", f"CASE copyKind {_COPY} ELSE 'Memcpy' END", _STREAM, "device", TRANSFER),
    Table("CUPTI_ACTIVITY_KIND_MEMSET", "'Memset'", _STREAM, "device", TRANSFER),
)
_NUMBERED = {"nameId", "shortName"}  # columns that point into StringIds


def read(path: Path, title: str) -> Trace:
    """A trace from an export of Nsight Systems.

    Raises:
        Refused: It is damaged, no export of Nsight Systems, or takes too long to read.
    """
    with _damage_told(), _opened(path) as database:
        found = _tables(database)
        n_rows = sum(_one(database, f"SELECT count(*) FROM {table.table}") for table in found)
        calls = most(call for table in found for call in _calls(database, table))
        if not calls:
            raise Refused("it is an export of Nsight Systems without CUDA; profile with --trace=cuda")
        rows = _rows(database, found, n_rows)
    drawn = rows.trace(title, "Nsight Systems")
    return replace(drawn, calls=calls, n_rows=n_rows)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    address = f"file:{pathname2url(str(path.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as database:
        limit = time.monotonic() + MAX_READ_S
        database.set_progress_handler(lambda: time.monotonic() > limit, _LOOK)
        database.text_factory = lambda content: content.decode("utf-8", "replace")
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "cache_size = -65536"):
            database.execute(f"PRAGMA {pragma}")
        yield database


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise Refused(f"reading it took more than {MAX_READ_S:.0f} s; export a shorter range") from None
        raise Refused(f"it is an SQLite file that cannot be read ({error}); export it again") from None
    except (sqlite3.DatabaseError, OverflowError) as error:
        raise Refused(f"it is an SQLite file, but damaged or cut off ({error}); export it again") from None


def _tables(database: sqlite3.Connection) -> list[Table]:
    """The tables that are there, with all the columns that are read."""
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [table for table in TABLES if table.table in known]
    if not found or "StringIds" not in known:
        others = ", ".join(sorted(known)[:3])[:80] or "no table"
        raise Refused(
            f"it is an SQLite file of something else ({others}); expected an export of Nsight Systems with CUDA calls"
        )
    return found


def _one(database: sqlite3.Connection, sql: str) -> int:
    return database.execute(sql).fetchone()[0] or 0


_SOUND = f'typeof(start) = "integer" AND typeof("end") = "integer" AND "end" > start AND start BETWEEN 0 AND {MAX_NS}'
_SOUND = _SOUND.replace('"integer"', "'integer'")


def _calls(database: sqlite3.Connection, table: Table) -> Iterator[Call]:
    """The calls of a table, added up by SQLite; CUDA's calls do not lie in each other."""
    shown = _string(table.name) if table.name in _NUMBERED else table.name
    grouped = database.execute(
        f'SELECT {shown}, n, total FROM (SELECT *, count(*) AS n, sum("end" - start) AS total FROM {table.table}'
        f" WHERE {_SOUND} GROUP BY {table.name} ORDER BY total DESC LIMIT {10 * MAX_CALLS})"
    )
    for name, count, total_ns in grouped:
        name = _plain(str(name))
        yield Call(name, table.kind or cuda_kind(name), count, total_ns, total_ns)


def _plain(name: str) -> str:
    """The name without the number of the interface's version, as `nsys stats` prints it."""
    head, _, version = name.rpartition("_v")
    return head if head and version.isdigit() else name


def _rows(database: sqlite3.Connection, tables: list[Table], n_rows: int) -> Collector:
    """The rows of a stretch in the middle of the profile, about `MAX_KEPT` of them."""
    ends = [database.execute(f'SELECT min(start), max("end") FROM {t.table} WHERE {_SOUND}').fetchone() for t in tables]
    began, ended = min(a for a, _ in ends if a is not None), max(b for _, b in ends if b is not None)
    low, high = began, ended
    if n_rows > MAX_KEPT:
        low, high = _stretch(database, tables, began, ended)
    found = Collector()
    for table in tables:
        shown = _string(table.name) if table.name in _NUMBERED else table.name
        chosen = database.execute(
            f'SELECT {table.lane}, {shown}, start, "end", {table.correlation} FROM {table.table}'
            f" WHERE {_SOUND} AND start BETWEEN ? AND ? LIMIT {2 * MAX_KEPT}",
            (low, high),
        )
        while batch := chosen.fetchmany(_BATCH):
            for lane, name, start, end, correlation in batch:
                name = _plain(str(name))
                number = found.lane((table.role, lane), str(lane), table.role)
                kind = table.kind or cuda_kind(name)
                found.add(number, name, kind, start, end - start, correlation if isinstance(correlation, int) else 0)
    return found


def _stretch(database: sqlite3.Connection, tables: list[Table], began: int, ended: int) -> tuple[int, int]:
    """Where about `MAX_KEPT` rows begin, as far in the middle as possible: from a count of rows in 1,000 slices."""
    slice_ns = max(1, (ended - began) // 1000 + 1)
    counts = [0] * 1000
    for table in tables:
        for index, count in database.execute(
            f"SELECT (start - {began}) / {slice_ns}, count(*) FROM {table.table} WHERE {_SOUND} GROUP BY 1"
        ):
            counts[min(max(index, 0), 999)] += count
    half, below, middle = sum(counts) / 2, 0, 0
    while below + counts[middle] < half:
        below += counts[middle]
        middle += 1
    low = high = middle
    while sum(counts[low : high + 1]) < MAX_KEPT and (low > 0 or high < 999):
        low, high = max(0, low - 1), min(999, high + 1)
    slices = sum(counts[low : high + 1])
    if low == high and slices > 2 * MAX_KEPT:  # all of it in one slice: the first part of that
        share = MAX_KEPT / slices
        return began + low * slice_ns, began + round((low + share) * slice_ns)
    return began + low * slice_ns, began + (high + 1) * slice_ns
