"""Predict training times on this machine and on known devices, and measure remedies for slow training.

Remedies are predicted from this machine's calibrations and measured like a calibration's steps. A variant of a step,
such as one whose batches stay on the device, is no way to train of its own: it is measured separately, and predicted by
the time that it saves per step of a usual network.

Known devices combine a data sheet with host costs. The sheet gives a device's peak rates, and these are never fitted:
no figure makes a processor's own memory slower than a disk. The host's costs per call (a loop such as Keras' included),
per operation and per example belong to the library. They are fitted to recorded epochs and to the published figures
that set the model. A device uses its own fitted costs for a library; otherwise it uses the geometric mean over fitted
devices of the same kind, with their least and largest values as the range. So each device has one entry per library,
with the ways in which that library runs a step, and one entry for the ways that no figure covers.

A figure that was published twice with different values sets the model both times: the cost is the mean, the two values
are its range, and the device carries a warning.

All figures on matrix products are of small networks, where overhead takes many times longer than arithmetic. They
cannot show what share of its peak a card attains, so that remains an assumption in the file.

A fixed rule picks the published figures that set the model: from each printed list (a table column, a machine's
experiments) every third, starting with the first, up to a third of the list; none from the running text.

The articles give no spread. One figure appears twice (an epoch of Keras on the CPU: 11.31 and 4.4 s); `REPEATED` is the
ratio of the two, so the second counts as used as well.

`published_rows` compares all published figures with the predictions that the pages and `python -m lib.cli.advise` give.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from lib.formatting import listed, seconds
from lib.model.backends.registry import BACKENDS, PRECISIONS, Runtime
from lib.model.hardware.machine import usable_memory_bytes
from lib.model.spec import N_PIXELS, N_TRAIN, Network
from lib.once import Once
from lib.sweeps.experiments import published
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.sweeps.experiments.calibration import (
    PROBE_S,
    ROUNDS,
    TOGETHER,
    WAYS,
    CalibrationProgress,
    LiveCalibrations,
    TrainingWay,
    Trial,
    calibrations,
    live_in,
    measure,
    near,
    raced_step_times,
    recorded_calibrations,
    stored,
    unasked,
    ways,
)
from lib.sweeps.experiments.recorded_machines import EPOCHS, EXPERIMENTS, Machine, place, recorded_here
from lib.sweeps.measuring import ALL_BUT_THE_CPU, Attempts, StepTime, step_times
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, noted
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.predict import (
    LEAST_TOGETHER,
    Calibration,
    DrivenDevice,
    Prediction,
    Question,
    predict,
)
from lib.timing.prediction.remedies import RESIDENT, Advice, Effect, Remedy, Setup, advise, effects, today
from lib.timing.prediction.workload import (
    DRIVEN,
    FLOAT32_BYTES,
    Cost,
    Device,
    NoPrediction,
    OperationKind,
    SheetFigure,
    StepOperation,
    Way,
    Workload,
    cost_of,
    fully_connected,
    read_devices,
)
from lib.timing.profiling.request import FROM_HOST, ON_CARDS, PLAIN_STEP, TAKEN, VARIANTS, VARIED, Examination

CARD, PROCESSOR, L4, CORES, A100 = "quadro-rtx-5000", "i9-10885h", "l4", "c3-highcpu-22", "a100-pcie-40gb"
PRINTED_TWICE = "keras-tensorflow", "cpu", 32  # the epoch with two published times
REPEATED = published.EPOCH_S["keras-tensorflow", "cpu"][32] / published.CPU_EPOCH_S  # their ratio

# Display name, and how the library runs a step.
LIBRARIES = {
    "keras-tensorflow": ("Keras on TensorFlow", Way.STEP),
    "numpy": ("NumPy", Way.OPERATIONS),
    "jax-step": ("JAX", Way.STEP),
    "torch": ("PyTorch", Way.OPERATIONS),
    "torch-compiled": ("PyTorch, compiled", Way.STEP),
}


@dataclass(frozen=True)
class PublishedFigure:
    """A figure from the articles, and the work that it times.

    Attributes:
        name: Display name.
        question: Shared by comparable figures, which differ only in library or device.
        library: The library whose host costs are fitted; its figures on one machine share them.
        machine: Key of a device in `recorded/devices.json`.
        published_s: Seconds, as printed.
        work: Numbers of steps, each with its workload.
        sets: Whether the model is fitted to it.
        again_s: The same time, as printed in another place; then the model is fitted to both.
        repeats: Whether it is that other time.
    """

    name: str
    question: str
    library: str
    machine: str
    published_s: float
    work: tuple[tuple[float, Workload], ...]
    sets: bool = False
    again_s: float | None = None
    repeats: bool = False

    @property
    def used(self) -> bool:
        return self.sets or self.repeats

    def predicted(self, device: Device) -> Prediction:
        """Predict the seconds of all its work on a device, with low and high ends."""
        each = [predict(workload, device).of(steps) for steps, workload in self.work]
        return Prediction(*(sum(getattr(one, name) for one in each) for name in ("step_s", "low_s", "high_s")))


def published_figures() -> list[PublishedFigure]:
    found: list[PublishedFigure] = []
    for figures in (*_epochs(), *_experiments(), *_operations()):
        setting = range(0, 3 * (len(figures) // 3), 3)
        found += [replace(one, sets=number in setting) for number, one in enumerate(figures)]
    return found + _in_the_text()


def _epochs() -> Iterator[list[PublishedFigure]]:
    for (library, device), by_size in published.EPOCH_S.items():
        label, way = LIBRARIES[library]
        yield [
            PublishedFigure(
                f"{label}, {device.upper()}, an epoch at batch size {size}",
                f"an epoch at batch size {size}",
                library,
                CARD if device == "gpu" else PROCESSOR,
                epoch_s,
                (epoch_of(Network(), size, way),),
                again_s=published.CPU_EPOCH_S if (library, device, size) == PRINTED_TWICE else None,
            )
            for size, epoch_s in by_size.items()
        ]


def epoch_of(network: Network, batch_size: int, way: Way, resident: bool = False) -> tuple[float, Workload]:
    """Return the number of steps per epoch and a step's workload; unless `resident`, images come from host memory."""
    workload = fully_connected(network, batch_size, way, resident=resident)
    return workload.steps, workload


