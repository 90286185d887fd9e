"""NVIDIA GPUs: their list, from `nvidia-smi` without any library; their state, from NVML; their L2 cache, from CUDA.

Cards are identified by UUID everywhere, because programs number them differently: `nvidia-smi` and NVML count by PCI
bus, CUDA counts the fastest card first unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

NVML needs the package nvidia-ml-py, part of the GPU requirements; without it, or without a driver, no GPUs are found.
`utilisations` holds the figure shown by `nvidia-smi`: the share of time in which at least one kernel ran, even if on
one multiprocessor of a hundred. It is often mistaken for `activity`, which chips from Hopper on report (GPM).
"""

import ctypes
import importlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean the GPU runs slower than it could (nvml.h).
THROTTLES = {
    0x004: "its power limit",
    0x008: "a hardware slowdown",
    0x020: "its temperature (software)",
    0x040: "its temperature (hardware)",
    0x080: "the power supply's brake",
}
# Counters of nvmlDeviceGetViolationStatus, for similar causes (nvmlPerfPolicyType_t).
POLICIES = {0: "its power limit", 1: "its temperature", 3: "the board's limit", 5: "its voltage"}
SETTLE_S = 1.0  # NVML averages over the last 1/6 s to 1 s, so its first figures describe the time before
SAMPLE_S = 0.1
_SM_UTIL, _SM_OCCUPANCY = 2, 3  # NVML_GPM_METRIC_*
_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE


@dataclass(frozen=True)
class Card:
    """One GPU, as the driver describes it; 0 and empty text stand for unknown."""

    uuid: str  # GPU-…
    name: str  # model name, for example “NVIDIA L4”
    driver: str  # version, for example 570.86.10
    memory_bytes: int = 0
    compute_capability: float = 0.0  # for example 8.9


def nvidia_driver_answers() -> bool:
    """Whether an NVIDIA driver lists at least one GPU, which may be hidden from this process."""
    return bool(all_cards())


