"""The race: seconds per epoch of every runtime at every batch size, in turns, kept, and resumed where it
stopped.

A repetition measures one cell once: a short training whose first epoch warms up and is left out, and whose later epochs
are the blocks. Where an epoch takes long, a part of it is measured and scaled, and the cell says so. All cells are
measured once in a random order before any is measured again, so that a slow minute of the machine does not meet one of
them alone.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lib.backends.base import Epoch, FirstCall, Steps
from lib.backends.registry import Runtime, versions
from lib.spec import N_TRAIN, Network, Training
from lib.storage.current import current
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.diagnosis import Finding, Observed, findings
from lib.timing.disturbance import Disturbance
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Disturbed, Progress, Restarted
from lib.workers.notes import Note, note_of
from lib.workers.queue import Request

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
        return f"{self.runtime.label}, batch size {self.batch_size:,}"

    @property
    def training(self) -> Training:
        return Training(self.network, 0.1 if self.batch_size >= 32 else 0.01, self.batch_size, EPOCHS)

    @property
    def subject(self) -> dict[str, str | int | float]:
        hidden = self.network.label
        return {
            "backend": self.runtime.backend,
            "device": self.runtime.device,
            "batch_size": self.batch_size,
            "hidden": hidden,
        }


@dataclass(frozen=True)
class Repetition:
    """What one repetition of a cell gave."""

    cell: Cell
    record: Record
    disturbance: Disturbance


def records_and_notes(events: Iterator[Repetition | Note]) -> Iterator[Record | Note]:
    """What a race tells, with each repetition's record in its place."""
    for one in events:
        yield one.record if isinstance(one, Repetition) else one


def plan(cells: Sequence[Cell], cached: Sequence[Record], rounds: int = ROUNDS, seed: int = 0) -> list[Cell]:
    """The repetitions still to make, round by round in random order, without those that are kept already."""
    done = {cell: len(records_of(cell, cached)) for cell in cells}
    rng = np.random.default_rng(seed)
    order = [[cells[i] for i in rng.permutation(len(cells))] for _ in range(rounds)]
    return [cell for number, turn in enumerate(order) for cell in turn if done[cell] <= number]


def records_of(cell: Cell, records: Sequence[Record]) -> list[Record]:
    """The repetitions of a cell that still count: this machine, this code, these versions."""
    return current(records, cell.subject, cell.runtime.backend)


