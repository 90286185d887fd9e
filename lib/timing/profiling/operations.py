"""One training step of 784→hidden→10, operation by operation, as each library dispatches them: one call after another.

These are the six rows of the article's table, taken further apart. As in the article, each operation makes its arrays
anew and is waited for. On a card that hides how long it works: PyTorch and CuPy tell that, too.

And what each library's ceilings are measured with: large products, one large copy, one empty call. A ceiling must have
the same library, threads and instructions as what is compared with it.
"""

# pyright: reportMissingImports=false
# PyTorch, CuPy and numba-cuda are optional.

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lib.model.backends.registry import BACKENDS, COMPILERS
from lib.model.hardware.nvidia import l2_cache_bytes
from lib.model.spec import N_PIXELS
from lib.timing.measurement import Config, Measurement, Step, Sync, measure, no_wait
from lib.timing.profiling.harness import (
    CardQueue,
    OnCard,
    Repeated,
    Row,
    StepExperiment,
    Subject,
    cupy_card,
    interleaved,
    row_of,
    torch_card,
)


@dataclass(frozen=True)
class Operation:
    """A row of the table; `row` names the article's row that it belongs to."""

    key: str
    label: str
    row: str


OPERATIONS = (
    Operation("hidden", "X @ W1 + b1", "forward: hidden layer"),
    Operation("relu", "ReLU", "forward: ReLU"),
    Operation("output", "a1 @ W2 + b2", "forward: output layer"),
    Operation("loss", "softmax and loss", "softmax and loss"),
    Operation("d-logits", "dz2 = (softmax − y) / B", "backward"),
    Operation("d-w2", "dW2 = a1ᵀ @ dz2, db2", "backward"),
    Operation("d-a1", "da1 = dz2 @ W2ᵀ", "backward"),
    Operation("d-z1", "dz1 = da1 · (z1 > 0)", "backward"),
    Operation("d-w1", "dW1 = Xᵀ @ dz1, db1", "backward"),
    Operation("update", "W −= η dW, four times", "update"),
)
ALL, PRODUCT, COMPILED = "all", "product", "compiled"  # the whole step op by op; X @ W1 alone; the whole step compiled
ON_CARD = "card/"  # before an operation's key: the card's own time for it
KERNELS = "kernels"  # not seconds but a number: of what the host launches in a step that XLA compiled

Array = Any  # of whichever library


def _product(a: Array, b: Array, transposed_a: bool, transposed_b: bool) -> Array:
    return (a.T if transposed_a else a) @ (b.T if transposed_b else b)


def _same(array: Array) -> Array:
    return array


def in_precision(array: np.ndarray, precision: str) -> np.ndarray:
    """A float32 array in another precision; TF32 lies in memory as float32."""
    if precision == "bfloat16":
        import ml_dtypes  # comes with JAX and TensorFlow

        return array.astype(ml_dtypes.bfloat16)
    return array.astype("float32" if precision == "tf32" else precision, copy=False)


def any_arithmetic(_precision: str) -> AbstractContextManager:
    """Where the precision follows from the arrays alone."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the libraries write differently; what several write alike is the default."""

    move: Callable[[np.ndarray], Array]  # to the device
    relu: Callable[[Array], Array]
    positive: Callable[[Array], Array] = lambda z: z > 0
    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    total: Callable[[Array], Array]
    descend: Callable[[Array, Array], Array]  # weights and scaled gradient; returns the new weights
    wait: Callable[[Array], object] = _same
    variable: Callable[[Array], Array] = _same  # what an update can write into
    product: Callable[[Array, Array, bool, bool], Array] = _product  # of two matrices, either of them transposed first
    largest: Callable[[Array], Array] = lambda z: z.max(axis=1, keepdims=True)  # of each row, (batch, 1)
    row_sum: Callable[[Array], Array] = lambda z: z.sum(axis=1, keepdims=True)  # (batch, 1)
    column_sum: Callable[[Array], Array] = lambda z: z.sum(axis=0, keepdims=True)  # (1, columns)
    compiled: Callable[[Callable], Callable] | None = None
    # For operations by themselves (`lib.timing.profiling.single_operations`).
    sine: Callable[[Array], Array]
    host: Callable[[np.ndarray, str], Array] = in_precision  # in host memory, as the library's users have it
    back: Callable[[Array], object] = np.asarray  # to host memory; it waits
    fused: Callable[[Callable], Callable] | None = None  # several operations as one program
    arithmetic: Callable[[str], AbstractContextManager] = any_arithmetic  # in which a precision is what it says
    # Whose events time what is shorter than its dispatch; takes memory there.
    card: Callable[[], CardQueue] | None = None
    copying: Callable[[Array], Step] | None = None  # a step that copies an array within the device's memory


