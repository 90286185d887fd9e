"""Measure single operations, of one training step of 784→hidden→10 and on their own.

`measure_operations` measures the step's operations as each library dispatches them, one call after another. They refine
the six rows of the article's table. As in the article, each operation allocates its arrays and is waited for.

`measure_ceilings` measures large products, one large copy and one empty call in each library. A ceiling must use the
same library, threads and instructions as the figure that is compared with it.

`measure_operation` measures products, nested sines and transfers of one size, first uses, and what a compiler fuses. It
times each in several ways, in turns block by block:

* `waited`: the operands are on the device, and the clock stops when the result is ready.
* `moved`: the operands come from host memory, and the result goes back to it.
* `returned`: the clock stops when the call returns, even if nothing has been computed. This mistake makes a graphics
  card look as if it took the same time for any size.

Nested sines run as one call each (`eager`) and as one compiled program (`fused`), both waited for and moved.

Arrays are `copied` to the library's device, copied from page-locked memory (`pinned`), or not moved at all (`aliased`).
On a graphics card, `copied` is the usual code: it starts from pageable memory, which the driver first copies into its
own buffer. The card reads `pinned` memory directly. On a processor, host and device share one memory, so a program can
either copy an array or alias the same bytes.

`measure_overlap` moves data to the device, computes, and moves it back:

* `in turn` is the article's way: each stage has a stream, but is waited for before the next begins, and there is one
  piece. Nothing can overlap, because each stage needs the whole result of the previous one.
* `in pieces`: while one piece is computed, the next is moved to the device and the previous one back.
"""

# pyright: reportMissingImports=false
# PyTorch, CuPy and numba-cuda are optional.

import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from timeit import timeit
from typing import Any

import numpy as np

from lib.model.backends.registry import BACKENDS, COMPILERS
from lib.model.data.mnist import aligned
from lib.model.hardware.nvidia import l2_cache_bytes
from lib.model.spec import N_PIXELS
from lib.timing.measurement import Config, Measurement, Meter, Step, Sync, no_wait
from lib.timing.profiling.harness import (
    CONFIG,
    Row,
    StepExperiment,
    Subject,
    in_a_fresh_process,
    interleaved,
    nested_sine,
    repeated,
    row_of,
    self_timed,
)
from lib.timing.profiling.request import (
    ALIASED,
    COPIED,
    EAGER,
    FUSED,
    IN_PIECES,
    IN_TURN,
    ITEM_BYTES,
    LANES,
    MOVED,
    PINNED,
    RETURNED,
    WAITED,
    OperationRequest,
)

# `row`: the row of the article's table that includes it; `values`: the names of its results in `computed`.
Operation = namedtuple("Operation", "key label row values")
OPERATIONS = (
    Operation("hidden", "X @ W1 + b1", "forward: hidden layer", ["z1"]),
    Operation("relu", "ReLU", "forward: ReLU", ["a1"]),
    Operation("output", "a1 @ W2 + b2", "forward: output layer", ["z2"]),
    Operation("loss", "softmax and loss", "softmax and loss", ["probabilities", "loss"]),
    Operation("d-logits", "dz2 = (softmax − y) / B", "backward", ["dz2"]),
    Operation("d-w2", "dW2 = a1ᵀ @ dz2, db2", "backward", ["dw2", "db2"]),
    Operation("d-a1", "da1 = dz2 @ W2ᵀ", "backward", ["da1"]),
    Operation("d-z1", "dz1 = da1 · (z1 > 0)", "backward", ["dz1"]),
    Operation("d-w1", "dW1 = Xᵀ @ dz1, db1", "backward", ["dw1", "db1"]),
    Operation("update", "W −= η dW, four times", "update", []),
)
GRADIENTS = ("dw1", "db1", "dw2", "db2")
ALL, PRODUCT, COMPILED = "all", "product", "compiled"  # the whole step op by op; X @ W1 alone; the whole step compiled
KERNELS = "kernels"  # not seconds, but the number of launches by the host in a step compiled by XLA

Array = Any  # of any library


def _product(a: Array, b: Array, transposed_a: bool, transposed_b: bool) -> Array:
    return (a.T if transposed_a else a) @ (b.T if transposed_b else b)


def _same(array: Array) -> Array:
    return array


def in_precision(array: np.ndarray, precision: str) -> np.ndarray:
    """Convert a float32 array to another precision; TF32 is stored as float32."""
    if precision == "bfloat16":
        import ml_dtypes  # comes with JAX and TensorFlow

        return array.astype(ml_dtypes.bfloat16)
    return array.astype("float32" if precision == "tf32" else precision, copy=False)


