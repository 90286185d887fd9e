"""Traces as Chrome's trace events in JSON, as PyTorch, JAX, Perfetto and browsers write them; also gzipped.

The events are read one by one from a buffer, by the standard library's parser: a file of any size needs no more memory
than its rows.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lib.profiling.traces.form import ROLES, Collector, Refused, Trace
from lib.profiling.traces.kinds import DISPATCH, KERNEL, KINDS, PYTHON, TRANSFER, WAIT, cuda_kind, kind_of

CHUNK = 1 << 20  # characters that are read at once
MAX_EVENT = 8 << 20  # characters of one event
MAX_HEAD = 64 << 20  # characters before the events
MAX_UNPACKED = 4 << 30  # bytes of a gzipped file
EVENTS = '"traceEvents"'
_BLANK = " \t\r\n,"
# PyTorch's categories; others are told by the name.
_BY_CATEGORY = {
    "kernel": KERNEL,
    "gpu_memcpy": TRANSFER,
    "gpu_memset": TRANSFER,
    "cpu_op": DISPATCH,
    "python_function": PYTHON,
    "user_annotation": PYTHON,
    "cuda_sync": WAIT,
}
_CUDA = {"cuda_runtime", "cuda_driver", "cuda_profiler_range"}
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_NO_ROWS = {"Trace", "gpu_user_annotation"}  # frames around everything, and copies of the host's marks


def read(path: Path, title: str) -> Trace:
    """A trace from a file of trace events.

    Raises:
        Refused: It is cut off, no JSON, too deep or too large; the text says which.
    """
    found = Collector()
    state = _Lanes(found)
    with _opened(path) as file:
        try:
            for event in _events(file):
                if isinstance(event, dict):
                    state.take(event)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Refused(f"it is gzipped, but damaged or cut off ({error}); save it again") from None
    state.finish()
    if not len(found):
        raise Refused("it has trace events, but none with a duration; record a trace with complete events")
    made_by = "PyTorch's profiler" if state.torch else "Chrome trace events"
    return found.trace(title, made_by, calls_compute=state.torch and not state.has_device)


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return (gzip.open if packed else open)(path, "rt", encoding="utf-8", errors="replace")  # type: ignore[return-value]


def _events(file: IO[str]) -> Iterator[Any]:
    """The members of `traceEvents`, or of the file's own list, one by one."""
    decode = json.JSONDecoder().raw_decode
    buffer, at = _head(file)
    n_read, more = len(buffer), True
    while True:
        while at < len(buffer) and buffer[at] in _BLANK:
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            event, at = decode(buffer, at)
        except RecursionError:
            raise Refused("an event is nested too deeply for a trace; it is not from a profiler") from None
        except ValueError as error:  # most often because the rest of the event has not been read yet
            piece = file.read(CHUNK) if more and len(buffer) - at <= MAX_EVENT else ""
            n_read, more = n_read + len(piece), bool(piece)
            if not piece:
                why = getattr(error, "msg", str(error))
                raise Refused(f"it is cut off or damaged near character {n_read:,} ({why}); save it again") from None
            if n_read > MAX_UNPACKED:
                raise Refused(f"it is larger than {MAX_UNPACKED >> 30} GiB of text; record fewer steps") from None
            buffer, at = buffer[at:] + piece, 0
            continue
        yield event
        if at > CHUNK:
            buffer, at = buffer[at:], 0


def _head(file: IO[str]) -> tuple[str, int]:
    """The beginning of the text, and where in it the first event begins."""
    buffer, piece = "", " "
    while piece and len(buffer) < MAX_HEAD:
        piece = file.read(CHUNK)
        buffer += piece
        begins = buffer.lstrip("\ufeff \t\r\n")[:1]
        if begins and begins not in "[{":
            raise Refused("it is gzipped, and what it holds is no JSON; unpack it, and choose a trace in it")
        if begins == "[":
            return buffer, buffer.index("[") + 1
        key = buffer.find(EVENTS)
        if begins == "{" and key >= 0 and (at := buffer.find("[", key)) >= 0:
            return buffer, at + 1
    raise Refused('it is JSON, but has no list of "traceEvents"; export the trace as Chrome JSON')


class _Lanes:
    """Puts events into lanes: a thread each, or a stream of a card."""

    def __init__(self, found: Collector) -> None:
        self.found, self.torch, self.has_device = found, False, False
        self._open: dict[tuple, list[tuple[str, str, float]]] = {}  # begun and not ended
        self._processes: dict[object, str] = {}
        self._threads: dict[tuple, str] = {}
        self._roles: dict[tuple, str] = {}  # of a file that this project saved

    def take(self, event: dict[str, Any]) -> None:
        """Take one event; what is not as the format says is left out."""
        phase, name, pid, tid = (event.get(key) for key in ("ph", "name", "pid", "tid"))
        if not isinstance(pid, str | int | float) or not isinstance(tid, str | int | float | None):
            return
        if phase == "M":
            self._named(event, pid, tid)
            return
        category, at_us = event.get("cat"), event.get("ts")
        category = category if isinstance(category, str) else ""
        if not isinstance(at_us, int | float) or category in _NO_ROWS:
            return
        key = (pid, tid)
        if phase == "X" and isinstance(name, str):
            duration_us = event.get("dur")
            if isinstance(duration_us, int | float):
                self._add(key, name, category, at_us, duration_us, event.get("args"))
        elif phase == "B" and isinstance(name, str):
            self._open.setdefault(key, []).append((name, category, at_us))
        elif phase == "E" and self._open.get(key):
            name, category, began_us = self._open[key].pop()
            self._add(key, name, category, began_us, at_us - began_us, event.get("args"))

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
            return  # also NaN and infinity, which the parser lets pass
        self.torch = self.torch or category == "cpu_op"
        on_device = category in _ON_DEVICE
        self.has_device = self.has_device or on_device
        if category in _CUDA:
            kind = cuda_kind(name)
        else:
            kind = _BY_CATEGORY.get(category) or (category if category in KINDS else kind_of(name, _is_operation(more)))
        found = more.get("correlation") if isinstance(more, dict) else None
        correlation = found if isinstance(found, int) else 0
        lane = self.found.lane(key, role="device" if on_device else "host")
        self.found.add(lane, name, kind, round(start_us * 1e3), round(duration_us * 1e3), correlation)

    def finish(self) -> None:
        """Name the lanes, now that all names are known."""
        python = self.found.busiest(key for key, name in self._threads.items() if "python" in name.lower())
        for key in self.found.known():
            process, thread = self._processes.get(key[0], ""), self._threads.get(key, "")
            on_card, is_stream = "device:GPU" in process, thread.lower().startswith("stream")
            if on_card and is_stream:
                self.found.only_arithmetic(key)
            elif on_card:  # XLA's programs, operations and names: the streams' rows once more
                self.found.leave_out(key)
            told = "python" if key == python else "device" if on_card or is_stream else ""
            self.found.rename(key, thread or f"thread {key[1]}", self._roles.get(key, told))


def _is_operation(more: object) -> bool:
    return isinstance(more, dict) and "hlo_op" in more
