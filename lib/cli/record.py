"""Measure this machine and write the results to a file for others: `python -m lib.cli.record FILE.json`.

Needs neither a browser nor a network, and uses the installed libraries; `make bare` packs the necessary ones. The file
is rewritten after each measurement, so you can stop at any time (Ctrl-C) and resume with the same command. The exit
status is 0 if everything requested is done, 3 if something is left, 1 if the file or an option is unusable. `--plan`
answers the questions of a file, in its order, and `--merge` joins two recordings of one machine.
"""

import argparse
import fnmatch
import hashlib
import math
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from lib.cli import INCOMPLETE, UNUSABLE, Unusable, check_minutes, say, time_limit
from lib.formatting import sentence
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import (
    BACKENDS,
    DEFAULT,
    DEVICES,
    Runtime,
    all_runtimes,
    unavailable,
    usable_runtimes,
    versions,
)
from lib.model.data.mnist import Facts
from lib.model.hardware.machine import details, machine_id, this_machine, usable_cores, usable_memory_bytes
from lib.model.hardware.nvidia import cards, listed_now
from lib.model.spec import Network
from lib.sweeps.experiments import anatomy_of_a_step, backend_race, calibration, parallel_sweeps, single_operations
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, ceiling_tasks, measure_ceilings, measure_tasks
from lib.sweeps.experiments.backend_race import NETWORK, Cell, all_cells
from lib.sweeps.experiments.parallel_sweeps import Point
from lib.sweeps.experiments.published import ARTICLE_ARCHITECTURES
from lib.sweeps.experiments.single_operations import OperationPoint, OperationTask, PipelineTask, refused
from lib.sweeps.measuring import Attempts, failure
from lib.sweeps.storage.records import Kind, Record, this_command
from lib.sweeps.storage.store import Export, NoExport, Store, StoreUnusable, export_to, import_from, read_export
from lib.sweeps.sweep import POOLED
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.workload import resnet18
from lib.timing.profiling.request import CALLS, CONVOLUTIONAL, LAUNCHES, RESNET, Examination, Pipeline

ARTICLE_SIZES = (1, 32, 256)
MODELS_MOST = 64
SWEEP_EPOCHS = 2
REPETITION_S = 1.5  # of training per repetition: half as much as on the page, so that everything fits into ten minutes
POOL_BYTES = {DEFAULT: 0.35e9, "numba": 0.7e9}  # per process of a pool; Keras's are larger
KERAS_POOL_BYTES = 0.9e9
MAX_POOL_BYTES = 3e9  # keeps a recording below 4 GiB
ENOUGH_ROUNDS = 3
RACE = "race"
# Largest product, nested sine and transfer, in rows, elements and bytes: the notebook's defaults, or for a graphics
# card, large enough to show from which size it is worth using.
LARGEST, LARGEST_WITH_A_CARD = (1024, 4**11, 4**12), (2**15, 4**13, 4**14)
LARGEST_IN_BFLOAT16 = 2**13
# Limit on the predicted seconds of one size: on a card, 2^15 is mostly transfers, which grow less than arithmetic.
OPERATION_LIMIT_S = {"cpu": single_operations.LIMIT_S, "gpu": 240.0}
SINE_DEPTH = 4
OVERLAP_PIECES = 8
IN_LARGER_NETWORKS = (1, 32, 256)  # batch sizes
TENSORS = 3.0  # memory of training ResNet-18, as a multiple of its activations
TOO_LONG = 2.0  # multiple of its expected seconds after which a plan's question is left for the next call
CARD_LOST = (
    "the GPU no longer answers; finished measurements are kept; when `nvidia-smi -L` lists the GPU again, which may"
    " take a restart, the same command continues from here"
)
# The notebook's default; with a graphics card, also without preprocessing, which may be all that the card waits for.
PIPELINE = Pipeline()
COUNTED_SIZES = (32, 512, 4096)  # batch sizes for counting epochs to an accuracy: all would take four minutes


@dataclass(frozen=True)
class Entry:
    """A question to some runtimes. Only a plan says how long it should take."""

    question: str
    of: tuple[str, ...] = ("*",)  # addresses of runtimes, or patterns
    expected_s: float = math.inf

    @property
    def planned(self) -> bool:
        return self.expected_s < math.inf

    @property
    def title(self) -> str:
        return f"{self.question} of {', '.join(self.of)}" if self.planned else self.question

    def among(self, runtimes: Sequence[Runtime]) -> list[Runtime]:
        return [one for one in runtimes if any(fnmatch.fnmatchcase(one.address, pattern) for pattern in self.of)]


@dataclass(frozen=True)
class RecordingTask:
    name: str
    runtime: Runtime
    measure: Callable[[], Iterator[object]]
    subject: dict[str, str | int | float] = field(default_factory=dict)  # for the record of a failure
    pooled: bool = False  # uses a pool of processes, whose memory counts too


