"""Which strategy will be quickest: a few measured steps of each, on this machine, and arithmetic.

What is measured is stored with the other records and not measured again. A sweep that is over in seconds anyway is not
worth measuring for: its trainings run one after another.
"""

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from lib.backends.base import FirstCall, Steps
from lib.backends.environment_variables import device_count
from lib.backends.registry import Runtime, versions
from lib.backends.stacked.packing import Shape, arrange
from lib.hardware.cores import usable_cores
from lib.spec import Training
from lib.storage.current import current
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.sweeps.events import Choosing, Picked
from lib.sweeps.process_pool import Expected, PoolTask, is_warm, local_pool, pools_are_possible, run_tasks, typical
from lib.sweeps.strategies import POOLED, STRATEGIES, Limits, Part, parts, pool_groups
from lib.timing.measurement import Ended, Measurement
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import How, Message, Progress
from lib.workers.queue import AnyRequest

PROBE_S = 0.2  # of steps
MAX_PROBES = 3  # programs of a strategy that are measured; the others are taken to have the same speed
WORTH_S = 1.5  # a sweep that one after another is over sooner is not worth measuring for
POOL_START_S = 4.0  # starting processes that import their library and load the images
POOL_WORTH_S = 15.0  # such a start is not made just to see how fast it would be
MAX_DISTURBED = 3  # times that a program is measured in the hope that nothing disturbs it
COMPILED_S = 0.1  # loading a program that was compiled before

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


def step_flops(part: Part) -> float:
    """Arithmetic of one step of a part, padding included."""
    first = part.trainings[0]
    if not part.devices:
        return first.network.step_flops(first.batch_size)
    shape = Shape.of([training.network for training in part.trainings])
    n_places = arrange([training.seed for training in part.trainings], part.devices).n_places
    return shape.step_flops * first.batch_size * n_places


def steps_of(part: Part) -> int:
    """Steps that the part's program makes: of all its trainings one by one, or of the longest of a stack."""
    steps = [training.epochs * training.steps_per_epoch() for training in part.trainings]
    return max(steps) if part.devices else sum(steps)


def evaluation_flops(part: Part) -> float:
    """Arithmetic of all evaluations of a part: a third of a step's, on the validation images."""
    an_epoch = step_flops(part) / part.trainings[0].batch_size / 3 * part.trainings[0].data.n_validation
    epochs = [training.epochs for training in part.trainings]
    return an_epoch * (max(epochs) if part.devices else sum(epochs))


def nominal_s(trainings: Sequence[Training]) -> float:
    """Seconds of the trainings one after another, before anything is measured: 15 μs per step and 150 GFLOP/s."""
    return sum(
        training.epochs
        * training.steps_per_epoch()
        * (15e-6 + training.network.step_flops(training.batch_size) / 150e9)
        for training in trainings
    )


def pick(
    trainings: Sequence[Training],
    limits: Limits,
    runtime: Runtime,
    engine: Engine,
    store: Store | None,
    cancel: Cancel,
    request: AnyRequest,
    worth_s: float = WORTH_S,
    with_processes: bool = True,
) -> Generator[Message | Choosing, None, Picked | None]:
    """Measure the step times that are missing, and pick the strategy that is expected to end first.

    Nothing is measured for a single training, or where one after another should take less than `worth_s`.

    Args:
        trainings: At least one, all for this runtime.
        limits: What a stack may use on the runtime's device.
        runtime: Whose workers or processes train.
        engine: Its workers measure, and its queue says when.
        store: Where step times are looked up and stored; None: all are measured, and none is stored.
        cancel: Ends the measuring early.
        request: For whom, and how urgently, a turn is wanted.
        worth_s: Seconds of work below which nothing is measured.
        with_processes: Whether the pools of processes may be picked too.

    Yields:
        `Choosing` before the first step is measured, then the engine's messages, without `Progress`.

    Returns:
        What was picked, with the seconds expected of each strategy considered; None if cancelled.

    Raises:
        MemoryError: A network does not fit into the memory of `limits`.
        WorkerDied, TrainingFailed: From the worker that measures.
    """
    nominal = nominal_s(trainings)
    if len(trainings) == 1 or nominal < worth_s:
        what = "one training" if len(trainings) == 1 else f"about {nominal:.1f} s of work"
        return Picked("sequential", f"{what}: nothing else would pay for its start", {"sequential": nominal})
    yield Choosing()
    step_times = StepTimes(engine, store, runtime, cancel, request)
    expected: dict[str, float] = {}
    for key in candidates(trainings, limits):
        plan = parts(STRATEGIES[key], trainings, limits)
        found = yield from step_times.of(plan)
        if cancel.is_set():
            return None
        expected[key] = expected_s(plan, found)
    n, best_s = usable_cores(), min(expected.values())
    if with_processes and n > 1 and pools_are_possible(runtime) and (is_warm(runtime) or best_s > POOL_WORTH_S):
        for key in POOLED:
            groups = pool_groups(key, trainings, n, limits)
            if key == "processes" or any(len(group) > 1 for group in groups):
                pooled = yield from step_times.pooled_s(groups, n)
                expected |= {} if pooled is None else {key: pooled}
    if cancel.is_set():
        return None
    best = min(expected, key=expected.__getitem__)
    return Picked(best, in_words(best, expected), expected)


