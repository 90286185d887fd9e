"""Two ways to train over width and batch size: predicted seconds, the border between them, and what is known beside it.

A side is a way to train that was calibrated on this machine, one that was calibrated and recorded on another, or a
device that is known by its figures. Only points are not predicted: stored step times, epochs recorded elsewhere, and
epochs that an article printed.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.hardware.device_memory import usable_memory_bytes
from lib.model.spec import N_PIXELS, Network
from lib.once import Once
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments import published
from lib.sweeps.experiments.calibration import TOGETHER, WAYS, TrainingWay, Trial, calibrations, recorded_step_times
from lib.sweeps.experiments.kept_machines import contests
from lib.sweeps.experiments.recorded_machines import Best, Machine
from lib.sweeps.storage.current import current
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.timing.prediction.calibration import LEAST_SAMPLES, Calibration, NotCalibrated
from lib.timing.prediction.device import Device, DoesNotFit, Origin, SheetFigure, check_memory
from lib.timing.prediction.predict import Prediction, Predictions, predict, predict_many
from lib.timing.prediction.workload import FLOAT32_BYTES, Way, Workload, even_networks, fully_connected

CELLS = 64  # along each axis of the surface
WIDTH_ENDS, SIZE_ENDS = (16, 4096), (1, 4096)
RULE_PARAMETERS, RULE_SIZE = 500_000, 256  # both articles': below both, a fast processor beats a GPU
MANY = 16  # networks at once
HERE, ELSEWHERE, PUBLISHED = KINDS = ("measured here", "measured elsewhere", "published")  # of points
FED_BYTES = FLOAT32_BYTES * N_PIXELS  # of an image in the published figures
NOT_FED = f"no published figure is of images that have not {N_PIXELS} pixels, so bringing these is left out"
# How the card is driven, one step after another; the last trains many networks in one program.
MOVES: Mapping[str, tuple[Way, int]] = {
    "operation by operation": (Way.OPERATIONS, 1),
    "a compiled step": (Way.STEP, 1),
    "a compiled epoch": (Way.EPOCH, 1),
    "one graph an epoch": (Way.GRAPH, 1),
    f"one graph an epoch, {MANY} networks at once": (Way.GRAPH, MANY),
}
# What a reader may change of an imagined card, and the figures that it stands for.
CHANGEABLE: Mapping[str, tuple[str, ...]] = {
    "launch": ("launch_s", "graph_launch_s"),
    "dispatch": ("host_call_s", "dispatch_s"),
    "bandwidth": ("memory_bytes_per_s", "cache_bytes_per_s"),
    "throughput": ("product_flops_per_s",),
    "feeding": ("transfer_bytes_per_s",),
}


def _cells(ends: tuple[int, int]) -> np.ndarray:
    """The middles of the cells of a logarithmic axis, rounded to whole numbers, (CELLS,)."""
    low, high = np.log2(ends)
    return np.round(2 ** (low + (high - low) * (np.arange(CELLS) + 0.5) / CELLS)).astype(int)


WIDTHS, SIZES = _cells(WIDTH_ENDS), _cells(SIZE_ENDS)
_DIFFERENT_SIZES, _PLACES = np.unique(SIZES, return_inverse=True)  # of small batches, several cells are the same


@dataclass(frozen=True, eq=False)
class Side:
    """What trains on one side.

    Attributes:
        label: For people.
        device: A calibration, or a device that is known by its figures.
        way: How a step is run.
        together: Networks in one program at most; others follow one after another.
        here: The runtime of this machine that it is; None for what is known of another.
        memory_bytes: That a step may use of this machine; a known device has its own among its figures.
        on_gpu: Whether it is a graphics card; a software adapter is none.
    """

    label: str
    device: Device | Calibration
    way: Way
    together: int = 2**30
    here: Runtime | None = None
    memory_bytes: float = math.inf
    on_gpu: bool = False

    def seconds(self, depth: int, networks: int) -> Predictions:
        """Seconds of a step of all these networks over the surface, (widths, batch sizes); NaN: it does not fit."""
        at_once = min(networks, self.together)
        cells = even_networks(WIDTHS, _DIFFERENT_SIZES, depth, at_once, self.way)
        key = (id(self.device), depth, at_once, self.way)
        # The answer holds the device, so that no other one has its id as long as the answer is known.
        _, found = _known.get(key, lambda: (self.device, predict_many(cells, self.device)))
        # Free memory changes from moment to moment, and what is predicted does not.
        held = cells.working_bytes <= self.memory_bytes
        ends = (np.where(held, end, np.nan) for end in (found.step_s, found.low_s, found.high_s))
        return Predictions(*(end[:, _PLACES] for end in ends)).times(networks / at_once)

    def all_of(self, network: Network, batch_size: int, networks: int = 1) -> Prediction:
        """Seconds of a step of so many equal networks; raises DoesNotFit."""
        at_once = min(networks, self.together)
        return self.one(fully_connected(network, batch_size, networks=at_once)).of(networks / at_once)

    def one(self, workload: Workload) -> Prediction:
        """Seconds of a step of a single workload, run in this side's way; raises DoesNotFit."""
        work = workload.by(self.way)
        check_memory(work, self.memory_bytes)
        if isinstance(self.device, Device) and self.device.library and work.input_bytes != FED_BYTES * work.batch_size:
            # How fast a library is fed was fitted to images of one size, and may go by images as well as by bytes.
            return replace(predict(replace(work, resident=True), self.device), warning=NOT_FED)
        return predict(work, self.device)


