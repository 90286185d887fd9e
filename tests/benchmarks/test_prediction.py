"""How predictions are judged: by errors, intervals, and pairs that the measurements tell apart."""

import pytest

from benchmarks import prediction, reports
from benchmarks.prediction import judged
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.advice import all_devices
from lib.sweeps.experiments.calibration import TrainingWay, calibrations, drawn, trials
from lib.sweeps.measuring import StepTime
from lib.sweeps.workers.messages import TrainingFailed
from lib.timing.prediction.predict import predict

pytestmark = pytest.mark.release

WAYS = [TrainingWay(Runtime()), TrainingWay(Runtime("numpy"))]
FOUND, _ = calibrations(
    {
        (one, trial): StepTime(factor * (1e-5 + trial.workload(one.runtime).flops / 1e11), 0.1)
        for one, factor in zip(WAYS, (1, 2), strict=True)
        for trial in trials(one)
    }
)
UNSEEN = drawn(WAYS[0], 5, 2)
EXPECTED_S = {(one, trial): predict(trial.workload(one.runtime), FOUND[one]).step_s for one in WAYS for trial in UNSEEN}


def whole(steps_s, found=FOUND):
    return judged(found, steps_s, dict.fromkeys(WAYS, 25.0))[0][0]


def test_exact_predictions_have_no_error():
    row = whole({key: [s, s, s] for key, s in EXPECTED_S.items()})
    assert (row["n"], row["winner_share"], row["covered_share"]) == (10, 1.0, 1.0)
    assert (row["median_error"], row["repeat_error"]) == pytest.approx((0, 0))


@pytest.mark.parametrize(("factor", "bias"), [(0.5, -0.5), (1.25, 0.25)])
def test_the_bias_is_signed(factor, bias):
    assert whole({key: [s / factor] * 3 for key, s in EXPECTED_S.items()})["bias"] == pytest.approx(bias)


def test_wrong_winners_count_and_indistinguishable_pairs_do_not():
    swapped = {key: [EXPECTED_S[WAYS[1 - WAYS.index(key[0])], key[1]]] * 3 for key in EXPECTED_S}
    assert whole(swapped)["winner_share"] == 0
    same = dict.fromkeys(WAYS, FOUND[WAYS[0]])
    for factor in (0.5, 2):
        steps_s = {key: [EXPECTED_S[WAYS[0], key[1]] * (factor if key[0] == WAYS[0] else 1)] * 3 for key in EXPECTED_S}
        assert whole(steps_s, same)["winner_share"] == 0, "no winner is named"
    alike = {key: [s / 10, s, s * 10] for key, s in EXPECTED_S.items()}
    assert whole(alike)["winner_share"] is None


def test_a_failing_way_to_train_does_not_affect_the_others(tmp_path, monkeypatch, capsys):
    """For example a card that stops responding in the middle of its second round."""
    asked = []

    def fake_trials(todo, _engine, _store, _cancel, _request, rounds):
        ((trained, trials),) = todo
        for number, trial in enumerate(trials):
            asked.append((trained, rounds))
            if trained == WAYS[0] and rounds == 2 and number == 1:
                raise TrainingFailed("the card no longer answers")
            yield trained, trial, StepTime(0.001, 0.1, times=rounds)

    monkeypatch.setattr(prediction, "measure_trials", fake_trials)
    wanted = dict.fromkeys(WAYS, UNSEEN)
    found = prediction._measured(None, tmp_path / "store", wanted, rounds=3)  # pyright: ignore[reportArgumentType]
    assert {trained for _, trained, *_ in found} == {WAYS[1]}
    assert len(found) == 3 * len(UNSEEN)
    assert (WAYS[0], 3) not in asked, "it is left alone then"
    assert f"{WAYS[0].label}: the card no longer answers" in capsys.readouterr().out


def test_no_published_winner_is_mispredicted_and_the_targets_are_met():
    devices = all_devices()
    rows = [reports.judged(one, devices) for one in reports.REPORTS]
    assert {one["winner"] for one in rows} <= {"right", "close"}
    assert sum(one["winner"] == "right" for one in rows) >= 3, "too close to call in all would say nothing"
    assert [target.word for target in reports.targets(rows)] == ["met", "met"]
    missed = [one | {"inside": number > 2} for number, one in enumerate(rows)]
    assert [target.word for target in reports.targets(missed)] == ["met", "MISSED"]
