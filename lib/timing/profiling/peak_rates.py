"""What each library's ceilings are measured with: large products, one large copy, one empty call.

Runs in a worker, because a ceiling must have the same library, threads and instructions as what is compared with it.
"""

# pyright: reportMissingImports=false
# PyTorch is optional.

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from lib.model.backends.registry import BACKENDS
from lib.model.hardware.nvidia import l2_cache_bytes
from lib.model.spec import N_PIXELS
from lib.timing.measurement import Config, Ended, Measurement, Step, Sync, measure, no_wait
from lib.timing.profiling.harness import Row

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
CONFIG = Config(warm_up_s=0.1, min_time_s=0.2, max_time_s=1.2, spread_target=0.05)


@dataclass(frozen=True)
class Probe:
    """A step, and how much one of it does: floating-point operations, bytes read and written, or one call."""

    step: Step
    sync: Sync
    work: float


Makers = dict[str, Callable[..., Probe]]  # `product` takes the matrices' side


def probe(backend: str, device: str) -> Iterator[Row | None]:
    """Measure the ceilings that this backend's library can be asked for.

    Args:
        backend: Key of the backend.
        device: A device that it runs on.

    Yields:
        `product`, `copy` or `dispatch`, its measurement, and the work of one step: floating-point operations, bytes, or
        1. On a card also `cache`, which is bytes of its L2, not seconds, where the driver knows them. None in between.
    """
    for name, make in _MAKERS[BACKENDS[backend].worker](device).items():
        found: list[tuple[Measurement, float]] = []
        for one in [partial(make, side) for side in SIDES[device]] if name == "product" else [make]:
            made = one()
            made.sync(made.step())  # compiles, and touches its memory for the first time
            found.append((measure(made.step, sync=made.sync, config=CONFIG), made.work))
            yield None
        yield name, *max(found, key=lambda one: one[1] / one[0].median_s)
    if device == "gpu" and (cache_bytes := l2_cache_bytes()):
        yield "cache", Measurement((float(cache_bytes),), 1, Ended.CAP), 1.0