@dataclass
class Battery:
    """All measurements of a machine.

    It answers each question of `QUESTIONS` once, in that order or in the plan's. Without a plan, further rounds of the
    race follow, to measure the spread. It skips stored measurements, and with a plan, tasks done by an earlier call.

    A library that is given up on a device (`lib.sweeps.measuring.Attempts`) is skipped from then on. A task that works
    at some sizes does not count as failed.
    """

    engine: Engine
    store: Store
    cancel: Cancel
    runtimes: Sequence[Runtime] = field(default_factory=usable_runtimes)
    request: Request = field(default_factory=Request)
    facts: Facts | None = None
    titles: Collection[str] = ()  # of the questions to answer; empty: all
    plan: Sequence[Entry] = ()  # in order; empty: all questions in the order of `QUESTIONS`
    asked: set[str] = field(default_factory=set)  # tasks of a plan that are done, by phase and name
    until_s: float = math.inf  # by the monotonic clock: a plan's question starts only if it should end by then
    traces: Path | None = None  # the folder for profiles
    lost: str = ""  # a sentence, once the graphics card no longer answers
    _attempts: Attempts = field(default_factory=lambda: Attempts(together=attrgetter("process")))
    _library: str | None = None
    _failed: str = ""  # why part of the last task failed

    def run(self) -> Iterator[Note]:
        """Measure what is missing, until it is complete or `cancel` is set.

        A failed measurement is stored as a record of kind `FAILURE`, and the next one follows.

        Yields:
            Notes on progress, waiting and failures; a note with an empty text says that a result was stored.
        """
        for entry in (*self.questions(), *self.further_rounds()):
            todo = self.missing(entry)
            answered = sum(one.startswith(f"{entry.title}: ") for one in self.asked)
            expected_s = entry.expected_s * len(todo) / max(1, len(todo) + answered)
            began_s = time.monotonic()
            if todo and entry.planned and began_s + expected_s > self.until_s:
                yield Note(
                    f"{entry.title}: takes about {expected_s:.0f} s, more than is left; postponed to the next call"
                )
                continue
            for number, task in enumerate(todo, 1):
                if self.cancel.is_set():
                    return
                if entry.planned and time.monotonic() >= min(began_s + TOO_LONG * expected_s, self.until_s):
                    yield Note(
                        f"{entry.title}: {time.monotonic() - began_s:.0f} s spent, {expected_s:.0f} expected; postponed"
                        f" to the next call: {len(todo) - number + 1}"
                    )
                    break
                if self.lost and (entry.planned or task.runtime.device == "gpu"):
                    continue
                yield Note(f"{entry.title}, {number} of {len(todo)}: {task.name}")
                if (yield from self._perform(task)) and entry.planned and not self.cancel.is_set():
                    self.asked.add(f"{entry.title}: {task.name}")
                    yield Note("")

    def left(self) -> list[str]:
        """Return the number of missing tasks by title, such as `race: 3`; empty if complete."""
        return [f"{entry.title}: {len(todo)}" for entry in self.questions() if (todo := self.missing(entry))]

    def missing(self, entry: Entry) -> list[RecordingTask]:
        """Return the missing tasks; with a plan, without those done earlier, even by another version of the code."""
        tasks = (QUESTIONS | FURTHER_ROUNDS)[entry.question](replace(self, runtimes=entry.among(self.runtimes)))
        return [one for one in tasks if not entry.planned or f"{entry.title}: {one.name}" not in self.asked]

    def left_out(self) -> list[str]:
        """Return a sentence for each measurement that is impossible on this machine."""
        return list(filter(None, map(why_no_pool, parallel_sweeps.methods())))

    def questions(self) -> list[Entry]:
        if self.plan:
            return [entry for entry in self.plan if not self.titles or entry.question in self.titles]
        card = any(runtime.device == "gpu" for runtime in self.runtimes)
        asked = self.titles or (QUESTIONS if card else {*QUESTIONS} - {*ABOUT_CARDS})
        return [Entry(title) for title in QUESTIONS if title in asked]

    def further_rounds(self) -> list[Entry]:
        """Return the race's rounds that measure the spread, time permitting."""
        asks = not self.plan and (not self.titles or RACE in self.titles)
        return [Entry(title) for title in FURTHER_ROUNDS if asks]

    def _perform(self, task: RecordingTask) -> Generator[Note, None, bool]:
        if self._attempts.given_up(task.runtime):
            return False
        library = task.runtime.process
        if self._library not in (None, library) or task.pooled:
            self.engine.close()  # keep only one library in memory
        self._library = library
        self._failed = ""
        why = (yield from self._attempts.row(task.runtime, partial(self._measured, task))) or self._failed
        if why and task.runtime.device == "gpu" and not {card.uuid for card in cards()} <= listed_now():
            self.lost = CARD_LOST
            yield Note(self.lost)
        return not why

    def _measured(self, task: RecordingTask) -> Iterator[Note]:
        """Run the task, and report and store failures; raises the last one if no part of the task worked."""
        failed, works = None, False
        try:
            for event in task.measure():
                if isinstance(event, Note):
                    yield event
                elif isinstance(event, Record) and event.kind == Kind.FAILURE:
                    failed = TrainingFailed("; ".join(event.warnings))
                elif isinstance(event, Record | Point) or (isinstance(event, OperationPoint) and event.records):
                    works = True
                    yield Note("")
            self.facts = self.facts or self.engine.known_facts()
        except (RuntimeError, MemoryError, OSError) as error:  # from the engine
            failed = error if isinstance(error, TrainingFailed) else TrainingFailed(str(error))
            self.store.add(failure(task.name, task.runtime, task.subject, str(error)))
        finally:
            if task.pooled:
                self.engine.close()  # to free their memory
        if failed:
            self._failed = str(failed)
            yield Note(f"failed, continuing: {failed}")
        if failed and not works:
            raise failed

    @property
    def how(self) -> tuple[Engine, Store, Cancel, Request]:
        """The last arguments of every measurement."""
        return self.engine, self.store, self.cancel, self.request

    def ceilings(self) -> list[RecordingTask]:
        # Keras has the ceilings of its underlying library; TensorFlow is available only through Keras.
        libraries = {
            runtime.process: runtime
            for runtime in self.runtimes
            if BACKENDS[runtime.backend].worker not in ("keras-jax", "keras-torch")
        }
        records = self.store.records(Kind.CEILING)
        return [
            RecordingTask(task.runtime.label, task.runtime, partial(measure_ceilings, [task.runtime], *self.how))
            for task in ceiling_tasks(libraries.values())
            if not any(record.is_about(task.subject) for record in records)
        ]

    def repetitions(self, cells: list[Cell], rounds: int = 1) -> list[RecordingTask]:
        todo = backend_race.plan(cells, self.store.records(Kind.RACE), rounds)
        libraries = list(dict.fromkeys(cell.runtime.process for cell in cells))
        order = [libraries[i] for i in np.random.default_rng(rounds).permutation(len(libraries))]
        todo.sort(key=lambda cell: order.index(cell.runtime.process))
        return [
            RecordingTask(
                f"{cell.runtime.label}, {cell.network.label} at batch size {cell.batch_size:,}",
                cell.runtime,
                partial(backend_race.race, [cell], *self.how, REPETITION_S),
                cell.subject,
            )
            for cell in todo
        ]

    def sweeps(self, quick: bool) -> list[RecordingTask]:
        cached = parallel_sweeps.compared(self.store, SWEEP_EPOCHS)
        return [
            RecordingTask(
                method.label,
                method.runtime,
                partial(parallel_sweeps.compare, [method], SWEEP_EPOCHS, *self.how),
                {"method": method.key},
                method.strategy in POOLED,
            )
            for method in parallel_sweeps.methods()
            if method.key not in cached
            and method.runtime in self.runtimes
            and (method.runtime.backend == DEFAULT) == quick
            and not why_no_pool(method)
        ]

    def examinations(
        self, todo: Sequence[AnatomyTask], measure: Callable[..., Iterator[object]] | None = None
    ) -> list[RecordingTask]:
        """Return the incomplete tasks; `measure` replaces the examination of each in its worker."""
        records = self.store.records(Kind.ANATOMY)
        return [
            RecordingTask(
                f"{task.runtime.label}, {task.examination.kind}, batch size {task.examination.batch_size:,}",
                task.runtime,
                partial(measure, task, *self.how) if measure else partial(measure_tasks, [task], *self.how),
                task.subject,
            )
            for task in todo
            if not task.complete(records)
        ]

    def examined(
        self, kind: str, worker: str = "", sizes: Sequence[int] = (32,), devices: Sequence[str] = DEVICES
    ) -> list[RecordingTask]:
        """Examine a library on each of these devices, or without `worker`, every runtime there."""
        libraries = {runtime.process: runtime for runtime in reversed(self.runtimes)}
        return self.examinations(
            [
                AnatomyTask(runtime, Examination(kind, NETWORK, size))
                for runtime in (libraries.values() if worker else self.runtimes)
                if worker in ("", BACKENDS[runtime.backend].worker) and runtime.device in devices
                for size in sizes
            ]
        )

    def traps(self) -> list[RecordingTask]:
        tasks = {one: anatomy_of_a_step.traps_task(one.device, 32) for one in self.runtimes}
        return self.examinations([task for one, task in tasks.items() if task.runtime == one])

    def larger_networks(self) -> list[RecordingTask]:
        return self.examined(CONVOLUTIONAL, "jax", IN_LARGER_NETWORKS) + [
            task
            for task in self.examined(RESNET, "torch", IN_LARGER_NETWORKS)
            if TENSORS * resnet18(int(task.subject["batch_size"])).activation_bytes
            <= usable_memory_bytes(task.runtime.device)
        ]

    def profiles(self) -> list[RecordingTask]:
        from lib.sweeps.experiments import trace_of_a_step
        from lib.timing.profiling.traces.form import Trace, written

        def profile(task: AnatomyTask, *how: Any) -> Iterator[object]:
            for event in trace_of_a_step.profile(task, *how):
                yield event
                if isinstance(event, Trace) and self.traces is not None:
                    self.traces.mkdir(exist_ok=True)
                    (self.traces / f"{task.runtime.address.replace('/', '-')}.json").write_text(written(event))

        able = [one for one in self.runtimes if BACKENDS[one.backend].worker in trace_of_a_step.PROFILERS]
        return self.examinations([trace_of_a_step.task_of(one, NETWORK, 32) for one in able], profile)

    def models(self) -> list[RecordingTask]:
        here = source_digest()
        known = {one.subject["device"] for one in self.store.records(Kind.MODELS) if one.sources == here}
        return [
            RecordingTask(f"up to {MODELS_MOST}, {runtime.label}", runtime, partial(self._points, runtime))
            for runtime in self.runtimes
            if runtime in (Runtime(DEFAULT, device) for device in DEVICES) and runtime.device not in known
        ]

    def _points(self, runtime: Runtime) -> Iterator[object]:
        free_bytes = usable_memory_bytes(runtime.device)
        rounds = (  # the second round extends a point's range to both
            parallel_sweeps.saturation(MODELS_MOST, 32, *self.how, runtime.device, free_bytes, again)
            for again in (False, True)
        )
        return self._kept(chain.from_iterable(rounds), runtime)

    def _kept(self, events: Iterable[Point | Note], runtime: Runtime) -> Iterator[object]:
        """Pass the events on, then store the last point of each strategy and count: all or none, because an incomplete
        set would count as complete."""
        found: dict[tuple[str, int], Point] = {}
        for event in events:
            if isinstance(event, Point) and not event.why_not:
                found[event.strategy, event.count] = event
            yield event
        for point in found.values() if not self.cancel.is_set() else ():
            self.store.add(record_of_point(point, runtime))
            yield point

    def calibrations(self) -> list[RecordingTask]:
        """Measure the steps that predictions are based on, for all ways to train except those that failed."""
        ways = calibration.all_ways(self.runtimes)
        known = calibration.stored(ways, self.store)
        failed = {record.subject.get("calibration") for record in self.store.records(Kind.FAILURE)}
        return [
            RecordingTask(
                f"{len(todo)} steps, {trained.label}",
                trained.runtime,
                lambda trained=trained, todo=todo: (
                    event if isinstance(event, Note) else Note("")
                    for event in calibration.measure_trials([(trained, todo)], *self.how)
                ),
                {"calibration": trained.label},
            )
            for trained in ways
            if trained.label not in failed
            and (todo := [trial for trial in calibration.trials(trained) if (trained, trial) not in known])
        ]

    def operations(self, *makers: "Maker") -> list[RecordingTask]:
        """Measure all sizes of each operation by one library; results of smaller sizes decide on larger ones."""
        records = self.store.records(Kind.OPERATION)
        return [
            RecordingTask(
                f"{todo[0].operation.name}, {todo[0].label}",
                todo[0].runtime,
                partial(self._sizes, todo),
                todo[0].subject,
            )
            for todo in operations(self.runtimes, *makers)
            if unanswered(todo, records)
        ]

    def _sizes(self, todo: Sequence[OperationTask]) -> Iterator[object]:
        known = single_operations.found(todo, self.store.records(Kind.OPERATION))
        earlier: list[OperationPoint] = []
        limit_s = OPERATION_LIMIT_S[todo[0].runtime.device]
        for event in single_operations.measure(todo, known, *self.how, usable_memory_bytes, limit_s):
            if isinstance(event, OperationPoint):
                if event.why_not and no_size(event.task, earlier) is None:  # it was tried, and failed
                    yield self._mark(event.task, event.task.label, event.why_not)
                earlier.append(event)
            yield event

    def pipelines(self) -> list[RecordingTask]:
        records = self.store.records(Kind.PIPELINE)
        return [
            RecordingTask(
                f"{task.runtime.label}, {task.pipeline.label}, {task.pipeline.preprocessing_ms:g} ms an image",
                task.runtime,
                partial(self._fed, task),
                task.subject,
            )
            for task in pipelines(self.runtimes)
            if not task.found(records)
        ]

    def _fed(self, task: PipelineTask) -> Iterator[object]:
        for event in single_operations.measure_pipelines([task], *self.how):
            yield self._mark(task, event[0].label, event[1]) if isinstance(event, tuple) else event

    def _mark(self, task: OperationTask | PipelineTask, label: str, why: str) -> Record:
        marked = failure(label, task.runtime, task.subject, why)
        self.store.add(marked)
        return marked

    def accuracy(self) -> list[RecordingTask]:
        self.facts = self.facts or self.engine.known_facts()
        if Runtime() not in self.runtimes or self.facts is None or self.facts.source != "MNIST":
            return []
        known = backend_race.learned(self.store, NETWORK, self.facts)
        todo = [t for t in backend_race.trials(NETWORK) if t.batch_size in COUNTED_SIZES and t not in known]
        learn = partial(backend_race.learn, todo, *self.how, pool_fits(DEFAULT))
        return [RecordingTask(f"{len(todo)} trainings", Runtime(), learn, pooled=True)] if todo else []


