"""Step times of programs, as measured, and what follows from them."""

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from lib.model.backends.base import FirstCall, Steps
from lib.model.backends.packing import Shape, arrange
from lib.model.backends.registry import Runtime, versions
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import Part, evaluation_flops, step_flops, steps_of
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import How, Message, Progress
from lib.sweeps.workers.queue import AnyRequest, Cancel
from lib.timing.measurement import Ended, Measurement

PROBE_S = 0.2  # of steps
MAX_DISTURBED = 3  # times that a program is measured in the hope that nothing disturbs it

Subject = dict[str, str | int | float]


@dataclass(frozen=True)
class StepTime:
    """What one program takes, in seconds: median, smallest and largest of its step times that nothing disturbed."""

    step_s: float
    first_call_s: float
    low_s: float = 0.0
    high_s: float = 0.0
    disturbed: tuple[str, ...] = ()  # what spoilt the measurements, where there are no others
    times: int = 1  # that it was measured

    @classmethod
    def of(cls, records: Sequence[Record]) -> "StepTime":
        """The step time from records of one program, of those that nothing disturbed where there are any.

        Args:
            records: At least one, the oldest first; `first_call_s` is in their subjects.

        Returns:
            The median, smallest and largest of their median step times; first call and warnings are those of the
            latest.
        """
        good = [record for record in records if not record.warnings] or records
        steps_s = sorted(record.measurement.median_s for record in good)
        first_call_s = float(good[-1].subject["first_call_s"])
        return cls(statistics.median(steps_s), first_call_s, steps_s[0], steps_s[-1], good[-1].warnings, len(records))


def program_of(part: Part) -> Subject:
    """What identifies the program that trains a part: parts with the same take the same time a step."""
    first = part.trainings[0]
    ends: Subject = {"inputs": first.network.n_inputs, "classes": first.network.n_classes}
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
    """Seconds of the steps and evaluations of these parts, at least one, without first calls."""
    flops_per_s = max(step_flops(part) / step_time.step_s for part, step_time in step_times.items())
    return sum(
        steps_of(part) * step_time.step_s + evaluation_flops(part) / flops_per_s
        for part, step_time in step_times.items()
    )


@dataclass(frozen=True)
class StepTimes:
    """Step times of programs: looked up in the store, or measured in the runtime's worker.

    Args:
        engine: Its workers measure, and its queue says when.
        store: Where they are looked up and stored.
        runtime: What trains.
        cancel: Ends the measuring early.
        request: For whom, and how urgently, a turn is wanted.
        again: Measure what is stored too.
        times: A program is measured, once a call, while fewer of its step times than these are stored.
        probe_s: Seconds of steps each time.
    """

    engine: Engine
    store: Store
    runtime: Runtime
    cancel: Cancel
    request: AnyRequest
    again: bool = False
    times: int = 1
    probe_s: float = PROBE_S

    def of(self, plan: Sequence[Part]) -> Generator[Message, None, dict[Part, StepTime]]:
        """Step times of a plan's parts: each program is looked up, or measured.

        What was disturbed each time is measured again, once a call, up to `MAX_DISTURBED` times in all.

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
            subject = dict(program) | self.runtime.subject
            known = current(self.store.records(Kind.STEP_TIME), Kind.STEP_TIME, subject, self.runtime)
            spoilt = len(known) < MAX_DISTURBED and all(record.warnings for record in known)
            if (self.again or spoilt or len(known) < self.times) and not self.cancel.is_set():
                known += yield from self._measured(subject, of_it[0])
            found |= dict.fromkeys(of_it, StepTime.of(known)) if known else {}
        return found

    def _measured(self, subject: Subject, part: Part) -> Generator[Message, None, list[Record]]:
        """Begin the part, and end it after `probe_s` of steps; no record where it ended before the first of them."""
        chosen = part.trainings if part.devices else part.trainings[:1]
        how = How(devices=part.devices, probe_s=self.probe_s)
        first_call_s, reports = 0.0, list[Steps]()
        with self.engine.watch(self.runtime) as watch:
            for message in self.engine.run(self.runtime, chosen, self.cancel, how, self.request):
                if not isinstance(message, Progress):
                    yield message
                elif isinstance(message.event, FirstCall):
                    first_call_s += message.event.first_call_s
                elif isinstance(message.event, Steps):
                    reports.append(message.event)
        if not reports:
            return []
        spent_s, steps = typical(reports)
        measured = watch.marked(Measurement((spent_s,), steps, Ended.CAP))
        record = Record.of(Kind.STEP_TIME, subject | {"first_call_s": first_call_s}, measured, versions(self.runtime))
        self.store.add(record)
        return [record]


def typical(reports: Sequence[Steps]) -> tuple[float, int]:
    """Seconds and steps of a probe's report of median speed; of an even number the slower of the two in the middle.

    Not the quickest, which is a step that a whole epoch has few of; and none of the first, whose memory is not in the
    caches yet.

    Args:
        reports: At least one. Those that begin at the same step of the same epoch are networks of one stack, whose
            seconds add up.

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