def measure_operations(worker: str, subject: Subject) -> Iterator[Row | None]:
    """Measure each operation, the whole step, the single product, and the compiled step if there is one, in turns.

    Args:
        worker: Key of `LIBRARIES`.
        subject: A step of one hidden layer.

    Yields:
        None where it can be stopped; then a row for each, named as in `calls_of`; with a `card`, one more for each
        operation, named with `ON_CARD`; for JAX also `KERNELS`, which is a number of kernels, not seconds.
    """
    library = LIBRARIES[worker](subject.device)
    calls = calls_of(library, subject)
    experiments: dict[str, StepExperiment] = {
        name: Repeated(lambda call=call: library.wait(call())) for name, call in calls.items()
    }
    if library.card is not None:
        card = library.card()
        experiments |= {ON_CARD + one.key: OnCard([calls[one.key]], card) for one in OPERATIONS}
    yield from interleaved(experiments)
    if worker == "jax":
        from lib.timing.profiling.with_jax import kernels_of_step

        yield row_of(KERNELS, [kernels_of_step(subject)])


def calls_of(library: Library, subject: Subject) -> dict[str, Callable[[], Array]]:
    """What is measured, by name: each operation's key, `ALL`, `PRODUCT` and, where the library compiles, `COMPILED`.

    Each has its inputs ready, and is not waited for.
    """
    x, y = subject.batch
    (w1, b1), (w2, b2) = subject.parameters
    onehot = library.move(np.eye(len(b2), dtype=np.float32)[y])  # (batch, 10)
    images, *weights = (library.move(array) for array in (x, w1, b1[None, :], w2, b2[None, :]))  # biases as rows
    weights = [library.variable(one) for one in weights]
    values = forward_and_backward(library, images, onehot, weights)
    rate = np.float32(subject.training.learning_rate)
    operations = _calls(library, images, onehot, weights, values, rate)
    calls = operations | {
        ALL: lambda: [operations[operation.key]() for operation in OPERATIONS][-1],
        PRODUCT: lambda: library.product(images, weights[0], False, False),
    }
    if library.compiled is not None:
        step = library.compiled(lambda *arrays: _new_weights(library, arrays[0], arrays[1], arrays[2:], rate))
        calls[COMPILED] = lambda: step(images, onehot, *weights)
    return calls


def forward_and_backward(library: Library, x: Array, onehot: Array, weights) -> Mapping[str, Array]:
    """All values of a step by name: activations, loss, and gradients.

    Args:
        library: What computes.
        x: Images, (batch, 784).
        onehot: Labels, (batch, 10).
        weights: `w1` (784, hidden), `b1` (1, hidden), `w2` (hidden, 10), `b2` (1, 10).

    Returns:
        `z1`, `a1`, `da1`, `dz1` (batch, hidden); `z2`, `probabilities`, `dz2` (batch, 10); `loss`, a scalar; `dw1`,
        `db1`, `dw2`, `db2` of the shapes of the weights.
    """
    w1, b1, w2, b2 = weights
    product, size = library.product, np.float32(x.shape[0])
    z1 = product(x, w1, False, False) + b1  # (batch, hidden)
    a1 = library.relu(z1)
    z2 = product(a1, w2, False, False) + b2  # (batch, 10)
    probabilities, loss = _softmax_and_loss(library, z2, onehot)
    dz2 = (probabilities - onehot) / size
    da1 = product(dz2, w2, False, True)  # (batch, hidden)
    dz1 = da1 * library.positive(z1)
    return {
        "z1": z1,
        "a1": a1,
        "z2": z2,
        "probabilities": probabilities,
        "loss": loss,
        "dz2": dz2,
        "da1": da1,
        "dz1": dz1,
        "dw1": product(x, dz1, True, False),
        "db1": library.column_sum(dz1),
        "dw2": product(a1, dz2, True, False),
        "db2": library.column_sum(dz2),
    }


