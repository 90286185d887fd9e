"""Six wrong ways to time one step, each beside the right one, and how fast that step could be here."""

from collections.abc import Iterator, Mapping, Sequence

from lib.backends.registry import ADAPTERS, ALL_DEVICES, DEFAULT, Runtime, Unavailable, unavailable
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.experiments.peak_rates import measure_ceilings
from lib.profiling.request import Examination
from lib.spec import Network
from lib.storage.records import Record
from lib.storage.store import Store
from lib.timing.measurement import Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note
from lib.workers.queue import Request

NETWORK = Network((128,))


def devices() -> list[str]:
    """The devices on which the step can be timed here: JAX's, then WebGPU's."""
    return [device for device in ALL_DEVICES if unavailable(_runtime(device)) is None]


def no_adapter() -> Unavailable | None:
    """Why no step of WebGPU can be timed here; None where one can."""
    found = [unavailable(_runtime(device)) for device in ADAPTERS]
    return None if None in found else found[0]


def task_of(device: str, batch_size: int) -> AnatomyTask:
    """The traps as a task at a batch size, by the library that knows the device: JAX or WebGPU."""
    return AnatomyTask(_runtime(device), Examination("traps", NETWORK, batch_size))


def task_for(runtime: Runtime) -> AnatomyTask | None:
    """The traps at batch size 32 where this is the runtime that they are timed by on its device; else None."""
    return task_of(runtime.device, 32) if runtime == _runtime(runtime.device) else None


def _runtime(device: str) -> Runtime:
    return Runtime("webgpu-step" if device in ADAPTERS else DEFAULT, device)


def measure(
    task: AnatomyTask, complete: bool, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    """Measure the peak rates where they are missing, and the traps unless they are `complete`.

    Yields:
        The records of the traps, and notes on what is measured or waited for.

    Raises:
        WorkerDied: A worker ended while it measured; the text says what to do.
        TrainingFailed: The library could not be measured; the text says why.
    """
    yield from measure_ceilings([task.runtime], engine, store, cancel, request)
    yield from measure_tasks([] if complete else [task], engine, store, cancel, request)


def measurements(task: AnatomyTask, records: Sequence[Record]) -> Mapping[str, Measurement]:
    """The latest valid measurement of each way to time the step, the right one included, by its name."""
    return {name: record.measurement for name, record in task.found(records).items()}
