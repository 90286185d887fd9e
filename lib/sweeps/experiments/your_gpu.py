"""Measurements in a reader's browser, on its GPU and CPU: the job sent to it, and the evaluation of its results.

The browser executes the same operations as Python (`lib.model.backends.webgpu`), in turns on both devices, and sends
the seconds of each block. This module validates these untrusted messages and compares the times with
`lib.timing.comparison`. A browser's clock is rounded, so its resolution widens both ends of every interval.

Machines that readers keep from their browsers go to the store, where all sessions and processes of a server find them.
"""

import hashlib
import re
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from lib.formatting import counted
from lib.model.backends import webgpu
from lib.model.backends.registry import ALL_DEVICES, BACKENDS, IN_A_BROWSER, usable_runtimes
from lib.model.backends.webgpu import Program, as_json, begins_with, first_images
from lib.model.hardware.webgpu import BROWSER, SOFTWARE
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import Cell, Standing
from lib.sweeps.experiments.recorded_machines import (
    Best,
    Machine,
    best_runtime,
    browsers_in,
    with_unique_names,
)
from lib.sweeps.storage.records import Count, Kind, Record, Seconds, Share
from lib.sweeps.storage.store import Store
from lib.timing.comparison import Comparison, Verdict, between, compared
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.workload import Ceiling, Cost, cost_of

# Ways of launching, by the workers' names for them, and a page's initial way.
WAYS: Mapping[str, str] = {
    "waiting_after_each_operation": "waiting after each operation",
    "one_submission_a_step": "one submission a step",
    "one_submission": "one submission for many steps",
    "one_kernel": "one kernel for many steps",
}
USUAL_WAY = "one_submission"
# The trainer of each device's ways in records; the CPU's, on one core, are trainers of `IN_A_BROWSER`.
TRAINER_OF: Mapping[tuple[str, str], str] = {
    ("gpu", "waiting_after_each_operation"): "webgpu-operation",
    ("gpu", "one_submission_a_step"): "webgpu-step",
    ("gpu", "one_submission"): "webgpu-chunk",
    ("gpu", "one_kernel"): "webgpu-kernel",
    ("cpu", "simd"): "wasm-simd",
    ("cpu", "javascript"): "javascript",
}
CPU_WAYS: Mapping[str, str] = {
    way: IN_A_BROWSER[trainer].label for (device, way), trainer in TRAINER_OF.items() if device == "cpu"
}
SIDES = tuple(2**k for k in range(13))
COPIED_BYTES = (4, 4 * 2**10, 256 * 2**10, 4 * 2**20)
N_SAMPLE, SLICE = 1_000, 500  # images used for the accuracy, and images per evaluation
PART = 512  # images per message
MAX_IMAGES = 16_384
MAX_ROWS = 4_000  # per page: far more than a page measures, and few enough for memory and the store

DEVICES = ("gpu", "cpu")
_SOFTWARE = ("swiftshader", "llvmpipe", "lavapipe", "softpipe", "basic render", "warp")

_Text = Annotated[str, Meta(max_length=500)]
_Name = Annotated[str, Meta(max_length=100)]
_Device = Annotated[str, Meta(pattern=f"^({'|'.join(DEVICES)}|)$")]
_Way = Annotated[str, Meta(pattern=f"^({'|'.join([*WAYS, *CPU_WAYS])}|)$")]
_Bytes = Annotated[float, Meta(ge=0, le=2**53)]


@dataclass(frozen=True)
class BrowserAdapter:
    """A browser's description of its GPU; browsers reveal little, to prevent fingerprinting."""

    vendor: _Name = ""
    architecture: _Name = ""
    model: _Name = ""
    description: _Name = ""
    fallback: bool = False

    @property
    def name(self) -> str:
        """Display name, such as “apple metal-3”."""
        said = [self.vendor, self.architecture, self.description or self.model]
        return " ".join(dict.fromkeys(filter(None, said))) or "a GPU without a name"

    @property
    def is_software(self) -> bool:
        return self.fallback or any(name in self.name.lower() for name in _SOFTWARE)


