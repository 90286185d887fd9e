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
import re
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any
from urllib.request import pathname2url

import numpy as np

from lib.formatting import listed
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
    ROLES,
    TRANSFER,
    WAIT,
    Call,
    Collector,
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
MAX_UNPACKED = 4 << 30  # bytes of a gzipped file
MAX_BYTES = 256 << 20  # of an XSpace, whose parser holds several copies of the whole file
EVENTS = '"traceEvents"'
BY_PROFILERS = "profile with torch.profiler, jax.profiler or Nsight Systems"
_BLANK = " \t\r\n,\0"
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
_OF_TORCH = re.compile(r"CPU functions|CUDA functions", re.IGNORECASE)  # processes in traces of PyTorch before 1.8
_OTHER_CARDS = re.compile(r"gpu/\d+$|CUDA functions", re.IGNORECASE)  # cards in traces of MXNet and PyTorch before 1.8
_STEP = re.compile(r"ProfilerStep#|ProfileStep[#\[]|model_run$")
# TensorFlow 1 has a process for each device and each stream.
_TIMELINE = re.compile(
    r"/?(.*?/)?(device:)?(?P<device>gpu|cpu|xla_gpu|xla_cpu|tpu):\d+(?P<queue>/\S+)? Compute", re.IGNORECASE
)
_NO_ARITHMETIC = {
    *("NoOp", "Const", "Placeholder", "Identity", "Variable", "VariableV2", "VarHandleOp", "ReadVariableOp"),
    *("Shape", "Reshape", "Switch", "Merge", "_Send", "_Recv", "_Arg", "_Retval", "unknown"),
}
_WAITS = re.compile(r"^(IteratorGetNext|QueueDequeue|RecvTensor|_HostRecv)")
# ONNX Runtime providers that only hand work to a card; all others compute in the call.
_ON_CARD = re.compile(r"^(CUDA|ROCM|Tensorrt|NvTensorRTRTX|MIGraphX|Dml|WebGpu|Js|Cann)ExecutionProvider")
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
    if not len(found):
        raise Refused(lanes.nothing())
    trace = found.trace(title, made_by, calls_compute=made_by.startswith("PyTorch") and not lanes.has_device)
    return replace(trace, notes=(*trace.notes, *notes))


def events(file: IO[str], notes: list[str]) -> Iterator[Any]:
    """Yield the members of `traceEvents`, or of the file's top-level list, one by one.

    Args:
        file: The text.
        notes: Receives remarks for the user on how the file was read.

    Raises:
        Refused: The file is cut off, not JSON, too deep or too large; the text says which.
    """
    decode = json.JSONDecoder(strict=False).raw_decode
    buffer, at = _head(file)
    is_list = buffer[at - 1 :: -1].strip("\ufeff \t\r\n") == "["
    n_read, n_events, more = len(buffer), 0, True
    while True:
        while at < len(buffer) and buffer[at] in _BLANK:
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            event, at = decode(buffer, at)
        except RecursionError:
            raise Refused("an event is nested too deeply for a trace; it is not from a profiler") from None
        except ValueError as error:  # usually because the rest of the event has not been read yet
            piece = file.read(CHUNK) if more and len(buffer) - at <= MAX_EVENT else ""
            n_read, more = n_read + len(piece), bool(piece)
            if not piece and is_list and n_events and _is_cut_off(error, buffer, at):
                if at < len(buffer):
                    notes.append(f"its last event is cut off; the {n_events:,} before it were read")
                return  # the format allows a list without its end
            if not piece or n_read > MAX_UNPACKED:
                raise Refused(_broken(n_read, buffer, at, error)) from None
            buffer, at = buffer[at:] + piece, 0
            continue
        yield event
        n_events += 1
        if at > CHUNK:
            buffer, at = buffer[at:], 0


def _is_cut_off(error: ValueError, buffer: str, at: int) -> bool:
    """Whether the error lies only in the missing rest of the text."""
    is_sound = isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(buffer.rstrip()) or "Unterminated" in error.msg
    )
    return is_sound and len(buffer) - at <= MAX_EVENT