def candidates(trainings: Sequence[Training], limits: Limits) -> list[str]:
    """Keys of the strategies in the engine's workers that divide these trainings differently; `sequential` comes first.

    Raises:
        MemoryError: A network does not fit into the memory of `limits`.
    """
    found, seen = [], []
    for key in ("sequential", "vmap", "padded", "sharded"):
        plan = set(parts(STRATEGIES[key], trainings, limits))
        if key == "sequential" or (plan not in seen and any(part.devices for part in plan)):
            found.append(key)
            seen.append(plan)
    return found


def expected_s(plan: Sequence[Part], step_times: Mapping[Part, StepTime], compiled_s: float = COMPILED_S) -> float:
    """Seconds that a plan takes: steps, evaluations, and the first call of each program.

    Args:
        plan: All parts, one after another.
        step_times: Of the parts that were measured, at least one. One that was not computes as fast as the measured
            part with the most arithmetic.
        compiled_s: For each measured program to be loaded; any other takes the first call of that same part.
    """
    largest = max(step_times, key=_weight)
    flops_per_s = max(step_flops(part) / step_time.step_s for part, step_time in step_times.items())
    programs, total_s = set(), 0.0
    for part in plan:
        step_time = step_times.get(part)
        total_s += steps_of(part) * (step_time or _scaled(step_times[largest], largest, part)).step_s
        total_s += evaluation_flops(part) / flops_per_s
        if (program := tuple(program_of(part).items())) not in programs:
            programs.add(program)
            total_s += compiled_s if step_time else step_times[largest].first_call_s
    return total_s


def _weight(part: Part) -> float:
    """Arithmetic of all its steps."""
    return step_flops(part) * steps_of(part)


def _scaled(step_time: StepTime, of: Part, to: Part) -> StepTime:
    """A part's step time, scaled from another's by the arithmetic of a step."""
    return replace(step_time, step_s=step_time.step_s * step_flops(to) / step_flops(of))


def in_words(best: str, expected: Mapping[str, float]) -> str:
    """The choice and its reason in a sentence.

    Args:
        best: Key of the strategy chosen.
        expected: Seconds by key of strategy, `best` among them.
    """
    others = ", ".join(
        f"{STRATEGIES[key].label} {s:.1f} s" for key, s in sorted(expected.items(), key=lambda kv: kv[1]) if key != best
    )
    return f"{STRATEGIES[best].label}: {expected[best]:.1f} s expected from measured steps" + (
        f"; {others}" if others else ""
    )


