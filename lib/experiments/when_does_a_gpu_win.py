"""When a GPU trains faster than a processor: two sides over width and batch size, and what moves the border.

A side is a way to train that was calibrated on this machine, one that was calibrated on another and recorded there, or
a device that is known by its figures. All seconds are predicted but those of `measured_points`, which are stored step
times, of `points_elsewhere`, which other machines measured, and of `published_points`, which an article printed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lib.backends.registry import Runtime
from lib.experiments import published
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.experiments.calibration import (
    TOGETHER,
    WAYS,
    Trained,
    Trial,
    calibrations,
    measure_trials,
    recorded_step_times,
)
from lib.experiments.kept_machines import contests
from lib.experiments.recorded_machines import Best, Machine
from lib.hardware.device_memory import usable_memory_bytes
from lib.once import Once
from lib.prediction.calibration import LEAST_SAMPLES, Calibration, NotCalibrated
from lib.prediction.device import QUANTITIES, Device, DoesNotFit, Figure, Origin
from lib.prediction.grid import Grid, Predictions, predict_many
from lib.prediction.predict import Prediction, parts_on, predict
from lib.prediction.question import YOUR_PRICE, check_memory
from lib.prediction.workload import FLOAT32_BYTES, Way, Workload, convolutional, fully_connected, resnet18
from lib.profiling.request import CONVOLUTIONAL, Examination
from lib.spec import N_PIXELS, Network
from lib.storage.current import current
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.sweeps.cost_model import StepTime
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note
from lib.workers.queue import Request

CELLS = 64  # along each axis of the surface
WIDTH_ENDS, SIZE_ENDS = (16, 4096), (1, 4096)
RULE_PARAMETERS, RULE_SIZE = 500_000, 256  # both articles': below both, a fast processor beats a GPU
LARGER = Network((1024, 512, 256))  # which the second article proposes
BY = Runtime()  # by which larger work is measured here
MANY = 16  # networks at once
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
# The figure that each part of a step is paid by, and whether more of it makes the step shorter.
PAID_BY: Mapping[str, tuple[str, bool]] = {
    "call": ("host_call_s", False),
    "dispatch": ("dispatch_s", False),
    "launch": ("launch_s", False),
    "graph": ("graph_launch_s", False),
    "wait": ("wait_s", False),
    "transfer latency": ("transfer_latency_s", False),
    "transfer": ("transfer_bytes_per_s", True),
    "example": ("example_s", False),
    "cache": ("cache_bytes_per_s", True),
    "memory": ("memory_bytes_per_s", True),
    "products": ("product_flops_per_s", True),
}


def _cells(ends: tuple[int, int]) -> np.ndarray:
    """The middles of the cells of a logarithmic axis, rounded to whole numbers, (CELLS,)."""
    low, high = np.log2(ends)
    return np.round(2 ** (low + (high - low) * (np.arange(CELLS) + 0.5) / CELLS)).astype(int)


WIDTHS, SIZES = _cells(WIDTH_ENDS), _cells(SIZE_ENDS)
_DIFFERENT_SIZES, _PLACES = np.unique(SIZES, return_inverse=True)  # of small batches, several cells are the same


def grid(depth: int, networks: int, way: Way) -> Grid:
    """The workloads of the surface, those of equal cells once."""
    return Grid(tuple(map(int, WIDTHS)), tuple(map(int, _DIFFERENT_SIZES)), depth, networks, way, way.resident)


@dataclass(frozen=True, eq=False)
class Side:
    """What trains on one side.

    Attributes:
        label: For people.
        device: A calibration of this machine, or a device that is known by its figures.
        way: How a step is run.
        together: Networks in one program at most; others follow one after another.
        runtime: That was calibrated; None for a device that is known by its figures.
        memory_bytes: That a step may use of this machine; a known device has its own among its figures.
        recorded: Whether it was calibrated on another machine, from which it was recorded.
    """

    label: str
    device: Device | Calibration
    way: Way
    together: int = 2**30
    runtime: Runtime | None = None
    memory_bytes: float = math.inf
    recorded: bool = False

    @property
    def here(self) -> Runtime | None:
        """The runtime of this machine that it is; None for what is known of another."""
        return None if self.recorded else self.runtime

    def seconds(self, depth: int, networks: int) -> Predictions:
        """Seconds of a step of all these networks, at every width and batch size of the surface; NaN: it does not fit.

        Args:
            depth: Hidden layers.
            networks: That are trained.
        """
        at_once = min(networks, self.together)
        cells = grid(depth, at_once, self.way)
        # The answer holds the device, so that no other one has its id as long as the answer is known.
        _, found = _known.get((id(self.device), cells), lambda: (self.device, predict_many(cells, self.device)))
        # Free memory changes from moment to moment, and what is predicted does not.
        held = cells.working_bytes <= self.memory_bytes
        ends = (np.where(held, end, np.nan) for end in (found.step_s, found.low_s, found.high_s))
        all_cells = Predictions(*(end[:, _PLACES] for end in ends))
        return all_cells if networks == at_once else all_cells.times(networks / at_once)

    @property
    def on_gpu(self) -> bool:
        """Whether it is a graphics card; a software adapter is none."""
        return self.runtime.on_gpu if self.runtime is not None else self.device.on_gpu  # type: ignore[union-attr]

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


_known: Once[tuple[int, Grid], tuple[object, Predictions]] = Once(64)


def known_side(device: Device, way: Way) -> Side:
    """A device that is known by its figures, driven in one way."""
    article = "" if way in (Way.OPERATIONS, Way.GRAPH) else "a "
    by = f"{device.library} ({way})" if device.library else f"{article}{way}"
    return Side(f"{device.name} by {by}", device, way, device.together)


def calibrated_side(trained: Trained, calibration: Calibration, machine: str = "") -> Side:
    """A way to train that was calibrated on this machine, with the memory that it may use now, or on a recorded one.

    Args:
        trained: The way to train.
        calibration: Of its steps.
        machine: The recorded machine's name; empty for this one.
    """
    together, runtime = max(TOGETHER) if trained.together else 1, trained.runtime
    memory_bytes = math.inf if machine else usable_memory_bytes(runtime.device)
    where = f"recorded on {machine}" if machine else "here"
    label, way = f"{trained.label}, {where}", WAYS[runtime.backend]
    return Side(label, calibration, way, together, runtime, memory_bytes, recorded=bool(machine))


@dataclass(frozen=True, eq=False)
class Recorded:
    """A way to train that was calibrated on another machine, and recorded there."""

    machine: Machine
    trained: Trained
    step_times: Mapping[tuple[Trained, Trial], StepTime]

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.trained.label}, recorded on {self.machine.name}"

    @cached_property
    def side(self) -> Side:
        """What predicts its steps; raises NotCalibrated where what was recorded is of no use."""
        found, why_not = calibrations(self.step_times)
        if why_not:
            raise NotCalibrated(f"{self.machine.name}: {why_not[self.trained]}")
        return calibrated_side(self.trained, found[self.trained], self.machine.name)


def recorded_ways(machines: Sequence[Machine]) -> dict[str, Recorded]:
    """What can be predicted of these machines from their recorded calibrations, by `MACHINE/address`.

    Args:
        machines: As recorded; those without a calibration have no entry.
    """
    found = {}
    for machine in machines:
        step_times = recorded_step_times(machine.records)
        for trained in dict.fromkeys(one for one, _ in step_times):
            of_it = {key: step_time for key, step_time in step_times.items() if key[0] == trained}
            if len(of_it) >= LEAST_SAMPLES:
                found[f"{machine.records[-1].machine}/{trained.address}"] = Recorded(machine, trained, of_it)
    return found


@dataclass(frozen=True, eq=False)
class Surface:
    """How many times faster the right side is than the left one, (widths, batch sizes); NaN where it fits on neither.

    Attributes:
        left: Seconds of the left side.
        right: Seconds of the right side.
    """

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
        """Where the intervals of both sides overlap, so that nobody wins for sure."""
        return (self.low <= 1) & (self.high >= 1)

    def share(self, where: np.ndarray) -> float:
        """The share of all cells of which something is true."""
        return float(np.mean(where))

    def wins_from(self, width: int) -> int | None:
        """The smallest batch size from which on the right side is predicted to be faster; None where it never is.

        Args:
            width: The nearest one of the surface is meant.
        """
        faster = self.ratio[int(np.abs(np.log2(WIDTHS / width)).argmin())] > 1
        last_loss = int(np.flatnonzero(~faster)[-1]) if not faster.all() else -1
        return int(SIZES[last_loss + 1]) if last_loss + 1 < CELLS else None


def surface(left: Side, right: Side, depth: int, networks: int) -> Surface:
    """Both sides over width and batch size; `networks` are trained on either."""
    return Surface(left.seconds(depth, networks), right.seconds(depth, networks))


def border(ratio: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Where a ratio over the cells is 1: short lines from one (batch size, width) to another.

    Marching squares: a line through each square of four neighbouring cells on whose corners the faster side differs.

    Args:
        ratio: (CELLS, CELLS), of widths and batch sizes; no line goes through squares with a NaN.
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


# The articles' rule.


def rule_width(depth: int) -> int:
    """The width from which on networks of this depth have as many parameters as the rule says."""
    low, high = 1, WIDTH_ENDS[1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _parameters(middle, depth) >= RULE_PARAMETERS else (middle + 1, high)
    return low


def _parameters(width: int, depth: int) -> int:
    return Network((width,) * depth).n_parameters


@dataclass(frozen=True)
class RuleCheck:
    """Where the rule names the wrong side: shares of the cells that it speaks of, and the clearest case of each kind.

    A case is a width, a batch size, and how many times faster the other side is predicted to be.
    """

    gpu_wins_below: float  # of the cells where the rule says processor
    below: tuple[int, int, float] | None
    processor_wins_above: float  # of the cells where parameters and batch size are both above
    above: tuple[int, int, float] | None


def check_rule(shown: Surface, depth: int) -> RuleCheck:
    """Where the predictions contradict the rule, counted only where no intervals overlap.

    Args:
        shown: With a processor on the left and a GPU on the right.
        depth: Of its networks.
    """
    narrow, small = rule_width(depth) > WIDTHS, SIZES < RULE_SIZE
    below = narrow[:, None] & small[None, :]
    above = ~narrow[:, None] & ~small[None, :]
    wins, loses = below & (shown.low > 1), above & (shown.high < 1)
    return RuleCheck(
        float(wins.sum() / max(below.sum(), 1)),
        _clearest(wins, shown.ratio),
        float(loses.sum() / max(above.sum(), 1)),
        _clearest(loses, 1 / shown.ratio),
    )


def _clearest(where: np.ndarray, times: np.ndarray) -> tuple[int, int, float] | None:
    if not where.any():
        return None
    row, column = np.unravel_index(int(np.where(where, times, 0).argmax()), where.shape)
    return int(WIDTHS[row]), int(SIZES[column]), float(times[row, column])


# What is known beside predictions.


@dataclass(frozen=True)
class Point:
    """A width and a batch size at which more is known than what is predicted.

    Attributes:
        width: Of the hidden layers.
        batch_size: Images a step.
        left_s: Measured here or elsewhere, or published.
        right_s: Predicted, measured elsewhere, or published.
        by: The libraries of both sides, where they were published; empty where it was measured.
        machine: The one that measured both; empty where none did.
    """

    width: int
    batch_size: int
    left_s: float
    right_s: float
    by: tuple[str, ...] = ()
    machine: str = ""

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
    steps: Mapping[tuple[Network, int], StepTime], right: Side, depth: int, networks: int
) -> list[Point]:
    """Those that lie on the surface: networks whose hidden layers are equally wide.

    Args:
        steps: Of single networks, by the left side.
        right: What it is predicted to take there.
        depth: Hidden layers.
        networks: Trained one after another on the left, each for as long as the measured one.
    """
    found = []
    for (network, size), one in steps.items():
        if len(network.hidden) != depth or len(set(network.hidden)) != 1:
            continue
        if WIDTH_ENDS[0] <= network.hidden[0] <= WIDTH_ENDS[1] and SIZE_ENDS[0] <= size <= SIZE_ENDS[1]:
            with suppress(DoesNotFit):
                right_s = right.all_of(network, size, networks).step_s
                found.append(Point(network.hidden[0], size, networks * one.step_s, right_s))
    return found


def points_elsewhere(machines: Sequence[Machine], depth: int, networks: int) -> list[Point]:
    """What was recorded on machines, or kept from readers' browsers: an epoch on a machine's GPU and its processor.

    Args:
        machines: Software that stands for a GPU has no point.
        depth: Hidden layers; where they are not equally wide, there is no point.
        networks: Trained at once, by the quickest of the ways that were timed; where one after another is quicker than
            together, that time is taken.
    """
    found = []
    for machine, (network, size) in ((one, cell) for one in machines for cell in sorted(one.cells)):
        if len(network.hidden) == depth and len(set(network.hidden)) == 1:
            for one in contests([machine], network, size):
                if one.gpu is not None and one.cpu is not None and not one.is_software:
                    cpu_s, gpu_s = (_all_of(best, network, size, networks) for best in (one.cpu, one.gpu))
                    if cpu_s is not None and gpu_s is not None:
                        found.append(Point(network.hidden[0], size, cpu_s, gpu_s, machine=machine.name))
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


def published_points(depth: int, networks: int) -> list[Point]:
    """The first article's epochs of 784→128→10: its card beside the quickest library on its processor."""
    if (depth, networks) != (1, 1):
        return []
    found = []
    for size, gpu_s in published.EPOCH_S["keras-tensorflow", "gpu"].items():
        by_library = {key: of[size] for key, of in published.EPOCH_S.items() if key[1] == "cpu" and size in of}
        (quickest, _), cpu_s = min(by_library.items(), key=lambda one: one[1])
        found.append(Point(128, size, cpu_s, gpu_s, (quickest, "keras-tensorflow")))
    return found


