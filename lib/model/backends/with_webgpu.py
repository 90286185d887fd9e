"""Training with WebGPU, which reaches every vendor's graphics cards: the same operations, launched in four ways.

The host waits after each operation, submits step by step, submits all steps of a chunk, or launches one kernel that
runs them all. The images are copied to the device once, and each step finds its batch there: the device counts the
steps, so the host sends nothing but the launches.

`device` is the kind of adapter, see `lib.model.hardware.webgpu`.
"""

# pyright: reportMissingImports=false
# `wgpu` is optional: it has no wheel for some systems.

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import wgpu

from lib.model.backends.base import (
    VALIDATION_SLICE,
    CannotTrain,
    Event,
    Loop,
    Parameters,
    backend,
    next_chunk,
)
from lib.model.backends.webgpu import (
    BUFFERS,
    MAX_FLOPS_IN_ONE_KERNEL,
    NOTHING,
    OPERATION_BYTES,
    SOFTWARE_TURNS,
    Program,
    evaluation,
    sources,
    step,
    turns,
)
from lib.model.data.mnist import Data
from lib.model.hardware.webgpu import SOFTWARE, open_adapter
from lib.model.spec import Network, Training

_STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
_LIMITS = ("max-storage-buffer-binding-size", "max-buffer-size")
FIRST_FLOPS = 5e8  # for the first steps together, before their pace is known


