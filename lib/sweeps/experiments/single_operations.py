"""Measure single operations at growing sizes, and input pipelines, with every library.

A size is refused before allocating anything if it would need too much memory, or take too long judging by the largest
size measured so far. Each pipeline is a separate examination, so that an error in one does not affect the others.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np

from lib.model.backends.registry import BACKENDS, Runtime, unavailable, usable_runtimes, versions
from lib.model.hardware.machine import usable_memory_bytes
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import measure_ceilings, stored
from lib.sweeps.measuring import Attempts
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request, Ticket
from lib.timing.comparison import Comparison, compared, median_interval
from lib.timing.measurement import Measurement
from lib.timing.profiling.harness import QUANTITIES
from lib.timing.profiling.operations import LIBRARIES
from lib.timing.profiling.request import FEEDS, ITEM_BYTES, Examination, OperationRequest, Pipeline

SIDES = tuple(2**k for k in range(16))  # of square matrices
LENGTHS = tuple(4**k for k in range(15))  # elements of the nested sine
TRANSFERS_BYTES = tuple(4**k for k in range(1, 15))
LIMIT_S = 30.0  # for measuring one size with one library
OVERLAP_SIZES = tuple(4**k for k in range(8, 13))  # elements
FIRST_SIZES = (1, 1024, 2**20)  # elements; the article's is 1,024
SHARE_OF_MEMORY = 0.8  # of free memory
CALLS = 6  # minimum per way and size, including one that compiles
# A group's libraries take turns at each size. Later groups come after earlier ones because their workers start slowly.
GROUPS = (("numpy", "jax", "cupy"), ("torch",), ("keras-tensorflow",))


@dataclass(frozen=True)
class OperationTask:
    runtime: Runtime
    operation: OperationRequest

    @property
    def library(self) -> str:
        return BACKENDS[self.runtime.backend].worker

    @property
    def label(self) -> str:
        return LABELS[self.library] + (", GPU" if self.runtime.device == "gpu" else "")

    @property
    def subject(self) -> dict[str, str | int | float]:
        asked = self.operation
        return {
            "operation": asked.name,
            "by": self.library,
            "device": self.runtime.device,
            "size": asked.size,
            "precision": self.runtime.precision,
            "arithmetic": asked.precision,
            "threads": 0,  # in every record: all threads
            "depth": asked.depth,
            "pieces": asked.pieces,
        }


LABELS: Mapping[str, str] = {
    "numpy": "NumPy",
    "jax": "JAX",
    "torch": "PyTorch",
    "keras-tensorflow": "TensorFlow",
    "cupy": "CuPy",
}


@dataclass(frozen=True)
class OperationPoint:
    """A task's records by way of timing, or why there are none.

    For a refused task, `predicted_s` is the predicted seconds per call, if any.
    """

    task: OperationTask
    records: Mapping[str, Record] = field(default_factory=dict)
    why_not: str = ""
    predicted_s: float | None = None

    @property
    def size(self) -> int:
        return self.task.operation.size

    def seconds(self, way: str) -> float | None:
        return self.records[way].measurement.median_s if way in self.records else None

    def compare(
        self, way: str, other_way: str, other: "OperationPoint | None" = None, paired: bool = True
    ) -> Comparison:
        """Compare a call's time in one way with another way, by default of the same point, measured in turns."""
        records = self.records[way], (other or self).records[other_way]
        return compared(*(record.measurement.step_s for record in records), paired=paired and other is None)

    def rate(self, way: str) -> float | None:
        """Return FLOP/s or bytes/s; None if not timed in this way."""
        seconds = self.seconds(way)
        return float(self.records[way].subject["work"]) / seconds if seconds else None


def libraries() -> list[Runtime]:
    """Return one float32 runtime per library and device available here, the quickest to start first."""
    usable = [one for one in usable_runtimes() if one.precision == "float32"]
    first = {one.process: one for one in reversed(usable) if BACKENDS[one.backend].worker in LIBRARIES}
    order = [name for group in GROUPS for name in group]
    return sorted(first.values(), key=lambda one: (order.index(BACKENDS[one.backend].worker), one.device))


def tasks(runtimes: Sequence[Runtime], operation: OperationRequest, sizes: Sequence[int]) -> list[OperationTask]:
    """Return a task per size and library, group by group, each in order of size."""
    return [
        OperationTask(runtime, replace(operation, size=size))
        for group in GROUPS
        for size in sizes
        for runtime in runtimes
        if BACKENDS[runtime.backend].worker in group
    ]


