"""Which experiments take a step apart, and what runs them in a worker.

`lib.timing.profiling.step_breakdown` computes the parts from their results. All experiments on a backend are measured
in turns, block by block, so that a machine that drifts drifts for all of them.

* `step`: the training as it is, from the backend's own loop; `busy`: processor seconds of all cores in it, a step.
* `python`: the loop and what it does around the library's call, with that call left out.
* `call`: the library's call for a step, repeated on one batch that is ready; waited for only as training does.
* `returns`: the call for one hidden neuron and one image, until it returns.
* `fit-tiny`, `call-tiny`: training of that tiny network by `fit`, and the bare call in it: there the loop is the
  library's own, and cannot be run without the call.
* `transfer`, `transfer-base`: bringing a batch to where the arithmetic needs it, and the same with nothing to bring.
* `many`, `many-tiny`: many steps on one batch in a compiled loop (PyTorch: the calls of one step, on a card, timed by
  its events), of this network and of the tiny one; `many-on-device`: the same by the device's own clock, where WebGPU
  has one. NumPy, and PyTorch on a processor, work inside the call itself and need none of these.
"""

import importlib
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import ModuleType

from lib.model.backends.registry import BACKENDS
from lib.model.data.mnist import Data
from lib.model.hardware.nvidia import Busy, watched_activity
from lib.model.spec import Network
from lib.timing.prediction.remedies import RESIDENT
from lib.timing.profiling.harness import (
    Repeated,
    Row,
    SelfTimed,
    StepExperiment,
    Subject,
    TimedStep,
    TrainedStep,
    interleaved,
    row_of,
)
from lib.timing.profiling.request import (
    CALLS,
    CONVOLUTIONAL,
    LAUNCHES,
    ON_CARDS,
    PLAIN_STEP,
    REFERENCE,
    RESNET,
    TRAP_EPOCHS,
    TRAP_SAMPLES,
    TRAPS,
    VARIANTS,
    VARIED,
    Examination,
)

# What a library's module calls the examination of a step that not all have.
_STEPS = {CONVOLUTIONAL: "convolutional_step", RESNET: "resnet_step", LAUNCHES: "launches"}
FEW_ROUNDS = 5  # of the variants of a step, of which there are a score
EPOCH_S = 0.02  # of an epoch whose average counts the first call: short, so that a stop does not wait for it
IN_A_ROW = 50  # steps between two places where it can be stopped
BUSY_S = 4.0  # of which the watching thread leaves out the first second
PAUSED_S = 0.1  # away for longer, and the card was idle or somebody else's


def examine(backend: str, device: str, examination: Examination, data: Data) -> Iterator[Row | None]:
    """Measure what an examination asks for, with this backend on this device.

    Yields:
        A row for each measurement (name, measurement, what one measured step stands for); None where it can be stopped.
    """
    subject = Subject(examination.network, examination.batch_size, data, device)
    if examination.kind == "ceilings":
        from lib.timing.profiling.operations import measure_ceilings

        yield from measure_ceilings(backend, device)
    elif examination.kind == "parts":
        yield from _parts(backend, subject)
    elif examination.kind in VARIANTS.get(backend, ()):
        yield from interleaved({examination.kind: _module(backend).varied(backend, subject, examination.kind)})
    elif examination.kind in _STEPS:
        yield from getattr(_module(backend), _STEPS[examination.kind])(subject)
    elif examination.kind == CALLS:
        from lib.timing.profiling.cuda_calls import counted

        yield from counted(backend, subject)
    elif examination.kind == "takings":
        yield from interleaved(_takings(backend, data, device), FEW_ROUNDS)
    elif examination.kind == "operations":
        from lib.timing.profiling.operations import measure_operations

        yield from measure_operations(BACKENDS[backend].worker, subject)
    elif examination.operation is not None:
        from lib.timing.profiling.single_operations import measure_operation

        yield from measure_operation(BACKENDS[backend].worker, device, examination.operation)
    elif examination.kind == "pipelines":
        from lib.timing.profiling.input_pipeline import measure_pipelines

        if backend == "torch":
            from lib.timing.profiling import with_torch as library
        else:
            from lib.timing.profiling import with_tensorflow as library
        yield from measure_pipelines(library, subject, examination.pipelines)
    elif examination.kind == "placement":
        from lib.timing.profiling.with_tensorflow import measure_placement

        yield from measure_placement(subject)
    elif examination.kind == "trace":
        from lib.timing.profiling.traces.live import record

        yield from record(backend, subject, examination.folder)
    else:
        yield from measure_traps(_module(backend).timed_step(subject), device)


def _module(backend: str) -> ModuleType:
    return importlib.import_module(f"lib.timing.profiling.{BACKENDS[backend].module}")


