"""Machines and their measurements, read from exports (one machine may span several files) or from a store.

`recorded/*.json` are exports of `python -m lib.cli.record`, except `published.json` (the articles' figures) and
`devices.json` (figures from data sheets).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, reduce
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from lib.formatting import listed, seconds, sentence
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import ALL_DEVICES, PRECISIONS, TRAINERS, Runtime, all_runtimes, versions
from lib.model.data.mnist import MNIST_DIGEST
from lib.model.hardware.machine import machine_id, this_machine
from lib.model.hardware.nvidia import nvidia_driver_answers
from lib.model.hardware.process import answer
from lib.model.spec import Network
from lib.sweeps.experiments import published
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, seconds_of
from lib.sweeps.storage.records import Kind, Record, undisturbed
from lib.sweeps.storage.store import Export, NoExport, Store, StoreUnusable, parse_export
from lib.sweeps.workers.engine import read
from lib.sweeps.workers.messages import Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Estimate
from lib.timing.prediction.workload import FILE as DEVICES
from lib.timing.profiling.request import Examination, Split, split

MEASURED, RECORDED, PREDICTED, PUBLISHED = "measured here", "recorded", "predicted", "published"  # a figure's origin
FOLDER = published.FILE.parent
NO_EXPORTS = (published.FILE.name, DEVICES.name)
WIDE = 1.3  # third quartile over first
EPOCHS = 3  # per training in the second article's experiments
NETWORK = Network((128,))
# Each experiment's trainings: network and batch size.
EXPERIMENTS: Mapping[str, tuple[tuple[Network, int], ...]] = {
    "learning-rate": ((NETWORK, 32),) * 4,
    "batch-size": tuple((NETWORK, size) for size in (1, 32, 256)),
    "depth": tuple((Network.parse(text), 32) for text in published.ARTICLE_ARCHITECTURES),
}


@dataclass(frozen=True)
class Seconds:
    """First quartile, median and third quartile of a time; all three are equal for a published one."""

    low: float
    middle: float
    high: float
    n: int = 0
    # Used in comparisons: it shows the spread between repetitions, which the quartiles of all times do not.
    estimate: Estimate = field(default=Estimate(0.0), compare=False)

    @property
    def is_wide(self) -> bool:
        """Whether the quartiles differ by more than `WIDE` times, a sign that something disturbed the measurement."""
        return self.high > WIDE * self.low

    @property
    def words(self) -> str:
        low, middle, high = map(seconds, (self.low, self.middle, self.high))
        if self.n <= 1 or low == high:
            return middle + (", once" if self.n == 1 else "")
        return f"{middle} ({low} – {high}{'; wide: the host was busy, or its clock changed' if self.is_wide else ''})"

    def times(self, factor: float) -> "Seconds":
        scaled = (value * factor for value in (self.low, self.middle, self.high))
        return Seconds(*scaled, self.n, self.estimate.times(factor))

    def plus(self, other: "Seconds") -> "Seconds":
        """Add another time, quartile by quartile.

        `n` is the smaller number of measurements of the two; a time without a spread (`n` 0) does not lower it.
        """
        n = min(self.n or other.n, other.n or self.n)
        together = self.estimate.plus(other.estimate)
        return Seconds(self.low + other.low, self.middle + other.middle, self.high + other.high, n, together)


def exactly(seconds: float) -> Seconds:
    """Return a time without a spread: published, or so small relative to another that its spread does not matter."""
    return Seconds(seconds, seconds, seconds, estimate=Estimate(seconds))


def total_of(known: Sequence[Seconds | None]) -> Seconds | None:
    """Return the sum of all times; None if one is missing or there are none."""
    given = [one for one in known if one is not None]
    return reduce(Seconds.plus, given) if given and len(given) == len(known) else None


@dataclass(frozen=True)
class Machine:
    """A machine with its measurements, or with an article's figures (`quoted`)."""

    name: str
    source: str  # the files that it came from, or the article
    records: tuple[Record, ...] = ()
    curves: tuple[Mapping[str, object], ...] = ()
    quoted: published.PublishedMachine | None = None
    live: bool = False  # this machine, from its own store

    @property
    def is_published(self) -> bool:
        return self.quoted is not None

    @property
    def has_gpu(self) -> bool:
        return any(runtime.on_gpu for runtime in self.runtimes)

    @cached_property
    def dates(self) -> tuple[str, str]:
        """First and last day of its measurements, such as 2026-11-21; empty strings for a published machine."""
        days = sorted(record.measured_at[:10] for record in self.records)
        return (days[0], days[-1]) if days else ("", "")

    @property
    def dated(self) -> str:
        first, last = self.dates
        source = "live, " if self.live else "recorded "
        return "published" if self.is_published else source + first + (f" to {last}" if last != first else "")

    @cached_property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The runtimes timed on it, in the order of `TRAINERS`, CPU first."""
        if self.quoted is not None:
            found = {*self.quoted.epoch_s, *self.quoted.experiment_s}
        else:
            found = {_runtime_of(record) for record in self.records if record.kind == Kind.RACE}
        runtimes = [Runtime(*one) for one in found if one[0] in TRAINERS]
        return tuple(sorted(runtimes, key=lambda runtime: runtime.place))

    @cached_property
    def failures(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.kind == Kind.FAILURE)

    @property
    def disturbed(self) -> float:
        """Share of disturbed measurements, 0 to 1: those with warnings or a wide spread."""
        times = [record for record in self.records if record.block_s]
        return sum(bool(record.warnings) or _is_wide(record) for record in times) / len(times) if times else 0.0

    @cached_property
    def _repetitions(self) -> dict[tuple[Runtime, Network, int], list[Record]]:
        found: dict[tuple[Runtime, Network, int], list[Record]] = defaultdict(list)
        for record in self.records:
            if record.kind == Kind.RACE and record.subject["backend"] in TRAINERS:
                found[_cell(record)].append(record)
        return found

    @property
    def cells(self) -> set[tuple[Network, int]]:
        return {(network, batch_size) for _, network, batch_size in self._repetitions}

    def epoch(self, runtime: Runtime, batch_size: int, network: Network = NETWORK) -> Seconds | None:
        if self.quoted is not None:
            known = self.quoted.epoch_s.get((runtime.backend, runtime.device), {}).get(batch_size)
            return exactly(known) if known is not None and network == NETWORK else None
        found = undisturbed(self._repetitions.get((runtime, network, batch_size), []))
        off_s = max((float(one.subject.get("off_s", 0.0)) for one in found), default=0.0)
        return spread([one.block_s for one in found], off_s)

    def extra_s(self, runtime: Runtime, batch_size: int, name: str, network: Network = NETWORK) -> float:
        """Return median seconds of work that accompanies an epoch; 0 if not measured.

        Args:
            runtime: The runtime that trains.
            batch_size: Images per step.
            name: `evaluation_s` or `first_call_s`.
            network: The trained network; if this cell has no figure, all of the runtime's cells are used.
        """
        cell = (runtime, network, batch_size)
        for cells in ([cell], [other for other in self._repetitions if other[0] == runtime]):
            records = [record for one in cells for record in self._repetitions.get(one, [])]
            if known := [value for record in records if (value := float(record.subject.get(name, 0.0)))]:
                return float(np.median(known))
        return 0.0

    def longest_first_call_s(self, runtime: Runtime) -> float:
        """Return the seconds of the longest first call of any network; 0 if none was recorded. Most calls are shorter,
        because an earlier one had compiled the program.
        """
        records = (record for cell, of in self._repetitions.items() if cell[0] == runtime for record in of)
        return max((float(record.subject.get("first_call_s", 0.0)) for record in records), default=0.0)

    def experiment(self, name: str, runtime: Runtime) -> Seconds | None:
        """Return the seconds of one of the second article's experiments, with three epochs per training.

        Published times cover the whole experiment. Our times sum each training's first call, its epochs, and an
        evaluation after each. None if an epoch was not measured, or nothing was published.

        Args:
            name: A key of `EXPERIMENTS`.
            runtime: The runtime that trains.
        """
        if self.quoted is not None:
            known = self.quoted.experiment_s.get((runtime.backend, runtime.device), {}).get(name)
            return exactly(known) if known is not None else None
        return total_of([self._training(runtime, size, network) for network, size in EXPERIMENTS[name]])

    def experiments(self, runtime: Runtime) -> Seconds | None:
        """Return the seconds of all of the second article's experiments; None if one is unknown."""
        return total_of([self.experiment(name, runtime) for name in EXPERIMENTS])

    def first_calls_s(self, runtime: Runtime) -> float:
        """Return the seconds of all first calls in `experiments`; 0 for a published machine, where they are unknown."""
        cells = [cell for trainings in EXPERIMENTS.values() for cell in trainings]
        return sum(self.extra_s(runtime, size, "first_call_s", network) for network, size in cells)

    def _training(self, runtime: Runtime, batch_size: int, network: Network) -> Seconds | None:
        epoch = self.epoch(runtime, batch_size, network)
        first_call_s, evaluation_s = (
            self.extra_s(runtime, batch_size, name, network) for name in ("first_call_s", "evaluation_s")
        )
        return None if epoch is None else epoch.times(EPOCHS).plus(exactly(first_call_s + EPOCHS * evaluation_s))

    def split(self, runtime: Runtime, batch_size: int = 32) -> Split | None:
        subject = AnatomyTask(runtime, Examination("parts", NETWORK, batch_size)).subject
        found = {
            str(record.subject["name"]): seconds_of(record)
            for record in sorted(self.records, key=lambda one: one.measured_at)
            if record.kind == Kind.ANATOMY and record.is_about(subject)
        }
        return split(runtime, found)

    def sweep(self, method: str) -> Seconds | None:
        """Return wall seconds of the first article's sweep, for the recorded number of epochs; None if not timed.

        Args:
            method: Key of a `Method` in `lib.sweeps.experiments.parallel_sweeps`.
        """
        return spread([r.block_s for r in self.records if r.kind == Kind.SWEEP and r.subject.get("method") == method])

    def models(self, device: str) -> dict[tuple[str, int], Seconds]:
        """Return seconds per epoch and network on a device ("cpu" or "gpu"), by strategy and number of networks."""
        return {
            (str(record.subject["strategy"]), int(record.subject["count"])): Seconds(*record.block_s, n=1)
            for record in self.records
            if record.kind == Kind.MODELS and record.subject["device"] == device
        }


