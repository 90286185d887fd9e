"""The border between a CPU and a card over width and batch size: where it is, and what moves it.

The surface is predicted and drawn at once, and again whenever the calibration of this machine improves. Only the points
are not predicted: stored step times, epochs recorded on other machines, and epochs printed in an article.
"""

import base64
import html
import io
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
from contourpy import contour_generator
from PIL import Image

from lib.formatting import factor, listed, seconds, times
from lib.labs import why_slower
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import N_PIXELS, Network
from lib.once import Once, once
from lib.sweeps.experiments import published
from lib.sweeps.experiments.advice import Row, driven_here, known_devices, of_machine, published_rows, recorded
from lib.sweeps.experiments.calibration import LiveCalibrations, TrainingWay, live_in, ways
from lib.sweeps.experiments.recorded_machines import MEASURED, PUBLISHED, RECORDED, Machine, recorded_gpus
from lib.sweeps.experiments.your_gpu import contests, kept_machines
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.records import Kind, current
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import quickest_runtime
from lib.timing.comparison import ratio_of
from lib.timing.prediction.predict import Calibration, DrivenDevice, Prediction, predict_many
from lib.timing.prediction.workload import (
    FLOAT32_BYTES,
    Device,
    NoPrediction,
    Way,
    Workload,
    even_networks,
    fully_connected,
)
from lib.ui import layout
from lib.ui.controls import Controls, batch_size, dropdown, hidden, slider
from lib.ui.lab import Drawing, Shown
from lib.ui.views.chart import Chart, alt, log_scale, row_color, styled
from lib.ui.views.dots import LOOKS
from lib.ui.views.markup import quiet

CELLS = 64  # along each axis of the surface
WIDTH_ENDS, SIZE_ENDS = (16, 4096), (1, 4096)
RULE_PARAMETERS, RULE_SIZE = 500_000, 256  # both articles' rule: below both, a fast CPU wins
MANY = 16  # networks trained at once
KINDS = (MEASURED, RECORDED, PUBLISHED)  # of the points
FED_BYTES = FLOAT32_BYTES * N_PIXELS  # per image in the published figures
NOT_FED = f"no published figure is for images without {N_PIXELS} pixels, so feeding these is left out"
# Ways to drive the card, with the networks trained at once.
MOVES: Mapping[str, tuple[Way, int]] = {
    "operation by operation": (Way.OPERATIONS, 1),
    "by a compiled step": (Way.STEP, 1),
    "by a compiled epoch": (Way.EPOCH, 1),
    "by one graph an epoch": (Way.GRAPH, 1),
    f"by one graph an epoch, {MANY} networks at once": (Way.GRAPH, MANY),
}
# What the reader can change about an imagined card, with the figures that each change scales.
CHANGEABLE: Mapping[str, tuple[str, ...]] = {
    "launch": ("launch_s", "graph_launch_s"),
    "dispatch": ("host_call_s", "dispatch_s"),
    "bandwidth": ("memory_bytes_per_s", "cache_bytes_per_s"),
    "throughput": ("product_flops_per_s",),
    "feeding": ("transfer_bytes_per_s",),
}


def _at(ends: tuple[int, int], cells: np.ndarray) -> np.ndarray:
    """The values on a logarithmic axis at positions in cells, counted from the centre of the first."""
    low, high = np.log2(ends)
    return 2 ** (low + (high - low) * (cells + 0.5) / CELLS)


WIDTHS, SIZES = (np.round(_at(ends, np.arange(CELLS))).astype(int) for ends in (WIDTH_ENDS, SIZE_ENDS))


def surface_s(side: DrivenDevice, depth: int, networks: int) -> Prediction:
    """Seconds per step of all networks over the surface, (widths, batch sizes); NaN if it does not fit."""
    device, at_once = side.device, min(networks, side.together)
    assert device is not None, "both sides can be predicted"
    cells = even_networks(WIDTHS, SIZES, depth, at_once, side.way)
    key = (id(device), depth, at_once, side.way)
    # The cached value holds the device, so that its id is not reused while the entry exists.
    _, found = _known.get(key, lambda: (device, predict_many(cells, device)))
    # Applied outside the cache, because free memory changes and predictions do not.
    held = cells.working_bytes <= side.memory_bytes
    ends = (np.where(held, end, np.nan) for end in (found.step_s, found.low_s, found.high_s))
    return Prediction(*ends).of(networks / at_once)