def products(runtimes: Sequence[Runtime], largest: int, precision: str) -> list[OperationTask]:
    asked = OperationRequest("product", precision=precision)
    # TF32 on a GPU needs a separate worker, because some libraries accept the setting only before they are loaded.
    rounding = {(one.backend, one.device): one for one in usable_runtimes() if one.precision == precision == "tf32"}
    runtimes = [rounding.get((one.backend, one.device), one) for one in runtimes]
    return tasks(runtimes, asked, [side for side in SIDES if side <= largest])


def sines(runtimes: Sequence[Runtime], largest: int, depth: int) -> list[OperationTask]:
    return tasks(runtimes, OperationRequest("sine", depth=depth), [length for length in LENGTHS if length <= largest])


def transfers(runtimes: Sequence[Runtime], largest_bytes: int) -> list[OperationTask]:
    return tasks(runtimes, OperationRequest("transfer"), [size for size in TRANSFERS_BYTES if size <= largest_bytes])


def first_uses(runtimes: Sequence[Runtime], size: int) -> list[OperationTask]:
    return tasks(runtimes, OperationRequest("first use", depth=4), [size])


def fusions(runtimes: Sequence[Runtime], batch_size: int, depth: int) -> list[OperationTask]:
    """Return the tasks that show what XLA makes of a training step and of nested sines, per device of JAX."""
    request = OperationRequest("fusion", depth=depth)
    return tasks([one for one in runtimes if BACKENDS[one.backend].worker == "jax"], request, [batch_size])


def overlaps(runtimes: Sequence[Runtime], size: int, depth: int, pieces: int) -> list[OperationTask]:
    """Return the tasks that overlap nested sines with transfers, using NumPy's threads and PyTorch's GPU streams."""
    able = [
        one for one in runtimes if (BACKENDS[one.backend].worker, one.device) in (("numpy", "cpu"), ("torch", "gpu"))
    ]
    return tasks(able, OperationRequest("overlap", depth=depth, pieces=pieces), [size])


def found(todo: Sequence[OperationTask], records: Sequence[Record]) -> dict[OperationTask, OperationPoint]:
    by_subject: dict[tuple, dict[str, Record]] = {}
    names = list(todo[0].subject) if todo else []
    for runtime in {task.runtime for task in todo}:
        for record in current(records, Kind.OPERATION, {"device": runtime.device}, runtime):
            key = tuple(record.subject.get(name) for name in names)
            by_subject.setdefault(key, {})[str(record.subject["name"])] = record
    known = {task: by_subject.get(tuple(task.subject.values())) for task in todo}
    return {task: OperationPoint(task, records) for task, records in known.items() if records}


def measure(
    todo: Sequence[OperationTask],
    known: Mapping[OperationTask, OperationPoint],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    free_bytes: Callable[[str], float] = usable_memory_bytes,
    limit_s: float = LIMIT_S,
) -> Iterator[OperationPoint | Record | Note]:
    """Measure unknown tasks in order, then this machine's missing peak rates.

    Refusals and failures yield points too, and the rest continues: see `lib.sweeps.measuring.Attempts`. All tasks share
    one place in the queue, so that no later section of a page comes in between.

    Args:
        todo: Tasks in the order to measure; for each library, small sizes first.
        known: Points that are not measured again.
        engine: Runs each examination in the worker of the task's library.
        store: Where records are stored.
        cancel: Ends the measurement when set.
        request: Place in this machine's queue.
        free_bytes: Memory that may be allocated on a device ("cpu" or "gpu").
        limit_s: Most seconds for measuring one size.

    Yields:
        A point per task, records of kind `FAILURE` for missing peak rates, and notes on progress and waiting.
    """
    before: dict[Runtime, list[OperationPoint]] = {}
    attempts = Attempts()
    with engine.turn(request) as turn:
        for task in todo:
            if cancel.is_set():
                return
            earlier = before.setdefault(task.runtime, [])
            point = known.get(task) or refused(task, earlier, free_bytes, limit_s)
            if point is None:
                point = yield from _measured(task, earlier, attempts, engine, store, cancel, turn)
            if point is None:
                return
            earlier.append(point)
            yield point
        if todo and todo[0].operation.name in ("product", "sine"):  # compared with peak rates
            quick = [one for one in before if BACKENDS[one.backend].worker in GROUPS[0]]  # can measure peak rates
            yield from measure_ceilings(quick, engine, store, cancel, turn)