def _experiments() -> list[list[PublishedFigure]]:
    # The article counts 60,000 images per epoch; a fifth is held back for validation, as in the first: see the claims.
    work = {
        name: tuple(
            (EPOCHS * steps, workload)
            for steps, workload in (epoch_of(network, size, Way.STEP) for network, size in trainings)
        )
        for name, trainings in EXPERIMENTS.items()
    }
    return [
        [
            PublishedFigure(
                f"Keras on TensorFlow, {place}, the {name} experiment",
                f"the {name} experiment",
                "keras-tensorflow",
                machine,
                published.EXPERIMENT_S[name][column],
                work[name],
            )
            for name in work
        ]
        for column, (machine, place) in enumerate(((L4, "L4"), (CORES, "22 vCPUs")))
    ]


def _operations() -> list[list[PublishedFigure]]:
    step = fully_connected(Network(), 32, Way.OPERATIONS, resident=True)
    operations = step.operations
    updates = sum(one.kind is OperationKind.UPDATE for one in operations)
    taken = {
        "forward: hidden layer": operations[:2],
        "forward: ReLU": operations[2:3],
        "forward: output layer": operations[3:5],
        "softmax and loss": operations[5:7],
        "backward": operations[7:-updates],
        "update": operations[-updates:],
        "total": operations,
    }
    waited = replace(step, way=Way.WAITED)
    return [
        [
            PublishedFigure(
                f"{place}, one step at batch size 32, {name}",
                f"one step's {name}",
                library,
                machine,
                published.OPERATION_S[name][column],
                ((1.0, replace(workload, operations=taken[name])),),
            )
            for name in published.OPERATION_S
        ]
        for column, (library, machine, place, workload) in enumerate(
            (("numpy", PROCESSOR, "NumPy, CPU", step), ("keras-tensorflow", CARD, "TensorFlow, GPU", waited))
        )
    ]