def all_of(side: DrivenDevice, network: Network, batch_size: int, networks: int = 1) -> Prediction:
    """Seconds per step of this many equal networks. Raises NoPrediction."""
    at_once = min(networks, side.together)
    return step_of(side, fully_connected(network, batch_size, networks=at_once)).of(networks / at_once)


def step_of(side: DrivenDevice, workload: Workload) -> Prediction:
    """Seconds per step of one workload. Raises NoPrediction."""
    work = workload.by(side.way)
    if isinstance(side.device, Device) and side.library and work.input_bytes != FED_BYTES * work.batch_size:
        # The feeding rate was fitted to one image size, so it may depend on images or on bytes.
        return replace(side.predicted(replace(work, resident=True)), warning=NOT_FED)
    return side.predicted(work)


_known: Once[tuple[int, int, int, Way], tuple[object, Prediction]] = Once(64)


def fitting(side: DrivenDevice, workload: Workload) -> Prediction | None:
    """Seconds per step of one workload; None if it does not fit into the memory."""
    with suppress(NoPrediction):
        return step_of(side, workload)
    return None


def known_side(device: Device, way: Way) -> DrivenDevice:
    plainly = f"{'' if way in (Way.OPERATIONS, Way.GRAPH) else 'a '}{way}"
    by = f"{device.library} ({way})" if device.library else plainly
    return DrivenDevice(device, way, device.together, device.library, label=device.name + " by " + by)


def calibrated_side(trained: TrainingWay, calibration: Calibration) -> DrivenDevice:
    return replace(driven_here(trained, calibration), label=trained.label + ", here")


def recorded_side(runtime: Runtime, device: str = "") -> DrivenDevice | None:
    """The same backend on a recorded machine, whose device has this in its name, predicted from epochs timed there;
    None if there are none.
    """
    label = runtime.label
    for where, of in recorded().items():
        if device in where and label in of:
            on = f"{label} on {where.partition(', recorded')[0]}"
            name = f"{device} by {BACKENDS[runtime.backend].label}" if device else on
            return replace(of[label], label=name)
    return None


