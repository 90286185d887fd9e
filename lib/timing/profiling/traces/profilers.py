"""Traces as the libraries' own profilers write them: Chrome's trace events in JSON, and XSpaces (`.xplane.pb`).

PyTorch writes trace events, as do Perfetto and browsers; JAX and TensorFlow write an XSpace, and can export trace
events. What an event is, is told by its category, its lane's name and its arguments, which every producer uses in a way
of its own; where they tell nothing, the row is `other`. Many write what is not quite JSON: an array without its end,
paths with single backslashes, control characters, times as text. Events are read one by one from a buffer, by the
standard library's parser: a file of any size, also gzipped, needs no more memory than its rows.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from lib.formatting import listed
from lib.timing.profiling.traces import kinds
from lib.timing.profiling.traces.form import ROLES, Collector, Refused, Trace

CHUNK = 1 << 20  # characters that are read at once
MAX_EVENT = 8 << 20  # characters of one event
MAX_HEAD = 64 << 20  # characters before the events
MAX_UNPACKED = 4 << 30  # bytes of a gzipped file
MAX_BYTES = 256 << 20  # of an XSpace, whose parser holds the whole file, several times over
EVENTS = '"traceEvents"'
BY_PROFILERS = "profile with torch.profiler, jax.profiler or Nsight Systems"
_BLANK = " \t\r\n,\0"
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_LONGEST_ESCAPE = 6  # characters
# Categories by their lower case: of PyTorch (before 1.9 with capitals), Paddle, MTIA, ONNX Runtime, VizTracer, py-spy.
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"}
_RUNTIME = re.compile(r"(cuda|xpu|mtia|hpu|hip|privateuse1|glow)?_?(runtime|driver)")
_BY_CATEGORY = {
    **dict.fromkeys(("cpu_op", "operator", "session", "api"), kinds.DISPATCH),
    **dict.fromkeys(("python_function", "user_annotation", "fee", "py-spy", "python"), kinds.PYTHON),
    **dict.fromkeys(("userdefined", "pythonop", "pythonuserdefined", "profilestep", "dataloader"), kinds.PYTHON),
    **dict.fromkeys(("forward", "backward", "optimization"), kinds.PYTHON),
    "cuda_sync": kinds.WAIT,
    "overhead": kinds.PROFILER,
    "communication": kinds.COMMUNICATION,
}
# Frames around everything, copies of the host's marks, and ranges of counters, whose times are estimated.
_NO_ROWS = {"trace", "gpu_user_annotation", "cuda_profiler_range"}
# Who wrote the file, by a category that it has, or by how the name of a process begins.
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
_OF_TORCH = re.compile(r"CPU functions|CUDA functions", re.IGNORECASE)  # processes of its profiler before 1.8
_OTHER_CARDS = re.compile(r"gpu/\d+$|CUDA functions", re.IGNORECASE)  # of MXNet, and of PyTorch before 1.8
_STEP = re.compile(r"ProfilerStep#|ProfileStep[#\[]|model_run$")
# TensorFlow 1: a process for each device, and for each of its streams.
_TIMELINE = re.compile(
    r"/?(.*?/)?(device:)?(?P<device>gpu|cpu|xla_gpu|xla_cpu|tpu):\d+(?P<queue>/\S+)? Compute", re.IGNORECASE
)
_NO_ARITHMETIC = {
    *("NoOp", "Const", "Placeholder", "Identity", "Variable", "VariableV2", "VarHandleOp", "ReadVariableOp"),
    *("Shape", "Reshape", "Switch", "Merge", "_Send", "_Recv", "_Arg", "_Retval", "unknown"),
}
_WAITS = re.compile(r"^(IteratorGetNext|QueueDequeue|RecvTensor|_HostRecv)")
# ONNX Runtime: providers that only hand their work to a card; the others do it in the call.
_ON_CARD = re.compile(r"^(CUDA|ROCM|Tensorrt|NvTensorRTRTX|MIGraphX|Dml|WebGpu|Js|Cann)ExecutionProvider")
_OF_XLA = re.compile(r"/(host|device):(CPU|GPU|TPU)")
# A card's lines that are read; the others repeat their rows by program, step and name scope.
_SHOWN = {"GPU": ("Stream",), "TPU": ("XLA Ops", "Async XLA Ops")}
_DROPPED = ("ThreadpoolListener::", "end: ")  # marks of the profiler itself
# Whose profiler it is, told by its calls: TensorFlow's has the same planes.
_JAX = re.compile(r"^(PjRt|PJRT_|Pjit|Py(Client|Array|LoadedExecutable)|\$(pjit|api)\.py|jit_|jit\()")


def read_events(path: Path, title: str) -> Trace:
    """A trace from a file of trace events.

    Raises:
        Refused: It is cut off, no JSON, too deep or too large; the text says which.
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
    """Yield the members of `traceEvents`, or of the file's own list, one by one.

    Args:
        file: The text.
        notes: Gets what a reader should know of how the file was read.

    Raises:
        Refused: The file is cut off, no JSON, too deep or too large; the text says which.
    """
    decode = json.JSONDecoder(strict=False).raw_decode
    buffer, at = _head(file)
    is_list = buffer[at - 1 :: -1].strip("\ufeff \t\r\n") == "["
    n_read, n_events, more, repaired = len(buffer), 0, True, False
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
            if "escape" in str(error) and not repaired:
                buffer, at, repaired = _with_double_backslashes(buffer[at:]), 0, True
                continue
            piece = file.read(CHUNK) if more and len(buffer) - at <= MAX_EVENT else ""
            n_read, more, repaired = n_read + len(piece), bool(piece), False
            if not piece and is_list and n_events and _is_cut_off(error, buffer, at):
                if at < len(buffer):
                    notes.append(f"its last event is cut off; the {n_events:,} before it are read")
                return  # the format allows a list without its end
            if not piece or n_read > MAX_UNPACKED:
                raise Refused(_broken(n_read, buffer, at, error)) from None
            buffer, at = buffer[at:] + piece, 0
            continue
        yield event
        n_events += 1
        if at > CHUNK:
            buffer, at = buffer[at:], 0


