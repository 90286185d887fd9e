"""What is drawn to calibrate a way to train, how it is measured, and what cannot be calibrated."""

from hypothesis import given
from hypothesis import strategies as st

from lib.backends.registry import BACKENDS, Runtime
from lib.experiments.calibration import (
    BATCH_SIZES,
    MAX_STEP_FLOPS,
    ROUNDS,
    WAYS,
    Trained,
    Trial,
    all_ways,
    calibrations,
    drawn,
    measure_trials,
    not_predicted,
    trials,
)
from lib.prediction.calibration import LEAST_SAMPLES
from lib.prediction.predict import predict
from lib.spec import Network
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.sweeps.cost_model import StepTime
from lib.workers.cancel import Cancel
from lib.workers.notes import Note
from lib.workers.queue import Request

ALONE, TOGETHER = Trained(Runtime()), Trained(Runtime(), True)


def test_every_backend_that_trains_in_batches_has_a_way_to_run_a_step():
    counted = {key for key, backend in BACKENDS.items() if backend.whole_epochs and not backend.skips_zeros}
    assert set(WAYS) == counted
    assert all_ways([Runtime("cupy-image", "gpu")]) == []


def test_what_skips_zeros_is_not_calibrated_and_says_so():
    runtimes = [Runtime("numpy"), Runtime("numba")]
    assert all_ways(runtimes) == [Trained(Runtime("numpy"))]
    assert not_predicted(runtimes).startswith("Not predicted: Numba, zeros left out. A prediction counts every input")
    assert not_predicted([Runtime("numpy")]) == ""


def test_only_jax_trains_networks_together():
    assert all_ways([Runtime(), Runtime("numpy")]) == [ALONE, Trained(Runtime("numpy")), TOGETHER]


@given(st.integers(0, 1_000), st.booleans())
def test_trials_are_different_affordable_and_the_same_for_a_seed(seed, together):
    trained = Trained(Runtime(), together)
    found = drawn(trained, 30, seed)
    assert len(set(found)) == 30
    assert found == drawn(trained, 30, seed)
    assert not set(found) & set(drawn(trained, 5, seed, without=found))
    for trial in found:
        assert trial.networks * trial.network.step_flops(trial.batch_size) <= MAX_STEP_FLOPS
        assert (trial.networks > 1) == together == (trial.part.devices == 1)
        assert len(trial.part.trainings) == trial.networks


def test_all_batch_sizes_are_measured_for_a_calibration():
    assert {trial.batch_size for trial in trials(ALONE)} == set(BATCH_SIZES)


def test_steps_are_measured_once_and_kept(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.sweeps.cost_model.MAX_DISTURBED", 1)  # what else the machine does is no part of this test
    store = Store(tmp_path / "results.sqlite")
    todo = [(ALONE, [Trial(Network((16,)), 512)]), (TOGETHER, [Trial(Network((16,)), 512, 2)])]
    for _ in range(2):
        events = list(measure_trials(todo, engine, store, Cancel(), Request()))
        found = [event for event in events if not isinstance(event, Note)]
        assert [(trained, trial) for trained, trial, _ in found] == [(t, trials[0]) for t, trials in todo] * ROUNDS
        assert all(0 < step_time.step_s < 1 for _, _, step_time in found)
        assert all(step_time.times == ROUNDS for _, _, step_time in found[-len(todo) :])
        assert len(store.records(Kind.STEP_TIME)) == 2 * ROUNDS, "no more than in each round"
    stopped = Cancel()
    stopped.set()
    assert list(measure_trials(todo, engine, store, stopped, Request())) == []


def test_what_cannot_be_calibrated_says_why_and_the_others_are():
    steps = {(ALONE, trial): StepTime(1e-5 + trial.workload(Runtime()).flops / 1e11, 0.1) for trial in trials(ALONE)}
    few = {(TOGETHER, trial): StepTime(1e-3, 0.1) for trial in trials(TOGETHER)[:3]}
    found, why_not = calibrations(steps | few)
    assert list(found) == [ALONE]
    assert f"expected at least {LEAST_SAMPLES} measured steps, got 3" in why_not[TOGETHER]
    trial = Trial(Network((128,)), 32)
    assert predict(trial.workload(Runtime()), found[ALONE]).step_s > 1e-5
