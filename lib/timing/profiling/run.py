"""Run measurements in a worker, such as the experiments that profile a training step.

`lib.timing.profiling.request.split` computes the parts of a step from these experiments. All experiments on a backend
take turns, block by block, so that drift of the machine affects all alike.

* `step`: the real training, in the backend's own loop; `busy`: its processor seconds per step, over all cores.
* `python`: the loop and its work around the library's call, without that call.
* `call`: the library's call for a step, repeated on one batch that is ready; it waits only where training does.
* `returns`: the call for one hidden neuron and one image, until it returns.
* `fit-tiny`, `call-tiny`: training that tiny network by `fit`, and the bare call in it. `fit` is the library's own
  loop, and cannot run without the call.
* `transfer`, `transfer-base`: moving a batch to where the arithmetic needs it, and the same with nothing to move.
* `many`, `many-tiny`: many steps on one batch in a compiled loop, of this network and of the tiny one (for PyTorch on a
  card: the calls of one step, timed by the card's events). NumPy, and PyTorch on a processor, work inside the call
  itself and need none of these.

A step's CUDA calls are counted in a fresh process, `python -m lib.timing.profiling.run BACKEND BATCH_SIZE HIDDEN
LIBRARY FILE`, whose CUDA driver loads a compiled library of CUPTI callbacks (`cuda_calls.c`). One epoch warms up; then
the calls of the next epoch's steps count, without its evaluation.
"""

import ctypes
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from lib.model.backends.base import Epoch, Event, FirstCall, Steps
from lib.model.backends.registry import BACKENDS, load_train
from lib.model.data.mnist import Data, aligned
from lib.model.hardware.nvidia import Busy, watched_activity
from lib.model.spec import N_PIXELS, N_TRAIN, Network, Training
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.remedies import RESIDENT
from lib.timing.profiling.harness import (
    Row,
    StepExperiment,
    Subject,
    TimedStep,
    endless_training,
    in_a_fresh_process,
    interleaved,
    measure_pipeline,
    repeated,
    row_of,
    self_timed,
    trained_step,
)
from lib.timing.profiling.operations import (
    measure_ceilings,
    measure_models,
    measure_operation,
    measure_operations,
)
from lib.timing.profiling.request import (
    CONVOLUTIONAL,
    LAUNCHES,
    ON_CARDS,
    PLAIN,
    PLAIN_STEP,
    PROFILED,
    REFERENCE,
    RESNET,
    TRAP_EPOCHS,
    TRAP_SAMPLES,
    TRAPS,
    VARIANTS,
    VARIED,
    Examination,
    NotMeasured,
)

# Names of optional functions in the libraries' modules, by kind of examination.
_STEPS = {CONVOLUTIONAL: "convolutional_step", RESNET: "resnet_step", LAUNCHES: "launches"}
FEW_ROUNDS = 5  # for the variants of a step, because there are about twenty
EPOCH_S = 0.02  # for an epoch whose average counts the first call: short, so that a run can be stopped soon
IN_A_ROW = 50  # steps between two yields
BUSY_S = 4.0  # including a first second, which the watching thread ignores
PAUSED_S = 0.1  # after a longer pause, the card may have been idle or used by other work


