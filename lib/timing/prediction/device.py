"""What a device costs: figures for calls, launches, transfers, memory and products, each with where it comes from.

The model is a sum: how often or how much of each a step needs, times what each costs. Parts that overlap on a real
device make the sum too high: a card computes while the host dispatches, and moves bytes while it multiplies. Where a
device was calibrated, its figures have absorbed that.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np

from lib import ROOT
from lib.formatting import listed
from lib.model.hardware.optional import Meta
from lib.timing.prediction.workload import Way, Workload

FILE = ROOT / "recorded" / "devices.json"
DRIVEN = (Way.OPERATIONS, Way.STEP, Way.EPOCH, Way.GRAPH)  # ways in which a device that is known by its figures may run


class Origin(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured here"
    RECORDED = "recorded elsewhere"
    PUBLISHED = "published"
    DATA_SHEET = "data sheet"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class SheetFigure:
    """A figure with its range and source; raises ValueError unless 0 ≤ low ≤ value ≤ high, all finite."""

    value: float
    low: float
    high: float
    origin: Origin
    source: str

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.value <= self.high < math.inf):
            raise ValueError(
                f"expected 0 ≤ low ≤ value ≤ high, got low {self.low:g}, value {self.value:g}, high {self.high:g}"
            )


@dataclass(frozen=True)
class Quantity:
    """What a figure is of: words, unit, and the limits beyond which it is absurd."""

    words: str
    unit: str
    least: float
    most: float
    required: bool = True


QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        "host_call_s": Quantity("a call of a compiled program by the host", "s", 0.0, 0.1),
        "dispatch_s": Quantity("dispatching one operation by the host, its kernel's start included", "s", 0.0, 0.1),
        "launch_s": Quantity("starting one kernel", "s", 0.0, 0.01),
        "graph_launch_s": Quantity("starting one kernel of a graph", "s", 0.0, 0.01),
        "wait_s": Quantity("waiting for the device", "s", 0.0, 0.1),
        "transfer_latency_s": Quantity("beginning a transfer", "s", 0.0, 0.1),
        "transfer_bytes_per_s": Quantity("bringing data to the device", "B/s", 1e6, 1e13),
        "example_s": Quantity("the host's work on an example", "s", 0.0, 0.01, required=False),
        "memory_bytes_per_s": Quantity("reading and writing memory", "B/s", 1e8, 1e14),
        "cache_bytes": Quantity("the cache", "B", 0.0, 1e10),
        "cache_bytes_per_s": Quantity("reading and writing what is in the cache", "B/s", 1e8, 1e15),
        "product_flops_per_s": Quantity("a large float32 product", "FLOP/s", 1e8, 1e16),
        "filled_by": Quantity("elements of a product's result that fill the device", "elements", 1.0, 1e8),
        "memory_bytes": Quantity("its memory", "B", 1e6, 1e14),
        "price_per_h": Quantity("an hour of it", "$", 0.0, 1000.0, required=False),
    }
)


# The end of a rate or size that makes the seconds low, or high.
OPPOSITE: Mapping[str, str] = MappingProxyType({"value": "value", "low": "high", "high": "low"})


class UnusableDevice(ValueError):
    """A device's figures are missing or absurd; the text names device and figure."""


class DoesNotFit(ValueError):
    """A device's memory cannot hold a workload; the text is a sentence for the person."""


def check_memory(workload: Workload, memory_bytes: float, memory: str = "") -> None:
    """Raise DoesNotFit, with a sentence for the person, where a step needs more memory than there is.

    Args:
        workload: Any.
        memory_bytes: That it may use.
        memory: Which memory that is, in words; empty: what is free on this machine.
    """
    if workload.working_bytes > memory_bytes:
        raise DoesNotFit(
            f"{workload.name}: expected a step of at most {memory or f'{memory_bytes / 1e9:.3g} GB, the free memory'},"
            f" got at least {workload.working_bytes / 1e9:.3g} GB for batch size {workload.batch_size:,} and"
            f" {workload.networks:,} at once; choose a smaller batch, fewer networks or smaller ones"
        )