_known: Once[tuple[int, int, int, Way], tuple[object, Predictions]] = Once(64)


def known_side(device: Device, way: Way) -> Side:
    """A device that is known by its figures, driven in one way."""
    plainly = f"{'' if way in (Way.OPERATIONS, Way.GRAPH) else 'a '}{way}"
    by = f"{device.library} ({way})" if device.library else plainly
    return Side(f"{device.name} by {by}", device, way, device.together, on_gpu=device.on_gpu)


def calibrated_side(trained: TrainingWay, calibration: Calibration, machine: str = "") -> Side:
    """A way to train that was calibrated here, with the memory that is free now, or on the named, recorded machine."""
    runtime, together = trained.runtime, max(TOGETHER) if trained.together else 1
    label, free_bytes = f"{trained.label}, recorded on {machine}", math.inf
    if not machine:
        label, free_bytes = f"{trained.label}, here", usable_memory_bytes(runtime.device)
    here = None if machine else runtime
    return Side(label, calibration, WAYS[runtime.backend], together, here, free_bytes, runtime.on_gpu)


RecordedSteps = Mapping[tuple[TrainingWay, Trial], StepTime]


def recorded_ways(machines: Sequence[Machine]) -> dict[str, tuple[TrainingWay, str, RecordedSteps]]:
    """What was calibrated on other machines, by `MACHINE/address`: the way to train, the machine's name, its steps."""
    found = {}
    for machine in machines:
        step_times = recorded_step_times(machine.records)
        for trained in dict.fromkeys(one for one, _ in step_times):
            of_it = {key: step_time for key, step_time in step_times.items() if key[0] == trained}
            if len(of_it) >= LEAST_SAMPLES:
                found[f"{machine.records[-1].machine}/{trained.address}"] = (trained, machine.name, of_it)
    return found


def recorded_side(trained: TrainingWay, machine: str, step_times: RecordedSteps) -> Side:
    """What predicts the steps of one of `recorded_ways`; raises NotCalibrated where what was recorded is of no use."""
    found, why_not = calibrations(step_times)
    if why_not:
        raise NotCalibrated(f"{machine}: {why_not[trained]}")
    return calibrated_side(trained, found[trained], machine)


@dataclass(frozen=True, eq=False)
class Surface:
    """How many times faster the right side is than the left, (widths, batch sizes); NaN where it fits on neither."""

    left: Predictions
    right: Predictions

    @cached_property
    def ratio(self) -> np.ndarray:
        """Left over right seconds."""
        return self.left.step_s / self.right.step_s

    @cached_property
    def low(self) -> np.ndarray:
        """The least that the ratio may be by both intervals."""
        return self.left.low_s / self.right.high_s

    @cached_property
    def high(self) -> np.ndarray:
        """The most that the ratio may be by both intervals."""
        return self.left.high_s / self.right.low_s

    @cached_property
    def unclear(self) -> np.ndarray:
        """Where the intervals of both sides overlap."""
        return (self.low <= 1) & (self.high >= 1)

    def wins_from(self, width: int) -> int | None:
        """The smallest batch size from which on the right side is faster at the width nearest to this one, or None."""
        slower = ~(self.ratio[int(np.abs(np.log2(WIDTHS / width)).argmin())] > 1)
        first = int(np.flatnonzero(slower)[-1]) + 1 if slower.any() else 0
        return int(SIZES[first]) if first < CELLS else None


