"""Whether a step's parts add up to the step: every backend at four batch sizes, with the same parts as in
`notebooks/inside_a_step.py`, and in extra rows the lines of the step that is one compiled loop.
"""

from benchmarks.report import LeftOut, Row, Target, note, show
from lib.model.backends.registry import BACKENDS, Runtime, usable_runtimes
from lib.model.spec import Network
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured
from lib.sweeps.workers.queue import Cancel
from lib.timing.profiling.request import EXPLAINED, PARTS, Examination, split

BATCH_SIZES = (1, 32, 512, 4096)
NETWORK = Network((128,))


def main() -> None:
    engine, left_out = Engine(), LeftOut()
    rows: list[Row] = []
    try:
        for size in BATCH_SIZES:
            for runtime in (one for one in usable_runtimes() if BACKENDS[one.backend].taken_apart):
                with left_out.unless_it_works(f"{runtime.label}, batch size {size}"):
                    rows.append(_row(engine, runtime, size))
    finally:
        engine.close()
    ratios = [float(row["ratio"]) for row in rows]  # pyright: ignore[reportArgumentType]
    within = sum(abs(ratio - 1) <= EXPLAINED for ratio in ratios)
    columns = ("backend", "batch_size", "step_s", "ratio", *(part.name for part in PARTS))
    what, n = f"splits within {EXPLAINED:.0%} of the measured step", len(ratios) + len(left_out)
    show("anatomy", rows, columns, [Target.counted(what, within, n, "", True)], left_out)


def _row(engine: Engine, runtime: Runtime, batch_size: int) -> Row:
    examination = Examination("parts", NETWORK, batch_size)
    messages = engine.examine(runtime, examination, Cancel())
    found = {m.name: m.measurement.median_s / m.work for m in messages if isinstance(m, Measured)}
    known = split(runtime, found)
    if known is None:
        raise RuntimeError(f"expected all of its experiments, got {', '.join(found) or 'none'}")
    note(f"{runtime.label}, batch size {batch_size}")
    ratio = sum(known.parts_s.values()) / known.step_s
    subject: Row = {"backend": runtime.backend, "device": runtime.device, "batch_size": batch_size}
    return {"name": "anatomy", **subject, "step_s": known.step_s, "ratio": ratio, **known.parts_s}