@dataclass(frozen=True)
class Device:
    """A processor or a graphics card, and the figures of `QUANTITIES`.

    Raises UnusableDevice for a figure that is missing, unknown or beyond its limits, also with an end of its range.

    Attributes:
        name: For people.
        on_gpu: Whether it is a graphics card.
        figures: By names of `QUANTITIES`.
        remarks: For people.
        dated: Of its price, ISO 8601.
        library: Whose costs those of the host are; empty where they are no library's in particular.
        ways: In which its figures say what a step takes.
        together: Networks that one program takes, at most.
        widening: How many times further out than by its figures' ranges the ends of its seconds lie.
        warning: Why it may be further off than its ranges say.
        judged: There are figures that say how far off such a prediction is.
    """

    name: str
    on_gpu: bool
    figures: Mapping[str, SheetFigure]
    remarks: str = ""
    dated: str = ""
    library: str = ""
    ways: tuple[Way, ...] = DRIVEN
    together: int = 2**30
    widening: float = 1.0
    warning: str = ""
    judged: bool = True

    def __post_init__(self) -> None:
        for name, quantity in QUANTITIES.items():
            figure = self.figures.get(name)
            if figure is None and quantity.required:
                raise UnusableDevice(f"{self.name}: expected a figure “{name}” ({quantity.words}), got none; add it")
            if figure is not None and not quantity.least <= figure.low <= figure.high <= quantity.most:
                raise UnusableDevice(
                    f"{self.name}: expected {name} between {quantity.least:g} and {quantity.most:g}"
                    f" {quantity.unit}, got {figure.low:g} to {figure.high:g}; correct it"
                )
        if unknown := [name for name in self.figures if name not in QUANTITIES]:
            raise UnusableDevice(f"{self.name}: expected figures of known names, got {listed(unknown)}; remove them")
        cache, memory = self.figures["cache_bytes_per_s"], self.figures["memory_bytes_per_s"]
        if any(getattr(cache, end) < getattr(memory, end) for end in ("low", "value", "high")):
            raise UnusableDevice(
                f"{self.name}: expected a cache no slower than memory, got {cache.value:g} and {memory.value:g} B/s;"
                " correct cache_bytes_per_s"
            )

    def driven(self, way: Way) -> str:
        """How it trains, in words: the way of running a step, and the library."""
        return f"{way}, {self.library}" if self.library else str(way)

    def costs(self, end: str = "value") -> dict[str, float]:
        """Seconds of one unit of each of `PARTS`.

        Args:
            end: "value", "low" or "high": of the seconds, so "low" takes the largest rates.
        """
        times = {"value": 1.0, "low": 1 / self.widening, "high": self.widening}[end]

        def rate(name: str) -> float:
            return times / getattr(self.figures[name], OPPOSITE[end])

        def cost(name: str) -> float:
            return times * getattr(self.figures[name], end)

        return {
            "call": cost("host_call_s"),
            "dispatch": cost("dispatch_s"),
            "launch": cost("launch_s"),
            "graph": cost("graph_launch_s"),
            "wait": cost("wait_s"),
            "transfer latency": cost("transfer_latency_s"),
            "transfer": rate("transfer_bytes_per_s"),
            "example": cost("example_s") if "example_s" in self.figures else 0.0,
            "cache": rate("cache_bytes_per_s"),
            "memory": rate("memory_bytes_per_s"),
            "products": rate("product_flops_per_s"),
        }

    def check(self, workload: Workload) -> None:
        """Raise DoesNotFit, with a sentence, where the device's memory cannot hold the workload."""
        memory_bytes = self.figures["memory_bytes"].value
        check_memory(workload, memory_bytes, f"the {memory_bytes / 1e9:.3g} GB of {self.name}")

    def amounts(self, workload: Workload, end: str = "value") -> dict[str, Any]:
        """How much of each part a step of the workload needs of this device: calls, launches, bytes, FLOP.

        A product too small to fill the device is counted as so much larger as it leaves the device empty.

        Args:
            workload: Any, counted as numbers or as arrays.
            end: As of `costs`: "low" takes the largest cache, and the fewest elements that fill the device.
        """
        way = workload.way
        by_host = way in (Way.WAITED, Way.OPERATIONS)
        moved = workload.moved_bytes * 1.0
        in_cache = workload.working_bytes <= getattr(self.figures["cache_bytes"], OPPOSITE[end])
        filled_by = getattr(self.figures["filled_by"], end)
        return {
            "call": 0.0 if by_host else 1.0 if way is Way.STEP else 1.0 / workload.steps,
            "dispatch": float(workload.launches * by_host),
            "launch": float(workload.launches * (way in (Way.STEP, Way.EPOCH))),
            "graph": float(workload.launches * (way is Way.GRAPH)),
            "wait": float(workload.launches) if way is Way.WAITED else 0.0,
            "transfer latency": float(not workload.resident),
            "transfer": workload.input_bytes * float(not workload.resident),
            "example": workload.batch_size * float(not workload.resident),
            "cache": moved * in_cache,
            "memory": moved * (1 - in_cache),
            "products": sum(flops / np.minimum(1.0, outputs / filled_by) for flops, outputs in workload.products),
        }


PARTS: Mapping[str, str] = MappingProxyType(
    {
        "call": "calls by the host",
        "dispatch": "dispatching operations",
        "launch": "starting kernels",
        "graph": "starting kernels of a graph",
        "wait": "waiting",
        "transfer latency": "beginning transfers",
        "transfer": "transfers",
        "example": "preparing examples",
        "cache": "bytes from the cache",
        "memory": "bytes from memory",
        "products": "products",
    }
)


@dataclass
class _DeviceRow:
    key: str
    name: Annotated[str, Meta(min_length=1)]
    on_gpu: bool
    figures: dict[str, SheetFigure]
    remarks: str = ""
    dated: str = ""


@dataclass
class _DevicesFile:
    version: Literal[1]
    devices: Annotated[list[_DeviceRow], Meta(min_length=1)]


def read_devices(path: Path = FILE) -> dict[str, Device]:
    """Devices from a file of presets, by key.

    Raises:
        UnusableDevice: The file cannot be read, or a device in it cannot be used; the text says which and why.
    """
    import msgspec  # a bare machine records without it, and reads no presets

    try:
        rows = msgspec.json.decode(path.read_bytes(), type=_DevicesFile).devices
    except OSError as error:
        raise UnusableDevice(
            f"{path.name or path}: expected a JSON file of devices, but it cannot be read ({error.strerror}); name"
            f" another, such as {FILE.name}"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnusableDevice(
            f"{path.name}: expected a JSON file of devices as {FILE.name} is one, but: {error}; correct it"
        ) from error
    for what in ("key", "name"):
        (value, count), *_ = Counter(getattr(row, what) for row in rows).most_common(1)
        if count > 1:
            raise UnusableDevice(
                f"{path.name}: expected each device with a {what} of its own, got {value} twice; rename one"
            )
    return {row.key: Device(row.name, row.on_gpu, row.figures, row.remarks, row.dated) for row in rows}
