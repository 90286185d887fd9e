# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
from types import SimpleNamespace

import pytest

from lib.model.backends.registry import Runtime, versions
from lib.model.spec import N_PIXELS, Network
from lib.sweeps.experiments import advice
from lib.sweeps.experiments.advice import Findings, findings, offered, saved
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask
from lib.sweeps.experiments.calibration import CalibrationProgress, TrainingWay, Trial, calibrations, trials
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.predict import Prediction, Question
from lib.timing.prediction.remedies import RESIDENT, Effect, Remedy, Setup
from lib.timing.prediction.workload import Cost
from lib.timing.profiling.request import FROM_HOST, PLAIN_STEP, TAKEN, VARIANTS, VARIED, Examination

EPOCH, STEP, NUMPY = (TrainingWay(Runtime(key)) for key in ("jax-epoch", "jax-step", "numpy"))
TOGETHER = TrainingWay(Runtime(), True)
CALL_S = {EPOCH: 1e-6, STEP: 1e-4, NUMPY: 2e-4, TOGETHER: 1e-6}
EIGHT = Question(Network((128,)), 32, networks=8)
LATENCY_S, BYTE_S, SAVED_S = 1e-5, 1e-9, 3e-5


def exact_s(trained: TrainingWay, trial: Trial) -> float:
    return CALL_S[trained] + trial.workload(trained.runtime).flops / 1e11


def calibrated(*ways: TrainingWay) -> list[CalibrationProgress]:
    times = {one: {trial: StepTime(exact_s(one, trial), 0.1) for trial in trials(one)} for one in ways}
    found, _ = calibrations({(one, trial): time for one, of_it in times.items() for trial, time in of_it.items()})
    return [CalibrationProgress(one, times.get(one, {}), found.get(one)) for one in CALL_S]


ALL = calibrated(*CALL_S)


def keep(store: Store, trained: TrainingWay, trial: Trial, step_s: float) -> None:
    subject = trained.subject(trial) | {"first_call_s": 0.1}
    measured = Measurement((step_s,), 1, Ended.CAP)
    store.add(Record.of(Kind.STEP_TIME, subject, measured, versions(trained.runtime)))


def keep_blocks(store: Store, task: AnatomyTask, name: str, *block_s: float) -> None:
    subject = task.subject | {"name": name, "work": 1.0}
    store.add(Record.of(Kind.ANATOMY, subject, Measurement(block_s, 1, Ended.CAP), versions(task.runtime)))


def keep_transfers(store: Store) -> None:
    task = AnatomyTask(STEP.runtime, Examination("takings"))
    for size in TAKEN:
        spent_s = LATENCY_S + BYTE_S * 4 * N_PIXELS * size
        for where, more_s in ((FROM_HOST, spent_s), (RESIDENT, 0.0)):
            keep_blocks(store, task, f"{where} {size}", 9e-6 + more_s, 7e-6 + more_s, 8e-6 + more_s)
    keep_variants(store, STEP.runtime)


def keep_variants(store: Store, runtime: Runtime) -> None:
    task = AnatomyTask(runtime, Examination("takings"))
    changes_s = {one.variant: SAVED_S if one.kept else -SAVED_S for one in Remedy} | {PLAIN_STEP: 0.0}
    for size in VARIED:
        for name in (PLAIN_STEP, *VARIANTS[runtime.backend]):
            if name != RESIDENT:
                keep_blocks(store, task, f"{name} {size}", 2e-4 + 1e-6 * size + changes_s[name])


def by_remedy(found: Findings) -> dict[Remedy, Effect]:
    return {one.remedy: one for one in found.effects}


def setup_of(found: Findings, remedy: Remedy) -> Setup | None:
    return by_remedy(found)[remedy].setup


def test_transfer_costs_are_fitted_to_host_and_device_batches(store):
    assert saved(STEP.runtime, RESIDENT, store.records(Kind.ANATOMY)) is None
    keep_transfers(store)
    cost = saved(STEP.runtime, RESIDENT, store.records(Kind.ANATOMY))
    assert (cost.latency_s, cost.byte_s) == (pytest.approx(LATENCY_S), pytest.approx(BYTE_S))