def _measured(
    task: OperationTask,
    earlier: Sequence[OperationPoint],
    attempts: Attempts,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    turn: Ticket,
) -> Generator[Note, None, OperationPoint | None]:
    doing = f"{task.label}: {task.operation.name}, size {task.operation.size:,}"
    examination = Examination("operation", operation=task.operation)
    records: dict[str, Record] = {}

    def measure() -> Iterator[Note]:
        messages = engine.examine(task.runtime, examination, cancel, turn)
        for event in stored(messages, store, Kind.OPERATION, task.subject, versions(task.runtime), doing):
            if isinstance(event, Note):
                yield event
            else:
                records[str(event.subject["name"])] = event

    if why := (yield from attempts.row(task.runtime, measure)):
        why_not = "there is not enough memory" if "not enough memory" in why else why.rstrip(".")
        return OperationPoint(task, why_not=why_not, predicted_s=predicted_s(task.operation, earlier))
    return OperationPoint(task, records) if records else None  # None: cancelled


def refused(
    task: OperationTask, earlier: Sequence[OperationPoint], free_bytes: Callable[[str], float], limit_s: float = LIMIT_S
) -> OperationPoint | None:
    """Return a point that says why this size is not measured, before allocating anything; None if it can be.

    Args:
        task: What would be measured.
        earlier: The same library's points at smaller sizes.
        free_bytes: Memory that may be allocated on a device.
        limit_s: Most seconds for measuring it.
    """
    asked = task.operation
    if why := unsupported(task):
        return OperationPoint(task, why_not=why)
    call_s = predicted_s(asked, earlier)
    for device, needed in needed_bytes(task).items():
        if needed > SHARE_OF_MEMORY * (free := free_bytes(device)):
            where, there = ("memory", "are free") if device == "cpu" else ("the GPU's memory", "can be used")
            why = f"it needs {needed / 1e9:.3g} GB of {where}, of which {free / 1e9:.3g} GB {there}"
            return OperationPoint(task, why_not=why, predicted_s=call_s)
    ways = max((len(point.records) for point in earlier), default=1)
    if call_s is not None and (all_s := ways * CALLS * call_s) > limit_s:
        why = f"measuring it would take about {all_s:.0f} s, but the limit is {limit_s:.0f} s"
        return OperationPoint(task, why_not=why, predicted_s=call_s)
    return None


def unsupported(task: OperationTask) -> str:
    """Return why this task cannot be measured here at any size; empty if it can."""
    precision = task.operation.precision
    if precision == "tf32" and task.runtime.precision != "tf32":
        return "only GPUs have TF32 arithmetic, from Ampere onwards"
    if precision == "bfloat16" and task.library in ("numpy", "cupy"):
        return f"{LABELS[task.library]} has no bfloat16"
    return ""


def needed_bytes(task: OperationTask) -> dict[str, float]:
    """Return the most bytes that measuring this allocates, by device.

    A transfer holds its source, the copies of two calls, and a permanent one, pinned or on the GPU. A product holds two
    operands and a result, a sine one of each: in host memory as float32 and in their precision, and on the device one
    permanent and one moved copy. NumPy holds them only once.
    """
    asked, arrays = task.operation, 2 if task.operation.name == "sine" else 3
    if asked.name == "transfer":
        return {"cpu": 4.0 * asked.size} | ({"gpu": 3.0 * asked.size} if task.runtime.device == "gpu" else {})
    elements = asked.size**2 if asked.name == "product" else asked.size
    one = float(elements * ITEM_BYTES[asked.precision])
    host = arrays * one + 4.0 * elements * (asked.precision not in ("float32", "tf32"))
    if task.runtime.device == "gpu":
        return {"cpu": host, "gpu": 2 * arrays * one}
    return {"cpu": host if task.library == "numpy" else host + 2 * arrays * one}


def work_of(operation: OperationRequest) -> float:
    """Return the work that a call's time scales with: multiply-adds of a product, elements of a sine, or bytes."""
    return float(operation.size**3 if operation.name == "product" else operation.size)


def predicted_s(operation: OperationRequest, earlier: Sequence[OperationPoint]) -> float | None:
    """Predict seconds per call from the rate at the largest measured size; None if nothing was measured.

    Small sizes are mostly overhead, which does not grow, so the prediction errs on the long side.
    """
    measured = [point for point in earlier if point.records]
    if not measured:
        return None
    largest = max(measured, key=lambda point: point.size)
    slowest_s = max(seconds for way in largest.records if (seconds := largest.seconds(way)) is not None)
    return slowest_s * work_of(operation) / work_of(largest.task.operation)


