"""Calibrations that grow while they are measured: on invented machines whose exact step time is known, and for real."""

import random

import pytest

from lib.model.backends.registry import Runtime
from lib.model.spec import Network
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments import live_calibration
from lib.sweeps.experiments.calibration import ROUNDS, TrainingWay, Trial, trials
from lib.sweeps.experiments.live_calibration import LiveCalibrations, measure, unasked, ways
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.calibration import LEAST_SAMPLES
from lib.timing.prediction.predict import predict

JAX, NUMPY = TrainingWay(Runtime()), TrainingWay(Runtime("numpy"))


def exact_s(trained: TrainingWay, trial: Trial) -> float:
    """A machine on which a call takes 20 μs and a FLOP 1/100 ns."""
    return 2e-5 + trial.workload(trained.runtime).flops / 1e11


def invented(ways, _engine, _store, cancel, _request, rounds=1, seconds=exact_s):
    """In place of `measure_trials`: what a machine says whose time is known. A note tells of each first round."""
    for trained, todo in ways:
        for trial in todo:
            if cancel.is_set():
                return
            if rounds == 1:
                yield Note(f"{trained.label}: {trial.batch_size}")
            yield trained, trial, StepTime(seconds(trained, trial), 0.1, times=ROUNDS)


@pytest.fixture
def live(tmp_path, monkeypatch):
    monkeypatch.setattr(live_calibration, "measure_trials", invented)
    return LiveCalibrations(Store(tmp_path / "results.sqlite"))


def run(live, chosen, cancel=None, until=None, **options):
    """Measure; `until` is called at every note."""
    for _ in measure(chosen, live, None, None, cancel or Cancel(), Request(), **options):  # pyright: ignore[reportArgumentType]
        if until is not None:
            until()


def test_cheap_ways_are_calibrated_unasked_and_every_way_can_be():
    assert [one.runtime.backend for one in unasked()] == ["jax-epoch", "jax-step", "numpy", "numba"]
    assert set(unasked()) <= set(ways())


@pytest.mark.slow
def test_each_way_has_a_first_answer_before_any_is_complete(live):
    seen = []

    def look():
        fitted = [one for one in (JAX, NUMPY) if live.of(one).calibration]
        seen.append((len(fitted), max(live.of(one).n_measured for one in (JAX, NUMPY))))

    run(live, [JAX, NUMPY], until=look)
    assert min(most for n_fitted, most in seen if n_fitted == 2) <= live_calibration.FIRST
    for one in (JAX, NUMPY):
        standing = live.of(one)
        assert standing.n_measured == len(standing.wanted) == len(trials(one))
        trial = Trial(Network((128,)), 32)
        found = predict(trial.workload(one.runtime), standing.calibration)
        assert found.step_s == pytest.approx(exact_s(one, trial), rel=0.1)


def test_who_watches_hears_of_fits_and_of_nothing_else(live):
    heard = [live.version]
    run(live, [JAX], until=lambda: heard.append(live.version))
    n_fits = live.version - heard[0]
    assert 2 <= n_fits <= 12, "every quarter more, not every step"
    assert not live.over_at(live.version)


def test_a_stop_keeps_and_fits_what_was_measured_and_the_next_run_goes_on(live):
    cancel, asked = Cancel(), []

    def stop_after_ten():
        asked.append(1)
        if len(asked) == 11:
            cancel.set()

    run(live, [JAX], cancel, stop_after_ten)
    assert live.of(JAX).n_measured == 11
    assert live.of(JAX).calibration is not None
    asked.clear()
    run(live, [JAX], until=lambda: asked.append(1))
    assert len(asked) == len(trials(JAX)) - 11
    asked.clear()
    run(live, [JAX], until=lambda: asked.append(1))
    assert asked == []
    run(live, [JAX], until=lambda: asked.append(1), again=True)
    assert len(asked) == len(trials(JAX)), "the store knows which of them something disturbed"


def test_too_few_steps_and_a_noisy_machine_have_no_answer_and_say_why(live, monkeypatch):
    cancel = Cancel()
    run(live, [JAX], cancel, cancel.set)
    assert live.of(JAX).calibration is None
    assert f"expected at least {LEAST_SAMPLES} measured steps, got" in live.of(JAX).why_not
    noise = random.Random(4)
    noisy = lambda *arguments: invented(*arguments, seconds=lambda *_: 10 ** noise.uniform(-6, 0))  # noqa: E731
    monkeypatch.setattr(live_calibration, "measure_trials", noisy)
    run(live, [NUMPY])
    assert live.of(NUMPY).calibration is None
    assert "something else uses this machine" in live.of(NUMPY).why_not
    monkeypatch.setattr(live_calibration, "measure_trials", invented)
    run(live, [NUMPY], again=True)
    assert live.of(NUMPY).calibration is not None
    assert live.of(NUMPY).why_not == ""


def test_a_way_that_fails_says_so_and_the_others_go_on(live, monkeypatch):
    def one_fails(ways, *others):
        if ways[0][0] == JAX:
            raise TrainingFailed("its library is broken")
        yield from invented(ways, *others)

    monkeypatch.setattr(live_calibration, "measure_trials", one_fails)
    run(live, [JAX, NUMPY])
    assert "its library is broken" in live.of(JAX).why_not
    assert live.of(NUMPY).calibration is not None


@pytest.mark.slow
def test_steps_are_measured_for_real_stored_and_there_when_the_program_starts_again(engine, tmp_path, monkeypatch):
    few = [Trial(Network(hidden), 512) for hidden in ((16,), (32,))]
    monkeypatch.setattr(live_calibration, "trials", lambda _: few)
    monkeypatch.setattr("lib.sweeps.experiments.calibration.trials", lambda _: few)
    store = Store(tmp_path / "results.sqlite")
    live = LiveCalibrations(store)
    assert list(measure([JAX], live, engine, store, Cancel(), Request()))
    assert live.of(JAX).n_measured == 2
    again = LiveCalibrations(store).of(JAX)
    assert again == live.of(JAX)
    assert "got 2" in again.why_not
