"""What the articles claim, what is measured here, and a verdict, from what race and anatomy have measured, or measure
for it.

A verdict follows from figures of this machine, or from arithmetic on the articles' own ("corrected"), and says which of
the two. A claim that neither the one nor the other decides is open. Two times are told apart as everywhere: see
`lib.timing.comparison`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lib.backends.registry import BACKENDS, DEFAULT, Runtime, unavailable, usable_runtimes
from lib.experiments import published
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.experiments.backend_race import ROUNDS, Cell, Standing, plan, race, records_and_notes, records_of, standings
from lib.formatting import justified, seconds
from lib.profiling.operations import ALL, KERNELS, OPERATIONS
from lib.profiling.request import Examination
from lib.profiling.step_breakdown import Split
from lib.spec import N_TRAIN, Network
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing import comparison
from lib.timing.comparison import Comparison, compared, without_spread
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note
from lib.workers.queue import Request

NETWORK = Network((128,))
BATCH_SIZE = 32
ALL_COMPUTE = 0.85  # share of a step from which it counts as nothing but arithmetic
OCCUPANCY = ("occupancy/utilisation", "occupancy/warps")  # what a monitor shows, and what the chip counts
CELLS = tuple(
    Cell(Runtime(backend), size)
    for backend, sizes in (
        ("keras-tensorflow", (32, 4096)),
        ("numpy", (32, 128, 2048, 4096)),
        ("jax-step", (32, 4096)),
        ("jax-epoch", (1, 32, 4096)),
    )
    for size in sizes
)
GPU_CELLS = (Cell(Runtime("keras-tensorflow", "gpu"), 32), Cell(Runtime("keras-tensorflow", "gpu"), 4096))


class ClaimStatus(Enum):
    """What became of a claim."""

    HOLDS = "holds here"
    NOT_HERE = "does not hold here"
    CORRECTED = "corrected"
    OPEN = "open"
    NO_GPU = "needs a GPU"

    @property
    def follows_from(self) -> str:
        """What carries it; empty where nothing does yet."""
        measured = "measured on this machine"
        return {
            ClaimStatus.HOLDS: measured,
            ClaimStatus.NOT_HERE: measured,
            ClaimStatus.CORRECTED: "by arithmetic",
        }.get(self, "")


@dataclass(frozen=True)
class Judgement:
    """The verdict, the figure measured here (or the corrected one), and why."""

    verdict: ClaimStatus
    measured: str
    why: str
    recorded_at: int | None = None  # the batch size at which recorded cards, where there are any, say something of it


@dataclass(frozen=True)
class Known:
    """What has been measured here so far."""

    cells: Mapping[Cell, Standing] = field(default_factory=dict)
    splits: Mapping[Runtime, Split] = field(default_factory=dict)
    operations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # seconds by worker and operation
    occupancy: Mapping[str, float] = field(default_factory=dict)  # of a card while steps run: shares by counter

    def epoch_s(self, cell: Cell) -> tuple[float, float, float] | None:
        """Quartiles."""
        standing = self.cells.get(cell)
        return None if standing is None else standing.quartiles_s

    def beside(self, first: Cell, second: Cell) -> Comparison | None:
        """How many times as long the first takes as the second, from the repetitions of both."""
        one, two = self.cells.get(first), self.cells.get(second)
        return None if one is None or two is None else compared(one.repetition_s, two.repetition_s, paired=False)


@dataclass(frozen=True)
class Claim:
    """One claim of an article, and how it is judged."""

    text: str
    source: str
    judge: Callable[[Known], Judgement]


def known(runtimes: Sequence[Runtime], records: Sequence[Record]) -> Known:
    """Sort the kept records into what the claims ask for."""
    race = [record for record in records if record.kind == Kind.RACE]
    anatomy = [record for record in records if record.kind == Kind.ANATOMY]
    wanted = anatomy_tasks(runtimes)
    splits = {t.runtime: s for t in wanted if t.examination.kind == "parts" and (s := t.split(anatomy)) is not None}
    operations = {
        BACKENDS[task.runtime.backend].worker + ("" if task.runtime.device == "cpu" else ", GPU"): task.seconds(anatomy)
        for task in wanted
        if task.examination.kind == "operations" and task.complete(anatomy)
    }
    on_card = [t.seconds(anatomy) for t in wanted if t.examination.kind == "traps"]
    occupancy = {name: share for found in on_card for name, share in found.items() if name in OCCUPANCY}
    return Known(standings([*CELLS, *GPU_CELLS], race), splits, operations, occupancy)


def anatomy_tasks(runtimes: Sequence[Runtime]) -> list[AnatomyTask]:
    """Steps taken apart; and on a card the traps, which ask it for its occupancy."""
    on_card = Runtime(DEFAULT, "gpu")
    traps = [AnatomyTask(on_card, Examination("traps", NETWORK, BATCH_SIZE))] if on_card in runtimes else []
    return tasks(runtimes, NETWORK, BATCH_SIZE) + traps


def cells_to_measure(records: list[Record]) -> list[Cell]:
    """The race's cells that a claim stands on, and that can be measured here: as many repetitions as the race makes,
    for two cells are told apart by what varies between repetitions."""
    cells = [cell for cell in (*CELLS, *GPU_CELLS) if unavailable(cell.runtime) is None]
    return plan(cells, [record for record in records if record.kind == Kind.RACE])


def measure_missing(engine: Engine, store: Store, cancel: Cancel, request: Request) -> Iterator[Record | Note]:
    """What the claims need and the store does not have."""
    records = store.records()
    cells = cells_to_measure(records)
    yield from records_and_notes(race(cells, engine, store, cancel, request))
    todo = [task for task in anatomy_tasks(usable_runtimes()) if not task.complete(records)]
    yield from measure_tasks(todo, engine, store, cancel, request)


def progress(records: list[Record]) -> tuple[int, int]:
    """How much of what the claims need is there, and how much that is."""
    wanted = anatomy_tasks(usable_runtimes())
    cells = [cell for cell in (*CELLS, *GPU_CELLS) if unavailable(cell.runtime) is None]
    left = len(cells_to_measure(records)) + sum(not task.complete(records) for task in wanted)
    total = ROUNDS * len(cells) + len(wanted)
    return total - left, total


def stood_on(records: list[Record]) -> list[Record]:
    """Those that a claim stands on."""
    repetitions = [repetition for cell in (*CELLS, *GPU_CELLS) for repetition in records_of(cell, records)]
    return repetitions + [
        record for task in anatomy_tasks(usable_runtimes()) for record in task.found(records).values()
    ]


def _of(backend: str, batch_size: int, device: str = "cpu") -> Cell:
    return Cell(Runtime(backend, device), batch_size)


def open_until(what: str) -> Judgement:
    return Judgement(ClaimStatus.OPEN, "–", f"Needs {what}: press “Measure what is missing”.")


def decided(holds: bool | None, measured: str, why: str) -> Judgement:
    """By a figure of this machine; None: it does not carry a verdict, and `why` says what would."""
    verdict = ClaimStatus.OPEN if holds is None else ClaimStatus.HOLDS if holds else ClaimStatus.NOT_HERE
    return Judgement(verdict, measured, why)


def corrected(measured: str, why: str) -> Judgement:
    """By arithmetic on the article's own figures, whatever is measured here."""
    return Judgement(ClaimStatus.CORRECTED, measured, why)