def race(
    repetitions: Sequence[Cell],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    budget_s: float = BUDGET_S,
) -> Iterator[Repetition | Note]:
    """Make the repetitions, and say what is going on; each is kept as soon as it is made, so a stop loses at most the
    one that is running."""
    for cell in repetitions:
        yield Note(cell.words)
        with engine.watch(cell.runtime) as watch:
            timed = yield from _timed(cell, engine, cancel, request, budget_s)
        if cancel.is_set() or not timed.epoch_s:
            return
        assert watch.disturbance is not None, "set at the end of the block"
        blocks = Measurement(tuple(timed.epoch_s), N_TRAIN // cell.batch_size, Ended.CAP, warnings=timed.warnings)
        measured = watch.marked(blocks)
        subject = cell.subject | {
            "scaled": int(timed.scaled),
            "evaluation_s": timed.evaluation_s,
            "first_call_s": timed.first_call_s,
        }
        record = Record.of(Kind.RACE, subject, measured, versions(cell.runtime.backend))
        store.add(record)
        yield Repetition(cell, record, watch.disturbance)


@dataclass(frozen=True)
class _Timed:
    """Seconds of each timed epoch of one repetition, whether they are scaled from parts, of one evaluation (0: none was
    made), and of the first call."""

    epoch_s: list[float]
    scaled: bool
    evaluation_s: float
    first_call_s: float = 0.0
    warnings: tuple[str, ...] = ()


def _timed(
    cell: Cell, engine: Engine, cancel: Cancel, request: Request, budget_s: float
) -> Generator[Note, None, _Timed]:
    stop = Cancel()  # when it is cancelled, or enough is measured
    epochs: list[float] = []
    evaluations: list[float] = []
    parts: list[float] = []
    steps, part_s, chunks, train_s, first_call_s = 0, 0.0, 0, 0.0, 0.0
    beside: tuple[str, ...] = ()
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
            long = len(parts) >= PARTS and parts[-1] > budget_s
        elif isinstance(event, Epoch):
            epochs.append(event.train_s)
            evaluations.append(event.evaluation_s)
            long = len(epochs) >= 3 and train_s > budget_s
        elif isinstance(event, FirstCall):
            first_call_s = event.first_call_s
            continue
        elif isinstance(message, Restarted):
            epochs, evaluations, parts = [], [], []
            steps, part_s, chunks, train_s = 0, 0.0, 0, 0.0
            continue
        else:
            beside = (message.why,) if isinstance(message, Disturbed) else beside
            continue
        if long:
            stop.set()
    evaluation_s = float(np.median(evaluations)) if evaluations else 0.0
    scaled = len(epochs) < 2
    return _Timed(parts if scaled else epochs[1:], scaled, evaluation_s, first_call_s, beside)


@dataclass(frozen=True)
class Standing:
    """All repetitions of a cell together."""

    cell: Cell
    epoch_s: tuple[float, ...]
    repetition_s: tuple[
        float, ...
    ]  # the median of each repetition: what one has in common is told from what varies between them
    scaled: bool
    warnings: tuple[str, ...]
    measured_at: str
    evaluation_s: float = 0.0  # of one pass over the validation images; 0: not measured

    @property
    def repetitions(self) -> int:
        return len(self.repetition_s)

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        low, middle, high = np.percentile(self.epoch_s, [25, 50, 75])
        return float(low), float(middle), float(high)

    @property
    def spread(self) -> float:
        low, middle, high = self.quartiles_s
        return (high - low) / middle

    def findings(self, floor_s: float | None = None) -> list[Finding]:
        """What is to be said of this cell. `floor_s`: the least seconds of an epoch's arithmetic on this device."""
        steps = N_TRAIN // self.cell.batch_size
        step_s = self.quartiles_s[1] / steps
        arithmetic_s = None if floor_s is None else floor_s / steps
        return findings(
            Observed(self.cell.runtime.device, step_s=step_s, arithmetic_s=arithmetic_s, spread=self.spread)
        )


def standings(cells: Sequence[Cell], records: Sequence[Record]) -> dict[Cell, Standing]:
    """What is known of each cell that was measured."""
    found = {}
    for cell in cells:
        repetitions = records_of(cell, records)
        if repetitions:
            seconds = tuple(second for repetition in repetitions for second in repetition.block_s)
            warnings = tuple(dict.fromkeys(warning for repetition in repetitions for warning in repetition.warnings))
            scaled = any(repetition.subject.get("scaled") for repetition in repetitions)
            evaluations = [s for repetition in repetitions if (s := float(repetition.subject.get("evaluation_s", 0.0)))]
            evaluation_s = float(np.median(evaluations)) if evaluations else 0.0
            repetition_s = tuple(repetition.measurement.median_s for repetition in repetitions)
            found[cell] = Standing(
                cell, seconds, repetition_s, scaled, warnings, repetitions[-1].measured_at, evaluation_s
            )
    return found


def all_cells(runtimes: Sequence[Runtime], batch_sizes: Sequence[int] = BATCH_SIZES) -> list[Cell]:
    return [Cell(runtime, size) for runtime in runtimes for size in batch_sizes]


def time_left_s(repetitions: Sequence[Cell], known: dict[Cell, Standing]) -> float | None:
    """What the repetitions will take, from those made so far; None before there is one."""
    if not known:
        return None
    spent = {cell: min(EPOCHS * standing.quartiles_s[1], BUDGET_S + PART_S) + 0.3 for cell, standing in known.items()}
    usual = float(np.median(list(spent.values())))
    return sum(spent.get(cell, usual) for cell in repetitions)
