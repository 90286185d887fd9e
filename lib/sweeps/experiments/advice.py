"""Which device and which way to train takes how long, this machine among them: for a script and for the command.

A remedy of a training that is slow is predicted from this machine's calibrations, and measured as a calibration's steps
are. A variant of a step, such as one whose batches lie on the device, is none of the ways to train here: it is measured
by itself, and predicted by what it saves of steps of a usual network.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lib.formatting import listed
from lib.model.backends.registry import Runtime
from lib.model.hardware.machine import usable_memory_bytes
from lib.model.spec import N_PIXELS
from lib.once import Once
from lib.sweeps.cost_model import StepTime, StepTimes
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.sweeps.experiments.calibration import (
    PROBE_S,
    ROUNDS,
    TOGETHER,
    WAYS,
    CalibrationProgress,
    LiveCalibrations,
    TrainingWay,
    Trial,
    calibrations,
    live_in,
    near,
    raced_step_times,
    recorded_calibrations,
    stored,
    unasked,
    ways,
)
from lib.sweeps.experiments.failures import Marked
from lib.sweeps.experiments.known_devices import LIBRARIES, known_devices, recorded_devices
from lib.sweeps.experiments.recorded_machines import place, recorded_here
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, noted
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.predict import LEAST_TOGETHER, Calibrated, Calibration, NotCalibrated, Question
from lib.timing.prediction.remedies import RESIDENT, Advice, Effect, Remedy, Setup, advise, effects, to_paste, today
from lib.timing.prediction.workload import FILE, Cost, Device, DoesNotFit, cost_of, read_devices
from lib.timing.profiling.request import FROM_HOST, ON_CARDS, PLAIN_STEP, TAKEN, VARIANTS, VARIED, Examination

CALIBRATE = "`python -m lib.cli.advise --calibrate`"


def advise_here(
    question: Question,
    devices: Mapping[str, Device] | None = None,
    store: Store | None = None,
    live: LiveCalibrations | None = None,
    by: str = "",
) -> Advice:
    """Which device and which way to train takes how long, and what it costs; nothing is measured.

    This machine answers where it was calibrated: by a page that predicts, or by `python -m lib.cli.advise --calibrate`,
    which takes some minutes. Why it, or a way to train on it, does not answer is among the advice's `silent`.

    Args:
        question: What is to be trained; it raises ValueError itself for what cannot be.
        devices: Known by their figures, by key; None: `all_devices`.
        store: Where this machine's measured steps lie; None: in the cache folder.
        live: Calibrations that are at hand already; None: those of the store.
        by: Key of the backend that is trained with today.

    Returns:
        All answers, the quickest first. A prediction is of all steps of all networks: `step_s` in seconds, with `low_s`
        and `high_s`, which are its 90 % interval on this machine and the range of the figures elsewhere.

    Raises:
        UnusableDevice: The file of devices cannot be used.

    >>> from lib.model.spec import Network
    >>> advice = advise_here(Question(Network((512, 256)), batch_size=64, epochs=20, networks=32))
    >>> jax = next(one for one in advice.answers if one.library == "JAX" and one.device.startswith("c3"))
    >>> jax.device, jax.way, jax.prediction.low_s < jax.prediction.step_s
    ('c3-highcpu-22: 22 vCPUs', 'compiled step, JAX', True)
    """
    store = store if store is not None else Store()
    live = live if live is not None else live_in(store.path)
    found = known_here(question, live, store)
    here = offered(list(found), found, store.records(Kind.ANATOMY))
    advice = advise(question, here, devices if devices is not None else all_devices(), recorded(), by)
    return replace(advice, silent=tuple(_silent(live, found)))


def known_here(question: Question, live: LiveCalibrations, store: Store) -> dict[TrainingWay, Calibration]:
    """What this machine's ways to train cost: by their calibrations, else by a few steps near the question's."""
    standings = live.view().items
    found = {one.trained: one.calibration for one in standings if one.calibration is not None}
    rest = {one.trained: one.step_times for one in standings if one.calibration is None and not one.trained.together}
    asked = near(question)
    taken = {(one, trial): time for one, of in rest.items() for trial, time in of.items() if trial in asked}
    taken |= stored(list(rest), store, asked)
    good = {key: time for key, time in taken.items() if not time.disturbed}
    enough = {one for one in rest if sum(key[0] == one for key in good) >= LEAST_TOGETHER}
    few = recorded_calibrations(
        {"here": {key: time for key, time in taken.items() if key in good or key[0] not in enough}}
    )
    return found | {trained: known for (_, trained), known in few.items()}


def not_known(question: Question, live: LiveCalibrations, store: Store, by: str = "") -> list[TrainingWay]:
    """The ways to train of which nothing says what the question's step takes here: `by` and others of its library, and
    those that are measured unasked."""
    known = known_here(question, live, store)
    own = [one for one in ways() if by and one.runtime.backend.startswith(by.partition("-")[0]) and not one.together]
    own.sort(key=lambda one: one.runtime.backend != by)
    return [one for one in dict.fromkeys([*own, *unasked()]) if one not in known and not live.of(one).why_not]


def all_devices(path: Path = FILE) -> dict[str, Device]:
    """The devices of a file and of the recorded machines, with what libraries cost there; raises UnusableDevice."""
    return {**known_devices(read_devices(path)), **recorded_devices()}


@cache
def recorded() -> Mapping[str, Mapping[str, Calibrated]]:
    """Ways to train on the recorded machines, by their names for people, of each processor and card: what the epochs
    that were timed there say of their steps, where these are enough."""
    found: dict[str, dict[str, Calibrated]] = {}
    machines = recorded_here().machines
    raced = {number: raced_step_times(machine) for number, machine in enumerate(machines)}
    for (number, trained), known in recorded_calibrations(raced).items():
        runtime = trained.runtime
        library, _ = LIBRARIES.get(runtime.backend, (runtime.process, None))
        of = found.setdefault(place(machines[number], runtime.on_gpu), {})
        of[trained.label] = Calibrated(
            known, WAYS[runtime.backend], library=library, backend=runtime.backend, worker=runtime.process
        )
    return found


def _silent(live: LiveCalibrations, known: Mapping[TrainingWay, Calibration]) -> Iterator[str]:
    standings = live.view().items
    for one in standings:
        if one.why_not:
            label = one.trained.label
            yield one.why_not if one.why_not.startswith(label) else f"{label}: {one.why_not}"
    left = [one.trained.label for one in standings if one.trained not in known and not one.why_not]
    if len(left) == len(standings):
        yield f"this machine is not calibrated, so it does not answer; {CALIBRATE} does that"
    elif left:
        yield f"not calibrated on this machine, so not among the answers: {listed(left)}; {CALIBRATE} does that"


NO_CARD = "there is no card here"
NOT_MEASURED = "what it saves is not measured yet"
LONGEST_STEP_S = 3.0  # a stop waits for the end of a step


@dataclass(frozen=True)
class Outcome:
    """What a remedy is predicted to do, and what a step takes where it was applied and measured."""

    effect: Effect
    measured: StepTime | None = None
    line: str = ""  # to paste

    @property
    def miss(self) -> float | None:
        """How far the predicted step is from the measured one, as a share of the measured; None where there is none."""
        return miss(self.effect.setup, self.measured)

    def measured_gain(self, before: Setup, before_s: float) -> float | None:
        """Times as fast as before, an image of one network.

        Args:
            before: How it was trained.
            before_s: Measured seconds of a step then.
        """
        after = self.effect.setup
        if after is None or self.measured is None:
            return None
        gain = (before_s / before.images) / (self.measured.step_s / after.images)
        return 1 / gain if self.effect.remedy.kept else gain


def miss(setup: Setup | None, measured: StepTime | None) -> float | None:
    """How far a predicted step is from the measured one, as a share of the measured; None where there is none."""
    return None if setup is None or measured is None else abs(setup.step.step_s / measured.step_s - 1)


def offered(
    ways: Sequence[TrainingWay], calibrations: Mapping[TrainingWay, Calibration], records: Sequence[Record]
) -> dict[str, Calibrated]:
    """This machine's ways to train, by their names for people; those without a calibration too.

    Args:
        ways: Of this machine.
        calibrations: Those that there are.
        records: What is stored of the variants of their steps; see `measure_variants`.
    """
    return {
        one.label: Calibrated(
            calibrations.get(one),
            WAYS[one.runtime.backend],
            max(TOGETHER) if one.together else 1,
            one.runtime.process,
            one.runtime.backend,
            {variant: _saved(one.runtime, variant, records) for variant in VARIANTS[one.runtime.backend]},
            usable_memory_bytes(one.runtime.device),
        )
        for one in ways
    }


def _saved(runtime: Runtime, variant: str, records: Sequence[Record]) -> Cost | str:
    if variant in ON_CARDS and not runtime.on_gpu:
        return NO_CARD
    return saved(runtime, variant, records) or NOT_MEASURED


def saved(runtime: Runtime, variant: str, records: Sequence[Record]) -> Cost | None:
    """What a step by this runtime saves by a variant, by its batch's bytes; None where that is not measured.

    A line is fitted to the median blocks of the plain step, and one to the variant's; it is their difference. Of what
    is so already, the variant is the step without it, and the difference what it would cost more.
    """
    known = _takings(runtime).seconds(records)
    plain, sizes = (FROM_HOST, TAKEN) if variant == RESIDENT else (PLAIN_STEP, VARIED)
    both = [size for size in sizes if known.get(f"{plain} {size}") and known.get(f"{variant} {size}")]
    without, with_it = (
        cost_of([4 * N_PIXELS * size for size in both], [known[f"{where} {size}"] for size in both])
        for where in (plain, variant)
    )
    if without is None or with_it is None:
        return None
    kept = any(one.kept for one in Remedy if one.variant == variant)
    return with_it.less(without) if kept else without.less(with_it)


def measure_variants(
    runtime: Runtime, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Note | Record]:
    """Measure what the variants of this runtime's step save, where one is missing.

    Raises:
        WorkerDied, TrainingFailed: From a worker on a CPU.
    """
    records = store.records(Kind.ANATOMY)
    if any(_saved(runtime, variant, records) == NOT_MEASURED for variant in VARIANTS[runtime.backend]):
        yield from measure_tasks([_takings(runtime)], engine, store, cancel, request)


def _takings(runtime: Runtime) -> AnatomyTask:
    return AnatomyTask(runtime, Examination("takings"))


def _changed(question: Question, setup: Setup, trained: TrainingWay) -> AnatomyTask:
    return AnatomyTask(trained.runtime, Examination(setup.variant, question.network, setup.batch_size))


def trial_of(question: Question, setup: Setup) -> Trial:
    """What is measured of a setup, unless it is a variant of the step."""
    return Trial(question.network, setup.batch_size, setup.at_once)


def stored_step(question: Question, setup: Setup, trained: TrainingWay, store: Store) -> StepTime | None:
    """What a step of this setup took, of what is stored and valid on this machine.

    Args:
        question: What is trained.
        setup: How.
        trained: The way to train that the setup names.
        store: Where it is looked up.
    """
    if setup.variant:
        return _changed(question, setup, trained).step_time(store.records(Kind.ANATOMY))
    subject = trained.subject(trial_of(question, setup))
    known = current(store.records(Kind.STEP_TIME), Kind.STEP_TIME, subject, trained.runtime)
    return StepTime.of(known) if known else None


def too_long(setup: Setup) -> str:
    """Why a setup is not measured, in a sentence; empty where it can be."""
    if setup.step.step_s <= LONGEST_STEP_S:
        return ""
    return (
        f"a step is predicted to take {setup.step.step_s:.0f} s: expected at most {LONGEST_STEP_S:g} s, because a stop"
        " waits for its end; choose a smaller network or batch"
    )


# With today's step among the samples: asked at every frame, while other steps are timed.
_fitted: Once[tuple[TrainingWay, frozenset], dict[TrainingWay, Calibration]] = Once(16)


@dataclass(frozen=True)
class Findings:
    """What is known of a question's remedies: predicted from the calibrations, and measured.

    Attributes:
        before: How it is trained today; None where nothing can be predicted of that.
        measured: A step of today's, where it was measured.
        outcomes: Of each remedy, in their order; none without `before`.
        problem: Why there is nothing, in a sentence.
    """

    before: Setup | None = None
    measured: StepTime | None = None
    outcomes: Sequence[Outcome] = ()
    problem: str = ""


def findings(question: Question, by: TrainingWay, standings: Sequence[CalibrationProgress], store: Store) -> Findings:
    """What is known of a question's remedies now.

    Where today's step was measured, the remedies are predicted with it as one more sample of its way to train; what is
    predicted of today's step itself stays as it was.

    Args:
        question: What is trained.
        by: The way to train, before any remedy.
        standings: The calibrations of all ways to train.
        store: Where measured steps are looked up.
    """
    calibrated = {one.trained: one.calibration for one in standings if one.calibration is not None}
    trained = {one.trained.label: one.trained for one in standings}
    ways = offered(list(trained.values()), calibrated, store.records(Kind.ANATOMY))
    try:
        before = today(question, by.label, ways)
    except (NotCalibrated, DoesNotFit) as error:
        why = next((one.why_not for one in standings if one.trained == by and one.why_not), "")
        return Findings(problem=why or str(error))
    measured, known = stored_step(question, before, by, store), before
    if measured is not None:
        of_it = next(one.step_times for one in standings if one.trained == by)
        samples = {(by, trial): one for trial, one in {**of_it, trial_of(question, before): measured}.items()}
        fitted = _fitted.get((by, frozenset(samples.items())), lambda: calibrations(samples)[0])
        ways = offered(list(trained.values()), calibrated | fitted, store.records(Kind.ANATOMY))
        known = today(question, by.label, ways)
    outcomes = [
        Outcome(
            one,
            one.setup and stored_step(question, one.setup, trained[one.setup.by], store),
            to_paste(one, ways, known),
        )
        for one in effects(question, known, ways)
    ]
    return Findings(before, measured, outcomes)


@dataclass(frozen=True)
class Applied:
    """A remedy that was measured just now."""

    remedy: Remedy


def apply(
    question: Question,
    by: TrainingWay,
    chosen: Sequence[Remedy],
    live: LiveCalibrations,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    rounds: int = ROUNDS,
) -> Iterator[Note | Record | Applied]:
    """Measure a step as it is today and with each of these remedies, in rounds, whether that is stored or not.

    What variants of the step save is measured first, where that is missing.

    Args:
        question: What is trained.
        by: The way to train, before any remedy.
        chosen: Remedies; those that do not exist, or take too long, are left out.
        live: The calibrations, from which the remedies follow.
        engine: Its workers measure.
        store: Where step times go.
        cancel: Ends the measuring early; what was measured is stored.
        request: Place in the queue.
        rounds: How often each is measured.

    Yields:
        Each remedy when it is measured in the last round, notes on what is measured or waited for, and records of kind
        `FAILURE` where a graphics card fails.

    Raises:
        WorkerDied, TrainingFailed: From a worker on a CPU.
    """
    yield from measure_variants(by.runtime, engine, store, cancel, request)
    standings = live.view().items
    trained = {one.trained.label: one.trained for one in standings}
    now = findings(question, by, standings, store)
    setups = {one.effect.remedy: one.effect.setup for one in now.outcomes if one.effect.remedy in chosen}
    possible = {remedy: setup for remedy, setup in setups.items() if setup is not None and not too_long(setup)}
    if now.before is None or not possible or too_long(now.before):
        return
    marked = Marked(store)
    for number, (remedy, setup) in itertools.product(range(rounds), {None: now.before, **possible}.items()):
        if cancel.is_set():
            return
        words = remedy.value if remedy is not None else "today"
        yield from _measured_step(question, setup, trained[setup.by], words, marked, engine, store, cancel, request)
        if remedy is not None and number == rounds - 1 and not cancel.is_set():
            yield Applied(remedy)


def _measured_step(
    question: Question,
    setup: Setup,
    trained: TrainingWay,
    words: str,
    marked: Marked,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Note | Record]:
    """Measure a step of a setup, and store it."""
    if setup.variant:
        yield from measure_tasks([_changed(question, setup, trained)], engine, store, cancel, request)
        return
    trial, doing = trial_of(question, setup), f"{words}: a step of {trained.label} at batch size {setup.batch_size:,}"
    times = StepTimes(engine, store, trained.runtime, cancel, request, again=True, probe_s=PROBE_S)

    def steps() -> Iterator[Note]:
        yield Note(doing)
        yield from noted(times.of([trial.part]), doing)

    yield from marked.row(doing, trained.runtime, trained.subject(trial), steps)
