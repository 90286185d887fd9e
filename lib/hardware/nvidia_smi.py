"""What NVIDIA's own program says of this machine's cards, without any library."""

import os
import shutil
import subprocess
from functools import cache


def nvidia_driver_answers() -> bool:
    return bool(nvidia_cards())


@cache
def nvidia_cards() -> tuple[str, ...]:
    """A line for each card that the driver lists; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, timeout=10, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = [line for line in answer.stdout.splitlines() if "GPU" in line] if answer.returncode == 0 else []
    return tuple(visible(lines))


def visible(cards: list[str]) -> list[str]:
    """Those of all cards, in the driver's order, that `CUDA_VISIBLE_DEVICES` leaves to this program."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not all(number.isdigit() for number in named):  # not set, names of cards, or a worker that may see none
        return cards
    return [cards[int(number)] for number in named if int(number) < len(cards)]


@cache
def driver_version() -> str:
    """As the driver says it, for example 570.86.10; empty where it says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines and lines[0][0].isdigit() else ""
