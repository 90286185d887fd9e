"""How far predictions are from what the articles published: set from fewer than a third of the figures, shown for all.

Which figures set the model is a rule and no choice: of each list that an article prints (a column of a table, a
machine's experiments) the first, the fourth and so on, as long as they are at most a third of it; none of those that
stand in the text. From them come, for each library on each machine, what its host spends on
a call or on an operation (a loop such as Keras' included), and the rate at which it is fed with images; all else is in
`recorded/devices.json`. Where a machine has a single such figure, its rate is the one that the same library was fed
with on the workstation.

No figure of the articles has a spread. One was published twice (an epoch of Keras on the processor: 11.31 and 4.4 s),
so an interval is as wide as these are apart, in both directions, beyond the ranges of the device's figures. The second
of the two therefore counts as used.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from lib.experiments import published
from lib.experiments.recorded_machines import EPOCHS, EXPERIMENTS
from lib.formatting import seconds
from lib.prediction.device import QUANTITIES, Device, Figure, Origin, read_devices
from lib.prediction.predict import Prediction, predict
from lib.prediction.workload import FLOAT32_BYTES, Operation, OperationKind, Way, Workload, fully_connected
from lib.spec import N_TRAIN, Network

CARD, PROCESSOR, L4, CORES, A100 = "quadro-rtx-5000", "i9-10885h", "l4", "c3-highcpu-22", "a100-pcie-40gb"
REPEATED = (
    published.EPOCH_S["keras-tensorflow", "cpu"][32] / published.CPU_EPOCH_S
)  # times that one thing took when it was published twice
IMAGES = 60_000  # of an epoch in the second article: 1,875 steps at batch size 32

# Published, and nothing that a model of a training step speaks of.
NOT_PREDICTED: Mapping[str, str] = {
    "five learning rates, 4 times faster in five processes": "it is about processes, not about a step",
    "five learning rates, 6 times faster by vmap": "it is the 28 s and the 5 s above, as a ratio",
    "2.7 s of CUDA's calls in an epoch, and each call's share": "they are parts of the 6.5 s above, and overlap",
    "half the time of large products is transfer, on an A100": "the article does not say how large they are",
    "about 210 μs a step on an L4": "an estimate, which the same article's 63 s contradict",
}


@dataclass(frozen=True)
class PublishedFigure:
    """A figure of the articles, and the work whose time it is.

    Attributes:
        name: What took so long, for people.
        question: The same for figures that can be compared: they differ in library or device.
        library: Whose host costs are fitted; figures of one library on one machine share them.
        machine: Key of a device in `recorded/devices.json`.
        published_s: As printed.
        work: Numbers of steps, each with its workload.
        sets: Whether the model is set from it.
        widens: Whether the width of the intervals comes from it.
    """

    name: str
    question: str
    library: str
    machine: str
    published_s: float
    work: tuple[tuple[float, Workload], ...]
    sets: bool = False
    widens: bool = False


@dataclass(frozen=True)
class Row:
    """A published figure beside what is predicted for it; `error` is relative, and above 0 where predicted too long."""

    name: str
    question: str
    published_s: float
    predicted_s: float
    low_s: float
    high_s: float
    used: bool

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted_s / self.published_s - 1

    @property
    def covered(self) -> bool:
        """Whether the published figure lies in the interval."""
        return self.low_s <= self.published_s <= self.high_s


@dataclass(frozen=True)
class Accuracy:
    """Of the figures that were not used: errors without sign, and shares; None where there is nothing to judge."""

    n: int
    median_error: float | None
    p90_error: float | None
    winner_share: float | None
    covered_share: float | None


def published_rows() -> list[Row]:
    """Every figure with its prediction, the worst errors first."""
    figures = published_figures()
    devices = fitted_devices(figures)
    rows = []
    for figure in figures:
        found = _predicted(figure, devices[figure.library, figure.machine])
        ends = (found.low_s / REPEATED, found.high_s * REPEATED)
        used = figure.sets or figure.widens
        rows.append(Row(figure.name, figure.question, figure.published_s, found.step_s, *ends, used))
    return sorted(rows, key=lambda row: abs(row.error), reverse=True)


def accuracy(rows: Sequence[Row]) -> Accuracy:
    """How good the predictions are of figures that were not used.

    A pair shares its question, and its figures differ. Where both are predicted alike, no winner is named: wrong.
    """
    unseen = [row for row in rows if not row.used]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(unseen, 2)
        if one.question == other.question and one.published_s != other.published_s
    ]
    right = [(a.predicted_s - b.predicted_s) * (a.published_s - b.published_s) > 0 for a, b in pairs]
    errors = [abs(row.error) for row in unseen]
    return Accuracy(
        len(unseen),
        statistics.median(errors) if errors else None,
        float(np.percentile(errors, 90)) if errors else None,
        statistics.fmean(right) if right else None,
        statistics.fmean(row.covered for row in unseen) if unseen else None,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as lines of text, then what the model was set from, then what is not predicted and why."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'published':>9}  {'predicted':>9}  {'from':>9}  {'to':>9}  {'error':>8}"]
    for row in rows:
        cells = "  ".join(f"{seconds(s):>9}" for s in (row.published_s, row.predicted_s, row.low_s, row.high_s))
        notes = ["used"] * row.used + ["outside"] * (not row.covered)
        lines.append(f"{row.name:{width}}  {cells}  {100 * row.error:>+6.0f} %  {', '.join(notes)}".rstrip())
    used = [row.name for row in rows if row.used]
    lines.append(f"Used, {len(used)} of {len(rows)}: {'; '.join(used)}.")
    return "\n".join(lines + [f"Not predicted: {what}: {why}." for what, why in NOT_PREDICTED.items()])


def published_figures() -> list[PublishedFigure]:
    """All figures of the articles that are the time of work, list after list in their order."""
    found: list[PublishedFigure] = []
    for figures in (*_epochs(), *_experiments(), *_operations()):
        setting = range(0, 3 * (len(figures) // 3), 3)
        found += [replace(one, sets=number in setting) for number, one in enumerate(figures)]
    return found + _in_the_text()


# Name for people, and how it runs a step.
_LIBRARIES = {
    "keras-tensorflow": ("Keras on TensorFlow", Way.STEP),
    "numpy": ("NumPy", Way.OPERATIONS),
    "jax-step": ("JAX", Way.STEP),
}


def _epochs() -> list[list[PublishedFigure]]:
    """The first article's table, column by column."""
    columns = []
    for (library, device), by_size in published.EPOCH_S.items():
        label, way = _LIBRARIES[library]
        columns.append(
            [
                PublishedFigure(
                    f"{label}, {device.upper()}, an epoch at batch size {size}",
                    f"an epoch at batch size {size}",
                    library,
                    CARD if device == "gpu" else PROCESSOR,
                    epoch_s,
                    (_epoch(Network(), size, way),),
                )
                for size, epoch_s in by_size.items()
            ]
        )
    return columns