def _in_the_text() -> list[PublishedFigure]:
    keras, epoch = "keras-tensorflow", epoch_of(Network(), 32, Way.STEP)
    step = fully_connected(Network(), 32, resident=True)
    product = replace(step, way=Way.OPERATIONS, operations=step.operations[:1])
    image = fully_connected(Network(), 1, Way.OPERATIONS, resident=True)
    together = fully_connected(Network(), 32, networks=4, resident=False)
    sine_bytes = FLOAT32_BYTES * 2**10  # the article's smaller tensor; it gives no time for the larger one
    nested = Workload(
        "four nested sines",
        (StepOperation(OperationKind.ELEMENTWISE, n_bytes=2 * sine_bytes),) * 4,
        batch_size=1,
        input_bytes=sine_bytes,
        parameter_bytes=0,
        activation_bytes=0,
        way=Way.OPERATIONS,
        resident=False,
    )
    compiled = replace(nested, way=Way.STEP)
    rows = (
        ("Keras on TensorFlow, CPU", "an epoch in the text", keras, PROCESSOR, published.CPU_EPOCH_S, epoch),
        ("Keras on TensorFlow, GPU", "an epoch in the text", keras, CARD, published.CUDA_EPOCH_S, epoch),
        ("TensorFlow, CPU", "the first product", keras, PROCESSOR, published.PRODUCT_S[0], (1, product)),
        ("TensorFlow, GPU", "the first product", keras, CARD, published.PRODUCT_S[1], (1, product)),
        ("TensorFlow, CPU", "one compiled step", keras, PROCESSOR, published.COMPILED_S[0], (1, step)),
        ("TensorFlow, GPU", "one compiled step", keras, CARD, published.COMPILED_S[1], (1, step)),
        ("CuPy, GPU", "an epoch image by image", "cupy", CARD, published.CUPY_EPOCH_S, (N_TRAIN, image)),
        ("PyTorch, A100", "four nested sines", "torch", A100, published.SINE_S[0], (1, nested)),
        ("PyTorch, A100, compiled", "four nested sines", "torch", A100, published.SINE_S[1], (1, compiled)),
        (
            "JAX, 22 vCPUs, by vmap",
            "the learning-rate experiment",
            "jax-step",
            CORES,
            published.SWEEP_S[1],
            (EPOCHS * together.steps, together),
        ),
    )
    return [
        PublishedFigure(
            f"{where}, {question}",
            question,
            library,
            machine,
            published_s,
            (work,),
            repeats=published_s == published.CPU_EPOCH_S,
        )
        for where, question, library, machine, published_s, work in rows
    ]


# Fitted parts of a step, all on the host, with the device figure that holds each one's cost.
FITTED: Mapping[str, str] = {"call": "host_call_s", "dispatch": "dispatch_s", "example": "example_s"}
# The way of running a step that each part's cost applies to.
DRIVES: Mapping[str, Way] = {"dispatch": Way.OPERATIONS, "call": Way.STEP}
IN_ONE_PROGRAM = ("jax-step",)  # libraries with a published figure for many networks in one program
MOST_S = {"call": 0.1, "dispatch": 0.1, "example": 0.01}  # larger fitted costs are implausible
COVERAGE = 0.9  # share of the setting figures within the ranges of a device without fitted library costs
GEOMETRY = {False: "c3-highcpu-22", True: "h100-sxm"}  # presets for recorded CPUs and GPUs, except the product rate
PRESET_CORES = 11  # of the CPU preset
NOT_JUDGED = "no published figure covers this way of running a step, so its accuracy is unknown"


def known_devices(
    devices: Mapping[str, Device] | None = None, figures: Sequence[PublishedFigure] | None = None
) -> dict[str, Device]:
    """Return the devices to predict for, keyed as in the file, or `key/library` where a library's costs are fitted.

    The ranges of fitted devices are widened by the ratio of the two published times of one epoch. For ways to run a
    step that no figure covers, the ranges are wide enough that the file alone would predict nine in ten of the setting
    figures within them.

    Args:
        devices: By key; None for the project's.
        figures: The figures that set the costs; None for the articles' and the recorded epochs.
    """
    presets = read_devices()
    published = published_figures() if figures is None else figures
    recorded = _recorded() if figures is None else {}
    bases = presets | {key: device for key, (device, _) in recorded.items()}
    fits = _fits([*published, *(one for _, epochs in recorded.values() for one in epochs)], bases)
    widening = _widening(published, presets)
    warnings = {f"{one.machine}/{one.library}": _said(one, one.again_s) for one in published if one.again_s}
    found: dict[str, Device] = {}
    for key, device in (presets if devices is None else devices).items():
        libraries = dict.fromkeys(library for library, _ in fits)
        driven = {f"{key}/{library}": _driven_by(library, key, device, fits, bases) for library in libraries}
        driven = {name: replace(one, warning=warnings.get(name, "")) for name, one in driven.items() if one.ways}
        ways = {way for one in driven.values() for way in one.ways}
        # A CPU has no graphs; its compiled epoch is the equivalent.
        left = tuple(way for way in DRIVEN if way not in ways and (device.on_gpu or way is not Way.GRAPH))
        alone = replace(device, ways=left, widening=widening, warning=NOT_JUDGED, judged=False)
        found |= {key: alone, **driven}
    return found


def recorded_devices() -> dict[str, Device]:
    """Return the recorded machines' CPUs and GPUs, with the costs of the libraries timed there."""
    bases = {key: device for key, (device, _) in _recorded().items()}
    timed = {f"{key}/{one.library}" for key, (_, epochs) in _recorded().items() for one in epochs}
    return {key: device for key, device in known_devices(bases).items() if key in timed}