NETWORK = Network((128,))


@dataclass(frozen=True)
class PipelineTask:
    """A pipeline to measure with one backend on one device."""

    runtime: Runtime
    pipeline: Pipeline

    @property
    def subject(self) -> dict[str, str | int | float]:
        return {
            **self.runtime.subject,
            "hidden": NETWORK.label,
            **asdict(self.pipeline),
            "holds_lock": int(self.pipeline.holds_lock),
            "beside": "",  # in every record: no other pipeline
        }

    def latest(self, records: Sequence[Record]) -> dict[str, Record]:
        known = current(records, Kind.PIPELINE, self.subject, self.runtime)
        return {str(record.subject["name"]): record for record in known}

    def found(self, records: Sequence[Record]) -> "Figures | None":
        return next(iter(recorded_figures([*self.latest(records).values()])), None)


@dataclass(frozen=True)
class Figures:
    """One pipeline's seconds per batch for the data set alone, the step alone, and both together.

    `waits` is the part of `both` that the step waits; `preprocessing` is per image; `first` is until the first batch.
    """

    pipeline: Pipeline
    data: Measurement
    step: Measurement
    both: Measurement
    waits: Measurement
    preprocessing: Measurement
    first: Measurement

    @property
    def share(self) -> tuple[float, float, float]:
        """Share of time that the step waits: median and 95 % interval (an interval of 0 to 1 means unknown)."""
        shares = self.waits.step_s / self.both.step_s
        low, high = median_interval(shares)
        return float(np.median(shares)), low, min(high, 1.0)


def pipeline_tasks(settings: Pipeline, device: str) -> list[PipelineTask]:
    runtimes = [Runtime(backend, device) for backend in FEEDS]
    return [
        PipelineTask(runtime, replace(settings, feed=feed))
        for runtime in runtimes
        if unavailable(runtime) is None
        for feed in FEEDS[runtime.backend]
    ]


def measure_pipelines(
    todo: Sequence[PipelineTask], engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | tuple[Pipeline, str] | Note]:
    """Measure the tasks in order.

    Args:
        todo: Tasks to measure, even if already stored.
        engine: Runs each task in the worker of its library.
        store: Where records are stored.
        cancel: Ends the measurement when set.
        request: Place in this machine's queue.

    Yields:
        Each record as it is measured, pipelines that cannot be measured with the reason as a sentence, and notes.
    """
    attempts = Attempts()

    def examined(task: PipelineTask) -> Iterator[Record | Note]:
        examination = Examination("pipeline", NETWORK, task.pipeline.batch_size, task.pipeline)
        messages = engine.examine(task.runtime, examination, cancel, turn)
        return stored(messages, store, Kind.PIPELINE, task.subject, versions(task.runtime), task.pipeline.label)

    with engine.turn(request) as turn:
        for task in todo:
            if cancel.is_set():
                return
            if why := (yield from attempts.row(task.runtime, partial(examined, task))):
                yield task.pipeline, why


def recorded_figures(records: Sequence[Record]) -> list[Figures]:
    """Return the latest figures of each separately measured pipeline on one machine and device.

    Args:
        records: Of any kind, oldest first; may come from untrusted exports.
    """
    by_pipeline: dict[Pipeline, dict[str, Record]] = {}
    for record in records:
        if record.kind == Kind.PIPELINE and record.says("beside") == "":
            with suppress(KeyError, ValueError):  # other versions may have other feeds or settings
                by_pipeline.setdefault(_pipeline_of(record.subject), {})[str(record.subject["name"])] = record
    return [
        Figures(pipeline, **{name: latest[f"0/{name}"].measurement for name in QUANTITIES})
        for pipeline, latest in by_pipeline.items()
        if {f"0/{name}" for name in QUANTITIES} <= latest.keys()
    ]


def _pipeline_of(subject: Mapping[str, str | int | float]) -> Pipeline:
    """Parse the subject of a `PipelineTask`; raises KeyError or ValueError for other versions' records."""
    feed, rows, size, ms, lock = (
        subject[name] for name in ("feed", "rows", "batch_size", "preprocessing_ms", "holds_lock")
    )
    return Pipeline(str(feed), int(rows), int(size), float(ms), bool(lock))
