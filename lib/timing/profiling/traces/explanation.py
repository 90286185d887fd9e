"""What a trace says: who was waited for at each moment, and what the dearest calls do. Pure: rows in, numbers out.

A kernel counts from its start to its end. That is more than the arithmetic of `lib.timing.profiling.step_breakdown`,
which
leaves out what a kernel takes with next to nothing to compute. Kernels have precedence over everything that runs beside
them: at a moment at which one runs, nobody is waited for. At any other, it is the first of communication, transfer, the
profiler itself, launch, dispatch and Python that has a row; the profiler's own time counts in no share. Between two
rows of its thread the Python program is waited for, but only from the last row on that another thread begins
meanwhile: until then there was work left that Python had handed over already. Everything else is known by nobody.
"""

from dataclasses import dataclass

import numpy as np

from lib.timing.profiling.step_breakdown import EXPLAINED
from lib.timing.profiling.traces import kinds
from lib.timing.profiling.traces.form import REST, Call, Trace, TraceRows

NOBODY = "nobody knows"
# In order of their precedence.
STATES = (
    kinds.KERNEL,
    kinds.COMMUNICATION,
    kinds.TRANSFER,
    kinds.PROFILER,
    kinds.LAUNCH,
    kinds.DISPATCH,
    kinds.PYTHON,
    NOBODY,
)
NO_WORK = (kinds.WAIT, kinds.PROFILER)  # kinds of rows that are no work of the program's
MOSTLY = 0.5  # of the time that has rows: where more of it is not known, no share is told
# Why a card's rows are missing and what helps, by who made the trace; the first that it begins with.
_MISSING = (
    (
        "PyTorch",
        "PyTorch gets them from CUPTI, which gives none where it is held by another profiler, where it does not fit the"
        " driver, and often on WSL (github.com/pytorch/kineto/issues/762): profile with ProfilerActivity.CUDA, on Linux"
        " itself, or with nsys profile --trace=cuda",
    ),
    (
        "ONNX Runtime",
        "it writes them where it was built with --enable_cuda_profiling and finds CUPTI: use such a build, or nsys"
        " profile --trace=cuda",
    ),
    ("nsys stats", "add --report cuda_gpu_trace"),
    ("Nsight", "export a profile that was recorded with --trace=cuda, on Linux itself rather than on WSL"),
    ("WebGPU", "this page's profile has them where the adapter has timestamps"),
    (
        "",
        "the profiler found no CUPTI, was not allowed to use it, or ran on WSL: look for CUPTI in what it printed, or"
        " use nsys profile --trace=cuda",
    ),
)


@dataclass(frozen=True)
class Stretches:
    """A stretch of time in parts, one after another without a gap; neighbours differ.

    `edges_ns` is (parts + 1,), `state` (parts,) holds indices of `STATES`.
    """

    edges_ns: np.ndarray
    state: np.ndarray

    def __len__(self) -> int:
        return len(self.state)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each state, but for the profiler itself."""
        return {name: self._of(name) for name in STATES if name != kinds.PROFILER}

    @property
    def profiler_s(self) -> float:
        """Seconds at which nothing else ran than the profiler, and what it holds up."""
        return self._of(kinds.PROFILER)

    def _of(self, state: str) -> float:
        return float(np.diff(self.edges_ns)[self.state == STATES.index(state)].sum()) * 1e-9


def window(trace: Trace, low: float, high: float) -> tuple[int, int]:
    """Nanoseconds between two shares, 0 to 1, of what the trace's rows span."""
    began_ns, ended_ns = trace.span_ns
    length_ns = ended_ns - began_ns
    return began_ns + round(low * length_ns), began_ns + round(high * length_ns)


def inside(rows: TraceRows, began_ns: int, ended_ns: int) -> TraceRows:
    """The rows that have a part within a stretch of time."""
    return rows.chosen((rows.start_ns < ended_ns) & (rows.end_ns > began_ns))


