"""Find mistakes in a measurement or a training, each with evidence, cause, remedy and expected gain.

Each detector returns one text, empty if there is no mistake, and quotes as evidence the figures it relies on.
Thresholds are named below, so that readers can disagree with them.

`card_of` checks that a worker's library computes on the requested card and in the requested precision. TensorFlow and
PyTorch silently fall back to the processor if CUDA's libraries do not load. Libraries also differ in how they multiply
float32: JAX and TensorFlow round the factors to TF32 by default (jax#12008), PyTorch and CuPy do not.
"""

# pyright: reportMissingImports=false
# PyTorch, CuPy and numba-cuda are optional.

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lib.formatting import counted, justified
from lib.model.backends.base import CannotTrain
from lib.model.backends.registry import ADAPTERS, BACKENDS, JAX_PRECISION, Runtime
from lib.model.hardware import webgpu
from lib.model.hardware.nvidia import cards, driver_version

COUNTED_SHARE = 0.1  # how much one-time costs may add to an average before it misleads
DISPATCH_SHARE = 0.7  # a reported step time below this share of the synchronised time was not synchronised
TINY_SHARE = 0.1  # of a step: with less arithmetic than this, a GPU is mostly idle
TRANSFER_SHARE = 0.1  # of a step
INPUT_SHARE = 0.2  # of a step
SPREAD = 0.1  # interquartile range over median


def compilation_counted(epoch_s: Sequence[float]) -> str:
    """Say so if an average over these epochs, in order, misleads because it counts the first."""
    average_s, steady_s = float(np.mean(epoch_s)), float(np.median(epoch_s[1:]))
    if average_s <= (1 + COUNTED_SHARE) * steady_s:
        return ""
    return (
        f"The average epoch takes {_s(average_s)}: the first took {_s(epoch_s[0])}, the later ones {_s(steady_s)}. The"
        " first call traces and compiles the program, or starts the device. Report the first call separately, and the"
        f" median of the others. {_expected(average_s / steady_s)}"
    )


def unsynchronised_timing(reported_s: float, step_s: float) -> str:
    """Say so if the user's own clock, which reported `reported_s`, did not wait for a step's result."""
    if reported_s >= DISPATCH_SHARE * step_s:
        return ""
    return (
        f"The clock showed {_s(reported_s)} per step, but until its result is ready, a step takes {_s(step_s)}. The"
        " call returns when the work is queued, not when it is done. Wait for the result before reading the clock"
        f" (block_until_ready, cuda.synchronize, onSubmittedWorkDone). {_expected(step_s / reported_s)}"
    )


def tiny_work_on_a_gpu(step_s: float, arithmetic_s: float) -> str:
    """Say so if a GPU is mostly idle, given the lower bound of a step's arithmetic on it."""
    if arithmetic_s >= TINY_SHARE * step_s:
        return ""
    return (
        f"A step takes {_s(step_s)}; its arithmetic needs {_s(arithmetic_s)} of that ({arithmetic_s / step_s:.1%}). The"
        " rest is launch overhead: each operation costs microseconds before the GPU starts on it. Train many models or"
        " larger batches at once, compile the whole epoch into one call, or use the CPU."
        f" {_expected(step_s / max(arithmetic_s, 1e-12))}"
    )


def transfer_in_the_loop(transfer_s: float, step_s: float) -> str:
    """Say so if a step spends much of its time on moving data to the device."""
    if transfer_s <= TRANSFER_SHARE * step_s:
        return ""
    return (
        f"Of {_s(step_s)} per step, {_s(transfer_s)} ({transfer_s / step_s:.0%}) are spent moving data to the device."
        " Each step sends its batch from host memory. Move the whole data set to the device once (MNIST is 150 MB in"
        f" float32), and slice the batches there. {_expected(step_s / (step_s - transfer_s))}"
    )


def disturbed_measurement(spread: float) -> str:
    """Say so if blocks differ too much, given their interquartile range over their median."""
    if spread <= SPREAD:
        return ""
    return (
        f"The middle half of the blocks spans {spread:.0%} of the median. Something else used the machine, or its clock"
        " rate changed. Close other programs and measure again; compare only measurements taken in turns."
    )


def _expected(gain: float) -> str:
    return f"Expected: a factor of {gain:.2g}."


def _s(seconds: float) -> str:
    return justified(seconds, 0.99 * seconds, 1.01 * seconds)


