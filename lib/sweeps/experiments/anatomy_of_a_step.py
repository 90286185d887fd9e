"""Measure the parts of a training step with each library on this machine, and each library's peak rates.

Every measurement is stored. `lib.timing.prediction.workload` turns the peak rates into lower bounds.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lib.model.backends.registry import ADAPTERS, BACKENDS, DEFAULT, PRECISIONS, Runtime, versions
from lib.model.hardware.machine import last_level_cache_bytes, machine_id
from lib.model.spec import Network
from lib.sweeps.measuring import ALL_BUT_THE_CPU, Attempts, StepTime
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, Message, Note, note_of
from lib.sweeps.workers.queue import Cancel, Request, Ticket
from lib.timing.prediction.workload import Ceilings
from lib.timing.profiling.operations import ALL, KERNELS, LIBRARIES, OPERATIONS, PRODUCT
from lib.timing.profiling.request import (
    CALLS,
    CONVOLUTIONAL,
    LAUNCHES,
    PLAIN,
    PROFILED,
    REFERENCE,
    RESNET,
    TRAPS,
    Examination,
    Split,
    split,
)

CEILINGS = "ceilings"
TRAPS_NETWORK = Network((128,))
AT_ONCE = (CONVOLUTIONAL, RESNET, LAUNCHES, CALLS)  # examinations that report all rows at the end


@dataclass(frozen=True)
class AnatomyTask:
    runtime: Runtime
    examination: Examination

    @property
    def kind(self) -> Kind:
        return Kind.CEILING if self.examination.kind == CEILINGS else Kind.ANATOMY

    @property
    def subject(self) -> dict[str, str | int | float]:
        """The subject of its records. Peak rates, operations and traps are per library, everything else per backend."""
        if self.kind == Kind.CEILING:
            library = BACKENDS[self.runtime.backend].worker
            return {"device": self.runtime.device, "precision": self.runtime.precision, "library": library}
        by_backend = self.examination.kind not in ("operations", "traps")
        return {
            "examination": self.examination.kind,
            "by": self.runtime.backend if by_backend else BACKENDS[self.runtime.backend].worker,
            "device": self.runtime.device,
            "precision": self.runtime.precision,
            "hidden": self.examination.network.label,
            "batch_size": self.examination.batch_size,
        }

    def found(self, records: Sequence[Record]) -> dict[str, Record]:
        known = current(records, Kind.ANATOMY, self.subject, self.runtime)
        return {str(record.subject["name"]): record for record in known}

    def seconds(self, records: Sequence[Record]) -> dict[str, float]:
        return {name: seconds_of(record) for name, record in self.found(records).items()}

    def repetitions(self, records: Sequence[Record]) -> list[dict[str, Record]]:
        """Return the valid records of each completed examination by experiment name, oldest first."""
        found: list[dict[str, Record]] = [{}]
        for record in current(records, Kind.ANATOMY, self.subject, self.runtime):
            if (name := str(record.subject["name"])) in found[-1]:
                found.append({})
            found[-1][name] = record
        return [one for one in found if self.complete(list(one.values()))]

    def step_time(self, records: Sequence[Record]) -> StepTime | None:
        """Return the time of a step that is the whole examination: the median over repetitions of the median block."""
        known = current(records, Kind.ANATOMY, self.subject | {"name": self.examination.kind}, self.runtime)
        steps_s = sorted(record.measurement.median_s for record in known)
        if not known:
            return None
        return StepTime(statistics.median(steps_s), 0.0, steps_s[0], steps_s[-1], known[-1].warnings)

    def split(self, records: Sequence[Record]) -> Split | None:
        return split(self.runtime, self.seconds(records))

    def complete(self, records: Sequence[Record]) -> bool:
        """Whether every experiment of this task has a valid record; peak rates may come from older code."""
        if self.kind == Kind.CEILING:
            here = machine_id(), versions(self.runtime)
            of_it = (one for one in records if one.kind == Kind.CEILING and one.is_about(self.subject))
            return any((one.machine, one.versions) == here for one in of_it)
        if self.examination.kind == "parts":
            return self.split(records) is not None
        if self.examination.kind == "traps":
            return {REFERENCE, *TRAPS} <= self.found(records).keys()
        if self.examination.kind == "trace":
            return {PLAIN, PROFILED} <= self.found(records).keys()
        if self.examination.kind in AT_ONCE:
            return bool(self.found(records))
        counted = {KERNELS} if BACKENDS[self.runtime.backend].worker == "jax" else set()
        return {*(operation.key for operation in OPERATIONS), ALL, PRODUCT, *counted} <= self.found(records).keys()


def seconds_of(record: Record) -> float:
    """Return median seconds per training step: the record's median over `work`, the number of steps it covers."""
    return record.measurement.median_s / float(record.subject["work"])


