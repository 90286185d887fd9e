"""NVIDIA's GPUs: which there are, by `nvidia-smi` without any library; their state, by NVML; their cache, by CUDA.

Cards are told apart by UUID everywhere. Numbers mean different cards to different programs: `nvidia-smi` and NVML count
by PCI bus, CUDA counts the fastest card first unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

NVML needs the package nvidia-ml-py, which comes with the GPU requirements; without it, or without a driver, it finds no
GPUs. Its `utilisation` is the figure that `nvidia-smi` shows: the share of time in which at least one kernel ran, even
if on one multiprocessor of a hundred. `activity` is what it is often mistaken for; chips from
Hopper on report them (GPM).
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

# The bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean that the GPU runs slower than it could (nvml.h).
THROTTLES = {
    0x004: "its power limit",
    0x008: "a hardware slowdown",
    0x020: "its temperature (software)",
    0x040: "its temperature (hardware)",
    0x080: "the power supply's brake",
}
# What nvmlDeviceGetViolationStatus accumulates, of the same kind (nvmlPerfPolicyType_t).
POLICIES = {0: "its power limit", 1: "its temperature", 3: "the board's limit", 5: "its voltage"}
SETTLE_S = 1.0  # NVML's utilisation is of the last sixth of a second to second: what is shown first is of before
SAMPLE_S = 0.1
_SM_UTIL, _SM_OCCUPANCY = 2, 3  # NVML_GPM_METRIC_*
_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE


@dataclass(frozen=True)
class Card:
    """One GPU, as the driver describes it; 0 and empty text for what it does not know."""

    uuid: str  # GPU-…
    name: str  # of the model, for example “NVIDIA L4”
    driver: str  # version, for example 570.86.10
    memory_bytes: int = 0
    compute_capability: float = 0.0  # for example 8.9


def nvidia_driver_answers() -> bool:
    """Whether there is an NVIDIA driver that lists at least one GPU, which may be hidden from this process."""
    return bool(all_cards())


def cards() -> tuple[Card, ...]:
    """The GPUs that this process may use: those that `CUDA_VISIBLE_DEVICES` admits; empty without a driver."""
    return visible(all_cards(), os.environ.get("CUDA_VISIBLE_DEVICES"))


@cache
def all_cards() -> tuple[Card, ...]:
    """All GPUs that the driver lists, by PCI bus; asked once."""
    fields = ["uuid", "name", "driver_version", "memory.total", "compute_cap"]
    # Drivers before CUDA 11.6 do not know the last field, and answer nothing at all.
    lines = _answer(fields) or _answer(fields[:-1])
    return tuple(_card([value.strip() for value in line.split(",")]) for line in lines if line.startswith("GPU-"))


def listed_now() -> set[str]:
    """The UUIDs of the GPUs that the driver lists at this moment, which may be fewer than when they were first asked
    for."""
    return set(_answer(["uuid"]))


def driver_version() -> str:
    """The driver's version, for example 570.86.10; empty without a driver."""
    return next((card.driver for card in all_cards()), "")


