"""Traces as `nsys stats --format csv` prints them: tables of calls, or of every single call.

A report of sums (`cuda_api_sum`) has no starts: it explains, but there is nothing to draw. A report of rows
(`cuda_api_trace`, `cuda_gpu_trace`) has both. Several reports may follow each other in one file.
"""

import codecs
import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lib.timing.profiling.traces.form import Call, Collector, Refused, Trace, most, shortened
from lib.timing.profiling.traces.kinds import cuda_kind, device_kind

MAX_LINE = 1 << 20  # characters
_UNIT = re.compile(r"\((ns|us|μs|ms|s|sec)\)")
_NS = {"ns": 1.0, "us": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_COUNTS = ("num calls", "instances", "count", "calls")
_NAMES = ("name", "operation")


def read(path: Path, title: str) -> Trace:
    """A trace from one or several reports.

    Raises:
        Refused: A line is absurdly long, or no report is in it.
    """
    found, sums = Collector(), []
    head: dict[str, int] | None = None
    units: list[float] = []
    for fields in _lines(path):
        columns = {re.sub(r"\s*\(.*", "", field).strip().lower(): index for index, field in enumerate(fields)}
        if any(name in columns for name in _NAMES) and ("total time" in columns or "start" in columns):
            head, units = columns, [_unit_ns(field) for field in fields]
        elif head is None or len(fields) < len(head):
            head = None  # a blank line, or a title: the report has ended
        elif "total time" in head:
            sums += [call] if (call := _sum(fields, head, units)) is not None else []
        else:
            _row(fields, head, units, found)
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


def _unit_ns(field: str) -> float:
    found = _UNIT.search(field)
    return _NS[found.group(1)] if found else 1.0


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def _first(head: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((head[name] for name in names if name in head), None)


def _sum(fields: list[str], head: Mapping[str, int], units: list[float]) -> Call | None:
    counted, named, total = _first(head, _COUNTS), _first(head, _NAMES), head["total time"]
    if counted is None or named is None:
        return None
    count, total_ns, name = _number(fields[counted]), _number(fields[total]), shortened(fields[named])
    if count is None or total_ns is None or count < 0 or total_ns < 0:
        return None
    total_ns = round(total_ns * units[total])
    kind = cuda_kind(name) if "num calls" in head else device_kind(name)
    return Call(name, kind, round(count), total_ns, total_ns)


def _row(fields: list[str], head: Mapping[str, int], units: list[float], found: Collector) -> None:
    named, start = _first(head, _NAMES), head.get("start")
    length = _first(head, ("duration", "dur"))
    if named is None or start is None or length is None:
        return
    began, lasted = _number(fields[start]), _number(fields[length])
    if began is None or lasted is None:
        return
    name, stream = fields[named], _first(head, ("strm", "stream"))
    correlated = _first(head, ("corrid", "corr id", "correlation id"))
    correlation = _number(fields[correlated]) if correlated is not None else None
    if stream is not None:
        device = fields[head["device"]] if "device" in head else "device"
        lane = found.lane(("stream", device, fields[stream]), f"{device}, stream {fields[stream]}", "device")
        kind = device_kind(name)
    else:
        thread = fields[head["tid"]] if "tid" in head else "host"
        lane, kind = found.lane(("thread", thread), f"thread {thread}"), cuda_kind(name)
    found.add(lane, name, kind, round(began * units[start]), round(lasted * units[length]), round(correlation or 0))
