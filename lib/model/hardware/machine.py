"""This machine's cores and memory, in one line, in detail, and as a stable id. Imports nothing heavy."""

import hashlib
import os
import platform
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import threadpoolctl

from lib.formatting import counted
from lib.model.hardware.nvidia import cards, gpus
from lib.model.hardware.webgpu import asked, software_allowed

_here = threading.local()
JAX_SHARE = 0.75  # JAX's default share of a card's memory (JAX, GPU memory allocation)
NO_GPU = "no GPU"
ONLY_BY_WEBGPU = "no CUDA GPU; WebGPU reaches "  # followed by the names


def usable_cores() -> int:
    """CPU cores that this thread may use, possibly fewer than its process or the machine has."""
    of_process = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(of_process, getattr(_here, "most", of_process))


def use_one_core() -> None:
    """Make `usable_cores` return 1 in this thread from now on, because other threads use the other cores."""
    _here.most = 1


def usable_memory_bytes(device: str) -> int:
    """Bytes that a training can use: on a CPU, the memory free now; on a GPU, JAX's share of the smallest card.

    A card's free memory would mislead: workers keep what they once allocated, and reuse it. If the driver does not
    report a card's memory, the machine's free memory stands in for it.

    Args:
        device: "cpu" or "gpu".
    """
    on_card = min((card.memory_bytes for card in cards() if card.memory_bytes), default=0) if device == "gpu" else 0
    share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", JAX_SHARE)  # JAX refuses anything but a number
    return int(float(share) * on_card) or free_memory_bytes()


def free_memory_bytes() -> int:
    """Memory that this program can still allocate, in bytes."""
    return psutil.virtual_memory().available


@dataclass(frozen=True)
class ThisMachine:
    """The machine's properties that explain a time."""

    processor: str
    cores: int
    memory_bytes: int
    vectors: str  # widest vector instructions; empty if unknown
    gpu: str  # names of all GPUs that CUDA can use, or empty
    webgpu: str = ""  # names of all GPUs that WebGPU reaches, without software adapters, or empty

    @property
    def line(self) -> str:
        """All properties in one line, for example “AMD EPYC 7B13 · 2 cores · AVX2 · 8 GiB · no GPU”."""
        cores, memory = counted(self.cores, "core"), f"{self.memory_bytes / 2**30:.0f} GiB"
        return " · ".join(filter(None, (self.processor, cores, self.vectors, memory, self.graphics)))

    @property
    def graphics(self) -> str:
        """The GPUs that CUDA can use, else those that WebGPU reaches."""
        return self.gpu or (ONLY_BY_WEBGPU + self.webgpu if self.webgpu else NO_GPU)


@cache
def this_machine() -> ThisMachine:
    """The machine that this process runs on; looked up once."""
    cpuinfo = dict(reversed(_cpuinfo_lines()))  # the first core's
    flags = cpuinfo.get("flags", "").split()
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    processor = cpuinfo.get("model name") or platform.processor() or platform.machine()
    names = (
        ", ".join(card.name for card in cards()),
        ", ".join(one.name for one in asked(software_allowed()) if one.is_gpu),
    )
    return ThisMachine(processor, usable_cores(), psutil.virtual_memory().total, vectors, *names)


def details() -> dict[str, str]:
    """All properties that explain a time, by name: caches, BLAS and its threads, load, GPUs by NVML and by WebGPU."""
    machine = this_machine()
    return {
        "processor": " · ".join(filter(None, (machine.processor, machine.vectors))),
        "cores for this program": str(machine.cores),
        "caches": ", ".join(f"{name} {_binary(size)}" for name, size in caches().items()) or "unknown",
        "memory": _binary(machine.memory_bytes),
        "products by": ", ".join(f"{name}, {threads} threads" for name, threads in _blas()) or "unknown",
        "load, last minute": f"{os.getloadavg()[0]:.1f} of {os.cpu_count() or 1} processors",
        "graphics cards": "; ".join(gpu.line for gpu in gpus()) or machine.gpu or "none for CUDA",
        "WebGPU reaches": "; ".join(one.line for one in asked(software_allowed())) or "none",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "machine id": machine_id(),
    }


def clocks() -> str:
    """The current clock rates of CPU and GPUs, to put times in context; empty if none is reported."""
    mhz = [float(value) for name, value in _cpuinfo_lines() if name == "cpu MHz"]
    parts = [f"processor {sum(mhz) / len(mhz):.0f} MHz"] if mhz else []
    for gpu in gpus():
        limit = f" of {gpu.max_sm_clock_mhz}" if gpu.max_sm_clock_mhz else ""
        parts += [f"{gpu.card.name} {gpu.sm_clock_mhz}{limit} MHz"] if gpu.sm_clock_mhz else []
    return ", ".join(parts)


@cache
def multiplies_bfloat16() -> bool:
    """Whether the processor has matrix units for bfloat16 (Intel's AMX, since Sapphire Rapids)."""
    return "amx_bf16" in dict(_cpuinfo_lines()).get("flags", "").split()


@cache
def caches() -> dict[str, int]:
    """Bytes of each cache of one core, by name (L1 data, L2, L3), as Linux reports them; empty elsewhere."""
    found, units = {}, {"K": 2**10, "M": 2**20, "G": 2**30}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError, KeyError, ValueError):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                found[f"L{level}" + (" data" if kind == "Data" else "")] = int(size[:-1]) * units[size[-1]]
    return found


def last_level_cache_bytes() -> int:
    """Bytes of the largest cache; 0 if unknown."""
    return max(caches().values(), default=0)


def _binary(n_bytes: int) -> str:
    unit, name = next(((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB")) if n_bytes >= u), (2**10, "KiB"))
    return f"{n_bytes / unit:.4g} {name}"


def _blas() -> list[tuple[str, int]]:
    """The BLAS libraries loaded by this process, each once, with their numbers of threads."""
    named = (
        (f"{info['internal_api']} {info['version']} ({info.get('architecture', '?')})", info["num_threads"])
        for info in threadpoolctl.threadpool_info()
        if info["user_api"] == "blas"
    )
    return list(dict.fromkeys(named))


@cache
def machine_id() -> str:
    """Twelve hex digits, stable until this machine or its hardware changes; a hash, so it reveals nothing."""
    machine, address = this_machine(), uuid.getnode()
    drawn = address >> 40 & 1  # without a network interface, `getnode` is random for each process: RFC 4122, 4.5
    parts = (platform.node(), 0 if drawn else address, machine.processor, machine.cores, machine.gpu)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _cpuinfo_lines() -> list[tuple[str, str]]:
    """Name and value of each line of Linux' /proc/cpuinfo, which has a block per core; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