@dataclass(frozen=True)
class Best:
    """A machine's fastest runtime for some work, and the time it takes."""

    machine: Machine
    runtime: Runtime
    seconds: Seconds


# Seconds of some work on a machine with a runtime; None if unknown.
Measure = Callable[[Machine, Runtime], Seconds | None]


def best_runtime(machine: Machine, of: Measure, *devices: str) -> Best | None:
    """Return a machine's float32 runtime with the lowest median, on one of these devices or, if none are given, on any.

    None if all lack the figure.
    """
    known = [
        Best(machine, runtime, seconds)
        for runtime in machine.runtimes
        if runtime.precision == PRECISIONS[0]
        and runtime.device in (devices or ALL_DEVICES)
        and (seconds := of(machine, runtime)) is not None
    ]
    return min(known, key=lambda best: best.seconds.middle, default=None)


def _is_wide(record: Record) -> bool:
    found = spread([record.block_s])
    return found is not None and found.is_wide


def _cell(record: Record) -> tuple[Runtime, Network, int]:
    of = record.subject
    return Runtime(*_runtime_of(record)), Network.parse(str(of["hidden"])), int(of["batch_size"])


def _runtime_of(record: Record) -> tuple[str, ...]:
    return tuple(str(record.says(name)) for name in ("backend", "device", "precision"))


