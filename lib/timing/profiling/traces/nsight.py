"""Traces of Nsight Systems: its export as SQLite, and its reports as text.

`nsys export --type=sqlite`: SQLite adds up the calls, so a file of any size needs little memory; rows are read of one
stretch of time only. A file from anybody may define views and damaged pages: it is opened read-only, only tables are
read, and not for long.

`nsys stats --format csv`: a report of sums (`cuda_api_sum`) has no starts: it explains, but there is nothing to draw.
A report of rows (`cuda_api_trace`, `cuda_gpu_trace`) has both. Several reports may follow each other in one file.
"""

import codecs
import csv
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import pathname2url

import numpy as np

from lib.timing.profiling.traces.form import MAX_KEPT, MAX_NS, Call, Collector, Refused, Trace, most, shortened
from lib.timing.profiling.traces.kinds import cuda_kind, device_kind

MAX_READ_S = 60.0
_LOOK = 100_000  # of SQLite's instructions between two looks at the clock
# Rows that SQLite adds up at a time: it sorts them by name, which is five times as quick where they stay in the
# processor's cache (0.3 μs a row instead of 1.3 on two cores of a Xeon, 2026-11-22).
_ADDED_UP = 10_000
_SAMPLES = 400  # rows by which it is seen where in time they are
_COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}


@dataclass(frozen=True)
class Table:
    """A table of the export: `by` is SQL for what tells its calls apart, `lane` for what tells its lanes apart."""

    table: str
    by: str
    lane: str
    role: str

    def kind(self, name: str) -> str:
        """The kind of a call of this name."""
        return device_kind(name) if self.role == "device" else cuda_kind(name)


_STREAM = "'device ' || deviceId || ', stream ' || streamId"
_THREAD = "'thread ' || (globalTid & 16777215)"
TABLES = (
    Table("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", _THREAD, "host"),
    Table("CUPTI_ACTIVITY_KIND_KERNEL", "shortName", _STREAM, "device"),
    Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "'a whole CUDA graph'", _STREAM, "device"),
    Table("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind", _STREAM, "device"),
    Table("CUPTI_ACTIVITY_KIND_MEMSET", "'Memset'", _STREAM, "device"),
)
_AGAIN = "copy the whole file once no program writes to it, or make it from the .nsys-rep"
# Numbers alone: SQLite orders text and blobs after them.
_SOUND = f'start >= 0 AND start < "end" AND "end" <= {MAX_NS}'


def read_export(path: Path, title: str) -> Trace:
    """A trace from an export of Nsight Systems.

    Raises:
        Refused: It is damaged, no export of Nsight Systems, or takes too long to read.
    """
    with _damage_told(), _opened(path) as database:
        found = {table: tuple(_calls(database, table)) for table in _tables(database)}
        calls = most(call for known in found.values() for call in known)
        if not calls:
            raise Refused("it is an export of Nsight Systems without CUDA; profile with --trace=cuda")
        counts = {table: sum(call.count for call in known) for table, known in found.items() if known}
        rows = _rows(database, counts)
    drawn = rows.trace(title, "Nsight Systems")
    return replace(drawn, calls=calls, n_rows=sum(counts.values()))


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
        raise Refused(f"it is an SQLite file that cannot be read ({error}); {_AGAIN}") from None
    except (sqlite3.DatabaseError, OverflowError) as error:
        raise Refused(f"it is an SQLite file, but damaged or cut off ({error}); {_AGAIN}") from None


def _tables(database: sqlite3.Connection) -> list[Table]:
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [table for table in TABLES if table.table in known]
    if not found or "StringIds" not in known:
        others = ", ".join(sorted(known)[:3])[:80] or "no table"
        raise Refused(
            f"it is an SQLite file of something else ({others}); expected an export of Nsight Systems with CUDA calls"
        )
    return found


def _calls(database: sqlite3.Connection, table: Table) -> Iterator[Call]:
    """The calls of a table; CUDA's calls do not lie in each other, so their own time is all of it."""
    totals: dict[object, list[int]] = {}
    low, limit = -(2**63), time.monotonic() + MAX_READ_S
    while low is not None:
        if time.monotonic() > limit:
            raise Refused(f"reading it took more than {MAX_READ_S:.0f} s; export a shorter range")
        edge = f"SELECT rowid FROM {table.table} WHERE rowid >= ? LIMIT 1 OFFSET {_ADDED_UP}"
        high = next(iter(database.execute(edge, (low,)).fetchone() or ()), None)
        for by, count, total_ns in database.execute(
            f'SELECT {table.by}, count(*), sum("end" - start) FROM {table.table}'
            f" WHERE rowid >= ? AND rowid < ? AND {_SOUND} GROUP BY 1",
            (low, 2**63 - 1 if high is None else high),
        ):
            known = totals.setdefault(by, [0, 0])
            known[0], known[1] = known[0] + count, known[1] + round(total_ns)
        low = high
    for by, (count, total_ns) in totals.items():
        name = _name(database, table, by)
        yield Call(name, table.kind(name), count, total_ns, total_ns)


def _name(database: sqlite3.Connection, table: Table, by: object) -> str:
    """The name of a call, as `nsys stats` prints it: without the number of the interface's version."""
    if table.by == "copyKind":
        return f"Memcpy, {_COPIES.get(by, 'of another kind')}" if isinstance(by, int) else "Memcpy"
    if not isinstance(by, int):
        return str(by)
    found = database.execute("SELECT value FROM StringIds WHERE id = ?", (by,)).fetchone()
    name = str(found[0]) if found else f"call {by}"
    head, _, version = name.rpartition("_v")
    return head if head and version.isdigit() else name