Maker = Callable[[list[Runtime]], list[OperationTask]]


def operations(runtimes: Sequence[Runtime], *makers: Maker) -> list[list[OperationTask]]:
    """Return tasks by library and operation, small sizes first; by default for products, nested sines and transfers."""
    card = any(runtime.device == "gpu" for runtime in runtimes)
    side, length, n_bytes = LARGEST_WITH_A_CARD if card else LARGEST
    single = (
        lambda of: single_operations.products(of, side, "float32"),
        lambda of: single_operations.sines(of, length, SINE_DEPTH),
        lambda of: single_operations.transfers(of, n_bytes),
    )
    mine = [one for one in single_operations.libraries() if one in runtimes]
    return [todo for one in mine for make in makers or single if (todo := make([one]))]


def _bfloat16(libraries: list[Runtime]) -> list[OperationTask]:
    todo = single_operations.products(libraries, LARGEST_IN_BFLOAT16, "bfloat16")
    return [one for one in todo if one.runtime.device == "gpu" and not single_operations.unsupported(one)]


def _overlaps(libraries: list[Runtime]) -> list[OperationTask]:
    sizes = single_operations.OVERLAP_SIZES
    return [one for n in sizes for one in single_operations.overlaps(libraries, n, SINE_DEPTH, OVERLAP_PIECES)]


