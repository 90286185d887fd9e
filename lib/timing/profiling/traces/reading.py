"""Read a file as a trace, in a separate process, so that a malicious file cannot harm the server.

The content determines the format, never the file's name:

* Chrome trace events in JSON, from PyTorch, Perfetto and browsers, and XSpaces (`.xplane.pb`) from JAX and TensorFlow.
  An event's category, lane name and arguments determine its kind; every producer uses them differently. If they are not
  enough, the row is `other`. Many producers write invalid JSON: an array without its end, control characters, times as
  text. Events are read one by one from a buffer, so that a file of any size, even gzipped, needs no more memory than
  its rows.
* Nsight Systems' export as SQLite (`nsys export --type=sqlite`). SQLite sums the calls, so a file of any size needs
  little memory; rows are read from one time range only. An untrusted file may contain views and damaged pages, so it is
  opened read-only, only its tables are read, and reading time is limited.
* Nsight Systems' text reports (`nsys stats --format csv`). Reports of sums (`cuda_api_sum`) have calls, but no rows to
  draw; reports of rows (`cuda_api_trace`, `cuda_gpu_trace`) have both. One file may contain several reports.
"""

import codecs
import csv
import gzip
import json
import math
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any
from urllib.request import pathname2url

import numpy as np

from lib.model.hardware.process import MAX_MEMORY_BYTES, answer
from lib.timing.profiling.traces.form import (
    COMMUNICATION,
    DISPATCH,
    KERNEL,
    KINDS,
    LAUNCH,
    MAX_KEPT,
    MAX_NS,
    OTHER,
    PROFILER,
    PYTHON,
    REPEATED,
    ROLES,
    TRANSFER,
    WAIT,
    Call,
    Collector,
    Lane,
    Refused,
    Trace,
    cuda_kind,
    device_kind,
    kind_of,
    most,
    shortened,
)

CHUNK = 1 << 20  # characters to read at once
MAX_EVENT = 8 << 20  # characters of one event
MAX_HEAD = 64 << 20  # characters before the events
MAX_BYTES = 256 << 20  # of an XSpace, whose parser holds several copies of the whole file
EVENTS = '"traceEvents"'
_BEFORE = "\ufeff \t\r\n"  # the text's first letter
BY_PROFILERS = "profile with torch.profiler, jax.profiler or Nsight Systems"
_BLANKS = re.compile(r"[ \t\r\n,\0]*")
# Categories in lower case, from PyTorch (capitalised before 1.9), Paddle, MTIA, ONNX Runtime, VizTracer and py-spy.
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"}
_RUNTIME = re.compile(r"(cuda|xpu|mtia|hpu|hip|privateuse1|glow)?_?(runtime|driver)")
_BY_CATEGORY = {
    **dict.fromkeys(("cpu_op", "operator", "session", "api"), DISPATCH),
    **dict.fromkeys(("python_function", "user_annotation", "fee", "py-spy", "python"), PYTHON),
    **dict.fromkeys(("userdefined", "pythonop", "pythonuserdefined", "profilestep", "dataloader"), PYTHON),
    **dict.fromkeys(("forward", "backward", "optimization"), PYTHON),
    "cuda_sync": WAIT,
    "overhead": PROFILER,
    "communication": COMMUNICATION,
}
# Frames around everything, copies of the host's marks, and counter ranges with estimated times.
_NO_ROWS = {"trace", "gpu_user_annotation", "cuda_profiler_range"}
# The profiler that wrote the file, by a category in it.
_MADE_BY = {
    "cpu_op": "PyTorch's profiler",
    "cuda_runtime": "PyTorch's profiler",
    "runtime": "PyTorch's profiler",
    "cudaruntime": "Paddle's profiler",
    "profilestep": "Paddle's profiler",
    "node": "ONNX Runtime",
    "fee": "VizTracer",
    "py-spy": "py-spy",
}
_STEP = re.compile(r"ProfilerStep#|ProfileStep[#\[]|model_run$")
# ONNX Runtime providers that only hand work to a card; all others compute in the call.
_ON_CARD = re.compile(r"^(CUDA|ROCM|Tensorrt|NvTensorRTRTX|MIGraphX|Dml|WebGpu|Js|Cann)ExecutionProvider")
_CARD = re.compile("device:(GPU|TPU)")
_OF_XLA = re.compile(r"/(host|device):(CPU|GPU|TPU)")
# Lines of a card to read; its other lines repeat their rows by program, step and name scope.
_SHOWN = {"GPU": ("Stream",), "TPU": ("XLA Ops", "Async XLA Ops")}
_DROPPED = ("ThreadpoolListener::", "end: ")  # marks of the profiler itself
# Calls that identify JAX's profiler, because TensorFlow's has the same planes.
_JAX = re.compile(r"^(PjRt|PJRT_|Pjit|Py(Client|Array|LoadedExecutable)|\$(pjit|api)\.py|jit_|jit\()")


