"""The race: seconds per epoch of every runtime at every batch size, stored, and resumed where it stopped.

A repetition measures one cell once: a short training whose first epoch is a warm-up and left out, and whose other
epochs are the blocks. Where an epoch takes long, a part of it is measured and scaled, and the record says so. All cells
are measured once in random order before any is measured again, so that a slow minute of the machine does not affect
one of them alone.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import N_TRAIN, Network, Training
from lib.sweeps.experiments.failures import Marked
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Disturbed, Note, Progress, Restarted, note_of
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Repetitions
from lib.timing.diagnosis import Finding, Observed, findings
from lib.timing.disturbance import Disturbance
from lib.timing.measurement import Ended, Measurement

NETWORK = Network((128,))
BATCH_SIZES = (1, 32, 128, 512, 1024, 2048, 4096)
ROUNDS = 3
EPOCHS = 4  # a repetition: one not timed, three timed
BUDGET_S = 3.0  # of training in a repetition, once two epochs are timed
PART_S = 0.5  # of steps, where a whole epoch would take longer than the budget
PARTS = 3


@dataclass(frozen=True, order=True)
class Cell:
    """A runtime at a batch size, with the article's network or another."""

    runtime: Runtime
    batch_size: int
    network: Network = NETWORK

    @property
    def words(self) -> str:
        """Its name in a note: runtime and batch size."""
        return f"{self.runtime.label}, batch size {self.batch_size:,}"

    @property
    def training(self) -> Training:
        """The training of one repetition, of `EPOCHS` epochs; the learning rate is 0.1, or 0.01 below batch size 32."""
        return Training(self.network, 0.1 if self.batch_size >= 32 else 0.01, self.batch_size, EPOCHS)

    @property
    def subject(self) -> dict[str, str | int | float]:
        """What identifies its records."""
        return {
            **self.runtime.subject,
            "batch_size": self.batch_size,
            "hidden": self.network.label,
        }


@dataclass(frozen=True)
class Repetition:
    """A cell measured once: its record, and what disturbed the measurement."""

    cell: Cell
    record: Record
    disturbance: Disturbance


def records_and_notes(events: Iterator[Repetition | Record | Note]) -> Iterator[Record | Note]:
    """The events of a race, with each repetition replaced by its record; cells that failed are records already."""
    return (one.record if isinstance(one, Repetition) else one for one in events)


def plan(cells: Sequence[Cell], cached: Sequence[Record], rounds: int = ROUNDS, seed: int = 0) -> list[Cell]:
    """The repetitions still to be made, round by round, each round in a random order of its own.

    Args:
        cells: What is raced.
        cached: Stored records; a cell with n valid ones is left out of the first n rounds.
        rounds: Repetitions of each cell.
        seed: Of the random orders; the same seed gives the same orders.
    """
    done = {cell: len(records_of(cell, cached)) for cell in cells}
    rng = np.random.default_rng(seed)
    order = [[cells[i] for i in rng.permutation(len(cells))] for _ in range(rounds)]
    return [cell for number, turn in enumerate(order) for cell in turn if done[cell] <= number]


def records_of(cell: Cell, records: Sequence[Record]) -> list[Record]:
    """The valid repetitions of a cell, oldest first: of this machine, this code and these versions."""
    return current(records, Kind.RACE, cell.subject, cell.runtime)


def race(
    repetitions: Sequence[Cell],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    budget_s: float = BUDGET_S,
) -> Iterator[Repetition | Record | Note]:
    """Make the repetitions in this order, each stored as soon as it is made; a stop loses at most the one that runs.

    A cell that fails on a graphics card is marked, and the others go on: see `lib.sweeps.experiments.failures`.

    Args:
        repetitions: From `plan`; a cell occurs once for each repetition.
        engine: Trains them.
        store: Where the records go.
        cancel: Ends the race when it is set.
        request: Place in the queue of all that runs on this machine.
        budget_s: Seconds of training after which a repetition ends, once two epochs are timed; an epoch that takes
            longer than this by its parts is not trained to its end, but scaled from them.

    Yields:
        Each repetition as it is stored, records of kind `FAILURE`, and notes on what is measured or waited for.

    Raises:
        WorkerDied: A worker on a CPU ended while it trained; the text says what to do.
        TrainingFailed: The backend could not train on a CPU; the text says why.
    """
    marked = Marked(store)
    for cell in repetitions:
        if cancel.is_set():
            return
        once = partial(_race_once, cell, engine, store, cancel, request, budget_s)
        yield from marked.row(cell.words, cell.runtime, cell.subject, once)