def is_longer(ratio: Comparison) -> bool | None:
    """Whether the first takes longer than the second; None: it cannot be told."""
    return None if ratio.verdict is comparison.Verdict.UNCLEAR else ratio.verdict is comparison.Verdict.SLOWER


_NOT_TOLD_APART = "The repetitions of the two leave open which takes longer: measure again, on a quiet machine."


def _cpu_beats_gpu(known: Known) -> Judgement:
    cpu, gpu = _of("keras-tensorflow", 32), _of("keras-tensorflow", 32, "gpu")
    cpu_s, gpu_s, ratio = known.epoch_s(cpu), known.epoch_s(gpu), known.beside(gpu, cpu)
    if cpu_s is None:
        return open_until("the race at batch size 32")
    if gpu_s is None or ratio is None:
        why = "The processor's half is measured here; the card's needs a machine with one."
        return Judgement(ClaimStatus.NO_GPU, f"CPU {seconds(cpu_s[1])} per epoch", why, recorded_at=32)
    holds = is_longer(ratio)
    why = f"The same `fit`, the same data; the GPU takes {ratio.ratio:.2g} times as long."
    figure = f"CPU {seconds(cpu_s[1])}, GPU {seconds(gpu_s[1])} per epoch"
    return decided(holds, figure, why if holds is not None else _NOT_TOLD_APART)