def examine(backend: str, device: str, examination: Examination, data: Data) -> Iterator[Row | None]:
    """Carry out an examination with this backend on this device.

    Returns:
        None wherever the caller may stop; a row for each measurement (see `Row`).
    """
    subject = Subject(examination.network, examination.batch_size, data, device)
    worker = BACKENDS[backend].worker
    if examination.operation is not None:
        return measure_operation(worker, device, examination.operation)
    if examination.pipeline is not None:
        library = importlib.import_module(f"lib.timing.profiling.with_{backend.removeprefix('keras-')}")
        return measure_pipeline(library.feed, subject, examination.pipeline)
    match examination.kind:
        case "ceilings":
            return measure_ceilings(backend, device)
        case "parts":
            return _parts(backend, subject)
        case "calls":
            return counted(backend, subject)
        case "takings":
            return interleaved(_takings(backend, data, device), FEW_ROUNDS)
        case "operations":
            return measure_operations(worker, subject)
        case "placement":
            return importlib.import_module("lib.timing.profiling.with_tensorflow").measure_placement(subject)
        case "model":
            return measure_models(subject)
        case "traps":
            return measure_traps(_module(backend).timed_step(subject), device)
        case "trace":
            return record(backend, subject, examination.folder)
        case kind if kind in _STEPS:
            return getattr(_module(backend), _STEPS[kind])(subject)
        case variant:
            return interleaved({variant: _module(backend).varied(backend, subject, variant)})


def _module(backend: str) -> ModuleType:
    return importlib.import_module(f"lib.timing.profiling.{BACKENDS[backend].module}")


def _takings(backend: str, data: Data, device: str) -> dict[str, StepExperiment]:
    module = _module(backend)
    variants = [one for one in VARIANTS[backend] if device != "cpu" or one not in ON_CARDS]
    # Of `RESIDENT`, only taking the batch is measured, not the whole step.
    found: dict[str, StepExperiment] = module.takings(data, device) if RESIDENT in variants else {}
    for size in (one for one in VARIED if one <= len(data.x_train)):
        subject = Subject(Network((128,)), size, data, device)
        names = [PLAIN_STEP, *(one for one in variants if one != RESIDENT)]
        found |= {f"{name} {size}": module.varied(backend, subject, name) for name in names}
    return found


def _parts(backend: str, subject: Subject) -> Iterator[Row | None]:
    worked_s: list[float] = []
    experiments = {"step": trained_step(backend, subject, worked_s)} | _module(backend).experiments(backend, subject)
    try:
        yield from interleaved(experiments)
        yield row_of("busy", worked_s[1:])
    finally:
        for experiment in experiments.values():
            experiment.close()


def measure_traps(step: TimedStep, device: str) -> Iterator[Row | None]:
    """Measure six ways to mistime a training step, along with the correct way.

    The common reference is the step in blocks that end when its result has arrived. Every round measures, in turns, one
    block of the reference and one value by each wrong way, so that all see the same state of the machine. On a graphics
    card the same code shows larger gaps, because more is queued and transfers are real.

    Args:
        step: The step to time.
        device: The device that runs it.

    Yields:
        None after each block; then a row for `REFERENCE` and each of `TRAPS`, in seconds per step. On a graphics card
        also rows `occupancy/…`, which are shares.
    """
    reference = repeated(lambda: step.wait(step.call()))
    wrong: tuple[StepExperiment, ...] = (
        repeated(step.call, step.wait, returns=True, at_most=step.queued),
        first_call_counted(step),
        self_timed(lambda: best_of(step, 1)),
        self_timed(lambda: best_of(step, TRAP_SAMPLES)),
        repeated(step.with_transfer),
        self_timed(lambda: busy_s(reference)),
    )
    yield from interleaved({REFERENCE: reference, **dict(zip(TRAPS, wrong, strict=True))})
    if device == "gpu":
        yield from _occupancy(step)


def first_call_counted(step: TimedStep) -> StepExperiment:
    """Measure the average step in short epochs of a never compiled program, counting the first call."""
    steps = TRAP_EPOCHS * max(4, round(EPOCH_S / best_of(step, 4)))
    yield 0.0
    while True:
        call, last = step.fresh(), None
        began = time.perf_counter()
        for _ in range(steps):
            last = call()
        step.wait(last)
        yield (time.perf_counter() - began) / steps


def best_of(step: TimedStep, samples: int) -> float:
    """Return the seconds of the quickest of `samples` consecutive steps, each timed separately."""
    found_s = []
    if samples == 1:
        time.sleep(0.002)  # imitates the pause of trying it by hand
    for _ in range(samples):
        began = time.perf_counter()
        step.wait(step.call())
        found_s.append(time.perf_counter() - began)
    return min(found_s)