def of_machine(devices: Mapping[str, Device], machine: str, way: Way) -> Device:
    return next(one for key, one in devices.items() if key.partition("/")[0] == machine and way in one.ways)


@cache
def _recorded() -> Mapping[str, tuple[Device, list[PublishedFigure]]]:
    presets, found = read_devices(), {}
    for machine in recorded_here().machines:
        for on_gpu, preset in GEOMETRY.items():
            key = f"{machine.records[-1].machine} {'gpu' if on_gpu else 'cpu'}"
            if epochs := list(_recorded_epochs(machine, key, on_gpu)):
                found[key] = (
                    replace(
                        presets[preset],
                        name=place(machine, on_gpu),
                        figures=_geometry(machine, presets[preset]),
                        dated="",
                    ),
                    epochs,
                )
    return found


def _geometry(machine: Machine, preset: Device) -> dict[str, SheetFigure]:
    """Return the preset's figures without the price, scaled to the machine's cores, with its recorded product rate."""
    cores = 1.0 if preset.on_gpu else int(machine.name.split(" · ")[1].split()[0]) / PRESET_CORES
    figures = {name: one for name, one in preset.figures.items() if name != "price_per_h"}
    for name in ("filled_by", "memory_bytes_per_s", "cache_bytes_per_s", "product_flops_per_s"):
        figures[name] = figures[name].times(cores)
    where = "gpu" if preset.on_gpu else "cpu"
    rates = [
        float(one.subject["work"]) / min(one.measurement.step_s)
        for one in machine.records
        if one.kind == Kind.CEILING and (one.says("device"), one.says("name")) == (where, "product")
    ]
    if rates:
        figures["product_flops_per_s"] = SheetFigure(max(rates), min(rates), max(rates))
    return figures


def _recorded_epochs(machine: Machine, key: str, on_gpu: bool) -> Iterator[PublishedFigure]:
    exact = [one for one in machine.runtimes if one.on_gpu is on_gpu and one.precision == PRECISIONS[0]]
    for runtime in (one for one in exact if one.backend in LIBRARIES):
        label, way = LIBRARIES[runtime.backend]
        for network, size in sorted(machine.cells):
            if (epoch := machine.epoch(runtime, size, network)) is not None:
                name = f"{label} on {machine.name}, {network.label} at batch size {size}"
                work = epoch_of(network, size, way, resident=BACKENDS[runtime.backend].holds_images)
                yield PublishedFigure(name, name, runtime.backend, key, epoch.middle, (work,), sets=True)


def _said(one: PublishedFigure, again_s: float) -> str:
    low_s, high_s = sorted((one.published_s, again_s))
    return f"the same time was published twice, as {seconds(low_s)} and as {seconds(high_s)} ({one.name})"


def _widening(figures: Sequence[PublishedFigure], recorded: Mapping[str, Device]) -> float:
    """Return the factor by which ranges must widen so that the file alone covers `COVERAGE` of the setting figures."""
    setting = [(one.published_s, one.predicted(recorded[one.machine])) for one in figures if one.sets]
    needed = [max(1.0, published_s / found.high_s, found.low_s / published_s) for published_s, found in setting]
    return float(np.quantile(needed, COVERAGE, method="higher"))


_Fits = Mapping[tuple[str, str], Mapping[str, SheetFigure]]  # by (library, machine)


def _driven_by(library: str, key: str, device: Device, fits: _Fits, recorded: Mapping[str, Device]) -> Device:
    """Return the device with a library's costs, limited to the ways for which these are known (possibly none)."""
    costs = {**_elsewhere(library, device.on_gpu, fits, recorded), **fits.get((library, key), {})}
    ways = tuple(way for part, way in DRIVES.items() if FITTED[part] in costs)
    label, _ = LIBRARIES.get(library, (library, None))
    together = device.together if library in IN_ONE_PROGRAM else 1
    driven = {"library": label, "ways": ways, "together": together, "widening": REPEATED}
    return replace(device, figures={**device.figures, **costs}, **driven)


def _elsewhere(library: str, on_gpu: bool, fits: _Fits, recorded: Mapping[str, Device]) -> dict[str, SheetFigure]:
    """Estimate a library's costs on a kind of device from the devices of that kind on which it was fitted."""
    found = {}
    for name in FITTED.values():
        known = [
            costs[name]
            for (driver, machine), costs in fits.items()
            if driver == library and recorded[machine].on_gpu is on_gpu and name in costs
        ]
        if known:
            ends = [end for one in known for end in (one.low, one.high)]
            found[name] = _spanning([one.value for one in known], ends)
    return found


