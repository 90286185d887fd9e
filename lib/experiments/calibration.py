"""What each way to train costs on this machine: steps of drawn networks are measured, and costs fitted to them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from lib.backends.registry import BACKENDS, DEFAULT, Runtime
from lib.prediction.calibration import Calibration, NotCalibrated, Sample, calibrate
from lib.prediction.workload import Way, Workload, fully_connected
from lib.spec import MAX_EPOCHS, Network, Training
from lib.storage.current import current
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.sweeps.cost_model import StepTime, StepTimes, program_of
from lib.sweeps.strategies import Part
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note, noted
from lib.workers.queue import AnyRequest

# How each backend runs a step. One that trains image by image has none; nor has one that skips zeros, as workloads are
# counted from shapes.
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "jax-epoch": Way.EPOCH,
        "jax-step": Way.STEP,
        "numpy": Way.OPERATIONS,
        "torch": Way.OPERATIONS,
        "torch-compiled": Way.STEP,
        "cupy": Way.OPERATIONS,
        "keras-jax": Way.STEP,
        "keras-tensorflow": Way.STEP,
        "keras-torch": Way.OPERATIONS,
        "webgpu-operation": Way.WAITED,
        "webgpu-step": Way.STEP,
        "webgpu-chunk": Way.EPOCH,
        "webgpu-kernel": Way.GRAPH,
    }
)
# What is drawn: as far as the pages' controls go in batch sizes, and what most networks are made of.
BATCH_SIZES = tuple(2**power for power in range(13))
WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
DEPTHS = range(5)
TOGETHER = (2, 4, 8, 16)
MAX_STEP_FLOPS = 4e9  # a step longer than a hundredth of a second is little but products
SEED = 1
SAMPLES = 48  # of a backend whose programs are few to compile
FEWER_SAMPLES = 32
CHEAP = (DEFAULT, "numpy")
ROUNDS = 2  # in which all are measured: a machine's speed drifts, and what is measured at times apart drifts less
PROBE_S = 0.1  # of steps in each
WARM_S = 0.02  # of steps before the first
LEARNING_RATE = 0.001


@dataclass(frozen=True, order=True)
class Trial:
    """Networks of one shape, trained at once with one batch size; a single one by itself."""

    network: Network
    batch_size: int
    networks: int = 1

    @property
    def part(self) -> Part:
        """What a worker is given."""
        # Many epochs, of which a part is timed: the first touches images that are in no cache yet.
        trainings = tuple(
            Training(self.network, LEARNING_RATE, self.batch_size, MAX_EPOCHS, seed) for seed in range(self.networks)
        )
        return Part(trainings, int(self.networks > 1))

    def workload(self, runtime: Runtime) -> Workload:
        """What its step consists of."""
        return fully_connected(self.network, self.batch_size, WAYS[runtime.backend], self.networks)


@dataclass(frozen=True, order=True)
class Trained:
    """A way to train: a runtime with one network at a time, or with several in one program."""

    runtime: Runtime
    together: bool = False

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.runtime.label + (", many networks at once" if self.together else "")

    def subject(self, trial: Trial) -> dict[str, str | int | float]:
        """What identifies the records of a trial's step time."""
        return program_of(trial.part) | self.runtime.subject


def all_ways(runtimes: Sequence[Runtime]) -> list[Trained]:
    """The ways to train by these runtimes; JAX alone trains several networks in one program."""
    found = [Trained(runtime) for runtime in runtimes if runtime.backend in WAYS]
    return found + [Trained(runtime, True) for runtime in runtimes if runtime.backend == DEFAULT]


def not_predicted(runtimes: Sequence[Runtime]) -> str:
    """Which of these runtimes are not calibrated because they skip zeros, and why; empty where none does."""
    labels = [runtime.label for runtime in runtimes if BACKENDS[runtime.backend].skips_zeros]
    if not labels:
        return ""
    return (
        f"Not predicted: {'; '.join(labels)}. A prediction counts every input of a step, and this way computes only"
        " with those that are not zero; the race measures it."
    )