Questions = dict[str, Callable[[Battery], list[RecordingTask]]]
_USUAL: Questions = {
    "ceilings": Battery.ceilings,
    RACE: lambda battery: battery.repetitions(all_cells(battery.runtimes)),
    "the article's experiments": lambda battery: battery.repetitions(experiment_cells(battery.runtimes)),
    "sweeps": partial(Battery.sweeps, quick=True),
    "a step taken apart": lambda battery: battery.examinations(anatomy_of_a_step.tasks(battery.runtimes, NETWORK, 32)),
    "many networks at once": Battery.models,
    "calibrations": Battery.calibrations,
    "single operations": Battery.operations,
    "what feeds a step": Battery.pipelines,
    "sweeps by Keras": partial(Battery.sweeps, quick=False),
    "epochs to an accuracy": Battery.accuracy,
}
# Asked in addition if a graphics card is measured, or if named.
ABOUT_CARDS: Questions = {
    "products in bfloat16": lambda battery: battery.operations(_bfloat16),
    "the traps": Battery.traps,
    "first use": lambda battery: battery.operations(
        lambda of: single_operations.first_uses(of, single_operations.FIRST_SIZES[1])
    ),
    "overlap": lambda battery: battery.operations(_overlaps),
    "fusion": lambda battery: battery.operations(lambda of: single_operations.fusions(of, 32, SINE_DEPTH)),
    "ways to launch a step": partial(
        Battery.examined, kind=LAUNCHES, worker="torch", sizes=backend_race.BATCH_SIZES, devices=["gpu"]
    ),
    "CUDA calls of a step": partial(Battery.examined, kind=CALLS, devices=["gpu"]),
    "larger networks": Battery.larger_networks,
    "profiles": Battery.profiles,
}