def _numpy(_device: str) -> Makers:
    def product(side: int) -> Probe:
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal((side, side), np.float32) for _ in range(2))
        out = np.empty_like(a)
        return Probe(lambda: np.matmul(a, b, out=out), no_wait, 2.0 * side**3)

    def copy() -> Probe:
        source, target = np.ones(COPY_BYTES // 4, np.float32), np.empty(COPY_BYTES // 4, np.float32)
        return Probe(lambda: np.copyto(target, source), no_wait, 2.0 * COPY_BYTES)

    def dispatch() -> Probe:
        small, sum_of = np.ones(1, np.float32), np.empty(1, np.float32)
        return Probe(lambda: np.add(small, small, out=sum_of), no_wait, 1.0)

    return {"product": product, "copy": copy, "dispatch": dispatch}


def _numba(_device: str) -> Makers:
    """No product: Numba brings none of its own."""
    from numba import njit

    @njit
    def copied(source: np.ndarray, target: np.ndarray) -> None:
        target[:] = source

    @njit
    def more(small: float) -> float:
        return small + 1.0

    def copy() -> Probe:
        source, target = np.ones(COPY_BYTES // 4, np.float32), np.empty(COPY_BYTES // 4, np.float32)
        return Probe(lambda: copied(source, target), no_wait, 2.0 * COPY_BYTES)

    def dispatch() -> Probe:
        return Probe(lambda: more(1.0), no_wait, 1.0)

    return {"copy": copy, "dispatch": dispatch}


def _jax(device: str) -> Makers:
    import jax

    from lib.model.backends import with_jax

    target, wait = jax.devices(device)[0], jax.block_until_ready

    def product(side: int) -> Probe:
        rng, times = np.random.default_rng(0), jax.jit(with_jax.product)
        a, b = (jax.device_put(rng.standard_normal((side, side), np.float32), target) for _ in range(2))
        return Probe(lambda: times(a, b), wait, 2.0 * side**3)

    def copy() -> Probe:
        source, more = jax.device_put(np.ones(COPY_BYTES // 4, np.float32), target), jax.jit(lambda x: x + 1)
        return Probe(lambda: more(source), wait, 2.0 * COPY_BYTES)

    def dispatch() -> Probe:
        small, more = jax.device_put(np.float32(1), target), jax.jit(lambda x: x + 1)
        return Probe(lambda: wait(more(small)), no_wait, 1.0)

    return {"product": product, "copy": copy, "dispatch": dispatch}


def _tensorflow(device: str) -> Makers:
    import tensorflow as tf

    def dispatch() -> Probe:
        with tf.device(f"/{device.upper()}:0"):
            small = tf.constant(1.0)
        more = tf.function(lambda x: x + 1)
        return Probe(lambda: more(small).numpy(), no_wait, 1.0)

    return {"dispatch": dispatch}


def _torch(device: str) -> Makers:
    import torch

    from lib.model.backends.with_torch import torch_device, wait

    target = torch_device(device)

    def done(_: object) -> None:
        wait(device)

    def product(side: int) -> Probe:
        a, b = torch.randn(side, side, device=target), torch.randn(side, side, device=target)
        return Probe(lambda: a @ b, done, 2.0 * side**3)

    def copy() -> Probe:
        return Probe(torch.ones(COPY_BYTES // 4, device=target).clone, done, 2.0 * COPY_BYTES)

    def dispatch() -> Probe:
        small = torch.ones(1, device=target)
        return Probe(lambda: done(small + 1), no_wait, 1.0)

    return {"product": product, "copy": copy, "dispatch": dispatch}


def _numba_cuda(_device: str) -> Makers:
    """No product: Numba brings none of its own."""
    from numba import cuda, void

    @cuda.jit(void())
    def nothing() -> None:
        pass

    def launch() -> None:
        nothing[1, 1]()  # pyright: ignore[reportIndexIssue] (the decorator makes a kernel of it)
        cuda.synchronize()

    def copy() -> Probe:
        source, target = (cuda.to_device(np.ones(COPY_BYTES // 4, np.float32)) for _ in range(2))
        return Probe(lambda: target.copy_to_device(source), lambda _: cuda.synchronize(), 2.0 * COPY_BYTES)

    def dispatch() -> Probe:
        return Probe(launch, no_wait, 1.0)

    return {"copy": copy, "dispatch": dispatch}


def _cupy(_device: str) -> Makers:
    import cupy as cp

    from lib.model.backends.with_cupy import wait

    def done(_: object) -> None:
        wait()

    def product(side: int) -> Probe:
        a, b = cp.random.rand(side, side, dtype=np.float32), cp.random.rand(side, side, dtype=np.float32)
        return Probe(lambda: a @ b, done, 2.0 * side**3)

    def copy() -> Probe:
        return Probe(cp.ones(COPY_BYTES // 4, np.float32).copy, done, 2.0 * COPY_BYTES)

    def dispatch() -> Probe:
        small = cp.ones(1, np.float32)
        return Probe(lambda: done(small + 1), no_wait, 1.0)

    return {"product": product, "copy": copy, "dispatch": dispatch}


def _webgpu(device: str) -> Makers:
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
        return Probe(lambda: run.submit(0), done, float(program.flops))

    def copy() -> Probe:
        n_bytes = min(COPY_BYTES, on.largest_bytes)
        source, target = on.buffer(n_bytes, "A copy"), on.buffer(n_bytes, "A copy")
        return Probe(lambda: on.copy(source, target, n_bytes), done, 2.0 * n_bytes)

    def dispatch() -> Probe:
        run = Execution(on, of_matrices(1), no_images, 1, "An empty call")
        return Probe(lambda: done(run.submit(0)), no_wait, 1.0)

    return {"product": product, "copy": copy, "dispatch": dispatch}


_MAKERS: dict[str, Callable[[str], Makers]] = {
    "numpy": _numpy,
    "numba": _numba,
    "jax": _jax,
    "torch": _torch,
    "cupy": _cupy,
    "numba-cuda": _numba_cuda,
    "keras-jax": _jax,
    "keras-torch": _torch,
    "keras-tensorflow": _tensorflow,
    "webgpu": _webgpu,
}
