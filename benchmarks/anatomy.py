"""Whether the parts of a step add up: every backend at four batch sizes, as `notebooks/anatomy_of_a_step.py` takes
them apart."""

from benchmarks.report import LeftOut, Row, Target, note, show
from lib.backends.registry import Runtime, usable_runtimes
from lib.profiling.request import Examination
from lib.profiling.step_breakdown import EXPLAINED, PARTS, split
from lib.spec import Network
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Measured

BATCH_SIZES = (1, 32, 512, 4096)
NETWORK = Network((128,))


def main() -> None:
    engine, left_out = Engine(), LeftOut()
    rows: list[Row] = []
    try:
        for size in BATCH_SIZES:
            for runtime in usable_runtimes():
                with left_out.unless_it_works(f"{runtime.label}, batch size {size}"):
                    rows.append(_row(engine, runtime, size))
    finally:
        engine.close()
    within = sum(abs(float(row["ratio"]) - 1) <= EXPLAINED for row in rows)  # pyright: ignore[reportArgumentType]
    columns = ("backend", "batch_size", "step_s", "ratio", *(part.name for part in PARTS))
    show(
        "anatomy",
        rows,
        columns,
        [Target(f"splits within {EXPLAINED:.0%} of the measured step", within, len(rows) + len(left_out), "", True)],
        left_out,
    )


def _row(engine: Engine, runtime: Runtime, batch_size: int) -> Row:
    examination = Examination("parts", NETWORK, batch_size)
    messages = engine.examine(runtime, examination, Cancel())
    found = {m.name: m.measurement.median_s / m.work for m in messages if isinstance(m, Measured)}
    known = split(runtime.backend, found)
    if known is None:
        raise RuntimeError(f"expected all of its experiments, got {', '.join(found) or 'none'}")
    note(f"{runtime.label}, batch size {batch_size}")
    ratio = sum(known.parts_s.values()) / known.step_s
    return {
        "name": "anatomy",
        "backend": runtime.backend,
        "device": runtime.device,
        "batch_size": batch_size,
        "step_s": known.step_s,
        "ratio": ratio,
        **known.parts_s,
    }
