"""Calibrate this machine's ways to train: time steps of random networks, and fit costs to them.

There is one `LiveCalibrations` per store, so all pages see what any page measures. Fits run only when enough new
measurements exist, in the measuring thread and between measurements, because a fit occupies a core.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from lib.model.backends.registry import BACKENDS, DEFAULT, PRECISIONS, Runtime, usable_runtimes
from lib.model.data.mnist import DataError, share_not_zero
from lib.model.spec import MAX_EPOCHS, MAX_WIDTH, N_CLASSES, N_PIXELS, N_TRAIN, Network, Training
from lib.once import once
from lib.sweeps.experiments.recorded_machines import Machine
from lib.sweeps.experiments.results import View, Watched
from lib.sweeps.measuring import Attempts, StepTime, program_of, step_times
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Part
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, noted
from lib.sweeps.workers.queue import AnyRequest, Cancel
from lib.timing.prediction.predict import LEAST_SAMPLES, Calibration, Question, calibrate, together
from lib.timing.prediction.workload import NoPrediction, Way, Workload, fully_connected

# How each backend runs a step. A backend that trains image by image has no entry.
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "jax-epoch": Way.EPOCH,
        "jax-step": Way.STEP,
        "jax-operation": Way.OPERATIONS,
        "numpy": Way.OPERATIONS,
        "numba": Way.EPOCH,
        "torch": Way.OPERATIONS,
        "torch-compiled": Way.STEP,
        "cupy": Way.OPERATIONS,
        "numba-cuda": Way.EPOCH,
        "keras-jax": Way.STEP,
        "keras-tensorflow": Way.STEP,
        "keras-torch": Way.OPERATIONS,
        "webgpu-operation": Way.WAITED,
        "webgpu-step": Way.STEP,
        "webgpu-chunk": Way.EPOCH,
        "webgpu-kernel": Way.GRAPH,
    }
)
# Trials are drawn from these: all batch sizes that the pages offer, and common widths and depths.
BATCH_SIZES = tuple(2**power for power in range(13))
WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
DEPTHS = range(5)
TOGETHER = (2, 4, 8, 16)
MAX_STEP_FLOPS = 4e9  # steps longer than about 10 ms are dominated by matrix products
SEED = 1
# Trials per backend: more where little is compiled, fewest where each operation is compiled separately.
SAMPLES = {DEFAULT: 48, "numpy": 48, "numba": 48, "jax-operation": 18}
USUAL_SAMPLES = 32
# Batch size 1 uses its own kernels and is rarely drawn, so these are added: the smallest step, and deeper networks.
OF_ONE_IMAGE = tuple(map(Network, ((), (256, 256), (1024, 1024), (64, 128, 64), (384, 96, 384, 96))))
ROUNDS = 2  # each trial is measured in each round, because a machine's speed drifts
IN_A_TURN = 6  # trials of one way to train before the next way's turn
PROBE_S = 0.12  # of steps per trial; the median report counts, without the first, because new memory is slow
LEARNING_RATE = 0.001

K = TypeVar("K")


@dataclass(frozen=True, order=True)
class Trial:
    """One or more networks of the same shape, trained at once with the same batch size."""

    network: Network
    batch_size: int
    networks: int = 1

    @property
    def part(self) -> Part:
        # Only part of a long training is timed: the first epoch touches images that are not cached yet.
        trainings = tuple(
            Training(self.network, LEARNING_RATE, self.batch_size, MAX_EPOCHS, seed) for seed in range(self.networks)
        )
        return Part(trainings, int(self.networks > 1))

    def workload(self, runtime: Runtime) -> Workload:
        return fully_connected(self.network, self.batch_size, WAYS[runtime.backend], self.networks)


@dataclass(frozen=True, order=True)
class TrainingWay:
    """A runtime that trains networks one by one, or several in one program (`together`)."""

    runtime: Runtime
    together: bool = False

    @property
    def label(self) -> str:
        return self.runtime.label + (", many networks at once" if self.together else "")

    @property
    def address(self) -> str:
        return self.runtime.address + ("/together" if self.together else "")

    def subject(self, trial: Trial) -> dict[str, str | int | float]:
        return program_of(trial.part) | self.runtime.subject


def all_ways(runtimes: Sequence[Runtime]) -> list[TrainingWay]:
    """Return the float32 ways to train with these runtimes; only JAX trains several networks in one program.

    Lower precisions change the training's result, so neither remedies nor advice may name them.
    """
    exact = [runtime for runtime in runtimes if runtime.backend in WAYS and runtime.precision == PRECISIONS[0]]
    together = [runtime for runtime in exact if runtime.backend == DEFAULT]
    return [*map(TrainingWay, exact), *(TrainingWay(runtime, True) for runtime in together)]


def drawn(trained: TrainingWay, n: int, seed: int, without: Sequence[Trial] = ()) -> list[Trial]:
    """Draw trials: batch sizes and depths in shuffled turns, widths at random.

    Trials above `MAX_STEP_FLOPS` are skipped, so large batches are rarer and go with small networks.

    Args:
        trained: Determines whether networks are trained together.
        n: Number of trials.
        seed: Seed of the draw.
        without: Trials to exclude.
    """
    rng = np.random.default_rng((seed, int(trained.together)))
    sizes, depths, counts = (_shuffled(rng, offered) for offered in (BATCH_SIZES, tuple(DEPTHS), TOGETHER))
    found: list[Trial] = []
    while len(found) < n:
        widths = tuple(int(width) for width in rng.choice(WIDTHS, next(depths)))
        trial = Trial(Network(widths), next(sizes), next(counts) if trained.together else 1)
        flops = trial.networks * trial.network.step_flops(trial.batch_size)
        if trial not in found and trial not in without and flops <= MAX_STEP_FLOPS:
            found.append(trial)
    return found


def _shuffled(rng: np.random.Generator, offered: Sequence[int]) -> Iterator[int]:
    while True:
        yield from (int(one) for one in rng.permutation(offered))


def trials(trained: TrainingWay) -> list[Trial]:
    """Return the trials that calibrate a way to train: drawn ones, then those with batch size 1.

    Backends with fewer samples use the first trials of the same draw.
    """
    networks = min(TOGETHER) if trained.together else 1
    of_one_image = [Trial(network, 1, networks) for network in OF_ONE_IMAGE]
    return drawn(trained, SAMPLES.get(trained.runtime.backend, USUAL_SAMPLES), SEED) + of_one_image


def near(question: Question) -> list[Trial]:
    """Return a few trials like the question, on MNIST: itself, other batch sizes, a smaller and a wider network.

    The most informative come first. A smaller batch replaces one that would take too long.
    """
    network, size = replace(question.network, n_inputs=N_PIXELS, n_classes=N_CLASSES), min(question.batch_size, N_TRAIN)
    while size > 1 and network.step_flops(size) > MAX_STEP_FLOPS:
        size //= 2
    wider = replace(network, hidden=tuple(min(2 * width, MAX_WIDTH) for width in network.hidden or WIDTHS[:1]))
    offered = [(network, size), (network, 4 * size), (Network(WIDTHS[:1]), size), (network, size // 4), (wider, size)]
    return list(
        dict.fromkeys(
            Trial(*one) for one in offered if 1 <= one[1] <= N_TRAIN and one[0].step_flops(one[1]) <= MAX_STEP_FLOPS
        )
    )


def in_turns(
    ways: Sequence[tuple[TrainingWay, Sequence[Trial]]], rounds: int
) -> Iterator[tuple[TrainingWay, Sequence[Trial], int]]:
    """Alternate between the ways to train, a few trials each, so that a slow minute on the machine hits all ways alike.

    Args:
        ways: Ways to train, each with its trials.
        rounds: How often each trial occurs.

    Yields:
        A way, its next trials, and the number of the round, from 1.
    """
    most = max((len(todo) for _, todo in ways), default=0)
    for number, first in itertools.product(range(1, rounds + 1), range(0, most, IN_A_TURN)):
        for trained, todo in ways:
            if some := todo[first : first + IN_A_TURN]:
                yield trained, some, number


def measure_trials(
    ways: Sequence[tuple[TrainingWay, Sequence[Trial]]],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: AnyRequest,
    rounds: int = ROUNDS,
) -> Iterator[Note | tuple[TrainingWay, Trial, StepTime]]:
    """Measure the trials' steps in turns and rounds; stored ones are not measured again.

    Args:
        ways: Ways to train, each with its trials.
        engine: Its workers measure.
        store: Where step times are looked up and stored.
        cancel: Stops measuring early; completed measurements are kept.
        request: Place in the queue.
        rounds: How often each trial is measured.

    Yields:
        Each step time, more precise in each round, and notes on progress and waiting.

    Raises:
        TrainingFailed: From the measuring worker.
    """
    for trained, some, times in in_turns(ways, rounds):
        for trial in some:
            if cancel.is_set():
                return
            doing = f"{trained.label}: {trial.network.label} at batch size {trial.batch_size:,} for its calibration"
            yield Note(doing)
            timing = step_times(
                [trial.part], engine, store, trained.runtime, cancel, request, times=times, probe_s=PROBE_S
            )
            found = yield from noted(timing, doing)
            for step_time in found.values():
                yield trained, trial, step_time


def stored(
    ways: Sequence[TrainingWay], store: Store, asked: Sequence[Trial] = ()
) -> dict[tuple[TrainingWay, Trial], StepTime]:
    """Return the stored step times of these ways' trials that match this machine, code and library versions.

    Args:
        ways: Ways to train.
        store: Where to look them up.
        asked: Trials to use instead of the calibration's.
    """
    records, runtimes = store.records(Kind.STEP_TIME), dict.fromkeys(one.runtime for one in ways)
    about: dict[frozenset, list[Record]] = defaultdict(list)
    for record in (one for runtime in runtimes for one in current(records, Kind.STEP_TIME, runtime.subject, runtime)):
        about[frozenset(record.subject.items() - {("first_call_s", record.subject.get("first_call_s"))})].append(record)
    found = {
        (one, trial): about.get(frozenset(one.subject(trial).items())) for one in ways for trial in asked or trials(one)
    }
    return {key: StepTime.of(known) for key, known in found.items() if known}


def raced_step_times(machine: Machine) -> dict[tuple[TrainingWay, Trial], StepTime]:
    """Derive float32 step times from a recorded machine's whole epochs."""
    found = {}
    for runtime in machine.runtimes:
        for network, size in machine.cells if (trained := TrainingWay(runtime)) in all_ways([runtime]) else ():
            if (epoch := machine.epoch(runtime, size, network)) is not None:
                found[trained, Trial(network, size)] = StepTime(epoch.middle / (N_TRAIN // size), 0.0)
    return found


def recorded_calibrations(
    raced: Mapping[K, Mapping[tuple[TrainingWay, Trial], StepTime]],
) -> dict[tuple[K, TrainingWay], Calibration]:
    """Calibrate each way to train on each recorded machine from the steps of a handful of networks.

    The prediction error is estimated jointly over all CPUs, and jointly over all GPUs.

    Args:
        raced: From `raced_step_times`, by machine.
    """
    found = {
        (machine, trained): known
        for machine, step_times in raced.items()
        for trained, known in calibrations(step_times, few=True)[0].items()
    }
    kinds = ({key: one for key, one in found.items() if key[1].runtime.on_gpu is on_gpu} for on_gpu in (False, True))
    return {key: one for kind in kinds for key, one in together(kind).items()}


def calibrations(
    step_times: Mapping[tuple[TrainingWay, Trial], StepTime], few: bool = False
) -> tuple[dict[TrainingWay, Calibration], dict[TrainingWay, str]]:
    """Fit a calibration to each way's step times; also return, for ways that cannot be calibrated, the reason."""
    found: dict[TrainingWay, Calibration] = {}
    why_not: dict[TrainingWay, str] = {}
    for trained in dict.fromkeys(one for one, _ in step_times):
        samples = [
            (trial.workload(trained.runtime), step_time.step_s)
            for (one, trial), step_time in step_times.items()
            if one == trained
        ]
        try:
            density = share_not_zero() if BACKENDS[trained.runtime.backend].skips_zeros else 1.0
            found[trained] = calibrate(trained.label, samples, density, few)
        except (NoPrediction, DataError) as error:
            why_not[trained] = str(error)
    return found, why_not


UNASKED = (DEFAULT, "jax-step", "numpy", "numba")  # backends calibrated automatically, because they start quickly
FIRST = 2 * LEAST_SAMPLES  # steps per way that suffice for a first answer, long before the calibration is complete
MORE = 1.25  # refit once there are this many times as many steps as at the last fit


@dataclass(frozen=True)
class CalibrationProgress:
    trained: TrainingWay
    step_times: Mapping[Trial, StepTime] = field(default_factory=dict)
    calibration: Calibration | None = None  # may not include the latest steps
    why_not: str = ""  # sentence: why the measured steps gave no calibration, or what failed

    @property
    def n_measured(self) -> int:
        return sum(trial in self.step_times for trial in self.wanted)

    @property
    def wanted(self) -> Sequence[Trial]:
        return trials(self.trained)


class LiveCalibrations(Watched):
    """The state of this machine's calibrations. It changes with every fit and is never over.

    Args:
        store: Its valid step times are fitted immediately.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._standings = {one: CalibrationProgress(one) for one in ways()}
        self._fitted: dict[TrainingWay, Mapping[Trial, StepTime]] = {}
        for (trained, trial), step_time in stored(list(self._standings), store).items():
            self._add(trained, trial, step_time)
        for trained in self._standings:
            self.fit(trained)

    def view(self) -> View[CalibrationProgress]:
        with self.changed:
            return View(list(self._standings.values()), self.state, "", "", self.version)

    def of(self, trained: TrainingWay) -> CalibrationProgress:
        with self.changed:
            return self._standings.get(trained, CalibrationProgress(trained))

    def take(self, trained: TrainingWay, trial: Trial, step_time: StepTime) -> None:
        n_known = self._add(trained, trial, step_time)
        if n_known >= max(LEAST_SAMPLES, MORE * len(self._fitted.get(trained, ()))):
            self.fit(trained)

    def fit(self, trained: TrainingWay) -> None:
        """Fit a way's calibration to all its measured steps, if there are new ones."""
        step_times = self.of(trained).step_times
        if step_times == self._fitted.get(trained, {}):
            return
        found, why_not = calibrations({(trained, trial): one for trial, one in step_times.items()})
        with self.changed:
            self._fitted[trained] = step_times
            fitted = {"calibration": found.get(trained), "why_not": why_not.get(trained, "")}
            self._standings[trained] = replace(self.of(trained), **fitted)
            self.tell()

    def fail(self, trained: TrainingWay, why: str) -> None:
        with self.changed:
            self._standings[trained] = replace(self.of(trained), why_not=why)
            self.tell()

    def _add(self, trained: TrainingWay, trial: Trial, step_time: StepTime) -> int:
        with self.changed:
            known = self.of(trained)
            self._standings[trained] = replace(known, step_times={**known.step_times, trial: step_time})
            return len(self._standings[trained].step_times)


@once
def live_in(path: Path | None) -> LiveCalibrations:
    return LiveCalibrations(Store(path))


def ways() -> list[TrainingWay]:
    return all_ways(usable_runtimes())


def unasked() -> list[TrainingWay]:
    """Return the ways to train that are calibrated automatically."""
    return [one for one in ways() if one.runtime in map(Runtime, UNASKED) and not one.together]


def measure(
    chosen: Sequence[TrainingWay],
    live: LiveCalibrations,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: AnyRequest,
    again: bool = False,
    asked: Sequence[Trial] = (),
) -> Iterator[Note]:
    """Measure the steps that these ways' calibrations lack, in turns and in `ROUNDS` rounds.

    Args:
        chosen: Ways to train.
        live: Receives each step time, and refits.
        engine: Its workers measure.
        store: Where step times are stored.
        cancel: Stops measuring early; completed measurements are stored and fitted.
        request: Place in the queue.
        again: Include all known steps, so that disturbed ones are measured again.
        asked: Trials to use instead of the calibrations', in one round; too few to fit.

    Yields:
        Notes on progress and waiting. A way that cannot be measured records the reason in `live`, and the others
        continue.
    """
    attempts, failed = Attempts(), dict[TrainingWay, str]()
    todo = {
        one: [trial for trial in asked or live.of(one).wanted if again or trial not in live.of(one).step_times]
        for one in chosen
    }
    for trained, part, number in in_turns(list(todo.items()), 1 if asked else ROUNDS):

        def steps(trained: TrainingWay = trained, part: Sequence[Trial] = part, number: int = number) -> Iterator[Note]:
            for event in measure_trials([(trained, part)], engine, store, cancel, request, number):
                if isinstance(event, Note):
                    yield event
                else:
                    live.take(*event)

        if not cancel.is_set() and (why := (yield from attempts.row(trained.runtime, steps))):
            failed[trained] = why
            live.fail(trained, why)
    for trained in chosen:
        if not asked:
            live.fit(trained)
        if trained in failed:
            live.fail(trained, failed[trained])
