"""Find mistakes in a measurement or a training, each with evidence, cause, remedy and expected gain.

Each detector returns None if it lacks the figures it needs, and quotes as evidence the figures it relies on.
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
from lib.model.hardware.webgpu import SOFTWARE

COUNTED_SHARE = 0.1  # how much one-time costs may add to an average before it misleads
DISPATCH_SHARE = 0.7  # a reported step time below this share of the synchronised time was not synchronised
TINY_SHARE = 0.1  # of a step: with less arithmetic than this, a GPU is mostly idle
TRANSFER_SHARE = 0.1  # of a step
INPUT_SHARE = 0.2  # of a step
SPREAD = 0.1  # interquartile range over median


@dataclass(frozen=True)
class Observed:
    """The known figures of a timed training; unknown ones are None. Seconds are wall time."""

    device: str = "cpu"
    epoch_s: Sequence[float] = ()  # in order, including the first
    first_call_counted: bool = False  # whether the reported average includes the first epoch
    step_s: float | None = None  # in the steady state, synchronised
    reported_step_s: float | None = None  # by the user's own clock
    transfer_s: float | None = None  # per step, inside the loop
    input_s: float | None = None  # per step, spent on fetching the next batch
    preprocessing_s: float | None = None  # processor time per step on its images before they are batched
    arithmetic_s: float | None = None  # lower bound of a step on this device: FLOPs over its best product rate
    spread: float | None = None  # interquartile range over median
    gpus_present: int | None = None  # listed by the driver
    gpus_registered: int | None = None  # seen by the framework


@dataclass(frozen=True)
class Finding:
    """One mistake in a measurement or a training, or one reason for doubt."""

    name: str
    evidence: str
    cause: str
    remedy: str
    gain: float | None = None  # possible speedup, or the factor by which the figure is wrong; None if unknown

    @property
    def text(self) -> str:
        times = f" Expected: a factor of {self.gain:.2g}." if self.gain is not None else ""
        return f"{self.evidence} {self.cause} {self.remedy}{times}"


def findings(observed: Observed) -> list[Finding]:
    """Return all findings from these figures, largest gain first."""
    found = [finding for detect in DETECTORS if (finding := detect(observed)) is not None]
    return sorted(found, key=lambda finding: -(finding.gain or 0.0))


def compilation_counted(observed: Observed) -> Finding | None:
    if not observed.first_call_counted or len(observed.epoch_s) < 2:
        return None
    average_s, steady_s = float(np.mean(observed.epoch_s)), float(np.median(observed.epoch_s[1:]))
    if average_s <= (1 + COUNTED_SHARE) * steady_s:
        return None
    return Finding(
        "compilation counted",
        f"The average epoch takes {_s(average_s)}: the first took {_s(observed.epoch_s[0])}, the later ones"
        f" {_s(steady_s)}.",
        "The first call traces and compiles the program, or starts the device.",
        "Report the first call separately, and the median of the others.",
        average_s / steady_s,
    )


def unsynchronised_timing(observed: Observed) -> Finding | None:
    reported_s, step_s = observed.reported_step_s, observed.step_s
    if reported_s is None or step_s is None or reported_s >= DISPATCH_SHARE * step_s:
        return None
    return Finding(
        "unsynchronised timing",
        f"The clock showed {_s(reported_s)} per step, but until its result is ready, a step takes {_s(step_s)}.",
        "The call returns when the work is queued, not when it is done.",
        "Wait for the result before reading the clock (block_until_ready, cuda.synchronize, onSubmittedWorkDone).",
        step_s / reported_s,
    )


def tiny_work_on_a_gpu(observed: Observed) -> Finding | None:
    arithmetic_s, step_s = observed.arithmetic_s, observed.step_s
    if observed.device in ("cpu", SOFTWARE) or arithmetic_s is None or step_s is None:
        return None
    if arithmetic_s >= TINY_SHARE * step_s:
        return None
    return Finding(
        "tiny work on a GPU",
        f"A step takes {_s(step_s)}; its arithmetic needs {_s(arithmetic_s)} of that ({arithmetic_s / step_s:.1%}).",
        "The rest is launch overhead: each operation costs microseconds before the GPU starts on it.",
        "Train many models or larger batches at once, compile the whole epoch into one call, or use the CPU.",
        step_s / max(arithmetic_s, 1e-12),
    )


def transfer_in_the_loop(observed: Observed) -> Finding | None:
    return _share_of_the_step(
        observed,
        observed.transfer_s,
        TRANSFER_SHARE,
        "transfer in the loop",
        "moving data to the device",
        "Each step sends its batch from host memory.",
        "Move the whole data set to the device once (MNIST is 150 MB in float32), and slice the batches there.",
    )


def input_bound(observed: Observed) -> Finding | None:
    preprocessing_s = observed.preprocessing_s
    cause = "Python builds each batch while the device waits."
    remedy = "Keep the data in one array, and slice the batches from it."
    if preprocessing_s is not None and observed.input_s and preprocessing_s > 0.5 * observed.input_s:
        cause = f"Preprocessing takes {_s(preprocessing_s)} of CPU time per step while the device waits."
        remedy = (
            "Preprocess ahead, in parallel, with code that releases the interpreter's lock, or once for all epochs."
        )
    return _share_of_the_step(
        observed, observed.input_s, INPUT_SHARE, "input-bound", "fetching the next batch", cause, remedy
    )


def _share_of_the_step(
    observed: Observed, part_s: float | None, limit: float, name: str, what: str, cause: str, remedy: str
) -> Finding | None:
    step_s = observed.step_s
    if part_s is None or step_s is None or part_s <= limit * step_s:
        return None
    evidence = f"Of {_s(step_s)} per step, {_s(part_s)} ({part_s / step_s:.0%}) are spent {what}."
    gain = step_s / (step_s - part_s) if part_s < step_s else None
    return Finding(name, evidence, cause, remedy, gain)


def disturbed_measurement(observed: Observed) -> Finding | None:
    if observed.spread is None or observed.spread <= SPREAD:
        return None
    return Finding(
        "disturbed measurement",
        f"The middle half of the blocks spans {observed.spread:.0%} of the median.",
        "Something else used the machine, or its clock rate changed.",
        "Close other programs and measure again; compare only measurements taken in turns.",
    )


def gpu_not_registered(observed: Observed) -> Finding | None:
    present, registered = observed.gpus_present, observed.gpus_registered
    if not present or registered is None or registered >= present:
        return None
    return Finding(
        "GPU present but not registered",
        f"The driver lists {counted(present, 'GPU')}, but the framework sees {registered}.",
        "The framework was installed without CUDA support, or cannot load CUDA's libraries.",
        "Install the CUDA build (`make install` does so if a driver responds), and check the framework's list of"
        " devices.",
    )


def _s(seconds: float) -> str:
    return justified(seconds, 0.99 * seconds, 1.01 * seconds)


DETECTORS: tuple[Callable[[Observed], Finding | None], ...] = (
    compilation_counted,
    unsynchronised_timing,
    tiny_work_on_a_gpu,
    transfer_in_the_loop,
    input_bound,
    disturbed_measurement,
    gpu_not_registered,
)


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
        finding = gpu_not_registered(Observed("gpu", gpus_present=len(cards()), gpus_registered=0))
        text = finding.text if finding is not None else "No NVIDIA driver lists a GPU here; use a machine with one."
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