@dataclass(frozen=True)
class StepTimes:
    """Step times of programs: looked up in the store, or measured in the runtime's worker.

    Args:
        engine: Its workers measure, and its queue says when.
        store: None: nothing is looked up or stored.
        runtime: What trains.
        cancel: Ends the measuring early.
        request: For whom, and how urgently, a turn is wanted.
        max_probes: At most so many programs of a plan are measured: those with the most arithmetic.
        again: Measure what is stored too.
        times: A program is measured, once a call, while fewer of its step times than these are stored.
        probe_s: Seconds of steps each time.
    """

    engine: Engine
    store: Store | None
    runtime: Runtime
    cancel: Cancel
    request: AnyRequest
    max_probes: int = MAX_PROBES
    again: bool = False
    times: int = 1
    probe_s: float = PROBE_S

    def of(self, plan: Sequence[Part]) -> Generator[Message, None, dict[Part, StepTime]]:
        """Step times of a plan's parts: of the programs that are stored, and of the `max_probes` that weigh most.

        What was disturbed each time is measured again, once a call, up to `MAX_DISTURBED` times in all.

        Yields:
            The engine's messages, without `Progress`.

        Returns:
            The step times by part; parts whose program is neither stored nor measured are missing.
        """
        by_program: dict[tuple, list[Part]] = {}
        for part in plan:
            by_program.setdefault(tuple(program_of(part).items()), []).append(part)
        heaviest = sorted(by_program.items(), key=lambda entry: -sum(map(_weight, entry[1])))
        found: dict[Part, StepTime] = {}
        for rank, (program, of_it) in enumerate(heaviest):
            known = self._remembered(dict(program))
            spoilt = len(known) < MAX_DISTURBED and all(record.warnings for record in known)
            wanted = self.again or spoilt or len(known) < self.times
            if wanted and rank < self.max_probes and not self.cancel.is_set():
                known += yield from self._measured(dict(program), of_it[0])
            found |= dict.fromkeys(of_it, StepTime.of(known)) if known else {}
        return found

    def _subject(self, program: Subject) -> Subject:
        return program | self.runtime.subject

    def _remembered(self, program: Subject) -> list[Record]:
        if self.store is None:
            return []
        return current(self.store.records(Kind.STEP_TIME), Kind.STEP_TIME, self._subject(program), self.runtime)

    def _measured(self, program: Subject, part: Part) -> Generator[Message, None, list[Record]]:
        """Begin the part, and end it after a few steps; no record where it ended before the first of them."""
        with self.engine.watch(self.runtime) as watch:
            first_call_s, reports = yield from self._begun(part)
        if not reports:
            return []
        spent_s, steps = typical(reports)
        measured = watch.marked(Measurement((spent_s,), steps, Ended.CAP))
        subject = self._subject(program) | {"first_call_s": first_call_s}
        record = Record.of(Kind.STEP_TIME, subject, measured, versions(self.runtime))
        if self.store is not None:
            self.store.add(record)
        return [record]

    def _begun(self, part: Part) -> Generator[Message, None, tuple[float, list[Steps]]]:
        """Seconds of the first call, and the steps of a part that ends after `probe_s` of them."""
        chosen = part.trainings if part.devices else part.trainings[:1]
        how = How(devices=part.devices, probe_s=self.probe_s)
        first_call_s, reports = 0.0, list[Steps]()
        for message in self.engine.run(self.runtime, chosen, self.cancel, how, self.request):
            if not isinstance(message, Progress):
                yield message
            elif isinstance(message.event, FirstCall):
                first_call_s += message.event.first_call_s
            elif isinstance(message.event, Steps):
                reports.append(message.event)
        return first_call_s, reports

    def pooled_s(self, groups: Sequence[tuple[Training, ...]], n: int) -> Generator[Message, None, float | None]:
        """Seconds of these groups by `n` processes of this machine, their start included where they are not running.

        Args:
            groups: What a process is given at once: one training, or several as a stack.
            n: Processes.

        Yields:
            What there is to say while a turn is waited for: `Waiting` or `Disturbed`.

        Returns:
            Seconds until the last process is done; None if cancelled, or if the processes could not train.
        """
        start_s = 0.0 if is_warm(self.runtime) else POOL_START_S
        plan = [Part(group, int(len(group) > 1)) for group in groups]
        step_times: dict[Part, StepTime] = {}
        measured: dict[tuple, StepTime] = {}
        with self.engine.turn(self.request) as turn:
            for part in sorted(plan, key=_weight, reverse=True):
                program = program_of(part) | {"by": f"process, {len(part.trainings)}"}
                key = tuple(program.items())
                if key not in measured and len(measured) < MAX_PROBES and not self.cancel.is_set():
                    known = self._remembered(program)
                    if not known:
                        yield from turn.take(self.cancel)
                        known = self._pooled(program, part.trainings, n)
                    measured |= {key: StepTime.of(known)} if known else {}
                if key in measured:
                    step_times[part] = measured[key]
        if self.cancel.is_set() or not step_times:
            return None
        first = next(part for part in plan if part in step_times)
        cost_s = [
            expected_s([part], {part: step_times.get(part) or _scaled(step_times[first], first, part)}) for part in plan
        ]
        return start_s + makespan(cost_s, n)

    def _pooled(self, program: Subject, trainings: Sequence[Training], n: int) -> list[Record]:
        """The step time while all processes train the same, as one record; none where they could not."""
        task = PoolTask(
            self.runtime, tuple(trainings), Expected.here(self.runtime, ""), stacked=len(trainings) > 1, probe_s=PROBE_S
        )
        pool = local_pool(self.runtime)
        found: list[float] = []
        watch = self.engine.watch(self.runtime)
        for _ in range(2):  # the first time compiles, and the processes start one after the other
            with watch:
                reports = run_tasks([task] * n, pool, n, self.cancel)
                found = [one[1].step_s for one in reports if isinstance(one, tuple)]
        if not found or self.cancel.is_set():
            return []
        measured = watch.marked(Measurement((max(found),), 1, Ended.CAP))
        subject = self._subject(program) | {"first_call_s": COMPILED_S}
        record = Record.of(Kind.STEP_TIME, subject, measured, versions(self.runtime))
        if self.store is not None:
            self.store.add(record)
        return [record]


def makespan(cost_s: Sequence[float], n: int) -> float:
    """Seconds until the last of `n` processes is done, if the longest task always goes next to the first that is free.

    The rule is “longest processing time first”: Graham, “Bounds on multiprocessing timing anomalies”, 1969.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7.0
    """
    ends = [0.0] * n
    for seconds in sorted(cost_s, reverse=True):
        ends[ends.index(min(ends))] += seconds
    return max(ends)


def limits_of(runtime: Runtime, free_bytes: float, cache_bytes: float) -> Limits:
    """What a stack may use on the runtime's device, or devices.

    Args:
        runtime: Its devices are counted.
        free_bytes: Memory that a stack may use.
        cache_bytes: Of each device, for parameters.
    """
    return Limits(free_bytes, cache_bytes, max(1, device_count(runtime.device)))