def read_events(path: Path, title: str) -> Trace:
    """Read a file of Chrome trace events.

    Raises:
        Refused: It is cut off, not JSON, too deep or too large; the text says which.
    """
    found, notes = Collector(), list[str]()
    lanes = _Lanes(found)
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rt", encoding="utf-8", errors="replace") as file:
        try:
            for event in events(file, notes):  # pyright: ignore[reportArgumentType]
                if isinstance(event, dict):
                    lanes.take(event)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Refused(
                f"it is gzipped, but damaged or cut off ({error}); copy the whole file, or unpack it where it was made"
            ) from None
    made_by = lanes.finish()
    if not found.names:
        raise Refused(
            "it is JSON, but has no calls with a duration, only marks, counters or calls that never end; stop the"
            f" profiler before the program ends, and {BY_PROFILERS}"
        )
    trace = found.trace(title, made_by)
    return replace(trace, notes=(*trace.notes, *notes))


def events(file: IO[str], notes: list[str]) -> Iterator[Any]:
    """Yield the members of `traceEvents`, or of the file's top-level list, one by one.

    Args:
        file: The text.
        notes: Receives remarks for the user on how the file was read.

    Raises:
        Refused: The file is cut off or not JSON; the text says which.
        RecursionError: An event is nested too deeply.
    """
    decode = json.JSONDecoder(strict=False).raw_decode
    buffer, at = _head(file)
    is_list = buffer[:at].strip(_BEFORE) == "["
    n_read, n_events = len(buffer), 0
    while True:
        at = _BLANKS.match(buffer, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        if buffer.startswith("]", at):
            return
        try:
            event, at = decode(buffer, at)
        except ValueError as error:  # usually because the rest of the event has not been read yet
            is_long = len(buffer) - at > MAX_EVENT
            if piece := "" if is_long else file.read(CHUNK):
                n_read += len(piece)
                buffer, at = buffer[at:] + piece, 0
                continue
            place = getattr(error, "pos", 0)
            is_cut_off = not is_long and (place >= len(buffer.rstrip()) or "Unterminated" in str(error))
            if is_cut_off and is_list and n_events:  # the format allows a list without its end
                if at < len(buffer):
                    notes.append(f"its last event is cut off; the {n_events:,} before it were read")
                return
            if is_cut_off:
                raise Refused(
                    f"it is cut off at character {n_read:,}; let the program end, or stop the profiler, before copying"
                    " the file, and copy all of it"
                ) from None
            raise Refused(
                f"it is damaged near character {n_read - len(buffer) + at:,}, where it is not JSON"
                f" ({getattr(error, 'msg', error)}), or has an event of more than {MAX_EVENT >> 20} MiB; another tool"
                " may have changed it: drop the file as the profiler wrote it"
            ) from None
        yield event
        n_events += 1
        if at > CHUNK:
            buffer, at = buffer[at:], 0


def _head(file: IO[str]) -> tuple[str, int]:
    """Return the beginning of the text, and the position of the first event in it."""
    buffer = ""
    while len(buffer) < MAX_HEAD and (piece := file.read(CHUNK)):
        buffer += piece
        key = 0 if buffer.lstrip(_BEFORE).startswith("[") else buffer.find(EVENTS)
        begins = buffer.find("[", key)
        if key >= 0 and begins >= 0:
            return buffer, begins + 1
    raise Refused(
        'it is JSON, but has no list of "traceEvents"; export it as a Chrome trace if its program can, or'
        f" {BY_PROFILERS}"
    )


class _Lanes:
    """Assigns events to lanes; a lane is a thread or a card's stream."""

    def __init__(self, found: Collector) -> None:
        self._found = found
        self._categories: set[str] = set()
        self._begun: dict[tuple, list[tuple]] = {}  # events that have not ended
        self._processes: dict[object, str] = {}
        self._threads: dict[tuple, tuple[str, str]] = {}  # name and role; roles are only in files saved by this project

    def take(self, event: dict[str, Any]) -> None:
        """Add one event; ignore it if it violates the format."""
        phase, name, pid, tid, told = (event.get(key) for key in ("ph", "name", "pid", "tid", "args"))
        told = told if isinstance(told, dict) else {}
        if not isinstance(pid, str | int | float | None) or not isinstance(tid, str | int | float | None):
            return
        if phase == "M":
            self._take_name(name, pid, tid, told)
            return
        category, at_us = str(event.get("cat", "")).lower(), _number(event.get("ts"))
        if category in _NO_ROWS:
            return
        if phase == "X":
            self._add(pid, tid, str(name), category, at_us, _number(event.get("dur")), told)
        elif phase == "B":
            self._begun.setdefault((pid, tid), []).append((str(name), category, at_us, told))
        elif phase == "E" and self._begun.get((pid, tid)):
            name, category, began_us, begun = self._begun[pid, tid].pop()
            self._add(pid, tid, name, category, began_us, at_us - began_us, begun or told)

    def _take_name(self, what: object, pid: object, tid: object, told: dict[str, Any]) -> None:
        name = str(told.get("name", ""))
        if what == "process_name":
            self._processes[pid] = name
        elif what == "thread_name":
            role = told.get("role")
            self._threads[pid, tid] = name, role if role in ROLES else ""

    def _add(
        self, pid: object, tid: object, name: str, category: str, start_us: float, duration_us: float, told: dict
    ) -> None:
        self._categories.add(category)
        on_device = category in _ON_DEVICE
        lane = self._found.lane((pid, tid, on_device), role="device" if on_device else "host")
        kind = _kind(name, category, told, self._processes.get(pid, ""))
        is_step = "step_num" in told or bool(_STEP.match(name))
        self._found.add(lane, name, kind, start_us * 1e3, duration_us * 1e3, is_step)

    def finish(self) -> str:
        """Name the lanes, and return the profiler that wrote the file; empty if unknown."""
        made_by = next((by for category, by in _MADE_BY.items() if category in self._categories), "")
        if not made_by and any(map(_OF_XLA.match, self._processes.values())):
            made_by = _of_xla(self._found)
        for (pid, tid, on_device), number in self._found.numbers.items():
            thread, saved = self._threads.get((pid, tid), ("", ""))
            role = saved or ("device" if on_device else self._role(pid, thread))
            self._found.lanes[number] = Lane(shortened(thread or f"thread {tid}"), role)
        return made_by

    def _role(self, pid: object, thread: str) -> str:
        card = _CARD.search(self._processes.get(pid, ""))
        if card and not thread.startswith(_SHOWN[card[1]]):
            return REPEATED
        if card or thread.lower().startswith("stream"):
            return "device"
        return "python" if "python" in thread.lower() else "host"


def _kind(name: str, category: str, told: dict, process: str) -> str:
    """Return the kind of a row by its category and arguments, or by its name; otherwise `other`."""
    if category in _ON_DEVICE:
        return TRANSFER if category.endswith(("memcpy", "memset")) else device_kind(name)
    if category == "node":
        if not name.endswith("_kernel_time"):
            return DISPATCH
        if str(told.get("op_name")).startswith("Memcpy"):
            return TRANSFER
        return LAUNCH if _ON_CARD.match(str(told.get("provider"))) else KERNEL
    if _CARD.search(process):
        return OTHER
    if _RUNTIME.fullmatch(category):
        return cuda_kind(name)
    kind = kind_of(name, "hlo_op" in told, untold=OTHER)
    if kind == KERNEL and "hlo_op" not in told:
        kind = OTHER  # the name only looks like TensorFlow's; for files by TensorFlow, the collector derives it later
    by_category = _BY_CATEGORY.get(category) or (category if category in KINDS else None)
    return kind if by_category is None or kind == PROFILER else by_category


def _number(value: object) -> float:
    """Return a number, which some producers write as text, as a float; NaN if it is none."""
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _of_xla(found: Collector, has_version: bool = False) -> str:
    return "JAX's profiler" if has_version or any(map(_JAX.search, found.names)) else "TensorFlow's profiler"


def read_xspace(path: Path, title: str) -> Trace:
    """Read an XSpace.

    Raises:
        Refused: It is too large, cut off, or has no rows.
    """
    if (size := path.stat().st_size) > MAX_BYTES:
        raise Refused(f"it has {size >> 20:,} MiB, but the limit is {MAX_BYTES >> 20} MiB; record fewer steps")
    from jax.profiler import ProfileData

    try:
        planes = list(ProfileData.from_file(str(path)).planes)
    except (RuntimeError, ValueError):
        raise Refused(
            "it begins like an .xplane.pb but is cut off or damaged; stop the profiler before the program ends, and"
            " copy the whole file as it is"
        ) from None
    found = Collector()
    for plane in planes:
        if plane.name == "/host:CPU":
            _take_plane(plane, "", found)
        elif plane.name.startswith("/device:"):
            _take_plane(plane, _SHOWN["TPU" if "TPU" in plane.name else "GPU"], found)
    if not found.names:
        raise Refused("it has no rows of a CPU or GPU; record a step while the profiler runs")
    return found.trace(title, _of_xla(found, any("jax_version" in dict(plane.stats) for plane in planes)))


def _take_plane(plane, shown: str | tuple[str, ...], found: Collector) -> None:
    for number, line in enumerate(plane.lines):
        if not line.name.startswith(shown):
            continue
        if shown:
            name, role = f"{plane.name.removeprefix('/device:')} {line.name}", "device"
        else:
            name = line.name.removeprefix("tf_").replace("/", " ")
            role = "python" if name.startswith("python") else "host"
        lane = found.lane((plane.name, number), name, role)
        for event in line.events:
            if event.name.startswith(_DROPPED):
                continue
            stats = dict(event.stats)
            kind = OTHER if shown else kind_of(event.name, "hlo_op" in stats)
            found.add(lane, event.name, kind, event.start_ns, event.duration_ns, "step_num" in stats)


MAX_READ_S = 60.0
_LOOK = 100_000  # SQLite instructions between two checks of the clock
_SAMPLES = 400  # rows sampled to find how rows are distributed in time
_COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}
_STRINGS = "SELECT id, value FROM StringIds"
_STREAM = "'device ' || deviceId || ', stream ' || streamId"
_THREAD = "'thread ' || (globalTid & 16777215)"
# Tables of the export: SQL that identifies a call, SQL that identifies a lane, and the lanes' role.
TABLES = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId", _THREAD, "host"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("shortName", _STREAM, "device"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("'a whole CUDA graph'", _STREAM, "device"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("copyKind", _STREAM, "device"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("'Memset'", _STREAM, "device"),
}
_AGAIN = "copy the whole file once no program is writing to it, or export the .nsys-rep again"
# This excludes text and blobs, which SQLite orders after numbers.
_SOUND = f'start >= 0 AND start < "end" AND "end" <= {MAX_NS}'