@dataclass(frozen=True)
class CardFacts:
    """A library's own description of the card it computes on."""

    name: str  # of the card's model
    driver: str  # version; empty if unknown
    precision: str  # of products, one of `lib.model.backends.registry.PRECISIONS`
    memory_bytes: int = 0  # usable by the library; 0: unknown


# Names of the cards that a library sees, the card in use first; its precision; bytes of memory (0: unknown).
_Devices = tuple[list[str], str, int]


def card_of(runtime: Runtime) -> CardFacts | None:
    """Set the library's precision and return the card it reports; None on a CPU.

    Call it in workers only, because it imports the library.

    Raises:
        CannotTrain: The library sees no card, or computes in another precision.
    """
    if runtime.device == "cpu":
        return None
    if runtime.device in ADAPTERS:
        return _adapter(runtime)
    label, why = BACKENDS[runtime.backend].label, ""
    try:
        answer = _ASK[BACKENDS[runtime.backend].worker](runtime.precision)
    except Exception as error:  # each library raises its own; quote the message
        answer, why = ([], runtime.precision, 0), f" It says: {str(error).strip().splitlines()[0][:300]}"
    names, precision, memory_bytes = answer
    if not names:
        text = "No NVIDIA driver lists a GPU here; use a machine with one."
        if present := len(cards()):
            text = (
                f"The driver lists {counted(present, 'GPU')}, but the framework sees 0. The framework was installed"
                " without CUDA support, or cannot load CUDA's libraries. Install the CUDA build (`make install` does so"
                " if a driver responds), and check the framework's list of devices."
            )
        raise CannotTrain(f"“{label}” was asked to use a GPU but sees none, so it is not used. {text}{why}")
    if precision != runtime.precision:
        raise CannotTrain(
            f"“{label}” multiplies in {precision} instead of {runtime.precision} as requested, so it is not used;"
            " unset the variable that changes it (NVIDIA_TF32_OVERRIDE, CUPY_TF32, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)"
        )
    return CardFacts(names[0], driver_version(), precision, memory_bytes)


def _adapter(runtime: Runtime) -> CardFacts:
    try:
        adapter = webgpu.described(webgpu.open_adapter(runtime.device))
    except LookupError as error:
        label = BACKENDS[runtime.backend].label
        raise CannotTrain(
            f"“{label}” was asked to use the {webgpu.KINDS[runtime.device]}, but {error}; check that its driver"
            " responds"
        ) from error
    name = f"{adapter.name} ({', '.join(filter(None, [webgpu.KINDS[adapter.kind], adapter.vendor]))})"
    return CardFacts(name, adapter.driver, runtime.precision)


def _jax(_precision: str) -> _Devices:
    import jax

    found = jax.devices("gpu")
    precisions = {name: precision for precision, name in JAX_PRECISION.items()}
    memory = found[0].memory_stats() or {}
    set_to = str(jax.config.jax_default_matmul_precision)  # set by the worker's environment
    return [one.device_kind for one in found], precisions.get(set_to, set_to), memory.get("bytes_limit", 0)


def _tensorflow(precision: str) -> _Devices:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    found = tf.config.list_physical_devices("GPU")
    names = [tf.config.experimental.get_device_details(one).get("device_name", one.name) for one in found]
    rounds = tf.config.experimental.tensor_float_32_execution_enabled()
    return names, "tf32" if rounds else "float32", 0


def _torch(precision: str) -> _Devices:
    import torch

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if not torch.cuda.is_available():
        torch.cuda.init()  # raises with the reason
        return [], precision, 0
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    rounds = torch.backends.cuda.matmul.allow_tf32
    return names, "tf32" if rounds else "float32", torch.cuda.get_device_properties(0).total_memory


def _cupy(_precision: str) -> _Devices:
    import cupy as cp

    count = cp.cuda.runtime.getDeviceCount()
    names = [cp.cuda.runtime.getDeviceProperties(number)["name"].decode() for number in range(count)]
    rounds = os.environ.get("CUPY_TF32") == "1"  # CuPy reads it at import
    return names, "tf32" if rounds else "float32", cp.cuda.runtime.memGetInfo()[1]


def _numba_cuda(_precision: str) -> _Devices:
    from numba import cuda

    # Products are this program's own loops, which do not round the factors.
    return [one.name for one in cuda.gpus], "float32", cuda.current_context().get_memory_info()[1]


_ASK: dict[str, Callable[[str], _Devices]] = {
    "jax": _jax,
    "keras-jax": _jax,
    "keras-tensorflow": _tensorflow,
    "torch": _torch,
    "keras-torch": _torch,
    "cupy": _cupy,
    "numba-cuda": _numba_cuda,
}