def _with_validation(_known: Known) -> Judgement:
    train, validation = N_TRAIN // 32, 12_000 // 32
    why = (
        f"1,875 graph launches are {train:,} training batches and {validation} of validation: the 6.5 s hold a pass"
        " over the validation images too. All seconds here are training alone; evaluation is counted apart."
    )
    return corrected(f"{train:,} + {validation} = {train + validation:,} batches", why)


def _two_figures_for_one_thing(known: Known) -> Judgement:
    here_s = known.epoch_s(_of("keras-tensorflow", 32))
    why = (
        f"The same training on the same machine differs by a factor of {11.31 / 4.4:.1f} between two pages, and neither"
        " says its spread."
    )
    measured = (
        "–" if here_s is None else f"here {seconds(here_s[1])} (quartiles {seconds(here_s[0])} to {seconds(here_s[2])})"
    )
    return corrected(measured, why)


def _numpy_slower_at_128(known: Known) -> Judgement:
    ratio = known.beside(_of("numpy", 128), _of("numpy", 32))
    if ratio is None:
        return open_until("the race of NumPy at 32 and 128")
    holds = is_longer(ratio)
    why = "The same arithmetic in a quarter of the steps; the published figure stands without a spread."
    return decided(holds, _times(128, ratio, 32), why if holds is not None else _NOT_TOLD_APART)


def _memory_pressure(known: Known) -> Judgement:
    ratio = known.beside(_of("numpy", 4096), _of("numpy", 2048))
    if ratio is None:
        return open_until("the race of NumPy at 2,048 and 4,096")
    holds = is_longer(ratio)
    why = (
        "Published: 1.03 s after 0.84 s, “due to memory pressure”. A batch of 4,096 images is 13 MB; whether that"
        " matters depends on the cache."
    )
    return decided(holds, _times(4096, ratio, 2048), why if holds is not None else _NOT_TOLD_APART)


def _times(size: int, ratio: Comparison, other: int) -> str:
    return f"{size:,} takes {ratio.ratio:.2f} times as long as {other:,} ({ratio.low:.2f} to {ratio.high:.2f})"


def _jax_in_a_seventh_of_a_second(known: Known) -> Judgement:
    step_s, epoch_s = known.epoch_s(_of("jax-step", 4096)), known.epoch_s(_of("jax-epoch", 4096))
    if step_s is None or epoch_s is None:
        return open_until("the race of JAX at 4,096")
    low, middle, high = step_s
    why = f"One call a step, as in the article; the whole epoch in one call takes {seconds(epoch_s[1])}."
    holds = None if low <= 0.14 < high else high <= 0.14
    return decided(holds, f"{justified(middle, low, high)} per epoch", why if holds is not None else _BOTH_SIDES)


_BOTH_SIDES = "The claimed figure lies between the quartiles: measure again, on a quiet machine."