def tasks(runtimes: Sequence[Runtime], network: Network, batch_size: int) -> list[AnatomyTask]:
    """Return one task for the step's parts per runtime that has them, then one for operations per library and device.

    Operations are those of a network with only the first hidden layer.
    """
    libraries = {runtime.process: runtime for runtime in reversed(runtimes)}
    operations = [runtime for runtime in libraries.values() if BACKENDS[runtime.backend].worker in LIBRARIES]
    operations.sort(key=lambda runtime: (runtime.device, list(LIBRARIES).index(BACKENDS[runtime.backend].worker)))
    return [
        AnatomyTask(runtime, Examination("parts", network, batch_size))
        for runtime in runtimes
        if BACKENDS[runtime.backend].taken_apart
    ] + [AnatomyTask(runtime, Examination("operations", shallow(network), batch_size)) for runtime in operations]


def shallow(network: Network) -> Network:
    """Return the single-layer network whose operations are timed in place of this one's."""
    return Network(network.hidden[:1] or Network().hidden)


def traps_task(device: str, batch_size: int, network: Network = TRAPS_NETWORK) -> AnatomyTask:
    """Return the task that times a step in the wrong ways, on WebGPU adapters with WebGPU, elsewhere with JAX."""
    runtime = Runtime("webgpu-step" if device in ADAPTERS else DEFAULT, device)
    return AnatomyTask(runtime, Examination("traps", network, batch_size))


def measure_tasks(
    todo: Sequence[AnatomyTask], engine: Engine, store: Store, cancel: Cancel, request: Request | Ticket | None = None
) -> Iterator[Record | Note]:
    """Measure the tasks in order, storing each record before yielding it so that a stop loses none.

    Args:
        todo: Tasks to measure, even if already stored.
        engine: Runs each examination in the worker of the task's library.
        store: Where records are stored.
        cancel: Ends the measurement when set.
        request: Place in this machine's queue; None for a new one.

    Yields:
        Each record as it is measured, a record of kind `FAILURE` for a task that failed on a GPU or while measuring
        peak rates, and notes on progress and waiting.

    Raises:
        TrainingFailed: The backend could not do the task on a CPU; the message says why.
    """
    attempts = {Kind.ANATOMY: Attempts(ALL_BUT_THE_CPU), Kind.CEILING: Attempts()}  # peak rates are optional

    def measure(task: AnatomyTask, doing: str) -> Iterator[Record | Note]:
        messages = engine.examine(task.runtime, task.examination, cancel, request)
        return stored(messages, store, task.kind, task.subject, versions(task.runtime), doing)

    for task in todo:
        if cancel.is_set():
            return
        doing = f"{task.runtime.label}: {_TITLES.get(task.examination.kind, task.examination.kind)}"
        yield from attempts[task.kind].marked(store, doing, task.runtime, task.subject, partial(measure, task, doing))


_TITLES = {
    CEILINGS: "the best rates of this machine",
    "operations": "operation by operation",
    "parts": "the parts of its step",
    "traps": "the traps",
    "trace": "a profile",
    "takings": "what changes to its step save",
    CONVOLUTIONAL: "a step of a small convolutional network",
    RESNET: "a step of ResNet-18",
    LAUNCHES: "a step launched in each way",
    CALLS: "its CUDA calls",
}