@dataclass(frozen=True, kw_only=True)
class Library:
    """The functions that libraries write differently; defaults are common to several libraries."""

    move: Callable[[np.ndarray], Array]  # to the device
    relu: Callable[[Array], Array]
    positive: Callable[[Array], Array] = lambda z: z > 0
    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    total: Callable[[Array], Array]
    descend: Callable[[Array, Array], Array]  # weights and scaled gradient; returns the new weights
    wait: Callable[[Array], object] = _same
    variable: Callable[[Array], Array] = _same  # an array that an update can write into
    product: Callable[[Array, Array, bool, bool], Array] = _product  # two matrices, and whether to transpose each first
    largest: Callable[[Array], Array] = lambda z: z.max(axis=1, keepdims=True)  # of each row, (batch, 1)
    row_sum: Callable[[Array], Array] = lambda z: z.sum(axis=1, keepdims=True)  # (batch, 1)
    column_sum: Callable[[Array], Array] = lambda z: z.sum(axis=0, keepdims=True)  # (1, columns)
    compiled: Callable[[Callable], Callable] | None = None
    # For single operations.
    sine: Callable[[Array], Array]
    host: Callable[[np.ndarray, str], Array] = in_precision  # an array in host memory, as the library's users have it
    back: Callable[[Array], object] = np.asarray  # to host memory; it waits
    fused: Callable[[Callable], Callable] | None = None  # compiles several operations into one program
    # Computes in exactly this precision; does nothing if the arrays determine it.
    arithmetic: Callable[[str], AbstractContextManager] = nullcontext
    copying: Callable[[Array], Step] | None = None  # a step that copies an array within the device's memory


def measure_operations(worker: str, subject: Subject) -> Iterator[Row | None]:
    """Measure each operation, the whole step, the single product, and the compiled step if there is one, in turns.

    Args:
        worker: Key of `LIBRARIES`.
        subject: A step of one hidden layer.

    Yields:
        None wherever the caller may stop; then a row for each, named as in `calls_of`; for JAX also `KERNELS`, a number
        of kernels, not seconds.
    """
    library = LIBRARIES[worker](subject.device)
    calls = calls_of(library, subject)
    yield from interleaved({name: repeated(lambda call=call: library.wait(call())) for name, call in calls.items()})
    if worker == "jax":
        from lib.timing.profiling.with_jax import kernels_of_step

        yield row_of(KERNELS, [kernels_of_step(subject)])


def calls_of(library: Library, subject: Subject) -> dict[str, Callable[[], Array]]:
    """Return the calls to measure by name: each operation's key, `ALL`, `PRODUCT` and, if available, `COMPILED`.

    Their inputs are ready; they do not wait for the result.
    """
    x, y = subject.batch
    (w1, b1), (w2, b2) = subject.parameters
    onehot = library.move(np.eye(len(b2), dtype=np.float32)[y])  # (batch, 10)
    images, *weights = (library.move(array) for array in (x, w1, b1[None, :], w2, b2[None, :]))  # biases as rows
    weights = [library.variable(one) for one in weights]
    rate = np.float32(subject.training.learning_rate)
    operations, _ = computed(library, images, onehot, weights, rate)
    calls = operations | {
        ALL: lambda: [operations[operation.key]() for operation in OPERATIONS][-1],
        PRODUCT: lambda: library.product(images, weights[0], False, False),
    }
    if library.compiled is not None:
        step = library.compiled(lambda *arrays: _new_weights(library, arrays[0], arrays[1], arrays[2:], rate))
        calls[COMPILED] = lambda: step(images, onehot, *weights)
    return calls