def _fits(figures: Sequence[PublishedFigure], recorded: Mapping[str, Device]) -> _Fits:
    found: dict[tuple[str, str], Mapping[str, SheetFigure]] = {}

    for library, machine in dict.fromkeys((one.library, one.machine) for one in figures if one.sets):
        setting = [one for one in figures if one.sets and (one.library, one.machine) == (library, machine)]
        device = recorded[machine]
        elsewhere = _elsewhere(library, device.on_gpu, found, recorded)
        device = replace(device, figures={**device.figures, **elsewhere})
        again = [replace(one, published_s=one.again_s or one.published_s) for one in setting]
        fed = FITTED["example"] in elsewhere and len(setting) == 1
        first, second = (_fitted(device, these, fed) for these in (setting, again))
        both = {name: (cost, second[name]) for name, cost in first.items() if name in second}
        found[library, machine] = {name: _spanning(costs, costs) for name, costs in both.items()}
    return found


def _spanning(values: Sequence[float], ends: Sequence[float]) -> SheetFigure:
    """Return the geometric mean of the values, with the least and largest ends as its range.

    A cost of 0 means that the figures could not separate it from other costs: it is an end, but not part of the mean.
    """
    told = [one for one in values if one > 0]
    low, high = min(ends), max(ends)
    middle = min(max(statistics.geometric_mean(told), low), high) if told else 0.0  # clamped because the mean rounds
    return SheetFigure(middle, low, high)


def _fitted(device: Device, setting: Sequence[PublishedFigure], fed: bool) -> dict[str, float]:
    """Fit non-negative costs with the smallest relative errors, and drop implausible ones.

    Args:
        device: Supplies all figures that are not fitted.
        setting: The figures to fit to.
        fed: Whether the host's cost per example is already known, and so not fitted.
    """
    costs = device.costs()
    amounts = []
    for one in setting:
        each = [(steps, device.amounts(workload)) for steps, workload in one.work]
        amounts.append({part: sum(steps * of[part] for steps, of in each) for part in costs})
    parts = [part for part in FITTED if any(of[part] for of in amounts) and not (fed and part == "example")]
    shares = np.array(
        [[of[part] / one.published_s for part in parts] for of, one in zip(amounts, setting, strict=True)]
    )
    kept = np.array(
        [
            sum(cost * of[part] for part, cost in costs.items() if part not in parts) / one.published_s
            for of, one in zip(amounts, setting, strict=True)
        ]
    )
    sizes = shares.max(axis=0)
    found = nnls(shares / sizes, 1 - kept)[0] / sizes
    return {FITTED[part]: float(cost) for part, cost in zip(parts, found, strict=True) if cost <= MOST_S[part]}


class Row(NamedTuple):
    """A published figure and its prediction; `error` is relative, and positive where the prediction is too long."""

    figure: PublishedFigure
    predicted: Prediction

    @property
    def error(self) -> float:
        return self.predicted.step_s / self.figure.published_s - 1

    @property
    def covered(self) -> bool:
        return self.predicted.low_s <= self.figure.published_s <= self.predicted.high_s


def published_rows() -> list[Row]:
    devices, figures, rows = known_devices(), published_figures(), []
    setting = {one.library for one in figures if one.sets}
    for figure in figures:
        # Libraries without a setting figure are predicted from the file alone.
        key = f"{figure.machine}/{figure.library}" if figure.library in setting else figure.machine
        rows.append(Row(figure, figure.predicted(devices.get(key, devices[figure.machine]))))
    return sorted(rows, key=lambda row: round(abs(row.error), 9), reverse=True)


CALIBRATE = "`python -m lib.cli.advise --calibrate`"


def advise_here(
    question: Question,
    devices: Mapping[str, Device] | None = None,
    store: Store | None = None,
    live: LiveCalibrations | None = None,
    by: str = "",
) -> Advice:
    """Predict how long each device and way to train takes, and what it costs; nothing is measured.

    This machine is included once it is calibrated, by a page that predicts or by `python -m lib.cli.advise --calibrate`
    (a few minutes). The advice's `silent` says why this machine, or a way to train on it, is missing.

    Args:
        question: What to train; its constructor raises ValueError for impossible questions.
        devices: Known devices, by key; None: `all_devices`.
        store: Where this machine's step times are stored; None: in the cache folder.
        live: Calibrations already loaded; None: those of the store.
        by: Key of the backend in use today.

    Returns:
        All answers, the quickest first. A prediction covers all steps of all networks: `step_s` in seconds, with
        `low_s` and `high_s`: the 90 % interval on this machine, the range of the figures elsewhere.

    >>> from lib.model.spec import Network
    >>> advice = advise_here(Question(Network((512, 256)), batch_size=64, epochs=20, networks=32))
    >>> jax = next(one for one in advice.answers if one.library == "JAX" and "c3" in one.device)
    >>> jax.device, jax.way, jax.prediction.low_s < jax.prediction.step_s
    ('22 vCPUs (c3-highcpu-22)', 'compiled step, JAX', True)
    """
    store = store if store is not None else Store()
    live = live if live is not None else live_in(store.path)
    found = known_here(question, live, store)
    here = offered(list(found), found, store.records(Kind.ANATOMY))
    advice = advise(question, here, devices if devices is not None else all_devices(), recorded(), by)
    return replace(advice, silent=tuple(_silent(live, found)))