def _takings(backend: str, data: Data, device: str) -> dict[str, StepExperiment]:
    """The plain step and each of its variants, at a few batch sizes; a batch that is brought stands for itself."""
    module, found = _module(backend), dict[str, StepExperiment]()
    variants = [one for one in VARIANTS[backend] if device != "cpu" or one not in ON_CARDS]
    if RESIDENT in variants:
        variants.remove(RESIDENT)
        found |= module.takings(data, device)
    for size in (one for one in VARIED if one <= len(data.x_train)):
        subject = Subject(Network((128,)), size, data, device)
        names = (PLAIN_STEP, *variants)
        found |= {f"{name} {size}": module.varied(backend, subject, name) for name in names}
    return found


def _parts(backend: str, subject: Subject) -> Iterator[Row | None]:
    training = TrainedStep(backend, subject)
    experiments: dict[str, StepExperiment] = {"step": training, **_module(backend).experiments(backend, subject)}
    try:
        yield from interleaved(experiments)
        yield row_of("busy", training.busy_s[1:])
    finally:
        for experiment in experiments.values():
            if isinstance(experiment, TrainedStep):
                experiment.close()


def measure_traps(step: TimedStep, device: str) -> Iterator[Row | None]:
    """Measure six ways to mistime a training step, and the right one beside each.

    There is one reference for all: the step in blocks that end when its result has arrived. Every round takes a block
    of it and a value by each wrong way, in turns, so that a wrong way's value and the reference of its round are of the
    same state of the machine.

    On a graphics card the same code shows larger gaps: more is queued, and transfers are real.

    Args:
        step: What is timed.
        device: Where it runs.

    Yields:
        None after each block; then a row for `REFERENCE` and each of `TRAPS`, in seconds of a step. On a graphics card
        also rows of `occupancy/…`, which are shares.
    """
    reference = Repeated(lambda: step.wait(step.call()))
    wrong: tuple[StepExperiment, ...] = (
        Repeated(step.call, step.wait, returns=True, at_most=step.queued),
        FirstCallCounted(step),
        SelfTimed(lambda: best_of(step, 1)),
        SelfTimed(lambda: best_of(step, TRAP_SAMPLES)),
        Repeated(step.with_transfer),
        SelfTimed(lambda: busy_s(reference)),
    )
    yield from interleaved({REFERENCE: reference, **dict(zip(TRAPS, wrong, strict=True))})
    if device == "gpu":
        yield from _occupancy(step)


@dataclass
class FirstCallCounted:
    """The average of short epochs of a program that was never compiled before, with the first call counted."""

    step: TimedStep

    def prepare(self) -> None:
        self._steps = TRAP_EPOCHS * max(4, round(EPOCH_S / best_of(self.step, 4)))

    def block(self) -> float:
        call, last = self.step.fresh(), None
        began = time.perf_counter()
        for _ in range(self._steps):
            last = call()
        self.step.wait(last)
        return (time.perf_counter() - began) / self._steps


def best_of(step: TimedStep, samples: int) -> float:
    """Seconds of the quickest of so many single steps in a row, each timed by itself."""
    found_s = []
    if samples == 1:
        time.sleep(0.002)  # the pause of somebody who tries it by hand
    for _ in range(samples):
        began = time.perf_counter()
        step.wait(step.call())
        found_s.append(time.perf_counter() - began)
    return min(found_s)


def busy_s(reference: Repeated) -> float:
    """Processor seconds of all cores in a step: what a monitor shows as busy, and the view compares with arithmetic."""
    used_s, wall_s = time.process_time(), time.perf_counter()
    a_step_s = reference.block()
    used_s, wall_s = time.process_time() - used_s, time.perf_counter() - wall_s
    return used_s / wall_s * a_step_s


def _occupancy(step: TimedStep) -> Iterator[Row | None]:
    """Shares, not seconds: what `nvidia-smi` shows while steps run, and the chip's own counters (from Hopper on)."""
    while (busy := (yield from _watched(step))) is None:
        pass  # it was paused
    if busy.utilisations:
        yield row_of("occupancy/utilisation", busy.utilisations)
    if busy.activity is not None:
        yield row_of("occupancy/activity", [busy.activity.sm_activity])
        yield row_of("occupancy/warps", [busy.activity.sm_occupancy])


def _watched(step: TimedStep) -> Generator[None, None, Busy | None]:
    """Keep the card at work for `BUSY_S`; the value is how busy it was, None where others had their turn meanwhile."""
    until = time.perf_counter() + BUSY_S
    with watched_activity() as busy:
        running = [step.call() for _ in range(IN_A_ROW)]
        while (before := time.perf_counter()) < until:
            yield None
            if time.perf_counter() - before > PAUSED_S:
                return None
            # Before the others are waited for: the card never waits for us.
            queued = [step.call() for _ in range(IN_A_ROW)]
            step.wait(running)
            running = queued
        step.wait(running)
    return busy