def test_a_step_with_resident_batches_takes_its_median_block(store):
    task = AnatomyTask(STEP.runtime, Examination(RESIDENT, EIGHT.network, 32))
    for blocks in ((9e-6, 5e-6, 1e-9), (7e-6, 7e-6, 1e-9)):
        keep_blocks(store, task, RESIDENT, *blocks)
    found = task.step_time(store.records(Kind.ANATOMY))
    assert (found.step_s, found.low_s, found.high_s) == pytest.approx((6e-6, 5e-6, 7e-6))


def test_every_backend_states_its_possible_savings(store):
    keep_transfers(store)
    keras, torch = (TrainingWay(Runtime(key)) for key in ("keras-jax", "torch"))
    found = offered([EPOCH, STEP, NUMPY, keras, torch], {}, store.records(Kind.ANATOMY))
    assert found[EPOCH.label].saves == found[NUMPY.label].saves == {}
    assert set(found[keras.label].saves.values()) == {advice.NOT_MEASURED}
    assert isinstance(found[STEP.label].saves[RESIDENT], Cost)
    assert found[torch.label].saves[Remedy.GRAPH.variant] == advice.NO_CARD


def test_gains_of_remedies_match_the_known_times(store):
    keep_transfers(store)
    found = findings(EIGHT, STEP, ALL, store)
    today_s = exact_s(STEP, Trial(EIGHT.network, 32))
    assert found.before.step.step_s == pytest.approx(today_s, rel=0.05)
    exact = {
        Remedy.EPOCH: today_s / exact_s(EPOCH, Trial(EIGHT.network, 32)),
        Remedy.BATCH: 4 * today_s / exact_s(STEP, Trial(EIGHT.network, 128)),
        Remedy.DATA: today_s / (today_s - LATENCY_S - BYTE_S * 4 * N_PIXELS * 32),
        Remedy.NETWORKS: 8 * today_s / exact_s(TOGETHER, Trial(EIGHT.network, 32, 8)),
        Remedy.BACKEND: today_s / exact_s(NUMPY, Trial(EIGHT.network, 32)),
    }
    for remedy, gain in exact.items():
        assert by_remedy(found)[remedy].gain == pytest.approx(gain, rel=0.1), remedy
    assert by_remedy(found)[Remedy.STEP].why_not == "its step is already compiled"
    assert found.measured == {}


def test_a_measured_step_improves_the_predicted_remedies(store):
    keep_transfers(store)
    before = findings(EIGHT, STEP, ALL, store)
    keep(store, STEP, Trial(EIGHT.network, 32), 1.5 * exact_s(STEP, Trial(EIGHT.network, 32)))
    after = findings(EIGHT, STEP, ALL, store)
    assert after.before == before.before, "it stays what it was before it was measured"
    for remedy, true_s in (
        (Remedy.BATCH, 1.5 * exact_s(STEP, Trial(EIGHT.network, 128))),
        (Remedy.DATA, 1.5 * exact_s(STEP, Trial(EIGHT.network, 32)) - LATENCY_S - BYTE_S * 4 * N_PIXELS * 32),
    ):
        misses = [abs(setup_of(one, remedy).step.step_s / true_s - 1) for one in (before, after)]
        assert misses[1] < 0.75 * misses[0], remedy
    assert setup_of(after, Remedy.BACKEND) == setup_of(before, Remedy.BACKEND), "of another library it says nothing"


def test_a_miss_is_a_share_of_the_measured_step(store):
    setup = setup_of(findings(EIGHT, STEP, ALL, store), Remedy.EPOCH)
    keep(store, EPOCH, Trial(EIGHT.network, 32), setup.step.step_s * 1.25)
    keep(store, STEP, Trial(EIGHT.network, 32), 5e-4)
    found = findings(EIGHT, STEP, ALL, store)
    assert advice.miss(setup_of(found, Remedy.EPOCH), found.measured[Remedy.EPOCH]) == pytest.approx(0.2)
    assert found.gains == {Remedy.EPOCH: pytest.approx(5e-4 / (1.25 * setup.step.step_s))}