def computed(
    library: Library, x: Array, onehot: Array, weights, rate: np.float32
) -> tuple[dict[str, Callable[[], Array]], dict[str, Array]]:
    """Return a step's operations by key, as calls on ready inputs, and all values that they compute, by name.

    Args:
        library: The library to compute with.
        x: Images, (batch, 784).
        onehot: Labels, (batch, 10).
        weights: `w1` (784, hidden), `b1` (1, hidden), `w2` (hidden, 10), `b2` (1, 10).
        rate: Learning rate.

    Returns:
        The calls, and `z1`, `a1`, `da1`, `dz1` (batch, hidden); `z2`, `probabilities`, `dz2` (batch, 10); `loss`, a
        scalar; `dw1`, `db1`, `dw2`, `db2` of the shapes of the weights.
    """
    w1, b1, w2, b2 = weights
    product, size = library.product, np.float32(x.shape[0])
    v: dict[str, Array] = {}
    calls: dict[str, Callable[[], Array]] = {
        "hidden": lambda: product(x, w1, False, False) + b1,
        "relu": lambda: library.relu(v["z1"]),
        "output": lambda: product(v["a1"], w2, False, False) + b2,
        "loss": lambda: _softmax_and_loss(library, v["z2"], onehot),
        "d-logits": lambda: (v["probabilities"] - onehot) / size,
        "d-w2": lambda: (product(v["a1"], v["dz2"], True, False), library.column_sum(v["dz2"])),
        "d-a1": lambda: product(v["dz2"], w2, False, True),
        "d-z1": lambda: v["da1"] * library.positive(v["z1"]),
        "d-w1": lambda: (product(x, v["dz1"], True, False), library.column_sum(v["dz1"])),
        "update": lambda: [library.descend(w, rate * v[name]) for w, name in zip(weights, GRADIENTS, strict=True)],
    }
    for operation in OPERATIONS:
        if operation.values:
            found = calls[operation.key]()
            v |= zip(operation.values, found if len(operation.values) > 1 else [found], strict=True)
    return calls, v


def _new_weights(library: Library, x: Array, onehot: Array, weights, rate: np.float32) -> list[Array]:
    _, values = computed(library, x, onehot, weights, rate)
    return [w - rate * values[name] for w, name in zip(weights, GRADIENTS, strict=True)]


def _softmax_and_loss(library: Library, z2: Array, onehot: Array) -> tuple[Array, Array]:
    exponents = library.exp(z2 - library.largest(z2))
    probabilities = exponents / library.row_sum(exponents)
    return probabilities, -library.total(onehot * library.log(probabilities + np.float32(1e-30))) / np.float32(
        z2.shape[0]
    )


def _numpy(_device: str) -> Library:
    return _like_numpy(
        np,
        move=np.ascontiguousarray,
        copying=lambda source: partial(np.copyto, np.empty_like(source), source),
    )


def _cupy(_device: str) -> Library:
    import cupy

    def wait(value):
        cupy.cuda.Device().synchronize()
        return value

    return _like_numpy(
        cupy,
        move=cupy.asarray,
        wait=wait,
        back=cupy.asnumpy,
        fused=cupy.fuse,
        copying=lambda source: source.copy,
    )


def _like_numpy(xp: Any, **others: Any) -> Library:
    """Return the library of a module with NumPy's interface; `others` overrides attributes of `Library`."""

    def descend(weights, step):
        weights -= step
        return weights

    return Library(
        **{
            "relu": lambda z: xp.maximum(0, z),
            "exp": xp.exp,
            "log": xp.log,
            "total": xp.sum,
            "variable": xp.copy,
            "descend": descend,
            "sine": xp.sin,
        }
        | others
    )


def _jax(device: str) -> Library:
    import jax
    import jax.numpy as jnp

    from lib.model.backends import with_jax

    target = jax.devices(device)[0]

    @contextmanager
    def arithmetic(precision: str) -> Iterator[None]:
        rounded = "tensorfloat32" if precision == "tf32" else "highest"
        with jax.enable_x64(precision == "float64"), jax.default_matmul_precision(rounded):
            yield

    def rounded(a, b, transposed_a: bool, transposed_b: bool):
        return with_jax.product(a, b, (0 if transposed_a else 1, 1 if transposed_b else 0))

    return _like_numpy(
        jnp,
        move=lambda array: jax.device_put(array, target),
        positive=jax.jit(lambda z: (z > 0).astype(z.dtype)),  # one call, like a mere comparison
        wait=jax.block_until_ready,
        variable=_same,
        descend=lambda weights, step: weights - step,
        compiled=jax.jit,
        fused=jax.jit,
        arithmetic=arithmetic,
        copying=lambda source: partial(jax.jit(lambda x: x + 1), source),
        **({"product": rounded} if with_jax.rounds_beforehand() else {}),
    )


