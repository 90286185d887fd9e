"""What a script is advised: this machine answers by its calibrations, and says which of its ways do not."""

import pytest

from lib.formatting import listed
from lib.model.backends.registry import ADAPTERS, Runtime, usable_runtimes
from lib.model.hardware.webgpu import SOFTWARE_ALLOWED, Adapter
from lib.model.spec import Network
from lib.sweeps.experiments import calibration
from lib.sweeps.experiments.advice import advise_here, recorded_devices
from lib.sweeps.experiments.calibration import WAYS, LiveCalibrations, Trial, ways
from lib.sweeps.experiments.recorded_machines import place, recorded_here
from lib.sweeps.storage.store import Store
from lib.timing.prediction.device import read_devices
from lib.timing.prediction.predict import Question
from tests.sweeps.experiments.test_calibration import JAX, exact_s, invented, run
from tests.timing.prediction.invented import device

QUESTION = Question(Network((64,)), 32, 2)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "measure_trials", invented)
    monkeypatch.setattr(calibration, "usable_runtimes", lambda: [Runtime(), Runtime("numba")])
    return Store(tmp_path / "results.sqlite")


def test_devices_that_are_known_answer_and_this_machine_says_why_it_does_not(store):
    advice = advise_here(QUESTION, store=store)
    known = {one.name for one in read_devices().values()} | {one.name for one in recorded_devices().values()}
    assert {one.device for one in advice.answers} == known
    assert [why for why in advice.silent if "is not calibrated" in why] == list(advice.silent)


def test_a_calibrated_machine_answers_with_what_its_steps_take(store):
    live = LiveCalibrations(store)
    run(live, [JAX])
    advice = advise_here(QUESTION, {"card": device()}, store, live)
    (here,) = (one for one in advice.answers if one.here)
    trial = Trial(QUESTION.network, QUESTION.batch_size)
    assert here.prediction.step_s == pytest.approx(QUESTION.steps * exact_s(JAX, trial), rel=0.1)
    assert {one.device for one in advice.answers} == {"this machine", "an invented card"}
    (why,) = advice.silent
    assert why.startswith("not calibrated on this machine")
    left = [one.label for one in ways() if one != JAX]
    assert f": {listed(left)};" in why


def test_a_way_that_failed_is_named(store):
    live = LiveCalibrations(store)
    live.fail(JAX, "its library is broken")
    assert f"{JAX.label}: its library is broken" in advise_here(QUESTION, {}, store, live).silent


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "kinds"), [("", {"discrete"}), ("1", {"discrete", "software"})])
def test_a_calibrated_webgpu_adapter_answers_and_a_software_one_only_where_it_is_asked_for(
    allowed, kinds, store, monkeypatch
):
    there = tuple(Adapter(kind, f"a {kind} adapter", "", "") for kind in ("discrete", "software"))
    monkeypatch.setenv(SOFTWARE_ALLOWED, allowed)
    monkeypatch.setattr("lib.model.backends.registry.webgpu.asked", lambda with_software: there)
    monkeypatch.setattr("lib.model.backends.registry._installed", lambda *_: True)
    monkeypatch.setattr(calibration, "usable_runtimes", usable_runtimes)
    adapters = [one for one in ways() if one.runtime.device in ADAPTERS]
    assert {one.runtime.device for one in adapters} == kinds
    live = LiveCalibrations(store)
    run(live, adapters)
    answered = {one.way for one in advise_here(QUESTION, {}, store, live).answers if one.here}
    assert answered == {one.label for one in adapters}


@pytest.mark.parametrize(
    ("runtime", "hidden", "size"),
    [
        (Runtime("torch", "gpu"), (128,), 512),
        (Runtime("jax-epoch", "gpu"), (256, 128, 64), 32),
        (Runtime("numpy"), (128, 64), 32),
        (Runtime("keras-tensorflow"), (128,), 128),
    ],
)
def test_what_was_recorded_answers_near_it_and_sets_the_interval(runtime, hidden, size, store):
    machine = next(one for one in recorded_here().machines if runtime in one.runtimes)
    epoch = machine.epoch(runtime, size, Network(hidden))
    answers = advise_here(Question(Network(hidden), size), store=store).answers
    (found,) = (one for one in answers if (one.device, one.way) == (place(machine, runtime.on_gpu), runtime.label))
    assert found.recorded
    assert epoch is not None
    assert found.prediction.low_s < epoch.middle < found.prediction.high_s
    assert found.prediction.step_s == pytest.approx(epoch.middle, rel=0.5)
    assert found.prediction.high_s < 3 * found.prediction.low_s, "an interval that answers something"
    same = [one for one in answers if (one.device, one.library) == (found.device, found.library)]
    assert [one for one in same if one.way.startswith(WAYS[runtime.backend])] == [], "it is said once"


def test_far_from_what_was_recorded_the_device_s_figures_answer(store):
    answers = advise_here(Question(Network((4096,) * 8), 4096), store=store).answers
    assert not any(one.recorded for one in answers)
    assert {one.device for one in answers} >= {one.name for one in recorded_devices().values()}


def test_pytorch_and_jax_have_rows_on_the_recorded_card(store):
    card = place(next(one for one in recorded_here().machines if one.has_gpu), True)
    answers = advise_here(Question(Network((128,)), 64), store=store).answers
    assert {"PyTorch", "PyTorch, compiled", "JAX"} <= {one.library for one in answers if one.device == card}