def waited_for(trace: Trace, began_ns: int, ended_ns: int) -> Stretches:
    """Who was waited for at each moment of a stretch of time.

    Args:
        trace: Whose rows tell it.
        began_ns: Start of the stretch.
        ended_ns: Its end.
    """
    if ended_ns <= began_ns:
        return Stretches(np.array([began_ns]), np.zeros(0, np.int64))
    rows = inside(trace.rows, began_ns, ended_ns)
    starts, ends = np.maximum(rows.start_ns, began_ns), np.minimum(rows.end_ns, ended_ns)
    edges = np.unique(np.concatenate([starts, ends, [began_ns, ended_ns]]))
    state = np.full(len(edges) - 1, STATES.index(NOBODY))
    for thread in [number for number, lane in enumerate(trace.lanes) if lane.role == "python"]:
        free_from, free_to = (np.clip(end, began_ns, ended_ns) for end in _left_to_python(trace.rows, thread))
        state[_covered(edges, free_from, free_to, free_from < free_to)] = STATES.index(kinds.PYTHON)
    for name in reversed(STATES[:-1]):
        state[_covered(edges, starts, ends, rows.kind == kinds.KINDS.index(name))] = STATES.index(name)
    changes = np.flatnonzero(np.diff(state)) + 1
    return Stretches(edges[np.concatenate([[0], changes, [len(state)]])], state[np.concatenate([[0], changes])])


def no_share(trace: Trace) -> str:
    """Why nobody can tell what share of the time kernels run, in a sentence; empty where it can be told."""
    launched = sum(call.count for call in trace.calls if call.kind == kinds.LAUNCH and kinds.launches(call.name))
    if launched and not trace.has_device:
        why = next(words for begins, words in _MISSING if trace.made_by.startswith(begins))
        captured = any("BeginCapture" in call.name for call in trace.calls)
        graph = " It records CUDA graphs: what is only recorded runs later." if captured else ""
        return f"The GPU's rows are missing from this file: it has {launched:,} launches, but no kernel; {why}.{graph}"
    rows = trace.rows
    edges = np.unique(np.concatenate([rows.start_ns, rows.end_ns]))
    lengths, unknown = np.diff(edges), rows.kind == kinds.KINDS.index(kinds.OTHER)
    known = _covered(edges, rows.start_ns, rows.end_ns, ~unknown)
    unknown_s = float(lengths[_covered(edges, rows.start_ns, rows.end_ns, unknown) & ~known].sum()) * 1e-9
    any_s = unknown_s + float(lengths[known].sum()) * 1e-9
    if unknown_s > MOSTLY * any_s:
        return (
            f"What {unknown_s / any_s:.0%} of this trace's busy time is spent on is not known from its rows' names and"
            " categories, so no share is told."
        )
    if not trace.has_device and not any(call.kind in (kinds.KERNEL, kinds.COMMUNICATION) for call in trace.calls):
        python = {call.kind for call in trace.calls} <= {kinds.PYTHON, kinds.WAIT, kinds.PROFILER}
        what = "Its rows are functions of Python" if python else "No row of this file is known to be arithmetic"
        return (
            f"{what}, so it does not tell when kernels run; record a step with the profiler of the library that"
            " trains, such as torch.profiler or jax.profiler."
        )
    return ""


def no_step(trace: Trace, parts: Stretches) -> str:
    """Why a profile's parts are no shares of a step, in a clause; empty where they are: as in `Split.adds_up`."""
    known, took = parts.seconds, step_s(trace)
    if known[NOBODY] > EXPLAINED * sum(known.values()):
        return f"what nobody knows is more than {EXPLAINED:.0%} of the time"
    if took is not None and abs(took[0] / took[1] - 1) > EXPLAINED:
        return f"the profiler changes the step by more than {EXPLAINED:.0%}"
    return ""