def _rows(database: sqlite3.Connection, counts: dict[Table, int]) -> Collector:
    """The rows of a stretch in the middle of the profile, about `MAX_KEPT` of them, or all where there are no more."""
    low, high = _stretch(database, counts) if sum(counts.values()) > MAX_KEPT else (0, MAX_NS)
    found = Collector()
    while not len(found):
        for table in counts:
            named = cache(lambda by, table=table: _name(database, table, by))
            for lane, by, start, end, correlation in database.execute(
                f'SELECT {table.lane}, {table.by}, start, "end", correlationId FROM {table.table}'
                f" WHERE {_SOUND} AND start BETWEEN ? AND ? LIMIT {2 * MAX_KEPT}",
                (low, high),
            ):
                name, number = named(by), found.lane((table.role, lane), str(lane), table.role)
                start, length = round(start), round(end) - round(start)
                known = correlation if isinstance(correlation, int) else 0
                found.add(number, name, table.kind(name), start, length, known)
        length = high - low + 1
        low, high = max(0, low - 10 * length), min(MAX_NS, high + 10 * length)
    return found


def _stretch(database: sqlite3.Connection, counts: dict[Table, int]) -> tuple[int, int]:
    """Where in time about `MAX_KEPT` rows around the middle one begin, by some rows of the table that has most."""
    table, starts = max(counts, key=counts.__getitem__).table, list[float]()
    last = database.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
    for rowid in np.linspace(1, last, _SAMPLES).astype(np.int64).tolist():
        sampled = f"SELECT start FROM {table} WHERE rowid >= ? AND {_SOUND} LIMIT 1"
        starts += database.execute(sampled, (rowid,)).fetchone() or ()
    middle, half = len(starts) / 2, 0.45 * len(starts) * MAX_KEPT / sum(counts.values())
    low, high = np.interp([middle - half, middle + half], np.arange(len(starts)), np.sort(starts))
    return round(low), round(high)


MAX_LINE = 1 << 20  # characters
_UNIT = re.compile(r"\((ns|us|μs|ms|s|sec)\)")
_NS = {"ns": 1.0, "us": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_ALIASES = {
    **{"operation": "name", "instances": "count", "calls": "count", "dur": "duration", "stream": "strm"},
    **{"corr id": "corrid", "correlation id": "corrid"},
}
_NUMBERS = {"total time", "num calls", "count", "start", "duration", "corrid"}


def read_report(path: Path, title: str) -> Trace:
    """A trace from one or several reports.

    Raises:
        Refused: A line is absurdly long, or no report is in it.
    """
    found, sums = Collector(), list[Call]()
    head: list[tuple[str, float]] = []  # names of the columns, and nanoseconds of their units
    for fields in _lines(path):
        columns = [_column(field) for field in fields]
        names = {name for name, _ in columns}
        if "name" in names and names & {"total time", "start"}:
            head = columns
        elif not head or len(fields) < len(head):
            head = []  # a blank line, or a title: the report has ended
        else:
            cells = zip(head, fields, strict=False)
            told = {name: _value(text, unit) if name in _NUMBERS else text for (name, unit), text in cells}
            if "total time" in told:
                sums += _sum(told)
            elif told.get("start") is not None and told.get("duration") is not None:
                _take(told, found)
    if not sums and not len(found):
        raise Refused(
            "it is text, but no report of nsys stats and no JSON; make such a report with nsys stats --format csv FILE,"
            " or profile with torch.profiler or jax.profiler"
        )
    drawn = found.trace(title, "nsys stats")
    calls = most(sums) if sums else drawn.calls
    return replace(drawn, calls=calls, n_rows=max(drawn.n_rows, sum(call.count for call in sums)))


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open("rb") as file:
        wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as PowerShell writes what is printed
    with path.open(encoding="utf-16" if wide else "utf-8-sig", errors="replace", newline="") as file:
        while line := file.readline(MAX_LINE):
            if len(line) >= MAX_LINE:
                raise Refused("a line of it is longer than a mebibyte; it is no report of nsys stats")
            yield from csv.reader([line.rstrip("\r\n")])


def _column(field: str) -> tuple[str, float]:
    """A column's name, one for all versions of nsys, and the nanoseconds of its unit."""
    name, unit = re.sub(r"\s*\(.*", "", field).strip().lower(), _UNIT.search(field)
    return _ALIASES.get(name, name), _NS[unit[1]] if unit else 1.0


def _value(text: str, unit: float) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * unit if abs(value) < 1e18 else None


def _sum(told: dict[str, Any]) -> list[Call]:
    count, total_ns, name = told.get("num calls", told.get("count")), told["total time"], shortened(told["name"])
    if count is None or total_ns is None or count < 0 or total_ns < 0:
        return []
    kind = cuda_kind if "num calls" in told else device_kind
    return [Call(name, kind(name), round(count), round(total_ns), round(total_ns))]


def _take(told: dict[str, Any], found: Collector) -> None:
    name, stream, correlation = told["name"], told.get("strm"), round(told.get("corrid") or 0)
    if stream is not None:
        device = told.get("device", "device")
        lane = found.lane(("stream", device, stream), f"{device}, stream {stream}", "device")
    else:
        thread = told.get("tid", "host")
        lane = found.lane(("thread", thread), f"thread {thread}")
    kind = cuda_kind(name) if stream is None else device_kind(name)
    found.add(lane, name, kind, round(told["start"]), round(told["duration"]), correlation)