def _new_weights(library: Library, x: Array, onehot: Array, weights, rate: np.float32) -> list[Array]:
    """A whole step as one function, for a compiler."""
    values = forward_and_backward(library, x, onehot, weights)
    return [w - rate * values[name] for w, name in zip(weights, ("dw1", "db1", "dw2", "db2"), strict=True)]


def _softmax_and_loss(library: Library, z2: Array, onehot: Array) -> tuple[Array, Array]:
    exponents = library.exp(z2 - library.largest(z2))
    probabilities = exponents / library.row_sum(exponents)
    return probabilities, -library.total(onehot * library.log(probabilities + np.float32(1e-30))) / np.float32(
        z2.shape[0]
    )


def _calls(
    library: Library, x, onehot, weights, v: Mapping[str, Array], rate: np.float32
) -> dict[str, Callable[[], Array]]:
    w1, b1, w2, b2 = weights
    product, size = library.product, np.float32(x.shape[0])
    gradients = (v["dw1"], v["db1"], v["dw2"], v["db2"])
    return {
        "hidden": lambda: product(x, w1, False, False) + b1,
        "relu": lambda: library.relu(v["z1"]),
        "output": lambda: product(v["a1"], w2, False, False) + b2,
        "loss": lambda: _softmax_and_loss(library, v["z2"], onehot),
        "d-logits": lambda: (v["probabilities"] - onehot) / size,
        "d-w2": lambda: (product(v["a1"], v["dz2"], True, False), library.column_sum(v["dz2"])),
        "d-a1": lambda: product(v["dz2"], w2, False, True),
        "d-z1": lambda: v["da1"] * library.positive(v["z1"]),
        "d-w1": lambda: (product(x, v["dz1"], True, False), library.column_sum(v["dz1"])),
        "update": lambda: [library.descend(w, rate * g) for w, g in zip(weights, gradients, strict=True)],
    }


def _numpy(_device: str) -> Library:
    def copying(source: np.ndarray) -> Step:
        return partial(np.copyto, np.empty_like(source), source)

    return _like_numpy(np, move=np.ascontiguousarray, copying=copying)


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
        card=cupy_card,
        copying=lambda source: source.copy,
    )


