"""Training many networks at once: the article's sweep by each strategy, and growing numbers of networks per program.

Sweeps are timed whole and stored. Figures by number of networks derive from a few measured steps per program
(`lib.sweeps.measuring`), which are stored too, so that returning a slider to a position measures nothing again.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lib.formatting import counted
from lib.model.backends.base import Epoch
from lib.model.backends.packing import Shape
from lib.model.backends.registry import Runtime, device_count, unavailable, versions
from lib.model.spec import Network, Training
from lib.sweeps.measuring import ALL_BUT_THE_CPU, Attempts, StepTime, step_times
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import STRATEGIES, Finished, Limits, Options, Part, evaluation_flops, parts, step_flops, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Note, Progress, Restarted, Waiting, note_of, noted
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement, Watch

RATES = (0.001, 0.01, 0.1, 1.0, 10.0)  # the article's
COUNTS = tuple(2**k for k in range(11))
COUNTED_BY = ("sequential", "vmap", "sharded")
NETWORK = Network((128,))
SHARE_OF_MEMORY = 0.4


@dataclass(frozen=True)
class Method:
    """One way to run the article's sweep; `strategy` is a key of `STRATEGIES`."""

    key: str
    label: str
    color: str
    runtime: Runtime
    strategy: str

    @property
    def by_keras(self) -> bool:
        return self.runtime.backend == "keras-tensorflow"


def methods() -> list[Method]:
    """Return the methods that can run here; the article's Keras comes last because it takes minutes."""
    keras, numba, on_card = Runtime("keras-tensorflow"), Runtime("numba"), Runtime(device="gpu")
    found = [
        *(
            Method(key, f"JAX, {STRATEGIES[key].label}", STRATEGIES[key].color, Runtime(), key)
            for key in ("sequential", "processes", "vmap", "sharded", "stacks")
        ),
        *(
            Method(f"{key}-gpu", f"JAX, {STRATEGIES[key].label}, GPU", STRATEGIES[key].color, on_card, key)
            for key in ("sequential", "vmap")
        ),
        *(
            Method(f"numba-{key}", f"Numba, {STRATEGIES[key].label}", color, numba, key)
            for key, color in (("sequential", "#c4515c"), ("processes", "#c22f3d"), ("cores", "#c75a4a"))
        ),
        Method("keras-processes", "Keras, processes", "#978abf", keras, "processes"),
        Method("keras-sequential", "Keras, one after another", "#8a8f98", keras, "sequential"),
    ]
    return [method for method in found if unavailable(method.runtime) is None]


def compared(store: Store, epochs: int) -> dict[str, Record]:
    records = store.records(Kind.SWEEP)
    return {
        method.key: cached[-1]
        for method in methods()
        if (cached := current(records, Kind.SWEEP, {"method": method.key, "epochs": epochs}, method.runtime))
    }


