"""What the articles claim, what is measured here, and a verdict. Measures nothing: it reads what race and anatomy have kept.

Where a claim is wrong by its own figures the correction is arithmetic, and stands even before anything is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lib import elsewhere, published
from lib.anatomy.measuring import KIND as ANATOMY
from lib.anatomy.measuring import Task, tasks
from lib.anatomy.operations import ALL
from lib.anatomy.parts import Split
from lib.backends import BACKENDS, Way
from lib.experiments import seconds
from lib.race import Cell, Standing, standings
from lib.records import Record
from lib.spec import N_TRAIN, Network

NETWORK = Network((128,))
BATCH_SIZE = 32
CELLS = tuple(
    Cell(Way(backend), size)
    for backend, sizes in (
        ("keras-tensorflow", (32, 4096)), ("numpy", (32, 128, 2048, 4096)), ("jax-step", (32, 4096)), ("jax-epoch", (1, 32, 4096)),
    )
    for size in sizes
)  # fmt: skip
GPU_CELLS = (Cell(Way("keras-tensorflow", "gpu"), 32), Cell(Way("keras-tensorflow", "gpu"), 4096))


class Verdict(Enum):
    """What became of a claim."""

    HOLDS = "holds"
    NOT_HERE = "does not hold here"
    WRONG = "was wrong"
    OPEN = "not measured yet"
    NO_GPU = "needs a GPU"


MANY = {
    Verdict.HOLDS: "hold", Verdict.NOT_HERE: "do not hold here", Verdict.WRONG: "were wrong", Verdict.OPEN: "are not measured yet",
    Verdict.NO_GPU: "need a GPU",
}  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """The verdict, the figure measured here (or the corrected one), and why."""

    verdict: Verdict
    measured: str
    why: str


@dataclass(frozen=True)
class Known:
    """What has been measured here so far."""

    cells: Mapping[Cell, Standing] = field(default_factory=dict)
    splits: Mapping[Way, Split] = field(default_factory=dict)
    operations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # seconds by worker and operation

    def epoch_s(self, backend: str, batch_size: int, device: str = "cpu") -> float | None:
        standing = self.cells.get(Cell(Way(backend, device), batch_size))
        return None if standing is None else standing.quartiles_s[1]

    def ratio(self, first: tuple[str, int], second: tuple[str, int]) -> float | None:
        """How many times as long the first takes as the second."""
        one, two = self.epoch_s(*first), self.epoch_s(*second)
        return None if one is None or two is None else one / two


@dataclass(frozen=True)
class Claim:
    """One claim of an article, and how it is judged."""

    text: str
    source: str
    judge: Callable[[Known], Judgement]


def known(ways: Sequence[Way], records: Sequence[Record]) -> Known:
    """Sort the kept records into what the claims ask for."""
    race = [record for record in records if record.kind == "race"]
    anatomy = [record for record in records if record.kind == ANATOMY]
    wanted = anatomy_tasks(ways)
    splits = {t.way: s for t in wanted if t.examination.kind == "parts" and (s := t.split(anatomy)) is not None}
    operations = {
        BACKENDS[task.way.backend].worker + ("" if task.way.device == "cpu" else ", GPU"): task.seconds(anatomy)
        for task in wanted
        if task.examination.kind == "operations" and task.complete(anatomy)
    }
    return Known(standings([*CELLS, *GPU_CELLS], race), splits, operations)


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many claims became what.

    >>> summary([Verdict.WRONG, Verdict.HOLDS, Verdict.HOLDS])
    'Of 3 claims: 2 hold, 1 was wrong.'
    """
    one = MANY | {Verdict.HOLDS: "holds", Verdict.NOT_HERE: "does not hold here", Verdict.WRONG: "was wrong",
                  Verdict.OPEN: "is not measured yet", Verdict.NO_GPU: "needs a GPU"}  # fmt: skip
    counts = {verdict: verdicts.count(verdict) for verdict in Verdict}
    words = ", ".join(f"{n} {(one if n == 1 else MANY)[verdict]}" for verdict, n in counts.items() if n)
    return f"Of {len(verdicts)} claims: {words}."


