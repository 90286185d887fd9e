"""The articles' claims and two more, each with a verdict that follows from this machine's figures or from arithmetic.

The figures come from the race and from steps taken apart; missing ones are measured here. Arithmetic on an article's
own figures makes a claim "corrected". The page says what each verdict rests on. A claim that neither decides is open.
`lib.timing.comparison` compares times.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import permutations

from lib.formatting import justified, seconds, times
from lib.model.backends.registry import BACKENDS, DEFAULT, Runtime, unavailable, usable_runtimes
from lib.model.hardware.machine import machine_id
from lib.model.spec import N_TRAIN, N_VALIDATION, Network
from lib.sweeps.experiments import published
from lib.sweeps.experiments.anatomy_of_a_step import (
    AnatomyTask,
    best_rate,
    measure_ceilings,
    measure_tasks,
    seconds_of,
    tasks,
)
from lib.sweeps.experiments.backend_race import ROUNDS, Cell, Standing, plan, race, records_of, standings
from lib.sweeps.experiments.recorded_machines import EPOCHS, EXPERIMENTS, gpu_runtimes, named, recorded_gpus
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import DRIFT, SESSION, Comparison, Repetitions, Verdict
from lib.timing.profiling.operations import ALL, KERNELS, OPERATIONS
from lib.timing.profiling.request import ONE_CALL, Examination, Split
from lib.ui import layout
from lib.ui.controls import Controls
from lib.ui.lab import Asked, Drawing, Shown, nothing
from lib.ui.views import markup
from lib.ui.views.markup import inline

NETWORK = Network((128,))
BATCH_SIZE = 32
SWEEP_STEPS = EPOCHS * sum(N_TRAIN // size for _, size in EXPERIMENTS["learning-rate"])  # the second article's sweep
ALL_COMPUTE = 0.85  # share of arithmetic from which a step counts as pure arithmetic
TAKEN_APART = (  # examinations and workers that claims rest on
    *(("operations", worker) for worker in ("numpy", "keras-tensorflow", "jax")),
    ("parts", "keras-tensorflow"),
)
OCCUPANCY = ("occupancy/utilisation", "occupancy/warps")  # a monitor's figure, and the chip's counter
CELLS = tuple(
    Cell(Runtime(backend), size)
    for backend, sizes in (
        ("keras-tensorflow", (32, 4096)),
        ("numpy", (32, 128, 2048, 4096)),
        ("jax-step", (32, 4096)),
        ("jax-epoch", (1, 32, 4096)),
        ("numba", (1, 512)),
    )
    for size in sizes
)
WITHOUT_CUDA = tuple(Cell(Runtime("webgpu-chunk", kind), BATCH_SIZE) for kind in ("discrete", "integrated"))
RATES_OF = (Runtime("numpy"), Runtime(DEFAULT))  # candidates for the fastest product
GPU_CELLS = (*(Cell(Runtime("keras-tensorflow", "gpu"), size) for size in (32, 4096)), *WITHOUT_CUDA)


# Cells that verdicts compare.
COMPARED = (
    (GPU_CELLS[0], CELLS[0]),
    (Cell(Runtime("numpy"), 128), Cell(Runtime("numpy"), 32)),
    (Cell(Runtime("numpy"), 4096), Cell(Runtime("numpy"), 2048)),
    *((Cell(Runtime("keras-tensorflow"), size), Cell(Runtime("jax-step"), 4096)) for size in (32, 4096)),
    *((cell, Cell(Runtime(DEFAULT), BATCH_SIZE)) for cell in WITHOUT_CUDA),
)


class ClaimStatus(Enum):
    HOLDS = "holds here"
    NOT_HERE = "does not hold here"
    CORRECTED = "corrected"
    OPEN = "open"
    NO_GPU = "needs a GPU"


@dataclass(frozen=True)
class Judgement:
    verdict: ClaimStatus
    measured: str
    why: str
    recorded_at: int | None = None  # batch size at which the page adds recorded GPUs' times


@dataclass(frozen=True)
class Known:
    """This machine's figures that claims are judged by, as far as they are measured."""

    cells: Mapping[Cell, Standing] = field(default_factory=dict)
    splits: Mapping[Runtime, Sequence[Split]] = field(default_factory=dict)  # one per repetition
    operations: Mapping[str, Mapping[str, Repetitions]] = field(default_factory=dict)  # seconds, by library and name
    steps_s: Mapping[Runtime, Repetitions] = field(default_factory=dict)  # of the steps in `splits`
    occupancy: Mapping[str, Repetitions] = field(default_factory=dict)  # shares by counter, while steps run on a GPU
    product_flops_per_s: float | None = None  # of the fastest dense float32 product

    def compare(self, first: Cell, second: Cell) -> Comparison | None:
        """The times' ratio, first over second (`Repetitions.compare`); None if one is missing."""
        one, two = self.cells.get(first), self.cells.get(second)
        return None if one is None or two is None else one.repeated.compare(two.repeated)


