"""Other people's reports of small networks on a CPU and on a GPU, each predicted by `advise`. Nothing is measured.

A report names its layers, batch size and both times. None of its devices is known, so each is predicted by the line
that a reader would choose for it (`by`), and an unknown library by PyTorch's, which runs operation by operation as most
do. `winner` is `right`, `close` (the intervals leave it open) or `wrong`; `inside`: both times lie in their intervals.
The misses come first.

Both times of a report come from one library and one person: what widens both intervals alike decides for neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.report import LeftOut, Row, Target, row, show
from lib.formatting import seconds
from lib.model.spec import Network
from lib.sweeps.experiments.advice import all_devices
from lib.timing.prediction.predict import Question
from lib.timing.prediction.remedies import Answer, advise, quicker
from lib.timing.prediction.workload import Device

DESKTOP, SERVER, CARD = "i9-10885h", "c3-highcpu-22", "t4"
MNIST = 60_000


@dataclass(frozen=True)
class Report:
    """A network trained by its author on a CPU and on a GPU, with the seconds each took.

    Attributes:
        name: Library, layers and batch size, for people.
        question: The training.
        cpu_s, gpu_s: As reported.
        library: The library whose line predicts it.
        dated: ISO 8601; empty if the copy that was read has no date.
        where: Its address.
        how: How the figures follow from the report's text.
        processor: Key of the device that predicts it.
    """

    name: str
    question: Question
    cpu_s: float
    gpu_s: float
    library: str
    dated: str
    where: str
    how: str = field(default="", kw_only=True)
    processor: str = field(default=DESKTOP, kw_only=True)


def _mnist(hidden: Sequence[int], batch_size: int, epochs: int = 1, rows: int = MNIST, inputs: int = 784) -> Question:
    return Question(Network(tuple(hidden), inputs), batch_size, epochs, rows=rows)


_DINSMORE = (
    "https://github.com/JackDinsmore/tpu-jtdinsmo/blob/3e4407317b0e2b84abde0b7e03607a03b38731b1/cpu-gpu-mnist.ipynb"
)
_HANYU = "https://github.com/helenehanyu/CS6220-HW1"
_LIGHTNING = "PyTorch Lightning's ten epochs of its example's 55,000 images, on a GeForce RTX 2080 Ti"
_VALIDATED = "five epochs, each followed by a validation on 10,000 images; the machine is not named"
KERAS, TORCH = "keras-tensorflow", "torch"
REPORTS = (
    *(
        Report(
            f"Keras, 784→512→512→10 at batch size {size}",
            _mnist((512, 512), size, 5),
            cpu_s,
            gpu_s,
            KERAS,
            "2019-06-14",
            _DINSMORE,
            how=_VALIDATED,
        )
        for size, cpu_s, gpu_s in ((1, 1605.2, 1237.8), (10, 250.3, 126.8), (100, 55.81, 14.53))
    ),
    Report(
        "Keras, 784→750→150→50→50→10 at batch size 128",
        _mnist((750, 150, 50, 50), 128, 10),
        103.7,
        29.5,
        KERAS,
        "",
        "https://stackoverflow.com/questions/42097115",
        how="ten epochs with dropout and Nadam, on a Core i7-6700K and a card that is not named",
    ),
    Report(
        "PyTorch Lightning, 784→64→64→10 at batch size 4",
        _mnist((64, 64), 4, 10, 55_000),
        825.0,
        805.0,
        TORCH,
        "2022-09-09",
        _HANYU,
        how=_LIGHTNING,
    ),
    Report(
        "PyTorch Lightning, 144→64→64→10 at batch size 4",
        _mnist((64, 64), 4, 10, 55_000, 144),
        739.0,
        812.0,
        TORCH,
        "2022-09-09",
        _HANYU,
        how=_LIGHTNING,
    ),
    Report(
        "MXNet, 784→128→64→10 at batch size 100",
        _mnist((128, 64), 100),
        MNIST / 40e3,
        MNIST / 103e3,
        TORCH,
        "2015-10-13",
        "https://github.com/apache/mxnet/issues/283",
        how="40 and 103 thousand images a second, by two Xeon E5-2680 and a GeForce GTX 980",
        processor=SERVER,
    ),
    Report(
        "PyTorch, 1000→512→10 at batch size 128",
        Question(Network((512,), 1000), 128, 100, rows=64 * 128),
        21.88,
        15.94,
        TORCH,
        "2025-02-13",
        "https://github.com/Harmxn02/Comparing-PyTorch-CPU-vs-CUDA",
        how="100 epochs of 64 batches of fresh random data, on a Ryzen 5 5600H and a GeForce RTX 3060 for laptops",
    ),
    Report(
        "EDDL, 784→1024→1024→1024→10 at batch size 200",
        _mnist((1024, 1024, 1024), 200),
        12.19,
        1.28,
        TORCH,
        "2021-02-17",
        "https://github.com/deephealthproject/eddl/blob/master/docs/markdown/benchmarks.md",
        how="medians of three epochs of 300 batches, on a Ryzen 7 2700X and a GeForce GTX 1070",
    ),
    Report(
        "CNTK, 2→50→50→2 at batch size 25",
        Question(Network((50, 50), 2, 2), 25, rows=10_000),
        10_000 / 40e3,
        10_000 / 35e3,
        TORCH,
        "2016-08-11",
        "https://github.com/microsoft/CNTK/issues/751",
        how="40 and 35 thousand samples a second, on a Core i7-6700K and a GeForce GTX 980 Ti; sizes by its file",
    ),
)


def main() -> None:
    devices = all_devices()
    rows = sorted((judged(one, devices) for one in REPORTS), key=_best_last)
    for one in REPORTS:
        print(f"{one.name}: {one.how}; {one.dated or 'undated'}, {one.where}")
    columns = ("name", "winner", "inside", "cpu", "gpu", "by")
    show("reports", rows, columns, targets(rows), LeftOut())


def judged(report: Report, devices: dict[str, Device]) -> Row:
    keys = [f"{place}/{report.library}" for place in (report.processor, CARD)]
    advice = advise(report.question, {}, {key: devices[key] for key in keys})
    cpu, gpu = (_answer(advice.answers, on_gpu) for on_gpu in (False, True))
    common = min(cpu.widening, gpu.widening)
    named, was = quicker(cpu.prediction, gpu.prediction, common), -1 if report.cpu_s < report.gpu_s else 1
    both = ((cpu, report.cpu_s), (gpu, report.gpu_s))
    return row(
        report.name,
        [],
        winner="close" if not named else "right" if named == was else "wrong",
        inside=all(one.prediction.low_s <= reported_s <= one.prediction.high_s for one, reported_s in both),
        cpu=_beside(*both[0]),
        gpu=_beside(*both[1]),
        by=f"{cpu.library} on {cpu.device} and on {gpu.device}",
    )


def _answer(answers: Sequence[Answer], on_gpu: bool) -> Answer:
    """The library's fastest way; Keras compiles its step, whatever else was published about it."""
    return next(one for one in answers if one.on_gpu is on_gpu)


def _beside(answer: Answer, reported_s: float) -> str:
    found = answer.prediction
    ends = f"{seconds(found.low_s)} to {seconds(found.high_s)}"
    return f"{seconds(reported_s)}, predicted {seconds(found.step_s)} ({ends})"


def _best_last(one: Row) -> tuple[bool, bool]:
    return one["winner"] != "wrong", bool(one["inside"])


def targets(rows: Sequence[Row]) -> list[Target]:
    """No winner is wrong, and four in five are inside. These are counts, because predictions are deterministic."""
    right, inside = (sum(bool(holds(one)) for one in rows) for holds in (_not_wrong, lambda one: one["inside"]))
    return [
        Target.counted("winner right, or too close to call", right / len(rows), 1.0, at_least=True),
        Target.counted("both times inside their intervals", inside / len(rows), 0.8, at_least=True),
    ]


def _not_wrong(one: Row) -> bool:
    return one["winner"] != "wrong"


if __name__ == "__main__":
    main()
