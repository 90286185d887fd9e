"""What is wrong with a measurement, or with what it measured: evidence, cause, remedy, and the gain to expect.

Each detector returns None without the figures that it needs, and quotes in its evidence those that it relies on.
Thresholds are named below, so that a reader can disagree with one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lib.formatting import justified
from lib.model.hardware.webgpu import SOFTWARE

COUNTED_SHARE = 0.1  # how much one-time costs may add to an average before it misleads
DISPATCH_SHARE = 0.7  # a reported step time below this share of the synchronised one was not synchronised
TINY_SHARE = 0.1  # of a step: with less arithmetic than this, a GPU is mostly idle
TRANSFER_SHARE = 0.1  # of a step
INPUT_SHARE = 0.2  # of a step
SPREAD = 0.1  # interquartile range over median


@dataclass(frozen=True)
class Observed:
    """What is known about a timed training; None for the rest. Seconds are wall time."""

    device: str = "cpu"
    epoch_s: Sequence[float] = ()  # in order, the first included
    first_call_counted: bool = False  # whether the reported average includes the first epoch
    step_s: float | None = None  # in the steady state, synchronised
    reported_step_s: float | None = None  # by the user's own clock
    transfer_s: float | None = None  # per step, inside the loop
    input_s: float | None = None  # per step, spent on fetching the next batch
    preprocessing_s: float | None = None  # per step, of processor time on its images before they are a batch
    arithmetic_s: float | None = None  # the floor of a step on this device: FLOPs over its best product rate
    precisions: Sequence[str] = ()  # of the compared rows: float32, float64, tf32
    spread: float | None = None  # interquartile range over median
    gpus_present: int | None = None  # listed by the driver
    gpus_registered: int | None = None  # seen by the framework
    batch_sizes: Sequence[int] = ()  # of the compared rows


@dataclass(frozen=True)
class Finding:
    """One mistake in a measurement or a training, or one reason for doubt."""

    name: str
    evidence: str
    cause: str
    remedy: str
    # How many times faster it could be, or by what factor the figure is wrong; None if unknown.
    gain: float | None = None

    @property
    def text(self) -> str:
        times = f" Expected: a factor of {self.gain:.2g}." if self.gain is not None else ""
        return f"{self.evidence} {self.cause} {self.remedy}{times}"


def findings(observed: Observed) -> list[Finding]:
    """Everything that can be concluded from these figures, the largest gain first."""
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
        f"The average epoch is {_s(average_s)}, but all after the first take {_s(steady_s)}; the first took"
        f" {_s(observed.epoch_s[0])}.",
        "The first call traces and compiles the program, or starts the device.",
        "Report the first call apart, and the median of the others.",
        average_s / steady_s,
    )


def unsynchronised_timing(observed: Observed) -> Finding | None:
    reported_s, step_s = observed.reported_step_s, observed.step_s
    if reported_s is None or step_s is None or reported_s >= DISPATCH_SHARE * step_s:
        return None
    return Finding(
        "unsynchronised timing",
        f"The clock said {_s(reported_s)} per step; once the result is waited for, a step takes {_s(step_s)}.",
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
        f"A step takes {_s(step_s)}, of which arithmetic needs {_s(arithmetic_s)} ({arithmetic_s / step_s:.1%}).",
        "The rest is launching: each operation costs microseconds before the card begins.",
        "Train many models or larger batches at once, compile the whole epoch into one call, or use the processor.",
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
        "Move the whole data set once (MNIST is 150 MB in float32), and slice the batches on the device.",
    )


def input_bound(observed: Observed) -> Finding | None:
    preprocessing_s = observed.preprocessing_s
    cause = "Python builds each batch while the device waits."
    remedy = "Keep the data as one array, and take batches by slicing."
    if preprocessing_s is not None and observed.input_s and preprocessing_s > 0.5 * observed.input_s:
        cause = f"Preprocessing takes {_s(preprocessing_s)} of processor time per step, while the device waits."
        remedy = (
            "Preprocess ahead and in parallel by code that releases the interpreter's lock, or once for all epochs."
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
    evidence = f"Of {_s(step_s)} per step, {_s(part_s)} ({part_s / step_s:.0%}) go into {what}."
    gain = step_s / (step_s - part_s) if part_s < step_s else None
    return Finding(name, evidence, cause, remedy, gain)


def wrong_precision(observed: Observed) -> Finding | None:
    kinds = sorted(set(observed.precisions))
    if len(kinds) < 2:
        return None
    return Finding(
        "wrong precision",
        f"The rows that are compared used {' and '.join(kinds)}.",
        "float64 runs at half the speed, or at a thirtieth on many graphics cards; TF32 rounds the factors of products"
        " to 10 bits, bfloat16 to 7.",
        "Compare rows of one precision, and name it in the table.",
    )


def disturbed_measurement(observed: Observed) -> Finding | None:
    if observed.spread is None or observed.spread <= SPREAD:
        return None
    return Finding(
        "disturbed measurement",
        f"The middle half of the blocks spreads over {observed.spread:.0%} of the median.",
        "Something else used the machine, or its clock changed.",
        "Close other programs and measure again; compare only what was measured in turns.",
    )


def gpu_not_registered(observed: Observed) -> Finding | None:
    present, registered = observed.gpus_present, observed.gpus_registered
    if not present or registered is None or registered >= present:
        return None
    return Finding(
        "GPU present but not registered",
        f"The driver lists {present} GPU{'s' if present != 1 else ''}, the framework sees {registered}.",
        "The framework was installed without CUDA support, or cannot load CUDA's libraries.",
        "Install the CUDA build (`make install` does so where a driver answers), and check the framework's list of"
        " devices.",
    )


def batches_by_epoch_time_alone(observed: Observed) -> Finding | None:
    sizes = sorted(set(observed.batch_sizes))
    if len(sizes) < 2:
        return None
    return Finding(
        "batch sizes compared by epoch time alone",
        f"Batch sizes {', '.join(map(str, sizes))} are compared by seconds per epoch.",
        "A larger batch takes fewer steps per epoch, and needs more epochs for the same accuracy.",
        "Compare the time to a target accuracy, with three seeds or more.",
    )


def _s(seconds: float) -> str:
    return justified(seconds, 0.99 * seconds, 1.01 * seconds)


DETECTORS: tuple[Callable[[Observed], Finding | None], ...] = (
    compilation_counted,
    unsynchronised_timing,
    tiny_work_on_a_gpu,
    transfer_in_the_loop,
    input_bound,
    wrong_precision,
    disturbed_measurement,
    gpu_not_registered,
    batches_by_epoch_time_alone,
)
