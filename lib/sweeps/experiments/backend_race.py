"""The race: seconds per epoch of every runtime at every batch size, stored and resumable.

A repetition measures one cell once: a short training whose first epoch is a discarded warm-up and whose other epochs
are the blocks. If an epoch takes long, only a part is measured and scaled, and the record says so. All cells are
measured once in random order before any is repeated, so a slow minute on the machine does not fall on one cell alone.

The number of epochs to an accuracy makes seconds per epoch comparable between batch sizes. All backends take the same
steps from the same start (tests check that), so epochs are counted once, with JAX, and multiplied by each backend's own
seconds. The learning rate is chosen on one seed and evaluated on three others. Accuracy is evaluated only after each
epoch, so the number of epochs, and with it the time, is an upper bound.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from lib.formatting import justified
from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.registry import BACKENDS, PRECISIONS, Runtime, usable_runtimes, versions
from lib.model.data.mnist import Facts
from lib.model.spec import N_TRAIN, Network, Training
from lib.sweeps.measuring import ALL_BUT_THE_CPU, Attempts
from lib.sweeps.storage.records import Key, Kind, Record, current, undisturbed
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Job, Note, Progress, Restarted, note_of
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import DRIFT, Repetitions
from lib.timing.measurement import Ended, Measurement, Watch

NETWORK = Network((128,))
BATCH_SIZES = (1, 32, 128, 512, 1024, 2048, 4096)
ROUNDS = 3
EPOCHS = 4  # per repetition: one untimed, three timed
BUDGET_S = 3.0  # of training per repetition, once two epochs are timed
PART_S = 0.5  # length of a timed part, where a whole epoch exceeds the budget
PARTS = 3


@dataclass(frozen=True, order=True)
class Cell:
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
        return {**self.runtime.subject, "batch_size": self.batch_size, "hidden": self.network.label}


def plan(cells: Sequence[Cell], cached: Sequence[Record], rounds: int = ROUNDS, seed: int = 0) -> list[Cell]:
    """Return the remaining repetitions round by round, each round in its own random order.

    Args:
        cells: Cells to race.
        cached: Stored records; a cell with n valid ones skips the first n rounds.
        rounds: Repetitions of each cell.
        seed: Seed of the random orders.
    """
    done = {cell: len(records_of(cell, cached)) for cell in cells}
    rng = np.random.default_rng(seed)
    order = [[cells[i] for i in rng.permutation(len(cells))] for _ in range(rounds)]
    return [cell for number, turn in enumerate(order) for cell in turn if done[cell] <= number]


def records_of(cell: Cell, records: Sequence[Record]) -> list[Record]:
    """Return a cell's repetitions from this machine, code and library versions, oldest first."""
    return current(records, Kind.RACE, cell.subject, cell.runtime)


def fastest_here() -> Runtime:
    """Return the `fastest` runtime according to this machine's stored results."""
    store = Store()
    return _fastest(store.path, store.stamp())


@lru_cache(maxsize=1)
def _fastest(path: Path | None, _stamp: tuple) -> Runtime:
    return fastest(Store(path).records(Kind.RACE))


def fastest(records: Sequence[Record]) -> Runtime:
    """Return the runtime with the shortest epochs, at the network and batch size where most runtimes were timed.

    The articles' size wins ties. The default runtime stays unless another is faster by more than `DRIFT`: a busy moment
    must not change what trains every experiment.

    Args:
        records: Race records from this machine.
    """
    able = [one for one in usable_runtimes() if BACKENDS[one.backend].whole_epochs and one.precision == PRECISIONS[0]]
    usual = NETWORK.label, 32
    found: dict[tuple, dict[Runtime, float]] = {usual: {}}
    for runtime in able:
        for one in current(records, Kind.RACE, runtime.subject, runtime):
            cell = one.subject["hidden"], one.subject["batch_size"]
            found.setdefault(cell, {})[runtime] = one.measurement.median_s
    most = max(found.values(), key=len)
    best = min(most, key=most.__getitem__, default=Runtime())
    return best if most.get(best, 0.0) * (1 + DRIFT) < most.get(Runtime(), np.inf) else Runtime()


def race(
    repetitions: Sequence[Cell],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    budget_s: float = BUDGET_S,
) -> Iterator[Record | Note]:
    """Run the repetitions in order, storing each on completion; a stop loses at most the running one.

    A cell that fails on a GPU is marked, and the others continue: see `lib.sweeps.measuring.Attempts`.

    Args:
        repetitions: From `plan`; a cell occurs once per repetition.
        engine: Trains them.
        store: Where records are stored.
        cancel: Ends the race when set.
        request: Place in this machine's queue.
        budget_s: Seconds of training after which a repetition ends, once two epochs are timed. If the parts show that
            an epoch takes longer than this, it is scaled from them instead of trained to its end.

    Yields:
        Each repetition as it is stored, records of kind `FAILURE`, and notes on progress and waiting.

    Raises:
        TrainingFailed: The backend could not train on a CPU; the message says why.
    """
    attempts = Attempts(ALL_BUT_THE_CPU)
    for cell in repetitions:
        if cancel.is_set():
            return
        once = partial(_race_once, cell, engine, store, cancel, request, budget_s)
        yield from attempts.marked(store, cell.words, cell.runtime, cell.subject, once)