Judge = Callable[[Known], Judgement]


@dataclass(frozen=True)
class Claim:
    text: str
    source: str
    judge: Judge


def known(runtimes: Sequence[Runtime], records: Sequence[Record]) -> Known:
    """The claims' figures from stored records.

    Args:
        runtimes: Whose steps are examined; the race's cells are always the same.
        records: Of any kind and machine; only those valid here are used.
    """
    splits: dict[Runtime, list[Split]] = {}
    steps_s: dict[Runtime, Repetitions] = {}
    operations: dict[str, dict[str, Repetitions]] = {}
    occupancy: dict[str, Repetitions] = {}
    for task in anatomy_tasks(runtimes):
        if not (made := task.repetitions(records)):
            continue
        by_name = {name: _repeated(made, name) for name in made[0] if all(name in one for one in made)}
        if task.examination.kind == "parts":
            parts = [task.split(list(one.values())) for one in made]
            splits[task.runtime], steps_s[task.runtime] = [one for one in parts if one is not None], by_name["step"]
        elif task.examination.kind == "operations":
            operations[BACKENDS[task.runtime.backend].worker + task.runtime.suffix] = by_name
        else:
            occupancy = {name: by_name[name] for name in OCCUPANCY if name in by_name}
    product = best_rate(_rates(records), "cpu", "product")
    return Known(standings([*CELLS, *GPU_CELLS], records), splits, operations, steps_s, occupancy, product)


def _repeated(made: Sequence[Mapping[str, Record]], name: str) -> Repetitions:
    return Repetitions(tuple(seconds_of(one[name]) for one in made), tuple(one[name].measured_at for one in made))


def _rates(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.kind == Kind.CEILING and record.machine == machine_id()]


def anatomy_tasks(runtimes: Sequence[Runtime]) -> list[AnatomyTask]:
    on_card = Runtime(DEFAULT, "gpu")
    traps = [AnatomyTask(on_card, Examination("traps", NETWORK, BATCH_SIZE))] if on_card in runtimes else []
    every = tasks(runtimes, NETWORK, BATCH_SIZE)
    return [one for one in every if (one.examination.kind, one.subject["by"]) in TAKEN_APART] + traps


def cells_to_measure(records: list[Record]) -> list[Cell]:
    """The missing repetitions of the cells that claims rest on and that can run here.

    Each cell gets as many repetitions as in the race, because cells are compared by the variation between repetitions.
    Compared cells without repetitions from a common session are both measured again, in turns.
    """
    cells = [cell for cell in (*CELLS, *GPU_CELLS) if unavailable(cell.runtime) is None]
    race = [record for record in records if record.kind == Kind.RACE]
    here = Known(standings(cells, race))
    pairs = [pair for pair in COMPARED if set(pair) <= set(cells)]
    apart = {cell for pair in pairs if (ratio := here.compare(*pair)) is None or ratio.n < 2 for cell in pair}
    since = (datetime.now(UTC) - SESSION).isoformat()
    usable = [one for one in race if one.measured_at >= since or not any(one.is_about(c.subject) for c in apart)]
    return plan(cells, usable)


