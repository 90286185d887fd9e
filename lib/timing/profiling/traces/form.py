"""The common form of all traces: rows of lane, name, kind, start and duration.

A `Collector` collects the rows of any format in bounded memory. A `Trace` has the calls of all rows, summed by name,
and the rows of one time range, for drawing.

The profiler's name of a row determines its kind. CUDA's calls follow the first article: calls that move bytes are
transfers, all others launches. The profiler's own work is a separate kind, and so is communication between cards.

`waited_for` finds what the step waits for at each moment. A kernel counts from its start to its end, which is more than
the arithmetic of `lib.timing.profiling.request.split` if it computes almost nothing. While a kernel runs, the step
waits for nothing else, whatever runs concurrently. At any other moment it waits for the first of communication,
transfer, the profiler itself, launch, dispatch and Python that has a row; the profiler's own time counts in no share.
Between two rows of its thread, the step waits for the Python program, but only after the last row that another thread
begins in that gap: until then, work was left that Python had already handed over. The rest is unknown.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from lib.formatting import counted
from lib.timing.profiling.request import EXPLAINED

# Kinds of rows. `kernel` is arithmetic; `other` is unknown. Saved traces store the numbers, so append new kinds.
KERNEL, TRANSFER, LAUNCH, DISPATCH, PYTHON, WAIT, OTHER, PROFILER, COMMUNICATION = KINDS = (
    "kernel",
    "transfer",
    "launch",
    "dispatch",
    "python",
    "wait",
    "other",
    "profiler",
    "communication",
)

_CUDA = re.compile(r"(cuda|cu|hip)[A-Z]\w*")
_LAUNCHES = re.compile(r"Launch(?!HostFunc)")
# Collective operations: on devices by NCCL and similar libraries, vLLM, SGLang and XLA; on hosts by Gloo, MPI, Horovod.
_COLLECTIVE = re.compile(
    r"(?i)nccl|rccl|oneccl|nvshmem|mscclpp|deep_ep::|cross_device_reduce|shot_all_?reduce|multimem_all_?(reduce|gather)"
    r"|^(all-reduce|all-gather|all-to-all|reduce-scatter|collective-(permute|broadcast))"
)
_COLLECTIVE_OF_HOST = re.compile(
    r"^gloo:|^MPI_[A-Z]|^(NEGOTIATE_|NCCL_|MPI_|GLOO_)?(ALLREDUCE|ALLGATHER|BROADCAST|REDUCESCATTER|ALLTOALL)"
)
_MOVES = re.compile(r"(?i)memcpy|memset|__amd_rocclr_(copy|fill)|^dma_request$")
# The first pattern found in a name determines its kind.
_RULES = tuple(
    (re.compile(words), kind)
    for words, kind in (
        # JAX's and TensorFlow's profilers in Python, except wrappers of a user's function; then PyTorch's
        (r"^\$profiler(_v2)?\.py:\d+ (?!wrapper)", PROFILER),
        (
            r"torch/(profiler|autograd)/profiler\.py\(\d+\)|_disable_profiler|_enable_profiler|^PyTorch Profiler",
            PROFILER,
        ),
        (r"^(Activity|Command) Buffer|^(Lazy Function|Runtime Triggered Module) Loading|^Buffer Flush", PROFILER),
        (r"^(Profiler|Cupti|Rocm)(Session|Tracer|Controller|Lock)|^Iteration Start: PyTorch Profiler", PROFILER),
        (r"^\$", PYTHON),
        (r"^Wait for|::Await$|wait for completion|block_until_ready|BlockHostUntilReady|^np\.asarray\(", WAIT),
        (r"^Iterator|^IteratorGetNextOp|^Prefetch(Produce|Consume)|^ParallelMap(Produce|Consume)", WAIT),
        (r"DevicePut|copy_to_host|TransferTo|TransferFrom|CopyToDevice|BufferFromHost|^shard_args", TRANSFER),
        (r"[Mm]emcpy|[Mm]emset", TRANSFER),
        (r"^[\w/.\-]+:_?[A-Z]\w+$", KERNEL),  # TensorFlow's operations: place in the model, and kernel
    )
)
# Containers in compiled programs, and their operations that move bytes.
_CONTAINER = re.compile(r"(while|conditional|call)(\.\d+)?")
_COPY = re.compile(r"copy|transpose_copy|infeed|outfeed")
# PyTorch's operations that only create, view or inspect tensors.
_NO_ARITHMETIC = re.compile(
    r"aten::(as_strided|view|_unsafe_view|_reshape_alias|reshape|expand(_as)?|t|transpose|permute|slice|select|narrow"
    r"|squeeze|unsqueeze|flatten|split|chunk|unbind|detach_?|alias|to|_to_copy|contiguous|item|_local_scalar_dense"
    r"|is_nonzero|result_type|resolve_conj|resolve_neg|empty\w*|new_empty\w*|ones_like|zeros_like|zeros|ones|full\w*"
    r"|resize_?|set_?|lift_fresh|_has_compatible_shallow_copy_type|record_stream)"
)


@lru_cache(maxsize=4096)
def kind_of(name: str, operation: bool = False, untold: str = DISPATCH) -> str:
    """Return the kind of a row on a host thread.

    Args:
        name: The profiler's name of the row.
        operation: Whether the profiler marks it as an operation of a compiled program.
        untold: The kind if the name does not determine one.
    """
    if operation:
        if _CONTAINER.fullmatch(name):
            return DISPATCH
        return TRANSFER if _COPY.match(name) else device_kind(name)
    if _CUDA.fullmatch(name.split("(")[0]):
        return cuda_kind(name)
    if _COLLECTIVE_OF_HOST.search(name):
        return COMMUNICATION
    return next((kind for words, kind in _RULES if words.search(name)), untold)


@lru_cache(maxsize=4096)
def device_kind(name: str) -> str:
    if _MOVES.search(name):
        return TRANSFER
    return COMMUNICATION if _COLLECTIVE.search(name) else KERNEL


@lru_cache(maxsize=4096)
def cuda_kind(name: str) -> str:
    """Return the kind of a call to CUDA's runtime or driver."""
    if "emcpy" in name or "emset" in name:
        return TRANSFER
    return WAIT if "Synchronize" in name or "WaitEvent" in name else LAUNCH