def _like_numpy(xp: Any, **others: Any) -> Library:
    """The library of a module with NumPy's interface; `others`: what it does otherwise, by the names of `Library`."""

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

    def arithmetic(precision: str) -> AbstractContextManager:
        stack = ExitStack()
        stack.enter_context(jax.enable_x64(precision == "float64"))
        stack.enter_context(jax.default_matmul_precision("tensorfloat32" if precision == "tf32" else "highest"))
        return stack

    def rounded(a, b, transposed_a: bool, transposed_b: bool):
        return with_jax.product(a, b, (0 if transposed_a else 1, 1 if transposed_b else 0))

    return _like_numpy(
        jnp,
        move=lambda array: jax.device_put(array, target),
        positive=jax.jit(lambda z: (z > 0).astype(z.dtype)),  # one call, as a comparison by itself is
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

    def placed(make):
        def on_device(array):
            with tf.device(f"/{device.upper()}:0"):
                return make(array)

        return on_device

    def wait(value):
        if device == "gpu":  # on the processor an operation returns when it is done
            tf.test.experimental.sync_devices()
        return value

    @contextmanager
    def arithmetic(precision: str) -> Iterator[None]:
        switch = tf.config.experimental
        before = switch.tensor_float_32_execution_enabled()
        switch.enable_tensor_float_32_execution(precision == "tf32")
        try:
            yield
        finally:
            switch.enable_tensor_float_32_execution(before)

    return Library(
        move=placed(tf.constant),
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
        variable=placed(tf.Variable),
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

    @contextmanager
    def arithmetic(precision: str) -> Iterator[None]:
        products = torch.backends.cuda.matmul
        before, products.allow_tf32 = products.allow_tf32, precision == "tf32"
        try:
            yield
        finally:
            products.allow_tf32 = before

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
        card=torch_card if device == "gpu" else None,
        copying=lambda source: source.clone,
    )


LIBRARIES: dict[str, Callable[[str], Library]] = {
    "numpy": _numpy,
    "jax": _jax,
    "keras-tensorflow": _tensorflow,
    "torch": _torch,
    "cupy": _cupy,
}


def multiplying(library: Library, a: Array, b: Array) -> Step:
    """A step that multiplies two matrices that lie on the device; NumPy writes into an array that is there."""
    if isinstance(a, np.ndarray):
        return partial(np.matmul, a, b, out=np.empty_like(a))
    return partial(library.product, a, b, False, False)


# Of the products' square matrices; the best rate of these counts. On a fast card the smallest takes hardly longer than
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

# A step, what waits for it, and how much one of it does: floating-point operations, bytes, or one call.
Probe = tuple[Step, Sync, float]
Makers = dict[str, Callable[..., Probe]]  # `product` takes the matrices' side


def measure_ceilings(backend: str, device: str) -> Iterator[Row | None]:
    """Measure the ceilings that this backend's library can be asked for.

    Args:
        backend: Key of the backend.
        device: A device that it runs on.

    Yields:
        `product`, `copy` or `dispatch`, its measurement, and the work of one step: floating-point operations, bytes, or
        1. On a card also `cache`, which is bytes of its L2, not seconds, where the driver knows them. None in between.
    """
    for name, make in makers_of(BACKENDS[backend].worker, device).items():
        found: list[tuple[Measurement, float]] = []
        for one in [partial(make, side) for side in SIDES[device]] if name == "product" else [make]:
            step, sync, work = one()
            sync(step())  # compiles, and touches its memory for the first time
            found.append((measure(step, sync=sync, config=CEILINGS), work))
            yield None
        yield name, *max(found, key=lambda one: one[1] / one[0].median_s)
    if device == "gpu" and (cache_bytes := l2_cache_bytes()):
        yield row_of("cache", [cache_bytes])


def makers_of(worker: str, device: str) -> Makers:
    """What makes each probe of a worker's library; Numba brings no product of its own."""
    own = {"numba": _numba_probes, "numba-cuda": _numba_cuda_probes, "webgpu": _webgpu_probes}
    if worker in own:
        return own[worker](device)
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


def _numba_probes(_device: str) -> Makers:
    from numba import njit

    @njit
    def copied(source: np.ndarray, target: np.ndarray) -> None:
        target[:] = source

    @njit
    def more(small: float) -> float:
        return small + 1.0

    def copy() -> Probe:
        source, target = np.ones(COPY_BYTES // 4, np.float32), np.empty(COPY_BYTES // 4, np.float32)
        return lambda: copied(source, target), no_wait, 2.0 * COPY_BYTES

    def dispatch() -> Probe:
        return lambda: more(1.0), no_wait, 1.0

    return {"copy": copy, "dispatch": dispatch}


def _numba_cuda_probes(_device: str) -> Makers:
    from numba import cuda, void

    @cuda.jit(void())
    def nothing() -> None:
        pass

    def launch() -> None:
        nothing[1, 1]()  # pyright: ignore[reportIndexIssue] (the decorator makes a kernel of it)
        cuda.synchronize()

    def copy() -> Probe:
        source, target = (cuda.to_device(np.ones(COPY_BYTES // 4, np.float32)) for _ in range(2))
        return lambda: target.copy_to_device(source), lambda _: cuda.synchronize(), 2.0 * COPY_BYTES

    def dispatch() -> Probe:
        return launch, no_wait, 1.0

    return {"copy": copy, "dispatch": dispatch}


def _webgpu_probes(device: str) -> Makers:
    """The product is this project's own kernel: WebGPU comes with none."""
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