@dataclass(frozen=True, eq=False)
class Surface:
    """How many times faster the right side is than the left, (widths, batch sizes); NaN if either does not fit."""

    left: Prediction
    right: Prediction

    @cached_property
    def interval(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return ratio_of(self.left.interval_s, self.right.interval_s)

    @property
    def ratio(self) -> np.ndarray:
        return self.interval[1]

    @cached_property  # the tooltips ask for it at each tile
    def unclear(self) -> np.ndarray:
        return ~(self.wins | self.loses)

    @property
    def wins(self) -> np.ndarray:
        return self.interval[0] > 1

    @property
    def loses(self) -> np.ndarray:
        return self.interval[2] < 1

    def wins_at(self, width: int) -> str:
        """The batch sizes at which the right side is faster, at the nearest width, in words."""
        won = self.ratio[int(np.abs(np.log2(WIDTHS / width)).argmin())] > 1
        ends = np.flatnonzero(np.diff(won, prepend=False, append=False))
        runs = [(int(SIZES[first]), int(SIZES[after - 1])) for first, after in ends.reshape(-1, 2)]
        return f"with {listed([_between(*run) for run in runs] or ['no batch size'])}"


def _between(first: int, last: int) -> str:
    if first == SIZES[0]:
        return "every batch size" if last == SIZES[-1] else f"batch sizes up to {last:,}"
    return f"batch sizes from {first:,}" + (f" to {last:,}" if last < SIZES[-1] else "")


def border_lines(ratio: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Where a ratio over the cells, (CELLS, CELLS), is 1: segments of (batch size, width, batch size, width)."""
    logs = np.ma.masked_invalid(np.log2(np.where(ratio > 0, ratio, np.nan)))
    lines = cast("list[np.ndarray]", contour_generator(z=logs).lines(0.0))
    placed = (
        zip(_at(SIZE_ENDS, line[:, 0]).tolist(), _at(WIDTH_ENDS, line[:, 1]).tolist(), strict=True) for line in lines
    )
    return [(*start, *end) for line in placed for start, end in pairwise(line)]


def even_width(n_parameters: int, depth: int) -> int:
    """The smallest width at which `depth` equally wide layers have at least this many parameters."""
    widths = range(1, WIDTH_ENDS[1])
    at = bisect_left(widths, n_parameters, key=lambda width: Network((width,) * depth).n_parameters)
    return widths[min(at, len(widths) - 1)]


def rule_width(depth: int) -> int:
    """The smallest width at which networks of this depth reach the parameters of the articles' rule."""
    return even_width(RULE_PARAMETERS, depth)


def rule_failures(shown: Surface, depth: int) -> list[tuple[float, int, int, float]]:
    """Where the articles' rule certainly names the wrong side, with a CPU on the left and a GPU on the right.

    Returns:
        One tuple for the cells where parameters and batch size are both below the rule's, and one for those where both
        are above: the share of cells that surely contradict the rule, and the width, batch size and speedup of the
        clearest case.
    """
    narrow, small, found = (rule_width(depth) > WIDTHS)[:, None], SIZES < RULE_SIZE, []
    for corner, otherwise in ((narrow & small, shown.wins), (~narrow & ~small, shown.loses)):
        times = np.where(corner & otherwise, np.exp(np.abs(np.log(shown.ratio))), 0)
        row, column = np.unravel_index(int(times.argmax()), times.shape)
        share = np.count_nonzero(times) / max(np.count_nonzero(corner), 1)
        found.append((share, int(WIDTHS[row]), int(SIZES[column]), float(times[row, column])))
    return found


@dataclass(frozen=True)
class SurfacePoint:
    """A width and a batch size with more than a prediction.

    Attributes:
        kind: One of `KINDS`.
        width: Width of the hidden layers.
        batch_size: Images per step.
        left_s: Seconds per step of the left side, or per epoch of a CPU.
        right_s: Predicted seconds per step of the right side, or seconds per epoch of a card.
        names: What trained in `left_s` and in `right_s`.
    """

    kind: str
    width: int
    batch_size: int
    left_s: float
    right_s: float
    names: tuple[str, str]

    @property
    def ratio(self) -> float:
        return self.left_s / self.right_s


def measured_steps(store: Store, runtime: Runtime) -> dict[tuple[Network, int], StepTime]:
    found: dict[tuple[Network, int], list] = {}
    subject = runtime.subject | {"by": "alone"}
    for record in current(store.records(Kind.STEP_TIME), Kind.STEP_TIME, subject, runtime):
        label, size = str(record.subject["hidden"]), int(record.subject["batch_size"])
        network = Network(()) if label == Network(()).label else Network.parse(label)
        found.setdefault((network, size), []).append(record)
    return {key: StepTime.of(records) for key, records in found.items()}


def measured_points(
    steps: Mapping[tuple[Network, int], StepTime], left: DrivenDevice, right: DrivenDevice, depth: int, networks: int
) -> list[SurfacePoint]:
    """The left side's measured steps that lie on the surface, each with the right side's prediction.

    On the left, the networks follow one another, each for as long as the measured one.
    """
    found, names = [], (left.label, f"{right.label} (predicted)")
    for (network, size), one in steps.items():
        on_it = _is_even(network, depth) and WIDTH_ENDS[0] <= network.hidden[0] <= WIDTH_ENDS[1]
        if on_it and SIZE_ENDS[0] <= size <= SIZE_ENDS[1]:
            with suppress(NoPrediction):
                right_s = all_of(right, network, size, networks).step_s
                found.append(SurfacePoint(MEASURED, network.hidden[0], size, networks * one.step_s, right_s, names))
    return found


def _is_even(network: Network, depth: int) -> bool:
    return len(network.hidden) == depth and len(set(network.hidden)) == 1


def points_elsewhere(machines: Sequence[Machine], depth: int) -> list[SurfacePoint]:
    """GPU and CPU epochs that were recorded on machines or kept from browsers.

    Software adapters have no point.
    """
    return [
        SurfacePoint(
            RECORDED,
            network.hidden[0],
            size,
            one.cpu.seconds.middle,
            one.gpu.seconds.middle,
            ("the same machine's CPU", f"the GPU of {machine.name}"),
        )
        for machine in machines
        for network, size in sorted(machine.cells)
        if _is_even(network, depth)
        for one in contests([machine], network, size)
        if one.gpu is not None and one.cpu is not None and not one.is_software
    ]


def published_points() -> list[SurfacePoint]:
    """The first article's epochs of 784→128→10: its card against the fastest library on its CPU."""
    found, keras = [], BACKENDS["keras-tensorflow"].label
    for size, gpu_s in published.EPOCH_S["keras-tensorflow", "gpu"].items():
        on_cpu = ((of[size], key) for (key, device), of in published.EPOCH_S.items() if device == "cpu" and size in of)
        cpu_s, quickest = min(on_cpu)
        found.append(SurfacePoint(PUBLISHED, 128, size, cpu_s, gpu_s, (BACKENDS[quickest].label, keras)))
    return found


def imagined(device: Device, times: Mapping[str, float]) -> Device:
    """The device with its figures scaled, by names of `CHANGEABLE`."""
    scaled = {
        figure: device.figures[figure].times(scale)
        for name, scale in times.items()
        for figure in CHANGEABLE[name]
        if scale != 1
    }
    figures = {**device.figures, **scaled}
    return replace(device, name=f"{device.name}, imagined", figures=figures) if scaled else device


WAYS = {"operations": Way.OPERATIONS, "step": Way.STEP, "epoch": Way.EPOCH, "graph": Way.GRAPH}  # by name in an address
WAY_NAMES = {str(way): key for key, way in WAYS.items()}
ON_HERE = "here/"  # prefix of the addresses of this machine's ways of training
CARD = "h100-sxm"  # the recorded card
STAND_INS = "i9-10885h/jax-step", "h100-sxm/jax-step"  # for a CPU or a GPU that is neither calibrated nor recorded
RECORDED_AS = {CARD: "H100", "h200-sxm": "H200"}
DRIVEN_BY = {Way.OPERATIONS: "torch", Way.STEP: "jax-step", Way.EPOCH: "jax-epoch"}  # the recorded cards
FACTORS = tuple(2.0**power for power in range(-6, 7))
NAMED_WIDTHS = (128, 1024)  # widths at which the sentences locate the border
LEFT, RIGHT = (58, 114, 216), (209, 98, 58)  # blue and orange: safe for red-green colour blindness
FULL = np.log10(100)  # log10 of the speedup at which colours reach full strength
TILE = 4  # cells along each side of a tooltip's tile
HEIGHT = 340
DASHES = {"border": [1, 0], "end": [5, 3], "before": [2, 3], "rule": [8, 4]}  # by kind of line


@once
def devices() -> dict[str, Device]:
    return known_devices()


def known_cards() -> dict[str, str]:
    return {device.name: key.partition("/")[0] for key, device in devices().items() if device.on_gpu}


def cards() -> dict[str, str]:
    return _here(on_gpu=True) | known_cards()


def processors() -> dict[str, str]:
    return _here(on_gpu=False) | {
        f"{device.name}, {device.driven(way)}": f"{key}/{name}"
        for key, device in devices().items()
        if not device.on_gpu
        for name, way in WAYS.items()
        if way in device.ways
    }


def _here(on_gpu: bool) -> dict[str, str]:
    return {f"{one.label}, here": ON_HERE + one.address for one in ways() if one.runtime.on_gpu is on_gpu}


class Border(Controls):
    AGAIN = ()
    left = dropdown("CPU", lambda: ON_HERE + quickest_runtime().address, processors, full_width=True)
    right = dropdown("GPU", CARD, cards, full_width=True)
    way = dropdown("The GPU is driven by a", "epoch", WAY_NAMES, full_width=True)
    hidden = hidden()
    size = batch_size("Batch size", 32)
    networks = slider("Networks at once", 1, (1, 2, 4, 8, 16, 32, 64, 128))

    @property
    def network(self) -> Network:
        return Network.parse(self.hidden)

    @property
    def depth(self) -> int:
        """Hidden layers of every network on the map: as many as the reader's, but at least one."""
        return max(1, len(self.network.hidden))


def _factor(label: str) -> Any:
    return slider(f"{label}, times", 1.0, FACTORS, debounce=False)


class ImaginedCard(Controls):
    AGAIN = ()
    card = dropdown("Start with", CARD, known_cards, full_width=True)
    launch = _factor("Starting a kernel")
    dispatch = _factor("Calls and dispatch by the host")
    bandwidth = _factor("Memory and cache bandwidth")
    throughput = _factor("Products")
    feeding = _factor("Feeding the batches")


def live_of(shown: Shown) -> LiveCalibrations:
    return live_in(shown.section.page.store.path)


def side(written: str, way: Way, live: LiveCalibrations, networks: int = 1) -> DrivenDevice | None:
    """A side by its address; None if it is not calibrated.

    Args:
        written: In the format of `processors` and `cards`.
        way: Used for a device whose address names none.
        live: This machine's calibrations.
        networks: Trained at once; one network on a recorded card is predicted from epochs timed there.
    """
    if written.startswith(ON_HERE):
        trained = _trained(written, live)
        calibration = live.of(trained).calibration
        return calibrated_side(trained, calibration) if calibration is not None else None
    key, _, name = written.rpartition("/")
    return known_side(devices()[key], WAYS[name]) if key else card_side(written, way, networks)


def card_side(key: str, way: Way, networks: int) -> DrivenDevice:
    timed = None
    if networks == 1 and key in RECORDED_AS and way in DRIVEN_BY:
        timed = recorded_side(Runtime(DRIVEN_BY[way], "gpu"), RECORDED_AS[key])
    return timed or known_side(of_machine(devices(), key, way), way)


def _trained(written: str, live: LiveCalibrations) -> TrainingWay:
    return next(one.trained for one in live.view().items if ON_HERE + one.trained.address == written)


def sides(of: Border, live: LiveCalibrations) -> tuple[DrivenDevice, DrivenDevice, list[str]]:
    """Both sides, and a sentence on the stand-in for each side that is not calibrated."""
    way, notes, found = WAYS[of.way], [], []
    for wanted in (of.left, of.right):
        if (known := side(wanted, way, live, of.networks)) is None:
            trained = _trained(wanted, live)
            stand_in = devices()[STAND_INS[trained.runtime.on_gpu]]
            known = recorded_side(trained.runtime) or known_side(stand_in, Way.STEP)
            notes.append(f"{trained.label} is not calibrated on this machine yet: {known.label} stands in until it is.")
        found.append(known)
    return found[0], found[1], notes


def remarks(notes: Iterable[str], judged: Iterable[tuple[str, str]]) -> str:
    """HTML: the notes, then the predictions that may be further off than their ranges say, grouped by reason.

    Args:
        notes: Sentences.
        judged: Names and reasons; pairs with an empty reason are skipped.
    """
    reasons: dict[str, dict[str, None]] = {}
    for name, reason in judged:
        reasons.setdefault(reason, {})[name] = None
    unsure = [f"Unsure: {'; '.join(names)}: {reason}." for reason, names in reasons.items() if reason]
    return "".join(map(quiet, (*notes, *unsure)))


def warnings(judged: Iterable[DrivenDevice]) -> list[tuple[str, str]]:
    return [(one.label, one.device.warning) for one in judged if isinstance(one.device, Device)]


def _from_recordings(one: DrivenDevice) -> str:
    if one.here or not isinstance(one.device, Calibration):
        return ""
    return (
        f"{one.label}: predicted from {len(one.device.deviations)} epochs recorded there; each is off by"
        f" {one.device.median_error:.0%} at the median if predicted from the others."
    )


# The border.


def border(shown: Shown) -> Drawing:
    at, store = shown.at, shown.section.page.store
    left, right, notes = sides(at, live_of(shown))
    of = Surface(*(surface_s(one, at.depth, at.networks) for one in (left, right)))
    steps = measured_steps(store, left.runtime) if left.runtime and left.here and left.together == 1 else {}
    machines = (*recorded_gpus(), *kept_machines(store))
    points = [
        *measured_points(steps, left, right, at.depth, at.networks),
        *(points_elsewhere(machines, at.depth) if at.networks == 1 else ()),
        *(published_points() if at.networks == at.depth == 1 else ()),
    ]
    yours = at.size, even_width(at.network.n_parameters, at.depth)
    chart = surface_chart(of, left.label, right.label, at.depth, points, yours=yours)
    said = surface_sentence(of, left.label, right.label, at.depth, at.networks)
    with suppress(NoPrediction):
        steps_s = (all_of(one, at.network, at.size, at.networks) for one in (left, right))
        # A stand-in's prediction would contradict the verdict.
        said = said if notes else f"{yours_sentence(*steps_s, left.label, right.label)} {said}"
    corner = (one for one in points if one.batch_size < RULE_SIZE and one.width < rule_width(at.depth))
    below = [one.ratio > 1 for one in corner if one.kind == RECORDED]
    rule = rule_sentence(rule_failures(of, at.depth), left.label, right.label, below)
    articles = published_sentence(_published())
    records = [*store.records(Kind.RACE), *store.records(Kind.ANATOMY)]
    verdict = why_slower.sentence(*why_slower.known_at(at.size, records, at.network, shown.section.page.today))
    verdict += f" ({at.network.whole_label}, batch size {at.size:,}.)" * bool(verdict)
    return Drawing(
        layout.said(verdict)
        + "".join(map(quiet, notes))
        + layout.sentence(said)
        + layout.figure(chart.title, chart)
        + legend(left.label, right.label, points)
        + layout.said(rule)
        + remarks([*filter(None, map(_from_recordings, (left, right))), articles], warnings([left, right])),
        f"{verdict} {said} {rule} {articles}".strip(),
    )


def yours_sentence(left_s: Prediction, right_s: Prediction, left: str, right: str) -> str:
    if left_s.step_s < right_s.step_s:
        left_s, right_s, left, right = right_s, left_s, right, left
    low, ratio, high = ratio_of(left_s.interval_s, right_s.interval_s)
    either = ": either may be faster" if low <= 1 else ""
    return (
        f"Predicted for a step of your network: {right} {seconds(right_s.step_s)}; {left} {seconds(left_s.step_s)},"
        f" {factor(ratio, low, high)} times as long{either}."
    )


def surface_sentence(shown: Surface, left: str, right: str, depth: int, networks: int) -> str:
    known = np.isfinite(shown.ratio)
    if not known.any():
        return "No network of this depth fits into the memory of both sides; choose fewer networks or layers."
    wins, loses = map(np.mean, (shown.wins, shown.loses))
    beats, sure = "would beat", "Everywhere the range includes the opposite: only a measurement can tell."
    if max(wins, loses) >= 0.005:
        beats, certain = "beats", f"surely faster in {wins:.0%} of this field and surely slower in {loses:.0%}"
        sure = f"It is {certain}; elsewhere neither is sure."
    layers = "one hidden layer" if depth == 1 else f"{depth} hidden layers"
    trained = "one network" if networks == 1 else f"{networks:,} networks"
    places = [f"at width {width:,} {shown.wins_at(width)}" for width in NAMED_WIDTHS]
    grey = f" Grey: {np.mean(~known):.0%} of the field does not fit into one side's memory." if not known.all() else ""
    return f"Predicted for {trained} of {layers}: {right} {beats} {left} {listed(places)}. {sure}{grey}"


def rule_sentence(
    failures: Sequence[tuple[float, int, int, float]], left: str, right: str, below: Sequence[bool]
) -> str:
    """Where predictions or recorded epochs contradict the rule; `below` says of each recorded below it: the GPU won."""
    failed = [
        f"{where} both, {winner} surely wins in {'under 1%' if share < 0.01 else f'{share:.0%}'} of the corner"
        f" (at width {width:,} and batch size {size:,} it is {times(ratio)} times faster)"
        for where, winner, (share, width, size, ratio) in zip(("below", "above"), (right, left), failures, strict=True)
        if share
    ]
    if any(below):
        n_won = f"{sum(below)} of {len(below)} places"
        failed.append(f"recorded below both, a GPU at its best beat its own machine's CPU in {n_won}")
    fails = (
        f"Here it fails: {'; '.join(failed)}."
        if failed
        else "No prediction contradicts it for sure, and no recorded epoch does."
    )
    return (
        f"The articles' rule: below {RULE_PARAMETERS:,} parameters and batch size {RULE_SIZE}, a fast CPU wins. {fails}"
    )


_published = once(published_rows)


def published_sentence(rows: Sequence[Row]) -> str:
    unseen = [one for one in rows if not one.figure.used]
    errors = [abs(one.error) for one in unseen]
    return (
        f"Of {len(rows)} figures printed in the articles, {len(rows) - len(unseen)} set the model. The other"
        f" {len(unseen)} are off by {np.median(errors):.0%} at the median and by {max(errors):.0%} at worst;"
        f" {sum(one.covered for one in unseen)} of them are in the predicted range. All are in"
        " `docs/published_figures.csv`."
    )


# Moving the border.


def imagined_card(shown: Shown, of: Border) -> Drawing:
    """The border's own prediction, times what the changed figures would change by the card's data sheet."""
    at, way, changes = shown.at, WAYS[of.way], {name: getattr(shown.at, name) for name in CHANGEABLE}
    (left, _, notes), known = sides(of, live_of(shown)), card_side(at.card, way, of.networks)

    def driven(way: Way, networks: int, changes: Mapping[str, float]) -> Surface:
        sheet = of_machine(devices(), at.card, way)
        cards = (card_side(at.card, way, networks), known_side(sheet, way), known_side(imagined(sheet, changes), way))
        cpu, now, was, new = (surface_s(one, of.depth, networks) for one in (left, *cards))
        return Surface(cpu, now.of(new.step_s / was.step_s))

    before, after = driven(way, of.networks, {}), driven(way, of.networks, changes)
    ways = {name: driven(*move, changes) for name, move in MOVES.items()}
    label = known.label + ", imagined" * ({*changes.values()} != {1.0})
    chart = surface_chart(after, left.label, label, of.depth, before=before)
    said = imagined_sentence(before, after, ways, label)
    remarked = remarks([*notes, _from_recordings(known)], warnings([left, known]))
    return Drawing(layout.sentence(said) + layout.figure(chart.title, chart) + remarked, said)


def imagined_sentence(before: Surface, after: Surface, driven: Mapping[str, Surface], name: str) -> str:
    moved = [
        f"at width {width:,} it wins {now}{f' (before: {was})' * (was != now)}"
        for width in NAMED_WIDTHS
        for was, now in [(before.wins_at(width), after.wins_at(width))]
    ]
    ways = [f"{way}, {one.wins_at(NAMED_WIDTHS[0])}" for way, one in driven.items()]
    return f"{name}: {listed(moved)}. At width {NAMED_WIDTHS[0]}, it wins {'; '.join(ways)}."


# Charts.


def rgba(ratio: np.ndarray, unclear: np.ndarray) -> np.ndarray:
    """The ground's colours, (..., 4) from 0 to 1: orange where the right side is faster, blue where the left one is.

    At equal speed it is transparent, so that the page's background, light or dark, is the middle of the palette.
    Unclear cells have about a third of the strength; NaN is grey.
    """
    known = np.isfinite(ratio)
    strength = np.clip(np.abs(np.log10(np.where(known, ratio, 1.0))) / FULL, 0, 1)
    alpha = np.where(known, (0.12 + 0.78 * strength) * np.where(unclear, 0.35, 1.0), 0.3)
    color = np.where((known & (ratio > 1))[..., None], RIGHT, LEFT) / 255
    return np.concatenate([np.where(known[..., None], color, 0.5), alpha[..., None]], axis=-1)


def surface_chart(
    shown: Surface,
    left: str,
    right: str,
    depth: int,
    points: Sequence[SurfacePoint] = (),
    before: Surface | None = None,
    yours: tuple[int, int] | None = None,
) -> Chart:
    """The ground and border, the articles' rule, points, and the reader's network; `before` adds a dotted border."""
    moved = _lines(before.ratio, "before", 1.6) if before is not None else []
    ends = [line for ratio in shown.interval[::2] for line in _lines(ratio, "end", 1.0)]
    width, looks = rule_width(depth), _looks("rule", 1.4)
    corner = [
        {"x": SIZE_ENDS[0], "x2": RULE_SIZE, "y": width, "y2": width} | looks,
        {"x": RULE_SIZE, "x2": RULE_SIZE, "y": WIDTH_ENDS[0], "y2": width} | looks,
    ]
    lines = [*_lines(shown.ratio, "border", 2.4), *ends, *moved, *corner]
    words: list[dict] = [{"x": RULE_SIZE, "y": 1.25 * WIDTH_ENDS[0], "text": "the articles' rule"}]
    if yours is not None:
        words.append({"x": yours[0], "y": max(yours[1], WIDTH_ENDS[0]), "text": "◂ your network"})
    picture = io.BytesIO()
    pixels = np.uint8(np.round(255 * rgba(shown.ratio, shown.unclear)[::-1]))  # one per cell, the largest width on top
    Image.fromarray(pixels).save(picture, format="png")
    ground = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    datasets = {"ground": [{"url": ground}], "lines": lines, "tips": _tips(shown, left, right), "words": words}
    datasets |= {kind: [_mark(one) for one in points if one.kind == kind] for kind in KINDS}
    title = f"how many times faster {right} is than {left}, by batch size and width"
    return Chart(_frame() | {"datasets": datasets}, title)


@cache
def _frame() -> dict:
    """All layers without rows. Cached, because Altair's check takes longer than drawing."""

    def axis(kind: type, field: str, ends: tuple[int, int], title: str):
        powers = [2**k for k in range(0, 13, 2) if ends[0] <= 2**k <= ends[1]]
        return kind(f"{field}:Q", scale=log_scale(ends, base=2), title=title, axis=alt.Axis(values=powers, format=",d"))

    x, y = axis(alt.X, "x", SIZE_ENDS, "batch size"), axis(alt.Y, "y", WIDTH_ENDS, "width of the hidden layers")
    box = {"x": x, "y": y, "x2": "x2:Q", "y2": "y2:Q"}
    ground = alt.Chart(alt.NamedData("ground")).mark_image(
        align="left",
        baseline="top",
        width=alt.ExprRef("width"),
        height=alt.ExprRef("height"),
        aspect=False,
        smooth=False,
    )
    tips = alt.Chart(alt.NamedData("tips")).mark_rect(opacity=0)
    dash = alt.Scale(domain=list(DASHES), range=list(DASHES.values()))
    lines = alt.Chart(alt.NamedData("lines")).mark_rule()
    words = alt.Chart(alt.NamedData("words")).mark_text(
        align="left", baseline="middle", dx=5, fontSize=11, color="currentColor"
    )
    point = {"x": x, "y": y, "tooltip": ["kind:N", "words:N"]}
    layers = [
        ground.encode(x=alt.value(0), y=alt.value(0), url="url:N"),
        tips.encode(**box, tooltip=["at:N", "predicted:N"]),
        lines.encode(
            **box,
            color=row_color(),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
            strokeDash=alt.StrokeDash("kind:N", scale=dash, legend=None),
        ),
        words.encode(x=x, y=y, text="text:N"),
        *(
            alt.Chart(alt.NamedData(kind))
            .mark_point(shape=LOOKS[kind], size=150, opacity=1, filled=True)
            .encode(**point, color=row_color())
            for kind in KINDS
        ),
    ]
    return styled(alt.layer(*layers), height=HEIGHT)


def _tips(shown: Surface, left: str, right: str) -> list[dict]:
    """Invisible tiles whose tooltips give the prediction at their centre."""
    x, y = (np.geomspace(*ends, len(WIDTHS) // TILE + 1).round(2) for ends in (SIZE_ENDS, WIDTH_ENDS))

    def tip(i: int, j: int) -> dict:
        row, column = TILE * i + TILE // 2, TILE * j + TILE // 2
        left_s, right_s = (float(side.step_s[row, column]) for side in (shown.left, shown.right))
        ratio, words = left_s / right_s, "it does not fit into the memory of both"
        if np.isfinite(ratio):
            faster = f"{right if ratio > 1 else left} is {times(max(ratio, 1 / ratio))} times faster"
            unsure = ", but not for sure" if shown.unclear[row, column] else ""
            words = f"{seconds(left_s)} and {seconds(right_s)} a step: {faster}{unsure}"
        at = f"width {WIDTHS[row]:,}, batch size {SIZES[column]:,}"
        return {"x": x[j], "x2": x[j + 1], "y": y[i], "y2": y[i + 1], "at": at, "predicted": words}

    return [tip(i, j) for i, j in np.ndindex(len(y) - 1, len(x) - 1)]


def _lines(ratio: np.ndarray, kind: str, width: float) -> list[dict]:
    ends = [dict(zip(("x", "y", "x2", "y2"), line, strict=True)) for line in border_lines(ratio)]
    return [{name: round(value, 3) for name, value in one.items()} | _looks(kind, width) for one in ends]


def _looks(kind: str, width: float) -> dict:
    return {"kind": kind, "width": width, "color": "currentColor"}


def _mark(one: SurfacePoint) -> dict:
    (left, right), what = one.names, "a step" if one.kind == MEASURED else "an epoch"
    words = f"{seconds(one.left_s)} by {left}, {seconds(one.right_s)} by {right}: {what}"
    color = f"rgb{LEFT if one.ratio < 1 else RIGHT}"
    return {"x": one.batch_size, "y": one.width, "kind": one.kind, "color": color, "words": words}


def legend(left: str, right: str, points: Sequence[SurfacePoint] = ()) -> str:
    ramp = ", ".join(
        f"rgba({255 * color[0]:.0f}, {255 * color[1]:.0f}, {255 * color[2]:.0f}, {color[3]:.2f})"
        for color in rgba(np.array([0.01, 0.1, 0.5, 1.0, 2, 10, 100]), np.zeros(7, bool))
    )
    scale = (
        f"<span>{html.escape(left)} 100 times faster</span>"
        f'<i class="win-ramp" style="background: linear-gradient(to right, {ramp})"></i>'
        f"<span>{html.escape(right)} 100 times faster</span>"
    )
    keys = {
        "win-line": "border, predicted",
        "win-line win-dashed": "limits of its uncertainty; colours are pale between them",
    }
    whose = ("steps stored here", "each GPU against its own machine's CPU", "the first article's GPU and CPU")
    for css, kind, words in zip(("win-dot", "win-ring", "win-tick"), KINDS, whose, strict=True):
        if ratios := [one.ratio for one in points if one.kind == kind]:
            keys[css] = f"{kind}: {words}, the GPU faster in {sum(one > 1 for one in ratios)} of {len(ratios)}"
    entries = "".join(f'<span><i class="{css}"></i>{html.escape(words)}</span>' for css, words in keys.items())
    return f'<p class="win-legend">{scale}</p><p class="win-legend">{entries}</p>'
