"""What NVIDIA GPUs report through NVML: their current state, and how busy they were between two moments.

`utilisation` is the figure that `nvidia-smi` shows, also in the `sm` column of `nvidia-smi dmon`: the share of time in
which at least one kernel ran, even if on one multiprocessor of a hundred. `sm_activity` and `sm_occupancy` are what it
is often mistaken for; chips from Hopper on report them (GPM). This needs the package nvidia-ml-py, which comes with the
GPU requirements; without it, or without a driver, no GPUs are found.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# The bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean that the GPU runs slower than it could (nvml.h).
THROTTLES = {
    0x004: "its power limit",
    0x008: "a hardware slowdown",
    0x020: "its temperature (software)",
    0x040: "its temperature (hardware)",
    0x080: "the power supply's brake",
}
_SM_UTIL, _SM_OCCUPANCY = 2, 3  # NVML_GPM_METRIC_*


@dataclass(frozen=True)
class Gpu:
    """The state of one GPU at one moment; None for what this chip or driver does not report."""

    name: str
    driver: str
    memory_bytes: int
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilisation: float | None = None  # share of recent time with any kernel running
    throttled_by: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The state in one line, without what is unknown."""
        parts = [self.name, f"{self.memory_bytes / 2**30:.0f} GiB", f"driver {self.driver}"]
        if self.sm_clock_mhz and self.max_sm_clock_mhz:
            parts.append(f"{self.sm_clock_mhz} of {self.max_sm_clock_mhz} MHz")
        if self.power_w is not None and self.power_limit_w is not None:
            parts.append(f"{self.power_w:.0f} of {self.power_limit_w:.0f} W")
        if self.throttled_by:
            parts.append(f"slowed by {' and '.join(self.throttled_by)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Activity:
    """How busy a GPU was between two moments, as shares from 0 to 1."""

    sm_activity: float  # multiprocessors with work
    sm_occupancy: float  # resident warps, of the largest possible number


def gpus() -> list[Gpu]:
    """All GPUs that the driver lists; none without a driver or its Python binding."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [_gpu(nvml, handle, driver) for handle in handles]


@contextmanager
def watched_activity(index: int = 0) -> Iterator[list[Activity]]:
    """`with watched_activity() as found: ...`, then `found[0]`; `found` stays empty where the GPU cannot report it."""
    found: list[Activity] = []
    with _nvml() as nvml:
        before = _sample(nvml, index) if nvml is not None else None
        yield found
        if nvml is not None and before is not None and (after := _sample(nvml, index)) is not None:
            with suppress(nvml.NVMLError):
                found.append(_activity(nvml, before, after))


def _gpu(nvml: ModuleType, handle: Any, driver: str) -> Gpu:
    def ask(function: str, *arguments: object) -> Any:
        """The answer, or None where this chip or driver does not know."""
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    rates, reasons = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return Gpu(
        _text(nvml.nvmlDeviceGetName(handle)),
        driver,
        nvml.nvmlDeviceGetMemoryInfo(handle).total,
        ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        None if power is None else power / 1000,
        None if limit is None else limit / 1000,
        None if rates is None else rates.gpu / 100,
        tuple(text for bit, text in THROTTLES.items() if (reasons or 0) & bit),
    )


def _sample(nvml: ModuleType, index: int) -> Any:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc())
    except (nvml.NVMLError, AttributeError):
        return None


def _activity(nvml: ModuleType, before: Any, after: Any) -> Activity:
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics, asked.sample1, asked.sample2 = nvml.NVML_GPM_METRICS_GET_VERSION, 2, before, after
    asked.metrics[0].metricId, asked.metrics[1].metricId = _SM_UTIL, _SM_OCCUPANCY
    answer = nvml.nvmlGpmMetricsGet(asked)
    for sample in (before, after):
        nvml.nvmlGpmSampleFree(sample)
    return Activity(answer.metrics[0].value / 100, answer.metrics[1].value / 100)


@contextmanager
def _nvml() -> Iterator[ModuleType | None]:
    """NVML's Python binding, initialised; None if it is missing or finds no driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
