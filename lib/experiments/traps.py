"""Six wrong ways to time one step, each beside the right one, and how fast that step could be here."""

from collections.abc import Mapping, Sequence

from lib.backends.registry import ADAPTERS, ALL_DEVICES, DEFAULT, Runtime, Unavailable, unavailable
from lib.experiments.anatomy_of_a_step import AnatomyTask
from lib.experiments.peak_rates import ceiling_tasks
from lib.profiling.request import Examination
from lib.spec import Network
from lib.storage.records import Record
from lib.timing.measurement import Measurement

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


def tasks(device: str, batch_size: int) -> list[AnatomyTask]:
    """The device's peak rates, and the traps."""
    return [*ceiling_tasks([_runtime(device)]), task_of(device, batch_size)]


def measurements(task: AnatomyTask, records: Sequence[Record]) -> Mapping[str, Measurement]:
    """The latest valid measurement of each way to time the step, the right one included, by its name."""
    return {name: record.measurement for name, record in task.found(records).items()}
