"""What feeds a step, measured pipeline by pipeline; what bounds it and what would help; and where operations run.

Each pipeline is an examination of its own, so that one that raises an error costs no other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum

import numpy as np

from lib.backends.environment_variables import complete_environment
from lib.backends.registry import Runtime, environment_of, unavailable, versions
from lib.experiments.anatomy_of_a_step import stored
from lib.experiments.failures import Attempts
from lib.hardware.nvidia_smi import cards
from lib.profiling.fresh_model import FRESH, REPEATED
from lib.profiling.input_pipeline import QUANTITIES
from lib.profiling.request import FEEDS, Examination, Pipeline
from lib.spec import Network
from lib.storage.current import current
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.comparison import Comparison, Verdict, compared, median_interval
from lib.timing.diagnosis import INPUT_SHARE
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine, Turn
from lib.workers.messages import TrainingFailed
from lib.workers.notes import Note, note_of
from lib.workers.process import Process
from lib.workers.queue import Request

NETWORK = Network((128,))
ROWS = (10, 100, 1_000, 10_000, 100_000)
SIZES = (10, 32, 128, 512, 2_048)
PREPROCESSING_MS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SHARE_OF_MEMORY = 0.5
MODELS = (NETWORK, Network((4_096, 4_096)))  # small and large
TENSORFLOW = "keras-tensorflow"
# What may be put in place of another feed: of the same library, and with the same images in each epoch only if that is
# allowed.
_SAME_EACH_EPOCH = {"cache"}


def check_memory(pipeline: Pipeline, free_bytes: float) -> None:
    """Refuse rows that do not fit, before any of them is allocated.

    Args:
        pipeline: Its rows are what counts.
        free_bytes: Memory that is free now.

    Raises:
        ValueError: They need more than `SHARE_OF_MEMORY` of it; the text is a sentence for the person.
    """
    if pipeline.needed_bytes > SHARE_OF_MEMORY * free_bytes:
        raise ValueError(
            f"rows: expected at most {SHARE_OF_MEMORY:.0%} of the free memory ({free_bytes / 1e9:.1f} GB), got"
            f" {pipeline.rows:,} rows, which need up to {pipeline.needed_bytes / 1e9:.1f} GB with the copies of the"
            " libraries; choose fewer rows"
        )


@dataclass(frozen=True)
class PipelineTask:
    """Pipelines that are measured in turns by one backend on one device: one, or two that are compared."""

    runtime: Runtime
    pipelines: tuple[Pipeline, ...]

    @property
    def subject(self) -> dict[str, str | int | float]:
        """The subject of its records: the first pipeline, and the second one in a line, empty where there is none."""
        first, *others = self.pipelines
        return {
            **self.runtime.subject,
            "hidden": NETWORK.label,
            **asdict(first),
            "holds_lock": int(first.holds_lock),
            "beside": "".join(map(repr, others)),
        }

    def latest(self, records: Sequence[Record]) -> dict[str, Record]:
        """The latest record that is still valid, by its name."""
        known = current(records, Kind.PIPELINE, self.subject, self.runtime)
        return {str(record.subject["name"]): record for record in known}

    def found(self, records: Sequence[Record]) -> "tuple[Figures, ...]":
        """The latest valid figures of each pipeline; empty while one is missing."""
        latest = self.latest(records)
        found = [_figures(pipeline, index, latest) for index, pipeline in enumerate(self.pipelines)]
        return () if None in found else tuple(one for one in found if one is not None)


@dataclass(frozen=True)
class Figures:
    """One pipeline: seconds of a batch from the data set alone, of the step alone, and of both together.

    `waits` is what the step waits of `both`; `preprocessing` is of one image alone; `first` is until the first batch.
    """

    pipeline: Pipeline
    data: Measurement
    step: Measurement
    both: Measurement
    waits: Measurement
    preprocessing: Measurement
    first: Measurement

    @property
    def share(self) -> tuple[float, float, float]:
        """Share of the time in which the step waits: median, and the ends of its interval of 95 % (0 to 1: unknown)."""
        shares = self.waits.step_s / self.both.step_s
        low, high = median_interval(shares)
        return float(np.median(shares)), low, min(high, 1.0)

    @property
    def image_s(self) -> np.ndarray:
        """Seconds of an image, data and step together, by round."""
        return self.both.step_s / self.pipeline.batch_size

    @property
    def bound(self) -> "Bound":
        """What holds it up, by the share that is waited."""
        _, low, high = self.share
        if low > INPUT_SHARE:
            return Bound.DATA
        return Bound.STEP if high <= INPUT_SHARE else Bound.UNCLEAR


class Bound(Enum):
    """What a training from a pipeline is bound by."""

    DATA = "its data"
    STEP = "the step"
    UNCLEAR = "either"


@dataclass(frozen=True)
class Raised:
    """A pipeline that could not be measured, and why, in a sentence."""

    pipeline: Pipeline
    why: str


def tasks(settings: Pipeline, device: str) -> list[PipelineTask]:
    """A task for each feed that can run here, all with these settings; the libraries in the order of `FEEDS`."""
    runtimes = [Runtime(backend, device) for backend in FEEDS]
    return [
        PipelineTask(runtime, (replace(settings, feed=feed),))
        for runtime in runtimes
        if unavailable(runtime) is None
        for feed in FEEDS[runtime.backend]
    ]


def measure(
    todo: Sequence[PipelineTask],
    then: Callable[[], PipelineTask | None],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Record | Raised | Note]:
    """Measure these tasks one after the other, and then the one that follows from them, if there is one.

    Args:
        todo: All of these are measured, stored or not.
        then: Called when they are; gives one more task, or None.
        engine: Runs each in the worker of its library.
        store: Where the records go.
        cancel: Ends the measurement when it is set.
        request: Place in the queue of all that runs on this machine.

    Yields:
        Each record as it is measured, `Raised` in place of those of a pipeline that cannot be measured, and notes.
    """
    attempts = Attempts()
    with engine.turn(request) as turn:
        for task in todo:
            yield from _measured(task, attempts, engine, store, cancel, turn)
        if not cancel.is_set() and (last := then()) is not None:
            yield from _measured(last, attempts, engine, store, cancel, turn)


def _measured(
    task: PipelineTask, attempts: Attempts, engine: Engine, store: Store, cancel: Cancel, turn: Turn
) -> Iterator[Record | Raised | Note]:
    if cancel.is_set():
        return
    doing = " beside ".join(pipeline.label for pipeline in task.pipelines)
    examination = Examination("pipelines", NETWORK, task.pipelines[0].batch_size, task.pipelines)

    def examined() -> Iterator[Record | Note]:
        messages = engine.examine(task.runtime, examination, cancel, turn)
        return stored(messages, store, Kind.PIPELINE, task.subject, versions(task.runtime), doing)

    if why := (yield from attempts.row(task.runtime, examined)):
        yield Raised(task.pipelines[0], why)


def _figures(pipeline: Pipeline, index: int, latest: Mapping[str, Record]) -> Figures | None:
    """The figures of the pipeline with this index, from records by name; None while one is missing."""
    if not {f"{index}/{name}" for name in QUANTITIES} <= latest.keys():
        return None
    return Figures(pipeline, **{name: latest[f"{index}/{name}"].measurement for name in QUANTITIES})


def known(todo: Sequence[PipelineTask], records: Sequence[Record]) -> dict[Pipeline, Figures]:
    """The figures of each pipeline that has all of them."""
    return {found.pipeline: found for task in todo for found in task.found(records)}


def all_figures(records: Sequence[Record], device: str) -> list[Figures]:
    """The latest valid figures of every pipeline that was measured by itself on this device, whatever its settings."""
    return [
        figures
        for backend in FEEDS
        for figures in recorded_figures(
            current(records, Kind.PIPELINE, {"backend": backend, "device": device}, Runtime(backend, device))
        )
    ]


def recorded_figures(records: Sequence[Record]) -> list[Figures]:
    """The latest figures of every pipeline that was measured by itself, of records of one machine and device.

    Args:
        records: Of any kind and machine, the oldest first; they may come from anybody.
    """
    by_pipeline: dict[Pipeline, dict[str, Record]] = {}
    for record in records:
        if record.kind == Kind.PIPELINE and record.says("beside") == "":
            with suppress(KeyError, ValueError):  # another version may know other feeds or settings
                by_pipeline.setdefault(_pipeline_of(record.subject), {})[str(record.subject["name"])] = record
    found = [_figures(pipeline, 0, latest) for pipeline, latest in by_pipeline.items()]
    return [figures for figures in found if figures is not None]


def _pipeline_of(subject: Mapping[str, str | int | float]) -> Pipeline:
    """The pipeline of a record that `PipelineTask` wrote.

    Raises:
        KeyError, ValueError: It is no such record, or of another version.
    """
    feed, rows, size, ms, lock = (
        subject[name] for name in ("feed", "rows", "batch_size", "preprocessing_ms", "holds_lock")
    )
    return Pipeline(str(feed), int(rows), int(size), float(ms), bool(lock))


def remedy(chosen: Pipeline, known: Mapping[Pipeline, Figures], same_each_epoch: bool) -> Pipeline | None:
    """What to put in place of a pipeline, by the figures; None where nothing is known to help.

    Bound by its data: the quickest feed of the same library that is certainly faster; failing that, preprocessing by
    code that releases the interpreter's lock, with `AUTOTUNE` or two workers, where it can then run in parallel. Bound
    by the step: the next larger batch, so that fewer steps pay for what each costs beside its arithmetic.

    Args:
        chosen: The pipeline that is looked at.
        known: Figures of it and of others.
        same_each_epoch: Whether the preprocessing gives the same images in every epoch, so that they may be cached.
    """
    if (here := known.get(chosen)) is None or here.bound is Bound.UNCLEAR:
        return None
    if here.bound is Bound.STEP:
        return _larger_batch(chosen)
    feeds = next(feeds for feeds in FEEDS.values() if chosen.feed in feeds)
    allowed = [
        figures
        for pipeline, figures in known.items()
        if pipeline != chosen and pipeline.feed in feeds and (same_each_epoch or pipeline.feed not in _SAME_EACH_EPOCH)
    ]
    faster = [one for one in allowed if difference(one, here, paired=False).verdict is Verdict.FASTER]
    if faster:
        return min(faster, key=lambda one: one.both.median_s).pipeline
    if chosen.holds_lock and chosen.preprocessing_ms:
        return replace(chosen, feed="autotune" if "autotune" in feeds else "loader-2", holds_lock=False)
    return None


def _larger_batch(chosen: Pipeline) -> Pipeline | None:
    for size in SIZES:
        if chosen.batch_size < size <= chosen.rows:
            try:
                return replace(chosen, batch_size=size)
            except ValueError:  # its preprocessing would take too long
                return None
    return None


def difference(one: Figures, other: Figures, paired: bool) -> Comparison:
    """How many times as long the first takes as the second, an image; `paired` where they were measured in turns."""
    return compared(one.image_s, other.image_s, paired)


# Where operations run.


def placement_device() -> str:
    """The device whose placement is looked at: a GPU where TensorFlow can use one."""
    return "cpu" if unavailable(Runtime(TENSORFLOW, "gpu")) is not None else "gpu"


def _placement_subject(device: str) -> dict[str, str | int | float]:
    return {**Runtime(TENSORFLOW, device).subject, "hidden": NETWORK.label, "placement": 1}


def placement(records: Sequence[Record], device: str) -> dict[str, int]:
    """Numbers by name, as of `lib.profiling.placement`, of the latest valid run; empty while there is none."""
    found = current(records, Kind.PIPELINE, _placement_subject(device), Runtime(TENSORFLOW, device))
    return {str(record.subject["name"]): round(record.block_s[0]) for record in found}


def measure_placement(
    device: str, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    """Run a step and store where its operations were.

    Raises:
        WorkerDied: The worker ended; the text says what to do.
        TrainingFailed: TensorFlow could not be asked; the text says why.
    """
    messages = engine.examine(Runtime(TENSORFLOW, device), Examination("placement", NETWORK), cancel, request)
    doing = "where TensorFlow places the operations of a step"
    yield from stored(
        messages, store, Kind.PIPELINE, _placement_subject(device), versions(Runtime(TENSORFLOW, device)), doing
    )


def gpus() -> tuple[int, int | None]:
    """GPUs that the driver lists, and those that TensorFlow can use by what is installed.

    None of the latter where only TensorFlow itself can tell.
    """
    present = len(cards())
    return present, 0 if present and unavailable(Runtime(TENSORFLOW, "gpu")) is not None else None


# Building and cloning a model.


def _model_subject(network: Network, device: str) -> dict[str, str | int | float]:
    return {**Runtime(TENSORFLOW, device).subject, "hidden": network.label, "model": 1}


def models(records: Sequence[Record], device: str) -> dict[Network, dict[str, Measurement]]:
    """What was measured of building each network's model in the latest fresh process, by name; only whole ones."""
    found: dict[Network, dict[str, Measurement]] = {}
    for network in MODELS:
        known = current(records, Kind.PIPELINE, _model_subject(network, device), Runtime(TENSORFLOW, device))
        latest = {str(record.subject["name"]): record.measurement for record in known}
        if {*FRESH, *REPEATED} <= latest.keys():
            found[network] = latest
    return found