def anatomy_to_measure(records: list[Record]) -> list[AnatomyTask]:
    """The missing repetitions of the steps to take apart, in turns; all of them if two steps share no session."""
    wanted = anatomy_tasks(usable_runtimes())
    made = {task: task.repetitions(records) for task in wanted}
    done = {task: _repeated(of, next(iter(of[0]))) if of else Repetitions(()) for task, of in made.items()}
    n = {task: len(one.values) for task, one in done.items()}
    if any(n[a] and n[b] and len(done[a].near(done[b])) < 2 for a, b in permutations(wanted, 2)):
        since = (datetime.now(UTC) - SESSION).isoformat()
        n = {task: sum(at >= since for at in one.at) for task, one in done.items()}
    return [task for number in range(ROUNDS) for task in wanted if n[task] <= number]


def measure_missing(engine: Engine, store: Store, cancel: Cancel, request: Request) -> Iterator[Record | Note]:
    """Measure what the claims need and the store lacks: the race, the steps taken apart, and the peak rates.

    Yields:
        Each record as it is stored, and notes on the progress.

    Raises:
        TrainingFailed: A backend could not do what was asked; the text says why.
    """
    records = store.records()
    yield from race(cells_to_measure(records), engine, store, cancel, request)
    yield from measure_tasks(anatomy_to_measure(records), engine, store, cancel, request)
    runtimes = [runtime for runtime in RATES_OF if runtime in usable_runtimes()]
    yield from measure_ceilings(runtimes, engine, store, cancel, request)


def progress(records: list[Record]) -> tuple[int, int]:
    """How many of the claims' measurements were made, and how many there are in all.

    Each repetition of a cell or of a step taken apart counts as one, and the peak rates together as one.
    """
    left, total = (
        len(cells_to_measure(known)) + len(anatomy_to_measure(known)) + (not _rates(known)) for known in (records, [])
    )
    return total - left, total


def stood_on(records: list[Record]) -> list[Record]:
    repetitions = [repetition for cell in (*CELLS, *GPU_CELLS) for repetition in records_of(cell, records)]
    tasks = anatomy_tasks(usable_runtimes())
    taken_apart = [record for task in tasks for one in task.repetitions(records) for record in one.values()]
    return repetitions + taken_apart + _rates(records)


def _of(backend: str, batch_size: int, device: str = "cpu") -> Cell:
    return Cell(Runtime(backend, device), batch_size)


def decided(holds: bool | None, measured: str, why: str, unclear: str = "") -> Judgement:
    """A verdict by one of this machine's figures.

    Args:
        holds: None if the figure does not decide; the claim is then open.
        measured: The figure, in words.
        why: The reason for the verdict.
        unclear: The reason if the figure does not decide; `why` if empty.
    """
    if holds is None:
        return Judgement(ClaimStatus.OPEN, measured, unclear or why)
    return Judgement(ClaimStatus.HOLDS if holds else ClaimStatus.NOT_HERE, measured, why)


def corrected(measured: str, why: str) -> Judgement:
    """A verdict by arithmetic on the article's own figures, whatever this machine measures; `measured` may be "–"."""
    return Judgement(ClaimStatus.CORRECTED, measured, why)


def is_longer(ratio: Comparison) -> bool | None:
    """Whether the first takes longer: False also if both take the same time, None if unclear."""
    return None if ratio.verdict is Verdict.UNCLEAR else ratio.verdict is Verdict.SLOWER


def _needs(what: str, *figures: Callable[[Known], object]) -> Callable[[Callable[..., Judgement]], Judge]:
    """Decorate a judge, which then receives `known` and the value of each figure.

    While a figure is missing, the claim is open, and its row says that it needs `what`.
    """

    def decorated(judge: Callable[..., Judgement]) -> Judge:
        def judged(known: Known) -> Judgement:
            found = [figure(known) for figure in figures]
            if any(one is None for one in found):
                return Judgement(ClaimStatus.OPEN, "–", f"Needs {what}: press “Measure what is missing”.")
            return judge(known, *found)

        return judged

    return decorated