def against_rule(points: Sequence[Point], depth: int) -> list[Point]:
    """The points measured elsewhere at which the rule names the wrong one of a machine's two, the clearest first."""
    width = rule_width(depth)

    def wrong(one: Point) -> bool:
        below = one.width < width and one.batch_size < RULE_SIZE
        above = one.width >= width and one.batch_size >= RULE_SIZE
        return bool(one.machine) and ((below and one.ratio > 1) or (above and one.ratio < 1))

    return sorted(filter(wrong, points), key=lambda one: max(one.ratio, 1 / one.ratio), reverse=True)


# An imagined card.


def imagined(device: Device, times: Mapping[str, float]) -> Device:
    """A device with some figures so many times as large; raises UnusableDevice where one becomes absurd.

    Args:
        device: Where it begins.
        times: By names of `CHANGEABLE`.
    """
    figures = dict(device.figures)
    for name, factor in times.items():
        for figure in CHANGEABLE[name]:
            old, source = figures[figure], f"imagined: {factor:g} times that of {device.name}"
            figures[figure] = Figure(factor * old.value, factor * old.low, factor * old.high, Origin.ASSUMED, source)
    changed = any(factor != 1 for factor in times.values())
    return replace(device, name=f"{device.name}, imagined", figures=figures) if changed else device


