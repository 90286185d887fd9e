"""How experiments measure: step times of programs, looked up or measured, with failures recorded in place of results.

A lost graphics card ends only its own rows.
"""

import statistics
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lib.model.backends.base import FirstCall, Steps
from lib.model.backends.packing import Shape, arrange
from lib.model.backends.registry import ALL_DEVICES, Runtime, versions
from lib.sweeps.storage.records import Kind, Record, current, undisturbed
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Part, evaluation_flops, step_flops, steps_of
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import CardLost, Job, Message, Progress, TrainingFailed
from lib.sweeps.workers.queue import AnyRequest, Cancel
from lib.timing.measurement import Ended, Measurement, Watch

PROBE_S = 0.2  # of steps
MAX_DISTURBED = 3  # attempts to measure a program without a disturbance

Subject = Mapping[str, str | int | float]


@dataclass(frozen=True)
class StepTime:
    """A program's step time in seconds: median, smallest and largest over its undisturbed measurements."""

    step_s: float
    first_call_s: float
    low_s: float = 0.0
    high_s: float = 0.0
    disturbed: tuple[str, ...] = ()  # the disturbances, if no measurement was undisturbed
    times: int = 1  # number of measurements

    @classmethod
    def of(cls, records: Sequence[Record]) -> "StepTime":
        """Return the step time from records of one program, using the undisturbed ones if there are any.

        Args:
            records: At least one, oldest first, with `first_call_s` in their subjects.

        Returns:
            Median, smallest and largest of their median step times; first call and warnings of the latest one.
        """
        good = undisturbed(records)
        steps_s = sorted(record.measurement.median_s for record in good)
        return cls(
            step_s=statistics.median(steps_s),
            first_call_s=float(good[-1].subject["first_call_s"]),
            low_s=steps_s[0],
            high_s=steps_s[-1],
            disturbed=good[-1].warnings,
            times=len(records),
        )


def program_of(part: Part) -> dict[str, str | int | float]:
    """Return the properties that identify a part's program: parts with equal ones have the same step time."""
    first = part.trainings[0]
    ends: dict[str, str | int | float] = {"inputs": first.network.n_inputs, "classes": first.network.n_classes}
    if not part.devices:
        return {"by": "alone", "hidden": first.network.label, "batch_size": first.batch_size} | ends
    shape = Shape.of([training.network for training in part.trainings])
    grid = arrange([training.seed for training in part.trainings], part.devices)
    return {
        "by": "stack",
        "hidden": "→".join(map(str, shape.widths)),
        "exits": ",".join(map(str, shape.exits)),
        "batch_size": first.batch_size,
        "rows": len(grid.places),
        "columns": len(grid.places[0]),
        "devices": part.devices,
    } | ends


def measured_s(step_times: Mapping[Part, StepTime]) -> float:
    """Seconds for the steps and evaluations of these parts (at least one), without first calls."""
    flops_per_s = max(step_flops(part) / step_time.step_s for part, step_time in step_times.items())
    return sum(
        steps_of(part) * step_time.step_s + evaluation_flops(part) / flops_per_s
        for part, step_time in step_times.items()
    )


def step_times(
    plan: Sequence[Part],
    engine: Engine,
    store: Store,
    runtime: Runtime,
    cancel: Cancel,
    request: AnyRequest,
    again: bool = False,
    times: int = 1,
    probe_s: float = PROBE_S,
) -> Generator[Message, None, dict[Part, StepTime]]:
    """Look up the step time of each part's program in the store, or measure it in the runtime's worker.

    Each call measures a program at most once. Disturbed ones are measured up to `MAX_DISTURBED` times in total.

    Args:
        plan: The parts.
        engine: Measures in its workers, in turn.
        store: Where step times are looked up and stored.
        runtime: Backend and device to train on.
        cancel: Ends the measuring early.
        request: Viewer and urgency.
        again: Measure even if stored.
        times: Measure a program while fewer than this many of its step times are stored.
        probe_s: Seconds of steps per measurement.

    Yields:
        The engine's messages, without `Progress`.

    Returns:
        The step times by part; parts whose program is neither stored nor measured are missing.
    """
    by_program: dict[tuple, list[Part]] = {}
    for part in plan:
        by_program.setdefault(tuple(program_of(part).items()), []).append(part)
    found: dict[Part, StepTime] = {}
    for program, of_it in by_program.items():
        subject = dict(program) | runtime.subject
        known = current(store.records(Kind.STEP_TIME), Kind.STEP_TIME, subject, runtime)
        spoilt = len(known) < MAX_DISTURBED and all(record.warnings for record in known)
        if (again or spoilt or len(known) < times) and not cancel.is_set():
            record = yield from _probed(subject, of_it[0], engine, runtime, cancel, request, probe_s)
            if record is not None:
                store.add(record)
                known.append(record)
        found |= dict.fromkeys(of_it, StepTime.of(known)) if known else {}
    return found


