"""What this machine is: in one line, in detail, and as a stable id. Imports nothing heavy."""

import hashlib
import os
import platform
import subprocess
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lib.hardware.cores import usable_cores
from lib.hardware.nvidia_smi import nvidia_driver_answers, visible
from lib.hardware.nvml import gpus
from lib.hardware.optional import total_memory_bytes


@dataclass(frozen=True)
class ThisMachine:
    """The parts that explain a time."""

    processor: str
    cores: int
    memory_bytes: int
    vectors: str  # the widest vector instructions
    gpu: str  # empty where there is none

    @property
    def line(self) -> str:
        parts = [self.processor, f"{self.cores} core{'s' if self.cores != 1 else ''}", self.vectors]
        parts.append(f"{self.memory_bytes / 2**30:.0f} GiB")
        parts.append(self.gpu or "no GPU")
        return " · ".join(part for part in parts if part)


@cache
def this_machine() -> ThisMachine:
    cpuinfo = _cpuinfo()
    flags = cpuinfo.get("flags", "")
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags.split()), "")
    cores = usable_cores()
    processor = cpuinfo.get("model name") or platform.processor() or platform.machine()
    return ThisMachine(processor, cores, total_memory_bytes(), vectors, _gpu_name())


def details() -> dict[str, str]:
    """All that explains a time, by name: caches, BLAS and its threads, load, and what NVML says of the cards."""
    machine = this_machine()
    found = {
        "processor": " · ".join(filter(None, (machine.processor, machine.vectors))),
        "cores for this program": str(machine.cores),
        "caches": ", ".join(f"{name} {_binary(size)}" for name, size in caches().items()) or "unknown",
        "memory": _binary(machine.memory_bytes),
        "products by": ", ".join(f"{name}, {threads} threads" for name, threads in _blas()) or "unknown",
        "load, last minute": f"{os.getloadavg()[0]:.1f} of {os.cpu_count() or 1} processors",
        "graphics cards": "; ".join(gpu.line for gpu in gpus()) or machine.gpu or "none",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "machine id": machine_id(),
    }
    return found


def clocks() -> str:
    """How fast processor and graphics cards run now: without it a time says little. Empty where nothing is told."""
    mhz = [float(value) for name, value in _cpuinfo_lines() if name == "cpu MHz"]
    parts = [f"processor {sum(mhz) / len(mhz):.0f} MHz"] if mhz else []
    for gpu in gpus():
        limit = f" of {gpu.max_sm_clock_mhz}" if gpu.max_sm_clock_mhz else ""
        parts += [f"{gpu.name} {gpu.sm_clock_mhz}{limit} MHz"] if gpu.sm_clock_mhz else []
    return ", ".join(parts)


@cache
def caches() -> dict[str, int]:
    """Bytes of each cache of one core, by name (L1 data, L2, L3), as Linux tells it; empty elsewhere."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                found[f"L{level}" + (" data" if kind == "Data" else "")] = int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, KeyError, ValueError):
            continue
    return found


def last_level_cache_bytes() -> int:
    """Of the largest cache; 0 where it cannot be told."""
    return max(caches().values(), default=0)


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def _binary(n_bytes: int) -> str:
    unit, name = next(((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB")) if n_bytes >= u), (2**10, "KiB"))
    return f"{n_bytes / unit:.4g} {name}"


def _blas() -> list[tuple[str, int]]:
    """The libraries for products that this process has loaded, with their threads."""
    try:
        import threadpoolctl
    except ModuleNotFoundError:  # a bare machine
        return []
    infos = [info for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"]
    named = [
        (f"{info['internal_api']} {info['version']} ({info.get('architecture', '?')})", info["num_threads"])
        for info in infos
    ]
    return list(dict.fromkeys(named))


@cache
def machine_id() -> str:
    """Twelve hex digits that stay the same for this machine and its hardware; nothing can be read back from them."""
    machine = this_machine()
    parts = (platform.node(), uuid.getnode(), machine.processor, machine.cores, machine.gpu)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _cpuinfo() -> dict[str, str]:
    """Of the first core."""
    return dict(reversed(_cpuinfo_lines()))


def _cpuinfo_lines() -> list[tuple[str, str]]:
    """Name and value of each line of what Linux says of all cores; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def _gpu_name() -> str:
    if not nvidia_driver_answers():
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return ", ".join(visible(answer.stdout.strip().splitlines()))
