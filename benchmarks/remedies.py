"""Error of a remedy's predicted step against the measured one, over trainings that the calibration never saw.

Every way of training on this machine is calibrated. Trainings are then drawn with a separate seed, and each is measured
as it is and with every remedy that exists for it, all of them in each round. A miss is the distance of the predicted
step from the median of its rounds, as a share of that median. As on the page, a remedy is predicted from the
calibration and from today's measured step, and today's step from the calibration alone. An interrupted run resumes:
its measurements stay in a separate store until the figures are written.
"""

import itertools
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.report import OUT, LeftOut, Row, Target, note, row, show
from lib.formatting import seconds
from lib.model.backends.fingerprint import source_digest
from lib.sweeps.experiments.advice import apply, findings, measure_variants, trial_of
from lib.sweeps.experiments.calibration import (
    TOGETHER,
    CalibrationProgress,
    LiveCalibrations,
    TrainingWay,
    drawn,
    measure,
    trials,
    ways,
)
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.predict import Question
from lib.timing.prediction.remedies import Remedy, Setup

SEED = 23  # 3 until 2026-11-24, for the reason in `benchmarks.prediction`
TRAININGS = 32
ROUNDS = 2
WORST = 12  # number of worst misses to print
TODAY = "today, no remedy"
FOLDER = OUT / "remedies"  # measurements of an incomplete run

Config = tuple[Question, TrainingWay]


def main() -> None:
    engine, left_out, rows = Engine(), LeftOut(), []
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with left_out.unless_it_works("remedies"):
            rows = judged(list(_misses(engine, FOLDER)))
    finally:
        engine.close()
    whole = next((cast(list[float], one["misses"]) for one in rows if one["remedy"] == "all"), [])
    targets = [Target.of("median miss of a remedy's step", whole, 0.1)]
    show("remedies", rows, ("remedy", "n", "median_miss", "p90_miss", "covered_share"), targets, left_out)
    if rows:
        shutil.rmtree(FOLDER)


def configs(ways: Sequence[TrainingWay]) -> list[Config]:
    """Trainings drawn with `SEED`, by each way of training in turns; none is a trial of any calibration."""
    alone = [one for one in ways if not one.together]
    seen = [trial for one in alone for trial in trials(one)]
    each = -(-TRAININGS // len(alone))
    found = {one: drawn(one, each, SEED + number, seen) for number, one in enumerate(alone)}
    counts = itertools.cycle(TOGETHER)
    return [
        (Question(found[one][number].network, found[one][number].batch_size, networks=next(counts)), one)
        for number in range(each)
        for one in alone
    ][:TRAININGS]


def _misses(engine: Engine, folder: Path) -> Iterator[tuple[str, Setup, float, str]]:
    """Per measured remedy: name, predicted setup, measured seconds per step, and a description."""
    store, cancel, request = Store(folder / "store.sqlite"), Cancel(), Request()
    live = LiveCalibrations(store)
    for _ in measure(ways(), live, engine, store, cancel, request):
        pass
    standings = live.view().items
    for one in standings:
        if one.why_not:
            note(one.why_not)
    wanted = configs([one.trained for one in standings if one.calibration is not None])
    for runtime in dict.fromkeys(by.runtime for _, by in wanted):
        for _ in measure_variants(runtime, engine, store, cancel, request):
            pass
    done = FOLDER / f"done-{source_digest()}"  # results of other code do not count
    finished = int(done.read_text()) if done.exists() else 0
    for number, (question, by) in enumerate(wanted * ROUNDS):
        if number >= finished:
            chosen = _unseen(question, by, standings, store)
            applied = [
                one
                for one in apply(question, by, chosen, live, engine, store, cancel, request, rounds=1)
                if isinstance(one, Remedy)
            ]
            note(f"{number + 1} of {len(wanted) * ROUNDS}: {by.label}, {len(applied)} remedies")
            done.write_text(str(number + 1))
    for question, by in wanted:
        yield from _of(question, by, standings, store)


def _unseen(
    question: Question, by: TrainingWay, standings: Sequence[CalibrationProgress], store: Store
) -> list[Remedy]:
    """The remedies whose resulting step no calibration has used."""
    named = {one.trained.label: one.trained for one in standings}
    setups = {one.remedy: one.setup for one in findings(question, by, standings, store).effects}
    return [
        remedy
        for remedy, setup in setups.items()
        if setup is not None and (setup.variant or trial_of(question, setup) not in trials(named[setup.by]))
    ]


def _of(
    question: Question, by: TrainingWay, standings: Sequence[CalibrationProgress], store: Store
) -> Iterator[tuple[str, Setup, float, str]]:
    found = findings(question, by, standings, store)
    unseen = _unseen(question, by, standings, store)
    measured = {
        one.remedy.value: (one.setup, found.measured.get(one.remedy)) for one in found.effects if one.remedy in unseen
    }
    for name, (setup, step_time) in {TODAY: (found.before, found.measured.get(None)), **measured}.items():
        if setup is not None and step_time is not None:
            words = (
                f"{name}: {question.network.label}, batch size {setup.batch_size}, {setup.by}, {setup.at_once} at once"
            )
            yield name, setup, step_time.step_s, words


def judged(measured: Sequence[tuple[str, Setup, float, str]]) -> list[Row]:
    """Rows of the misses, over all remedies and for each; today's steps have their own row.

    Args:
        measured: Per remedy: name, predicted setup, measured seconds per step, and a description.
    """
    names = [*(one.value for one in Remedy), TODAY]
    of = {name: [one for one in measured if one[0] == name] for name in names}
    groups: Mapping[str, Sequence] = {"all": [one for one in measured if one[0] != TODAY], **of}
    rows = []
    for name, members in groups.items():
        misses = [abs(setup.step.step_s / step_s - 1) for _, setup, step_s, _ in members]
        if misses:
            covered = statistics.fmean(setup.step.low_s <= s <= setup.step.high_s for _, setup, s, _ in members)
            rows.append(
                row(
                    name,
                    [],
                    remedy=name,
                    n=len(misses),
                    misses=misses,
                    median_miss=float(np.median(misses)),
                    p90_miss=float(np.percentile(misses, 90)),
                    covered_share=covered,
                )
            )
    for _, setup, step_s, words in sorted(measured, key=lambda one: -abs(one[1].step.step_s / one[2] - 1))[:WORST]:
        note(f"{words}: measured {seconds(step_s)}, predicted {seconds(setup.step.step_s)}")
    return rows
