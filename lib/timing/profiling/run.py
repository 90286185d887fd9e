"""Which experiments take a step apart, and what runs them in a worker.

`lib.timing.profiling.step_breakdown` computes the parts from their results. All experiments on a backend are measured
in
turns, block by block, so that a machine that drifts drifts for all of them.

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
* `loop up to part 0` and on: a step that is one compiled loop, up to each of its parts (`LOOP_PARTS`).
"""

import importlib
from collections.abc import Iterator
from types import ModuleType

from lib.model.backends.registry import BACKENDS
from lib.model.data.mnist import Data
from lib.model.spec import Network
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.remedies import RESIDENT
from lib.timing.profiling.harness import Row, StepExperiment, Subject, TrainedStep, interleaved
from lib.timing.profiling.request import (
    CALLS,
    CONVOLUTIONAL,
    LAUNCHES,
    ON_CARDS,
    PLAIN_STEP,
    RESNET,
    VARIANTS,
    VARIED,
    Examination,
)

# What a library's module calls the examination of a step that not all have.
_STEPS = {CONVOLUTIONAL: "convolutional_step", RESNET: "resnet_step", LAUNCHES: "launches"}
FEW_ROUNDS = 5  # of the variants of a step, of which there are a score


def examine(backend: str, device: str, examination: Examination, data: Data) -> Iterator[Row | None]:
    """Measure what an examination asks for, with this backend on this device.

    Yields:
        A row for each measurement (name, measurement, what one measured step stands for); None where it can be stopped.
    """
    subject = Subject(examination.network, examination.batch_size, data, device)
    if examination.kind == "ceilings":
        from lib.timing.profiling.peak_rates import probe

        yield from probe(backend, device)
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

        yield from measure_pipelines(backend, subject, examination.pipelines)
    elif examination.kind == "placement":
        from lib.timing.profiling.placement import measure_placement

        yield from measure_placement(subject)
    elif examination.kind == "trace":
        from lib.timing.profiling.traces.live import record

        yield from record(backend, subject, examination.folder)
    else:
        from lib.timing.profiling.traps import measure_traps

        yield from measure_traps(_module(backend).timed_step(subject), device)


def _module(backend: str) -> ModuleType:
    """What gives the steps of the backend's library to be measured: a module of this room."""
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
        yield "busy", Measurement(tuple(training.busy_s[1:]), 1, Ended.CAP), 1.0
    finally:
        for experiment in experiments.values():
            if isinstance(experiment, TrainedStep):
                experiment.close()