_UNCLEAR = "Their repetitions from one session do not show which takes longer: measure again on a quiet machine."
_TOO_NEAR = (
    f"A machine may be {DRIFT:.0%} faster or slower from one day to the next: this is too close to call, or was"
    " measured too few times. Measure again on a quiet machine."
)


@_needs("the race at batch size 32", lambda known: known.cells.get(_of("keras-tensorflow", 32)))
def _cpu_beats_gpu(known: Known, cpu: Standing) -> Judgement:
    gpu = known.cells.get(_of("keras-tensorflow", 32, "gpu"))
    cpu_s = seconds(cpu.quartiles_s[1])
    if gpu is None:
        why = "The CPU's half is measured here; the GPU's half needs a machine with a GPU."
        return Judgement(ClaimStatus.NO_GPU, f"CPU {cpu_s} per epoch", why, recorded_at=32)
    ratio = gpu.repeated.compare(cpu.repeated)
    return decided(
        is_longer(ratio),
        f"CPU {cpu_s}, GPU {seconds(gpu.quartiles_s[1])} per epoch",
        f"The same `fit`, the same data; the GPU takes {times(ratio.ratio)} times as long.",
        _UNCLEAR,
    )


def _two_figures_for_one_thing(known: Known) -> Judgement:
    here = known.cells.get(_of("keras-tensorflow", 32))
    measured = "–"
    if here is not None:
        low, middle, high = map(seconds, here.quartiles_s)
        measured = f"here {middle} (quartiles {low} to {high})"
    return corrected(
        measured,
        f"The same training on the same machine differs by a factor of {11.31 / 4.4:.1f} between two pages, and neither"
        " gives a spread.",
    )


def _numpy_takes_longer(size: int, other: int, why: str) -> Judge:
    @_needs(
        f"NumPy's race at {min(size, other):,} and {max(size, other):,}",
        lambda known: known.compare(_of("numpy", size), _of("numpy", other)),
    )
    def judged(_known: Known, ratio: Comparison) -> Judgement:
        known = ratio.text if ratio.n > 1 else times(ratio.ratio, 3)
        return decided(is_longer(ratio), f"{size:,} takes {known} times as long as {other:,}", why, _UNCLEAR)

    return judged


@_needs(
    "JAX's race at 4,096",
    lambda known: known.cells.get(_of("jax-step", 4096)),
    lambda known: known.cells.get(_of("jax-epoch", 4096)),
)
def _jax_in_a_seventh_of_a_second(_known: Known, step: Standing, epoch: Standing) -> Judgement:
    longer = is_longer(step.repeated.against(published.EPOCH_S["jax-step", "cpu"][4096]))
    return decided(
        None if longer is None else not longer,
        f"{step.text} per epoch",
        f"One call per step, as in the article; the whole epoch in one call takes {seconds(epoch.quartiles_s[1])}.",
        _TOO_NEAR,
    )


def _forty_five_times(known: Known) -> Judgement:
    published_same = published.EPOCH_S["keras-tensorflow", "gpu"][4096] / published.EPOCH_S["jax-step", "cpu"][4096]
    mixed = known.compare(_of("keras-tensorflow", 32), _of("jax-step", 4096))
    same = known.compare(_of("keras-tensorflow", 4096), _of("jax-step", 4096))
    here = (
        "–"
        if mixed is None or same is None
        else f"{mixed.ratio:.0f} mixed, {same.ratio:.1f} with both at 4,096 (Keras on the CPU)"
    )
    return corrected(
        here,
        "6.5 s is at batch size 32 and 0.14 s at 4,096: two changes at once, and fewer steps learn less. With both at"
        f" 4,096, the article's own table gives {published_same:.0f}.",
    )