def _with_double_backslashes(text: str) -> str:
    """The text with those backslashes doubled that begin no escape, but for an escape that its end may cut off."""

    def doubled(found: re.Match) -> str:
        whole = found.group(1) or found.end() > len(text) - _LONGEST_ESCAPE
        return found.group() if whole else "\\\\"

    return _ESCAPE.sub(doubled, text)


def _is_cut_off(error: ValueError, buffer: str, at: int) -> bool:
    """Whether the text is sound up to its end."""
    is_sound = isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(buffer.rstrip()) or "Unterminated" in error.msg
    )
    return is_sound and len(buffer) - at <= MAX_EVENT


def _broken(n_read: int, buffer: str, at: int, error: ValueError) -> str:
    if n_read > MAX_UNPACKED:
        return f"it is larger than {MAX_UNPACKED >> 30} GiB of text; record fewer steps"
    if len(buffer) - at > MAX_EVENT:
        return f"an event near character {n_read:,} has more than {MAX_EVENT >> 20} MiB; no profiler writes such a one"
    if _is_cut_off(error, buffer, at):
        return (
            f"it is cut off at character {n_read:,}; let the program end, or stop the profiler, before the file is"
            " copied, and copy all of it"
        )
    return (
        f"it is damaged near character {n_read - len(buffer) + at:,}, where it is no JSON"
        f" ({getattr(error, 'msg', error)}); another tool may have changed it: drop the file as the profiler wrote it"
    )


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
    raise Refused(
        'it is JSON, but has no list of "traceEvents"; where its program can, export it as a Chrome trace, or'
        f" {BY_PROFILERS}"
    )


