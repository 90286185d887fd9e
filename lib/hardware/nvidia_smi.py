"""What `nvidia-smi` reports about this machine's GPUs, without any library."""

import os
import subprocess
from functools import cache


def nvidia_driver_answers() -> bool:
    """Whether there is an NVIDIA driver that lists at least one GPU."""
    return bool(nvidia_cards())


@cache
def nvidia_cards() -> tuple[str, ...]:
    """A line for each GPU that the driver lists and `CUDA_VISIBLE_DEVICES` admits; empty without a driver."""
    return tuple(visible([line for line in _answer("-L") if "GPU" in line]))


def gpu_names() -> list[str]:
    """The model names of the same GPUs, for example “NVIDIA L4”."""
    return visible(_answer("--query-gpu=name", "--format=csv,noheader"))


@cache
def driver_version() -> str:
    """The driver's version, for example 570.86.10; empty where it reports none."""
    version = next(iter(_answer("--query-gpu=driver_version", "--format=csv,noheader")), "")
    return version if version[:1].isdigit() else ""


def visible(cards: list[str]) -> list[str]:
    """Those of all GPUs, in the driver's order, that `CUDA_VISIBLE_DEVICES` leaves to this process."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not all(number.isdigit() for number in named):  # not set, names of GPUs, or -1 in a worker that may see none
        return cards
    return [cards[int(number)] for number in named if int(number) < len(cards)]


def _answer(*arguments: str) -> list[str]:
    """Lines printed by `nvidia-smi`; none where it is missing, fails, or takes more than ten seconds."""
    try:
        command = ["nvidia-smi", *arguments]
        return (
            subprocess.run(command, capture_output=True, timeout=10, check=True, text=True).stdout.strip().splitlines()
        )
    except (OSError, subprocess.SubprocessError):
        return []