def _capacity(_known: Known) -> Judgement:
    flop = 2 * 32 * 784 * 128
    least_s = flop / 11e12
    return corrected(
        f"{least_s / 541e-6:.1%} of the peak",
        f"It divides operations by operations per second. The product is {flop / 2e6:.1f} million multiply-adds,"
        f" {flop / 1e6:.1f} MFLOP: {seconds(least_s)} at 11 TFLOP/s, which is {least_s / 541e-6:.1%} of the 541 μs it"
        " took.",
    )


def _overhead_a_step(known: Known) -> Judgement:
    own_s = published.EXPERIMENT_S["learning-rate"][0] / SWEEP_STEPS
    *_, one = known.splits.get(Runtime("keras-tensorflow")) or [None]
    beside = (
        "–"
        if one is None or not one.adds_up
        else f"{seconds(one.step_s - one.parts_s['arithmetic'])} besides the arithmetic (Keras on the CPU here)"
    )
    return corrected(
        beside,
        f"The article's own sweep says otherwise: 63 s over {SWEEP_STEPS:,} steps is {seconds(own_s)} per step,"
        f" {own_s / 210e-6:.0f} times as much.",
    )


def _utilisation(known: Known) -> Judgement:
    shown, warps = (known.occupancy.get(name) for name in OCCUPANCY)
    why = (
        "By its documentation, the `sm` column of `dmon` is the share of time in which at least one kernel ran."
        " Occupancy is in NVML's GPM (SM_UTIL and SM_OCCUPANCY, since Hopper), in DCGM's fields 1002 and 1003, and in"
        " Nsight."
    )
    if shown is None:
        return Judgement(ClaimStatus.NO_GPU, "–", why)
    if warps is None:
        return decided(None, f"{shown.middle:.0%} shown; this chip does not report its occupancy", why)
    verdict = warps.compare(shown).verdict
    return decided(
        None if verdict is Verdict.UNCLEAR else verdict is Verdict.SAME,
        f"{shown.middle:.0%} shown, {warps.middle:.1%} of the warps resident",
        why,
    )


@_needs(
    "a Keras step, whole and operation by operation",
    lambda known: known.operations.get("keras-tensorflow"),
    lambda known: known.steps_s.get(Runtime("keras-tensorflow")),
)
def _fit_is_eager(_known: Known, eager: Mapping[str, Repetitions], step_s: Repetitions) -> Judgement:
    return decided(
        False if is_longer(eager[ALL].compare(step_s)) else None,
        f"a step of `fit` {seconds(step_s.middle)}, op by op {seconds(eager[ALL].middle)}",
        "A whole step of `fit` takes less time than its operations one by one: `fit` traces the step once and runs it"
        " as one graph.",
        "A step of `fit` is not faster here than its operations one by one, so its time does not show how it runs them."
        " It traces the step once.",
    )


@_needs("a JAX step, operation by operation", lambda known: known.operations.get("jax", {}).get(KERNELS))
def _one_fused_kernel(_known: Known, kernels: Repetitions) -> Judgement:
    return decided(
        kernels.middle <= 1,
        f"{kernels.middle:.0f} kernels in one compiled step (CPU)",
        "XLA fuses elementwise work; the products remain library calls or separate loops, which the host launches one"
        " after another.",
    )


@_needs(
    "the race at batch size 1 by JAX in one call and by Numba",
    lambda known: [one for backend in ONE_CALL if (one := known.cells.get(_of(backend, 1))) is not None] or None,
)
def _hard_floor(_known: Known, loops: Sequence[Standing]) -> Judgement:
    n, floor_s = len(loops), 10e-6 * N_TRAIN
    quickest = min(loops, key=lambda one: one.quartiles_s[1])
    low, middle, high = (epoch_s / N_TRAIN for epoch_s in quickest.quartiles_s)
    return decided(
        False if any(one.repeated.against(floor_s, one_of=n).verdict is Verdict.FASTER for one in loops) else None,
        f"{justified(middle, low, high)} for a whole step at batch size 1 by {quickest.cell.runtime.label}",
        "A compiled loop over the batches goes through Python once per epoch, not once per step.",
        "A compiled loop goes through Python once per epoch, not once per step, but only a whole step clearly below 10"
        " μs would refute the claim.",
    )


