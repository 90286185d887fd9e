"""This machine's calibrations while they are made: there from what is stored, better with every step that is measured.

One object for each store: whatever page measures, all pages see it. A calibration is fitted again only when enough came
since, in the thread that measures and between two measurements: a fit takes a core that the next one wants.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.model.backends.registry import DEFAULT, Runtime, usable_runtimes
from lib.once import once
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments.calibration import (
    ROUNDS,
    TrainingWay,
    Trial,
    all_ways,
    calibrations,
    in_turns,
    measure_trials,
    stored,
    trials,
)
from lib.sweeps.experiments.failures import Attempts
from lib.sweeps.experiments.results import Watched
from lib.sweeps.experiments.runs import View
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import AnyRequest, Cancel
from lib.timing.prediction.calibration import LEAST_SAMPLES, Calibration

UNASKED = (DEFAULT, "jax-step", "numpy", "numba")  # backends that are calibrated unasked: quick to start
FIRST = 2 * LEAST_SAMPLES  # steps of every way after which each has a first answer, that much before it is complete
MORE = 1.25  # times as many steps as at the last fit are worth another one


@dataclass(frozen=True)
class CalibrationProgress:
    """How far the calibration of a way to train is."""

    trained: TrainingWay
    step_times: Mapping[Trial, StepTime] = field(default_factory=dict)  # that are measured
    calibration: Calibration | None = None  # fitted to most of them
    why_not: str = ""  # in a sentence, where there is none though steps were measured, or one failed

    @property
    def n_measured(self) -> int:
        """Its trials that are measured."""
        return sum(trial in self.step_times for trial in self.wanted)

    def times(self, trial: Trial) -> int:
        """How often a trial was measured."""
        return self.step_times[trial].times if trial in self.step_times else 0

    @property
    def wanted(self) -> Sequence[Trial]:
        """Its trials."""
        return trials(self.trained)


class LiveCalibrations(Watched):
    """What is known of this machine's ways to train. It changes with every fit, and is never over.

    Args:
        store: Its valid step times are fitted at once.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(State.MEASURING)
        self._standings = {one: CalibrationProgress(one) for one in ways()}
        self._fitted: dict[TrainingWay, Mapping[Trial, StepTime]] = {}
        for (trained, trial), step_time in stored(list(self._standings), store).items():
            self._add(trained, trial, step_time)
        for trained in self._standings:
            self.fit(trained)

    def view(self) -> View[CalibrationProgress]:
        """All ways to train of this machine, as they stand now."""
        with self.changed:
            return View(list(self._standings.values()), self.state, "", "", self.version)

    def of(self, trained: TrainingWay) -> CalibrationProgress:
        """How a way to train stands now."""
        with self.changed:
            return self._standings.get(trained, CalibrationProgress(trained))

    def take(self, trained: TrainingWay, trial: Trial, step_time: StepTime) -> None:
        """Add a measured step, and fit again where that is worth it."""
        n_known = self._add(trained, trial, step_time)
        if n_known >= max(LEAST_SAMPLES, MORE * len(self._fitted.get(trained, ()))):
            self.fit(trained)

    def fit(self, trained: TrainingWay) -> None:
        """Fit a way's calibration to all its measured steps, unless nothing came since the last time."""
        step_times = self.of(trained).step_times
        if step_times == self._fitted.get(trained, {}):
            return
        found, why_not = calibrations({(trained, trial): one for trial, one in step_times.items()})
        with self.changed:
            self._fitted[trained] = step_times
            fitted = {"calibration": found.get(trained), "why_not": why_not.get(trained, "")}
            self._standings[trained] = replace(self.of(trained), **fitted)
            self._tell()

    def fail(self, trained: TrainingWay, why: str) -> None:
        """Say why a way to train could not be measured; what it was fitted to stays."""
        with self.changed:
            self._standings[trained] = replace(self.of(trained), why_not=why)
            self._tell()

    def _add(self, trained: TrainingWay, trial: Trial, step_time: StepTime) -> int:
        """How many steps of the way are known with this one."""
        with self.changed:
            known = self.of(trained)
            self._standings[trained] = replace(known, step_times={**known.step_times, trial: step_time})
            return len(self._standings[trained].step_times)


@once
def live_in(path: Path | None) -> LiveCalibrations:
    """The calibrations of the store at this path: one object for all who watch or measure."""
    return LiveCalibrations(Store(path))


def ways() -> list[TrainingWay]:
    """The ways to train of this machine that can be calibrated."""
    return all_ways(usable_runtimes())


def unasked() -> list[TrainingWay]:
    """Those of them that are calibrated without being asked for."""
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
    """Measure what these ways' calibrations lack, a few steps of each in turns, then all of these once more.

    Args:
        chosen: Ways to train.
        live: Is told of each step, and fits.
        engine: Its workers measure.
        store: Where the step times go.
        cancel: Ends the measuring early; what was measured is stored and fitted.
        request: Place in the queue.
        again: Ask for all steps: those that something disturbed are measured once more.
        asked: Trials in place of the calibrations', once; nothing is fitted to so few.

    Yields:
        Notes on what is measured or waited for. A way that cannot be measured says so in its standing, and the others
        go on.
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