def stored(
    messages: Iterator[Message],
    store: Store,
    kind: str,
    subject: Mapping[str, str | int | float],
    versions: str,
    doing: str,
) -> Iterator[Record | Note]:
    """Store each row of an examination as a record, and yield it.

    Args:
        messages: From `Engine.examine`.
        store: Where records are stored.
        kind: A `Kind`, the same for all rows.
        subject: Fields common to all records; each row adds its own `name` and `work`.
        versions: Versions of the measured libraries.
        doing: Text of the note while the examination runs.

    Yields:
        The records, and notes on progress and waiting.

    Raises:
        TrainingFailed: The backend could not do the task; the message says why.
    """
    yield Note(doing)
    for message in messages:
        if (note := note_of(message, doing)) is not None:
            yield note
        if isinstance(message, Measured):
            of = {**subject, "name": message.name, "work": message.work}
            record = Record.of(kind, of, message.measurement, versions)
            store.add(record)
            yield record


def measure_ceilings(
    runtimes: Sequence[Runtime], engine: Engine, store: Store, cancel: Cancel, request: Request | Ticket | None = None
) -> Iterator[Record | Note]:
    """Measure and store the missing peak rates, once per library and device.

    A stop loses nothing measured so far. A library that fails is marked, and the others continue: see
    `lib.sweeps.measuring.Attempts`.

    Args:
        runtimes: Their libraries and devices are measured.
        engine: Runs the examinations.
        store: Where records are stored.
        cancel: Ends the measurement when set.
        request: Place in the queue; None for a new one.

    Yields:
        Notes on progress and waiting, and records of kind `FAILURE`; other records only go to the store.
    """
    libraries = {runtime.process: runtime for runtime in runtimes}
    asked, cached = ceiling_tasks(libraries.values()), store.records(Kind.CEILING)
    for event in measure_tasks([task for task in asked if not task.complete(cached)], engine, store, cancel, request):
        if isinstance(event, Note) or event.kind == Kind.FAILURE:
            yield event


def ceiling_tasks(runtimes: Iterable[Runtime]) -> list[AnatomyTask]:
    return [AnatomyTask(runtime, Examination(CEILINGS)) for runtime in runtimes]


def ceilings(runtime: Runtime, store: Store) -> Ceilings | None:
    """Return the best matrix-product and copy rates of any library on the runtime's device, and dispatch times.

    None if no product or no copy was measured on this machine. On a GPU, the last-level cache is its L2, as reported by
    the driver during the measurement; its size is 0 if unknown.
    """
    known = [record for record in store.records(Kind.CEILING) if record.machine == machine_id()]
    product, copy = (best_rate(known, runtime.device, name, runtime.precision) for name in ("product", "copy"))
    dispatch_s = {
        backend.key: one.measurement.median_s
        for one in known
        if one.is_about({"name": "dispatch", "device": runtime.device, "precision": runtime.precision})
        for backend in BACKENDS.values()
        if backend.worker == one.subject["library"]
    }
    if not product or not copy:
        return None
    on_card = (
        int(one.measurement.median_s) for one in known if one.is_about({"name": "cache", "device": runtime.device})
    )
    cache_bytes = last_level_cache_bytes() if runtime.device == "cpu" else max(on_card, default=0)
    return Ceilings(product, copy, dispatch_s, cache_bytes)


def best_rate(records: Iterable[Record], device: str, name: str, precision: str = PRECISIONS[0]) -> float | None:
    """Return the highest rate that any library reaches on a device; None if no record has one.

    Args:
        records: Of any kind; only peak rates are used.
        device: "cpu" or "gpu".
        name: "product" (FLOP/s) or "copy" (bytes/s).
        precision: Precision of the operands.
    """
    rates = (
        float(one.subject["work"]) / float(min(one.measurement.step_s))
        for one in records
        if one.kind == Kind.CEILING and one.is_about({"name": name, "device": device, "precision": precision})
    )
    return max(rates, default=None)