def drawn(trained: Trained, n: int, seed: int, without: Sequence[Trial] = ()) -> list[Trial]:
    """Trials drawn with a seed: batch sizes and depths in turns, widths at random.

    What has more than `MAX_STEP_FLOPS` is passed over, so large batches are fewer, and of small networks.

    Args:
        trained: Decides whether networks are trained together.
        n: Trials.
        seed: The same gives the same trials.
        without: These are not drawn.
    """
    rng = np.random.default_rng((seed, int(trained.together)))
    sizes, depths, counts = (_in_turns(rng, offered) for offered in (BATCH_SIZES, tuple(DEPTHS), TOGETHER))
    found: list[Trial] = []
    while len(found) < n:
        widths = tuple(int(width) for width in rng.choice(WIDTHS, next(depths)))
        trial = Trial(Network(widths), next(sizes), next(counts) if trained.together else 1)
        flops = trial.networks * trial.network.step_flops(trial.batch_size)
        if trial not in found and trial not in without and flops <= MAX_STEP_FLOPS:
            found.append(trial)
    return found


def _in_turns(rng: np.random.Generator, offered: Sequence[int]) -> Iterator[int]:
    """Each of what is offered once, in random order, again and again."""
    while True:
        yield from (int(one) for one in rng.permutation(offered))


def trials(trained: Trained) -> list[Trial]:
    """What is measured to calibrate a way to train: `SAMPLES` trials, or the first `FEWER_SAMPLES` of the same."""
    cheap = trained.runtime.backend in CHEAP
    return drawn(trained, SAMPLES if cheap else FEWER_SAMPLES, SEED)


def measure_trials(
    ways: Sequence[tuple[Trained, Sequence[Trial]]],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: AnyRequest,
    rounds: int = ROUNDS,
) -> Iterator[Note | tuple[Trained, Trial, StepTime]]:
    """Measure the steps of trials in rounds, all in each; what is stored is not measured again.

    Args:
        ways: Ways to train, each with its trials.
        engine: Its workers measure.
        store: Where step times are looked up and stored.
        cancel: Ends the measuring early; what was measured is stored.
        request: Place in the queue.
        rounds: How often each trial is measured.

    Yields:
        Each step time as it is known, better in each round, and notes on what is measured or waited for.

    Raises:
        WorkerDied, TrainingFailed: From the worker that measures.
    """
    for times, (trained, todo) in itertools.product(range(1, rounds + 1), ways):
        how = {"times": times, "probe_s": PROBE_S, "warm_s": WARM_S}
        step_times = StepTimes(engine, store, trained.runtime, cancel, request, max_probes=1, **how)
        for number, trial in enumerate(todo, 1):
            if cancel.is_set():
                return
            doing = f"{trained.label}: step {number} of {len(todo)} for its calibration, round {times} of {rounds}"
            yield Note(doing)
            found = yield from noted(step_times.of([trial.part]), doing)
            for step_time in found.values():
                yield trained, trial, step_time


def stored(ways: Sequence[Trained], store: Store) -> dict[tuple[Trained, Trial], StepTime]:
    """The step times of these ways' trials that are stored and still valid: of this machine, code and versions."""
    records = store.records(Kind.STEP_TIME)
    return {
        (trained, trial): StepTime.of(known)
        for trained in ways
        for trial in trials(trained)
        if (known := current(records, Kind.STEP_TIME, trained.subject(trial), trained.runtime))
    }


def calibrations(
    step_times: Mapping[tuple[Trained, Trial], StepTime],
) -> tuple[dict[Trained, Calibration], dict[Trained, str]]:
    """What each way to train costs, fitted to its step times; and why those that cannot be calibrated cannot."""
    found: dict[Trained, Calibration] = {}
    why_not: dict[Trained, str] = {}
    for trained in dict.fromkeys(one for one, _ in step_times):
        samples = [
            Sample(trial.workload(trained.runtime), step_time.step_s)
            for (one, trial), step_time in step_times.items()
            if one == trained
        ]
        try:
            found[trained] = calibrate(trained.label, samples)
        except NotCalibrated as error:
            why_not[trained] = str(error)
    return found, why_not