@dataclass(frozen=True)
class Wanted:
    """What one figure of a card would have to be for it to win, all others unchanged.

    Attributes:
        figure: Its name, of `QUANTITIES`.
        now: What it is.
        needed: What it would have to be, at which both sides take equally long; None: no value of it alone would do.
        share: Of the card's seconds that it stands for.
    """

    figure: str
    now: float
    needed: float | None
    share: float

    @property
    def words(self) -> str:
        """What the figure is of."""
        return QUANTITIES[self.figure].words

    @property
    def unit(self) -> str:
        """Of the figure."""
        return QUANTITIES[self.figure].unit


def what_it_would_take(workload: Workload, device: Device, goal_s: float) -> list[Wanted]:
    """For each figure that a step pays for: its value at which the step takes `goal_s`, the dearest figure first.

    Args:
        workload: As the device runs it.
        device: Known by its figures.
        goal_s: Seconds of a step on the other side.

    Raises:
        DoesNotFit: The device's memory cannot hold it.
    """
    device.check(workload)
    parts = parts_on(workload, device, "value")
    all_s = float(sum(parts.values()))
    found = []
    for part, (figure, is_rate) in PAID_BY.items():
        if (own_s := float(parts[part])) > 0:
            left_s, now = goal_s - (all_s - own_s), device.figures[figure].value
            needed = None if left_s <= 0 else now * own_s / left_s if is_rate else now * left_s / own_s
            found.append(Wanted(figure, now, needed, own_s / all_s))
    return sorted(found, key=lambda one: one.share, reverse=True)