# By the name that plans and `--questions` use: each function returns a battery's missing tasks.
QUESTIONS: Questions = {**_USUAL, **ABOUT_CARDS}
FURTHER_ROUNDS: Questions = {
    f"{RACE}, round {number}": lambda battery, number=number: battery.repetitions(all_cells(battery.runtimes), number)
    for number in range(2, ENOUGH_ROUNDS + 1)
}


def no_size(task: OperationTask, earlier: Sequence[OperationPoint]) -> OperationPoint | None:
    """Return why this size is not tried on this machine; None if it is."""
    return refused(task, earlier, usable_memory_bytes, OPERATION_LIMIT_S[task.runtime.device])


def unanswered(todo: Sequence[OperationTask], records: Sequence[Record]) -> bool:
    """Whether one of these sizes, in ascending order, is neither stored nor too large for this machine."""
    known = single_operations.found(todo, records)
    earlier: list[OperationPoint] = []
    for task in todo:
        point = known.get(task) or no_size(task, earlier)
        if point is None:
            return True
        earlier.append(point)
    return False


def pipelines(runtimes: Sequence[Runtime]) -> list[PipelineTask]:
    devices = [device for device in DEVICES if any(runtime.device == device for runtime in runtimes)]
    plain = [replace(PIPELINE, preprocessing_ms=0.0)] if "gpu" in devices else []
    return [
        task
        for device in devices
        for pipeline in (PIPELINE, *plain)
        for task in single_operations.pipeline_tasks(pipeline, device)
        if task.runtime in runtimes
    ]


def pool_fits(backend: str) -> bool:
    """Whether one typical process of this backend per core stays below `MAX_POOL_BYTES`."""
    return usable_cores() * POOL_BYTES.get(backend, KERAS_POOL_BYTES) < MAX_POOL_BYTES