class Refusal(Struct, frozen=True, tag_field="is", tag="failed"):
    """Something that could not be measured, and why; `way` is empty if it concerns the whole device."""

    device: _Device
    way: _Way
    kind: _Name
    message: _Text = ""
    needs: _Bytes = 0
    allows: _Bytes = 0
    expected_s: Annotated[float, Meta(ge=0, le=1e30)] = 0


@dataclass(frozen=True)
class Opened:
    """The browser that opened the page, its machine, and its adapter if it offers one."""

    browser: _Name
    platform: _Name
    cores: Annotated[int, Meta(ge=1, le=100_000)]
    secure: bool  # whether the page has a secure origin, which WebGPU requires
    offered: bool  # whether the browser supports WebGPU at all
    host: _Name
    clock_s: Seconds  # resolution of its clock
    adapter: BrowserAdapter | None
    failed: Annotated[list[Refusal], Meta(max_length=2)]  # devices that could not be opened
    reader: _Name = ""  # random number kept by the browser, which distinguishes equal machines

    @property
    def has_software(self) -> bool:
        return self.adapter is not None and self.adapter.is_software


class Block(Struct, frozen=True, tag_field="is", tag="block"):
    """Steps in a row: of a training, its first, or steps discarded because the tab was in the background; or `empty`
    operations, a `copy` of `size` bytes there and back, or a `product` with side `size`.
    """

    of: Literal["training", "first step", "discarded", "empty", "copy", "product"]
    device: _Device
    block_s: Seconds
    steps: Count = 1
    way: _Way = ""
    size: Count = 1
    round: int = 0  # blocks of a round are neighbours; negative: a round that compares the ways of launching


class Evaluated(Struct, frozen=True, tag_field="is", tag="evaluated"):
    """Accuracy after some seconds of training."""

    device: _Device
    train_s: Seconds
    accuracy: Share


Row = Block | Evaluated | Refusal


def opened(message: Mapping[str, Any]) -> Opened:
    """Parse the message of a browser that opened the page, and strip unusual characters from its names.

    Raises:
        ValueError: The message is malformed.
    """
    named = {name: _plain(message[name]) for name in ("browser", "platform", "adapter") if name in message}
    return _converted({**message, **named}, Opened)