def read_export(path: Path, title: str) -> Trace:
    """Read an export of Nsight Systems.

    Raises:
        Refused: It is damaged, not an export of Nsight Systems, or takes too long to read.
    """
    with _opened(path) as database:
        tables = _tables(database)
        strings = dict(database.execute(_STRINGS))
        found = {table: calls for table in tables if (calls := _calls(database, table, strings))}
        if not found:
            raise Refused("it is an export of Nsight Systems without CUDA; profile with --trace=cuda")
        counts = {table: sum(call.count for call in calls) for table, calls in found.items()}
        drawn = _rows(database, counts, strings).trace(title, "Nsight Systems")
    calls = most(call for calls in found.values() for call in calls)
    return replace(drawn, calls=calls, n_rows=sum(counts.values()))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    address = f"file:{pathname2url(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            limit = time.monotonic() + MAX_READ_S
            database.set_progress_handler(lambda: time.monotonic() > limit, _LOOK)
            database.text_factory = lambda content: content.decode("utf-8", "replace")
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "cache_size = -65536"):
                database.execute(f"PRAGMA {pragma}")
            yield database
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise Refused(f"reading it took more than {MAX_READ_S:.0f} s; export a shorter range") from None
        raise Refused(f"it is an SQLite file that cannot be read ({error}); {_AGAIN}") from None
    except (sqlite3.DatabaseError, OverflowError) as error:
        raise Refused(f"it is an SQLite file, but damaged or cut off ({error}); {_AGAIN}") from None