def anatomy_tasks(ways: Sequence[Way]) -> list[Task]:
    return tasks(ways, NETWORK, BATCH_SIZE)


def open_until(what: str) -> Judgement:
    return Judgement(Verdict.OPEN, "–", f"Needs {what}: press “Measure what is missing”.")


def _cpu_beats_gpu(known: Known) -> Judgement:
    cpu_s, gpu_s = known.epoch_s("keras-tensorflow", 32), known.epoch_s("keras-tensorflow", 32, "gpu")
    if cpu_s is None:
        return open_until("the race at batch size 32")
    if gpu_s is None:
        why = f"The processor's half is measured here; the card's needs a machine with one. {elsewhere.epoch_note(32)}"
        return Judgement(Verdict.NO_GPU, f"CPU {seconds(cpu_s)} an epoch", why)
    holds = cpu_s < gpu_s
    why = f"The same `fit`, the same data; the GPU takes {gpu_s / cpu_s:.2g} times as long."
    return Judgement(
        Verdict.HOLDS if holds else Verdict.NOT_HERE, f"CPU {seconds(cpu_s)}, GPU {seconds(gpu_s)} an epoch", why
    )


def _with_validation(_known: Known) -> Judgement:
    train, validation = N_TRAIN // 32, 12_000 // 32
    why = (
        f"1,875 graph launches are {train:,} training batches and {validation} of validation: the 6.5 s hold a pass over the validation "
        "images too. All seconds here are training alone; evaluation is counted apart."
    )
    return Judgement(Verdict.WRONG, f"{train:,} + {validation} = {train + validation:,} batches", why)


def _two_figures_for_one_thing(known: Known) -> Judgement:
    standing = known.cells.get(Cell(Way("keras-tensorflow"), 32))
    why = "The same training on the same machine differs by 2.6 between two pages, and neither says its spread."
    if standing is None:
        return Judgement(Verdict.WRONG, "–", why)
    low, middle, high = standing.quartiles_s
    measured = f"{seconds(middle)} (quartiles {seconds(low)} to {seconds(high)}, {len(standing.epoch_s)} epochs)"
    return Judgement(Verdict.WRONG, measured, why)


def _numpy_slower_at_128(known: Known) -> Judgement:
    ratio = known.ratio(("numpy", 128), ("numpy", 32))
    if ratio is None:
        return open_until("the race of NumPy at 32 and 128")
    why = "Four times fewer steps on the same arithmetic cannot take longer; the published figure stands without a spread."
    return Judgement(
        Verdict.NOT_HERE if ratio < 1 else Verdict.HOLDS, f"128 takes {ratio:.2f} times as long as 32", why
    )


def _memory_pressure(known: Known) -> Judgement:
    ratio = known.ratio(("numpy", 4096), ("numpy", 2048))
    if ratio is None:
        return open_until("the race of NumPy at 2,048 and 4,096")
    why = "Published: 1.03 s after 0.84 s, “due to memory pressure”. A batch of 4,096 images is 13 MB; whether that matters depends on the cache."
    return Judgement(
        Verdict.HOLDS if ratio > 1.1 else Verdict.NOT_HERE, f"4,096 takes {ratio:.2f} times as long as 2,048", why
    )


def _jax_in_a_seventh_of_a_second(known: Known) -> Judgement:
    step_s, epoch_s = known.epoch_s("jax-step", 4096), known.epoch_s("jax-epoch", 4096)
    if step_s is None or epoch_s is None:
        return open_until("the race of JAX at 4,096")
    why = f"One call a step, as in the article; the whole epoch in one call takes {seconds(epoch_s)}."
    return Judgement(Verdict.HOLDS if step_s <= 0.14 else Verdict.NOT_HERE, f"{seconds(step_s)} an epoch", why)