def measure_models(
    todo: Sequence[Network], device: str, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    """Build and clone each of these networks' models in a fresh process, and store what that took.

    Yields:
        The records of a process when it is done, and notes.

    Raises:
        TrainingFailed: A process ended early.
    """
    runtime = Runtime(TENSORFLOW, device)
    for network in todo:
        doing = f"{network.label} in a fresh process: TensorFlow is imported, a model built and cloned"
        with engine.turn(request) as turn:
            for message in turn.take(cancel):
                if (note := note_of(message)) is not None:
                    yield note
            if cancel.is_set():
                return
            yield Note(doing)
            with engine.watch(runtime) as watch:
                rows = _from_fresh_process(network, runtime, cancel)
        for name, seconds in rows.items():
            measured = watch.marked(Measurement(seconds, 1, Ended.CAP))
            subject = {**_model_subject(network, device), "name": name, "work": 1.0}
            record = Record.of(Kind.PIPELINE, subject, measured, versions(Runtime(TENSORFLOW, device)))
            store.add(record)
            yield record


def _from_fresh_process(network: Network, runtime: Runtime, cancel: Cancel) -> dict[str, tuple[float, ...]]:
    """Seconds by name; empty if it was cancelled."""
    found: dict[str, tuple[float, ...]] = {}
    arguments = (network.label, runtime.device)
    process = Process(
        "lib.profiling.fresh_model", arguments, complete_environment(runtime), environment_of(runtime).python
    )
    try:
        while not cancel.is_set():
            if process.connection.poll(0.05):
                if (row := process.connection.recv()) is None:
                    return found
                found |= dict([row])
    except (EOFError, OSError) as error:
        raise TrainingFailed(
            f"The fresh process for {network.label} ended after {', '.join(found) or 'nothing'}, often for want of"
            " memory; the terminal has its message. Free memory, and measure again."
        ) from error
    finally:
        process.kill()
    return {}
