"""What this machine is, in one line and as a stable id. Imports nothing heavy."""

import hashlib
import os
import platform
import subprocess
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from lib.backends import nvidia_driver_answers


@dataclass(frozen=True)
class Machine:
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
def this_machine() -> Machine:
    cpuinfo = _cpuinfo()
    flags = cpuinfo.get("flags", "")
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags.split()), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processor = cpuinfo.get("model name") or platform.processor() or platform.machine()
    return Machine(processor, cores, psutil.virtual_memory().total, vectors, _gpu_name())


@cache
def machine_id() -> str:
    """Twelve hex digits that stay the same for this machine and its hardware; nothing can be read back from them."""
    machine = this_machine()
    parts = (platform.node(), uuid.getnode(), machine.processor, machine.cores, machine.gpu)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _gpu_name() -> str:
    if not nvidia_driver_answers():
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return ", ".join(answer.stdout.strip().splitlines())