def _forty_five_times(known: Known) -> Judgement:
    published_same = published.EPOCH_S["keras-tensorflow", "gpu"][4096] / published.EPOCH_S["jax-step", "cpu"][4096]
    why = (
        "6.5 s is batch size 32 and 0.14 s is 4,096: two changes at once, and fewer steps learn less. At 4,096 both, the article's own table "
        f"says {published_same:.0f}."
    )
    mixed, same = (
        known.ratio(("keras-tensorflow", 32), ("jax-step", 4096)),
        known.ratio(("keras-tensorflow", 4096), ("jax-step", 4096)),
    )
    measured = (
        "–" if mixed is None or same is None else f"{mixed:.0f} mixed, {same:.1f} at 4,096 both (Keras on the CPU)"
    )
    return Judgement(Verdict.WRONG, measured, why)


def _capacity(_known: Known) -> Judgement:
    flop = 2 * 32 * 784 * 128
    least_s = flop / 11e12
    why = (
        f"It divides operations by operations a second. The product is {flop / 2e6:.1f} million multiply-adds, {flop / 1e6:.1f} MFLOP: "
        f"{seconds(least_s)} at 11 TFLOP/s, which is {least_s / 541e-6:.1%} of the 541 μs that it took."
    )
    return Judgement(Verdict.WRONG, f"{least_s / 541e-6:.1%} of the peak", why)


def _multiply_adds(_known: Known) -> Judgement:
    why = "Each multiply-add is two operations: 3.2 million multiply-adds are 6.4 million operations, not 6.4 million multiply-adds."
    return Judgement(Verdict.WRONG, f"{32 * 784 * 128 / 1e6:.1f} million", why)


def _steps_of_the_sweep(_known: Known) -> Judgement:
    steps = N_TRAIN // 32 * 3 * 4
    why = "A fifth of the 60,000 images is held back for validation, so an epoch has 1,500 training steps, not 1,875."
    return Judgement(Verdict.WRONG, f"{steps:,} training steps", why)


def _overhead_a_step(known: Known) -> Judgement:
    own_s = 63 / 22_500
    why = f"Their own sweep says otherwise: 63 s over 22,500 steps are {seconds(own_s)} a step, thirteen times as much."
    one = known.splits.get(Way("keras-tensorflow"))
    measured = (
        "–"
        if one is None
        else f"{seconds(one.step_s - one.parts_s['arithmetic'])} beside the arithmetic (Keras on the CPU here)"
    )
    return Judgement(Verdict.WRONG, measured, why)


def _utilisation(_known: Known) -> Judgement:
    why = (
        "The `sm` column of `dmon` is the same share of time in which at least one kernel ran. Occupancy is in NVML's GPM (SM_UTIL and SM_OCCUPANCY, from "
        "Hopper on), in DCGM's fields 1002 and 1003, and in Nsight."
    )
    return Judgement(Verdict.WRONG, "nothing to measure: a definition", why)


def _fit_is_eager(known: Known) -> Judgement:
    eager, one = known.operations.get("keras-tensorflow"), known.splits.get(Way("keras-tensorflow"))
    why = "`fit` traces the training step once, and runs it as one graph. Operation by operation is what happens without `fit`."
    if eager is None or one is None:
        return Judgement(Verdict.WRONG, "–", why)
    return Judgement(Verdict.WRONG, f"a step of `fit` {seconds(one.step_s)}, op by op {seconds(eager[ALL])}", why)


def _one_fused_kernel(_known: Known) -> Judgement:
    why = (
        "XLA fuses elementwise work; the products stay calls of a library or loops of their own, launched one after another by the host. "
        "A test counts them in the compiled step."
    )
    return Judgement(Verdict.WRONG, "five products and more than ten other kernels in one compiled step (CPU)", why)


def _hard_floor(known: Known) -> Judgement:
    epoch_s = known.epoch_s("jax-epoch", 1)
    why = "A compiled loop over the batches asks Python once an epoch, not once a step."
    measured = "–" if epoch_s is None else f"{seconds(epoch_s / N_TRAIN)} for a whole step at batch size 1"
    return Judgement(Verdict.WRONG, measured, why)