def launches(name: str) -> bool:
    """Whether a row of the kind `launch` queues work on a device, and does not only prepare it."""
    return bool(_LAUNCHES.search(name)) or not _CUDA.fullmatch(name.split("(")[0])


def computes(name: str) -> bool:
    """Whether the PyTorch operation of this name does arithmetic inside the call on a processor."""
    return name.startswith("aten::") and not _NO_ARITHMETIC.fullmatch(name)


# Roles of a lane: the Python program's thread, another thread, a device's queue. A repeated one is left out.
ROLES = ("python", "host", "device")
REPEATED = "repeated"

MAX_ROWS = 4_000_000  # collected rows, of 40 bytes each
MAX_KEPT = 20_000  # rows kept for drawing
MAX_CALLS = 500  # different calls; the cheapest ones beyond are summed
MAX_LANES = 4_096
MAX_NAME = 160  # characters
MAX_NS = 2**61  # of a start or a duration, so that sums and differences of two fit into 64 bits
REST = "all others"


class Refused(ValueError):
    """A file cannot be read as a trace; the text says what was expected, what was found, and what to do."""


@dataclass(frozen=True)
class Lane:
    """A thread or a stream; `role` is one of `ROLES`."""

    name: str
    role: str


COLUMNS = ("lane", "name", "kind", "start_ns", "duration_ns")
_ROW = np.dtype([(column, np.int64) for column in COLUMNS])


TraceRows = np.ndarray  # a record array of `COLUMNS`, in order of their start


def end_ns(rows: TraceRows) -> np.ndarray:
    return rows.start_ns + rows.duration_ns


@dataclass(frozen=True)
class Call:
    """All rows of one name and kind: their count, total time, and time without the rows inside them (`self_ns`)."""

    name: str
    kind: str
    count: int
    total_ns: int
    self_ns: int


