"""Machines and what was measured on them: read from exports, each machine once, whatever files it came in; and this
one, from its store.

`recorded/*.json` are exports of `python -m lib.cli.record`; `recorded/published.json` is what articles published, and
no export.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from lib.backends.fingerprint import source_digest
from lib.backends.registry import BACKENDS, Runtime, versions
from lib.data.mnist import MNIST_DIGEST
from lib.experiments import published
from lib.experiments.published import ARTICLE_ARCHITECTURES
from lib.formatting import sentence
from lib.hardware.machine import machine_id, this_machine
from lib.hardware.nvidia_smi import nvidia_driver_answers
from lib.profiling.step_breakdown import Split, split
from lib.spec import N_TRAIN, Network
from lib.storage.export import Export, NoExport, parse_export
from lib.storage.records import Kind, Record
from lib.storage.store import Store, StoreUnusable
from lib.timing.comparison import Estimate
from lib.timing.measurement import Ended, Measurement

FOLDER = published.FILE.parent
EPOCHS = 3  # of each training in the second article's experiments
NETWORK = Network((128,))
# The trainings of each experiment: network and batch size.
EXPERIMENTS: Mapping[str, tuple[tuple[Network, int], ...]] = {
    "learning-rate": ((NETWORK, 32),) * 4,
    "batch-size": tuple((NETWORK, size) for size in (1, 32, 256)),
    "depth": tuple((Network.parse(text), 32) for text in ARTICLE_ARCHITECTURES),
}


@dataclass(frozen=True)
class Seconds:
    """A time with the quartiles of its measurements; published ones have none."""

    low: float
    middle: float
    high: float
    n: int = 0
    estimate: Estimate = field(
        default=Estimate(0.0), compare=False
    )  # what it is compared by, from one repetition to the next

    def times(self, factor: float) -> "Seconds":
        scaled = (value * factor for value in (self.low, self.middle, self.high))
        return Seconds(*scaled, self.n, self.estimate.times(factor))

    def plus(self, other: "Seconds") -> "Seconds":
        n = min(self.n or other.n, other.n or self.n)  # what has no spread of its own takes none away
        together = self.estimate.plus(other.estimate)
        return Seconds(self.low + other.low, self.middle + other.middle, self.high + other.high, n, together)


def exactly(seconds: float) -> Seconds:
    """Without a spread: published, or so small beside another that its own does not matter."""
    return Seconds(seconds, seconds, seconds, estimate=Estimate(seconds))


@dataclass(frozen=True)
class Machine:
    """One machine: what was measured on it, or what an article says of it."""

    name: str
    source: str  # the files that it came in, or the article
    records: tuple[Record, ...] = ()
    curves: tuple[Mapping[str, object], ...] = ()
    price_per_h: float | None = None
    price_date: str = ""
    quoted: published.PublishedMachine | None = None
    live: bool = False  # this machine, by its own store

    @property
    def is_published(self) -> bool:
        return self.quoted is not None

    @property
    def has_gpu(self) -> bool:
        return any(runtime.device == "gpu" for runtime in self.runtimes)

    @cached_property
    def dates(self) -> tuple[str, str]:
        """The first and the last day of its measurements; empty for what was published."""
        days = sorted(record.measured_at[:10] for record in self.records)
        return (days[0], days[-1]) if days else ("", "")

    @cached_property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The runtimes that its race has, in the order of the table."""
        if self.quoted is not None:
            found = {*self.quoted.epoch_s, *self.quoted.experiment_s}
        else:
            found = {(str(r.subject["backend"]), str(r.subject["device"])) for r in self.records if r.kind == Kind.RACE}
        runtimes = [Runtime(*one) for one in found if one[0] in BACKENDS]
        return tuple(sorted(runtimes, key=lambda runtime: (runtime.device, list(BACKENDS).index(runtime.backend))))

    @cached_property
    def failures(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.kind == Kind.FAILURE)

    @property
    def disturbed(self) -> float:
        """The share of its measurements that something disturbed."""
        times = [record for record in self.records if record.block_s]
        return sum(bool(record.warnings) for record in times) / len(times) if times else 0.0

    @cached_property
    def _repetitions(self) -> dict[tuple[Runtime, Network, int], list[Record]]:
        found: dict[tuple[Runtime, Network, int], list[Record]] = {}
        for record in self.records:
            if record.kind == Kind.RACE and record.subject["backend"] in BACKENDS:
                found.setdefault(_cell(record), []).append(record)
        return found

    def epoch(self, runtime: Runtime, batch_size: int, network: Network = NETWORK) -> Seconds | None:
        """Seconds of an epoch, evaluation not counted; None where it was not measured."""
        if self.quoted is not None:
            known = self.quoted.epoch_s.get((runtime.backend, runtime.device), {}).get(batch_size)
            return exactly(known) if known is not None and network == NETWORK else None
        repetitions = self._repetitions.get((runtime, network, batch_size), [])
        return spread([repetition.block_s for repetition in repetitions])

    def beside(self, runtime: Runtime, batch_size: int, name: str, network: Network = NETWORK) -> float:
        """Seconds that come with an epoch's:

        `evaluation_s`, `first_call_s`. From this batch size, or else from any of the runtime.
        """
        repetitions = self._repetitions.get((runtime, network, batch_size), [])
        same_runtime = [one for (other, *_), found in self._repetitions.items() if other == runtime for one in found]
        for group in (repetitions, same_runtime):
            known = [value for repetition in group if (value := float(repetition.subject.get(name, 0.0)))]
            if known:
                return float(np.median(known))
        return 0.0

    def experiment(self, name: str, runtime: Runtime) -> Seconds | None:
        """Seconds of one of the article's experiments, three epochs each: published whole, ours from its measured
        epochs.

        Each training is its first call, its epochs, and an evaluation after each.
        """
        if self.quoted is not None:
            known = self.quoted.experiment_s.get((runtime.backend, runtime.device), {}).get(name)
            return exactly(known) if known is not None else None
        total = exactly(0.0)
        for number, (network, size) in enumerate(EXPERIMENTS[name]):
            epoch = self.epoch(runtime, size, network)
            if epoch is None:
                return None
            once = self.beside(runtime, size, "first_call_s", network) + EPOCHS * self.beside(
                runtime, size, "evaluation_s", network
            )
            training = epoch.times(EPOCHS).plus(exactly(once))
            total = training if number == 0 else total.plus(training)
        return total

    def split(self, runtime: Runtime, batch_size: int = 32) -> Split | None:
        """A step of the runtime taken apart, if that was measured."""
        found: dict[str, float] = {}
        wanted = {
            "examination": "parts",
            "by": runtime.backend,
            "device": runtime.device,
            "batch_size": batch_size,
            "hidden": NETWORK.label,
        }
        for record in sorted(self.records, key=lambda one: one.measured_at):
            if record.kind == Kind.ANATOMY and all(record.subject.get(name) == value for name, value in wanted.items()):
                found[str(record.subject["name"])] = record.measurement.median_s / float(record.subject["work"])
        return split(runtime.backend, found)

    def sweep(self, method: str) -> Seconds | None:
        """Wall seconds of the first article's sweep by a method of `lib.experiments.parallel_sweeps`, as many epochs
        as were recorded."""
        repetitions = [r.block_s for r in self.records if r.kind == Kind.SWEEP and r.subject.get("method") == method]
        return spread(repetitions)

    def models(self, device: str) -> dict[tuple[str, int], Seconds]:
        """Seconds of an epoch and network, by strategy and number of networks in one program."""
        found = {}
        for record in self.records:
            if record.kind == Kind.MODELS and record.subject["device"] == device:
                low, middle, high = record.block_s
                found[str(record.subject["strategy"]), int(record.subject["count"])] = Seconds(low, middle, high, 1)
        return found

    def ceiling(self, device: str, name: str) -> float | None:
        """The best of all its libraries: FLOP/s of a product, bytes/s of a copy."""
        rates = [
            float(record.subject["work"]) / min(record.measurement.step_s)
            for record in self.records
            if record.kind == Kind.CEILING
            and record.subject.get("device") == device
            and record.subject.get("name") == name
        ]
        return max(rates, default=None)


