"""The articles' figures that are the time of work, each with the training steps whose time it is.

Which of them set a model is a rule and no choice: of each list that an article prints (a column of a table, a machine's
experiments) the first, the fourth and so on, as long as they are at most a third of it; none of those that stand in the
text.

No figure of the articles has a spread. One was published twice (an epoch of Keras on the processor: 11.31 and 4.4 s):
`REPEATED` is how many times as long the longer of the two took. The second of them therefore counts as used.
"""

from dataclasses import dataclass, replace

from lib.model.spec import N_TRAIN, Network
from lib.sweeps.experiments import published
from lib.sweeps.experiments.recorded_machines import EPOCHS, EXPERIMENTS
from lib.timing.prediction.device import Device
from lib.timing.prediction.predict import Prediction, predict
from lib.timing.prediction.workload import FLOAT32_BYTES, OperationKind, StepOperation, Way, Workload, fully_connected

CARD, PROCESSOR, L4, CORES, A100 = "quadro-rtx-5000", "i9-10885h", "l4", "c3-highcpu-22", "a100-pcie-40gb"
REPEATED = (
    published.EPOCH_S["keras-tensorflow", "cpu"][32] / published.CPU_EPOCH_S
)  # times that one thing took when it was published twice

# Name for people, and how it runs a step.
LIBRARIES = {
    "keras-tensorflow": ("Keras on TensorFlow", Way.STEP),
    "numpy": ("NumPy", Way.OPERATIONS),
    "jax-step": ("JAX", Way.STEP),
    "torch": ("PyTorch", Way.OPERATIONS),
    "torch-compiled": ("PyTorch, compiled", Way.STEP),
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

    def predicted(self, device: Device) -> Prediction:
        """The seconds of its work on a device, with their ends."""
        each = [predict(workload, device).of(steps) for steps, workload in self.work]
        return Prediction(*(sum(getattr(one, name) for one in each) for name in ("step_s", "low_s", "high_s")), {})


def published_figures() -> list[PublishedFigure]:
    """All figures of the articles that are the time of work, list after list in their order."""
    found: list[PublishedFigure] = []
    for figures in (*_epochs(), *_experiments(), *_operations()):
        setting = range(0, 3 * (len(figures) // 3), 3)
        found += [replace(one, sets=number in setting) for number, one in enumerate(figures)]
    return found + _in_the_text()


def _epochs() -> list[list[PublishedFigure]]:
    """The first article's table, column by column."""
    columns = []
    for (library, device), by_size in published.EPOCH_S.items():
        label, way = LIBRARIES[library]
        columns.append(
            [
                PublishedFigure(
                    f"{label}, {device.upper()}, an epoch at batch size {size}",
                    f"an epoch at batch size {size}",
                    library,
                    CARD if device == "gpu" else PROCESSOR,
                    epoch_s,
                    (epoch_of(Network(), size, way),),
                )
                for size, epoch_s in by_size.items()
            ]
        )
    return columns


def epoch_of(network: Network, batch_size: int, way: Way, resident: bool = False) -> tuple[float, Workload]:
    """An epoch's steps and one of them; unless `resident`, its images come from the host's memory."""
    workload = fully_connected(network, batch_size, way, resident=resident)
    return workload.steps, workload


def _experiments() -> list[list[PublishedFigure]]:
    """The second article's three experiments on its two machines in the cloud.

    It counts 60,000 images an epoch; a fifth of them is held back for validation, as in the first: see the claims.
    """
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
    """The first article's step, operation by operation, on the processor by NumPy and on the card by TensorFlow."""
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
            (
                ("numpy", PROCESSOR, "NumPy, CPU", step),
                ("keras-tensorflow", CARD, "TensorFlow, GPU", waited),
            )
        )
    ]


def _in_the_text() -> list[PublishedFigure]:
    """Figures that stand alone: none of them sets the model."""
    keras, epoch = "keras-tensorflow", epoch_of(Network(), 32, Way.STEP)
    step = fully_connected(Network(), 32, resident=True)
    product = replace(step, way=Way.OPERATIONS, operations=step.operations[:1])
    image = fully_connected(Network(), 1, Way.OPERATIONS, resident=True)
    together = fully_connected(Network(), 32, networks=4, resident=False)
    sine_bytes = FLOAT32_BYTES * 2**10  # its smaller tensor; the larger one has no time in the text
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
            widens=published_s == published.CPU_EPOCH_S,
        )
        for where, question, library, machine, published_s, work in rows
    ]