# Larger work.


def larger_work(batch_size: int) -> list[Workload]:
    """The network that the second article proposes, a small convolutional one, and ResNet-18."""
    return [
        replace(fully_connected(LARGER, batch_size), name=f"784→{LARGER.label}→10"),
        convolutional(batch_size),
        resnet18(batch_size),
    ]


@dataclass(frozen=True)
class Answer:
    """Seconds of a step of larger work on one side: measured, else predicted; or why there are none."""

    work: str
    side: str
    on_gpu: bool
    steps: int  # of an epoch
    prediction: Prediction | None
    measured: StepTime | None = None
    why_not: str = ""


def measure_larger(
    batch_size: int, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Note | Record]:
    """Measure here what is cheap of larger work: steps of the second article's network and of the convolutional one.

    Raises:
        WorkerDied, TrainingFailed: From the worker that measures.
    """
    for event in measure_trials([(Trained(BY), [Trial(LARGER, batch_size)])], engine, store, cancel, request):
        if isinstance(event, Note):
            yield event
    yield from measure_tasks([_convolutional(batch_size)], engine, store, cancel, request)


def _convolutional(batch_size: int) -> AnatomyTask:
    return AnatomyTask(BY, Examination(CONVOLUTIONAL, batch_size=batch_size))


def answers(batch_size: int, sides: Sequence[Side], store: Store) -> list[Answer]:
    """All larger work on all sides: measured where this machine's store has it, else predicted."""
    found, (connected, convolved, _) = [], larger_work(batch_size)
    measured = {
        connected.name: measured_steps(store, BY).get((LARGER, batch_size)),
        convolved.name: _convolutional(batch_size).step_time(store.records(Kind.ANATOMY)),
    }
    for work in larger_work(batch_size):
        for side in sides:
            own = measured.get(work.name) if side.here == BY and side.together == 1 else None
            try:
                found.append(Answer(work.name, side.label, side.on_gpu, work.steps, side.one(work), own))
            except DoesNotFit as error:
                found.append(Answer(work.name, side.label, side.on_gpu, work.steps, None, why_not=str(error)))
    return found