@_needs(
    "Numba's race at 512 and the peak rates",
    lambda known: known.cells.get(_of("numba", 512)),
    lambda known: known.product_flops_per_s,
)
def _dense_products_are_a_floor(_known: Known, epoch: Standing, flops_per_s: float) -> Judgement:
    floor_s = N_TRAIN // 512 * NETWORK.step_flops(512) / flops_per_s
    verdict = epoch.repeated.against(floor_s, measured=True).verdict
    return decided(
        None if verdict is Verdict.UNCLEAR else verdict is not Verdict.FASTER,
        f"an epoch takes {epoch.text}, its products at this machine's peak {seconds(floor_s)}",
        "81 % of MNIST's pixels are zero: their weights add nothing and do not change. Skipping them gives the same"
        " result with a fifth of the first layer's work. The floor counts shapes, not the work needed; whether skipping"
        " pays depends on the CPU.",
        _TOO_NEAR,
    )


@_needs("the parts of Keras' step", lambda known: known.splits.get(Runtime("keras-tensorflow")))
def _no_overhead_on_cpu(_known: Known, splits: Sequence[Split]) -> Judgement:
    found = Repetitions(tuple(share for one in splits if (share := one.share("arithmetic")) is not None))
    if len(found.values) < len(splits):
        why = "The parts of the step do not add up to the whole here: measure again on a quiet machine."
        return decided(None, "–", why)
    verdict = found.compare(
        Repetitions((ALL_COMPUTE,) * len(splits))
    ).verdict  # a share does not drift with the machine
    return decided(
        {Verdict.SLOWER: True, Verdict.FASTER: False}.get(verdict),
        f"{found.middle:.0%} of a step of `fit` is arithmetic",
        f"It counts as true at {ALL_COMPUTE:.0%} or more. A CPU has no launch to wait for, but any device has the"
        " framework's loop, dispatch and input.",
        f"It counts as true at {ALL_COMPUTE:.0%} or more, and the repetitions do not show whether it is: measure again"
        " on a quiet machine.",
    )


@_needs(
    "the operations with NumPy and with TensorFlow",
    lambda known: known.operations.get("numpy"),
    lambda known: known.operations.get("keras-tensorflow"),
)
def _every_operation_faster(
    known: Known, numpy: Mapping[str, Repetitions], eager: Mapping[str, Repetitions]
) -> Judgement:
    card = known.operations.get("keras-tensorflow, GPU")
    why = (
        "The table compares NumPy with TensorFlow as well as a CPU with a GPU: part of the difference is the library's"
        " dispatch, which any device needs."
    )
    if card is None:
        figure = f"TensorFlow op by op on this CPU: {eager[ALL].middle / numpy[ALL].middle:.1f} times NumPy's"
        return Judgement(ClaimStatus.NO_GPU, figure, why)
    n = len(OPERATIONS)
    quicker = [is_longer(card[one.key].compare(numpy[one.key], one_of=n)) for one in OPERATIONS]
    figure = (
        f"NumPy {seconds(numpy[ALL].middle)}, TensorFlow on the GPU {seconds(card[ALL].middle)}; faster in"
        f" {quicker.count(True)} of {n} operations, unclear in {quicker.count(None)}"
    )
    return decided(None if None in quicker and False not in quicker else all(quicker), figure, why, _UNCLEAR)


def _cuda_is_needed(known: Known) -> Judgement:
    timed = [known.cells[cell] for cell in WITHOUT_CUDA if cell in known.cells]
    if not timed:
        why = (
            "WebGPU reaches every vendor's GPUs without CUDA. Python finds none here, but a browser may: “Your GPU”"
            " trains in it."
        )
        return Judgement(ClaimStatus.NO_GPU, "–", why)
    best = min(timed, key=lambda one: one.quartiles_s[1])
    processor = _of(DEFAULT, BATCH_SIZE)
    ratio = known.compare(best.cell, processor)
    beside = f", {times(ratio.ratio)} times as long as {processor.runtime.label}" if ratio is not None else ""
    return decided(
        False,
        f"{best.cell.runtime.label}: {best.text} per epoch{beside}",
        "WebGPU reaches every vendor's GPUs and needs only the driver that draws the screen.",
    )