def _broken(n_read: int, buffer: str, at: int, error: ValueError) -> str:
    if n_read > MAX_UNPACKED:
        return f"it is larger than {MAX_UNPACKED >> 30} GiB of text; record fewer steps"
    if len(buffer) - at > MAX_EVENT:
        return f"an event near character {n_read:,} exceeds {MAX_EVENT >> 20} MiB; no profiler writes events that large"
    if _is_cut_off(error, buffer, at):
        return (
            f"it is cut off at character {n_read:,}; let the program end, or stop the profiler, before copying the"
            " file, and copy all of it"
        )
    return (
        f"it is damaged near character {n_read - len(buffer) + at:,}, where it is not JSON"
        f" ({getattr(error, 'msg', error)}); another tool may have changed it: drop the file as the profiler wrote it"
    )


def _head(file: IO[str]) -> tuple[str, int]:
    """Return the beginning of the text, and the position of the first event in it."""
    buffer, piece = "", " "
    while piece and len(buffer) < MAX_HEAD:
        piece = file.read(CHUNK)
        buffer += piece
        begins = buffer.lstrip("\ufeff \t\r\n")[:1]
        if begins and begins not in "[{":
            raise Refused("it is gzipped, but its content is not JSON; unpack it, and choose a trace from it")
        if begins == "[":
            return buffer, buffer.index("[") + 1
        key = buffer.find(EVENTS)
        if begins == "{" and key >= 0 and (at := buffer.find("[", key)) >= 0:
            return buffer, at + 1
    raise Refused(
        'it is JSON, but has no list of "traceEvents"; export it as a Chrome trace if its program can, or'
        f" {BY_PROFILERS}"
    )