def test_unanswerable_questions_say_why(store, monkeypatch):
    assert "JAX, one call a step is not calibrated" in findings(EIGHT, STEP, calibrated(EPOCH), store).problem
    noisy = [CalibrationProgress(STEP, why_not="something else is using this machine"), *ALL[:1]]
    assert findings(EIGHT, STEP, noisy, store).problem == "something else is using this machine"
    monkeypatch.setattr(advice, "usable_memory_bytes", lambda _device: 1e5)
    found = findings(EIGHT, STEP, ALL, store)
    assert "expected a step of at most 0.0001 GB" in found.problem
    assert (found.before, found.effects) == (None, ())


def test_a_step_too_long_to_stop_is_refused():
    slow = Setup("JAX", 32, Prediction(12.0, 10.0, 14.0))
    assert "predicted to take 12 s: expected at most 3 s" in advice.too_long(slow)
    assert not advice.too_long(Setup("JAX", 32, Prediction(1.0, 0.5, 2.0)))


def test_a_way_not_calibrated_by_default_is_calibrated_when_chosen(store, monkeypatch):
    asked = []
    monkeypatch.setattr(advice, "measure", lambda chosen, *_: iter(asked.append(chosen) or [Note("a step")]))
    monkeypatch.setattr(advice, "measure_variants", lambda *_: iter(()))
    keras = TrainingWay(Runtime("keras-tensorflow"))
    waiting = [CalibrationProgress(one, why_not="it waits") for one in (keras, STEP)]
    live = SimpleNamespace(view=lambda: SimpleNamespace(items=waiting))
    for by in (keras, STEP):
        list(advice.apply(EIGHT, by, [], live, None, store, Cancel(), Request()))
    assert asked == [[keras]], "section 2 calibrates the other unasked"


@pytest.mark.slow
def test_applying_remedies_measures_and_stores_both_steps(engine, store):
    keep_transfers(store)
    live = SimpleNamespace(view=lambda: SimpleNamespace(items=ALL))
    small = Question(Network((16,)), 64, networks=2)
    chosen = [Remedy.STEP, Remedy.EPOCH, Remedy.DATA, Remedy.NETWORKS]

    def pressed(cancel: Cancel) -> list[Remedy]:
        events = list(advice.apply(small, STEP, chosen, live, engine, store, cancel, Request(), rounds=1))
        assert all(isinstance(event, Note | Remedy | Record) for event in events)
        return [event for event in events if isinstance(event, Remedy)]

    stopped = Cancel()
    stopped.set()
    assert pressed(stopped) == []
    assert findings(small, STEP, ALL, store).measured == {}
    for times in (1, 2):
        assert pressed(Cancel()) == chosen[1:], "its step is already compiled"
        found = findings(small, STEP, ALL, store)
        assert found.measured[None].times == times
        known = [
            advice.stored_step(small, setup_of(found, one), way, store)
            for one, way in zip(chosen[1:], (EPOCH, STEP, TOGETHER), strict=True)
        ]
        assert all(one is not None and 0 < one.low_s <= one.step_s <= one.high_s < 1 for one in known)


@pytest.mark.parametrize("backend", ["keras-tensorflow", "keras-jax"])
def test_savings_of_keras_variants_are_differences_of_two_fits(store, backend):
    runtime = Runtime(backend)
    assert saved(runtime, Remedy.METRIC.variant, store.records(Kind.ANATOMY)) is None
    keep_variants(store, runtime)
    for variant in VARIANTS[backend]:
        cost = saved(runtime, variant, store.records(Kind.ANATOMY))
        assert cost.seconds(4 * N_PIXELS * 100) == pytest.approx(SAVED_S, rel=1e-3), variant