A, B = published.OVERHEAD_ARTICLE, published.MACHINES_ARTICLE
ELSEWHERE = "Often said, but in neither article"
CLAIMS = (
    Claim("784→128→10 takes 4.4 s per epoch on a CPU and 6.5 s on a GPU.", A, _cpu_beats_gpu),
    Claim(
        "The 6.5 s are 1,500 training steps.",
        A,
        lambda _: corrected(
            f"{N_TRAIN // 32:,} + {N_VALIDATION // 32} = {N_TRAIN // 32 + N_VALIDATION // 32:,} batches",
            f"The 1,875 graph launches are {N_TRAIN // 32:,} training and {N_VALIDATION // 32} validation batches: the"
            " 6.5 s include a pass over the validation images. All seconds here are for training alone; evaluation is"
            " counted separately.",
        ),
    ),
    Claim("Keras on the CPU at batch size 32 takes 4.4 s; in the table, 11.31 s.", A, _two_figures_for_one_thing),
    Claim(
        "NumPy takes longer at batch size 128 (4.70 s) than at 32 (2.71 s).",
        A,
        _numpy_takes_longer(
            128, 32, "The same arithmetic in a quarter of the steps; the published figure has no spread."
        ),
    ),
    Claim(
        "NumPy slows down again at batch size 4,096.",
        A,
        _numpy_takes_longer(
            4096,
            2048,
            "Published: 1.03 s after 0.84 s, “due to memory pressure”. A batch of 4,096 images is 13 MB; whether that"
            " matters depends on the cache.",
        ),
    ),
    Claim("JAX at batch size 4,096 takes 0.14 s per epoch.", A, _jax_in_a_seventh_of_a_second),
    Claim("That is 45 times faster than Keras on the GPU.", A, _forty_five_times),
    Claim("The CPU is faster on every single operation: 751 μs against 4,447 μs.", A, _every_operation_faster),
    Claim("On the CPU a compiled step is all compute, no overhead.", A, _no_overhead_on_cpu),
    Claim("The product uses 0.00003 % of the GPU's capacity.", A, _capacity),
    Claim(
        "Below 500,000 parameters and a batch size of 256, a fast CPU beats a GPU.",
        A,
        lambda _: Judgement(
            ClaimStatus.OPEN, "–", "Needs the race on a machine with a GPU, at several widths.", recorded_at=256
        ),
    ),
    Claim("A step takes about 210 μs, 0.2 μs of it arithmetic.", B, _overhead_a_step),
    Claim(
        "The sweep of four models makes 22,500 steps.",
        B,
        lambda _: corrected(
            f"{SWEEP_STEPS:,} training steps",
            "A fifth of the 60,000 images is held back for validation, so an epoch has 1,500 training steps, not"
            " 1,875.",
        ),
    ),
    Claim(
        "32×784 by 784×128 is about 6.4 million multiply-adds.",
        B,
        lambda _: corrected(
            f"{32 * 784 * 128 / 1e6:.1f} million",
            "Each multiply-add is two operations: 3.2 million multiply-adds are 6.4 million operations, not 6.4 million"
            " multiply-adds.",
        ),
    ),
    Claim("`nvidia-smi dmon -s u` shows the occupancy.", B, _utilisation),
    Claim("TensorFlow under Keras runs each operation eagerly.", B, _fit_is_eager),
    Claim("XLA compiles the whole computation into one fused kernel.", B, _one_fused_kernel),
    Claim("About 10 μs of Python per step are a hard floor.", B, _hard_floor),
    Claim(
        "c3-highcpu-22 costs $0.77 per hour.",
        B,
        lambda _: decided(
            None,
            "$0.936 per hour, listed on 2025-03-06",
            "That list gives $0.936 on demand in us-central1. The price when the article was written can be neither"
            " measured nor calculated, so each cost here carries its price's date.",
        ),
    ),
    Claim("An epoch takes at least as long as its dense matrix products.", ELSEWHERE, _dense_products_are_a_floor),
    Claim("You need CUDA to see whether your GPU is slower.", ELSEWHERE, _cuda_is_needed),
)


