"""The graphics card that a worker's library computes on, as the library itself reports it, and its arithmetic there.

TensorFlow and PyTorch fall back to the processor without an error where CUDA's libraries do not load, and libraries
differ in how they multiply float32: JAX and TensorFlow round the factors to TF32 by default (jax#12008), PyTorch and
CuPy do not. So a worker tells its library the precision, and asks it for both before it trains.
"""

# pyright: reportMissingImports=false
# PyTorch, CuPy and numba-cuda are optional.

import os
from collections.abc import Callable
from dataclasses import dataclass

from lib.model.backends.registry import ADAPTERS, BACKENDS, JAX_PRECISION, Runtime
from lib.model.hardware import webgpu
from lib.model.hardware.nvidia import cards, driver_version
from lib.timing.diagnosis import Observed, gpu_not_registered


@dataclass(frozen=True)
class CardFacts:
    """What a library reports of the card that it computes on."""

    name: str  # of the model
    driver: str  # version; empty if unknown
    precision: str  # of products, one of `lib.model.backends.registry.PRECISIONS`
    memory_bytes: int = 0  # that the library may use; 0: unknown


class WrongDevice(RuntimeError):
    """A library cannot use the graphics card, or not in this precision; the text says why, and what to do."""


@dataclass(frozen=True)
class _Devices:
    names: list[str]  # of the cards that the library sees, the one that it computes on first
    precision: str
    memory_bytes: int = 0


def card_of(runtime: Runtime) -> CardFacts | None:
    """Set the library's precision, and ask it for its card; None on a CPU. For workers: it imports the library.

    Raises:
        WrongDevice: The library sees no card, or computes in another precision.
    """
    if runtime.device == "cpu":
        return None
    if runtime.device in ADAPTERS:
        return _adapter(runtime)
    label, why = BACKENDS[runtime.backend].label, ""
    try:
        answer = _ASK[BACKENDS[runtime.backend].worker](runtime.precision)
    except Exception as error:  # any library's: what it says is the reason
        answer, why = _Devices([], runtime.precision), f" It says: {str(error).strip().splitlines()[0][:300]}"
    if not answer.names:
        finding = gpu_not_registered(Observed("gpu", gpus_present=len(cards()), gpus_registered=0))
        text = finding.text if finding is not None else "No NVIDIA driver lists a card here; use a machine with one."
        raise WrongDevice(f"“{label}” was asked for a graphics card and sees none, so it is not used. {text}{why}")
    if answer.precision != runtime.precision:
        raise WrongDevice(
            f"“{label}” multiplies in {answer.precision} where {runtime.precision} was asked for, so it is not used;"
            " unset what sets its precision (NVIDIA_TF32_OVERRIDE, CUPY_TF32, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)"
        )
    return CardFacts(answer.names[0], driver_version(), answer.precision, answer.memory_bytes)


def _adapter(runtime: Runtime) -> CardFacts:
    """WebGPU's, which knows no other precision."""
    try:
        adapter = webgpu.described(webgpu.open_adapter(runtime.device))
    except LookupError as error:
        label = BACKENDS[runtime.backend].label
        raise WrongDevice(
            f"“{label}” was asked for the {webgpu.KINDS[runtime.device]}, and {error}; look whether its driver answers"
        ) from error
    name = f"{adapter.name} ({', '.join(filter(None, [webgpu.KINDS[adapter.kind], adapter.vendor]))})"
    return CardFacts(name, adapter.driver, runtime.precision)


def _jax(_precision: str) -> _Devices:
    import jax

    found = jax.devices("gpu")
    precisions = {name: precision for precision, name in JAX_PRECISION.items()}
    memory = found[0].memory_stats() or {}
    set_to = str(jax.config.jax_default_matmul_precision)  # by the worker's environment
    return _Devices([one.device_kind for one in found], precisions.get(set_to, set_to), memory.get("bytes_limit", 0))


def _tensorflow(precision: str) -> _Devices:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    found = tf.config.list_physical_devices("GPU")
    names = [tf.config.experimental.get_device_details(one).get("device_name", one.name) for one in found]
    rounds = tf.config.experimental.tensor_float_32_execution_enabled()
    return _Devices(names, "tf32" if rounds else "float32")


def _torch(precision: str) -> _Devices:
    import torch

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if not torch.cuda.is_available():
        torch.cuda.init()  # raises, and says why
        return _Devices([], precision)
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    rounds = torch.backends.cuda.matmul.allow_tf32
    return _Devices(names, "tf32" if rounds else "float32", torch.cuda.get_device_properties(0).total_memory)


def _cupy(_precision: str) -> _Devices:
    import cupy as cp

    count = cp.cuda.runtime.getDeviceCount()
    names = [cp.cuda.runtime.getDeviceProperties(number)["name"].decode() for number in range(count)]
    rounds = os.environ.get("CUPY_TF32") == "1"  # read when it is imported
    return _Devices(names, "tf32" if rounds else "float32", cp.cuda.runtime.memGetInfo()[1])


def _numba_cuda(_precision: str) -> _Devices:
    from numba import cuda

    # Its products round nothing: they are this program's own loops.
    return _Devices([one.name for one in cuda.gpus], "float32", cuda.current_context().get_memory_info()[1])


_ASK: dict[str, Callable[[str], _Devices]] = {
    "jax": _jax,
    "keras-jax": _jax,
    "keras-tensorflow": _tensorflow,
    "torch": _torch,
    "keras-torch": _torch,
    "cupy": _cupy,
    "numba-cuda": _numba_cuda,
}
