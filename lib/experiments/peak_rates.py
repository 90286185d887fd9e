"""This machine's ceilings, measured once by each library and kept: what `lib.timing.roofline` takes a floor from."""

from collections.abc import Iterator, Sequence

from lib.backends.registry import BACKENDS, Runtime, versions
from lib.hardware.machine import last_level_cache_bytes, machine_id
from lib.profiling.request import Examination
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.roofline import Ceilings
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Measured
from lib.workers.notes import Note, note_of
from lib.workers.queue import Request


def measure_ceilings(
    runtimes: Sequence[Runtime], engine: Engine, store: Store, cancel: Cancel, request: Request | None = None
) -> Iterator[Note]:
    """Measure what is not kept yet, each library once; says what it waits for. A stop keeps what is done."""
    cached = store.records(Kind.CEILING)
    libraries = {(BACKENDS[runtime.backend].worker, runtime.device): runtime for runtime in runtimes}
    for number, runtime in enumerate(libraries.values(), 1):
        if cancel.is_set() or _of(runtime, cached):
            continue
        doing = f"what this machine can reach at best: {runtime.label}, {number} of {len(libraries)} libraries"
        yield Note(doing)
        for message in engine.examine(runtime, Examination("ceilings"), cancel, request):
            if (note := note_of(message, doing)) is not None:
                yield note
            if isinstance(message, Measured):
                subject = _subject(runtime) | {"name": message.name, "work": message.work}
                store.add(Record.of(Kind.CEILING, subject, message.measurement, versions(runtime.backend)))


def ceilings(runtime: Runtime, store: Store) -> Ceilings | None:
    """What is kept for the runtime's device: the best product and copy by any library on it, and each library's call.

    None: not measured.
    """
    rates: dict[str, float] = {"product": 0.0, "copy": 0.0}
    dispatch_s: dict[str, float] = {}
    records = [record for record in store.records(Kind.CEILING) if record.machine == machine_id()]
    for record in records:
        name, device = record.subject.get("name"), record.subject.get("device")
        if device != runtime.device:
            continue
        if name in rates:
            best_s = float(min(record.measurement.step_s))
            rates[str(name)] = max(rates[str(name)], float(record.subject["work"]) / best_s)
        elif name == "dispatch":
            for backend in BACKENDS.values():
                if backend.worker == record.subject["library"]:
                    dispatch_s[backend.key] = record.measurement.median_s
    if not all(rates.values()):
        return None
    return Ceilings(
        rates["product"], rates["copy"], dispatch_s, last_level_cache_bytes() if runtime.device == "cpu" else 0
    )


def _subject(runtime: Runtime) -> dict[str, str | int | float]:
    return {"library": BACKENDS[runtime.backend].worker, "device": runtime.device}


def _of(runtime: Runtime, records: Sequence[Record]) -> list[Record]:
    here = (machine_id(), versions(runtime.backend))
    return [
        record
        for record in records
        if (record.machine, record.versions) == here
        and all(record.subject.get(name) == value for name, value in _subject(runtime).items())
    ]
