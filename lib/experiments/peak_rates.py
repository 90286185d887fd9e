"""This machine's ceilings, measured once by each library and kept: what `lib.timing.roofline` takes a floor from."""

from collections.abc import Iterator, Sequence

from lib.backends.registry import BACKENDS, Way, versions
from lib.hardware.machine import last_level_cache_bytes, machine_id
from lib.profiling.request import Examination
from lib.storage.records import Record
from lib.storage.store import Store
from lib.timing.roofline import Ceilings
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine, Measured
from lib.workers.notes import Note, note_of
from lib.workers.queue import Request

KIND = "ceiling"


def measure_ceilings(
    ways: Sequence[Way], engine: Engine, store: Store, cancel: Cancel, request: Request | None = None
) -> Iterator[Note]:
    """Measure what is not kept yet, each library once; says what it waits for. A stop keeps what is done."""
    kept = store.records(KIND)
    libraries = {(BACKENDS[way.backend].worker, way.device): way for way in ways}
    for number, way in enumerate(libraries.values(), 1):
        if cancel.is_set() or _of(way, kept):
            continue
        doing = f"what this machine can reach at best: {way.label}, {number} of {len(libraries)} libraries"
        yield Note(doing)
        for message in engine.examine(way, Examination("ceilings"), cancel, request):
            if (note := note_of(message, doing)) is not None:
                yield note
            if isinstance(message, Measured):
                subject = _subject(way) | {"name": message.name, "work": message.work}
                store.add(Record.of(KIND, subject, message.measurement, versions(way.backend)))


def ceilings(way: Way, store: Store) -> Ceilings | None:
    """What is kept for the way's device: the best product and copy by any library on it, and each library's call.

    None: not measured.
    """
    rates: dict[str, float] = {"product": 0.0, "copy": 0.0}
    dispatch_s: dict[str, float] = {}
    records = [record for record in store.records(KIND) if record.machine == machine_id()]
    for record in records:
        name, device = record.subject.get("name"), record.subject.get("device")
        if device != way.device:
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
    return Ceilings(rates["product"], rates["copy"], dispatch_s, last_level_cache_bytes() if way.device == "cpu" else 0)


def _subject(way: Way) -> dict[str, str | int | float]:
    return {"library": BACKENDS[way.backend].worker, "device": way.device}


def _of(way: Way, records: Sequence[Record]) -> list[Record]:
    here = (machine_id(), versions(way.backend))
    return [
        record
        for record in records
        if (record.machine, record.versions) == here
        and all(record.subject.get(name) == value for name, value in _subject(way).items())
    ]
