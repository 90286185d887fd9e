"""Which NVIDIA GPUs this machine has, as `nvidia-smi` reports them: without any library.

Cards are told apart by UUID everywhere. Numbers mean different cards to different programs: `nvidia-smi` and NVML count
by PCI bus, CUDA counts the fastest card first unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
"""

import os
import subprocess
from dataclasses import dataclass
from functools import cache


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