def _probed(
    subject: Subject, part: Part, engine: Engine, runtime: Runtime, cancel: Cancel, request: AnyRequest, probe_s: float
) -> Generator[Message, None, Record | None]:
    """Train the part for `probe_s` of steps; None if it ended before the first step."""
    job = Job(runtime, part.trainings if part.devices else part.trainings[:1], part.devices, probe_s=probe_s)
    first_call_s, reports = 0.0, list[Steps]()
    watch = Watch(runtime.on_gpu)
    for message in engine.run([job], cancel, request):
        if not isinstance(message, Progress):
            yield message
        elif isinstance(message.event, FirstCall):
            first_call_s += message.event.first_call_s
        elif isinstance(message.event, Steps):
            reports.append(message.event)
    if not reports:
        return None
    spent_s, steps = typical(reports)
    measured = watch.marked(Measurement((spent_s,), steps, Ended.CAP))
    return Record.of(Kind.STEP_TIME, {**subject, "first_call_s": first_call_s}, measured, versions(runtime))


def typical(reports: Sequence[Steps]) -> tuple[float, int]:
    """Return seconds and steps of the report with median speed; of an even number, the slower of the middle two.

    Not the fastest, because few steps of an epoch are that fast; and never the first, because its memory is not cached
    yet.

    Args:
        reports: At least one. Reports that begin at the same step of the same epoch belong to networks of one stack,
            so their seconds are added.

    >>> import numpy as np
    >>> losses = np.ones(100, np.float32)
    >>> typical([Steps(0, 0, losses, 0.5), Steps(0, 100, losses, 1.0), Steps(0, 100, losses, 1.0)])
    (2.0, 100)
    >>> typical([Steps(0, 100 * n, losses, seconds) for n, seconds in enumerate((9.0, 1.0, 2.0, 3.0))])
    (2.0, 100)
    """
    whole: dict[tuple[int, int], tuple[float, int]] = {}
    for report in reports:
        whole[report.first] = (whole.get(report.first, (0.0, 0))[0] + report.train_s, len(report.losses))
    later = {first: report for first, report in whole.items() if first > (0, 0)} or whole
    by_speed = sorted(later.values(), key=lambda report: report[0] / report[1])
    return by_speed[len(by_speed) // 2]


GIVE_UP_AFTER = 2  # consecutive failures of a library on a device
# Devices on which a failure is only recorded; on a CPU, an error is a fault of the program itself.
ALL_BUT_THE_CPU = tuple(device for device in ALL_DEVICES if device != "cpu")

T = TypeVar("T")


def failure(task: str, runtime: Runtime, subject: Subject, sentence: str) -> Record:
    """Return a record in place of a failed measurement: without blocks, and with the reason as its warning.

    Args:
        task: Description of the measurement.
        runtime: Where it failed.
        subject: Subject of the intended record.
        sentence: The reason.
    """
    named = {"task": task, **runtime.subject, **subject}
    return Record(Kind.FAILURE, named, (), 1, Ended.CAP.name, (sentence,), versions(runtime))


def words(failed: Record) -> str:
    runtime = Runtime(*(str(failed.says(name)) for name in ("backend", "device", "precision")))
    return f"{runtime.label}: {'; '.join(failed.warnings)}"


class Attempts:
    """Measures rows one after another; a failed row yields its reason, and the others continue.

    A runtime is given up after `GIVE_UP_AFTER` failures in a row, or if its graphics card is lost.

    Args:
        devices: Where a row may fail; on other devices, errors are raised.
        together: Maps a runtime to a group that fails together; by default each runtime is its own group.
    """

    def __init__(
        self, devices: Collection[str] = ALL_DEVICES, together: Callable[[Runtime], object] = lambda runtime: runtime
    ) -> None:
        self._devices, self._together = devices, together
        self._in_a_row: dict[object, int] = {}
        self._given_up: dict[object, str] = {}
        self._marked: set[tuple] = set()

    def given_up(self, runtime: Runtime) -> str:
        return self._given_up.get(self._together(runtime), "")

    def row(self, runtime: Runtime, measure: Callable[[], Iterator[T]]) -> Generator[T, None, str]:
        """Yield from `measure`; return why it failed, in a sentence, or an empty text.

        Args:
            runtime: Where the row is measured.
            measure: Not called if the runtime was given up.

        Raises:
            TrainingFailed: On a device where no row may fail.
        """
        if why := self.given_up(runtime):
            return why
        try:
            yield from measure()
        except TrainingFailed as error:
            if runtime.device not in self._devices:
                raise
            why, which = str(error), self._together(runtime)
            self._in_a_row[which] = self._in_a_row.get(which, 0) + 1
            if isinstance(error, CardLost):
                self._given_up[which] = why
            elif self._in_a_row[which] >= GIVE_UP_AFTER:
                self._given_up[which] = f"no longer tried after {GIVE_UP_AFTER} failures in a row: {why}"
        else:
            self._in_a_row[self._together(runtime)] = 0
        return why

    def marked(
        self, store: Store, task: str, runtime: Runtime, subject: Subject, measure: Callable[[], Iterator[T]]
    ) -> Iterator[T | Record]:
        """Like `row`, but store and yield the failure as a record of kind `FAILURE`, once per subject.

        Args:
            store: Where the record goes.
            task: Description of the measurement.
            runtime: Where the row is measured.
            subject: Subject of the intended record.
            measure: Not called if the runtime was given up.
        """
        why = yield from self.row(runtime, measure)
        if why and (row := (runtime, *sorted(subject.items()))) not in self._marked:
            self._marked.add(row)
            store.add(marked := failure(task, runtime, subject, why))
            yield marked