class _Lanes:
    """Assigns events to lanes; a lane is a thread or a card's stream."""

    def __init__(self, found: Collector) -> None:
        self.found, self.has_device = found, False
        self._categories: Counter[str] = Counter()
        self._phases: Counter[str] = Counter()
        self._open: dict[tuple, list[tuple[str, str, float, object]]] = {}  # events that have begun but not ended
        self._processes: dict[object, str] = {}
        self._threads: dict[tuple, str] = {}
        self._roles: dict[tuple, str] = {}  # only in files saved by this project

    def take(self, event: dict[str, Any]) -> None:
        """Add one event; ignore it if it violates the format."""
        phase, name, pid, tid = (event.get(key) for key in ("ph", "name", "pid", "tid"))
        if not isinstance(pid, str | int | float | None) or not isinstance(tid, str | int | float | None):
            return
        if phase == "M":
            self._named(event, pid, tid)
            return
        category, at_us, more = event.get("cat"), _number(event.get("ts")), event.get("args")
        category = category.lower() if isinstance(category, str) else ""
        if isinstance(phase, str):
            self._phases[phase[:1]] += 1
        if at_us is None or category in _NO_ROWS:
            return
        name = str(name) if isinstance(name, str | int | float) else None
        key: tuple = (pid, tid, category in _ON_DEVICE)
        if phase == "X" and name is not None:
            duration_us = _number(event.get("dur"))
            if duration_us is not None:
                self._add(key, name, category, at_us, duration_us, more)
            return
        begins, ends = phase in ("B", "b", "S"), phase in ("E", "e", "F")
        if phase in ("b", "e", "S", "F"):  # asynchronous events, matched by id instead of thread
            of = event.get("id", event.get("id2"))
            key = (pid, f"asynchronous {category}".strip(), False)
            opened: tuple = (pid, category, of if isinstance(of, str | int | float) else str(of))
            opened = (*opened, name) if phase in ("S", "F") else opened
        else:
            opened = key[:2]
        if begins and name is not None and len(self._open) < 1_000_000:
            self._open.setdefault(opened, []).append((name, category, at_us, more))
        elif ends and self._open.get(opened):
            name, category, began_us, begun = self._open[opened].pop()
            self._add(key, name, category, began_us, at_us - began_us, begun or more)
            if not self._open[opened]:
                del self._open[opened]

    def _named(self, event: dict[str, Any], pid: object, tid: object) -> None:
        found = event.get("args")
        arguments = found if isinstance(found, dict) else {}
        name = arguments.get("name")
        if isinstance(name, str) and len(self._threads) + len(self._processes) < 10_000:
            if event.get("name") == "process_name":
                self._processes[pid] = name
            elif event.get("name") == "thread_name":
                self._threads[(pid, tid)] = name
                if (role := arguments.get("role")) in ROLES:
                    self._roles[(pid, tid)] = role

    def _add(self, key: tuple, name: str, category: str, start_us: float, duration_us: float, more: object) -> None:
        if not abs(start_us) < 1e16 or not 0 <= duration_us < 1e16:
            return  # this also excludes NaN and infinity, which the parser accepts
        if len(self._categories) < 1000:
            self._categories[category] += 1
        self.has_device = self.has_device or key[2]
        start_ns, duration_ns = round(start_us * 1e3), round(duration_us * 1e3)
        told = more if isinstance(more, dict) else {}
        lane = self.found.lane(key, role="device" if key[2] else "host")
        self.found.add(lane, name, _kind(name, category, told), start_ns, duration_ns)
        if "step_num" in told or _STEP.match(name):
            self.found.step(start_ns, duration_ns)

    def finish(self) -> str:
        made_by = next((by for category, by in _MADE_BY.items() if self._categories[category]), "")
        by_xla = any(map(_OF_XLA.match, self._processes.values()))
        named = [str(key[0]) for key in self.found.known()]
        if not made_by and any(map(_OF_TORCH.match, named)):
            made_by = "PyTorch's profiler"
        if not made_by and by_xla and not self._categories["op"]:
            made_by = _of_xla(self.found.has_name(_JAX))
        if self._categories["op"] and any(map(_TIMELINE.fullmatch, self._processes.values())):
            made_by = "TensorFlow's timeline"
        known = self.found.known()
        python = self.found.busiest(key for key in known if "python" in self._threads.get(key[:2], "").lower())
        for key in known:
            told = self._lane(key, made_by)
            told = "python" if key == python else "device" if key[2] else told
            thread = self._threads.get(key[:2], "")
            process = self._processes.get(key[0], "") if made_by == "TensorFlow's timeline" else ""
            self.found.rename(key, thread or process or f"thread {key[1]}", self._roles.get(key[:2], told))
        return made_by or "Chrome trace events"

    def _lane(self, key: tuple, made_by: str) -> str:
        """Return a lane's role by its name, and set the kinds of its rows."""
        process, thread = self._processes.get(key[0], ""), self._threads.get(key[:2], "")
        if made_by == "TensorFlow's timeline" and (found := _TIMELINE.fullmatch(process)):
            return self._of_timeline(key, found.group("device").lower(), found.group("queue") or "")
        card = re.search("device:(GPU|TPU)", process)
        if card and not thread.startswith(_SHOWN[card[1]]):
            self.found.leave_out(key)
            return ""
        if card or _OTHER_CARDS.match(process) or _OTHER_CARDS.match(str(key[0])):
            self.found.tell(key, device_kind, every=True)
            self.has_device = True
            return "device"
        if made_by:
            self.found.tell(key, kind_of)
        return "device" if thread.lower().startswith("stream") else ""

    def _of_timeline(self, key: tuple, device: str, queue: str) -> str:
        # TensorFlow 1 writes a card's streams twice, its copies, and where operations begin on the host.
        is_stream, has_all = queue.startswith("/stream:"), any("/stream:all" in p for p in self._processes.values())
        if is_stream and has_all and queue != "/stream:all":
            self.found.leave_out(key)
        elif is_stream:
            self.found.tell(key, device_kind, every=True)
        elif queue:
            self.found.tell(key, lambda _: TRANSFER)
        else:
            self.found.tell(key, (lambda _: LAUNCH) if "gpu" in device else device_kind)
        return "device" if queue else ""

    def nothing(self) -> str:
        """Return why the file has no rows, given what it has instead."""
        if self._open:
            return "it has events that begin, but none that end; stop the profiler before the program ends"
        known = {"C": "counters", "i": "instants", "I": "instants", "P": "samples", "O": "states", "N": "states"}
        has = list(dict.fromkeys(words for phase, words in known.items() if self._phases[phase]))
        if not self._phases:
            return f"it is JSON, but a list of something other than trace events; {BY_PROFILERS}"
        what = f"only {listed(has)}" if has else "only marks"
        return f"it has trace events, but {what}, none with a duration; record calls with their durations"


