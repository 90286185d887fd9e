"""Files of every trace format, made for the tests.

Tables and columns are some of Nsight Systems' documented SQLite export, but no data is from a card. The XSpace is made
from text, so that a card's plane can be read without a card.
"""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from jax.profiler import ProfileData

NSIGHT = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, demangledName INTEGER, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, copyKind INTEGER NOT NULL);
"""
NAMES = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuStreamSynchronize", "gemm", "relu_kernel")
THREAD = (7 << 24) + 4711


def nsight(path: Path, steps: int, step_ns: int = 100_000) -> Path:
    """An export; each step has a copy, launch, graph and wait on the host, a copy and two kernels on the card."""
    runtime, kernels, copies = [], [], []
    for step in range(steps):
        began, first = step * step_ns, 4 * step
        for call, start, end in ((1, 0, 10_000), (0, 12_000, 17_000), (2, 20_000, 28_000), (3, 30_000, 90_000)):
            runtime.append((began + start, began + end, THREAD, first + call, call))
        for name, start, end in ((4, 40_000, 60_000), (5, 65_000, 70_000)):
            kernels.append((began + start, began + end, 0, 7, first, None, name))
        copies.append((began + 5_000, began + 9_000, 0, 7, first + 1, 1))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(NSIGHT)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", runtime)
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", kernels)
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?)", copies)
        database.commit()
    return path


API_SUM = """Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
 61.0,870000000,98168,8862.4,8000.0,900,91000,100.0,cuCtxSetCurrent
 39.0,560000000,6144,91145.8,90000.0,1000,910000,100.0,cuMemcpyDtoHAsync
"""
GPU_TRACE = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,Bytes (MB),Device,Ctx,Strm,Name
1000,500,11,1,1,1,32,,NVIDIA L4 (0),1,7,"gemm<float, 4>"
2000,300,12,,,,,0.1,NVIDIA L4 (0),1,7,[CUDA memcpy Host-to-Device]
"""
API_TRACE = """Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
900,50,cuLaunchKernel,0,11,3,4,20,python
"""


def chrome(events: Iterable[dict], **head: object) -> str:
    return json.dumps(head | {"traceEvents": list(events)})


def event(name: str, start_us: float, duration_us: float, tid: object = 1, **more: object) -> dict:
    return {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start_us, "dur": duration_us} | more


def xspace(planes: dict[str, dict[str, list[tuple[str, int, int, dict[str, int]]]]]) -> bytes:
    """Encode {plane: {line: [(event name, start in ns, duration in ns, stats)]}} as an XSpace."""
    text = ""
    for plane, lines in planes.items():
        numbers: dict[str, int] = {}  # of the events' and stats' names
        text += f'planes {{ name: "{plane}" '
        for line, events in lines.items():
            text += f'lines {{ name: "{line}" timestamp_ns: 1000 '
            for name, start_ns, duration_ns, stats in events:
                of, *keys = (numbers.setdefault(key, len(numbers) + 1) for key in (name, *stats))
                text += f"events {{ metadata_id: {of} offset_ps: {start_ns}000 duration_ps: {duration_ns}000 "
                for key, value in zip(keys, stats.values(), strict=True):
                    text += f"stats {{ metadata_id: {key} int64_value: {value} }} "
                text += "} "
            text += "} "
        for kind in ("event_metadata", "stat_metadata"):
            for name, number in numbers.items():
                text += f'{kind} {{ key: {number} value {{ id: {number} name: "{name}" }} }} '
        text += "} "
    return ProfileData.text_proto_to_serialized_xspace(text)