@dataclass(frozen=True, eq=False)  # arrays cannot be compared
class Trace:
    """A profile in the common form.

    `rows` covers a time range. `calls` covers the whole file, the longest first, and `n_rows` is the file's number of
    rows. `about` describes the recording: for a shipped or live trace, the machine, date and settings.
    """

    title: str
    made_by: str
    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    rows: TraceRows
    calls: tuple[Call, ...]
    n_rows: int
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_device(self) -> bool:
        """Whether any lane is a device's queue, such as a graphics card's stream."""
        return any(lane.role == "device" for lane in self.lanes)

    @property
    def span_ns(self) -> tuple[int, int]:
        """The first start and last end of the rows; (0, 0) without rows."""
        return (int(self.rows.start_ns.min()), int(end_ns(self.rows).max())) if len(self.rows) else (0, 0)

    @property
    def span_s(self) -> float:
        """Seconds covered by `rows`."""
        return (self.span_ns[1] - self.span_ns[0]) * 1e-9

    @cached_property
    def depth(self) -> np.ndarray:
        """Number of rows in its lane that enclose each row, (rows,)."""
        return nested(self.rows)[1]


def nested(rows: TraceRows) -> tuple[np.ndarray, np.ndarray]:
    """Find how the rows of each lane are nested.

    Of rows that overlap without nesting, the later one counts as inside the earlier one up to the earlier one's end.

    Args:
        rows: Rows of any number of lanes.

    Returns:
        Each row's nanoseconds without those of the rows inside it, and the number of rows around it; each (rows,).
    """
    order = np.lexsort((-rows.duration_ns, rows.start_ns, rows.lane))
    lanes, starts, ends = (column.tolist() for column in (rows.lane, rows.start_ns, end_ns(rows)))
    own, depth = rows.duration_ns.tolist(), [0] * len(rows)
    around: list[int] = []  # the open rows
    for row in order.tolist():
        while around and (lanes[around[-1]] != lanes[row] or ends[around[-1]] <= starts[row]):
            around.pop()
        if around:
            own[around[-1]] -= min(ends[row], ends[around[-1]]) - starts[row]
        depth[row] = len(around)
        around.append(row)
    return np.array([max(0, own_ns) for own_ns in own], np.int64), np.array(depth, np.int64)