def step_s(trace: Trace) -> tuple[float, float] | None:
    """Seconds of a step under the profiler and without it; None where they were not measured."""
    with_s, without_s = (trace.about.get(name) for name in ("profiled_step_s", "plain_step_s"))
    if not isinstance(with_s, int | float) or not isinstance(without_s, int | float) or not min(with_s, without_s) > 0:
        return None
    return float(with_s), float(without_s)


def _left_to_python(rows: TraceRows, thread: int) -> tuple[np.ndarray, np.ndarray]:
    """When a thread has no row between two of its own and no other one begins a row any more: starts and ends."""
    own = rows.lane == thread
    starts, ends = rows.start_ns[own], np.maximum.accumulate(rows.end_ns[own])
    between = starts[1:] > ends[:-1]
    free_from, free_to = ends[:-1][between], starts[1:][between]
    others = np.concatenate([[np.iinfo(np.int64).min], rows.start_ns[~own]])
    return np.maximum(free_from, others[np.searchsorted(others, free_to) - 1]), free_to


def _covered(edges: np.ndarray, starts: np.ndarray, ends: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Whether a row runs from each edge to the next, (edges - 1,)."""
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, starts[which]), 1)
    np.add.at(change, np.searchsorted(edges, ends[which]), -1)
    return np.cumsum(change)[:-1] > 0


def gaps(trace: Trace, lane: int, parts: Stretches) -> list[tuple[int, int, int]]:
    """Where a lane has no row: start and end in nanoseconds, and the state at that time.

    Args:
        trace: Whose lane it is.
        lane: Its number.
        parts: Of the stretch of time that is looked at.
    """
    began_ns, ended_ns = int(parts.edges_ns[0]), int(parts.edges_ns[-1])
    rows = inside(trace.rows, began_ns, ended_ns)
    own = rows.chosen(rows.lane == lane)
    edges = np.unique(np.concatenate([parts.edges_ns, own.start_ns, own.end_ns]))
    edges = edges[(edges >= began_ns) & (edges <= ended_ns)]
    starts, ends = np.maximum(own.start_ns, began_ns), np.minimum(own.end_ns, ended_ns)
    free = ~_covered(edges, starts, ends, np.ones(len(own), bool))
    state = parts.state[np.clip(np.searchsorted(parts.edges_ns, edges[:-1], side="right") - 1, 0, len(parts) - 1)]
    return [(int(edges[index]), int(edges[index + 1]), int(state[index])) for index in np.flatnonzero(free).tolist()]


def dearest(trace: Trace, count: int = 10) -> list[Call]:
    """The calls that took most time of their own, without what ran inside them."""
    named = [call for call in trace.calls if call.kind not in NO_WORK and call.name != REST]
    return sorted(named, key=lambda call: (-call.self_ns, call.name))[:count]


@dataclass(frozen=True)
class Change:
    """A call in two traces: seconds of its own in each; None where it is in one alone."""

    name: str
    kind: str
    before_s: float | None
    after_s: float | None

    @property
    def saved_s(self) -> float:
        """Seconds that became shorter; negative where it became longer."""
        return (self.before_s or 0.0) - (self.after_s or 0.0)


def changes(before: Trace, after: Trace, per: tuple[float, float] = (1.0, 1.0), count: int = 10) -> list[Change]:
    """The calls that changed most from one trace to another, the largest change first.

    Args:
        before: The first trace.
        after: The second.
        per: What each trace's seconds are divided by, such as its steps.
        count: At most so many.
    """
    owns: list[dict[tuple[str, str], float]] = []
    for trace, by in zip((before, after), per, strict=True):
        owns.append({})
        for call in trace.calls:
            key = (call.name, call.kind)
            owns[-1][key] = owns[-1].get(key, 0.0) + call.self_s / by
    keys = [key for key in dict.fromkeys([*owns[0], *owns[1]]) if key[1] not in NO_WORK]
    found = [Change(name, kind, owns[0].get((name, kind)), owns[1].get((name, kind))) for name, kind in keys]
    return sorted(found, key=lambda change: (-abs(change.saved_s), change.name))[:count]
