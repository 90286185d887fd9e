"""A training of this machine under its library's own profiler, or under ours of WebGPU, in the library's worker."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from lib.model.backends.base import Epoch, Event, Steps
from lib.model.backends.registry import BACKENDS
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import Row, Subject, endless_training
from lib.timing.profiling.request import PLAIN, PROFILED, NotMeasured
from lib.timing.profiling.traces.form import written

# Of each short epoch, and at most what is profiled: more than fit into a chunk where steps are Keras', so that one is
# profiled in the middle of an epoch.
EPOCH_STEPS = 256
WARM_UP_S = 0.3
PLAIN_S = 0.3  # of steps without the profiler, beside which its cost is seen
MAX_WARM_UP_S = 20.0
HELD = (
    "expected the profiler of {library} to be free, but another profile is being recorded in this process; end that one"
    " and press “Profile now” again"
)

# Starts it with a folder and the device; what is returned ends it and writes.
Profiler = Callable[[str, str], Callable[[], object]]


def record(backend: str, subject: Subject, folder: str) -> Iterator[Row | None]:
    """Train, and profile one chunk of steps, evaluation left out.

    Args:
        backend: Of the worker.
        subject: The step.
        folder: Where the profiler writes.

    Yields:
        None where it can be stopped; then rows of seconds a step, without the profiler (`PLAIN`) and with it
        (`PROFILED`), whose steps in a block are those that the profile is of.

    Raises:
        NotMeasured: Another profile is being recorded, or the library has no profiler.
    """
    library = next((name for name in _PROFILERS if name in BACKENDS[backend].needs), "")
    start = _PROFILERS.get(library)
    if start is None:
        raise NotMeasured(f"{BACKENDS[backend].label} has no profiler of its own; choose another backend")
    n = min(len(subject.data.x_train), EPOCH_STEPS * subject.batch_size)
    epoch_steps = n // subject.batch_size
    data = replace(subject.data, x_train=subject.data.x_train[:n], y_train=subject.data.y_train[:n])
    events = endless_training(backend, replace(subject, data=data))
    try:
        yield from _warm_up(events)
        plain = []
        while sum(step_s * steps for step_s, steps in plain) < PLAIN_S or len(plain) < 3:
            steps = _next(events)
            plain.append((steps.train_s / len(steps.losses), len(steps.losses)))
            _settle(events, steps, epoch_steps)
            yield None
        _past_the_beginning(events, epoch_steps)
        end = start(folder, subject.device)
        try:
            profiled = _next(events)
        finally:
            end()
        yield PLAIN, Measurement(tuple(step_s for step_s, _ in plain), 1, Ended.CAP), 1.0
        yield PROFILED, Measurement((profiled.train_s,), len(profiled.losses), Ended.CAP), 1.0
    finally:
        events.close()  # type: ignore[attr-defined]


def _warm_up(events: Iterator[Event]) -> Iterator[None]:
    """Steps for a while, and two epochs at least: the second compiles nothing more."""
    trained_s, epochs, until = 0.0, 0, time.monotonic() + MAX_WARM_UP_S
    while (trained_s < WARM_UP_S or epochs < 2) and time.monotonic() < until:
        event = next(events)
        trained_s += event.train_s if isinstance(event, Steps) else 0.0
        epochs += isinstance(event, Epoch)
        yield None


def _next(events: Iterator[Event]) -> Steps:
    return next(event for event in events if isinstance(event, Steps))


def _settle(events: Iterator[Event], last: Steps, epoch_steps: int) -> None:
    """Go to where steps come next: past the evaluation, where the epoch has ended."""
    if last.first_step + len(last.losses) >= epoch_steps:
        next(event for event in events if isinstance(event, Epoch))


def _past_the_beginning(events: Iterator[Event], epoch_steps: int) -> None:
    """Go past the first chunk of an epoch: with it, Keras builds its input pipeline, which is no part of a step.

    Where an epoch is one chunk, the next one begins.
    """
    while (chunk := _next(events)).first_step:
        pass
    _settle(events, chunk, epoch_steps)


def _with_jax(folder: str, _device: str) -> Callable[[], object]:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # a row for each call of Python would be most of what is measured
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise NotMeasured(HELD.format(library="JAX")) from error
    return jax.profiler.stop_trace


def _with_tensorflow(folder: str, _device: str) -> Callable[[], object]:
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
    try:
        tf.profiler.experimental.start(folder, options)
    except (tf.errors.AlreadyExistsError, tf.errors.UnavailableError) as error:
        raise NotMeasured(HELD.format(library="TensorFlow")) from error
    return tf.profiler.experimental.stop


def _with_torch(folder: str, _device: str) -> Callable[[], object]:
    import torch  # pyright: ignore[reportMissingImports]
    from torch._C._profiler import _ExperimentalConfig  # pyright: ignore[reportMissingImports]

    if torch.autograd._profiler_enabled():  # a second one would end the first without a word
        raise NotMeasured(HELD.format(library="PyTorch"))
    # Keras trains in a thread of its own.
    profiler = torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=True))
    profiler.__enter__()

    def end() -> None:
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace(str(Path(folder) / "trace.json"))

    return end


def _with_webgpu(folder: str, device: str) -> Callable[[], object]:
    from lib.model.backends.with_webgpu import gpu
    from lib.timing.profiling.traces.webgpu import Recorder

    recorder = Recorder(gpu(device), device)
    return lambda: (Path(folder) / "trace.json").write_text(written(recorder.trace()))


# By the library whose profiler sees a backend's work: the first that it needs.
_PROFILERS: dict[str, Profiler] = {
    "tensorflow": _with_tensorflow,
    "torch": _with_torch,
    "jax": _with_jax,
    "wgpu": _with_webgpu,
}