def _tensorflow(device: str) -> Library:
    import tensorflow as tf

    def placed(make, array):
        with tf.device(f"/{device.upper()}:0"):
            return make(array)

    def wait(value):
        if device == "gpu":  # on the processor an operation returns when it is done
            tf.test.experimental.sync_devices()
        return value

    def arithmetic(precision: str) -> AbstractContextManager:
        switch = tf.config.experimental
        read, write = switch.tensor_float_32_execution_enabled, switch.enable_tensor_float_32_execution
        return _switched(read, write, precision == "tf32")

    return Library(
        move=partial(placed, tf.constant),
        product=lambda a, b, ta, tb: tf.matmul(a, b, transpose_a=ta, transpose_b=tb),
        relu=tf.nn.relu,
        positive=lambda z: tf.cast(z > 0, tf.float32),
        exp=tf.exp,
        log=tf.math.log,
        largest=lambda z: tf.reduce_max(z, axis=1, keepdims=True),
        row_sum=lambda z: tf.reduce_sum(z, axis=1, keepdims=True),
        column_sum=lambda z: tf.reduce_sum(z, axis=0, keepdims=True),
        total=tf.reduce_sum,
        wait=wait,
        variable=partial(placed, tf.Variable),
        descend=lambda w, step: w.assign_sub(step),
        compiled=lambda function: tf.function(function, autograph=False),
        sine=tf.sin,
        back=lambda array: array.numpy(),
        fused=lambda function: tf.function(function, autograph=False, jit_compile=True),
        arithmetic=arithmetic,
    )


def _torch(device: str) -> Library:
    import torch

    from lib.model.backends.with_torch import torch_device, wait

    def waited(value):
        wait(device)
        return value

    def arithmetic(precision: str) -> AbstractContextManager:
        read, write = (partial(one, torch.backends.cuda.matmul, "allow_tf32") for one in (getattr, setattr))
        return _switched(read, write, precision == "tf32")

    def on_host(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(array))

    return Library(
        move=lambda array: (array if isinstance(array, torch.Tensor) else on_host(array)).to(torch_device(device)),
        relu=torch.relu,
        exp=torch.exp,
        log=torch.log,
        largest=lambda z: z.amax(dim=1, keepdim=True),
        row_sum=lambda z: z.sum(dim=1, keepdim=True),
        column_sum=lambda z: z.sum(dim=0, keepdim=True),
        total=torch.sum,
        wait=waited,
        descend=lambda w, step: w.sub_(step),
        sine=torch.sin,
        host=lambda array, precision: on_host(array).to(
            getattr(torch, "float32" if precision == "tf32" else precision)
        ),
        back=lambda array: array.cpu(),
        fused=partial(torch.compile, dynamic=True) if any(map(shutil.which, COMPILERS)) else None,
        arithmetic=arithmetic,
        copying=lambda source: source.clone,
    )


@contextmanager
def _switched(read: Callable[[], bool], write: Callable[[bool], object], on: bool) -> Iterator[None]:
    before = read()
    write(on)
    try:
        yield
    finally:
        write(before)


LIBRARIES: dict[str, Callable[[str], Library]] = {
    "numpy": _numpy,
    "jax": _jax,
    "keras-tensorflow": _tensorflow,
    "torch": _torch,
    "cupy": _cupy,
}


def multiplying(library: Library, a: Array, b: Array) -> Step:
    """Return a step that multiplies two matrices on the device; NumPy writes into a preallocated array."""
    if isinstance(a, np.ndarray):
        return partial(np.matmul, a, b, out=np.empty_like(a))
    return partial(library.product, a, b, False, False)


# Sides of the square matrices in products; the best rate counts. On a fast card the smallest takes hardly longer than
# its call.
SIDES: Mapping[str, tuple[int, ...]] = {
    "cpu": (2048,),
    "gpu": (2048, 4096, 8192),
    "discrete": (2048, 4096),
    "integrated": (1024, 2048),
    "software": (128,),
}
COPY_BYTES = 256 * 2**20  # far beyond any processor's cache
CEILINGS = Config(warm_up_s=0.1, min_time_s=0.2, max_time_s=1.2, spread_target=0.05)

# A step, its wait, and the work of one step: floating-point operations, bytes, or one call.
Probe = tuple[Step, Sync, float]
Makers = dict[str, Callable[..., Probe]]  # `product` takes the matrices' side


def measure_ceilings(backend: str, device: str) -> Iterator[Row | None]:
    """Measure the ceilings that this backend's library can measure.

    Args:
        backend: Key of the backend.
        device: A device that it runs on.

    Yields:
        `product`, `copy` or `dispatch`, its measurement, and the work of one step: floating-point operations, bytes, or
        1. On a card also `cache`, in bytes of its L2, not seconds, if the driver knows it. None in between.
    """
    for name, make in makers_of(BACKENDS[backend].worker, device).items():
        found: list[tuple[Measurement, float]] = []
        for one in [partial(make, side) for side in SIDES[device]] if name == "product" else [make]:
            step, sync, work = one()
            sync(step())  # compiles, and touches memory for the first time
            found.append((Meter(step, sync, CEILINGS).run(), work))
            yield None
        yield name, *max(found, key=lambda one: one[1] / one[0].median_s)
    if device == "gpu" and (cache_bytes := l2_cache_bytes()):
        yield row_of("cache", [cache_bytes])


