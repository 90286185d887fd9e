"""Traces as JAX's and TensorFlow's profilers write them: an XSpace in a file `.xplane.pb`."""

import re
from pathlib import Path

from lib.timing.profiling.traces.form import Collector, Refused, Trace
from lib.timing.profiling.traces.kinds import device_kind, kind_of

MAX_BYTES = 256 << 20  # the library's parser holds the whole file, several times over
_DROPPED = ("ThreadpoolListener::", "end: ")  # marks of the profiler itself
# Whose profiler it is, told by its calls: TensorFlow's has the same planes.
JAX = re.compile(r"^(PjRt|PJRT_|Pjit|Py(Client|Array|LoadedExecutable)|\$(pjit|api)\.py|jit_|jit\()")


def read(path: Path, title: str) -> Trace:
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
    is_jax = any("jax_version" in dict(plane.stats) for plane in planes) or found.has_name(JAX)
    return found.trace(title, "JAX's profiler" if is_jax else "TensorFlow's profiler")


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
            found.add(lane, event.name, kind, round(event.start_ns), round(event.duration_ns), _correlation(stats))
            if "step_num" in stats:
                found.step(round(event.start_ns), round(event.duration_ns))
        python += [key] if thread == "python" else []
    if (busiest := found.busiest(python)) is not None:
        found.rename(busiest, "python", "python")


def _device(plane, found: Collector) -> None:
    shown = ("XLA Ops", "Async XLA Ops") if "TPU" in plane.name else ("Stream",)
    for index, line in enumerate(plane.lines):
        if not line.name.startswith(shown):
            continue  # the other lines repeat these rows by program, step and name scope
        lane = found.lane((plane.name, index), f"{plane.name.removeprefix('/device:')} {line.name}", "device")
        for event in line.events:
            start_ns, duration_ns = round(event.start_ns), round(event.duration_ns)
            correlation = _correlation(dict(event.stats))
            found.add(lane, event.name, device_kind(event.name), start_ns, duration_ns, correlation)


def _correlation(stats: dict) -> int:
    found = stats.get("correlation_id")
    return found if isinstance(found, int) else 0
