"""Ways to bring an array to where a library computes: copied, from memory that cannot be paged out, or not at all.

Runs in a library's worker. On a graphics card `copied` is what everybody writes: from pageable memory, which the driver
copies into a buffer of its own first; from `pinned` memory the card reads directly. On a processor host and device are
one memory: a copy is a choice, and an alias of the same bytes is the other.
"""

# pyright: reportMissingImports=false
# PyTorch and CuPy are optional.

from collections.abc import Callable

import numpy as np

from lib.model.data.mnist import aligned
from lib.timing.measurement import Step
from lib.timing.profiling.request import ALIASED, COPIED, PINNED


def transfers(worker: str, device: str, n_bytes: int) -> dict[str, Step]:
    """The ways that a library has, by name; each call waits until the array is where it should be.

    Args:
        worker: Key of `lib.timing.profiling.operations.LIBRARIES`.
        device: `cpu` or `gpu`.
        n_bytes: Of the array, a multiple of 4.
    """
    source = aligned((n_bytes // 4,), np.float32)  # as XLA wants it: else it copies where it could alias
    source[:] = 1.0
    return _MAKERS[worker](device, source)


def _numpy(_device: str, source: np.ndarray) -> dict[str, Step]:
    return {COPIED: source.copy, ALIASED: source.view}


def _jax(device: str, source: np.ndarray) -> dict[str, Step]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    target, wait = jax.devices(device)[0], jax.block_until_ready
    if device == "cpu":  # `device_put` aliases an aligned array here, also where it is told not to
        return {COPIED: lambda: wait(jnp.array(source)), ALIASED: lambda: wait(jax.device_put(source, target))}
    pinned = wait(jax.device_put(source, SingleDeviceSharding(target, memory_kind="pinned_host")))
    there = SingleDeviceSharding(target, memory_kind="device")
    on_card = wait(jax.device_put(source, there))
    return {
        COPIED: lambda: wait(jax.device_put(source, target)),
        PINNED: lambda: wait(jax.device_put(pinned, there)),
        ALIASED: lambda: wait(jax.device_put(on_card, there, may_alias=True)),
    }


def _tensorflow(device: str, source: np.ndarray) -> dict[str, Step]:
    import tensorflow as tf

    def copied() -> object:
        with tf.device(f"/{device.upper()}:0"):
            made = tf.constant(source)
        if device == "gpu":
            tf.test.experimental.sync_devices()
        return made

    here = copied()
    return {COPIED: copied, ALIASED: lambda: tf.identity(here)}


def _torch(device: str, source: np.ndarray) -> dict[str, Step]:
    import torch

    from lib.model.backends.with_torch import torch_device, wait

    target, host = torch_device(device), torch.from_numpy(source)

    def moved(tensor: torch.Tensor, copy: bool = False) -> Step:
        def call() -> object:
            there = tensor.to(target, copy=copy)
            wait(device)
            return there

        return call

    if device == "cpu":
        return {COPIED: moved(host, copy=True), ALIASED: lambda: torch.from_numpy(source)}
    return {COPIED: moved(host), PINNED: moved(host.pin_memory()), ALIASED: moved(host.to(target))}


def _cupy(_device: str, source: np.ndarray) -> dict[str, Step]:
    import cupy as cp

    from lib.model.backends.with_cupy import wait

    def copied() -> object:
        there = cp.asarray(source)
        wait()
        return there

    here = cp.asarray(source)
    return {COPIED: copied, ALIASED: lambda: cp.asarray(here)}


_MAKERS: dict[str, Callable[[str, np.ndarray], dict[str, Step]]] = {
    "numpy": _numpy,
    "jax": _jax,
    "keras-tensorflow": _tensorflow,
    "torch": _torch,
    "cupy": _cupy,
}