def _plain(value: Any) -> Any:
    """Reduce a browser's names to letters, digits and common punctuation, because kept names are shown to everyone."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return " ".join(re.sub(r"[^\w .,()+/@-]+", " ", value).split()) if isinstance(value, str) else value


def rows(message: Mapping[str, Any]) -> list[Row]:
    """Parse and validate a browser's measurements.

    Raises:
        ValueError: The rows are missing, or one is malformed or of unknown kind.
    """
    return _converted(message.get("rows"), list[Row])


def _converted(value: object, kind: type) -> Any:
    try:
        return convert(value, kind)
    except ValidationError as error:
        raise ValueError(
            f"expected a browser's measurements, got another message ({error}); reload the page"
        ) from error


@dataclass(frozen=True)
class BrowserJob:
    training: Training
    way: str = USUAL_WAY

    @property
    def program(self) -> Program:
        return webgpu.step(self.training.network, self.training.batch_size)

    def message(self, sizes: bool) -> dict[str, Any]:
        """Return the job for the browser, without `buffers`.

        Args:
            sizes: Whether to measure products and copies, too.
        """
        evaluation = webgpu.evaluation(self.training.network, SLICE)
        return {
            "way": self.way,
            "ways": list(WAYS),
            "rate": self.training.learning_rate,
            "slice": SLICE,
            "sizes": sizes,
            "most_flops_in_one_kernel": webgpu.MAX_FLOPS_IN_ONE_KERNEL,
            "program": as_json(self.program),
            "evaluation": as_json(evaluation),
            "evaluation_flops": evaluation.flops * N_SAMPLE // SLICE,
            "empty": as_json(webgpu.nothing(len(self.program.operations))),
            "products": [as_json(webgpu.product(side)) | {"side": side} for side in SIDES] if sizes else [],
            "copies": list(COPIED_BYTES),
        }

    def buffers(self, n_images: int) -> list[bytes]:
        """Return the initial parameters of all backends, and the first image of each batch in the first epochs."""
        return [begins_with(self.training).tobytes(), first_images(self.training, n_images).tobytes()]


@dataclass
class Found:
    who: Opened
    job: BrowserJob
    rows: list[Row] = field(default_factory=list)  # in the order of measurement

    def take(self, rows: Sequence[Row]) -> None:
        """Add rows, up to `MAX_ROWS`."""
        self.rows += rows[: MAX_ROWS - len(self.rows)]

    def again(self, job: BrowserJob) -> "Found":
        """Reset for another job in the same browser; products and copies are kept if complete."""
        kept = (*self.blocks(of="product"), *self.blocks(of="copy")) if self.has_sizes else ()
        return Found(self.who, job, list(kept))

    def blocks(self, **wanted: object) -> list[Block]:
        """Return the blocks whose fields have these values."""
        every = (row for row in self.rows if isinstance(row, Block))
        return [one for one in every if all(getattr(one, name) == value for name, value in wanted.items())]

    def measured(self, **wanted: object) -> Measurement | None:
        """Combine these blocks into a measurement; None for fewer than three."""
        found = self.blocks(**wanted)
        if len(found) < 3:
            return None
        steps = max(one.steps for one in found)  # a way that was prepared twice may have blocks of two lengths
        return Measurement(tuple(one.block_s * steps / one.steps for one in found), steps, Ended.CAP)

    @property
    def failed(self) -> dict[tuple[str, str], Refusal]:
        """The latest failure by device and way."""
        return {(row.device, row.way): row for row in self.rows if isinstance(row, Refusal)}

    @property
    def evaluated(self) -> dict[str, Evaluated]:
        """The latest evaluation by device."""
        return {row.device: row for row in self.rows if isinstance(row, Evaluated)}

    @property
    def has_sizes(self) -> bool:
        return bool(self.blocks(of="copy"))  # copies are measured after products

    def way(self, device: str) -> str:
        """Return the way in which a device is compared with the other: the chosen one, or the CPU's faster one."""
        if device == "gpu":
            return self.job.way
        trained = self.blocks(of="training", device=device)
        return next((one.way for one in trained if one.round >= 0), next(iter(CPU_WAYS)))

    def epochs(self, device: str, way: str) -> Measurement | None:
        """Return seconds per epoch of all training images, even if the browser has fewer; None until measured."""
        steps = self.measured(of="training", device=device, way=way)
        if steps is None:
            return None
        epoch_s = steps.step_s * self.job.training.steps_per_epoch()
        return Measurement(tuple(map(float, epoch_s)), 1, steps.ended)

    def comparison(self) -> Comparison | None:
        """Compare a step on the GPU with one on the CPU, paired block by block; None without a pair."""
        trained = (self.blocks(of="training", device=device) for device in DEVICES)
        pairs = ([one for one in blocks if one.round >= 0] for blocks in trained)
        return rounded_clock(*pairs, self.who.clock_s)

    def of_way(self, device: str, way: str) -> Comparison | None:
        """Compare a step in this way with one in the device's usual `way`, by round; None without a shared round."""
        both = (self.blocks(of="training", device=device, way=one) for one in (way, self.way(device)))
        return rounded_clock(*both, self.who.clock_s)

    def border(self) -> int | None:
        """Return the side from which the GPU is faster at every side measured on both; None if there is none."""
        least = None
        for side in reversed(SIDES):
            products = (self.blocks(of="product", device=device, size=side) for device in DEVICES)
            comparison = rounded_clock(*products, self.who.clock_s)
            if comparison is None:
                continue
            if comparison.verdict is not Verdict.FASTER:
                break
            least = side
        return least

    def best_flops_per_s(self, device: str) -> float | None:
        products = {side: self.measured(of="product", device=device, size=side) for side in SIDES}
        rates = [2 * side**3 / found.median_s for side, found in products.items() if found and found.median_s]
        return max(rates, default=None)

    def copies(self, device: str) -> Cost | None:
        timed = [one for one in self.blocks(of="copy", device=device) if one.block_s > 0]
        if len({one.size for one in timed}) < 3:
            return None
        return cost_of([one.size for one in timed], [one.block_s / one.steps for one in timed])

    def launching(self, device: str) -> tuple[float, float, float] | None:
        """Return seconds of a step, of launching as many empty operations, and of the step's arithmetic.

        Arithmetic is at the device's best product rate. None until all are measured.
        """
        timed, empty = (self.measured(of=of, device=device, way=self.way(device)) for of in ("training", "empty"))
        rate = self.best_flops_per_s(device)
        if timed is None or empty is None or not rate:
            return None
        return timed.median_s, empty.median_s, self.job.program.flops / rate