def _race_once(
    cell: Cell, engine: Engine, store: Store, cancel: Cancel, request: Request, budget_s: float
) -> Iterator[Record | Note]:
    yield Note(cell.words)
    watch = Watch(cell.runtime.on_gpu)
    epoch_s, about = yield from _timed(cell, engine, cancel, request, budget_s)
    if cancel.is_set() or not epoch_s:
        return
    blocks = Measurement(tuple(epoch_s), N_TRAIN // cell.batch_size, Ended.CAP)
    record = Record.of(Kind.RACE, cell.subject | about, watch.marked(blocks), versions(cell.runtime))
    store.add(record)
    yield record


def _timed(
    cell: Cell, engine: Engine, cancel: Cancel, request: Request, budget_s: float
) -> Generator[Note, None, tuple[list[float], dict[str, float]]]:
    """Return the seconds of each timed epoch, and further fields of the record.

    `scaled` is 1 if the epochs are scaled from parts. `evaluation_s` is one pass over the validation images, 0 if there
    was none. `first_accuracy` is the validation accuracy after the first epoch, missing if no epoch was completed.
    """
    stop = Cancel()  # set on cancellation, or when enough is measured
    epochs, parts, part = list[Epoch](), list[float](), list[Steps]()  # `part`: reports since the last completed part
    warm, train_s, first_call_s = False, 0.0, 0.0
    with cancel.calling(stop.set):
        for message in engine.run([Job(cell.runtime, (cell.training,))], stop, request):
            if (note := note_of(message, cell.words)) is not None:
                yield note
            event = message.event if isinstance(message, Progress) else None
            if isinstance(event, Steps):
                part += [event] if warm else []  # the first report is the warm-up
                warm, train_s = True, train_s + event.train_s
                if (part_s := sum(one.train_s for one in part)) >= PART_S:
                    parts.append(part_s / sum(len(one.losses) for one in part) * (N_TRAIN // cell.batch_size))
                    part = []
                if len(parts) >= PARTS and parts[-1] > budget_s:
                    stop.set()
            elif isinstance(event, Epoch):
                epochs.append(event)
                if len(epochs) >= 3 and train_s > budget_s:
                    stop.set()
            elif isinstance(event, FirstCall):
                first_call_s = event.first_call_s
            elif isinstance(message, Restarted):
                epochs, parts, part, warm, train_s = [], [], [], False, 0.0
    scaled = len(epochs) < 2
    about: dict[str, float] = {"scaled": int(scaled), "evaluation_s": 0.0, "first_call_s": first_call_s}
    if epochs:
        about["evaluation_s"] = float(np.median([epoch.evaluation_s for epoch in epochs]))
        about["first_accuracy"] = epochs[0].validation_accuracy
    return parts if scaled else [epoch.train_s for epoch in epochs[1:]], about


@dataclass(frozen=True)
class Standing:
    """A cell's repetitions combined: only undisturbed ones, if there are any.

    `epoch_s` holds their timed epochs, in order of measurement.
    """

    cell: Cell
    epoch_s: tuple[float, ...]
    repetition_s: tuple[float, ...]  # median of each; only these show the variation between repetitions
    scaled: bool
    warnings: tuple[str, ...]
    measured_at: str
    evaluation_s: float = 0.0  # one pass over the validation images; 0: not measured
    first_accuracy: float | None = None  # validation accuracy after the first epoch
    repeated_at: tuple[str, ...] = ()  # when each repetition was stored; empty: all in one session
    repetitions: int = 1  # including disturbed ones

    @property
    def repeated(self) -> Repetitions:
        """The repetitions' medians and times of measurement, for comparisons."""
        return Repetitions(self.repetition_s, self.repeated_at)

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        """First quartile, median and third quartile of all timed epochs."""
        low, middle, high = np.percentile(self.epoch_s, [25, 50, 75])
        return float(low), float(middle), float(high)

    @property
    def text(self) -> str:
        """The median, with only as many digits as its quartiles justify."""
        low, middle, high = self.quartiles_s
        return justified(middle, low, high)

    @property
    def spread(self) -> float:
        low, middle, high = self.quartiles_s
        return (high - low) / middle


def standings(cells: Sequence[Cell], records: Sequence[Record]) -> dict[Cell, Standing]:
    return {cell: _standing(cell, found) for cell in cells if (found := records_of(cell, records))}


def _standing(cell: Cell, all_of_it: Sequence[Record]) -> Standing:
    repetitions = undisturbed(all_of_it)
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
        len(all_of_it),
    )


def all_cells(
    runtimes: Sequence[Runtime], batch_sizes: Sequence[int] = BATCH_SIZES, network: Network = NETWORK
) -> list[Cell]:
    return [Cell(runtime, size, network) for runtime in runtimes for size in batch_sizes]


TUNED_ON = 0
SEEDS = (1, 2, 3)
RATES_TRIED = {
    1: (0.01, 0.03),
    32: (0.1, 0.3),
    128: (0.1, 0.3),
    512: (0.3, 1.0),
    1024: (0.3, 1.0),
    2048: (0.3, 1.0),
    4096: (0.3, 1.0),
}
EPOCHS_TRIED = {1: 3, 32: 8, 128: 12, 512: 20, 1024: 20, 2048: 30, 4096: 30}
TARGETS = (0.9, 0.92, 0.94, 0.95, 0.96, 0.97)

Learned = Mapping[Training, tuple[float, ...]]  # validation accuracy after each epoch


@dataclass(frozen=True)
class Needed:
    """Epochs to a target accuracy at one batch size, over the evaluation seeds."""

    rate: float  # learning rate, chosen on the seed `TUNED_ON`
    epochs: tuple[int | None, ...]  # per run; None if it did not reach the target in `tried` epochs
    tried: int

    @property
    def reached(self) -> tuple[int, ...]:
        """Epochs of the runs that reached the target, fewest first."""
        return tuple(sorted(epochs for epochs in self.epochs if epochs is not None))

    @property
    def words(self) -> str:
        counts = ", ".join(map(str, self.reached)) or "none"
        return (
            f"{len(self.reached)} of {len(self.epochs)} runs reached it within {self.tried} epochs ({counts}), at"
            f" learning rate {self.rate:g}"
        )


def trials(network: Network) -> list[Training]:
    return [
        Training(network, rate, size, EPOCHS_TRIED[size], seed)
        for size in RATES_TRIED
        for rate in RATES_TRIED[size]
        for seed in (TUNED_ON, *SEEDS)
    ]


def learned(store: Store, network: Network, facts: Facts | None) -> dict[Training, tuple[float, ...]]:
    """Return the validation accuracy after each epoch, for the trials stored for these images.

    Args:
        store: Where to look up the curves.
        network: The network to train.
        facts: The images; None while unknown, which finds nothing.
    """
    if facts is None:
        return {}
    runtime = Runtime()
    cached = {t: store.get(Key(t, runtime, facts.digest, versions(runtime))) for t in trials(network)}
    return {t: tuple(epoch.validation_accuracy for epoch in c.epochs) for t, c in cached.items() if c is not None}


def learn(
    todo: list[Training], engine: Engine, store: Store, cancel: Cancel, request: Request, pooled: bool = True
) -> Iterator[tuple[Training, tuple[float, ...]] | Note]:
    """Train the trials, storing each on completion.

    Args:
        todo: Trials to train.
        engine: Trains them.
        store: Where curves are looked up and stored.
        cancel: Ends the trainings when set.
        request: Place in this machine's queue.
        pooled: Whether several processes may be used where that is faster.

    Yields:
        Each finished training with its validation accuracy after each epoch, and notes on progress and waiting.
    """
    options = Options(processes=pooled)
    for update in updates([Item(training) for training in todo], engine, store, cancel, options, request):
        if isinstance(update, Finished):
            training = update.item.training
            yield training, tuple(epoch.validation_accuracy for epoch in update.curve.epochs)
            yield Note(f"counting epochs to the target accuracy, batch size {training.batch_size:,}")
        elif (note := note_of(update)) is not None:  # type: ignore[arg-type]
            yield note


def needed(known: Learned, network: Network, batch_size: int, target: float) -> Needed | None:
    """Return the epochs to the target, at the learning rate that needs the fewest on the seed `TUNED_ON`.

    Rates that need equally many epochs, or never reach the target, are ranked by best accuracy.

    Args:
        known: Accuracies by training.
        network: The network to train.
        batch_size: Images per step.
        target: Validation accuracy, 0 to 1.

    Returns:
        None while a training of this batch size is missing, or if the batch size is not in `RATES_TRIED`.
    """
    tried, rates = EPOCHS_TRIED.get(batch_size, 0), RATES_TRIED.get(batch_size, ())
    runs = {
        rate: [known.get(Training(network, rate, batch_size, tried, seed)) for seed in (TUNED_ON, *SEEDS)]
        for rate in rates
    }
    if not rates or any(run is None for of_rate in runs.values() for run in of_rate):
        return None
    counts = {rate: [epochs_to(run, target) for run in of_rate if run is not None] for rate, of_rate in runs.items()}
    best = min(rates, key=lambda rate: (counts[rate][0] or tried + 1, -max(runs[rate][0] or (0.0,))))
    return Needed(best, tuple(counts[best][1:]), tried)


def epochs_to(accuracies: tuple[float, ...], target: float) -> int | None:
    """Return the first epoch, counted from 1, with at least the target accuracy; None if there is none.

    >>> epochs_to((0.9, 0.95, 0.94), 0.95), epochs_to((0.9,), 0.95)
    (2, None)
    """
    return next((number for number, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)