def _epoch(network: Network, batch_size: int, way: Way, images: int = N_TRAIN) -> tuple[float, Workload]:
    """An epoch's steps and one of them, whose images come from the host's memory."""
    workload = replace(fully_connected(network, batch_size, way, resident=False), images=images)
    return workload.steps, workload


def _experiments() -> list[list[PublishedFigure]]:
    """The second article's three experiments on its two machines in the cloud."""
    work = {
        name: tuple(
            (EPOCHS * steps, workload)
            for steps, workload in (_epoch(network, size, Way.STEP, IMAGES) for network, size in trainings)
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
    """The first article's step, operation by operation, on the processor by NumPy and on the card by TensorFlow."""
    step = fully_connected(Network(), 32, Way.OPERATIONS)
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
    waited = step.by(Way.WAITED)
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
            (
                ("numpy", PROCESSOR, "NumPy, CPU", step),
                ("keras-tensorflow", CARD, "TensorFlow, GPU", waited),
            )
        )
    ]


def _in_the_text() -> list[PublishedFigure]:
    """Figures that stand alone: none of them sets the model."""
    keras, epoch = "keras-tensorflow", _epoch(Network(), 32, Way.STEP)
    step = fully_connected(Network(), 32)
    product = replace(step.by(Way.OPERATIONS), operations=step.operations[:1])
    image = fully_connected(Network(), 1, Way.OPERATIONS)
    together = replace(fully_connected(Network(), 32, networks=4, resident=False), images=IMAGES)
    sine_bytes = FLOAT32_BYTES * 2**10  # its smaller tensor; the larger one has no time in the text
    nested = Workload(
        "four nested sines",
        (Operation(OperationKind.ELEMENTWISE, n_bytes=2 * sine_bytes),) * 4,
        batch_size=1,
        input_bytes=sine_bytes,
        parameter_bytes=0,
        activation_bytes=0,
        way=Way.OPERATIONS,
        resident=False,
    )
    rows = (
        ("Keras on TensorFlow, CPU", "an epoch in the text", keras, PROCESSOR, published.CPU_EPOCH_S, epoch),
        ("Keras on TensorFlow, GPU", "an epoch in the text", keras, CARD, published.CUDA_EPOCH_S, epoch),
        ("TensorFlow, CPU", "the first product", keras, PROCESSOR, published.PRODUCT_S[0], (1, product)),
        ("TensorFlow, GPU", "the first product", keras, CARD, published.PRODUCT_S[1], (1, product)),
        ("TensorFlow, CPU", "one compiled step", keras, PROCESSOR, published.COMPILED_S[0], (1, step)),
        ("TensorFlow, GPU", "one compiled step", keras, CARD, published.COMPILED_S[1], (1, step)),
        ("CuPy, GPU", "an epoch image by image", "cupy", CARD, published.CUPY_EPOCH_S, (N_TRAIN, image)),
        ("PyTorch, A100", "four nested sines", "torch", A100, published.SINE_S[0], (1, nested)),
        ("PyTorch, A100, compiled", "four nested sines", "torch", A100, published.SINE_S[1], (1, nested.by(Way.STEP))),
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
            widens=published_s == published.CPU_EPOCH_S,
        )
        for where, question, library, machine, published_s, work in rows
    ]