def busy_s(reference: StepExperiment) -> float:
    """Return a step's processor seconds over all cores, which a system monitor shows as busy."""
    used_s, wall_s = time.process_time(), time.perf_counter()
    a_step_s = next(reference)
    used_s, wall_s = time.process_time() - used_s, time.perf_counter() - wall_s
    return used_s / wall_s * a_step_s


def _occupancy(step: TimedStep) -> Iterator[Row | None]:
    """Yield rows of shares, not seconds: utilisation by `nvidia-smi`, and the chip's own counters (from Hopper on)."""
    while (busy := (yield from _watched(step))) is None:
        pass  # it was paused
    if busy.utilisations:
        yield row_of("occupancy/utilisation", busy.utilisations)
    if busy.activity is not None:
        for name, share in zip(("activity", "warps"), busy.activity, strict=True):
            yield row_of(f"occupancy/{name}", [share])


def _watched(step: TimedStep) -> Generator[None, None, Busy | None]:
    """Keep the card busy for `BUSY_S`, and return how busy it was; None if other work ran meanwhile."""
    until = time.perf_counter() + BUSY_S
    with watched_activity() as busy:
        running = [step.call() for _ in range(IN_A_ROW)]
        while (before := time.perf_counter()) < until:
            yield None
            if time.perf_counter() - before > PAUSED_S:
                return None
            # Queue before waiting for the earlier steps, so that the card never waits for the host.
            queued = [step.call() for _ in range(IN_A_ROW)]
            step.wait(running)
            running = queued
        step.wait(running)
    return busy


SOURCE = Path(__file__).with_name("cuda_calls.c")
LIMIT_S = 90.0  # for the counting process
NOT_BUILT = "a step's CUDA calls cannot be counted: "
# Locations of CUPTI: in CUDA's own folder, in the CUDA 13 wheels that PyTorch and JAX depend on, in Triton.
_IN_CUDA = ("include", "extras/CUPTI/include", "lib64", "extras/CUPTI/lib64", "lib")
_IN_WHEELS = ("nvidia/cu13/include", "nvidia/cu13/lib", "nvidia/cuda_cupti/include", "nvidia/cuda_cupti/lib")
_IN_TRITON = ("backends/nvidia/include", "backends/nvidia/lib/cupti")