def _kind(name: str, category: str, told: dict) -> str:
    """Return the kind of a row by its category and arguments, or by its name; otherwise `other`."""
    if category in _ON_DEVICE:
        moves = category.endswith(("memcpy", "memset")) or name == "dma_request"
        return TRANSFER if moves else device_kind(name)
    if category == "node":
        if not name.endswith("_kernel_time"):
            return DISPATCH
        if str(told.get("op_name")).startswith("Memcpy"):
            return TRANSFER
        return LAUNCH if _ON_CARD.match(str(told.get("provider"))) else KERNEL
    if category == "op":
        op = str(told.get("op", name))
        if _WAITS.match(op):
            return WAIT
        return DISPATCH if op in _NO_ARITHMETIC else kind_of(op, untold=OTHER)
    if _RUNTIME.fullmatch(category):
        return cuda_kind(name)
    kind = kind_of(name, "hlo_op" in told, untold=OTHER)
    if kind == KERNEL and "hlo_op" not in told:
        kind = OTHER  # the name only looks like TensorFlow's; for files by TensorFlow, `_Lanes` derives the kind later
    by_category = _BY_CATEGORY.get(category) or (category if category in KINDS else None)
    return kind if by_category is None or kind == PROFILER else by_category


def _number(value: object) -> float | None:
    # Some producers write times as text.
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def _of_xla(by_jax: bool) -> str:
    return "JAX's profiler" if by_jax else "TensorFlow's profiler"


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
            _host(plane, found)
        elif plane.name.startswith("/device:"):
            _device(plane, found)
    if not len(found):
        raise Refused("it has no rows of a CPU or GPU; record a step while the profiler runs")
    is_jax = any("jax_version" in dict(plane.stats) for plane in planes) or found.has_name(_JAX)
    return found.trace(title, _of_xla(is_jax))


def _host(plane, found: Collector) -> None:
    numbers: dict[str, int] = {}
    python = []
    for index, line in enumerate(plane.lines):
        thread = line.name.split("/")[0].removeprefix("tf_")
        numbers[thread] = numbers.get(thread, 0) + 1
        key = (plane.name, index)
        for event in line.events:
            if event.duration_ns <= 0 or event.name.startswith(_DROPPED):
                continue
            stats = dict(event.stats)
            lane, kind = found.lane(key, f"{thread} {numbers[thread]}"), kind_of(event.name, "hlo_op" in stats)
            found.add(lane, event.name, kind, round(event.start_ns), round(event.duration_ns))
            if "step_num" in stats:
                found.step(round(event.start_ns), round(event.duration_ns))
        python += [key] if thread == "python" else []
    if (busiest := found.busiest(python)) is not None:
        found.rename(busiest, "python", "python")


def _device(plane, found: Collector) -> None:
    shown = _SHOWN["TPU" if "TPU" in plane.name else "GPU"]
    for index, line in enumerate(plane.lines):
        if not line.name.startswith(shown):
            continue
        lane = found.lane((plane.name, index), f"{plane.name.removeprefix('/device:')} {line.name}", "device")
        for event in line.events:
            found.add(lane, event.name, device_kind(event.name), round(event.start_ns), round(event.duration_ns))


MAX_READ_S = 60.0
_LOOK = 100_000  # SQLite instructions between two checks of the clock
# Rows for SQLite to sum at once. It sorts them by name, which is five times as fast if they stay in the processor's
# cache (0.3 μs per row instead of 1.3 on two cores of a Xeon, 2026-11-22).
_ADDED_UP = 10_000
_SAMPLES = 400  # rows sampled to find how rows are distributed in time
_COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}


