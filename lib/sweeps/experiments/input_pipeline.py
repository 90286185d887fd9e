"""What feeds a step, measured pipeline by pipeline.

Each pipeline is an examination of its own, so that one that raises an error costs no other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import numpy as np

from lib.model.backends.registry import Runtime, unavailable, versions
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import stored
from lib.sweeps.experiments.failures import Attempts
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request, Ticket
from lib.timing.comparison import median_interval
from lib.timing.measurement import Measurement
from lib.timing.profiling.input_pipeline import QUANTITIES
from lib.timing.profiling.request import FEEDS, Examination, Pipeline

NETWORK = Network((128,))


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
    task: PipelineTask, attempts: Attempts, engine: Engine, store: Store, cancel: Cancel, turn: Ticket
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
