# pyright: reportArgumentType=false
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prediction import held_out
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.data.mnist import DataError
from lib.model.spec import Network
from lib.sweeps.experiments import calibration
from lib.sweeps.experiments.calibration import ROUNDS, TrainingWay, Trial, all_ways, calibrations, drawn, trials
from lib.sweeps.experiments.recorded_machines import recorded_here
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.records import Kind
from lib.sweeps.workers.messages import Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.predict import LEAST_SAMPLES, predict

JAX, TOGETHER, NUMPY = TrainingWay(Runtime()), TrainingWay(Runtime(), True), TrainingWay(Runtime("numpy"))


def test_every_backend_that_trains_in_batches_has_a_way_to_run_a_step():
    assert set(calibration.WAYS) == BACKENDS.keys() - {"cupy-image"}
    assert all_ways([Runtime("cupy-image", "gpu")]) == []


def made_up_steps(trained):
    def flops(trial):
        operations = trial.workload(trained.runtime).operations
        return sum(one.flops * (0.5 if one.by_inputs else 1) for one in operations)

    return {(trained, one): StepTime(1e-5 + 1e-11 * flops(one), 0.1) for one in trials(trained)}


def test_zero_skipping_ways_are_fitted_by_the_nonzero_share(monkeypatch):
    skips, multiplies = TrainingWay(Runtime("numba")), NUMPY
    steps = made_up_steps(skips) | made_up_steps(multiplies)
    monkeypatch.setattr(calibration, "share_not_zero", lambda: 0.5)
    found, why_not = calibrations(steps)
    assert why_not == {}
    assert (found[skips].density, found[multiplies].density) == (0.5, 1.0)
    assert found[skips].median_error < 0.01 < found[multiplies].median_error

    def unusable():
        raise DataError("MNIST_NPZ: expected a file; correct it")

    monkeypatch.setattr(calibration, "share_not_zero", unusable)
    found, why_not = calibrations(steps)
    assert list(found) == [multiplies]
    assert why_not == {skips: "MNIST_NPZ: expected a file; correct it"}


@given(st.integers(0, 1_000), st.booleans())
def test_trials_are_distinct_affordable_and_reproducible(seed, together):
    trained = TrainingWay(Runtime(), together)
    found = drawn(trained, 30, seed)
    assert len(set(found)) == 30
    assert found == drawn(trained, 30, seed)
    assert not set(found) & set(drawn(trained, 5, seed, without=found))
    for trial in found:
        assert trial.networks * trial.network.step_flops(trial.batch_size) <= calibration.MAX_STEP_FLOPS
        assert (trial.networks > 1) == together == (trial.part.devices == 1)
        assert len(trial.part.trainings) == trial.networks


@pytest.mark.slow
def test_steps_are_measured_once_and_stored(engine, store, monkeypatch):
    monkeypatch.setattr("lib.sweeps.measuring.MAX_DISTURBED", 1)  # other programs must not cause repeated measurements
    todo = [(JAX, [Trial(Network((16,)), 512)]), (TOGETHER, [Trial(Network((16,)), 512, 2)])]
    for _ in range(2):
        events = calibration.measure_trials(todo, engine, store, Cancel(), Request())
        found = [event for event in events if not isinstance(event, Note)]
        assert [(trained, trial) for trained, trial, _ in found] == [(t, trials[0]) for t, trials in todo] * ROUNDS
        assert all(0 < step_time.step_s < 1 for _, _, step_time in found)
        assert all(step_time.times == ROUNDS for _, _, step_time in found[-len(todo) :])
        assert len(store.records(Kind.STEP_TIME)) == 2 * ROUNDS, "no more than in each round"
    stopped = Cancel()
    stopped.set()
    assert list(calibration.measure_trials(todo, engine, store, stopped, Request())) == []


def test_an_uncalibratable_way_says_why_and_the_others_are_calibrated():
    few = {(TOGETHER, trial): StepTime(1e-3, 0.1) for trial in trials(TOGETHER)[:3]}
    found, why_not = calibrations(made_up_steps(JAX) | few)
    assert list(found) == [JAX]
    assert f"expected {LEAST_SAMPLES} measured steps, got 3" in why_not[TOGETHER]
    assert predict(Trial(Network((128,)), 32).workload(Runtime()), found[JAX]).step_s > 1e-5


@given(st.lists(st.integers(0, 20), max_size=4), st.integers(1, 3))
def test_each_round_has_every_trial_once_and_ways_advance_together(lengths, rounds):
    every = [TrainingWay(Runtime(key)) for key in ("jax-epoch", "jax-step", "numpy", "numba")]
    ways = [(one, trials(one)[:n]) for one, n in zip(every, lengths, strict=False)]
    events = list(calibration.in_turns(ways, rounds))
    for number in range(1, rounds + 1):
        for one, todo in ways:
            assert [trial for trained, some, at in events if (trained, at) == (one, number) for trial in some] == todo
    assert [at for *_, at in events] == sorted(at for *_, at in events), "one round after another"
    done = dict.fromkeys(every, 0)
    for trained, some, at in events:
        if at == 1:
            done[trained] += len(some)
            behind = [done[one] for one, todo in ways if done[one] < len(todo)]
            assert max(done.values()) - min(behind, default=max(done.values())) <= calibration.IN_A_TURN


def test_only_jax_stacks_networks_and_rounded_runtimes_are_no_ways():
    rounded = [Runtime("jax-epoch", "gpu", "tf32"), Runtime(precision="bfloat16")]
    assert all_ways([Runtime(), Runtime("numpy"), *rounded]) == [JAX, NUMPY, TOGETHER]