class Collector:
    """Collects rows in any order, and makes a `Trace` of them.

    Raises:
        Refused: There are more than `MAX_ROWS` rows or `MAX_LANES` lanes.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}  # numbers of the rows' names
        self.numbers: dict[Any, int] = {}  # of the lanes, by key
        self.lanes: list[Lane] = []  # by number; readers may replace them
        self._rows = array("q")
        self._steps: set[int] = set()  # numbers of the names of marked steps

    def lane(self, key: object, name: str = "", role: str = "host") -> int:
        """Return the number of a lane, adding it if it is new."""
        number = self.numbers.setdefault(key, len(self.lanes))
        if number == MAX_LANES:
            raise Refused(f"it has more than {MAX_LANES:,} threads and streams; choose a trace of one program")
        if number == len(self.lanes):
            self.lanes.append(Lane(shortened(name or str(key)), role))
        return number

    def add(self, lane: int, name: str, kind: str, start_ns: float, duration_ns: float, is_step: bool = False) -> None:
        """Add one row. Rows without a duration (marks), or with negative or absurd times, are ignored.

        Args:
            lane: Its number.
            name: The profiler's name of the row.
            kind: One of `KINDS`; on a device's lane, the name determines any kind but `transfer`.
            start_ns: Start.
            duration_ns: Duration.
            is_step: Whether the program marked it as a step; shares are of the time from the first step to the last.
        """
        if not (0.5 < duration_ns < MAX_NS and -MAX_NS < start_ns < MAX_NS):
            return
        if len(self._rows) >= len(COLUMNS) * MAX_ROWS:
            raise Refused(f"it has more than {MAX_ROWS:,} rows; record fewer steps, or export a shorter range")
        number = self.names.setdefault(shortened(name), len(self.names))
        if is_step:
            self._steps.add(number)
        self._rows.extend((lane, number, _NUMBERS[kind], round(start_ns), round(duration_ns)))

    def trace(self, title: str, made_by: str) -> Trace:
        """Return the trace of all collected rows.

        Args:
            title: Title of the trace.
            made_by: The profiler that wrote it; empty if unknown: rows whose name tells no kind are then of unknown
                kind, not dispatch.
        """
        names, lanes = tuple(self.names), self.lanes
        rows = np.asarray(self._rows, np.int64).view(_ROW).view(np.recarray)
        rows = rows[~_of_role(rows, lanes, REPEATED)]
        rows = rows[np.argsort(rows.start_ns, kind="stable")]
        on_device = _of_role(rows, lanes, "device")
        _set_kinds(rows, on_device & (rows.kind != _NUMBERS[TRANSFER]), names, device_kind)
        if made_by:
            _set_kinds(rows, ~on_device & (rows.kind == _NUMBERS[OTHER]), names, kind_of)
        if made_by.startswith("PyTorch") and not on_device.any():
            _find_arithmetic(rows, names)
        calls, n_rows = _calls(rows, nested(rows)[0], names), np.bincount(rows.lane, minlength=len(lanes))
        python = [number for number, lane in enumerate(lanes) if lane.role == "python"]
        for number in sorted(python, key=n_rows.__getitem__)[:-1]:  # of several threads, the busiest trains
            lanes[number] = replace(lanes[number], role="host")
        steps = rows[np.isin(rows.name, list(self._steps))]
        kept, notes = rows, ()
        if len(steps):
            kept = inside(rows, steps.start_ns.min(), end_ns(steps).max())
            notes = (f"shares are of the time of the {counted(len(steps), 'marked step')}",)
        kept, used = _middle(kept), np.flatnonzero(n_rows)
        named, kept.name = np.unique(kept.name, return_inverse=True)
        kept.lane = np.searchsorted(used, kept.lane)
        kept.start_ns -= kept.start_ns[:1]  # the first start
        return Trace(
            title,
            made_by or "Chrome trace events",
            tuple(lanes[number] for number in used),
            tuple(names[number] for number in named),
            kept,
            calls,
            len(rows),
            notes,
        )


def _of_role(rows: TraceRows, lanes: Sequence[Lane], role: str) -> np.ndarray:
    return np.array([lane.role == role for lane in lanes], bool)[rows.lane]


def _set_kinds(rows: TraceRows, which: np.ndarray, names: Sequence[str], kind: Callable[[str], str]) -> None:
    rows.kind[which] = np.array([_NUMBERS[kind(name)] for name in names], np.int64)[rows.name[which]]


def _find_arithmetic(rows: TraceRows, names: Sequence[str]) -> None:
    """Set the kind of calls that do the arithmetic themselves, like PyTorch's on a processor, unless any call launches
    work on a device: of calls of operations with at least half of their time outside other such calls.
    """
    if any(launches(names[int(number)]) for number in np.unique(rows.name[rows.kind == _NUMBERS[LAUNCH]])):
        return
    computing = np.array([computes(name) for name in names], bool)[rows.name]
    maybe = np.flatnonzero(computing & (rows.kind == _NUMBERS[DISPATCH]))
    own_ns = nested(rows[maybe])[0]
    rows.kind[maybe[2 * own_ns >= rows.duration_ns[maybe]]] = _NUMBERS[KERNEL]


def inside(rows: TraceRows, began_ns: int, ended_ns: int) -> TraceRows:
    """Return the rows that overlap a time range, and of each row the part inside it."""
    found = rows[(rows.start_ns < ended_ns) & (end_ns(rows) > began_ns)]
    ends_ns = np.minimum(end_ns(found), ended_ns)
    found.start_ns = np.maximum(found.start_ns, began_ns)
    found.duration_ns = ends_ns - found.start_ns
    return found


def _middle(rows: TraceRows) -> TraceRows:
    """Return all rows, or about `MAX_KEPT`: without rows that no share needs, and from a time range in the middle."""
    if len(rows) > MAX_KEPT:
        rows = rows[~_within_their_kind(rows)]
    if len(rows) <= MAX_KEPT:
        return rows
    first = (len(rows) - MAX_KEPT) // 2
    began_ns = int(rows.start_ns[first])
    n_before = np.count_nonzero(end_ns(rows)[:first] > began_ns)
    ended_ns = int(rows.start_ns[first + max(1, MAX_KEPT - n_before)])
    return inside(rows, began_ns, max(ended_ns, began_ns + 1))[:MAX_KEPT]


def _within_their_kind(rows: TraceRows) -> np.ndarray:
    """Return whether each row is inside an earlier row of its lane and kind, such as a called function; (rows,)."""
    within = np.zeros(len(rows), bool)
    group = rows.lane * len(KINDS) + rows.kind
    order = np.argsort(group, kind="stable")  # each group in order of its starts
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        ends = end_ns(rows[members])
        within[members[1:]] = ends[1:] <= np.maximum.accumulate(ends)[:-1]
    return within


_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def _calls(rows: TraceRows, own_ns: np.ndarray, names: Sequence[str]) -> tuple[Call, ...]:
    key = rows.name * len(KINDS) + rows.kind
    keys, which = np.unique(key, return_inverse=True)
    counts = np.bincount(which)
    totals, selves = (  # sums by group that cannot overflow; exact up to 104 days
        np.minimum(np.bincount(which, weights=column), float(MAX_NS)).astype(np.int64)
        for column in (rows.duration_ns, own_ns)
    )
    return most(
        Call(names[int(key) // len(KINDS)], KINDS[int(key) % len(KINDS)], count, total_ns, self_ns)
        for key, count, total_ns, self_ns in zip(
            keys.tolist(), counts.tolist(), totals.tolist(), selves.tolist(), strict=True
        )
    )


def most(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Return the `MAX_CALLS` longest calls, the longest first, and the others as one call for each kind."""
    ranked = sorted(calls, key=lambda call: (-call.total_ns, call.name))
    kept, rest = ranked[:MAX_CALLS], ranked[MAX_CALLS:]
    for kind in KINDS:
        if others := [call for call in rest if call.kind == kind]:
            sums = [sum(getattr(call, column) for call in others) for column in ("count", "total_ns", "self_ns")]
            kept.append(Call(REST, kind, sums[0], sums[1], sums[2]))
    return tuple(kept)