def _forty_five_times(known: Known) -> Judgement:
    published_same = published.EPOCH_S["keras-tensorflow", "gpu"][4096] / published.EPOCH_S["jax-step", "cpu"][4096]
    why = (
        "6.5 s is batch size 32 and 0.14 s is 4,096: two changes at once, and fewer steps learn less. At 4,096 both,"
        f" the article's own table says {published_same:.0f}."
    )
    mixed = known.beside(_of("keras-tensorflow", 32), _of("jax-step", 4096))
    same = known.beside(_of("keras-tensorflow", 4096), _of("jax-step", 4096))
    here = (
        "–"
        if mixed is None or same is None
        else f"{mixed.ratio:.0f} mixed, {same.ratio:.1f} at 4,096 both (Keras on the CPU)"
    )
    return corrected(here, why)


def _capacity(_known: Known) -> Judgement:
    flop = 2 * 32 * 784 * 128
    least_s = flop / 11e12
    why = (
        f"It divides operations by operations a second. The product is {flop / 2e6:.1f} million multiply-adds,"
        f" {flop / 1e6:.1f} MFLOP: {seconds(least_s)} at 11 TFLOP/s, which is {least_s / 541e-6:.1%} of the 541 μs that"
        " it took."
    )
    return corrected(f"{least_s / 541e-6:.1%} of the peak", why)


def _multiply_adds(_known: Known) -> Judgement:
    why = (
        "Each multiply-add is two operations: 3.2 million multiply-adds are 6.4 million operations, not 6.4 million"
        " multiply-adds."
    )
    return corrected(f"{32 * 784 * 128 / 1e6:.1f} million", why)


def _steps_of_the_sweep(_known: Known) -> Judgement:
    steps = N_TRAIN // 32 * 3 * 4
    why = "A fifth of the 60,000 images is held back for validation, so an epoch has 1,500 training steps, not 1,875."
    return corrected(f"{steps:,} training steps", why)


def _overhead_a_step(known: Known) -> Judgement:
    own_s, one = 63 / 22_500, known.splits.get(Runtime("keras-tensorflow"))
    why = (
        f"Their own sweep says otherwise: 63 s over 22,500 steps are {seconds(own_s)} per step,"
        f" {own_s / 210e-6:.0f} times as much."
    )
    beside = (
        "–"
        if one is None
        else f"{seconds(one.step_s - one.parts_s['arithmetic'])} beside the arithmetic (Keras on the CPU here)"
    )
    return corrected(beside, why)


def _utilisation(known: Known) -> Judgement:
    shown, warps = (known.occupancy.get(name) for name in OCCUPANCY)
    why = (
        "The `sm` column of `dmon` is documented as the share of time in which at least one kernel ran. Occupancy is in"
        " NVML's GPM (SM_UTIL and SM_OCCUPANCY, from Hopper on), in DCGM's fields 1002 and 1003, and in Nsight."
    )
    if shown is None:
        return Judgement(ClaimStatus.NO_GPU, "–", why)
    if warps is None:
        return decided(None, f"{shown:.0%} shown; this chip does not report its occupancy", why)
    is_the_same = without_spread(warps / shown).verdict is comparison.Verdict.SAME
    return decided(is_the_same, f"{shown:.0%} shown, {warps:.1%} of the warps there", why)


def _fit_is_eager(known: Known) -> Judgement:
    eager, one = known.operations.get("keras-tensorflow"), known.splits.get(Runtime("keras-tensorflow"))
    if eager is None or one is None:
        return open_until("a step of Keras, whole and operation by operation")
    ratio = one.step_s / eager[ALL]
    figure = f"a step of `fit` {seconds(one.step_s)}, op by op {seconds(eager[ALL])}"
    if is_longer(without_spread(1 / ratio)):
        why = (
            "A whole step of `fit` takes less than its operations one by one: `fit` traces the step once, and runs it"
            " as one graph."
        )
        return decided(False, figure, why)
    why = (
        "A step of `fit` is not quicker here than its operations one by one, which leaves open how it runs them. It"
        " traces the step once."
    )
    return decided(None, figure, why)


def _one_fused_kernel(known: Known) -> Judgement:
    kernels = known.operations.get("jax", {}).get(KERNELS)
    if kernels is None:
        return open_until("a step of JAX, operation by operation")
    why = (
        "XLA fuses elementwise work; the products stay calls of a library or loops of their own, launched one after"
        " another by the host."
    )
    return decided(kernels <= 1, f"{kernels:.0f} kernels in one compiled step (CPU)", why)