class OpenGpu:
    """An open adapter, with the kernels compiled for it.

    Raises:
        CannotTrain: The driver does not compile a kernel; the text quotes it.
    """

    def __init__(self, kind: str) -> None:
        self.most_turns = SOFTWARE_TURNS if kind == SOFTWARE else None
        adapter = open_adapter(kind)
        self.name: str = adapter.info["device"]
        limits = {name: adapter.limits[name] for name in _LIMITS}
        self.device = adapter.request_device_sync(required_limits=limits)
        self.queue = self.device.queue
        self.largest_bytes: int = min(limits.values())  # limit for a kernel's buffer
        uniform, shared = {"type": "uniform"}, [{"type": one} for one in BUFFERS.values()]
        self.shared = self._layout(shared)
        self.one_operation = self._layout([uniform | {"has_dynamic_offset": True}])
        self.all_operations = self._layout([{"type": "read-only-storage"}, uniform])
        self._modules: dict[str, Any] = {}
        self._pipelines: dict[str, Any] = {}

    def pipeline(self, kernel: str) -> Any:
        """One of `KERNELS`, or `steps`, compiled on first use."""
        if kernel not in self._pipelines:
            alone = "dispatched", self.one_operation
            name, own = ("whole_steps", self.all_operations) if kernel == "steps" else alone
            layout = self.device.create_pipeline_layout(bind_group_layouts=[self.shared, own])
            try:
                if name not in self._modules:
                    self._modules[name] = self.device.create_shader_module(label=name, code=sources()[name])
                compute = {"module": self._modules[name], "entry_point": kernel}
                self._pipelines[kernel] = self.device.create_compute_pipeline(layout=layout, compute=compute)
            except wgpu.GPUError as error:
                said = " ".join(str(error).split())[:300]
                raise CannotTrain(
                    f"{self.name} could not compile the kernel “{kernel}” ({name}.wgsl), and said: {said}; update its"
                    " driver, or choose another way of launching"
                ) from error
        return self._pipelines[kernel]

    def buffer(self, contents: np.ndarray | int, what: str, usage: int = _STORAGE) -> Any:
        """Create a buffer of this many zero bytes, or with these contents.

        Raises:
            CannotTrain: The adapter does not allow one so large; nothing was allocated.
        """
        n_bytes = max(4, contents if isinstance(contents, int) else contents.nbytes)
        if n_bytes > self.largest_bytes:
            raise CannotTrain(
                f"{what} needs one buffer of {n_bytes / 2**20:,.0f} MiB, but {self.name} allows at most"
                f" {self.largest_bytes / 2**20:,.0f} MiB; choose a smaller network or batch"
            )
        made = self.device.create_buffer(size=n_bytes, usage=usage)
        if not isinstance(contents, int) and contents.nbytes:
            self.queue.write_buffer(made, 0, contents)
        return made

    def wait(self) -> None:
        """Block until all submitted work is done."""
        # Not public; the public `on_submitted_work_done_sync` raises a TypeError in wgpu 0.32.
        self.device._poll_wait()

    def copy(self, source: Any, target: Any, n_bytes: int) -> None:
        """Copy the first bytes of a buffer to another one, on the device, without waiting."""
        encoder = self.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, n_bytes)
        self.queue.submit([encoder.finish()])

    def group(self, layout: Any, *buffers: Any, n_bytes: int | None = None) -> Any:
        """A bind group of whole buffers, or of the first bytes of each."""
        entries = [
            {"binding": index, "resource": {"buffer": one, "offset": 0, "size": n_bytes or one.size}}
            for index, one in enumerate(buffers)
        ]
        return self.device.create_bind_group(layout=layout, entries=entries)

    def _layout(self, buffers: list[dict]) -> Any:
        entries = [
            {"binding": index, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": one}
            for index, one in enumerate(buffers)
        ]
        return self.device.create_bind_group_layout(entries=entries)


gpu = lru_cache(maxsize=2)(OpenGpu)  # the adapter of a kind, opened once; see `lib.model.hardware.webgpu`


@dataclass(frozen=True, eq=False)
class Images:
    """Images and labels on the device; padding images, which do not count, fill the last slice of an evaluation."""

    low: Any
    high: Any
    labels: Any
    n: int

    @classmethod
    def upload(cls, gpu: OpenGpu, x: np.ndarray, y: np.ndarray, multiple: int = 1) -> "Images":
        """Upload images (n, inputs) in float32 and labels (n,), padded to a multiple of `multiple`."""
        padding = -len(x) % multiple
        labels = np.concatenate([y.astype(np.uint32), np.full(padding, NOTHING, np.uint32)])
        half = (len(x) + 1) // 2
        high = np.concatenate([x[half:], np.zeros((padding, x.shape[1]), np.float32)]) if padding else x[half:]
        what = f"Half of the {len(x):,} images"
        return cls(gpu.buffer(x[:half], what), gpu.buffer(high, what), gpu.buffer(labels, "The labels"), len(x))

    def write(self, gpu: OpenGpu, x: np.ndarray, y: np.ndarray) -> None:
        """Replace the contents with as many other images (n, inputs) in float32 and labels (n,)."""
        half = (self.n + 1) // 2
        for buffer, contents in ((self.low, x[:half]), (self.high, x[half:]), (self.labels, y.astype(np.uint32))):
            if contents.nbytes:
                gpu.queue.write_buffer(buffer, 0, contents)


class Execution:
    """A program on a device, ready to run.

    Args:
        gpu: The device.
        program: The operations of a step.
        images: Source of its batches.
        most_steps: Largest number of scheduled steps.
        what: Its name in errors.

    Raises:
        CannotTrain: It needs a larger buffer than the adapter allows; nothing was allocated.
    """

    def __init__(self, gpu: OpenGpu, program: Program, images: Images, most_steps: int, what: str) -> None:
        self.gpu, self.program = gpu, program
        self.memory = gpu.buffer(program.memory_bytes, what)
        self._schedule = gpu.buffer(4 * (1 + most_steps), what)
        self._results = gpu.buffer(8 * most_steps, what)
        shared = (self.memory, images.low, images.high, images.labels, self._schedule, self._results)
        self._shared = gpu.group(gpu.shared, *shared)
        words = np.zeros((len(program.operations), OPERATION_BYTES // 4), np.uint32)
        for index, operation in enumerate(program.operations):
            words[index, : len(operation.words)] = operation.words
        uniform = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        operations = gpu.buffer(words, what, uniform | _STORAGE)
        self._n_steps = gpu.buffer(np.zeros(1, np.uint32), what, uniform)
        self._one = gpu.group(gpu.one_operation, operations, n_bytes=OPERATION_BYTES)
        self._all = gpu.group(gpu.all_operations, operations, self._n_steps)
        self._launches = [
            (operation.kernel, operation.groups, self._one, [index * OPERATION_BYTES])
            for index, operation in enumerate(program.operations)
        ]

    def schedule(self, first_images: np.ndarray) -> None:
        """Set the first image of each batch of the next steps, whose results are stored from index 0.

        After `most_steps` steps, the first batch follows again.
        """
        self.gpu.queue.write_buffer(self._schedule, 0, np.concatenate([[0], first_images]).astype(np.uint32))

    def results(self, first: int, n: int) -> np.ndarray:
        """Results of these steps (n, 2): the mean loss, and the number of correctly classified images."""
        read = self.gpu.queue.read_buffer(self._results, 8 * first, 8 * n)
        return np.frombuffer(read, np.float32).reshape(n, 2).copy()

    def read(self, region: str) -> np.ndarray:
        """A region's matrix, copied to host memory."""
        first, shape = self.program.regions[region]
        read = self.gpu.queue.read_buffer(self.memory, 4 * first, 4 * prod(shape))
        return np.frombuffer(read, np.float32).reshape(shape).copy()

    def write(self, region: str, matrix: np.ndarray) -> None:
        first, _ = self.program.regions[region]
        self.gpu.queue.write_buffer(self.memory, 4 * first, np.ascontiguousarray(matrix, np.float32))

    def set(self, parameters: Parameters, learning_rate: float) -> None:
        """Set the state that a training starts from."""
        self.write("rate", np.full((1, 1), learning_rate))
        for layer, (weights, biases) in enumerate(parameters, 1):
            self.write(f"layer {layer}", np.vstack([weights, biases]))

    def parameters(self) -> Parameters:
        """The current parameters, copied to host memory."""
        layers = [self.read(name) for name in self.program.regions if name.startswith("layer ")]
        return [(layer[:-1].copy(), layer[-1].copy()) for layer in layers]

    def waiting_for_each_operation(self, n_steps: int) -> None:
        """Submit each operation separately, and wait for it before the next one."""
        for _ in range(n_steps):
            for index in range(len(self.program.operations)):
                self.submit(index)
                self.gpu.wait()

    def one_submission_a_step(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.gpu.queue.submit([self.encoded(1)])

    def one_submission(self, n_steps: int) -> None:
        """Submit the operations of all steps together, without waiting."""
        self.gpu.queue.submit([self.encoded(n_steps)])

    def one_kernel(self, n_steps: int) -> None:
        """Launch one kernel that runs all steps, in one workgroup, without waiting.

        On a software adapter, launches several kernels, each with as many steps as fit.

        Raises:
            CannotTrain: The software adapter cannot run a single step per kernel.
        """
        if self.gpu.most_turns is not None:
            most = self.gpu.most_turns // turns(self.program)
            if most == 0:
                raise CannotTrain(
                    f"{self.gpu.name} leaves the loops of a kernel after {self.gpu.most_turns:,} turns, but a step"
                    f" takes up to {turns(self.program):,}; choose a smaller network or batch, or another way of"
                    " launching"
                )
            while n_steps > most:
                self._one_kernel(most)
                n_steps -= most
        self._one_kernel(n_steps)

    def _one_kernel(self, n_steps: int) -> None:
        self.gpu.queue.write_buffer(self._n_steps, 0, np.array([n_steps], np.uint32))
        self.gpu.queue.submit([self._encoded([("steps", 1, self._all, [])])])

    def submit(self, index: int) -> None:
        """Submit one operation of the program, without waiting."""
        self.gpu.queue.submit([self._encoded(self._launches[index : index + 1])])

    def encoded(self, n_steps: int) -> Any:
        """Encode the commands of `n_steps` for a single submission."""
        return self._encoded(self._launches * n_steps)

    def _encoded(self, launches: list[tuple]) -> Any:
        """Encode one compute pass.

        Args:
            launches: Of each, the kernel, the number of workgroups, the bind group of its own buffers, and offsets.
        """
        encoder = self.gpu.device.create_command_encoder()
        of_pass = encoder.begin_compute_pass()
        of_pass.set_bind_group(0, self._shared)
        for kernel, groups, own, offsets in launches:
            of_pass.set_pipeline(self.gpu.pipeline(kernel))
            of_pass.set_bind_group(1, own, offsets)
            of_pass.dispatch_workgroups(groups)
        of_pass.end()
        return encoder.finish()


Launch = Callable[[Execution, int], None]  # runs this many steps; one of `LAUNCHES`


@lru_cache(maxsize=2)
def training_images(data: Data, device: str) -> Images:
    """Training images on the device, copied there once."""
    return Images.upload(gpu(device), data.x_train, data.y_train)


@lru_cache(maxsize=2)
def validation_images(data: Data, device: str, slice_size: int) -> Images:
    """Validation images on the device, copied there once, and padded to whole slices."""
    return Images.upload(gpu(device), data.x_validation, data.y_validation, multiple=slice_size)


def _train(launch: Launch, *arguments, **options) -> Iterator[Event]:
    try:
        yield from backend(partial(_begin, launch))(*arguments, **options)
    except wgpu.GPUError as error:
        kind = MemoryError if isinstance(error, MemoryError) else RuntimeError
        raise kind(" ".join(str(error).split())) from error  # the first line of wgpu's errors names no cause


def _begin(launch: Launch, training: Training, data: Data, device: str, parameters: Parameters) -> Loop:
    """See `backend` in `lib.model.backends.base`.

    Raises:
        CannotTrain: The network or its batch exceeds the adapter's limits, or those of one kernel.
    """
    clock = time.perf_counter
    program, what = step(training.network, training.batch_size), _named(training)
    if launch is Execution.one_kernel and program.flops > MAX_FLOPS_IN_ONE_KERNEL:
        raise CannotTrain(
            f"one kernel is one workgroup, limited to {MAX_FLOPS_IN_ONE_KERNEL / 1e9:g} billion operations per step,"
            f" but {what} takes {program.flops / 1e9:.3g} billion; choose a smaller network or batch, or another way of"
            " launching"
        )
    on, n_steps = gpu(device), max(1, training.steps_per_epoch(len(data.x_train)))
    slice_size = _slice_size(on, training.network, len(data.x_validation))
    x, x_validation = training_images(data, device), validation_images(data, device, slice_size)
    run = Execution(on, program, x, n_steps, what)
    of_slice, n_slices = evaluation(training.network, slice_size), -(-x_validation.n // slice_size)
    validation = Execution(on, of_slice, x_validation, n_slices, what)
    run.schedule(np.zeros(1))
    launch(run, 1)  # compiles the kernels, and wakes the device; all numbers are still zero
    for operation in of_slice.operations:
        on.pipeline(operation.kernel)
    run.set(parameters, training.learning_rate)
    on.wait()

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

    return chunk, partial(_evaluate, validation, run, x_validation.n, n_slices), run.parameters


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


def _evaluate(validation: Execution, trained: Execution, n_images: int, n_slices: int) -> tuple[float, float]:
    """Mean loss and accuracy over all validation images, in slices, with the current parameters."""
    slice_size = validation.program.batch_size
    validation.gpu.copy(trained.memory, validation.memory, trained.program.parameter_bytes)
    validation.schedule(np.arange(n_slices) * slice_size)
    validation.one_submission(n_slices)
    loss, correct = validation.results(0, n_slices).astype(np.float64).sum(axis=0)
    return float(loss * slice_size / n_images), float(correct / n_images)


def _slice_size(on: OpenGpu, network: Network, n_images: int) -> int:
    """Images per evaluation slice: fewer if the adapter's buffers are too small for the usual number."""
    size = min(VALIDATION_SLICE, n_images)
    while size > 1 and evaluation(network, size).memory_bytes > on.largest_bytes:
        size = -(-size // 2)
    return size


def _named(training: Training) -> str:
    return f"a step of {'→'.join(map(str, training.network.widths))} at batch size {training.batch_size:,}"