class _Lanes:
    """Puts events into lanes: a thread each, or a stream of a card."""

    def __init__(self, found: Collector) -> None:
        self.found, self.has_device = found, False
        self._categories: Counter[str] = Counter()
        self._phases: Counter[str] = Counter()
        self._open: dict[tuple, list[tuple[str, str, float, object]]] = {}  # begun and not ended
        self._processes: dict[object, str] = {}
        self._threads: dict[tuple, str] = {}
        self._roles: dict[tuple, str] = {}  # of a file that this project saved

    def take(self, event: dict[str, Any]) -> None:
        """Take one event; what is not as the format says is left out."""
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
        if phase in ("b", "e", "S", "F"):  # asynchronous: of no thread, told apart by what they are of
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
            return  # also NaN and infinity, which the parser lets pass
        if len(self._categories) < 1000:
            self._categories[category] += 1
        self.has_device = self.has_device or key[2]
        start_ns, duration_ns = round(start_us * 1e3), round(duration_us * 1e3)
        told = more if isinstance(more, dict) else {}
        lane = self.found.lane(key, role="device" if key[2] else "host")
        self.found.add(lane, name, _kind(name, category, told), start_ns, duration_ns, _whole(told.get("correlation")))
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
        """The role of a lane as its name tells it; what its rows are is told to the collector."""
        process, thread = self._processes.get(key[0], ""), self._threads.get(key[:2], "")
        if made_by == "TensorFlow's timeline" and (found := _TIMELINE.fullmatch(process)):
            return self._of_timeline(key, found.group("device").lower(), found.group("queue") or "")
        card = re.search("device:(GPU|TPU)", process)
        if card and not thread.startswith(_SHOWN[card[1]]):
            self.found.leave_out(key)
            return ""
        if card or _OTHER_CARDS.match(process) or _OTHER_CARDS.match(str(key[0])):
            self.found.tell(key, kinds.device_kind, every=True)
            self.has_device = True
            return "device"
        if made_by:
            self.found.tell(key, kinds.kind_of)
        return "device" if thread.lower().startswith("stream") else ""

    def _of_timeline(self, key: tuple, device: str, queue: str) -> str:
        """A lane of TensorFlow 1: a card's streams twice, its copies, and where operations begin on the host."""
        is_stream, has_all = queue.startswith("/stream:"), any("/stream:all" in p for p in self._processes.values())
        if is_stream and has_all and queue != "/stream:all":
            self.found.leave_out(key)
        elif is_stream:
            self.found.tell(key, kinds.device_kind, every=True)
        elif queue:
            self.found.tell(key, lambda _: kinds.TRANSFER)
        else:
            self.found.tell(key, (lambda _: kinds.LAUNCH) if "gpu" in device else kinds.device_kind)
        return "device" if queue else ""

    def nothing(self) -> str:
        """Why the file has no rows, by what it has instead."""
        if self._open:
            return "it has events that begin, but none that ends; stop the profiler before the program ends"
        known = {"C": "counters", "i": "moments", "I": "moments", "P": "samples", "O": "states", "N": "states"}
        has = list(dict.fromkeys(words for phase, words in known.items() if self._phases[phase]))
        if not self._phases:
            return f"it is JSON, but a list of something else than trace events; {BY_PROFILERS}"
        what = f"only {listed(has)}" if has else "only marks"
        return f"it has trace events, but {what}: none that lasts; record calls with the time that each takes"


def _kind(name: str, category: str, told: dict) -> str:
    """The kind of a row by its category and arguments, or by its name; `other` where none tells."""
    if category in _ON_DEVICE:
        moves = category.endswith(("memcpy", "memset")) or name == "dma_request"
        return kinds.TRANSFER if moves else kinds.device_kind(name)
    if category == "node":
        if not name.endswith("_kernel_time"):
            return kinds.DISPATCH
        if str(told.get("op_name")).startswith("Memcpy"):
            return kinds.TRANSFER
        return kinds.LAUNCH if _ON_CARD.match(str(told.get("provider"))) else kinds.KERNEL
    if category == "op":
        op = str(told.get("op", name))
        if _WAITS.match(op):
            return kinds.WAIT
        return kinds.DISPATCH if op in _NO_ARITHMETIC else kinds.kind_of(op, untold=kinds.OTHER)
    if _RUNTIME.fullmatch(category):
        return kinds.cuda_kind(name)
    kind = kinds.kind_of(name, "hlo_op" in told, untold=kinds.OTHER)
    if kind == kinds.KERNEL and "hlo_op" not in told:
        kind = kinds.OTHER  # only a name like TensorFlow's: it says so where TensorFlow wrote the file
    by_category = _BY_CATEGORY.get(category) or (category if category in kinds.KINDS else None)
    return kind if by_category is None or kind == kinds.PROFILER else by_category


def _number(value: object) -> float | None:
    """A time, which some producers write as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def _whole(value: object) -> int:
    """A correlation; 0 for none."""
    return value if isinstance(value, int) else 0


def _of_xla(by_jax: bool) -> str:
    return "JAX's profiler" if by_jax else "TensorFlow's profiler"


def read_xspace(path: Path, title: str) -> Trace:
    """A trace from an XSpace.

    Raises:
        Refused: It is too large, cut off, or has no rows.
    """
    if (size := path.stat().st_size) > MAX_BYTES:
        raise Refused(f"it has {size >> 20:,} MiB, and at most {MAX_BYTES >> 20} MiB are read; record fewer steps")
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
        raise Refused("it has no row of a processor or a graphics card; record a step while the profiler runs")
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
            lane, kind = found.lane(key, f"{thread} {numbers[thread]}"), kinds.kind_of(event.name, "hlo_op" in stats)
            found.add(
                lane,
                event.name,
                kind,
                round(event.start_ns),
                round(event.duration_ns),
                _whole(stats.get("correlation_id")),
            )
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
            start_ns, duration_ns = round(event.start_ns), round(event.duration_ns)
            correlation = _whole(dict(event.stats).get("correlation_id"))
            found.add(lane, event.name, kinds.device_kind(event.name), start_ns, duration_ns, correlation)