def _tables(database: sqlite3.Connection) -> list[str]:
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [table for table in TABLES if table in known]
    if not found or "StringIds" not in known:
        others = ", ".join(sorted(known)[:3])[:80] or "no tables"
        raise Refused(
            f"it is another kind of SQLite file ({others}); expected an export of Nsight Systems with CUDA calls"
        )
    return found


def _calls(database: sqlite3.Connection, table: str, strings: dict[Any, Any]) -> list[Call]:
    """Return the calls of a table. CUDA calls are not nested, so own time equals total time."""
    column, _, role = TABLES[table]
    kind = device_kind if role == "device" else cuda_kind
    found = []
    for by, count, total_ns in database.execute(
        f'SELECT {column}, count(*), sum("end" - start) FROM {table} WHERE {_SOUND} GROUP BY 1'
    ):
        name = _name(table, by, strings)
        found.append(Call(name, kind(name), count, round(total_ns), round(total_ns)))
    return found


def _name(table: str, by: Any, strings: dict[Any, Any]) -> str:
    """Return the name of a call as printed by `nsys stats`, without the interface's version."""
    if table == "CUPTI_ACTIVITY_KIND_MEMCPY":
        return f"Memcpy, {_COPIES.get(by, 'of another kind')}"
    return re.sub(r"(?<=.)_v\d+$", "", str(strings.get(by, by)))