def test_a_third_of_a_cards_steps_is_predicted_from_the_rest():
    found = []
    for machine in recorded_here().machines:
        step_times = calibration.raced_step_times(machine)
        card = {key: one for key, one in step_times.items() if key[0].runtime.on_gpu}
        found += [one for seed in range(10) for one in held_out(card, seed)]
    assert len(found) > 100
    assert np.median([abs(predicted.step_s / step_s - 1) for _, _, predicted, step_s in found]) <= 0.15
    assert np.mean([predicted.low_s <= step_s <= predicted.high_s for _, _, predicted, step_s in found]) >= 0.9


@pytest.mark.parametrize(("hidden", "size"), [((128,), 32), ((128, 64), 300), ((200,), 64), ((100, 100), 3_000)])
def test_intervals_near_recorded_points_are_at_most_threefold(hidden, size):
    raced = dict(enumerate(map(calibration.raced_step_times, recorded_here().machines)))
    near = 0
    for (_, trained), known in calibration.recorded_calibrations(raced).items():
        work = Trial(Network(hidden), size).workload(trained.runtime)
        if known.is_known(work):
            near += 1
            predicted = predict(work, known)
            assert predicted.high_s <= 3 * predicted.low_s, trained
    assert near > 10


def test_few_samples_share_an_interval_that_widens_with_distance():
    few = dict(list(made_up_steps(NUMPY).items())[:5])
    other = {(JAX, trial): replace(time, step_s=2 * time.step_s) for (_, trial), time in few.items()}
    found = calibration.recorded_calibrations({"one": few, "other": other})
    assert len({(one.widening, one.far_widening) for one in found.values()}) == 1, "of all processors together"
    assert calibrations(few)[0] == {}, "too few for an interval of their own"
    assert all(one.far_widening >= one.widening for one in found.values())


def exact_s(trained: TrainingWay, trial: Trial) -> float:
    return 2e-5 + trial.workload(trained.runtime).flops / 1e11


def fake_trials(ways, _engine, _store, cancel, _request, rounds=1, seconds=exact_s):
    for trained, todo in ways:
        for trial in todo:
            if cancel.is_set():
                return
            if rounds == 1:
                yield Note(f"{trained.label}: {trial.batch_size}")
            yield trained, trial, StepTime(seconds(trained, trial), 0.1, times=ROUNDS)


@pytest.fixture
def live(store, monkeypatch):
    monkeypatch.setattr(calibration, "measure_trials", fake_trials)
    return calibration.LiveCalibrations(store)


def run(live, chosen, cancel=None, until=lambda: None, **options):
    n_measured = 0
    for _ in calibration.measure(chosen, live, None, None, cancel or Cancel(), Request(), **options):
        n_measured += 1
        until()
    return n_measured


def test_cheap_ways_are_calibrated_by_default():
    assert [one.runtime.backend for one in calibration.unasked()] == ["jax-epoch", "jax-step", "numpy", "numba"]


@pytest.mark.slow
def test_each_way_has_a_first_fit_before_any_is_complete(live):
    measured = []

    def look():
        if all(live.of(one).calibration for one in (JAX, NUMPY)):
            measured.append(max(live.of(one).n_measured for one in (JAX, NUMPY)))

    run(live, [JAX, NUMPY], until=look)
    assert measured[0] <= calibration.FIRST
    for one in (JAX, NUMPY):
        standing = live.of(one)
        assert standing.n_measured == len(standing.wanted) == len(trials(one))
        trial = Trial(Network((128,)), 32)
        found = predict(trial.workload(one.runtime), standing.calibration)
        assert found.step_s == pytest.approx(exact_s(one, trial), rel=0.1)


def test_watchers_are_notified_of_fits_only(live):
    before = live.version
    run(live, [JAX])
    assert 2 <= live.version - before <= 12, "every quarter more, not every step"
    assert not live.over


def test_a_stopped_calibration_keeps_its_steps_and_resumes(live):
    cancel = Cancel()

    def stop_after_ten():
        if live.of(JAX).n_measured == 10:
            cancel.set()

    run(live, [JAX], cancel, stop_after_ten)
    assert live.of(JAX).n_measured == 11
    assert live.of(JAX).calibration is not None
    assert run(live, [JAX]) == len(trials(JAX)) - 11
    assert run(live, [JAX]) == 0
    assert run(live, [JAX], again=True) == len(trials(JAX)), "the store knows which of them something disturbed"


def test_too_few_or_noisy_steps_are_not_fitted_and_say_why(live, monkeypatch):
    cancel = Cancel()
    run(live, [JAX], cancel, cancel.set)
    assert live.of(JAX).calibration is None
    assert f"expected {LEAST_SAMPLES} measured steps, got" in live.of(JAX).why_not
    noise = random.Random(4)
    noisy = lambda *arguments: fake_trials(*arguments, seconds=lambda *_: 10 ** noise.uniform(-6, 0))  # noqa: E731
    monkeypatch.setattr(calibration, "measure_trials", noisy)
    run(live, [NUMPY])
    assert live.of(NUMPY).calibration is None
    assert "something else is using this machine" in live.of(NUMPY).why_not
    monkeypatch.setattr(calibration, "measure_trials", fake_trials)
    run(live, [NUMPY], again=True)
    assert live.of(NUMPY).calibration is not None
    assert live.of(NUMPY).why_not == ""


def test_a_failing_way_says_so_and_the_others_continue(live, monkeypatch):
    def one_fails(ways, *others):
        if ways[0][0] == JAX:
            raise TrainingFailed("its library is broken")
        yield from fake_trials(ways, *others)

    monkeypatch.setattr(calibration, "measure_trials", one_fails)
    run(live, [JAX, NUMPY])
    assert "its library is broken" in live.of(JAX).why_not
    assert live.of(NUMPY).calibration is not None