def cards() -> tuple[Card, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` lets this process use; empty without a driver."""
    return visible(all_cards(), os.environ.get("CUDA_VISIBLE_DEVICES"))


@cache
def all_cards() -> tuple[Card, ...]:
    """All GPUs that the driver lists, by PCI bus; cached."""
    lines = _answer("uuid,name,driver_version,memory.total,compute_cap")
    return tuple(_card(*map(str.strip, line.split(","))) for line in lines if line.startswith("GPU-"))


def listed_now() -> set[str]:
    """UUIDs of the GPUs that the driver lists now, possibly fewer than in the cached `all_cards`."""
    return set(_answer("uuid"))


def driver_version() -> str:
    """The driver's version, for example 570.86.10; empty without a driver."""
    return next((card.driver for card in all_cards()), "")


def visible(cards: tuple[Card, ...], named: str | None) -> tuple[Card, ...]:
    """Return the GPUs selected by a value of `CUDA_VISIBLE_DEVICES`, in its order.

    As in CUDA, the list ends at the first entry that matches no GPU: an empty value or -1 selects none. Numbers count
    by PCI bus; workers get the resulting UUIDs, so all of them agree on what a number means.

    Args:
        cards: By PCI bus.
        named: Numbers, UUIDs or UUID prefixes, separated by commas; None if unset: all GPUs are visible.
    """
    if named is None:
        return cards
    found: list[Card] = []
    for entry in map(str.strip, named.split(",")):
        if entry.isdecimal():
            matches = cards[int(entry) : int(entry) + 1]
        else:
            matches = tuple(card for card in cards if entry.startswith("GPU-") and card.uuid.startswith(entry))
        if len(matches) != 1:
            break
        found += matches
    return tuple(dict.fromkeys(found))


def _card(uuid: str, name: str, driver: str, memory_mib: str, capability: str) -> Card:
    return Card(
        uuid, name, driver if driver[:1].isdigit() else "", int(_number(memory_mib) * 2**20), _number(capability)
    )


def _number(text: str) -> float:
    """0 for “[N/A]” and the like."""
    return float(text) if text[:1].isdigit() else 0.0


def _answer(fields: str) -> list[str]:
    """One line per GPU; none if `nvidia-smi` is missing, fails, or takes more than ten seconds."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.strip().splitlines()


@dataclass(frozen=True)
class Gpu:
    """The state of one GPU at one moment; None for values that this chip or driver does not report."""

    card: Card
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttled_by: tuple[str, ...] = ()  # at this moment: an idle card is not slowed
    slowed_s: Mapping[str, float] | None = None  # by cause, since its driver was loaded

    @property
    def line(self) -> str:
        """The state in one line, without unknown values."""
        parts = [self.card.name, f"{self.card.memory_bytes / 2**30:.0f} GiB", f"driver {self.card.driver}"]
        if self.sm_clock_mhz and self.max_sm_clock_mhz:
            parts.append(f"{self.sm_clock_mhz} of {self.max_sm_clock_mhz} MHz")
        if self.power_w is not None and self.power_limit_w is not None:
            parts.append(f"{self.power_w:.0f} of {self.power_limit_w:.0f} W")
        return ", ".join(parts)


@dataclass
class Busy:
    """How busy a GPU was while watched; `activity` is None if the chip does not report it."""

    utilisations: list[float] = field(default_factory=list)  # shares of recent time with any kernel running
    # Shares, 0 to 1, of busy multiprocessors and of resident warps.
    activity: tuple[float, float] | None = None


def gpus() -> list[Gpu]:
    """The GPUs that this process may use; none without a driver or its Python binding."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        return [_gpu(nvml, card, handle) for card, handle in _handles(nvml)]


@contextmanager
def watched_activity(settle_s: float = SETTLE_S, sample_s: float = SAMPLE_S) -> Iterator[Busy]:
    """Watch the first GPU from a thread while the block keeps it busy: `with watched_activity() as busy: ...`.

    NVML stays open for the whole block: opening it takes longer than a burst of steps, and a card that waits for it is
    idle. `busy` is complete at the block's end; it stays empty without a GPU, or if the block was too short.

    Args:
        settle_s: Seconds at the start that are left out.
        sample_s: Seconds between samples.
    """
    busy, over = Busy(), threading.Event()

    def watch() -> None:
        with _nvml() as nvml:
            found = _handles(nvml) if nvml is not None else []
            if nvml is None or not found or over.wait(settle_s):
                return
            _watch(nvml, found[0][1], busy, over, sample_s)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield busy
    finally:
        over.set()
        thread.join()


def _watch(nvml: ModuleType, handle: Any, busy: Busy, over: threading.Event, sample_s: float) -> None:
    with suppress(nvml.NVMLError), ExitStack() as samples:
        before = _gpm_sample(nvml, handle, samples)
        while not over.wait(sample_s):
            with suppress(nvml.NVMLError):
                busy.utilisations.append(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        if before is not None and (after := _gpm_sample(nvml, handle, samples)) is not None:
            busy.activity = _activity(nvml, before, after)


def _handles(nvml: ModuleType) -> list[tuple[Card, Any]]:
    """Each GPU that this process may use and its NVML handle, in the order of `cards`, if NVML knows it."""
    found = []
    for card in cards():
        with suppress(nvml.NVMLError):
            found.append((card, nvml.nvmlDeviceGetHandleByUUID(card.uuid)))
    return found


def _gpu(nvml: ModuleType, card: Card, handle: Any) -> Gpu:
    def ask(function: str, *arguments: object) -> Any:
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    violated = {cause: ask("nvmlDeviceGetViolationStatus", policy) for policy, cause in POLICIES.items()}
    return Gpu(
        card,
        ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        None if power is None else power / 1000,
        None if limit is None else limit / 1000,
        tuple(text for bit, text in THROTTLES.items() if (reasons or 0) & bit),
        # In nanoseconds (nvmlViolationTime_t). Chips answer for some policies, or for none.
        {cause: answer.violationTime / 1e9 for cause, answer in violated.items() if answer is not None} or None,
    )


def _gpm_sample(nvml: ModuleType, handle: Any, samples: ExitStack) -> Any:
    """Return the chip's counters now, or None if it has none; `samples` frees them in any case."""
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        samples.callback(nvml.nvmlGpmSampleFree, sample := nvml.nvmlGpmSampleAlloc())
        return nvml.nvmlGpmSampleGet(handle, sample)
    except (nvml.NVMLError, AttributeError):
        return None


def _activity(nvml: ModuleType, before: Any, after: Any) -> tuple[float, float]:
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics, asked.sample1, asked.sample2 = nvml.NVML_GPM_METRICS_GET_VERSION, 2, before, after
    asked.metrics[0].metricId, asked.metrics[1].metricId = _SM_UTIL, _SM_OCCUPANCY
    answer = nvml.nvmlGpmMetricsGet(asked)
    return answer.metrics[0].value / 100, answer.metrics[1].value / 100


@contextmanager
def _nvml() -> Iterator[ModuleType | None]:
    """Yield NVML's Python binding, initialised; None if it is missing or finds no driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or one of several errors that mean there is no driver
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def l2_cache_bytes() -> int:
    """Bytes of the L2 cache of the first card that this process may use; 0 if no driver answers."""
    size, device = ctypes.c_int(0), ctypes.c_int(0)
    with suppress(OSError, AttributeError):  # no driver, or one without these functions
        driver = ctypes.CDLL("libcuda.so.1")
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDeviceGetAttribute(ctypes.byref(size), _L2_CACHE_SIZE, device)
        )
        return 0 if failed else max(0, size.value)
    return 0