def compare(
    todo: Sequence[Method], epochs: int, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    """Time the article's sweep of five learning rates once with each method: whole, warm, with compiled programs.

    A sweep that another run interrupted is timed again.

    Args:
        todo: Methods to time, even if already stored.
        epochs: Epochs of each of the five trainings, at batch size 32.
        engine: Trains them.
        store: Where records are stored; curves are not.
        cancel: Ends the comparison when set.
        request: Place in this machine's queue.

    Yields:
        Each method's wall seconds as they are stored, records of kind `FAILURE` for failures on a GPU, and notes on
        progress and waiting.
    """
    attempts = Attempts(ALL_BUT_THE_CPU)
    for method in todo:
        if cancel.is_set():
            return
        subject = {"method": method.key, "epochs": epochs}
        once = partial(_compare, method, epochs, engine, store, cancel, request)
        yield from attempts.marked(store, method.label, method.runtime, subject, once)


def _compare(
    method: Method, epochs: int, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    if method.by_keras:  # Keras compiles in every training, so only the library can be warmed up
        warm_up = [Item(Training(NETWORK, 0.1, 4096, 1, seed), method.runtime) for seed in range(2)]
    else:  # the same programs, so that nothing compiles while timed
        warm_up = _sweep(method, 1)
    doing = f"warming up {method.label}"
    yield Note(doing)
    yield from noted(updates(warm_up, engine, None, cancel, Options(method.strategy), request), doing)
    wall_s, watch = None, Watch()
    while wall_s is None and not cancel.is_set():
        watch = Watch(method.runtime.on_gpu)
        wall_s = yield from _timed(method, _sweep(method, epochs), engine, cancel, request)
    if wall_s is None:
        return
    measured = watch.marked(Measurement((wall_s,), 1, Ended.CAP))
    record = Record.of(Kind.SWEEP, {"method": method.key, "epochs": epochs}, measured, versions(method.runtime))
    store.add(record)
    yield record


def _sweep(method: Method, epochs: int) -> list[Item]:
    return [Item(Training(NETWORK, rate, 32, epochs), method.runtime) for rate in RATES]


def _timed(
    method: Method, items: Sequence[Item], engine: Engine, cancel: Cancel, request: Request
) -> Generator[Note, None, float | None]:
    """Return wall seconds of a sweep, without waiting in the queue; None if interrupted."""
    began, done, epochs = time.perf_counter(), 0, items[0].training.epochs
    for update in updates(items, engine, None, cancel, Options(method.strategy), request):
        if isinstance(update, Waiting | Restarted):
            if done:
                return None
            began = time.perf_counter()
        done += isinstance(update, Finished) or (isinstance(update, Progress) and isinstance(update.event, Epoch))
        if isinstance(update, Progress | Finished):
            yield Note(f"{method.label}: {done / (len(items) * (epochs + 1)):.0%}")
        elif (note := note_of(update, method.label)) is not None:  # type: ignore[arg-type]
            yield note
    return None if cancel.is_set() else time.perf_counter() - began


@dataclass(frozen=True)
class Point:
    """Seconds per epoch and network, for a strategy and a number of networks; or why that was not measured.

    `each_s` is NaN if `why_not` is not empty. `low_s` and `high_s` are the ends of its range; `disturbed` names other
    loads on the machine.
    """

    strategy: str
    device: str
    count: int
    each_s: float
    why_not: str = ""
    low_s: float = 0.0
    high_s: float = 0.0
    disturbed: tuple[str, ...] = ()


def saturation(
    most: int,
    batch_size: int,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    device: str,
    free_bytes: float,
    again: bool = False,
) -> Iterator[Point | Note]:
    """Measure seconds per epoch and network, for 1 to `most` networks in one program, and for sequential training.

    A strategy stops at the first number that needs more than `SHARE_OF_MEMORY` of `free_bytes`.

    Args:
        most: Largest number of networks; `COUNTS` up to it are measured.
        batch_size: Images per step.
        engine: Measures the steps.
        store: Where step times are looked up and stored.
        cancel: Ends the measurement when set.
        request: Place in this machine's queue.
        device: "cpu" or "gpu".
        free_bytes: Memory available to a training on the device.
        again: Measure stored step times again.

    Yields:
        A `Point` for each strategy and number, in the order of `COUNTED_BY`, and notes on progress and waiting.
    """
    for key in COUNTED_BY:
        n_devices = device_count(device) if key == "sharded" else 1
        if key == "sharded" and n_devices < 2:
            continue
        for count in [count for count in COUNTS if count <= most]:
            if cancel.is_set():
                return
            trainings = [Training(NETWORK, float(rate), batch_size, 1) for rate in np.geomspace(0.01, 0.3, count)]
            memory_bytes = Shape.of([NETWORK]).place_bytes(batch_size) * (count if key != "sequential" else 1)
            if memory_bytes > SHARE_OF_MEMORY * free_bytes:
                why_not = f"{count:,} networks need {memory_bytes / 1e9:.1f} GB of the {free_bytes / 1e9:.1f} GB free"
                yield Point(key, device, count, float("nan"), why_not)
                break
            if key != "sequential" and count < 2:
                continue
            # Sequential training runs the same program for any number, so it is measured again only once.
            repeat = again and (key != "sequential" or count == 1)
            doing = f"{counted(count, 'network')}, {STRATEGIES[key].label}"
            yield Note(doing)
            plan = parts(STRATEGIES[key], trainings, Limits(float("inf"), float("inf"), n_devices, 1.0))
            times = step_times(plan, engine, store, Runtime(device=device), cancel, request, repeat)
            if found := (yield from noted(times, doing)):
                yield _point(key, device, count, found)


def _point(strategy: str, device: str, count: int, found: Mapping[Part, StepTime]) -> Point:
    part, step_time = max(found.items(), key=lambda one: len(one[0].trainings))
    evaluation_s = evaluation_flops(part) / (step_flops(part) / step_time.step_s) / len(part.trainings)
    steps = part.trainings[0].steps_per_epoch() / (count if part.devices else 1)
    each_s, low_s, high_s = (
        step_s * steps + evaluation_s for step_s in (step_time.step_s, step_time.low_s, step_time.high_s)
    )
    return Point(strategy, device, count, each_s, "", low_s, high_s, step_time.disturbed)