def _hard_floor(known: Known) -> Judgement:
    epoch_s = known.epoch_s(_of("jax-epoch", 1))
    if epoch_s is None:
        return open_until("the race of JAX in one call at batch size 1")
    low, middle, high = (epoch / N_TRAIN for epoch in epoch_s)
    figure = f"{justified(middle, low, high)} for a whole step at batch size 1"
    if high < 10e-6:
        return decided(False, figure, "A compiled loop over the batches asks Python once an epoch, not once a step.")
    why = (
        "A compiled loop asks Python once an epoch, not once a step; but only a whole step below 10 μs would refute the"
        " claim."
    )
    return decided(None, figure, why)


def _no_overhead_on_cpu(known: Known) -> Judgement:
    one = known.splits.get(Runtime("keras-tensorflow"))
    if one is None:
        return open_until("the parts of Keras' step")
    share = one.share("arithmetic")
    why = (
        f"It is held to hold from {ALL_COMPUTE:.0%} on. A processor has no launch to wait for, but the framework's"
        " loop, dispatch and input are there on any device."
    )
    return decided(share >= ALL_COMPUTE, f"{share:.0%} of a step of `fit` is arithmetic", why)


def _every_operation_faster(known: Known) -> Judgement:
    numpy, card = known.operations.get("numpy"), known.operations.get("keras-tensorflow, GPU")
    eager = known.operations.get("keras-tensorflow")
    why = (
        "The table compares NumPy with TensorFlow as well as a processor with a card: part of the difference is the"
        " library's dispatch, on any device."
    )
    if numpy is None or eager is None:
        return open_until("the operations by NumPy and by TensorFlow")
    if card is None:
        return Judgement(
            ClaimStatus.NO_GPU, f"TensorFlow op by op on this CPU: {eager[ALL] / numpy[ALL]:.1f} times NumPy's", why
        )
    ratio = [is_longer(without_spread(card[one.key] / numpy[one.key])) for one in OPERATIONS]
    figure = (
        f"NumPy {seconds(numpy[ALL])}, TensorFlow on the card {seconds(card[ALL])}; quicker in"
        f" {sum(map(bool, ratio))} of {len(ratio)} operations"
    )
    return decided(all(ratio), figure, why)


def _price(_known: Known) -> Judgement:
    why = (
        "A price list of 2026 has $0.936 on demand in us-central1. Which it was when the article was written can be"
        " neither measured nor reckoned: each cost here carries its price's date."
    )
    return decided(None, "$0.936 per hour, listed in 2026", why)


def _crossover(known: Known) -> Judgement:
    if known.epoch_s(_of("keras-tensorflow", 32, "gpu")) is None:
        why = "Needs the race on a machine with a card, at several widths."
        return Judgement(ClaimStatus.NO_GPU, "–", why, recorded_at=256)
    return decided(None, "–", "Needs the race at several widths.")


A, B = published.OVERHEAD_ARTICLE, published.MACHINES_ARTICLE
CLAIMS = (
    Claim("784→128→10 takes 4.4 s per epoch on a CPU and 6.5 s on a GPU.", A, _cpu_beats_gpu),
    Claim("The 6.5 s are 1,500 training steps.", A, _with_validation),
    Claim("Keras on the CPU at batch size 32 takes 4.4 s; in the table, 11.31 s.", A, _two_figures_for_one_thing),
    Claim("NumPy takes longer at batch size 128 (4.70 s) than at 32 (2.71 s).", A, _numpy_slower_at_128),
    Claim("NumPy slows down again at batch size 4,096.", A, _memory_pressure),
    Claim("JAX at batch size 4,096 takes 0.14 s per epoch.", A, _jax_in_a_seventh_of_a_second),
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
    Claim("About 10 μs of Python per step are a hard floor.", B, _hard_floor),
    Claim("c3-highcpu-22 costs $0.77 per hour.", B, _price),
)