@lru_cache(maxsize=4096)
def shortened(name: str) -> str:
    """Return a name of at most `MAX_NAME` printable characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name[:MAX_NAME]).strip()
    return plain if len(name) <= MAX_NAME else f"{plain[: MAX_NAME - 1]}…"


def written(trace: Trace) -> str:
    """Return the trace as JSON for `parsed`."""
    content = {
        "title": trace.title,
        "made_by": trace.made_by,
        "lanes": [[lane.name, lane.role] for lane in trace.lanes],
        "names": trace.names,
        "rows": trace.rows.tolist(),
        "calls": [[call.name, _NUMBERS[call.kind], call.count, call.total_ns, call.self_ns] for call in trace.calls],
        "n_rows": trace.n_rows,
        "notes": trace.notes,
        "about": dict(trace.about),
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def parsed(text: str | bytes) -> Trace:
    """Parse a trace from the JSON of `written`, which only this project's own folders hold.

    Raises:
        ValueError: It is no JSON.
        KeyError: It is not a trace.
    """
    found = json.loads(text)
    # Older rows had a sixth column: the correlation of a call with its kernel.
    rows = [tuple(row[: len(COLUMNS)]) for row in found["rows"]]
    return Trace(
        found["title"],
        found["made_by"],
        tuple(Lane(*lane) for lane in found["lanes"]),
        tuple(found["names"]),
        np.array(rows, _ROW).view(np.recarray),
        tuple(Call(name, KINDS[kind], *numbers) for name, kind, *numbers in found["calls"]),
        found["n_rows"],
        tuple(found["notes"]),
        found["about"],
    )


def as_chrome_json(trace: Trace) -> str:
    """Return the rows as Chrome trace events, which Perfetto reads: one process, with a thread for each lane.

    Perfetto ignores the lanes' roles, but this project restores them when it reads the file.
    """
    threads = [
        {"ph": "M", "pid": 1, "tid": number + 1, "name": "thread_name", "args": {"name": lane.name, "role": lane.role}}
        for number, lane in enumerate(trace.lanes)
    ]
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": lane + 1,
            "name": trace.names[name],
            "cat": KINDS[kind],
            "ts": start_ns / 1e3,
            "dur": duration_ns / 1e3,
        }
        for lane, name, kind, start_ns, duration_ns in trace.rows.tolist()
    ]
    named = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": trace.title}}
    content = {"displayTimeUnit": "ns", "traceEvents": [named, *threads, *events]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


UNKNOWN = "unknown"
# In order of precedence.
STATES = (KERNEL, COMMUNICATION, TRANSFER, PROFILER, LAUNCH, DISPATCH, PYTHON, UNKNOWN)
NO_WORK = (WAIT, PROFILER)  # kinds of rows that are not the program's work
MOSTLY = 0.5  # share of the time with rows; if more of it is of unknown kind, no shares are given
# Why a card's rows are missing and what helps, by the first matching prefix of `made_by`.
_MISSING = (
    (
        "PyTorch",
        "PyTorch gets them from CUPTI, which gives none if another profiler holds it, if it does not match the driver,"
        " and often on WSL (github.com/pytorch/kineto/issues/762): profile with ProfilerActivity.CUDA on native Linux,"
        " or with nsys profile --trace=cuda",
    ),
    (
        "ONNX Runtime",
        "it writes them only if it was built with --enable_cuda_profiling and finds CUPTI: use such a build, or nsys"
        " profile --trace=cuda",
    ),
    ("nsys stats", "add --report cuda_gpu_trace"),
    ("Nsight", "export a profile recorded with --trace=cuda, on native Linux rather than on WSL"),
    (
        "",
        "the profiler found no CUPTI, was not allowed to use it, or ran on WSL: search its output for CUPTI, or use"
        " nsys profile --trace=cuda",
    ),
)


@dataclass(frozen=True)
class Stretches:
    """A time range in consecutive parts without gaps; neighbouring parts differ in state.

    `edges_ns` is (parts + 1,); `state` is (parts,), with indices into `STATES`.
    """

    edges_ns: np.ndarray
    state: np.ndarray

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each state except the profiler itself."""
        return {name: self._of(name) for name in STATES if name != PROFILER}

    @property
    def profiler_s(self) -> float:
        """Seconds of the profiler's own work while no kernel, communication or transfer ran."""
        return self._of(PROFILER)

    def _of(self, state: str) -> float:
        return float(np.diff(self.edges_ns)[self.state == STATES.index(state)].sum()) * 1e-9