def known_here(question: Question, live: LiveCalibrations, store: Store) -> dict[TrainingWay, Calibration]:
    """Return calibrations of this machine's ways to train; uncalibrated ones use a few steps near the question's."""
    standings = live.view().items
    found = {one.trained: one.calibration for one in standings if one.calibration is not None}
    rest = {one.trained: one.step_times for one in standings if one.calibration is None and not one.trained.together}
    asked = near(question)
    taken = {(one, trial): time for one, of in rest.items() for trial, time in of.items() if trial in asked}
    taken |= stored(list(rest), store, asked)
    good = {key: time for key, time in taken.items() if not time.disturbed}
    enough = {one for one in rest if sum(key[0] == one for key in good) >= LEAST_TOGETHER}
    few = recorded_calibrations(
        {"here": {key: time for key, time in taken.items() if key in good or key[0] not in enough}}
    )
    return found | {trained: known for (_, trained), known in few.items()}


def not_known(question: Question, live: LiveCalibrations, store: Store, by: str = "") -> list[TrainingWay]:
    """Return the ways to train whose time for the question's step is unknown here.

    Only `by`, other backends of its library, and those of `unasked` are considered.
    """
    known = known_here(question, live, store)
    own = [one for one in ways() if by and one.runtime.backend.startswith(by.partition("-")[0]) and not one.together]
    own.sort(key=lambda one: one.runtime.backend != by)
    return [one for one in dict.fromkeys([*own, *unasked()]) if one not in known and not live.of(one).why_not]


def all_devices() -> dict[str, Device]:
    """Return the known devices and the recorded machines, with library costs."""
    return {**known_devices(), **recorded_devices()}


@cache
def recorded() -> Mapping[str, Mapping[str, DrivenDevice]]:
    """Return the recorded machines' ways to train, by device and display name, calibrated from their timed epochs.

    Ways with too few timed epochs are left out.
    """
    found: dict[str, dict[str, DrivenDevice]] = {}
    machines = recorded_here().machines
    raced = {number: raced_step_times(machine) for number, machine in enumerate(machines)}
    for (number, trained), known in recorded_calibrations(raced).items():
        runtime = trained.runtime
        library, _ = LIBRARIES.get(runtime.backend, (runtime.process, None))
        of = found.setdefault(place(machines[number], runtime.on_gpu), {})
        of[trained.label] = DrivenDevice(known, WAYS[runtime.backend], library=library, runtime=runtime)
    return found


def _silent(live: LiveCalibrations, known: Mapping[TrainingWay, Calibration]) -> Iterator[str]:
    standings = live.view().items
    for one in standings:
        if one.why_not:
            label = one.trained.label
            yield one.why_not if one.why_not.startswith(label) else f"{label}: {one.why_not}"
    left = [one.trained.label for one in standings if one.trained not in known and not one.why_not]
    if len(left) == len(standings):
        yield f"this machine is not calibrated, so it has no answer; {CALIBRATE} does that"
    elif left:
        yield f"not calibrated on this machine, so not among the answers: {listed(left)}; {CALIBRATE} does that"


NO_CARD = "there is no GPU here"
NOT_MEASURED = "its saving is not measured yet"
LONGEST_STEP_S = 3.0  # stopping waits for a step to end


def miss(setup: Setup, measured: StepTime) -> float:
    """Return the prediction's error as a share of the measured step time."""
    return abs(setup.step.step_s / measured.step_s - 1)


def offered(
    ways: Sequence[TrainingWay], calibrations: Mapping[TrainingWay, Calibration], records: Sequence[Record]
) -> dict[str, DrivenDevice]:
    """Return this machine's ways to train by display name, including uncalibrated ones.

    Args:
        ways: This machine's ways to train.
        calibrations: The ones available.
        records: Stored records of step variants; see `measure_variants`.
    """
    return {
        one.label: driven_here(
            one,
            calibrations.get(one),
            {variant: _saved(one.runtime, variant, records) for variant in VARIANTS[one.runtime.backend]},
        )
        for one in ways
    }


