"""How predictions are judged: by errors, intervals, and the pairs that the measurement itself tells apart."""

import pytest

from benchmarks.prediction import judged
from lib.backends.registry import Runtime
from lib.experiments.calibration import Trained, calibrations, drawn, trials
from lib.prediction.predict import predict
from lib.sweeps.cost_model import StepTime

WAYS = [Trained(Runtime()), Trained(Runtime("numpy"))]
FOUND, _ = calibrations(
    {
        (one, trial): StepTime(factor * (1e-5 + trial.workload(one.runtime).flops / 1e11), 0.1)
        for one, factor in zip(WAYS, (1, 2), strict=True)
        for trial in trials(one)
    }
)
UNSEEN = drawn(WAYS[0], 5, 2)
EXPECTED_S = {(one, trial): predict(trial.workload(one.runtime), FOUND[one]).step_s for one in WAYS for trial in UNSEEN}


def whole(steps_s):
    return judged(FOUND, steps_s, dict.fromkeys(WAYS, 25.0))[0][0]


def test_what_was_predicted_exactly_is_without_error():
    row = whole({key: [s, s, s] for key, s in EXPECTED_S.items()})
    assert (row["n"], row["winner_share"], row["covered_share"]) == (10, 1.0, 1.0)
    assert row["median_error"] == pytest.approx(0)
    assert row["repeat_error"] == pytest.approx(0)


def test_errors_are_relative_to_what_was_measured():
    row = whole({key: [s / 2] * 3 for key, s in EXPECTED_S.items()})
    assert row["median_error"] == pytest.approx(1)
    assert row["p90_error"] == pytest.approx(1)


def test_the_wrong_winner_counts_and_pairs_that_cannot_be_told_apart_do_not():
    swapped = {key: [EXPECTED_S[WAYS[1 - WAYS.index(key[0])], key[1]]] * 3 for key in EXPECTED_S}
    assert whole(swapped)["winner_share"] == 0
    same = dict.fromkeys(WAYS, FOUND[WAYS[0]])
    for factor in (0.5, 2):
        steps_s = {key: [EXPECTED_S[WAYS[0], key[1]] * (factor if key[0] == WAYS[0] else 1)] * 3 for key in EXPECTED_S}
        assert judged(same, steps_s, dict.fromkeys(WAYS, 25.0))[0][0]["winner_share"] == 0, "no winner is named"
    alike = {key: [s / 10, s, s * 10] for key, s in EXPECTED_S.items()}
    assert whole(alike)["winner_share"] is None
