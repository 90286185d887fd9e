"""Training with WebGPU, which reaches the graphics cards of every vendor: the same operations, launched in four ways.

The host waits after each operation; or submits a step at a time; or as many steps as fill a chunk; or launches one
kernel that makes them all. The images are copied to the device once, and each step finds its batch there by itself: the
device counts the steps, so that nothing but the launches has to be sent.

`device` is the kind of adapter, see `lib.model.hardware.webgpu`.
"""

# pyright: reportMissingImports=false
# `wgpu` is optional: it has no wheel for some systems.

import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import numpy as np

from lib.model.backends.base import (
    VALIDATION_SLICE,
    CannotTrain,
    Event,
    FirstCall,
    Parameters,
    epochs,
    initial_parameters,
    next_chunk,
)
from lib.model.backends.webgpu.description import MAX_FLOPS_IN_ONE_KERNEL, evaluation, step
from lib.model.backends.webgpu.execution import Execution, Images, OpenGpu, errors_in_one_line, gpu
from lib.model.data.mnist import Data
from lib.model.spec import Network, Training

Launch = Callable[[Execution, int], None]  # makes so many steps; one of `LAUNCHES`
FIRST_FLOPS = 5e8  # of the first steps together, before their pace is known


@lru_cache(maxsize=2)
def training_images(data: Data, device: str) -> Images:
    """On the device, copied there once."""
    return Images.upload(gpu(device), data.x_train, data.y_train)


@lru_cache(maxsize=2)
def validation_images(data: Data, device: str, slice_size: int) -> Images:
    """On the device, copied there once, and filled up to whole slices."""
    return Images.upload(gpu(device), data.x_validation, data.y_validation, multiple=slice_size)


def _train(
    launch: Launch,
    training: Training,
    data: Data,
    device: str = "discrete",
    parameters: Parameters | None = None,
    first_epoch: int = 0,
) -> Iterator[Event]:
    """See `lib.model.backends.base`.

    Raises:
        CannotTrain: The network, or its batch, is beyond the adapter's limits, or what one kernel should make.
    """
    with errors_in_one_line():
        yield from _events(launch, training, data, device, parameters, first_epoch)


def _events(
    launch: Launch, training: Training, data: Data, device: str, parameters: Parameters | None, first_epoch: int
) -> Iterator[Event]:
    clock = time.perf_counter
    started = clock()
    program, what = step(training.network, training.batch_size), _named(training)
    if launch is Execution.one_kernel and program.flops > MAX_FLOPS_IN_ONE_KERNEL:
        raise CannotTrain(
            f"one kernel is one workgroup, which is given at most {MAX_FLOPS_IN_ONE_KERNEL / 1e9:g} billion"
            f" operations a step, and {what} takes {program.flops / 1e9:.3g} billion; choose a smaller network or"
            " batch, or another way of launching"
        )
    on, n_steps = gpu(device), max(1, training.steps_per_epoch(len(data.x_train)))
    slice_size = _slice_size(on, training.network, len(data.x_validation))
    x, x_validation = training_images(data, device), validation_images(data, device, slice_size)
    run = Execution(on, program, x, n_steps, what)
    of_slice, n_slices = evaluation(training.network, slice_size), _slices(x_validation, slice_size)
    validation = Execution(on, of_slice, x_validation, n_slices, what)
    run.schedule(np.zeros(1))
    launch(run, 1)  # compiles the kernels, and wakes the device; all numbers are still zero
    validation.compile()
    run.set(parameters or initial_parameters(training.network, training.seed), training.learning_rate)
    on.wait()
    yield FirstCall(clock() - started)

    def chunk(_epoch: int, starts: np.ndarray, done: int, step_s: float | None) -> tuple[np.ndarray, float]:
        n = next_chunk(len(starts) - done, step_s)
        n = n if step_s is not None else min(n, max(1, int(FIRST_FLOPS / program.flops)))
        before = clock()
        if done == 0:
            run.schedule(starts)
        launch(run, n)
        on.wait()
        chunk_s = clock() - before
        return run.results(done, n)[:, 0], chunk_s

    validate = partial(_evaluate, validation, run, x_validation)
    yield from epochs(training, len(data.x_train), first_epoch, chunk, validate, run.parameters)


LAUNCHES: dict[str, Launch] = {
    "webgpu-operation": Execution.waiting_for_each_operation,
    "webgpu-step": Execution.one_submission_a_step,
    "webgpu-chunk": Execution.one_submission,
    "webgpu-kernel": Execution.one_kernel,
}
train_by_operation = partial(_train, LAUNCHES["webgpu-operation"])
train_by_step = partial(_train, LAUNCHES["webgpu-step"])
train_by_chunk = partial(_train, LAUNCHES["webgpu-chunk"])
train_in_one_kernel = partial(_train, LAUNCHES["webgpu-kernel"])


def _evaluate(validation: Execution, trained: Execution, x: Images) -> tuple[float, float]:
    """Mean loss and accuracy over all validation images, in slices, with the parameters as they are."""
    slice_size, n_slices = validation.program.batch_size, _slices(x, validation.program.batch_size)
    validation.copy_parameters(trained)
    validation.schedule(np.arange(n_slices) * slice_size)
    validation.one_submission(n_slices)
    loss, correct = validation.results(0, n_slices).astype(np.float64).sum(axis=0)
    return float(loss * slice_size / x.n), float(correct / x.n)


def _slices(x: Images, slice_size: int) -> int:
    return -(-x.n // slice_size)


def _slice_size(on: OpenGpu, network: Network, n_images: int) -> int:
    """Images that are evaluated at once: fewer where the adapter has no buffer for the usual number."""
    size = min(VALIDATION_SLICE, n_images)
    while size > 1 and evaluation(network, size).memory_bytes > on.largest_bytes:
        size = -(-size // 2)
    return size


def _named(training: Training) -> str:
    return f"a step of {'→'.join(map(str, training.network.widths))} at batch size {training.batch_size:,}"