def _cell(record: Record) -> tuple[Runtime, Network, int]:
    """What a repetition of a race timed."""
    of = record.subject
    return Runtime(str(of["backend"]), str(of["device"])), Network.parse(str(of["hidden"])), int(of["batch_size"])


def spread(repetitions: Sequence[Sequence[float]]) -> Seconds | None:
    """Median and quartiles of all times, and an estimate from the medians of the repetitions. None where there are no
    times.

    Of a single repetition the estimate is of its own times: what changed on the machine from one repetition to the next
    is not in it.
    """
    repetitions = [repetition for repetition in repetitions if len(repetition)]
    if not repetitions:
        return None
    values = [second for repetition in repetitions for second in repetition]
    low, middle, high = np.percentile(values, [25, 50, 75])
    estimate = Estimate.of(
        [float(np.median(repetition)) for repetition in repetitions] if len(repetitions) > 1 else values
    )
    return Seconds(float(low), float(middle), float(high), len(values), estimate)


@dataclass(frozen=True)
class Collection:
    """What came out of some files: machines, what could not be read, and what was put together."""

    machines: tuple[Machine, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _Gathered:
    records: dict[str, Record] = field(default_factory=dict)
    curves: dict[str, Mapping[str, object]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    about: dict[str, object] = field(default_factory=dict)


def collect(files: Iterable[tuple[str, str]]) -> Collection:
    """Read files of these names and texts.

    A machine that comes twice is one machine; a file that is none of ours is a sentence.
    """
    gathered: dict[str, _Gathered] = {}
    problems, notes = [], []
    for name, text in files:
        try:
            export = parse_export(text, name)
        except NoExport as error:
            problems.append(sentence(error))
            continue
        if not export.records:
            problems.append(
                f"{name} is an export without a measurement; record with `python -m lib.cli.record {name}`."
            )
        _add(gathered, name, export)
    machines = []
    for one in gathered.values():
        machines.append(_machine(one))
        if len(one.files) > 1:
            notes.append(
                f"{' and '.join(one.files)} are of the same machine ({machines[-1].name}): taken together, each figure"
                " once."
            )
    return Collection(tuple(machines), tuple(problems), tuple(notes))


def _add(gathered: dict[str, _Gathered], name: str, export: Export) -> None:
    for record in export.records:
        one = gathered.setdefault(record.machine, _Gathered())
        one.records[record.id] = record
        one.files += [name] if name not in one.files else []
        if export.about.get("machine") == record.machine_line:
            one.about |= export.about
    for curve in export.tables["curves"]:
        if curve["machine"] in gathered:
            gathered[curve["machine"]].curves[curve["key"]] = curve


def _machine(one: _Gathered) -> Machine:
    records = sorted(one.records.values(), key=lambda record: record.measured_at)
    price = one.about.get("price_per_h")
    return Machine(
        records[-1].machine_line,
        ", ".join(one.files),
        tuple(records),
        tuple(one.curves.values()),
        float(price) if isinstance(price, int | float) else None,
        str(one.about.get("price_date", "")),
    )


def told_apart(machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """Machines of the same make have the same name: the second and third get a number."""
    seen: dict[str, int] = {}
    found = []
    for machine in machines:
        seen[machine.name] = number = seen.get(machine.name, 0) + 1
        found.append(machine if number == 1 else replace(machine, name=f"{machine.name} #{number}"))
    return tuple(found)


# What an hour of this machine costs is asked for; until then its electricity is assumed, at a household's price.
ASSUMED_W, ASSUMED_CARD_W, ASSUMED_PER_KWH = 100, 300, 0.30


def live_machine(store: Store) -> Machine | None:
    """This machine, by what its store holds of this code and these versions; None where nothing was timed on it yet."""
    here, known = (machine_id(), source_digest()), {versions(key) for key in BACKENDS}
    records = [one for one in store.records() if (one.machine, one.sources) == here and one.versions in known]
    try:
        cached = store.rows("curves", without=["losses"])
    except StoreUnusable:
        return None  # which the store says itself
    curves = [
        row
        for row in cached
        if (row["machine"], row["sources"]) == here and row["versions"] in known and row["data"] == MNIST_DIGEST
    ]
    raced = {_cell(one) for one in records if one.kind == Kind.RACE}
    repetitions = [
        repetition for row in curves if row["together"] == 1 and (repetition := _as_repetition(row)) is not None
    ]
    records += [one for one in repetitions if _cell(one) not in raced]
    if not any(one.kind == Kind.RACE for one in records):
        return None
    power_w = ASSUMED_W + (ASSUMED_CARD_W if this_machine().gpu else 0)
    return Machine(
        f"this machine: {this_machine().line}",
        "what was measured here",
        tuple(records),
        tuple(curves),
        round(power_w / 1000 * ASSUMED_PER_KWH, 3),
        f"assumed: {power_w} W at ${ASSUMED_PER_KWH:.2f} per kWh",
        live=True,
    )


def _as_repetition(row: Mapping[str, object]) -> Record | None:
    """A kept training as the race would have timed it, its first epoch not counted; None where it is too short for
    that."""
    values = json.loads(str(row["training"]))
    epochs = json.loads(str(row["epochs"]))
    if len(epochs) < 2 or epochs[-1]["diverged_step"] is not None:
        return None
    size = int(values["batch_size"])
    subject = {
        "backend": row["backend"],
        "device": row["device"],
        "batch_size": size,
        "scaled": 0,
        "hidden": Network(tuple(values["network"]["hidden"])).label,
        "first_call_s": row["first_call_s"],
        "evaluation_s": float(np.median([epoch["evaluation_s"] for epoch in epochs])),
    }
    measured = Measurement(tuple(epoch["train_s"] for epoch in epochs[1:]), N_TRAIN // size, Ended.CAP)
    return replace(Record.of(Kind.RACE, subject, measured, str(row["versions"])), measured_at=str(row["measured_at"]))


def published_machines() -> tuple[Machine, ...]:
    """The articles' three."""
    return tuple(
        Machine(one.name, one.source, price_per_h=one.price_per_h, price_date=one.price_date, quoted=one)
        for one in published.MACHINES
    )


def recorded_here(folder: Path = FOLDER) -> Collection:
    """The exports that come with the project."""
    files = [path for path in sorted(folder.glob("*.json")) if path.name != published.FILE.name]
    texts, problems = [], []
    for path in files:
        try:
            texts.append((path.name, path.read_text()))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"Expected an export, but {path.name} cannot be read ({error}); record it again.")
    found = collect(texts)
    return Collection(found.machines, (*problems, *found.problems), found.notes)


@cache
def recorded_gpus() -> tuple[Machine, ...]:
    """The recorded machines with a card; none where this machine has one of its own, which is then measured instead."""
    return () if nvidia_driver_answers() else tuple(one for one in recorded_here().machines if one.has_gpu)


def gpu_runtimes(machine: Machine) -> list[Runtime]:
    return [runtime for runtime in machine.runtimes if runtime.device == "gpu"]


def named(machine: Machine) -> str:
    """Machine and date, as its figures are labelled everywhere."""
    card = machine.name.split(" · ")[-1]
    return f"{card}, recorded {machine.dates[1]}"