# By status: CSS class, verb for one claim and for several, and the basis of the verdict.
_WORDS = {
    ClaimStatus.HOLDS: ("holds", "holds here", "hold here", "measured on this machine"),
    ClaimStatus.NOT_HERE: ("not-here", "does not hold here", "do not hold here", "measured on this machine"),
    ClaimStatus.CORRECTED: ("corrected", "is corrected by arithmetic", "are corrected by arithmetic", "by arithmetic"),
    ClaimStatus.OPEN: ("open", "is open", "are open", ""),
    ClaimStatus.NO_GPU: ("open", "needs a GPU", "need a GPU", ""),
}


class Claims(Controls):
    AGAIN = "Measure what is missing", "A few minutes"


def measure(store: Store) -> Callable[[Claims], Asked]:
    """On a press, measure what the claims need and `store` lacks."""
    return lambda at: Asked(at, lambda pressed: ((store.records(), pressed), measure_missing if pressed else nothing))


def draw(shown: Shown) -> Drawing:
    (stored, pressed), now = shown.known, shown.now
    records = [*stored, *now.items]
    done, total = progress(records)
    state = now.state if pressed else State.SAVED if done == total else State.NOT_RUNNING
    words = now.note or f"{done} of {total} measurements made"
    line = layout.state_line(state, done, total, words, now.problem)
    here = known(usable_runtimes(), records)
    judged = [claim.judge(here) for claim in CLAIMS]
    text = sentence(judged)
    return Drawing(layout.said(text) + line, text, table(CLAIMS, judged) + layout.disturbed(stood_on(records)))


def sentence(judged: Sequence[Judgement]) -> str:
    """Count the claims by verdict, in words.

    >>> found = ClaimStatus.CORRECTED, ClaimStatus.HOLDS, ClaimStatus.HOLDS
    >>> sentence([Judgement(status, "", "") for status in found])
    'Of 3 claims: 2 hold here, 1 is corrected by arithmetic.'
    """
    verdicts = [one.verdict for one in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in ClaimStatus}
    words = ", ".join(f"{n} {_WORDS[verdict][1 if n == 1 else 2]}" for verdict, n in counts.items() if n)
    return f"Of {len(verdicts)} claims: {words}."


def epoch_note(batch_size: int) -> str:
    """Seconds per epoch on each recorded GPU, in sentences; empty if this machine has a GPU."""
    said = (
        f"{named(machine)}: an epoch at batch size {batch_size:,} takes {'; '.join(took)}."
        for machine in recorded_gpus()
        if (
            took := [
                f"{one.words} by {runtime.short_label}"
                for runtime in gpu_runtimes(machine)
                if (one := machine.epoch(runtime, batch_size)) is not None
            ]
        )
    )
    return " ".join(said)


def table(claims: Sequence[Claim], judged: Sequence[Judgement]) -> str:
    """HTML: a row per claim under its article's heading. Both sequences are in the same order."""
    rows, source = [], ""
    for claim, one in zip(claims, judged, strict=True):
        if claim.source != source:
            source = claim.source
            rows.append([inline(source)])
        verdict = (
            f'<span class="claim claim-{_WORDS[one.verdict][0]}">{one.verdict.value}</span>'
            f"<br><small>{_WORDS[one.verdict][3]}</small>"
        )
        recorded = epoch_note(one.recorded_at) if one.recorded_at is not None else ""
        rows.append([inline(claim.text), inline(one.measured), verdict, inline(f"{one.why} {recorded}".rstrip())])
    return markup.table(["claimed", "measured here, or corrected", "verdict", "why"], rows, "claims")
