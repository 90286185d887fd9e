"""Traces: seconds to explain a large file, to draw a live profile, and to redraw after a slider moves.

The files are generated in a temporary folder: a 1 GB export of Nsight Systems, in its documented schema, and 200 MB of
trace events in PyTorch's format. Times end with the chart's specification; the browser's drawing is extra. Memory is
the reading process's peak, as counted by Linux.
"""

import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import cast

import psutil

from benchmarks.report import SECONDS, LeftOut, Row, Target, note, row, seconds_of, show
from lib.labs.inside_a_step import trace as view
from lib.model.backends.registry import Runtime
from lib.model.spec import Network
from lib.sweeps.experiments.trace_of_a_step import profile, read_files, task_of
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.profiling.request import PROFILED
from lib.timing.profiling.traces.form import Trace

SQLITE_BYTES, JSON_BYTES = 1_000_000_000, 200_000_000
ROUNDS, MOVES = 3, 20
LIMITS = {"sqlite-1gb": 20.0, "json-200mb": 20.0, "live": 2.0, "slider": 0.3}
MAX_PEAK_MB = 500.0
_PER_STEP = 1_000  # rows that one statement adds to each table

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
"""
# Three driver calls per kernel, as in a step of small kernels.
_FILL = """
WITH RECURSIVE n(x) AS (SELECT {first} UNION ALL SELECT x + 1 FROM n WHERE x < {last})
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME
SELECT 1795361522424646920 + x * 4000, 1795361522424646920 + x * 4000 + 1500 + x % 977, 0, 281479355564752, x,
    x % 24, 0, NULL FROM n;
WITH RECURSIVE n(x) AS (SELECT {first} UNION ALL SELECT x + 3 FROM n WHERE x < {last})
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
SELECT 1795361522424646920 + x * 4000 + 2500, 1795361522424646920 + x * 4000 + 4100 + x % 577, 0, 1, NULL, 7, x,
    281479271677952, 30 + x % 16, 30 + x % 16, 30 + x % 16, 0, 0, 40, 64, 8, 1, 128, 1, 1, 0, 16384, 0, 72351744, x,
    32768, NULL, 0 FROM n;
"""


def main() -> None:
    rows, left_out = [], LeftOut()
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("sqlite-1gb", _sqlite), ("json-200mb", _json)):
            with left_out.unless_it_works(name):
                note(f"writing the file of {name}")
                rows.append(_explained(name, make(Path(folder) / name)))
                (Path(folder) / name).unlink()
        with left_out.unless_it_works("live"):
            rows += _live(Path(folder))
    known = {str(one["name"]): one for one in rows}
    targets = [Target.of(name, seconds_of(known.get(name)), limit, "s") for name, limit in LIMITS.items()]
    targets += [
        Target.of(f"{name}, peak", _peaks(known.get(name)), MAX_PEAK_MB, "MB") for name in ("sqlite-1gb", "json-200mb")
    ]
    show("traces", rows, ("name", *SECONDS, "peak_mb", "trace_rows"), targets, left_out)


def _peaks(row: Row | None) -> list[float]:
    return [] if row is None else cast(list[float], row["peaks_mb"])


def _explained(name: str, path: Path) -> Row:
    seconds, peaks, n_rows = [], [], 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with _peak_of_children_mb() as found:
            (trace,) = (one for one in read_files([(name, path)], Cancel()) if not isinstance(one, Note))
        if isinstance(trace, str):
            raise RuntimeError(trace)
        _draw(trace, 0.4, 0.6)
        view.calls_table(trace)
        view.dearest_list(trace)
        seconds.append(time.perf_counter() - began)
        peaks += [max(found)] if found else []
        n_rows = trace.n_rows
        note(f"{name}: {seconds[-1]:.1f} s")
    peak_mb = max(peaks, default=None)
    return row(name, seconds, peak_mb=peak_mb, peaks_mb=peaks, trace_rows=n_rows, file_bytes=path.stat().st_size)


@contextmanager
def _peak_of_children_mb() -> Iterator[list[float]]:
    """Peak resident memory of child processes, sampled; empty without /proc."""
    found, over = list[float](), threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            with suppress(OSError, psutil.Error):
                for child in psutil.Process().children():
                    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                    found.extend(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))

    looking = threading.Thread(target=watch)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def _draw(trace: Trace, low: float, high: float) -> None:
    json.dumps(view.timeline_chart(trace, low, high).spec)
    json.dumps(view.part_and_whole_chart(trace, low, high).spec)
    view.sentence(trace, low, high)


def _sqlite(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_SCHEMA)
        names = [(number, f"cuCall{number}_v2" if number < 30 else f"kernel_{number}") for number in range(64)]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        step, first = 300 * _PER_STEP, 0
        while path.stat().st_size < SQLITE_BYTES:
            database.executescript(_FILL.format(first=first, last=first + step - 1))
            first += step
    return path


def _json(path: Path) -> Path:
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        number = 0
        while file.tell() < JSON_BYTES:
            events = (json.dumps(_event(number + k), indent=1) for k in range(_PER_STEP))
            file.write(",\n".join(events) + ",\n")
            number += _PER_STEP
        file.write(json.dumps(_event(number)) + "\n]}\n")
    return path


def _event(number: int) -> dict:
    """Every fourth event is a kernel; the others are operations of two threads."""
    arguments = {"External id": number, "Record function id": 0, "Sequence number": number // 3, "Ev Idx": number}
    kernel = number % 4 == 3
    return {
        "ph": "X",
        "cat": "kernel" if kernel else "cpu_op",
        "name": f"gemm_{number % 40}" if kernel else f"aten::op_{number % 150}",
        "pid": 0 if kernel else 4711,
        "tid": 7 if kernel else 4711 + number % 2,
        "ts": 4504813262919.954 + 3 * number,
        "dur": 1.5 + number % 3,
        "args": arguments | {"correlation": number // 4, "grid": [64, 8, 1], "block": [128, 1, 1]}
        if kernel
        else arguments,
    }


def _live(folder: Path) -> list[Row]:
    task, engine, store = task_of(Runtime("jax-step"), Network((128,)), 32), Engine(), Store(folder / "results.sqlite")
    drawn_s, trace = [], None
    try:
        for number in range(ROUNDS + 1):  # the first starts the worker
            ended = 0.0
            for item in profile(task, engine, store, Cancel(), Request()):
                if isinstance(item, Record) and item.subject["name"] == PROFILED:
                    ended = time.perf_counter()
                if isinstance(item, Trace):
                    trace = item
                    _draw(trace, 0.45, 0.55)
                    drawn_s += [time.perf_counter() - ended] if number else []
    finally:
        engine.close()
    assert trace is not None, "it was profiled"
    moved_s = [
        _timed(lambda k=k, trace=trace: _draw(trace, k / (2 * MOVES), 0.5 + k / (2 * MOVES))) for k in range(MOVES)
    ]
    return [row("live", drawn_s), row("slider", moved_s, trace_rows=len(trace.rows))]


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