def bound(step_s: float, launching_s: float, arithmetic_s: float) -> Ceiling | None:
    """Return whether launching or arithmetic takes at least half of the step; None if neither does."""
    longest_s, what = max((launching_s, Ceiling.DISPATCH), (arithmetic_s, Ceiling.PRODUCT), key=lambda one: one[0])
    return what if longest_s >= step_s / 2 else None


def rounded_clock(first: Sequence[Block], second: Sequence[Block], clock_s: float) -> Comparison | None:
    """Compare blocks of the same rounds, timed with a clock that shows multiples of `clock_s`; None without any.

    The interval covers the case that all blocks of one side are shorter by `clock_s` and all of the other longer.
    """
    by_round = [{one.round: one for one in blocks} for blocks in (first, second)]
    pairs = [tuple(side[number] for side in by_round) for number in by_round[0] if number in by_round[1]]
    if not pairs:
        return None

    def times(side: int, off_s: float) -> list[float]:
        return [max(0.0, pair[side].block_s + off_s) / pair[side].steps for pair in pairs]

    middle = compared(times(0, 0), times(1, 0), paired=True)
    low = compared(times(0, -clock_s), times(1, clock_s), paired=True).low
    high = compared(times(0, clock_s), times(1, -clock_s), paired=True).high
    return replace(middle, low=low, high=high)


def cells(training: Training) -> list[Cell]:
    return [
        Cell(runtime, training.batch_size, training.network)
        for runtime in usable_runtimes()
        if BACKENDS[runtime.backend].whole_epochs
    ]


def compared_with_server(found: Found, server: Mapping[Cell, Standing]) -> tuple[str, str, Comparison] | None:
    """Compare epochs of the browser's fastest way with the server's first cell, the fastest: device, way, comparison.

    None if either has no times.
    """
    timed = [(device, way, one) for device, way in TRAINER_OF if (one := found.epochs(device, way))]
    if not timed or not server:
        return None
    device, way, fastest = min(timed, key=lambda one: one[2].median_s)
    return device, way, compared(fastest.block_s, next(iter(server.values())).epoch_s, paired=False)


def machine_of(who: Opened) -> tuple[str, str]:
    """Return id and description of the machine under which this reader's results are kept.

    Both derive from the browser's description of itself, and the id also from the browser's random number; nothing else
    is known of the reader.
    """
    gpu = who.adapter.name if who.adapter is not None else "no GPU"
    line = f"{who.platform or 'unnamed system'}, {who.browser} · {counted(who.cores, 'core')} · {gpu}"
    return hashlib.sha256(f"{who.reader} {line}".encode()).hexdigest()[:12], line


def records(found: Found) -> list[Record]:
    """Return this training's measurements as race records of a separate machine, the reader's browser.

    Seconds are scaled to an epoch of all training images, as in the race; `off_s` is their possible error, in either
    direction, from the browser's clock.
    """
    who, training, n_steps = found.who, found.job.training, found.job.training.steps_per_epoch()
    machine, line = machine_of(who)
    gpu = SOFTWARE if who.has_software else BROWSER
    made = []
    for (device, way), trainer in TRAINER_OF.items():
        if (epochs := found.epochs(device, way)) is None:
            continue
        blocks, first = (found.blocks(of=of, device=device, way=way) for of in ("training", "first step"))
        subject = {
            "backend": trainer,
            "device": gpu if device == "gpu" else device,
            "precision": "float32",
            "batch_size": training.batch_size,
            "hidden": training.network.label,
            "scaled": 1,
            "first_call_s": first[-1].block_s if first else 0.0,
            "browser": who.browser,
            "clock_s": who.clock_s,
            "off_s": who.clock_s * n_steps / min(one.steps for one in blocks),
        }
        record = Record.of(Kind.RACE, subject, replace(epochs, steps_per_block=n_steps), who.browser)
        made.append(replace(record, machine=machine, machine_line=line, clocks="", command=f"a page in {who.browser}"))
    return made