def why_no_pool(method: parallel_sweeps.Method) -> str:
    """Return why a sweep in processes is skipped here; empty if it is not, or needs no processes."""
    if method.strategy not in POOLED:
        return ""
    fits = pool_fits(method.runtime.backend)
    return "" if fits else f"{method.label}: {usable_cores()} processes would need more than 4 GiB"


def experiment_cells(runtimes: Sequence[Runtime]) -> list[Cell]:
    """Return the cells of the article's three experiments that the race does not include."""
    wanted = [(NETWORK, size) for size in ARTICLE_SIZES] + [(Network.parse(t), 32) for t in ARTICLE_ARCHITECTURES]
    extra = [(n, size) for n, size in wanted if n != NETWORK or size not in backend_race.BATCH_SIZES]
    return [Cell(runtime, size, network) for runtime in runtimes for network, size in extra]


def record_of_point(point: Point, runtime: Runtime) -> Record:
    """Return a record with three blocks: the point's lowest, median and highest seconds.

    Args:
        point: At batch size 32, and without `why_not`.
        runtime: Where it was measured.
    """
    subject = {
        "strategy": point.strategy,
        "device": point.device,
        "count": point.count,
        "batch_size": 32,
        "hidden": NETWORK.label,
    }
    measured = Measurement((point.low_s, point.each_s, point.high_s), 1, Ended.CAP, warnings=point.disturbed)
    return Record.of(Kind.MODELS, subject, measured, versions(runtime))


MAX_EXPECTED_S = 36_000.0


def read_plan(path: Path, questions: Collection[str]) -> list[Entry]:
    """Read a plan: TOML with one table `[[ask]]` per question, see recorded/plan.toml.

    Args:
        path: The file.
        questions: Valid names of questions.

    Raises:
        Unusable: The file cannot be read, or an entry is invalid.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise Unusable(f"expected a plan in TOML, got {path.name} ({what}); see recorded/plan.toml") from error
    asked = content.get("ask")
    if not isinstance(asked, list) or not asked or len(content) > 1:
        raise Unusable(
            f"{path.name}: expected only tables [[ask]], got {', '.join(content) or 'none'}; see recorded/plan.toml"
        )
    return [_entry(f"{path.name}, question {number}", one, questions) for number, one in enumerate(asked, 1)]


def _entry(where: str, one: object, questions: Collection[str]) -> Entry:
    match one:
        case {
            "question": str(question),
            "of": [str(), *_] as of,
            "expected_s": int() | float() as expected_s,
            **others,
        } if not others and 0 < expected_s <= MAX_EXPECTED_S:
            entry = Entry(question, tuple(map(str, of)), float(expected_s))
        case _:
            raise Unusable(
                f'{where}: expected a `question`, runtimes such as ["*/gpu"] in `of`, and `expected_s` above 0'
                f" and up to {MAX_EXPECTED_S:,.0f}, and nothing else, got {one}; correct it"
            )
    if entry.question not in questions:
        raise Unusable(f"{where}: expected one of {', '.join(questions)}, got {entry.question!r}; choose from these")
    anywhere = [
        Runtime(one.key, device, precision).address
        for one in BACKENDS.values()
        for device in one.devices
        for precision in one.offered(device)
    ]
    if unknown := [pattern for pattern in entry.of if not fnmatch.filter(anywhere, pattern)]:
        raise Unusable(
            f"{where}: expected a runtime such as jax-epoch/gpu, or a pattern, got {unknown[0]!r}; correct it"
        )
    return entry


def not_here(plan: Sequence[Entry], runtimes: Sequence[Runtime]) -> dict[Entry, str]:
    """Return a sentence for each entry of the plan that cannot run here.

    Args:
        plan: The entries.
        runtimes: Usable runtimes of this machine.

    Raises:
        Unusable: The plan needs a graphics card, but none is usable; or no entry can run here.
    """
    every = all_runtimes()
    on_cards = [one for entry in plan for one in entry.among(every) if one.device == "gpu"]
    if on_cards and not any(one in runtimes for one in on_cards):
        reasons = [f"{gap.reason}; {gap.remedy}" for one in on_cards if (gap := unavailable(one)) is not None]
        old_driver_first = sorted(reasons, key=lambda why: "driver" not in why)  # the user can update it
        raise Unusable(f"expected a usable GPU, because the plan asks for one, but {old_driver_first[0]}")
    found: dict[Entry, str] = {}
    for entry in plan:
        if not entry.among(runtimes):
            gaps = [f"{one.label}: {gap.reason}" for one in entry.among(every) if (gap := unavailable(one)) is not None]
            found[entry] = f"{entry.title}: {gaps[0] if gaps else 'this machine has none of these'}"
    if plan and len(found) == len(plan):
        raise Unusable(f"expected a question this machine can answer, but {found[plan[0]]}; install it, or ask another")
    return found


MINUTES = 9.5
# An upper limit, not measured: there are twice as many runtimes, and some compile for minutes.
MINUTES_WITH_A_CARD = 60.0


def resume(path: Path, store: Store) -> Export | None:
    """Load an earlier recording into the store, even if another version of this code made it.

    Args:
        path: The recording; it need not exist.
        store: Gets the records and curves, without failures, so that these are tried again.

    Raises:
        NoExport: The file is not an export.
        Unusable: The file comes from another machine.
    """
    if not path.exists():
        return None
    export = read_export(path)
    other = next((record for record in export.records if record.machine != machine_id()), None)
    if other is not None:
        raise Unusable(
            f"expected a new file or one from this machine, but {path.name} was recorded on another"
            f" ({other.machine_line}); choose another name"
        )
    measured = [row for row in export.tables["measurements"] if row["kind"] != Kind.FAILURE]
    store.merge({**export.tables, "measurements": measured})
    return export


def notes_of(export: Export | None) -> dict[str, Any]:
    return {"recorded_at": "", "took_s": 0.0, "asked": [], **(export.about if export else {})}


def merge(path: Path, other: Path) -> None:
    """Merge another recording of the same machine into this one; rows of all versions of this code are kept.

    Raises:
        NoExport: A recording cannot be read.
        Unusable: The file cannot be written, or the recordings are of different machines.
    """
    if path.resolve() == other.resolve():
        raise Unusable(f"expected two recordings, got {path.name} twice; name the other one")
    with alone(path), tempfile.TemporaryDirectory() as folder:
        exports = [read_export(path), read_export(other)]
        lines = {record.machine: record.machine_line for export in exports for record in export.records}
        if len(lines) > 1:
            of = [
                (file.name, export.records[0].machine_line) for file, export in zip((path, other), exports, strict=True)
            ]
            raise Unusable(
                f"expected two recordings of one machine, but {of[0][0]} is from {of[0][1]} and {of[1][0]} from"
                f" another, {of[1][1]}; keep separate files: pages read all files in recorded/"
            )
        store = Store(Path(folder) / "merged.sqlite")
        import_from(path, store)
        rows, new = import_from(other, store)
        # Notes of the later recording take precedence.
        early, late = sorted((notes_of(one) for one in exports), key=itemgetter("recorded_at"))
        together = {"took_s": early["took_s"] + late["took_s"], "asked": sorted({*early["asked"], *late["asked"]})}
        whole = write(path, store, {**early, **late, **together})
        by_version = Counter(record.sources for record in store.records())
    print(f"{other.name}: {rows:,} rows, {new:,} of them new; {path.name}: {whole:,} rows")
    for sources, count in by_version.most_common():
        which = "this version" if sources == source_digest() else "another version"
        print(f"measurements by {which} of the code ({sources}): {count:,}")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock the file, because two programs that write it would lose each other's measurements.

    Raises:
        Unusable: Another program holds the lock.
    """
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"less-overhead-record-{name}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise Unusable(
            f"expected no other recording into {path.name}, but one is running; wait until it ends, or choose another"
            " name"
        ) from error
    try:
        yield
    finally:
        lock.release()