def counted(backend: str, subject: Subject) -> Iterator[Row | None]:
    """Count the calls of an epoch's steps in a fresh process.

    Args:
        backend: Key of a backend that trains on a card.
        subject: The step.

    Yields:
        None while the process runs, so that the caller can stop it; then a row for each function, such as
        `runtime/cudaLaunchKernel`: its number of calls, and the number of steps that made them.

    Raises:
        NotMeasured: The library cannot be built.
        RuntimeError: CUPTI does not count, or the process failed; the text says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        library, counts = build(Path(folder)), Path(folder) / "counts"
        yield None
        hidden = subject.network.label
        arguments = (backend, str(subject.batch_size), hidden, str(library), str(counts))
        command = [sys.executable, "-m", "lib.timing.profiling.run", *arguments]
        environment = os.environ | {"CUDA_INJECTION64_PATH": str(library)}
        yield from in_a_fresh_process(command, environment, LIMIT_S, f"{NOT_BUILT}the process")
        steps = N_TRAIN // subject.batch_size
        for line in counts.read_text().splitlines():
            interface, name, calls = line.split()
            yield row_of(f"{interface}/{name}", [float(calls)], steps)


def build(folder: Path) -> Path:
    """Compile the counting library into a folder, and return its path.

    Raises:
        NotMeasured: There is no compiler or no CUPTI, or compilation fails.
    """
    compiler = shutil.which("nvcc") or shutil.which("gcc")
    if compiler is None:
        raise NotMeasured(f"{NOT_BUILT}expected nvcc or gcc on the path, got neither; install one")
    places = _places()
    headers = [place for place in places if (place / "cupti.h").is_file()]
    libraries = [file for place in places for file in sorted(place.glob("libcupti.so*"))]
    if not headers or not libraries:
        raise NotMeasured(
            f"{NOT_BUILT}expected CUPTI's header and library next to CUDA's, got {len(headers)} and {len(libraries)};"
            " install cuda-cupti"
        )
    made, here = folder / "libcuda_calls.so", libraries[0]
    linked = ["-fPIC", f"-Wl,-rpath,{here.parent}"]
    if Path(compiler).name == "nvcc":
        linked = [word for option in linked for word in ("-Xcompiler", f'"{option}"')]
    includes = [f"-I{place}" for place in places if any((place / name).is_file() for name in ("cupti.h", "cuda.h"))]
    command = [compiler, "-shared", "-O2", *linked, *includes, "-o", str(made), str(SOURCE), str(here)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise NotMeasured(f"{NOT_BUILT}{Path(compiler).name} exited with {done.returncode} ({last}); reinstall CUDA")
    return made


def _places() -> list[Path]:
    """Return the folders that may contain CUPTI's header and library, CUDA's own first."""
    homes = [os.environ.get("CUDA_HOME", ""), *(f"/usr/local/cuda{end}" for end in ("", "-13", "-13.0"))]
    triton = importlib.util.find_spec("triton")
    of_triton = list(triton.submodule_search_locations or []) if triton else []
    within = [(homes, _IN_CUDA), (sys.path, _IN_WHEELS), (of_triton, _IN_TRITON)]
    found = [Path(root, part) for roots, parts in within for root in roots if root for part in parts]
    return [place for place in found if place.is_dir()]


def steps_of_an_epoch(backend: str, batch_size: int, hidden: str, device: str = "gpu") -> Iterator[str]:
    """Train two epochs; yield `begins` before the second, and `ends` after the second's last step."""
    rng = np.random.default_rng(0)
    x, y = aligned((N_TRAIN, N_PIXELS), np.float32), rng.integers(0, 10, N_TRAIN, np.int32)
    x[:] = rng.random((1, N_PIXELS), np.float32)
    data = Data(x, y, x[:1000], y[:1000], x[:1000], y[:1000], source="made up", digest="made up")
    training, steps = Training(Network.parse(hidden), 1e-6, batch_size, 2), None
    for event in load_train(backend)(training, data, device):
        if isinstance(event, Epoch):
            steps = 0
            yield "begins"
        elif isinstance(event, Steps) and steps is not None:
            steps += len(event.losses)
            if steps >= N_TRAIN // batch_size:
                yield "ends"
                return


def main(backend: str, batch_size: str, hidden: str, library: str, path: str) -> None:
    """Train, and write the counts to `path`."""
    calls = ctypes.CDLL(library)
    for moment in steps_of_an_epoch(backend, int(batch_size), hidden):
        if moment == "begins" and not calls.InitializeInjection():  # the driver has usually called it already
            raise SystemExit("expected CUPTI to count, but it refuses; end other profilers, or run as root")
        if moment == "begins":
            calls.clear_counts()
        elif calls.write_counts(path.encode()):
            raise SystemExit(f"cannot write {os.path.basename(path)}; free some disk space")


# Steps of each short epoch, and the most that are profiled. More than one chunk of Keras' steps, so that a chunk in the
# middle of an epoch is profiled.
EPOCH_STEPS = 256
WARM_UP_S = 0.3
PLAIN_S = 0.3  # of steps without the profiler, to show its cost
MAX_WARM_UP_S = 20.0
# Profiles what runs inside it, and writes into a folder.
Profiler = Callable[[str], AbstractContextManager]