GPUS = tuple(device for device in ALL_DEVICES if device not in ("cpu", SOFTWARE))
# Limits, because what readers send is kept forever and drawn for everyone.
MOST_MACHINES, MOST_OF_A_VIEWER, MOST_RECORDS = 120, 3, 300  # machines per store and per viewer; records per machine

_keeping = threading.Lock()
_kept_by: dict[Hashable, frozenset[str]] = {}  # machines by store and viewer


def keep(store: Store, viewer: Hashable, records: Sequence[Record]) -> str:
    """Store a viewer's records, all of one machine, and return the store's trouble.

    Raises:
        ValueError: A limit is reached, and nothing is stored; the message says which.
    """
    machine = records[0].machine
    with _keeping:
        n_records = {one.records[0].machine: len(one.records) for one in _machines(store.path, store.stamp())}
        mine = _kept_by.get((store.path, viewer), frozenset()) | {machine}
        for most, of, n in (
            (MOST_MACHINES, "machines from all readers", len({*n_records, machine})),
            (MOST_OF_A_VIEWER, "of your machines", len(mine)),
            (MOST_RECORDS, "results from your machine", n_records.get(machine, 0) + len(records)),
        ):
            if n > most:
                raise ValueError(f"expected at most {most} {of}; this one was not kept, earlier ones were")
        for record in records:
            store.add(record)
        _kept_by[store.path, viewer] = mine
    return store.trouble


def kept_machines(store: Store) -> tuple[Machine, ...]:
    """Return the machines that readers kept, oldest first; new ones are looked for once per second for all callers."""
    return _machines(store.path, _stamp(store.path, int(time.monotonic())))


@lru_cache(maxsize=4)
def _stamp(path: Path | None, _second: int) -> tuple:
    return Store(path).stamp()


@lru_cache(maxsize=4)
def _machines(path: Path | None, _stamp: tuple) -> tuple[Machine, ...]:
    return with_unique_names(browsers_in(Store(path)))


@dataclass(frozen=True)
class Contest:
    machine: Machine
    gpu: Best | None  # or of a software adapter, if the browser offers no GPU
    cpu: Best | None

    @property
    def is_software(self) -> bool:
        return self.gpu is not None and self.gpu.runtime.device == SOFTWARE

    @cached_property
    def comparison(self) -> Comparison | None:
        """The GPU's time over the CPU's; None if either is missing."""
        if self.gpu is None or self.cpu is None:
            return None
        return between(self.gpu.seconds.estimate, self.cpu.seconds.estimate)

    @property
    def verdict(self) -> Verdict | None:
        """Whether the GPU is faster or slower than the CPU; None without a GPU or a comparison."""
        return self.comparison.verdict if self.comparison is not None and not self.is_software else None


def contests(machines: Sequence[Machine], network: Network, batch_size: int) -> list[Contest]:
    """Return a contest per machine with figures for this network and batch size.

    GPUs with the largest lead come first, then software adapters, then machines with only one of the two devices.
    """
    epoch = partial(Machine.epoch, batch_size=batch_size, network=network)
    found = [
        Contest(
            one,
            best_runtime(one, epoch, *GPUS) or best_runtime(one, epoch, SOFTWARE),
            best_runtime(one, epoch, "cpu"),
        )
        for one in machines
    ]

    def place(one: Contest) -> tuple[bool, bool, float]:
        return one.comparison is None, one.is_software, one.comparison.ratio if one.comparison else 0.0

    return sorted((one for one in found if one.gpu is not None or one.cpu is not None), key=place)