def surface(left: Side, right: Side, depth: int, networks: int) -> Surface:
    """Both sides over width and batch size; `networks` are trained on either."""
    return Surface(left.seconds(depth, networks), right.seconds(depth, networks))


def border_lines(ratio: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Where a ratio over the cells, (CELLS, CELLS), is 1: short lines from one (batch size, width) to another.

    Marching squares: a line through each square of four neighbouring cells on whose corners the faster side differs,
    and none through a square with a NaN.
    """
    logs = np.log2(np.where(ratio > 0, ratio, np.nan))
    corners = np.stack([logs[:-1, :-1], logs[:-1, 1:], logs[1:, 1:], logs[1:, :-1]])  # around each square
    mixed = np.isfinite(corners).all(axis=0) & (corners > 0).any(axis=0) & (corners <= 0).any(axis=0)
    found: list[tuple[float, float, float, float]] = []
    for row, column in zip(*np.nonzero(mixed), strict=True):
        heights = corners[:, row, column]
        places = ((row, column), (row, column + 1), (row + 1, column + 1), (row + 1, column))
        crossings = []
        for one in range(4):
            here, there = heights[one], heights[(one + 1) % 4]
            if (here > 0) != (there > 0):
                share = here / (here - there)
                (y, x), (y_to, x_to) = places[one], places[(one + 1) % 4]
                crossings.append((_at(SIZE_ENDS, x + share * (x_to - x)), _at(WIDTH_ENDS, y + share * (y_to - y))))
        found += [(*crossings[n], *crossings[n + 1]) for n in range(0, len(crossings), 2)]
    return found


def _at(ends: tuple[int, int], cell: float) -> float:
    """What a logarithmic axis says at a place, counted in cells from the middle of the first."""
    low, high = np.log2(ends)
    return float(2 ** (low + (high - low) * (cell + 0.5) / CELLS))


def rule_width(depth: int) -> int:
    """The width from which on networks of this depth have as many parameters as the articles' rule says."""
    widths = range(1, WIDTH_ENDS[1])
    return widths[bisect_left(widths, RULE_PARAMETERS, key=lambda width: Network((width,) * depth).n_parameters)]


def rule_failures(shown: Surface, depth: int) -> list[tuple[float, int, int, float]]:
    """Where the articles' rule names the wrong side for sure, with a processor on the left and a GPU on the right.

    Returns:
        Of the cells where parameters and batch size are both below the rule's, then of those where both are above: the
        share that contradicts it with no overlap of intervals, and the width and batch size of the clearest case, with
        how many times faster the other side is there.
    """
    narrow, small, found = (rule_width(depth) > WIDTHS)[:, None], SIZES < RULE_SIZE, []
    for corner, otherwise in ((narrow & small, shown.low > 1), (~narrow & ~small, shown.high < 1)):
        times = np.where(corner & otherwise, np.exp(np.abs(np.log(shown.ratio))), 0)
        row, column = np.unravel_index(int(times.argmax()), times.shape)
        share = np.count_nonzero(times) / max(np.count_nonzero(corner), 1)
        found.append((share, int(WIDTHS[row]), int(SIZES[column]), float(times[row, column])))
    return found


@dataclass(frozen=True)
class SurfacePoint:
    """A width and a batch size at which more is known than what is predicted of it.

    Attributes:
        kind: One of `KINDS`.
        width: Of the hidden layers.
        batch_size: Images a step.
        left_s: Seconds of the left side's step, or of a processor's epoch.
        right_s: Of the right side's step, which is predicted, or of a card's epoch.
        names: Of whose these seconds are.
    """

    kind: str
    width: int
    batch_size: int
    left_s: float
    right_s: float
    names: tuple[str, str]

    @property
    def ratio(self) -> float:
        """How many times faster the right side is."""
        return self.left_s / self.right_s


def measured_steps(store: Store, runtime: Runtime) -> dict[tuple[Network, int], StepTime]:
    """The valid step times of single networks that are stored of a runtime, by network and batch size."""
    found: dict[tuple[Network, int], list] = {}
    subject = runtime.subject | {"by": "alone"}
    for record in current(store.records(Kind.STEP_TIME), Kind.STEP_TIME, subject, runtime):
        label, size = str(record.subject["hidden"]), int(record.subject["batch_size"])
        network = Network(()) if label == Network(()).label else Network.parse(label)
        found.setdefault((network, size), []).append(record)
    return {key: StepTime.of(records) for key, records in found.items()}


def measured_points(
    steps: Mapping[tuple[Network, int], StepTime], left: Side, right: Side, depth: int, networks: int
) -> list[SurfacePoint]:
    """The left side's measured steps that lie on the surface, beside what the right side is predicted to take.

    The networks follow one another on the left, each for as long as the measured one.
    """
    found, names = [], (left.label, f"{right.label} (predicted)")
    for (network, size), one in steps.items():
        on_it = _is_even(network, depth) and WIDTH_ENDS[0] <= network.hidden[0] <= WIDTH_ENDS[1]
        if on_it and SIZE_ENDS[0] <= size <= SIZE_ENDS[1]:
            with suppress(DoesNotFit):
                right_s = right.all_of(network, size, networks).step_s
                found.append(SurfacePoint(HERE, network.hidden[0], size, networks * one.step_s, right_s, names))
    return found


def _is_even(network: Network, depth: int) -> bool:
    return len(network.hidden) == depth and len(set(network.hidden)) == 1


def points_elsewhere(machines: Sequence[Machine], depth: int, networks: int) -> list[SurfacePoint]:
    """What was recorded on machines, or kept from readers' browsers: an epoch on a machine's GPU and its processor.

    Of several networks, by the quickest of the ways that were timed. Software that stands for a GPU has no point.
    """
    found = []
    for machine, (network, size) in ((one, cell) for one in machines for cell in sorted(one.cells)):
        for one in contests([machine], network, size) if _is_even(network, depth) else ():
            if one.gpu is not None and one.cpu is not None and not one.is_software:
                cpu_s, gpu_s = (_all_of(best, network, size, networks) for best in (one.cpu, one.gpu))
                if cpu_s is not None and gpu_s is not None:
                    names = "the processor beside it", f"the GPU of {machine.name}"
                    found.append(SurfacePoint(ELSEWHERE, network.hidden[0], size, cpu_s, gpu_s, names))
    return found


def _all_of(best: Best, network: Network, batch_size: int, networks: int) -> float | None:
    """Seconds of an epoch of so many networks, by the quickest of the ways that were timed; None where none was.

    Evaluation is in the seconds of many together, and not in those of one alone, which favours the latter.
    """
    alone_s = best.seconds.middle
    if networks == 1:
        return alone_s
    together_s = best.machine.together_s(best.runtime.device, networks, network, batch_size)
    return None if together_s is None else networks * min(alone_s, together_s)


def published_points(depth: int, networks: int) -> list[SurfacePoint]:
    """The first article's epochs of 784→128→10: its card beside the quickest library on its processor."""
    if (depth, networks) != (1, 1):
        return []
    found, keras = [], BACKENDS["keras-tensorflow"].label
    for size, gpu_s in published.EPOCH_S["keras-tensorflow", "gpu"].items():
        on_cpu = ((of[size], key) for (key, device), of in published.EPOCH_S.items() if device == "cpu" and size in of)
        cpu_s, quickest = min(on_cpu)
        found.append(SurfacePoint(PUBLISHED, 128, size, cpu_s, gpu_s, (BACKENDS[quickest].label, keras)))
    return found


def against_rule(points: Sequence[SurfacePoint], depth: int) -> list[SurfacePoint]:
    """The points measured elsewhere at which the rule names the wrong one of a machine's two, the clearest first."""
    width = rule_width(depth)
    wrong = [
        one
        for one in points
        if one.kind == ELSEWHERE and (one.width < width) == (one.batch_size < RULE_SIZE) == (one.ratio > 1)
    ]
    return sorted(wrong, key=lambda one: max(one.ratio, 1 / one.ratio), reverse=True)


def imagined(device: Device, times: Mapping[str, float]) -> Device:
    """A device with some figures so many times as large, by names of `CHANGEABLE`; raises UnusableDevice where one
    becomes absurd."""
    scaled = {figure: factor for name, factor in times.items() for figure in CHANGEABLE[name] if factor != 1}

    def figure(name: str, factor: float) -> SheetFigure:
        was, source = device.figures[name], f"imagined: {factor:g} times that of {device.name}"
        return SheetFigure(factor * was.value, factor * was.low, factor * was.high, Origin.ASSUMED, source)

    figures = {**device.figures, **{name: figure(name, factor) for name, factor in scaled.items()}}
    return replace(device, name=f"{device.name}, imagined", figures=figures) if scaled else device