def _race_once(
    cell: Cell, engine: Engine, store: Store, cancel: Cancel, request: Request, budget_s: float
) -> Iterator[Repetition | Note]:
    yield Note(cell.words)
    with engine.watch(cell.runtime) as watch:
        timed = yield from _timed(cell, engine, cancel, request, budget_s)
    if cancel.is_set() or not timed.epoch_s:
        return
    assert watch.disturbance is not None, "set at the end of the block"
    blocks = Measurement(tuple(timed.epoch_s), N_TRAIN // cell.batch_size, Ended.CAP, warnings=timed.warnings)
    subject = (
        cell.subject
        | {
            "scaled": int(timed.scaled),
            "evaluation_s": timed.evaluation_s,
            "first_call_s": timed.first_call_s,
        }
        | ({} if timed.first_accuracy is None else {"first_accuracy": timed.first_accuracy})
    )
    record = Record.of(Kind.RACE, subject, watch.marked(blocks), versions(cell.runtime))
    store.add(record)
    yield Repetition(cell, record, watch.disturbance)


@dataclass(frozen=True)
class _Timed:
    """The seconds of one repetition."""

    epoch_s: list[float]  # of each timed epoch
    scaled: bool  # … from parts of it
    evaluation_s: float  # of one pass over the validation images; 0: none was made
    first_call_s: float
    first_accuracy: float | None  # on the validation images after the first epoch; None: none was trained to its end
    warnings: tuple[str, ...]


def _timed(
    cell: Cell, engine: Engine, cancel: Cancel, request: Request, budget_s: float
) -> Generator[Note, None, _Timed]:
    stop = Cancel()  # when it is cancelled, or enough is measured
    epochs: list[float] = []
    evaluations: list[float] = []
    parts: list[float] = []
    steps, part_s, chunks, train_s, first_call_s = 0, 0.0, 0, 0.0, 0.0
    first_accuracy: float | None = None
    beside: tuple[str, ...] = ()
    with cancel.calling(stop.set):
        for message in engine.run(cell.runtime, [cell.training], stop, request=request):
            if (note := note_of(message, cell.words)) is not None:
                yield note
            event = message.event if isinstance(message, Progress) else None
            if isinstance(event, Steps):
                chunks, train_s = chunks + 1, train_s + event.train_s
                if chunks > 1:  # the first hand-over warms up
                    steps, part_s = steps + len(event.losses), part_s + event.train_s
                if part_s >= PART_S:
                    parts.append(part_s / steps * (N_TRAIN // cell.batch_size))
                    steps, part_s = 0, 0.0
                if len(parts) >= PARTS and parts[-1] > budget_s:
                    stop.set()
            elif isinstance(event, Epoch):
                if not epochs:
                    first_accuracy = event.validation_accuracy
                epochs.append(event.train_s)
                evaluations.append(event.evaluation_s)
                if len(epochs) >= 3 and train_s > budget_s:
                    stop.set()
            elif isinstance(event, FirstCall):
                first_call_s = event.first_call_s
            elif isinstance(message, Restarted):
                epochs, evaluations, parts = [], [], []
                steps, part_s, chunks, train_s = 0, 0.0, 0, 0.0
            elif isinstance(message, Disturbed):
                beside = (message.why,)
    evaluation_s = float(np.median(evaluations)) if evaluations else 0.0
    scaled = len(epochs) < 2
    return _Timed(parts if scaled else epochs[1:], scaled, evaluation_s, first_call_s, first_accuracy, beside)


@dataclass(frozen=True)
class Standing:
    """All repetitions of a cell together; `epoch_s` holds the timed epochs of all, in the order of measurement."""

    cell: Cell
    epoch_s: tuple[float, ...]
    repetition_s: tuple[float, ...]  # the median of each: what varies between repetitions is seen in these alone
    scaled: bool
    warnings: tuple[str, ...]
    measured_at: str
    evaluation_s: float = 0.0  # of one pass over the validation images; 0: not measured
    first_accuracy: float | None = None  # on the validation images after the first epoch
    repeated_at: tuple[str, ...] = ()  # when each repetition was stored; empty: all in one session

    @property
    def repeated(self) -> Repetitions:
        """What it is compared by: the median of each repetition, and when it was made."""
        return Repetitions(self.repetition_s, self.repeated_at)

    @property
    def repetitions(self) -> int:
        """How many repetitions were made."""
        return len(self.repetition_s)

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        """First quartile, median and third quartile of all timed epochs, in seconds."""
        low, middle, high = np.percentile(self.epoch_s, [25, 50, 75])
        return float(low), float(middle), float(high)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        low, middle, high = self.quartiles_s
        return (high - low) / middle

    def findings(self, floor_s: float | None = None) -> list[Finding]:
        """What slows this cell down.

        Args:
            floor_s: The least seconds that an epoch's arithmetic takes on this device; None where the peak rates were
                not measured.
        """
        steps = N_TRAIN // self.cell.batch_size
        arithmetic_s = None if floor_s is None else floor_s / steps
        step_s = self.quartiles_s[1] / steps
        return findings(
            Observed(self.cell.runtime.device, step_s=step_s, arithmetic_s=arithmetic_s, spread=self.spread)
        )


def standings(cells: Sequence[Cell], records: Sequence[Record]) -> dict[Cell, Standing]:
    """The standing of each cell that has a valid repetition, in the order of `cells`."""
    return {cell: _standing(cell, found) for cell in cells if (found := records_of(cell, records))}


def _standing(cell: Cell, repetitions: Sequence[Record]) -> Standing:
    evaluations = [s for repetition in repetitions if (s := float(repetition.subject.get("evaluation_s", 0.0)))]
    accuracies = [
        float(found) for repetition in repetitions if (found := repetition.subject.get("first_accuracy")) is not None
    ]
    return Standing(
        cell,
        tuple(second for repetition in repetitions for second in repetition.block_s),
        tuple(repetition.measurement.median_s for repetition in repetitions),
        any(repetition.subject.get("scaled") for repetition in repetitions),
        tuple(dict.fromkeys(warning for repetition in repetitions for warning in repetition.warnings)),
        repetitions[-1].measured_at,
        float(np.median(evaluations)) if evaluations else 0.0,
        float(np.median(accuracies)) if accuracies else None,
        tuple(repetition.measured_at for repetition in repetitions),
    )


def all_cells(runtimes: Sequence[Runtime], batch_sizes: Sequence[int] = BATCH_SIZES) -> list[Cell]:
    """Every runtime at every batch size, with the article's network."""
    return [Cell(runtime, size) for runtime in runtimes for size in batch_sizes]
