"""How remedies are judged, and which trainings they are judged by."""

import pytest

from benchmarks.remedies import TODAY, TRAININGS, configs, judged
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.calibration import TrainingWay, trials
from lib.timing.prediction.predict import Prediction
from lib.timing.prediction.remedies import Remedy, Setup

pytestmark = pytest.mark.release

WAYS = [
    TrainingWay(Runtime()),
    TrainingWay(Runtime("numpy")),
    TrainingWay(Runtime("keras-jax")),
    TrainingWay(Runtime(), True),
]


def one(name: str, predicted_s: float, measured_s: float):
    return name, Setup("JAX", 32, Prediction(predicted_s, 0.9 * predicted_s, 1.1 * predicted_s, {})), measured_s, name


def test_misses_are_shares_of_the_measured_step_and_today_stands_by_itself():
    epoch = Remedy.EPOCH.value
    rows = judged([one(epoch, 1.0, 1.0), one(epoch, 3.0, 2.0), one(Remedy.BATCH.value, 1.0, 2.0), one(TODAY, 9.0, 1.0)])
    by_name = {row["remedy"]: row for row in rows}
    assert list(by_name) == ["all", epoch, Remedy.BATCH.value, TODAY]
    assert (by_name["all"]["n"], by_name["all"]["median_miss"]) == (3, pytest.approx(0.5))
    assert by_name[epoch]["median_miss"] == pytest.approx(0.25)
    assert by_name[epoch]["covered_share"] == pytest.approx(0.5)
    assert by_name[TODAY]["median_miss"] == pytest.approx(8)
    assert judged([]) == []


def test_trainings_are_many_the_same_each_time_and_unseen():
    found = configs(WAYS)
    assert len(found) == TRAININGS >= 30
    assert found == configs(WAYS)
    assert {by for _, by in found} == set(WAYS[:3])
    for way in WAYS[:3]:
        seen = {(trial.network, trial.batch_size) for trial in trials(way)}
        assert not seen & {(question.network, question.batch_size) for question, _ in found}
    assert all(question.networks > 1 for question, _ in found)