def window(trace: Trace, low: float, high: float) -> tuple[int, int]:
    """Return the begin and end in nanoseconds of a range given by shares, 0 to 1, of the trace's span."""
    began_ns, ended_ns = trace.span_ns
    length_ns = ended_ns - began_ns
    return began_ns + round(low * length_ns), began_ns + round(high * length_ns)


def waited_for(trace: Trace, began_ns: int, ended_ns: int) -> Stretches:
    """Return what the step waited for at each moment of a time range.

    Args:
        trace: The trace.
        began_ns: Begin of the range.
        ended_ns: End of the range.
    """
    rows = inside(trace.rows, began_ns, ended_ns)
    edges = np.unique(np.concatenate([rows.start_ns, end_ns(rows), [began_ns, ended_ns]]))
    state = np.full(len(edges) - 1, STATES.index(UNKNOWN))
    for thread in [number for number, lane in enumerate(trace.lanes) if lane.role == "python"]:
        free_from, free_to = (np.clip(end, began_ns, ended_ns) for end in _left_to_python(trace.rows, thread))
        state[_covered(edges, free_from, free_to)] = STATES.index(PYTHON)
    for name in reversed(STATES[:-1]):
        of_kind = rows[rows.kind == KINDS.index(name)]
        state[_covered(edges, of_kind.start_ns, end_ns(of_kind))] = STATES.index(name)
    turns = np.flatnonzero(np.diff(state, prepend=-1))
    return Stretches(edges[np.append(turns, len(state))], state[turns])


def no_share(trace: Trace) -> str:
    """Return a sentence saying why the kernels' share of the time is unknown; empty if it is known."""
    launched = sum(call.count for call in trace.calls if call.kind == LAUNCH and launches(call.name))
    if launched and not trace.has_device:
        why = next(words for begins, words in _MISSING if trace.made_by.startswith(begins))
        captured = any("BeginCapture" in call.name for call in trace.calls)
        graph = " It records CUDA graphs: recorded work runs later." if captured else ""
        return f"The GPU's rows are missing from this file: it has {launched:,} launches, but no kernels; {why}.{graph}"
    rows = trace.rows
    edges = np.unique(np.concatenate([rows.start_ns, end_ns(rows)]))
    any_s, known_s = (
        float(np.diff(edges)[_covered(edges, some.start_ns, end_ns(some))].sum()) * 1e-9
        for some in (rows, rows[rows.kind != KINDS.index(OTHER)])
    )
    if known_s < (1 - MOSTLY) * any_s:
        return (
            f"The names and categories of this trace's rows do not say what {1 - known_s / any_s:.0%} of its busy time"
            " is spent on, so no shares are shown."
        )
    if not trace.has_device and not any(call.kind in (KERNEL, COMMUNICATION) for call in trace.calls):
        python = {call.kind for call in trace.calls} <= {PYTHON, WAIT, PROFILER}
        what = "Its rows are Python functions" if python else "No row of this file is known to be arithmetic"
        return (
            f"{what}, so it does not show when kernels run; record a step with the training library's profiler, such"
            " as torch.profiler or jax.profiler."
        )
    return ""


