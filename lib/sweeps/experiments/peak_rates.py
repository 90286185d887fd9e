"""This machine's peak rates, measured once by each library and stored; `lib.timing.roofline` turns them into floors."""

from collections.abc import Iterable, Iterator, Sequence

from lib.model.backends.registry import BACKENDS, PRECISIONS, Runtime
from lib.model.hardware.machine import last_level_cache_bytes, machine_id
from lib.sweeps.experiments.anatomy_of_a_step import CEILINGS, AnatomyTask, measure_tasks
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request, Ticket
from lib.timing.profiling.request import Examination
from lib.timing.roofline import Ceilings


def measure_ceilings(
    runtimes: Sequence[Runtime], engine: Engine, store: Store, cancel: Cancel, request: Request | Ticket | None = None
) -> Iterator[Record | Note]:
    """Measure the peak rates that are not stored yet, once for each library and device, and store them.

    A stop loses nothing that was measured before it. A library that fails is marked, and what needs no peak rates of it
    goes on: see `lib.sweeps.experiments.failures`.

    Args:
        runtimes: Whose libraries and devices are measured.
        engine: Runs the examinations.
        store: Where the records go.
        cancel: Ends the measurement when it is set.
        request: Place in the queue; None for one of its own.

    Yields:
        Notes on what is measured or waited for, and records of kind `FAILURE`; the others are in the store alone.
    """
    libraries = {runtime.process: runtime for runtime in runtimes}
    asked, cached = ceiling_tasks(libraries.values()), store.records(Kind.CEILING)
    for event in measure_tasks([task for task in asked if not task.complete(cached)], engine, store, cancel, request):
        if isinstance(event, Note) or event.kind == Kind.FAILURE:
            yield event


def ceiling_tasks(runtimes: Iterable[Runtime]) -> list[AnatomyTask]:
    """The peak rates of these runtimes' libraries, as tasks."""
    return [AnatomyTask(runtime, Examination(CEILINGS)) for runtime in runtimes]


def ceilings(runtime: Runtime, store: Store) -> Ceilings | None:
    """The best matrix product and copy of any library on the runtime's device, and each backend's dispatch time.

    None where a product or a copy has not been measured on this machine. The size of the last-level cache is a card's
    L2 on a GPU, as its driver said when the rates were measured; 0 where it is not known.
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


def product_rates(device: str, store: Store) -> dict[str, float]:
    """The best matrix product of any library on a device of this machine, in FLOP/s, by precision; empty for none."""
    known = [record for record in store.records(Kind.CEILING) if record.machine == machine_id()]
    found = {precision: best_rate(known, device, "product", precision) for precision in PRECISIONS}
    return {precision: rate for precision, rate in found.items() if rate}


def best_rate(records: Iterable[Record], device: str, name: str, precision: str = PRECISIONS[0]) -> float | None:
    """The highest rate that any library reaches on a device; None without a record of it.

    Args:
        records: Of any kind; those of peak rates are used.
        device: "cpu" or "gpu".
        name: "product", in FLOP/s, or "copy", in bytes/s.
        precision: Of the products.
    """
    rates = (
        float(one.subject["work"]) / float(min(one.measurement.step_s))
        for one in records
        if one.kind == Kind.CEILING and one.is_about({"name": name, "device": device, "precision": precision})
    )
    return max(rates, default=None)