def spread(repetitions: Sequence[Sequence[float]], off_s: float = 0.0) -> Seconds | None:
    """Return median and quartiles of all times, with an estimate from the repetitions' medians; None without times.

    A single repetition is estimated from its own times, which miss the variation between repetitions.

    Args:
        repetitions: Seconds, by repetition; empty ones are ignored.
        off_s: Possible error of every time, in either direction, due to a coarse clock.
    """
    repetitions = [repetition for repetition in repetitions if len(repetition)]
    if not repetitions:
        return None
    values = [second for repetition in repetitions for second in repetition]
    low, middle, high = map(float, np.percentile(values, [25, 50, 75]))
    medians = [float(np.median(repetition)) for repetition in repetitions]
    estimate = Estimate.of(medians if len(medians) > 1 else values, off_s)
    return Seconds(max(0.0, low - off_s), middle, high + off_s, len(values), estimate)


@dataclass(frozen=True)
class Collection:
    """The machines in some files, a sentence per problem, and notes on merged files."""

    machines: tuple[Machine, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def collect(files: Iterable[tuple[str, str | bytes]]) -> Collection:
    """Read exports (name and content of each). Unreadable ones become problems; a machine's exports are merged."""
    exports, problems = list[tuple[str, Export]](), []
    for name, content in files:
        try:
            export = parse_export(content, name)
        except NoExport as error:
            problems.append(sentence(error))
            continue
        if not export.records:
            problems.append(
                f"{name} is an export without measurements; record some with `python -m lib.cli.record {name}`."
            )
        exports.append((name, export))
    machines, notes = [], []
    for key in dict.fromkeys(record.machine for _, export in exports for record in export.records):
        names = list(dict.fromkeys(name for name, one in exports if any(r.machine == key for r in one.records)))
        machines.append(_machine(key, ", ".join(names), [export for _, export in exports]))
        if len(names) > 1:
            notes.append(
                f"{' and '.join(names)} are from the same machine ({machines[-1].name}): merged, each figure once."
            )
    return Collection(tuple(machines), tuple(problems), tuple(notes))


def read_exports(
    files: Sequence[tuple[str, bytes]], cancel: Cancel, request: Request | None = None, niceness: int = 0
) -> Iterator[Collection | Note]:
    """Read a reader's exports (name and content of each) in a separate process.

    Raises:
        TrainingFailed: Reading takes too much memory or time; problems of single files are in the collection.
    """
    try:
        found = yield from read(
            "lib.sweeps.experiments.recorded_machines",
            files,
            cancel=cancel,
            request=request,
            niceness=niceness,
            doing=f"reading {listed([name for name, _ in files])}",
            advice="drop fewer files",
        )
    except TrainingFailed as why:
        raise TrainingFailed(f"These exports cannot be compared: {why}.") from None
    if isinstance(found, Collection):
        yield found


def main(connection: Connection) -> None:
    """Run the reading process: answer each (files,) with a `Collection`, or a sentence why there is none."""
    answer(connection, collect)


def _machine(key: str, source: str, exports: Sequence[Export]) -> Machine:
    by_id = {record.id: record for export in exports for record in export.records if record.machine == key}
    records = sorted(by_id.values(), key=lambda record: record.measured_at)
    curves = {
        (curve["key"], curve["measured_at"]): curve
        for export in exports
        for curve in export.tables["curves"]
        if curve["machine"] == key
    }
    return Machine(records[-1].machine_line, source, tuple(records), tuple(curves.values()))


def with_unique_names(machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """Number machines that share a name, from the second on: `… #2`."""
    seen: Counter[str] = Counter()
    found = []
    for machine in machines:
        seen[machine.name] += 1
        number = seen[machine.name]
        found.append(machine if number == 1 else replace(machine, name=f"{machine.name} #{number}"))
    return tuple(found)


def live_machine(store: Store) -> Machine | None:
    """Return this machine, from its store's records of this code and these library versions.

    None if nothing was raced yet, or the store cannot be read.
    """
    here, known = (machine_id(), source_digest()), set(map(versions, all_runtimes()))
    records = [one for one in store.records() if (one.machine, one.sources) == here and one.versions in known]
    try:
        cached = store.rows("curves", without=["losses"])
    except StoreUnusable:
        return None  # the store reports the problem itself
    curves = [
        row
        for row in cached
        if (row["machine"], row["sources"]) == here and row["versions"] in known and row["data"] == MNIST_DIGEST
    ]
    if not any(one.kind == Kind.RACE for one in records):
        return None
    name = f"this machine: {this_machine().line}"
    return Machine(name, "what was measured here", tuple(records), tuple(curves), live=True)


def browsers_in(store: Store) -> tuple[Machine, ...]:
    """Return the machines that readers kept from their browsers (`lib.sweeps.experiments.your_gpu`), oldest first."""
    kept: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(store.records(Kind.RACE, naming="browser"), key=lambda one: one.measured_at):
        if record.says("browser") is not None:
            kept[record.machine].append(record)
    return tuple(Machine(records[-1].machine_line, "kept from a browser", tuple(records)) for records in kept.values())


def published_machines() -> tuple[Machine, ...]:
    return tuple(Machine(one.name, one.source, quoted=one) for one in published.MACHINES)


def recorded_here(folder: Path = FOLDER) -> Collection:
    files = sorted(set(folder.glob("*.json")) - {folder / name for name in NO_EXPORTS})
    return _read(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=4)
def _read(files: tuple[tuple[Path, int], ...]) -> Collection:
    """Read exports by path and modification time; cached because reading takes 0.2 s."""
    return collect((path.name, path.read_bytes()) for path, _ in files)


@cache
def recorded_gpus() -> tuple[Machine, ...]:
    """Return the recorded machines with a GPU; none if this machine has its own GPU, which is measured instead."""
    return () if nvidia_driver_answers() else tuple(one for one in recorded_here().machines if one.has_gpu)


def gpu_runtimes(machine: Machine) -> list[Runtime]:
    return [runtime for runtime in machine.runtimes if runtime.on_gpu]


def named(machine: Machine) -> str:
    return place(machine, True)


def card_of(machine: Machine) -> str:
    """Return the machine's GPU; NVIDIA's are shortened to one word, such as H100."""
    maker, _, card = machine.name.split(" · ")[-1].partition("NVIDIA ")
    return maker or next((word for word in card.split() if any(letter.isdigit() for letter in word)), card)


def host_of(machine: Machine) -> str:
    """Return the machine's CPU and cores; the host of a GPU is named after the GPU."""
    name, cores, *_ = machine.name.split(" · ")
    return f"{card_of(machine)}'s host, {cores}" if machine.has_gpu else f"{name}, {cores}"


def place(machine: Machine, on_gpu: bool) -> str:
    """Return the machine's GPU or CPU, with its last day."""
    return f"{machine.name.split(' · ')[-1] if on_gpu else host_of(machine)}, recorded {machine.dates[1]}"