def driven_here(
    trained: TrainingWay, calibration: Calibration | None, saves: Mapping[str, Cost | str] = MappingProxyType({})
) -> DrivenDevice:
    runtime, together = trained.runtime, max(TOGETHER) if trained.together else 1
    way, free_bytes = WAYS[runtime.backend], usable_memory_bytes(runtime.device)
    return DrivenDevice(calibration, way, together, runtime.process, saves, free_bytes, trained.label, runtime, True)


def _saved(runtime: Runtime, variant: str, records: Sequence[Record]) -> Cost | str:
    if variant in ON_CARDS and not runtime.on_gpu:
        return NO_CARD
    return saved(runtime, variant, records) or NOT_MEASURED


def saved(runtime: Runtime, variant: str, records: Sequence[Record]) -> Cost | None:
    """Return the time that a variant saves per step, as a function of the batch's bytes; None if not measured.

    It is the difference of two lines, fitted to the median blocks of the plain step and of the variant. Where a remedy
    is already in place, the variant is the step without it, and the difference is the extra cost.
    """
    known = _takings(runtime).seconds(records)
    plain, sizes = (FROM_HOST, TAKEN) if variant == RESIDENT else (PLAIN_STEP, VARIED)
    both = [size for size in sizes if known.get(f"{plain} {size}") and known.get(f"{variant} {size}")]
    without, with_it = (
        cost_of([4 * N_PIXELS * size for size in both], [known[f"{where} {size}"] for size in both])
        for where in (plain, variant)
    )
    if without is None or with_it is None:
        return None
    kept = any(one.kept for one in Remedy if one.variant == variant)
    return with_it.less(without) if kept else without.less(with_it)


def measure_variants(
    runtime: Runtime, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Note | Record]:
    """Measure the savings of all variants of this runtime's step, if any is missing.

    Raises:
        TrainingFailed: From a worker on a CPU.
    """
    records = store.records(Kind.ANATOMY)
    if any(_saved(runtime, variant, records) == NOT_MEASURED for variant in VARIANTS[runtime.backend]):
        yield from measure_tasks([_takings(runtime)], engine, store, cancel, request)


def _takings(runtime: Runtime) -> AnatomyTask:
    return AnatomyTask(runtime, Examination("takings"))


def _changed(question: Question, setup: Setup, trained: TrainingWay) -> AnatomyTask:
    return AnatomyTask(trained.runtime, Examination(setup.variant, question.network, setup.batch_size))


def trial_of(question: Question, setup: Setup) -> Trial:
    return Trial(question.network, setup.batch_size, setup.at_once)


def stored_step(question: Question, setup: Setup, trained: TrainingWay, store: Store) -> StepTime | None:
    """Return the stored step time of a setup that is valid on this machine; None if there is none.

    Args:
        question: The training in question.
        setup: How it is trained.
        trained: The way to train named by the setup.
        store: Where to look it up.
    """
    if setup.variant:
        return _changed(question, setup, trained).step_time(store.records(Kind.ANATOMY))
    subject = trained.subject(trial_of(question, setup))
    known = current(store.records(Kind.STEP_TIME), Kind.STEP_TIME, subject, trained.runtime)
    return StepTime.of(known) if known else None


def too_long(setup: Setup) -> str:
    if setup.step.step_s <= LONGEST_STEP_S:
        return ""
    return (
        f"a step is predicted to take {setup.step.step_s:.0f} s: expected at most {LONGEST_STEP_S:g} s, because"
        " stopping waits for it to end; choose a smaller network or batch"
    )


# Calibrations that include today's step; cached because every frame asks for them while other steps are timed.
_refitted: Once[tuple[TrainingWay, frozenset], dict[TrainingWay, Calibration]] = Once(16)


@dataclass(frozen=True)
class Findings:
    """Predicted and measured effects of a question's remedies.

    Attributes:
        before: Today's setup; None if it cannot be predicted.
        effects: One per remedy, in the order of `Remedy`; empty without `before`.
        measured: The measured step times, by remedy; None: today's.
        problem: Why there are no findings, as a sentence.
    """

    before: Setup | None = None
    effects: Sequence[Effect] = ()
    measured: Mapping[Remedy | None, StepTime] = field(default_factory=dict)
    problem: str = ""

    @property
    def gains(self) -> dict[Remedy, float]:
        """The measured speedups per image of one network; for a remedy in use (`kept`), the slowdown without it."""
        found: dict[Remedy, float] = {}
        for one in self.effects:
            if self.before and one.setup and None in self.measured and one.remedy in self.measured:
                before_s = self.measured[None].step_s / self.before.images
                gain = before_s / (self.measured[one.remedy].step_s / one.setup.images)
                found[one.remedy] = 1 / gain if one.remedy.kept else gain
        return found


