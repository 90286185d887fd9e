"""What each library's ceilings are measured with: one large product, one large copy, one empty call.

Runs in a worker, because a ceiling must have the same library, threads and instructions as what is compared with it.
"""

# pyright: reportMissingImports=false
# PyTorch is optional.

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lib.backends.registry import BACKENDS
from lib.timing.measurement import Config, Measurement, Step, Sync, measure, no_wait

SIDE = 2048
COPY_BYTES = 256 * 2**20  # far beyond any processor's cache
CONFIG = Config(warm_up_s=0.1, min_time_s=0.2, max_time_s=1.2, spread_target=0.05)


@dataclass(frozen=True)
class Probe:
    """A step, and how much one of it does: floating-point operations, bytes read and written, or one call."""

    step: Step
    sync: Sync
    work: float


def probe(backend: str, device: str) -> Iterator[tuple[str, Measurement, float]]:
    """Measure the ceilings that this backend's library can be asked for.

    Args:
        backend: Key of the backend.
        device: `cpu` or `gpu`.

    Yields:
        `product`, `copy` or `dispatch`, its measurement, and the work of one step: floating-point operations, bytes, or
        1.
    """
    for name, one in _MAKERS[BACKENDS[backend].worker](device).items():
        one.sync(one.step())  # compiles, and touches its memory for the first time
        yield name, measure(one.step, sync=one.sync, config=CONFIG), one.work


def _numpy(_device: str) -> dict[str, Probe]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIDE, SIDE), np.float32) for _ in range(2))
    out = np.empty_like(a)
    source, target = np.ones(COPY_BYTES // 4, np.float32), np.empty(COPY_BYTES // 4, np.float32)
    small, sum_of = np.ones(1, np.float32), np.empty(1, np.float32)
    return {
        "product": Probe(lambda: np.matmul(a, b, out=out), no_wait, 2.0 * SIDE**3),
        "copy": Probe(lambda: np.copyto(target, source), no_wait, 2.0 * COPY_BYTES),
        "dispatch": Probe(lambda: np.add(small, small, out=sum_of), no_wait, 1.0),
    }


def _jax(device: str) -> dict[str, Probe]:
    import jax

    target = jax.devices(device)[0]
    rng = np.random.default_rng(0)
    a, b = (jax.device_put(rng.standard_normal((SIDE, SIDE), np.float32), target) for _ in range(2))
    source = jax.device_put(np.ones(COPY_BYTES // 4, np.float32), target)
    small = jax.device_put(np.float32(1), target)
    product, copy, empty = jax.jit(lambda a, b: a @ b), jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 1)
    return {
        "product": Probe(lambda: product(a, b), jax.block_until_ready, 2.0 * SIDE**3),
        "copy": Probe(lambda: copy(source), jax.block_until_ready, 2.0 * COPY_BYTES),
        "dispatch": Probe(lambda: jax.block_until_ready(empty(small)), no_wait, 1.0),
    }


def _tensorflow(device: str) -> dict[str, Probe]:
    import tensorflow as tf

    with tf.device(f"/{device.upper()}:0"):
        small = tf.constant(1.0)
    empty = tf.function(lambda x: x + 1)
    return {"dispatch": Probe(lambda: empty(small).numpy(), no_wait, 1.0)}


def _torch(device: str) -> dict[str, Probe]:
    import torch

    from lib.backends.with_torch import torch_device, wait

    target = torch_device(device)
    a, b = torch.randn(SIDE, SIDE, device=target), torch.randn(SIDE, SIDE, device=target)
    source, small = torch.ones(COPY_BYTES // 4, device=target), torch.ones(1, device=target)

    def done(_: object) -> None:
        wait(device)

    return {
        "product": Probe(lambda: a @ b, done, 2.0 * SIDE**3),
        "copy": Probe(source.clone, done, 2.0 * COPY_BYTES),
        "dispatch": Probe(lambda: done(small + 1), no_wait, 1.0),
    }


def _cupy(_device: str) -> dict[str, Probe]:
    import cupy as cp

    from lib.backends.with_cupy import wait

    a, b = cp.random.rand(SIDE, SIDE, dtype=np.float32), cp.random.rand(SIDE, SIDE, dtype=np.float32)
    source, small = cp.ones(COPY_BYTES // 4, np.float32), cp.ones(1, np.float32)

    def done(_: object) -> None:
        wait()

    return {
        "product": Probe(lambda: a @ b, done, 2.0 * SIDE**3),
        "copy": Probe(source.copy, done, 2.0 * COPY_BYTES),
        "dispatch": Probe(lambda: done(small + 1), no_wait, 1.0),
    }


_MAKERS: dict[str, Callable[[str], dict[str, Probe]]] = {
    "numpy": _numpy,
    "jax": _jax,
    "torch": _torch,
    "cupy": _cupy,
    "keras-jax": _jax,
    "keras-torch": _torch,
    "keras-tensorflow": _tensorflow,
}