def makers_of(worker: str, device: str) -> Makers:
    """Return the functions that make a worker's probes; Numba has no product, and copies no faster than others."""
    if worker == "webgpu":
        return _webgpu_probes(device)
    numbas = {"numba": _numba_dispatch, "numba-cuda": _numba_cuda_dispatch}
    if worker in numbas:
        return {"dispatch": numbas[worker]}
    library = LIBRARIES[worker if worker in LIBRARIES else worker.removeprefix("keras-")](device)

    def product(side: int) -> Probe:
        rng = np.random.default_rng(0)
        a, b = (library.move(rng.standard_normal((side, side), np.float32)) for _ in range(2))
        return multiplying(library, a, b), library.wait, 2.0 * side**3

    def copy() -> Probe:
        assert library.copying is not None, "asked for where there is one"
        return library.copying(library.move(np.ones(COPY_BYTES // 4, np.float32))), library.wait, 2.0 * COPY_BYTES

    def dispatch() -> Probe:
        small, twice = library.move(np.ones(1, np.float32)), (library.compiled or _same)(lambda x: x + x)
        return lambda: library.wait(twice(small)), no_wait, 1.0

    return ({"product": product, "copy": copy} if library.copying is not None else {}) | {"dispatch": dispatch}


def _numba_dispatch() -> Probe:
    from numba import njit

    @njit
    def more(small: float) -> float:
        return small + 1.0

    return lambda: more(1.0), no_wait, 1.0


def _numba_cuda_dispatch() -> Probe:
    from numba import cuda, void

    @cuda.jit(void())
    def nothing() -> None:
        pass

    def launch() -> None:
        nothing[1, 1]()  # pyright: ignore[reportIndexIssue] (the decorator makes a kernel of it)
        cuda.synchronize()

    return launch, no_wait, 1.0


def _webgpu_probes(device: str) -> Makers:
    # The product is this project's own kernel: WebGPU has none.
    from lib.model.backends.webgpu import product as of_matrices
    from lib.model.backends.with_webgpu import Execution, Images, gpu

    on = gpu(device)
    no_images = Images.upload(on, np.zeros((2, N_PIXELS), np.float32), np.zeros(2, np.int32))

    def done(_: object) -> None:
        on.wait()

    def product(side: int) -> Probe:
        program = of_matrices(side)
        run = Execution(on, program, no_images, 1, f"A product of {side:,} by {side:,}")
        return lambda: run.submit(0), done, float(program.flops)

    def copy() -> Probe:
        n_bytes = min(COPY_BYTES, on.largest_bytes)
        source, target = on.buffer(n_bytes, "A copy"), on.buffer(n_bytes, "A copy")
        return lambda: on.copy(source, target, n_bytes), done, 2.0 * n_bytes

    def dispatch() -> Probe:
        run = Execution(on, of_matrices(1), no_images, 1, "An empty call")
        return lambda: done(run.submit(0)), no_wait, 1.0

    return {"product": product, "copy": copy, "dispatch": dispatch}


LEAST_ROUNDS, MOST_ROUNDS = 3, 9
ROUNDS_S = 2.0  # target seconds for all ways at one size, but never fewer than `LEAST_ROUNDS`
MOST_DRAWN = 2**24  # random numbers per operand, which then repeat: drawing a billion takes ten seconds
LONG_S = 0.02  # a call that takes longer is not repeated within a block
REPETITIONS = 3  # of a first use, each in a fresh process
LIMIT_S = 120.0  # for such a process
# Folders in which a library would find programs compiled by an earlier process. PyTorch sets Triton's folder itself,
# even in the worker, whose environment the fresh processes inherit.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
_SHORT = replace(CONFIG, warm_up_s=0.005, min_block_s=2e-3)


def measure_operation(worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """Measure an operation in all ways that the library has.

    Args:
        worker: Key of `lib.timing.profiling.operations.LIBRARIES`.
        device: `cpu` or `gpu`.
        operation: The operation and its size.

    Yields:
        None wherever the caller may stop; a row for each way, with the work of one call: floating-point operations of
        a product, or the fewest bytes that sines read and write.
    """
    if operation.name in _OTHERWISE:
        yield from _OTHERWISE[operation.name](worker, device, operation)
        return
    library = _library(worker, device)
    make, work = _OPERATIONS[operation.name]

    exact = partial(library.arithmetic, operation.precision)
    with exact():
        calls = make(worker, device, library, operation)
        call_s = _first_call_s(next(iter(calls.values())))
    yield None
    ways = {name: within(_way(name, call, library, call_s), exact) for name, call in calls.items()}
    for row in interleaved(ways, rounds(len(ways), call_s)):
        yield None if row is None else (row[0], row[1], work(operation, row[0]))


def _first_uses(worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """Yield a row for each stage of `lib.timing.profiling.first_use`; a block is a process."""
    processes: list[dict[str, float]] = []
    module, asked = MODULES[worker], (device, str(operation.size), str(operation.depth))
    for _ in range(REPETITIONS):
        # A compiler's own processes may still write into it after the process has ended.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
            environment = os.environ | dict.fromkeys(CACHES, empty)
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # JAX neither reads nor writes without it
            # All processes share this clock where it counts from the machine's start.
            command = [*_COMMAND, "stages", worker, module, *asked, repr(time.perf_counter())]
            said = yield from in_a_fresh_process(command, environment, LIMIT_S, f"a fresh process of {module}")
            processes.append(json.loads(said.splitlines()[-1]))
    for stage in processes[0]:
        yield row_of(stage, (found[stage] for found in processes))


def measure_models(subject: Subject) -> Iterator[Row | None]:
    """Time building and cloning the subject's model in Keras on TensorFlow, in a fresh process.

    Yields:
        None while the process runs; then a row for each of the names in `lib.timing.profiling.first_use`.
    """
    command = [*_COMMAND, "models", subject.network.label, subject.device]
    said = yield from in_a_fresh_process(command, os.environ, LIMIT_S, "a fresh process of TensorFlow")
    for name, values in json.loads(said.splitlines()[-1]).items():
        yield row_of(name, values)


MODULES = {"numpy": "numpy", "jax": "jax", "torch": "torch", "keras-tensorflow": "tensorflow", "cupy": "cupy"}
_COMMAND = [sys.executable, "-m", "lib.timing.profiling.first_use"]


def _fusions(_worker: str, device: str, operation: OperationRequest) -> Iterator[Row]:
    from lib.timing.profiling.with_jax import fusion_counts

    for name, count in fusion_counts(device, operation.size, operation.depth):
        yield row_of(name, [count])


def rounds(ways: int, call_s: float) -> int:
    """Return how often to time each way, if a call takes `call_s`.

    >>> rounds(3, 1e-5), rounds(3, 10.0)
    (9, 3)
    """
    return int(np.clip(ROUNDS_S / (ways * max(call_s, 1e-9)), LEAST_ROUNDS, MOST_ROUNDS))


def within(experiment: StepExperiment, surroundings: Callable[[], AbstractContextManager]) -> StepExperiment:
    """Run an experiment inside a context, leaving it after each block, because other experiments run in between."""
    while True:
        with surroundings():
            value = next(experiment)
        yield value


def _first_call_s(call: Callable[[], object]) -> float:
    """Return the seconds of a second call, or of the first if it takes so long that compiling hardly counts."""
    first_s = timeit(call, number=1)
    return first_s if first_s > 0.5 else timeit(call, number=1)


def _operands(library: Library, shape: tuple[int, ...], count: int, precision: str) -> list:
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal(min(math.prod(shape), MOST_DRAWN), np.float32) for _ in range(count)]
    return [library.host(np.resize(values, shape), precision) for values in drawn]


def _products(worker: str, _device: str, library: Library, operation: OperationRequest) -> dict[str, Step]:
    a, b = _operands(library, (operation.size, operation.size), 2, operation.precision)  # (size, size), in host memory
    product = multiplying(library, library.move(a), library.move(b))
    calls: dict[str, Step] = {WAITED: lambda: library.wait(product())}
    if worker != "numpy":  # NumPy has one memory, and returns when it is done
        calls[MOVED] = lambda: library.back(library.product(library.move(a), library.move(b), False, False))
        calls[RETURNED] = product
    return calls


def _way(name: str, call: Step, library: Library, call_s: float) -> StepExperiment:
    if name != RETURNED:
        return repeated(call, config=_SHORT)
    return repeated(call, library.wait, config=_SHORT, returns=True, at_most=1 if call_s > LONG_S / 16 else 16)


def _sines(worker: str, _device: str, library: Library, operation: OperationRequest) -> dict[str, Step]:
    (host,) = _operands(library, (operation.size,), 1, operation.precision)  # (size,)
    here = library.move(host)
    calls: dict[str, Step] = {}
    for name, program in _programs(library, operation.depth).items():
        calls[f"{name}/{WAITED}"] = lambda one=program: library.wait(one(here))
        if worker != "numpy":
            calls[f"{name}/{MOVED}"] = lambda one=program: library.back(one(library.move(host)))
    return calls


@cache
def _library(worker: str, device: str) -> Library:
    return LIBRARIES[worker](device)


@lru_cache(maxsize=32)
def _programs(library: Library, depth: int) -> dict[str, Callable]:
    """Return nested sines by way to run them; cached, because PyTorch takes seconds to compile one for all sizes."""
    nested = nested_sine(library.sine, depth)
    return {EAGER: nested} | ({FUSED: library.fused(nested)} if library.fused is not None else {})


def _sine_work(operation: OperationRequest, way: str) -> float:
    """Return bytes: a pass reads and writes each element once; fusing leaves one pass for all sines."""
    passes = operation.depth if way.startswith(EAGER) else 1
    return 2.0 * ITEM_BYTES[operation.precision] * operation.size * passes


def transfers(worker: str, device: str, library: Library, operation: OperationRequest) -> dict[str, Step]:
    """Return a library's ways to transfer an array, by name; each call waits until the array has arrived.

    Args:
        worker: Key of `LIBRARIES`.
        device: `cpu` or `gpu`.
        library: The worker's library.
        operation: Its size is that of the array in bytes, a multiple of 4.
    """
    source = aligned((operation.size // 4,), np.float32)  # XLA aliases only aligned arrays, and copies others
    source[:] = 1.0
    host = library.host(source, "float32")
    here = library.wait(library.move(host))

    def moved(array: Any) -> Step:
        return lambda: library.wait(library.move(array))

    match worker, device:
        case "keras-tensorflow", _:
            import tensorflow as tf

            return {COPIED: moved(host), ALIASED: lambda: tf.identity(here)}
        case "cupy", _:
            return {COPIED: moved(host), ALIASED: moved(here)}
        case "torch", "cpu":
            return {COPIED: host.clone, ALIASED: moved(host)}
        case "torch", _:
            return {COPIED: moved(host), PINNED: moved(host.pin_memory()), ALIASED: moved(here)}
        case "numpy", _:
            return {COPIED: host.copy, ALIASED: host.view}
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    if device == "cpu":  # `device_put` aliases an aligned array here, even if told not to
        return {COPIED: lambda: library.wait(jnp.array(host)), ALIASED: moved(host)}
    pinned = jax.device_put(host, SingleDeviceSharding(jax.devices(device)[0], memory_kind="pinned_host"))
    return {COPIED: moved(host), PINNED: moved(library.wait(pinned)), ALIASED: moved(here)}


_OPERATIONS = {
    "product": (_products, lambda operation, _: 2.0 * operation.size**3),
    "sine": (_sines, _sine_work),
    "transfer": (transfers, lambda operation, _: float(operation.size)),
}

Span = tuple[float, float]  # begin and end, in seconds from the beginning of a run
Stage = Callable[[slice], object]  # runs on a piece


def measure_overlap(_worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """Time both ways in turns; for the last run of each, record when each stage of each piece began and ended.

    Args:
        device: `cpu`, with NumPy, or `gpu`, with PyTorch.
        operation: Elements, number of nested sines, and pieces.

    Yields:
        None wherever the caller may stop; finally rows for `IN_TURN` and `IN_PIECES`, and for each of these and each of
        `LANES` `…/begins` and `…/ends`, whose blocks are pieces.
    """
    with (on_streams if device == "gpu" else on_threads)(operation) as (runs, _):
        last: dict[str, list[list[Span]]] = {}

        def timed(name: str) -> float:
            began = time.perf_counter()
            last[name] = runs[name]()
            return time.perf_counter() - began

        yield from interleaved({name: self_timed(partial(timed, name)) for name in runs})
        for name, lanes in last.items():
            for lane, spans in zip(LANES, lanes, strict=True):
                for end, values in zip(("begins", "ends"), zip(*spans, strict=True), strict=True):
                    yield row_of(f"{name}/{lane}/{end}", values)


Runs = dict[str, Callable[[], list[list[Span]]]]  # by name of the way; returns the spans of each lane's pieces


@contextmanager
def on_threads(operation: OperationRequest) -> Iterator[tuple[Runs, np.ndarray]]:
    """Yield both ways of computing `y` = sin(sin(…x)) of ones in three stages, a thread for each; and `y`.

    A piece waits for its previous stage, so a single piece takes its stages in turn.

    Another array stands in for the device. NumPy releases Python's lock (GIL) in copies and sines, so that they can
    overlap as far as there are cores.
    """
    x = np.ones(operation.size, np.float32)
    there, y = np.zeros_like(x), np.zeros_like(x)

    def bring(piece: slice) -> None:
        np.copyto(there[piece], x[piece])

    def compute(piece: slice) -> None:
        for _ in range(operation.depth):
            np.sin(there[piece], out=there[piece])

    def bring_back(piece: slice) -> None:
        np.copyto(y[piece], there[piece])

    with ExitStack() as ended:
        threads = [ended.enter_context(ThreadPoolExecutor(1)) for _ in LANES]

        def run(pieces: list[slice]) -> list[list[Span]]:
            began = time.perf_counter()
            lanes: list[list[Future[Span]]] = []
            earlier: Sequence[Future[Span] | None] = [None] * len(pieces)
            for thread, stage in zip(threads, (bring, compute, bring_back), strict=True):
                waiting = zip(pieces, earlier, strict=True)
                lanes.append([thread.submit(_timed, stage, piece, before, began) for piece, before in waiting])
                earlier = lanes[-1]
            return [[one.result() for one in lane] for lane in lanes]

        yield {IN_TURN: partial(run, [slice(0, len(x))]), IN_PIECES: partial(run, _pieces(operation))}, y


def _timed(stage: Stage, piece: slice, before: Future[Span] | None, began: float) -> Span:
    if before is not None:
        before.result()
    begin = time.perf_counter() - began
    stage(piece)
    return begin, time.perf_counter() - began


def _pieces(operation: OperationRequest) -> list[slice]:
    edges = np.linspace(0, operation.size, max(1, min(operation.pieces, operation.size)) + 1).astype(int).tolist()
    return [slice(low, high) for low, high in itertools.pairwise(edges)]


@contextmanager
def on_streams(operation: OperationRequest) -> Iterator[tuple[Runs, Any]]:
    """Do the same on a card: a PyTorch stream for each stage, timed by the card's own events.

    “In turn” follows the article: pageable memory, and each stream is synchronised before the next begins. “In pieces”
    uses pinned memory, and streams wait for each other's events, so that the host does not wait.
    """
    import torch

    cuda, streams = torch.cuda, [torch.cuda.Stream() for _ in LANES]
    pageable, back = torch.ones(operation.size), torch.zeros(operation.size)
    pinned, pinned_back, there = pageable.pin_memory(), back.pin_memory(), torch.empty(operation.size, device="cuda")

    def run(pieces: list[slice], source: Any, target: Any, in_turn: bool) -> list[list[Span]]:
        def bring(piece: slice) -> None:
            there[piece].copy_(source[piece], non_blocking=True)

        def compute(piece: slice) -> None:
            for _ in range(operation.depth):
                torch.sin(there[piece], out=there[piece])

        def bring_back(piece: slice) -> None:
            target[piece].copy_(there[piece], non_blocking=not in_turn)

        cuda.synchronize()
        began = cuda.Event(enable_timing=True)
        began.record()
        marks: list[list] = [[] for _ in LANES]
        for piece in pieces:
            before = began
            for lane, stage, stream in zip(marks, (bring, compute, bring_back), streams, strict=True):
                begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
                with cuda.stream(stream):
                    stream.wait_event(before)
                    begin.record(stream)
                    stage(piece)
                    end.record(stream)
                if in_turn:
                    stream.synchronize()
                lane.append((begin, end))
                before = end
        cuda.synchronize()
        ends_s = [[[max(0.0, began.elapsed_time(end) / 1e3) for end in mark] for mark in lane] for lane in marks]
        return [[(begin, max(begin, end)) for begin, end in lane] for lane in ends_s]

    ways = {
        IN_TURN: partial(run, [slice(0, operation.size)], pageable, back, True),
        IN_PIECES: partial(run, _pieces(operation), pinned, pinned_back, False),
    }
    yield ways, pinned_back


_OTHERWISE: dict[str, Callable[[str, str, OperationRequest], Iterator[Row | None]]] = {
    "first use": _first_uses,
    "fusion": _fusions,
    "overlap": measure_overlap,
}