def findings(question: Question, by: TrainingWay, standings: Sequence[CalibrationProgress], store: Store) -> Findings:
    """Return what is currently known about a question's remedies.

    If today's step was measured, it is one more sample for predicting the remedies; the prediction for today's step
    itself does not change.

    Args:
        question: The training in question.
        by: The way to train before any remedy.
        standings: The calibrations of all ways to train.
        store: Where to look up measured steps.
    """
    calibrated = {one.trained: one.calibration for one in standings if one.calibration is not None}
    trained = {one.trained.label: one.trained for one in standings}
    ways = offered(list(trained.values()), calibrated, store.records(Kind.ANATOMY))
    try:
        before = today(question, by.label, ways)
    except NoPrediction as error:
        why = next((one.why_not for one in standings if one.trained == by and one.why_not), "")
        return Findings(problem=why or str(error))
    measured, known = stored_step(question, before, by, store), before
    if measured is not None:
        of_it = next(one.step_times for one in standings if one.trained == by)
        samples = {(by, trial): one for trial, one in {**of_it, trial_of(question, before): measured}.items()}
        fitted = _refitted.get((by, frozenset(samples.items())), lambda: calibrations(samples)[0])
        ways = offered(list(trained.values()), calibrated | fitted, store.records(Kind.ANATOMY))
        known = today(question, by.label, ways)
    found = effects(question, known, ways)
    setups = {one.remedy: one.setup for one in found if one.setup is not None}
    steps = {remedy: stored_step(question, setup, trained[setup.by], store) for remedy, setup in setups.items()}
    return Findings(before, found, {key: one for key, one in {None: measured, **steps}.items() if one is not None})


def apply(
    question: Question,
    by: TrainingWay,
    chosen: Sequence[Remedy],
    live: LiveCalibrations,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    rounds: int = ROUNDS,
) -> Iterator[Note | Record | Remedy]:
    """Measure today's step and the step with each remedy, in rounds, even if they are stored.

    A missing calibration of the way, and missing savings of its variants, are measured first.

    Args:
        question: The training in question.
        by: The way to train before any remedy.
        chosen: Remedies; those that do not apply or would take too long are skipped.
        live: The calibrations that the remedies are predicted from.
        engine: Its workers measure.
        store: Where step times are stored.
        cancel: Stops measuring early; completed measurements are kept.
        request: Place in the queue.
        rounds: How often each is measured.

    Yields:
        Each remedy once it is measured in the last round, notes on progress and waiting, and records of kind `FAILURE`
        where a GPU fails.

    Raises:
        TrainingFailed: From a worker on a CPU.
    """
    if by not in unasked():
        yield from measure([by], live, engine, store, cancel, request)
    yield from measure_variants(by.runtime, engine, store, cancel, request)
    standings = live.view().items
    trained = {one.trained.label: one.trained for one in standings}
    now = findings(question, by, standings, store)
    wanted = [one for one in now.effects if one.remedy in chosen]
    possible = {one.remedy: one.setup for one in wanted if one.setup is not None and not too_long(one.setup)}
    if now.before is None or not possible or too_long(now.before):
        return
    attempts = Attempts(ALL_BUT_THE_CPU)
    for number, (remedy, setup) in itertools.product(range(rounds), {None: now.before, **possible}.items()):
        if cancel.is_set():
            return
        words = remedy.value if remedy is not None else "today"
        yield from _measured_step(question, setup, trained[setup.by], words, attempts, engine, store, cancel, request)
        if remedy is not None and number == rounds - 1 and not cancel.is_set():
            yield remedy


def _measured_step(
    question: Question,
    setup: Setup,
    trained: TrainingWay,
    words: str,
    attempts: Attempts,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Note | Record]:
    if setup.variant:
        yield from measure_tasks([_changed(question, setup, trained)], engine, store, cancel, request)
        return
    trial, doing = trial_of(question, setup), f"{words}: a step of {trained.label} at batch size {setup.batch_size:,}"

    def steps() -> Iterator[Note]:
        yield Note(doing)
        times = step_times([trial.part], engine, store, trained.runtime, cancel, request, True, probe_s=PROBE_S)
        yield from noted(times, doing)

    yield from attempts.marked(store, doing, trained.runtime, trained.subject(trial), steps)