def no_step(trace: Trace, parts: Stretches) -> str:
    """Return a clause saying why a profile's parts are not shares of a step; empty if they are."""
    known, took = parts.seconds, step_s(trace)
    if known[UNKNOWN] > EXPLAINED * sum(known.values()):
        return f"more than {EXPLAINED:.0%} of the time is unknown"
    if took is not None and abs(took[0] / took[1] - 1) > EXPLAINED:
        return f"the profiler changes the step by more than {EXPLAINED:.0%}"
    return ""


def step_s(trace: Trace) -> tuple[float, float] | None:
    """Return the seconds of a step with the profiler and without it; None if they were not measured."""
    with_s, without_s = trace.about.get("profiled_step_s"), trace.about.get("plain_step_s")
    return (with_s, without_s) if with_s and without_s else None


def _left_to_python(rows: TraceRows, thread: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of a thread's gaps, each from the last moment at which another lane begins a row in it."""
    own = rows.lane == thread
    starts, ends = rows.start_ns[own], np.maximum.accumulate(end_ns(rows)[own])
    between = starts[1:] > ends[:-1]
    free_from, free_to = ends[:-1][between], starts[1:][between]
    others = np.concatenate([[np.iinfo(np.int64).min], rows.start_ns[~own]])
    return np.maximum(free_from, others[np.searchsorted(others, free_to) - 1]), free_to


def _covered(edges: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return whether any row runs between each edge and the next, (edges - 1,)."""
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, starts), 1)
    np.add.at(change, np.searchsorted(edges, ends), -1)
    return np.cumsum(change)[:-1] > 0


def gaps(trace: Trace, lane: int, parts: Stretches) -> list[tuple[int, int, int]]:
    """Return where a lane has no row: start and end in nanoseconds, and the state at that time.

    Args:
        trace: The lane's trace.
        lane: Number of the lane.
        parts: States of the time range to search.
    """
    own = inside(trace.rows[trace.rows.lane == lane], parts.edges_ns[0], parts.edges_ns[-1])
    edges = np.unique(np.concatenate([parts.edges_ns, own.start_ns, end_ns(own)]))
    free = np.flatnonzero(~_covered(edges, own.start_ns, end_ns(own)))
    state = parts.state[np.searchsorted(parts.edges_ns, edges[free], side="right") - 1]
    return list(zip(edges[free].tolist(), edges[free + 1].tolist(), state.tolist(), strict=True))


def dearest(trace: Trace, count: int = 10) -> list[Call]:
    """Return the calls with the most time of their own, without the rows inside them."""
    named = [call for call in trace.calls if call.kind not in NO_WORK and call.name != REST]
    return sorted(named, key=lambda call: (-call.self_ns, call.name))[:count]


def changes(
    before: Trace, after: Trace, per: tuple[float, float] = (1.0, 1.0), count: int = 10
) -> list[tuple[str, str, float | None, float | None]]:
    """Return the calls that changed most from one trace to another, the largest change first.

    Args:
        before: The first trace.
        after: The second trace.
        per: Divisor of each trace's seconds, such as its number of steps.
        count: Maximum number of calls.

    Returns:
        Name, kind, and own seconds in both traces; None in a trace that lacks the call.
    """
    owns: list[dict[tuple[str, str], float]] = [{}, {}]
    for trace, by, own_s in zip((before, after), per, owns, strict=True):
        for call in trace.calls:
            key = call.name, call.kind
            own_s[key] = own_s.get(key, 0.0) + call.self_ns * 1e-9 / by
    found = [(*key, owns[0].get(key), owns[1].get(key)) for key in owns[0] | owns[1] if key[1] not in NO_WORK]
    return sorted(found, key=lambda one: (-abs((one[2] or 0.0) - (one[3] or 0.0)), one[0]))[:count]