# What it costs.


@dataclass(frozen=True)
class Cost:
    """Dollars of training on one side; None where it has no price."""

    side: str
    epoch: Prediction
    dollars: float | None  # an epoch
    per_h: float | None
    dated: str  # or `YOUR_PRICE`
    epochs: float | None = None  # to the accuracy; None where that was not counted

    @property
    def to_accuracy(self) -> float | None:
        """Dollars to the accuracy."""
        return None if self.dollars is None or self.epochs is None else self.dollars * self.epochs


def costs(
    sides: Sequence[Side], network: Network, batch_size: int, epochs: float | None, own_per_h: float | None = None
) -> list[Cost]:
    """What an epoch costs on each side, the cheapest first; those without a price last.

    Args:
        sides: This machine's, or devices that are known by their figures, a price perhaps among them.
        network: Single.
        batch_size: Images a step.
        epochs: That it needs to the accuracy; None where that is not known.
        own_per_h: Dollars of an hour of this machine, as the reader says; None where nobody does.
    """
    found = []
    workload = fully_connected(network, batch_size)
    for side in sides:
        per_h, dated = own_per_h, YOUR_PRICE
        if not isinstance(side.device, Calibration):
            price = side.device.figures.get("price_per_h")
            per_h, dated = price.value if price else None, side.device.dated
        epoch = side.one(workload).of(workload.steps)
        dollars = None if per_h is None else per_h * epoch.step_s / 3600
        found.append(Cost(side.label, epoch, dollars, per_h, dated if per_h is not None else "", epochs))
    return sorted(found, key=lambda one: (one.dollars is None, one.dollars or one.epoch.step_s))