def record(backend: str, subject: Subject, folder: str) -> Iterator[Row | None]:
    """Train, and profile one chunk of steps without evaluation.

    Args:
        backend: The worker's backend, whose library has a profiler.
        subject: The step.
        folder: Where the profiler writes.

    Yields:
        None wherever the caller may stop; then rows of seconds per step, without the profiler (`PLAIN`) and with it
        (`PROFILED`). A block of `PROFILED` has the steps in the profile.
    """
    profiler = next(one for library, one in _PROFILERS.items() if library in BACKENDS[backend].needs)
    n = min(len(subject.data.x_train), EPOCH_STEPS * subject.batch_size)
    epoch_steps = n // subject.batch_size
    data = replace(subject.data, x_train=subject.data.x_train[:n], y_train=subject.data.y_train[:n])
    events = endless_training(backend, replace(subject, data=data))
    try:
        yield from _warm_up(events)
        plain: list[Steps] = []
        while sum(one.train_s for one in plain) < PLAIN_S or len(plain) < 3:
            plain.append(_next(events))
            _settle(events, plain[-1], epoch_steps, subject.training.epochs)
            yield None
        _past_the_beginning(events, epoch_steps, subject.training.epochs)
        with profiler(folder):
            profiled = _next(events)
        yield row_of(PLAIN, (one.train_s / len(one.losses) for one in plain))
        yield PROFILED, Measurement((profiled.train_s,), len(profiled.losses), Ended.CAP), 1.0
    finally:
        events.close()  # type: ignore[attr-defined]


def _warm_up(events: Iterator[Event]) -> Iterator[None]:
    """Train for `WARM_UP_S` and at least two epochs, because nothing is compiled after the first."""
    trained_s, epochs, until = 0.0, 0, time.monotonic() + MAX_WARM_UP_S
    while (trained_s < WARM_UP_S or epochs < 2) and time.monotonic() < until:
        event = next(events)
        trained_s += event.train_s if isinstance(event, Steps) else 0.0
        epochs += isinstance(event, Epoch)
        yield None


def _next(events: Iterator[Event]) -> Steps:
    return next(event for event in events if isinstance(event, Steps))


def _settle(events: Iterator[Event], last: Steps, epoch_steps: int, epochs: int) -> None:
    """Advance to the next steps, past the evaluation if the epoch has ended, and past the first call of the next
    training if all epochs have.
    """
    if last.first_step + len(last.losses) >= epoch_steps:
        ended = next(event for event in events if isinstance(event, Epoch))
        if ended.epoch == epochs - 1:
            next(event for event in events if isinstance(event, FirstCall))


def _past_the_beginning(events: Iterator[Event], epoch_steps: int, epochs: int) -> None:
    """Skip the first chunk of an epoch, in which Keras builds its input pipeline; that is not part of a step.

    If an epoch is one chunk, continue with the next epoch.
    """
    while (chunk := _next(events)).first_step:
        pass
    _settle(events, chunk, epoch_steps, epochs)


def _with_jax(folder: str) -> AbstractContextManager:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # tracing each Python call would dominate the measurement
    return jax.profiler.trace(folder, profiler_options=options)


def _with_tensorflow(folder: str) -> AbstractContextManager:
    import tensorflow as tf

    return tf.profiler.experimental.Profile(folder, tf.profiler.experimental.ProfilerOptions(python_tracer_level=0))


@contextmanager
def _with_torch(folder: str) -> Iterator[None]:
    import torch  # pyright: ignore[reportMissingImports]
    from torch._C._profiler import _ExperimentalConfig  # pyright: ignore[reportMissingImports]

    # Keras trains in its own thread.
    with torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profiler:
        yield
    profiler.export_chrome_trace(str(Path(folder) / "trace.json"))


# By library, in order of preference: the first that a backend needs is used, because its profiler sees the work.
_PROFILERS: dict[str, Profiler] = {"tensorflow": _with_tensorflow, "torch": _with_torch, "jax": _with_jax}


if __name__ == "__main__":
    main(*sys.argv[1:])