def _predicted(figure: PublishedFigure, device: Device) -> Prediction:
    each = [predict(workload, device).of(steps) for steps, workload in figure.work]
    return Prediction(*(sum(getattr(one, name) for one in each) for name in ("step_s", "low_s", "high_s")), {})


# Parts of a step that are fitted, each with the figure of a device that it is the cost of.
FITTED: Mapping[str, str] = {"call": "host_call_s", "dispatch": "dispatch_s", "transfer": "transfer_bytes_per_s"}


def fitted_devices(figures: Sequence[PublishedFigure]) -> dict[tuple[str, str], Device]:
    """The device of each library and machine, its host's costs and its rate of being fed fitted to figures that set it.

    A library without such a figure on a machine keeps the costs of the file, or those of the same library on the
    workstation's device of the same kind.
    """
    presets = read_devices()
    found: dict[tuple[str, str], Device] = {}
    for library, machine in dict.fromkeys((one.library, one.machine) for one in figures):
        setting = [one for one in figures if one.sets and (one.library, one.machine) == (library, machine)]
        device = presets[machine]
        known = found.get((library, CARD if device.on_gpu else PROCESSOR))
        if known:  # the same library on the workstation, which stands first
            figures_of_it = {name: known.figures[name] for name in FITTED.values()}
            device = replace(device, figures={**device.figures, **figures_of_it})
        found[library, machine] = _fitted(device, setting, bool(known)) if setting else device
    return found


def _fitted(device: Device, setting: Sequence[PublishedFigure], fed: bool) -> Device:
    """Costs that are not negative, with the smallest relative errors of the figures.

    Args:
        device: Whose other figures are kept.
        setting: Figures that set it.
        fed: Whether the rate at which it is fed with images is known already; it is not fitted then.
    """
    costs = device.costs()
    amounts = []
    for one in setting:
        each = [(steps, device.amounts(workload)) for steps, workload in one.work]
        amounts.append({part: sum(steps * of[part] for steps, of in each) for part in costs})
    parts = [part for part in FITTED if any(of[part] for of in amounts) and not (fed and part == "transfer")]
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
    source = "Fitted to published figures: " + "; ".join(one.name for one in setting)
    fitted = {}
    for part, cost in zip(parts, found, strict=True):
        name = FITTED[part]
        quantity = QUANTITIES[name]
        figure = (1 / cost if cost else quantity.most) if part == "transfer" else cost
        value = float(np.clip(figure, quantity.least, quantity.most))
        fitted[name] = Figure(value, value, value, Origin.PUBLISHED, source)
    return replace(device, figures={**device.figures, **fitted})