def write(path: Path, store: Store, noted: Mapping[str, object] | None = None) -> int:
    """Write all rows of the store to the file atomically, without losses, and return their number.

    Args:
        path: Replaced if it exists.
        store: The store to write.
        noted: Notes about the recording.

    Raises:
        StoreUnusable: The store cannot be read.
        Unusable: The file cannot be written.
    """
    try:
        return export_to(path, store, noted, with_losses=False)  # losses take megabytes, and no page compares them
    except StoreUnusable:
        raise
    except OSError as error:
        raise Unusable(
            f"expected to write {path}, but it cannot be written ({error.strerror}); free the disk, or choose another"
            " folder. Its old contents are still there"
        ) from error


def about(battery: Battery, took_s: float) -> dict[str, object]:
    """Return the notes on a recording: command, machine, libraries, and what is missing.

    Args:
        battery: With everything that can be measured here, requested or not.
        took_s: Total seconds of all its runs.
    """
    left = battery.left()
    return {
        "command": this_command(),
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(took_s, 1),
        "complete": not left,
        "left": left,
        "asked": sorted(battery.asked),
        "left_out": battery.left_out(),
        "machine": this_machine().line,
        "details": details(),
        "data": battery.facts.source if battery.facts else "",
        "libraries": {runtime.label: versions(runtime) for runtime in battery.runtimes},
        "not_here": [
            [runtime.label, gap.reason, gap.remedy]
            for runtime in all_runtimes()
            if (gap := unavailable(runtime)) is not None
        ],
    }


