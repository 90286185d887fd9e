"""Error of predicted seconds per step against measured steps that the calibration never saw.

Every way of training on this machine is calibrated in an empty store; one that fails is noted and not judged. Then
steps drawn with another seed are measured in rounds, all of them in each round, and the median of the rounds is
compared with the earlier prediction. Of two ways with the same drawn network, one is the winner if all its rounds are
faster than all rounds of the other.

Further rows judge predictions from the first steps, each measured once: for all ways of training, and for those that a
page calibrates unasked, which is its answer after about a minute.
Half of these steps are off the grid that calibrations draw from, with widths and batch sizes such as 100, 300 and 700.
`bias` is the median of predicted over measured, minus one: above 0 if predictions are too long. The row `whole epochs`
compares calibrations with real epochs, including shuffling, and so shows what the probes leave out.
`repeat_error` is the distance of the first round from the median of the others: the error of measuring itself.

For recorded cards nothing is measured: a third of the timed steps, drawn twenty times, is predicted from the rest.

`one prediction` is the time to count a step's operations and predict its seconds from a calibration.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import LeftOut, Row, Target, note, row, seconds_of, show
from docs.published_figures import written
from lib.formatting import seconds
from lib.model.backends.base import Epoch
from lib.model.spec import Network, Training
from lib.sweeps.experiments.advice import Row as PublishedRow
from lib.sweeps.experiments.advice import published_rows
from lib.sweeps.experiments.calibration import (
    FIRST,
    LEARNING_RATE,
    TOGETHER,
    TrainingWay,
    Trial,
    calibrations,
    drawn,
    in_turns,
    measure_trials,
    raced_step_times,
    recorded_calibrations,
    trials,
    unasked,
    ways,
)
from lib.sweeps.experiments.calibration import ROUNDS as CALIBRATION_ROUNDS
from lib.sweeps.experiments.recorded_machines import recorded_here
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Job, Note, Progress, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.predict import Calibration, Prediction, predict

SEED = 12  # 2 until 2026-11-24: we looked at its misses when single images joined the calibration
UNSEEN = 12  # drawn trials per way of training; off-grid trials, one per pair, are extra
OFF_GRID = (100, 300, 700)
EPOCHS = 3  # per whole training; the first does not count
ROUNDS = 5
DRAWS = 20  # draws of a third of a recorded card's steps
LONGEST_S = 0.001  # limit for one prediction
UNASKED = f"unseen, calibrated unasked, by the first {FIRST} steps"

PUBLISHED = ("n", "median_error", "bias", "p90_error", "winner_share", "covered_share")
WORST = 12  # number of worst steps to print


def main() -> None:
    engine, left_out, rows = Engine(), LeftOut(), []
    targets: list[Target] = []
    try:
        with tempfile.TemporaryDirectory() as folder, left_out.unless_it_works("unseen"):
            rows, targets = _unseen(engine, Path(folder))
    finally:
        engine.close()
    card, card_targets = recorded_card()
    rows.append(card)
    published = published_rows()
    print(written())
    of = accuracy(published)
    rows.append(row("published", [], **{name: getattr(of, name, None) for name in PUBLISHED}))
    show(
        "prediction",
        rows,
        ("name", *PUBLISHED, "repeat_error", "calibration_s", "median_s"),
        [*targets, *card_targets],
        left_out,
    )


@dataclass(frozen=True)
class Accuracy:
    """Errors without sign and shares, over the figures that were not used; None without any."""

    n: int
    median_error: float | None
    p90_error: float | None
    winner_share: float | None
    covered_share: float | None


def accuracy(rows: Sequence[PublishedRow]) -> Accuracy:
    """Accuracy over the published figures that were not used for fitting.

    A pair has the same question and different figures. Equal predictions name no winner, which counts as wrong.
    """
    unseen = [row for row in rows if not row.figure.used]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(unseen, 2)
        if one.figure.question == other.figure.question and one.figure.published_s != other.figure.published_s
    ]
    right = [
        (a.predicted.step_s - b.predicted.step_s) * (a.figure.published_s - b.figure.published_s) > 0 for a, b in pairs
    ]
    errors = [abs(row.error) for row in unseen]
    return Accuracy(
        len(unseen),
        statistics.median(errors) if errors else None,
        float(np.percentile(errors, 90)) if errors else None,
        statistics.fmean(right) if right else None,
        statistics.fmean(row.covered for row in unseen) if unseen else None,
    )


def _unseen(engine: Engine, folder: Path) -> tuple[list[Row], list[Target]]:
    events = _measured(engine, folder / "calibration", {one: trials(one) for one in ways()})
    found, why_not = calibrations({(trained, trial): step_time for _, trained, trial, step_time in events})
    for why in why_not.values():
        note(why)
    if not found:
        raise RuntimeError("; ".join(why_not.values()))
    unseen = {one: drawn(one, UNSEEN, SEED, without=trials(one)) + off_grid(one) for one in found}
    rounds = []
    for number in range(1, ROUNDS + 1):
        note(f"round {number} of {ROUNDS}")
        timed = _measured(engine, folder / f"round {number}", unseen, rounds=1)
        rounds.append({(trained, trial): step_time.step_s for _, trained, trial, step_time in timed})
    steps_s = {key: [one[key] for one in rounds] for key in rounds[0] if all(key in one for one in rounds)}
    found = {trained: found[trained] for trained in dict.fromkeys(key[0] for key in steps_s)}
    rows, targets = judged(found, steps_s, _spent(events))
    _note_worst(found, steps_s)
    for name, of in ((f"unseen, by the first {FIRST} steps", ways()), (UNASKED, unasked())):
        soon = [one for one in events if one[1] in of and one[2] in trials(one[1])[:FIRST] and one[3].times == 1]
        first, _ = calibrations({(trained, trial): step_time for _, trained, trial, step_time in soon})
        if first:
            early, *_ = judged(first, {key: s for key, s in steps_s.items() if key[0] in first}, _spent(soon))[0]
            rows.append(early | {"name": name})
    if epochs_s := _whole_epochs(engine, found):
        whole, *_ = judged(found, epochs_s, dict.fromkeys(found, 0.0))[0]
        rows.append(whole | {"name": "whole epochs", "calibration_s": None})
    one = one_prediction(found, list(steps_s))
    return [*rows, one], [*targets, Target.of("one prediction", seconds_of(one), LONGEST_S, "s")]


def held_out(
    raced: Mapping[tuple[TrainingWay, Trial], StepTime], seed: int, share: float = 1 / 3
) -> list[tuple[TrainingWay, Trial, Prediction, float]]:
    """Drawn steps of a machine, each predicted from the others alone, with its recorded seconds.

    A way of training with too few remaining steps is left out.
    """
    keys = list(raced)
    drawn = {keys[number] for number in np.random.default_rng(seed).permutation(len(keys))[: int(share * len(keys))]}
    found = recorded_calibrations({"": {key: one for key, one in raced.items() if key not in drawn}})
    return [
        (trained, trial, predict(trial.workload(trained.runtime), found["", trained]), raced[trained, trial].step_s)
        for trained, trial in keys
        if (trained, trial) in drawn and ("", trained) in found
    ]


def recorded_card() -> tuple[Row, list[Target]]:
    """A row for the recorded cards: a third of their timed steps, drawn repeatedly, predicted from the rest."""
    card = {
        number: {key: one for key, one in raced_step_times(machine).items() if key[0].runtime.on_gpu}
        for number, machine in enumerate(recorded_here().machines)
    }
    found = [one for number, steps in card.items() for seed in range(DRAWS) for one in held_out(steps, seed)]
    errors = [predicted.step_s / step_s - 1 for _, _, predicted, step_s in found]
    inside = [predicted.low_s <= step_s <= predicted.high_s for _, _, predicted, step_s in found]
    sizes, covered = np.abs(errors), statistics.fmean(inside)
    median = float(np.median(sizes))
    of_all = row(
        "recorded card, a third held out",
        [],
        n=len(found),
        median_error=median,
        bias=float(np.median(errors)),
        p90_error=float(np.percentile(sizes, 90)),
        covered_share=covered,
    )
    return of_all, [
        Target.counted("median error of a recorded card's step that was held out", median, 0.15),
        Target.counted("of these inside their intervals", covered, 0.9, at_least=True),
    ]


def off_grid(trained: TrainingWay) -> list[Trial]:
    """Steps of one to three layers with widths and batch sizes that no calibration draws."""
    pairs = itertools.product(OFF_GRID, OFF_GRID)
    networks = min(TOGETHER) if trained.together else 1
    return [Trial(Network((width,) * (1 + n % 3)), size, networks) for n, (width, size) in enumerate(pairs)]


def _whole_epochs(
    engine: Engine, found: Mapping[TrainingWay, Calibration]
) -> dict[tuple[TrainingWay, Trial], tuple[float, ...]]:
    """Seconds per step in each epoch but the first, of ordinary trainings of one network."""
    steps_s: dict[tuple[TrainingWay, Trial], tuple[float, ...]] = {}
    for trained in (one for one in found if not one.together):
        for trial in off_grid(trained)[:: len(OFF_GRID)]:
            training = Training(trial.network, LEARNING_RATE, trial.batch_size, EPOCHS)
            try:
                events = [
                    message.event
                    for message in engine.run([Job(trained.runtime, (training,))], Cancel())
                    if isinstance(message, Progress) and isinstance(message.event, Epoch)
                ]
            except TrainingFailed as error:
                note(f"{trained.label}: {error}")
                break
            steps_s[trained, trial] = tuple(one.train_s / one.steps for one in events[1:])
    return steps_s


def one_prediction(found: Mapping[TrainingWay, Calibration], steps: Sequence[tuple[TrainingWay, Trial]]) -> Row:
    """A row of seconds per prediction, timed in the second pass over these steps."""
    took_s = []
    for trained, trial in [*steps, *steps]:
        began_s = time.perf_counter()
        predict(trial.workload(trained.runtime), found[trained])
        took_s.append(time.perf_counter() - began_s)
    return row("one prediction", took_s[len(steps) :])


def _measured(
    engine: Engine, folder: Path, wanted: Mapping[TrainingWay, Sequence[Trial]], rounds: int = CALIBRATION_ROUNDS
) -> list[tuple[float, TrainingWay, Trial, StepTime]]:
    """Step times of trials, measured with a separate store, each with the seconds that its measurement took.

    A way of training that fails, for example on a card, is noted and left out; the others continue.
    """
    folder.mkdir()
    store, failed = Store(folder / "store.sqlite"), set[TrainingWay]()
    found: list[tuple[float, TrainingWay, Trial, StepTime]] = []
    for trained, todo, number in in_turns(list(wanted.items()), rounds):
        if trained not in failed:
            last_s = time.perf_counter()
            try:
                for event in measure_trials([(trained, todo)], engine, store, Cancel(), Request(), rounds=number):
                    if not isinstance(event, Note):
                        now_s = time.perf_counter()
                        found.append((now_s - last_s, *event))
                        last_s = now_s
            except TrainingFailed as error:
                note(f"{trained.label}: {error}")
                failed.add(trained)
    return [event for event in found if event[1] not in failed]


def _spent(events: Sequence[tuple[float, TrainingWay, Trial, StepTime]]) -> dict[TrainingWay, float]:
    return {one: sum(s for s, trained, *_ in events if trained == one) for _, one, *_ in events}


def judged(
    found: Mapping[TrainingWay, Calibration],
    steps_s: Mapping[tuple[TrainingWay, Trial], Sequence[float]],
    calibration_s: Mapping[TrainingWay, float],
) -> tuple[list[Row], list[Target]]:
    """Error rows, over all ways of training and for each, and the targets.

    Args:
        found: Calibrations made without any of these trials.
        steps_s: Seconds per step in each round.
        calibration_s: Seconds that each calibration took to measure.
    """
    predicted = {
        (trained, trial): predict(trial.workload(trained.runtime), found[trained]) for trained, trial in steps_s
    }
    measured = {key: statistics.median(rounds) for key, rounds in steps_s.items()}
    errors = {key: abs(predicted[key].step_s / measured[key] - 1) for key in steps_s}
    inside = {key: predicted[key].low_s <= measured[key] <= predicted[key].high_s for key in steps_s}
    repeated = {key: abs(rounds[0] / statistics.median(rounds[1:]) - 1) for key, rounds in steps_s.items()}
    winners = []
    for one, other in itertools.combinations(steps_s, 2):
        apart = max(steps_s[one]) < min(steps_s[other]) or max(steps_s[other]) < min(steps_s[one])
        if one[1] == other[1] and apart:
            apart_s = predicted[one].step_s - predicted[other].step_s
            winners.append(apart_s * (measured[one] - measured[other]) > 0)
    keys_of = {"unseen": (list(steps_s), sum(calibration_s.values()))}
    of_each = {one: [key for key in steps_s if key[0] == one] for one in found}
    keys_of |= {one.label: (keys, calibration_s[one]) for one, keys in of_each.items() if keys}
    rows = []
    for name, (keys, took_s) in keys_of.items():
        of = [errors[key] for key in keys]
        whole = name == "unseen"
        rows.append(
            row(
                name,
                [],
                n=len(keys),
                median_error=float(np.median(of)),
                bias=statistics.median(predicted[key].step_s / measured[key] - 1 for key in keys),
                p90_error=float(np.percentile(of, 90)),
                winner_share=statistics.fmean(winners) if whole and winners else None,
                covered_share=statistics.fmean(inside[key] for key in keys),
                repeat_error=statistics.median(repeated[key] for key in keys),
                calibration_s=took_s,
            )
        )
    return rows, [
        Target.of("median error of a step", list(errors.values()), 0.1),
        Target.of("90th percentile of the errors", list(errors.values()), 0.3, share=0.9),
        Target.share("pairs whose faster one is named", sum(winners), len(winners), 0.95, at_least=True),
        Target.share("measured inside its interval", sum(inside.values()), len(inside), 0.9, at_least=True),
        Target("calibration of all ways to train", sum(calibration_s.values()), 60.0, "s"),
    ]


def _note_worst(
    found: Mapping[TrainingWay, Calibration], steps_s: Mapping[tuple[TrainingWay, Trial], Sequence[float]]
) -> None:
    judged_steps = [
        (statistics.median(rounds), predict(trial.workload(trained.runtime), found[trained]), trained, trial)
        for (trained, trial), rounds in steps_s.items()
    ]
    judged_steps.sort(key=lambda one: abs(one[1].step_s / one[0] - 1), reverse=True)
    for measured_s, predicted, trained, trial in judged_steps[:WORST]:
        expected, low, high = (seconds(s) for s in (predicted.step_s, predicted.low_s, predicted.high_s))
        note(
            f"{trained.label}, {trial.network.label} at batch size {trial.batch_size}, {trial.networks} at once:"
            f" measured {seconds(measured_s)}, predicted {expected} ({low} to {high})"
        )