def visible(cards: tuple[Card, ...], named: str | None) -> tuple[Card, ...]:
    """Those of all GPUs that a value of `CUDA_VISIBLE_DEVICES` leaves, in the order that it names them.

    As in CUDA, the list ends at the first entry that names no GPU: an empty value or -1 leaves none. Numbers count by
    PCI bus; workers are given the UUIDs that this finds, so that all of them mean the same card by a number.

    Args:
        cards: By PCI bus.
        named: Numbers, UUIDs or the first letters of such, separated by commas; None: it is not set, all are visible.
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


def _card(values: list[str]) -> Card:
    uuid, name, driver, memory_mib, capability = (*values, "", "", "", "")[:5]
    return Card(
        uuid, name, driver if driver[:1].isdigit() else "", int(_number(memory_mib) * 2**20), _number(capability)
    )


def _number(text: str) -> float:
    """0 for “[N/A]” and the like."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _answer(fields: list[str]) -> list[str]:
    """A line for each GPU; none where `nvidia-smi` is missing, fails, or takes more than ten seconds."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.strip().splitlines()


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
    throttled_by: tuple[str, ...] = ()  # at this moment: an idle card is not slowed
    slowed_s: Mapping[str, float] | None = None  # by what, and for how long since its driver was loaded
    uuid: str = ""
    pcie: tuple[int, int] | None = None  # generation and lanes, at this moment: an idle card may use fewer

    @property
    def line(self) -> str:
        """The state in one line, without what is unknown."""
        parts = [self.name, f"{self.memory_bytes / 2**30:.0f} GiB", f"driver {self.driver}"]
        if self.sm_clock_mhz and self.max_sm_clock_mhz:
            parts.append(f"{self.sm_clock_mhz} of {self.max_sm_clock_mhz} MHz")
        if self.power_w is not None and self.power_limit_w is not None:
            parts.append(f"{self.power_w:.0f} of {self.power_limit_w:.0f} W")
        if self.pcie is not None:
            parts.append("PCIe {} × {}".format(*self.pcie))
        if self.slowed_s is None:
            parts += [f"slowed by {' and '.join(self.throttled_by)} at this moment"] if self.throttled_by else []
        elif slowed := [f"{seconds:.3g} s by {cause}" for cause, seconds in self.slowed_s.items() if seconds]:
            parts.append(f"slowed for {' and '.join(slowed)} since its driver was loaded")
        return ", ".join(parts)


@dataclass
class Busy:
    """How busy a GPU was while it was watched; `activity` is None where the chip does not report it."""

    utilisations: list[float] = field(default_factory=list)  # shares of recent time with any kernel running
    # Shares of multiprocessors with work, and of resident warps, of the largest possible number.
    activity: tuple[float, float] | None = None


def gpus() -> list[Gpu]:
    """The GPUs that this process may use; none without a driver or its Python binding."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        driver = nvml.nvmlSystemGetDriverVersion()
        return [_gpu(nvml, handle, driver, uuid) for uuid, handle in _handles(nvml)]


@contextmanager
def watched_activity(settle_s: float = SETTLE_S, sample_s: float = SAMPLE_S) -> Iterator[Busy]:
    """`with watched_activity() as busy: ...` watches the first GPU from a thread while the block keeps it at work.

    One session lasts as long as the block: opening one takes longer than a burst of steps, and a card that waits for it
    is idle. `busy` is complete at the block's end; it stays empty without a GPU, and where the block was short.

    Args:
        settle_s: Seconds at the start that are left out.
        sample_s: Seconds from one sample to the next.
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


def _handles(nvml: ModuleType) -> list[tuple[str, Any]]:
    """UUID and NVML's handle of each GPU that this process may use, in CUDA's order; those that NVML knows."""
    found = []
    for card in cards():
        with suppress(nvml.NVMLError):
            found.append((card.uuid, nvml.nvmlDeviceGetHandleByUUID(card.uuid)))
    return found


def _gpu(nvml: ModuleType, handle: Any, driver: str, uuid: str) -> Gpu:
    def ask(function: str, *arguments: object) -> Any:
        """The answer, or None where this chip or driver does not know."""
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    reasons, memory = ask("nvmlDeviceGetCurrentClocksThrottleReasons"), ask("nvmlDeviceGetMemoryInfo")
    generation, lanes = ask("nvmlDeviceGetCurrPcieLinkGeneration"), ask("nvmlDeviceGetCurrPcieLinkWidth")
    violated = {cause: ask("nvmlDeviceGetViolationStatus", policy) for policy, cause in POLICIES.items()}
    return Gpu(
        ask("nvmlDeviceGetName") or "a card that no longer answers",
        driver,
        memory.total if memory is not None else 0,
        ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        None if power is None else power / 1000,
        None if limit is None else limit / 1000,
        tuple(text for bit, text in THROTTLES.items() if (reasons or 0) & bit),
        # In nanoseconds (nvmlViolationTime_t). Chips answer for some policies, or for none.
        {cause: answer.violationTime / 1e9 for cause, answer in violated.items() if answer is not None} or None,
        uuid,
        (generation, lanes) if generation and lanes else None,
    )


def _gpm_sample(nvml: ModuleType, handle: Any, samples: ExitStack) -> Any:
    """The chip's counters now, or None where it has none; `samples` frees them in any case."""
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
    """NVML's Python binding, initialised; None if it is missing or finds no driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # it is not installed, or says in its own way that there is no driver
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def l2_cache_bytes() -> int:
    """Bytes of the L2 cache of the first card that this process may use; 0 where no driver answers."""
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