def _no_overhead_on_cpu(known: Known) -> Judgement:
    one = known.splits.get(Way("keras-tensorflow"))
    if one is None:
        return open_until("the parts of Keras' step")
    share = one.share("arithmetic")
    return Judgement(
        Verdict.HOLDS if share > 0.85 else Verdict.NOT_HERE,
        f"{share:.0%} of a step of `fit` is arithmetic",
        "A processor has no launch to wait for, but the framework's loop, dispatch and input are there on any device.",
    )


def _every_operation_faster(known: Known) -> Judgement:
    numpy, eager = known.operations.get("numpy"), known.operations.get("keras-tensorflow")
    why = "The table compares NumPy with TensorFlow as well as a processor with a card: part of the difference is the library's dispatch, on any device."
    if numpy is None or eager is None:
        return Judgement(Verdict.WRONG, "–", why)
    return Judgement(
        Verdict.WRONG, f"TensorFlow op by op on this CPU: {eager[ALL] / numpy[ALL]:.1f} times NumPy's", why
    )


def _price(_known: Known) -> Judgement:
    why = "On demand in us-central1, in a price list of 2026. Prices change: each cost here carries its price's date."
    return Judgement(Verdict.WRONG, "0.936 $ an hour", why)


def _crossover(known: Known) -> Judgement:
    if known.epoch_s("keras-tensorflow", 32, "gpu") is None:
        return Judgement(
            Verdict.NO_GPU,
            "–",
            f"Needs the race on a machine with a card, at several widths. {elsewhere.epoch_note(256)}",
        )
    return Judgement(Verdict.OPEN, "–", "Needs the race at several widths.")


A, B = published.OVERHEAD_ARTICLE, published.MACHINES_ARTICLE
CLAIMS = (
    Claim("784→128→10 takes 4.4 s an epoch on a CPU and 6.5 s on a GPU.", A, _cpu_beats_gpu),
    Claim("The 6.5 s are 1,500 training steps.", A, _with_validation),
    Claim("Keras on the CPU at batch size 32 takes 4.4 s; in the table, 11.31 s.", A, _two_figures_for_one_thing),
    Claim("NumPy takes longer at batch size 128 (4.70 s) than at 32 (2.71 s).", A, _numpy_slower_at_128),
    Claim("NumPy slows down again at batch size 4,096.", A, _memory_pressure),
    Claim("JAX at batch size 4,096 takes 0.14 s an epoch.", A, _jax_in_a_seventh_of_a_second),
    Claim("That is 45 times faster than Keras on the GPU.", A, _forty_five_times),
    Claim("The CPU is faster on every single operation: 751 μs against 4,447 μs.", A, _every_operation_faster),
    Claim("On the CPU a compiled step is all compute, no overhead.", A, _no_overhead_on_cpu),
    Claim("The product uses 0.00003 % of the GPU's capacity.", A, _capacity),
    Claim("Below 500,000 parameters and a batch size of 256, a fast CPU beats a GPU.", A, _crossover),
    Claim("A step is about 210 μs, of which 0.2 μs are arithmetic.", B, _overhead_a_step),
    Claim("The sweep of four models makes 22,500 steps.", B, _steps_of_the_sweep),
    Claim("32×784 by 784×128 is about 6.4 million multiply-adds.", B, _multiply_adds),
    Claim("`nvidia-smi dmon -s u` shows the occupancy.", B, _utilisation),
    Claim("TensorFlow under Keras runs each operation eagerly.", B, _fit_is_eager),
    Claim("XLA compiles the whole computation into one fused kernel.", B, _one_fused_kernel),
    Claim("About 10 μs of Python a step are a hard floor.", B, _hard_floor),
    Claim("c3-highcpu-22 costs 0.77 $ an hour.", B, _price),
)
