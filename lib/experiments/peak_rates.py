"""This machine's peak rates, measured once by each library and stored; `lib.timing.roofline` turns them into floors."""

from collections.abc import Iterable, Iterator, Sequence

from lib.backends.registry import BACKENDS, Runtime, versions
from lib.experiments.anatomy_of_a_step import stored
from lib.hardware.machine import last_level_cache_bytes, machine_id
from lib.profiling.request import Examination
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.roofline import Ceilings
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note
from lib.workers.queue import Request


def measure_ceilings(
    runtimes: Sequence[Runtime], engine: Engine, store: Store, cancel: Cancel, request: Request | None = None
) -> Iterator[Note]:
    """Measure the peak rates that are not stored yet, once for each library and device, and store them.

    A stop loses nothing that was measured before it.

    Args:
        runtimes: Whose libraries and devices are measured.
        engine: Runs the examinations.
        store: Where the records go.
        cancel: Ends the measurement when it is set.
        request: Place in the queue; None for one of its own.

    Yields:
        Notes on what is measured or waited for; the records are in the store alone.

    Raises:
        WorkerDied: A worker ended while it measured; the text says what to do.
        TrainingFailed: A library could not be measured; the text says why.
    """
    cached = {
        (r.machine, r.versions, r.subject.get("library"), r.subject.get("device")) for r in store.records(Kind.CEILING)
    }
    libraries = {(BACKENDS[runtime.backend].worker, runtime.device): runtime for runtime in runtimes}
    for number, ((library, device), runtime) in enumerate(libraries.items(), 1):
        made_by = versions(runtime.backend)
        if cancel.is_set() or (machine_id(), made_by, library, device) in cached:
            continue
        doing = f"what this machine can reach at best: {runtime.label}, {number} of {len(libraries)} libraries"
        messages = engine.examine(runtime, Examination("ceilings"), cancel, request)
        events = stored(messages, store, Kind.CEILING, {"library": library, "device": device}, made_by, doing)
        yield from (event for event in events if isinstance(event, Note))


def ceilings(runtime: Runtime, store: Store) -> Ceilings | None:
    """The best matrix product and copy of any library on the runtime's device, and each backend's dispatch time.

    None where a product or a copy has not been measured on this machine. The size of the last-level cache is 0 on a
    GPU.
    """
    known = [record for record in store.records(Kind.CEILING) if record.machine == machine_id()]
    product, copy = (best_rate(known, runtime.device, name) for name in ("product", "copy"))
    dispatch_s = {
        backend.key: one.measurement.median_s
        for one in known
        if (one.subject.get("name"), one.subject.get("device")) == ("dispatch", runtime.device)
        for backend in BACKENDS.values()
        if backend.worker == one.subject["library"]
    }
    if not product or not copy:
        return None
    return Ceilings(product, copy, dispatch_s, last_level_cache_bytes() if runtime.device == "cpu" else 0)


def best_rate(records: Iterable[Record], device: str, name: str) -> float | None:
    """The highest rate that any library reaches on a device; None without a record of it.

    Args:
        records: Of any kind; those of peak rates are used.
        device: "cpu" or "gpu".
        name: "product", in FLOP/s, or "copy", in bytes/s.
    """
    rates = (
        float(one.subject["work"]) / float(min(one.measurement.step_s))
        for one in records
        if one.kind == Kind.CEILING and (one.subject.get("device"), one.subject.get("name")) == (device, name)
    )
    return max(rates, default=None)