def _rows(database: sqlite3.Connection, counts: dict[str, int], strings: dict[Any, Any]) -> Collector:
    """Return about `MAX_KEPT` rows from the middle of the profile, or all if there are no more."""
    low, high = _stretch(database, counts) if sum(counts.values()) > MAX_KEPT else (0, MAX_NS)
    found = Collector()
    for table in counts:
        column, lanes, role = TABLES[table]
        for lane, by, start_ns, duration_ns in database.execute(
            f'SELECT {lanes}, {column}, start, "end" - start FROM {table}'
            f" WHERE {_SOUND} AND start BETWEEN ? AND ? LIMIT {2 * MAX_KEPT}",
            (low, high),
        ):
            name = _name(table, by, strings)
            found.add(found.lane(lane, role=role), name, cuda_kind(name), start_ns, duration_ns)
    return found


def _stretch(database: sqlite3.Connection, counts: dict[str, int]) -> tuple[int, int]:
    """Estimate when the middle `MAX_KEPT` rows begin, from samples of the table with the most rows."""
    table = max(counts, key=counts.__getitem__)
    last = database.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
    sampled = f"SELECT start FROM {table} WHERE rowid >= ? AND {_SOUND} LIMIT 1"
    found = [database.execute(sampled, (round(at),)).fetchone() for at in np.linspace(1, last, _SAMPLES)]
    starts = sorted(start for (start,) in filter(None, found))
    share = 0.45 * MAX_KEPT / sum(counts.values())
    low, high = np.quantile(starts, [0.5 - share, 0.5 + share])
    middle, half = starts[len(starts) // 2], round(high - low) // 2
    return middle - half, middle + half


_UNIT = re.compile(r"\((ns|us|μs|ms|s|sec)\)")
_NS = {"ns": 1.0, "us": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_ALIASES = {"operation": "name", "instances": "count", "calls": "count", "dur": "duration", "stream": "strm"}
_NUMBERS = {"total time", "num calls", "count", "start", "duration"}


def read_report(path: Path, title: str) -> Trace:
    """Read a file of one or several reports by `nsys stats`.

    Raises:
        Refused: A line is absurdly long, or the file contains no report.
    """
    found, sums = Collector(), list[Call]()
    head: list[tuple[str, float]] = []  # names of the columns, and nanoseconds per unit
    for fields in _lines(path):
        columns = [_column(field) for field in fields]
        names = {name for name, _ in columns}
        if "name" in names and names & {"total time", "start"}:
            head = columns
        elif not head or len(fields) < len(head):
            head = []  # a blank line or a title ends a report
        else:
            cells = zip(head, fields, strict=False)
            told = {name: unit * _number(text.replace(",", "")) if unit else text for (name, unit), text in cells}
            _take_line(told, found, sums)
    if not sums and not found.names:
        raise Refused(
            "it is text, but neither a report of nsys stats nor JSON; make such a report with nsys stats --format csv"
            " FILE, or profile with torch.profiler or jax.profiler"
        )
    drawn = found.trace(title, "nsys stats")
    calls = most(sums) if sums else drawn.calls
    return replace(drawn, calls=calls, n_rows=max(drawn.n_rows, sum(call.count for call in sums)))


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open("rb") as file:
        wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # PowerShell redirects output in UTF-16
    with path.open(encoding="utf-16" if wide else "utf-8-sig", errors="replace", newline="") as file:
        try:
            yield from csv.reader(file)
        except csv.Error as error:
            raise Refused(f"it is text, but not a report of nsys stats ({error})") from None


def _column(field: str) -> tuple[str, float]:
    """Return a column's name, unified across versions of nsys, and the nanoseconds per unit; 0 for text."""
    name, unit = re.sub(r"\s*\(.*", "", field).strip().lower(), _UNIT.search(field)
    name = _ALIASES.get(name, name)
    return name, (_NS[unit[1]] if unit else 1.0) if name in _NUMBERS else 0.0


def _take_line(told: dict[str, Any], found: Collector, sums: list[Call]) -> None:
    name, stream = shortened(told["name"]), told.get("strm")
    if "total time" in told:
        count, total_ns = told.get("num calls", told.get("count", math.nan)), told["total time"]
        if 0 <= count < MAX_NS and 0 <= total_ns < MAX_NS:
            kind = cuda_kind if "num calls" in told else device_kind
            sums.append(Call(name, kind(name), round(count), round(total_ns), round(total_ns)))
        return
    if stream is None:
        lane = found.lane(f"thread {told.get('tid', 'host')}")
    else:
        lane = found.lane(f"{told.get('device', 'device')}, stream {stream}", role="device")
    found.add(lane, name, cuda_kind(name), told["start"], told.get("duration", math.nan))


HEAD = 4096  # bytes that identify a format

# Other files that users upload, by their first bytes, with a remedy.
_UNPACK = "unpack it, and choose a trace from it"
_NSYS = "convert it: nsys export --type=sqlite FILE"
_FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive", _UNPACK),
    (b"BZh", "compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ", "compressed with xz", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", _UNPACK),
    (b"NVIDIA Tegra Profiler Report", "Nsight Systems' own report (.nsys-rep, .qdrep)", _NSYS),
    (b"QDSS", "an unfinished Nsight Systems report (.qdstrm)", f"open it in Nsight Systems, then {_NSYS}"),
    (b"NVR\0", "an Nsight Compute report", "profile with Nsight Systems: nsys profile --trace=cuda"),
    (b"# tracer:", "a log of Linux' ftrace", "it has no rows of a training"),
    (b"\x89PNG", "a picture", ""),
    (b"\xff\xd8\xff", "a picture", ""),
    (b"%PDF", "a PDF", ""),
    (b"<", "an HTML or XML page", "if it shows a trace, save that as JSON"),
    (b"\x7fELF", "a program", ""),
    (b"\x93NUMPY", "a NumPy array", ""),
)
# JSON without trace events, by a key in it, with a remedy.
_PYTHON_ALONE = "it has only Python functions; profile with torch.profiler, jax.profiler or TensorFlow's profiler"
_JSON = (
    (
        rb'speedscope.app/file-format|"\$schema"[^,]{0,80}speedscope',
        "a speedscope profile, such as py-spy's",
        _PYTHON_ALONE,
    ),
    (rb'"nodes"\s*:.*"(samples|timeDeltas)"|"head"\s*:\s*{"functionName"', "a CPU profile from V8 or Node.js", ""),
    (rb'"(stackTable|preprocessedProfileVersion|libs)"', "a Firefox profile", ""),
    (
        rb'"rocprofiler-sdk-tool"',
        "a rocprofv3 result",
        "profile with torch.profiler or jax.profiler, which record the GPU too",
    ),
    (
        rb'"schema"\s*:.{0,40}Chakra|"nodes"\s*:\s*\[\s*{\s*"(id|name)".*"ctrl_deps"',
        "a PyTorch execution trace, which has no times",
        "",
    ),
    (rb'"cells"\s*:|"nbformat"', "a notebook", ""),
)
_EXPECTED = (
    "expected an .xplane.pb from JAX or TensorFlow, a Chrome or PyTorch trace in JSON, or an export of Nsight Systems"
    " as SQLite or CSV"
)
# The first field of an XSpace is a plane: an optional number, then its name. A Perfetto trace has packets.
_LENGTH = rb"[\x80-\xff]{0,9}[\0-\x7f]"
_XSPACE = re.compile(rb"\n" + _LENGTH + rb"(\x08" + _LENGTH + rb")?\x12" + _LENGTH + rb"[ -~]{4}")
_PERFETTO = re.compile(rb"\n" + _LENGTH + rb"[\x08-\xff]")
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a]")
_REPLACED = "\ufffd".encode()  # programs replace bytes that are not text by this
_Reader = Callable[[Path, str], Trace]


def reader_of(head: bytes) -> _Reader:
    """Return the reader of a file that begins with these bytes.

    Raises:
        Refused: No format begins like that; the text says what the file looks like, and what helps.
    """
    if not head.strip():
        raise Refused("it is empty; stop the profiler and let it write its file before copying it")
    if head.startswith(b"SQLite format 3\0"):
        return read_export
    if head.startswith(b"\x1f\x8b"):
        head = _unpacked(head)
        if not _is_text_of_json(head):
            raise Refused(f"it is gzipped, but its content is not JSON; {_UNPACK}")
    looks = next(((words, helps) for begins, words, helps in _FOREIGN if head.startswith(begins)), None)
    if looks is not None:
        raise Refused(f"it looks like {looks[0]}; {looks[1] or _EXPECTED}")
    if head[257:262] == b"ustar":
        raise Refused(f"it looks like an archive of files (tar); {_UNPACK}")
    if _is_text_of_json(head):
        known = next(((words, helps) for has, words, helps in _JSON if re.search(has, head, re.DOTALL)), None)
        if known is not None and EVENTS.encode() not in head:
            raise Refused(f"it is JSON, but {known[0]}; {known[1] or BY_PROFILERS}")
        return read_events
    if (head.count(_REPLACED) >= 8 and b"\0" in head) or head.startswith(b"\x1f" + _REPLACED):
        raise Refused(
            "a program treated it as text and replaced some of its bytes, which are lost; copy or download it as a"
            " binary file"
        )
    if _XSPACE.match(head):
        return read_xspace
    is_binary = _BINARY.search(head)
    if _PERFETTO.match(head) and is_binary:
        raise Refused(
            "it looks like a binary Perfetto trace; convert it: traceconv json FILE trace.json (traceconv is from"
            " get.perfetto.dev)"
        )
    if not is_binary or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return read_report
    raise Refused(f"it is another kind of binary file; {_EXPECTED}")


def _is_text_of_json(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def _unpacked(head: bytes) -> bytes:
    """Return the beginning of a gzipped file; if that fails, return JSON, so that its reader reports the error."""
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD) or b"{"
    except zlib.error:
        return b"{"


def read(path: Path, title: str) -> Trace:
    """Read the trace in a file.

    Raises:
        Refused: It cannot be read; the text says what it looks like, and what to do.
    """
    try:
        if path.exists() and not path.is_file():
            raise Refused("it cannot be opened (it is not a file)")
        with path.open("rb") as file:
            head = file.read(HEAD)
        return reader_of(head)(path, title)
    except OSError as error:
        raise Refused(f"it cannot be opened ({error.strerror or error})") from None
    except MemoryError:
        raise Refused(f"reading it takes more than {MAX_MEMORY_BYTES >> 30} GiB; record fewer steps") from None
    except RecursionError:
        raise Refused("it is nested too deeply for a trace") from None


def main(connection: Connection) -> None:
    """Run the reader's process: answer each (path, title) with a `Trace`, or a sentence saying why there is none."""
    answer(connection, read)