def record(
    path: Path,
    minutes: float = MINUTES,
    runtimes: Sequence[Runtime] = (),
    titles: Collection[str] = (),
    plan: Sequence[Entry] = (),
) -> bool:
    """Measure this machine for at most this many minutes, and return whether the request is complete.

    Reports to standard output. Ctrl-C or SIGTERM ends it; what was measured by then is in the file.

    Args:
        path: The recording; an existing one is resumed.
        minutes: Time limit.
        runtimes: Runtimes to measure; empty: all that run here.
        titles: Questions to answer; empty: all.
        plan: Entries in order; empty: all questions.

    Raises:
        NoExport: The file cannot be read.
        Unusable: The plan needs a graphics card, but none is usable; or the file is unusable or locked.
    """
    cancel, began = Cancel(), time.monotonic()

    def tell(text: str) -> None:
        say(time.monotonic() - began, minutes * 60, text)

    usable = usable_runtimes()
    elsewhere = not_here(plan, runtimes or usable)
    plan = [entry for entry in plan if entry not in elsewhere]
    with alone(path), tempfile.TemporaryDirectory() as folder:
        store, engine = Store(Path(folder) / "record.sqlite"), Engine()
        before = notes_of(resume(path, store))
        battery = Battery(
            engine,
            store,
            cancel,
            runtimes or usable,
            titles=titles,
            plan=plan,
            asked=set(before["asked"]),
            until_s=began + minutes * 60,
            traces=path.with_name(f"{path.stem}_traces"),
        )

        def so_far() -> dict[str, Any]:
            took_s = before["took_s"] + time.monotonic() - began
            return {**before, "took_s": took_s, "asked": sorted(battery.asked), "complete": False}

        write(path, store, so_far())  # fail at once, and not after ten minutes, if the file cannot be written
        known = f"{this_machine().line}; {len(usable)} runtimes; {len(store.records())} figures already recorded"
        say(0, minutes * 60, known)
        try:
            with time_limit(minutes, cancel) as stopped:
                for note in battery.run():
                    if note.text:
                        tell(note.text)
                    else:
                        write(path, store, so_far())
        finally:
            engine.close()
        whole = replace(battery, runtimes=usable, titles=(), plan=())
        rows, missing = write(path, store, about(whole, so_far()["took_s"])), battery.left()
    for reason in (*elsewhere.values(), *battery.left_out()):
        tell(f"skipped: {reason}")
    ended = "complete" if not missing else "the time is up" if cancel.is_set() else "over"
    why = battery.lost or ("stopped" if stopped.is_set() else ended)
    left = ", ".join(missing)
    rest = f"; left: {left}. The same command continues from here" if left else ""
    failures = sum(one.kind == Kind.FAILURE for one in read_export(path).records)
    failed = f", {failures} could not be measured" if failures else ""
    tell(f"{why}: {rows:,} rows in {path.name}{failed}{rest}")
    return not missing


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.cli.record", description=__doc__)
    parser.add_argument("file", type=Path, help="the file to write or continue")
    limits = f"default {MINUTES:g}, with a GPU {MINUTES_WITH_A_CARD:g}"
    parser.add_argument("--minutes", type=float, help=f"time limit ({limits})")
    parser.add_argument("--card", type=int, help="which GPU, if there are several: 0 (default), 1, …")
    parser.add_argument(
        "--runtimes", nargs="+", default=[], metavar="NAME", help="only these: jax-epoch/gpu numpy/cpu …"
    )
    parser.add_argument("--questions", nargs="+", default=[], metavar="NAME", help='only these: ceilings "race" …')
    parser.add_argument(
        "--plan", type=Path, metavar="FILE.toml", help="what to ask, and in which order; see recorded/plan.toml"
    )
    parser.add_argument(
        "--merge", type=Path, metavar="OTHER.json", help="measure nothing: merge that recording into FILE"
    )
    options = parser.parse_args(arguments)
    try:
        if options.minutes is not None:
            check_minutes(options.minutes, 600, 9)
        if options.merge is not None:
            merge(options.file, options.merge)
            return 0
        plan = read_plan(options.plan, QUESTIONS) if options.plan is not None else []
        choose_card(options.card)
        minutes = options.minutes or (MINUTES_WITH_A_CARD if cards() else MINUTES)
        usable = {runtime.address: runtime for runtime in usable_runtimes()}
        runtimes = [usable[name] for name in _known("runtimes", options.runtimes, usable)]
        titles = _known("questions", options.questions, QUESTIONS)
        return 0 if record(options.file, minutes, runtimes, titles, plan) else INCOMPLETE
    except (Unusable, NoExport, StoreUnusable) as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE


def choose_card(number: int | None) -> None:
    """Hide all GPUs but one from this program, because a recording is of one card.

    Args:
        number: From 0; None: the first, if there is one.

    Raises:
        Unusable: There is no such GPU.
    """
    found = cards()
    if number is None and len(found) < 2:
        return
    if not 0 <= (number or 0) < len(found):
        raise Unusable(
            f"card: expected 0 to {len(found) - 1}, got {number}"
            if found
            else f"card: expected a machine with a working driver, got {number} on one without; omit --card"
        )
    if number is None:
        print(f"{len(found)} GPUs: recording the first; for another, use --card 1 and a separate file", flush=True)
    os.environ["CUDA_VISIBLE_DEVICES"] = found[number or 0].uuid


def _known(what: str, named: Sequence[str], known: Collection[str]) -> Sequence[str]:
    if unknown := [name for name in named if name not in known]:
        raise Unusable(f"{what}: expected some of {', '.join(known)}, got {unknown[0]}; choose from these")
    return named


if __name__ == "__main__":
    sys.exit(main())