_STREAM = "'device ' || deviceId || ', stream ' || streamId"
_THREAD = "'thread ' || (globalTid & 16777215)"
# Tables of the export: SQL that identifies a call, SQL that identifies a lane, the lanes' role, and the kind of a name.
TABLES = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId", _THREAD, "host", cuda_kind),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("shortName", _STREAM, "device", device_kind),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("'a whole CUDA graph'", _STREAM, "device", device_kind),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("copyKind", _STREAM, "device", device_kind),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("'Memset'", _STREAM, "device", device_kind),
}
_AGAIN = "copy the whole file once no program is writing to it, or export the .nsys-rep again"
# This excludes text and blobs, which SQLite orders after numbers.
_SOUND = f'start >= 0 AND start < "end" AND "end" <= {MAX_NS}'


def read_export(path: Path, title: str) -> Trace:
    """Read an export of Nsight Systems.

    Raises:
        Refused: It is damaged, not an export of Nsight Systems, or takes too long to read.
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


def _tables(database: sqlite3.Connection) -> list[str]:
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [table for table in TABLES if table in known]
    if not found or "StringIds" not in known:
        others = ", ".join(sorted(known)[:3])[:80] or "no tables"
        raise Refused(
            f"it is another kind of SQLite file ({others}); expected an export of Nsight Systems with CUDA calls"
        )
    return found


def _calls(database: sqlite3.Connection, table: str) -> Iterator[Call]:
    """Yield the calls of a table. CUDA calls are not nested, so own time equals total time."""
    totals: dict[object, list[int]] = {}
    column, _, _, kind = TABLES[table]
    low, limit = -(2**63), time.monotonic() + MAX_READ_S
    while low is not None:
        if time.monotonic() > limit:
            raise Refused(f"reading it took more than {MAX_READ_S:.0f} s; export a shorter range")
        edge = f"SELECT rowid FROM {table} WHERE rowid >= ? LIMIT 1 OFFSET {_ADDED_UP}"
        high = next(iter(database.execute(edge, (low,)).fetchone() or ()), None)
        for by, count, total_ns in database.execute(
            f'SELECT {column}, count(*), sum("end" - start) FROM {table}'
            f" WHERE rowid >= ? AND rowid < ? AND {_SOUND} GROUP BY 1",
            (low, 2**63 - 1 if high is None else high),
        ):
            known = totals.setdefault(by, [0, 0])
            known[0], known[1] = known[0] + count, known[1] + round(total_ns)
        low = high
    for by, (count, total_ns) in totals.items():
        name = _name(database, table, by)
        yield Call(name, kind(name), count, total_ns, total_ns)


def _name(database: sqlite3.Connection, table: str, by: object) -> str:
    """Return the name of a call as printed by `nsys stats`, without the interface's version."""
    if table == "CUPTI_ACTIVITY_KIND_MEMCPY":
        return f"Memcpy, {_COPIES.get(by, 'of another kind')}" if isinstance(by, int) else "Memcpy"
    if not isinstance(by, int):
        return str(by)
    found = database.execute("SELECT value FROM StringIds WHERE id = ?", (by,)).fetchone()
    name = str(found[0]) if found else f"call {by}"
    head, _, version = name.rpartition("_v")
    return head if head and version.isdigit() else name


def _rows(database: sqlite3.Connection, counts: dict[str, int]) -> Collector:
    """Return about `MAX_KEPT` rows from the middle of the profile, or all if there are no more."""
    low, high = _stretch(database, counts) if sum(counts.values()) > MAX_KEPT else (0, MAX_NS)
    found = Collector()
    while not len(found):
        for table in counts:
            column, lanes, role, kind = TABLES[table]
            named = cache(lambda by, table=table: _name(database, table, by))
            for lane, by, start, end in database.execute(
                f'SELECT {lanes}, {column}, start, "end" FROM {table}'
                f" WHERE {_SOUND} AND start BETWEEN ? AND ? LIMIT {2 * MAX_KEPT}",
                (low, high),
            ):
                name, number = named(by), found.lane((role, lane), str(lane), role)
                found.add(number, name, kind(name), round(start), round(end) - round(start))
        length = high - low + 1
        low, high = max(0, low - 10 * length), min(MAX_NS, high + 10 * length)
    return found


def _stretch(database: sqlite3.Connection, counts: dict[str, int]) -> tuple[int, int]:
    """Estimate when the middle `MAX_KEPT` rows begin, from samples of the table with the most rows."""
    table, starts = max(counts, key=counts.__getitem__), list[float]()
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
            told = {name: _value(text, unit) if name in _NUMBERS else text for (name, unit), text in cells}
            if "total time" in told:
                sums += _sum(told)
            elif told.get("start") is not None and told.get("duration") is not None:
                _take(told, found)
    if not sums and not len(found):
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
        while line := file.readline(MAX_LINE):
            if len(line) >= MAX_LINE:
                raise Refused("it has a line longer than 1 MiB; it is not a report of nsys stats")
            yield from csv.reader([line.rstrip("\r\n")])


def _column(field: str) -> tuple[str, float]:
    """Return a column's name, unified across versions of nsys, and the nanoseconds per unit."""
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
    name, stream = told["name"], told.get("strm")
    if stream is not None:
        device = told.get("device", "device")
        lane = found.lane(("stream", device, stream), f"{device}, stream {stream}", "device")
    else:
        thread = told.get("tid", "host")
        lane = found.lane(("thread", thread), f"thread {thread}")
    kind = cuda_kind(name) if stream is None else device_kind(name)
    found.add(lane, name, kind, round(told["start"]), round(told["duration"]))


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
        inner = _unpacked(head)
        return _reader_of_json(inner) if _is_text_of_json(inner) else _packed
    looks = next(((words, helps) for begins, words, helps in _FOREIGN if head.startswith(begins)), None)
    if looks is not None:
        raise Refused(f"it looks like {looks[0]}; {looks[1] or _EXPECTED}")
    if head[257:262] == b"ustar":
        raise Refused(f"it looks like an archive of files (tar); {_UNPACK}")
    if _is_text_of_json(head):
        return _reader_of_json(head)
    if (head.count(_REPLACED) >= 8 and b"\0" in head) or head.startswith(b"\x1f" + _REPLACED):
        raise Refused(
            "a program treated it as text and replaced some of its bytes, which are lost; copy or download it as a"
            " binary file"
        )
    if _XSPACE.match(head):
        return read_xspace
    if _PERFETTO.match(head) and (b"\0" in head or _is_no_text(head)):
        raise Refused(
            "it looks like a binary Perfetto trace; convert it: traceconv json FILE trace.json (traceconv is from"
            " get.perfetto.dev)"
        )
    if b"\0" not in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return read_report
    raise Refused(f"it is another kind of binary file; {_EXPECTED}")


def _reader_of_json(head: bytes) -> _Reader:
    known = next(((words, helps) for has, words, helps in _JSON if re.search(has, head, re.DOTALL)), None)
    if known is not None and EVENTS.encode() not in head:
        raise Refused(f"it is JSON, but {known[0]}; {known[1] or BY_PROFILERS}")
    return read_events


def _is_text_of_json(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def _is_no_text(head: bytes) -> bool:
    try:
        head[:-4].decode()
    except UnicodeDecodeError:
        return True
    return False


def _unpacked(head: bytes) -> bytes:
    """Return the beginning of a gzipped file; if that fails, return JSON, so that its reader reports the error."""
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD) or b"{"
    except zlib.error:
        return b"{"


def _packed(path: Path, title: str) -> Trace:
    with path.open("rb") as file:
        head = _unpacked(file.read(HEAD))
    try:
        reader_of(head)
    except Refused as why:
        raise Refused(f"it is gzipped, and its content cannot be read: {why}") from None
    raise Refused(f"it is gzipped, but its content is not JSON; {_UNPACK}")


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
