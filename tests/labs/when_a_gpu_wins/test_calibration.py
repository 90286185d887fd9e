"""How well this machine is known: which ways are calibrated, and what is said of them."""

import pytest

from lib.labs.when_a_gpu_wins import calibration as page
from lib.model.backends.registry import Runtime
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments.calibration import CalibrationProgress, TrainingWay, calibrations, trials, ways
from tests.sweeps.experiments.test_calibration import JAX, NUMPY, exact_s


def draw(lab, panel=None):
    lab.work(panel or lab.controls("here"), *page.calibration(lab.page))


def test_every_way_has_an_address_of_its_own():
    assert len({one.address for one in ways()}) == len(ways())
    assert "jax-epoch/cpu/together" in {one.address for one in ways()}


@pytest.mark.slow
def test_the_cheap_ways_are_calibrated_on_their_own_and_the_others_by_choice(opened, shown):
    draw(opened())
    assert "This machine is calibrated for" in shown[-1]
    assert "<b>Done</b>" in shown[-1]
    draw(opened(here_ways="jax-epoch/cpu"))
    assert "<b>Saved result</b>" in shown[-1], "nothing is missing for it"


def test_a_way_that_is_not_here_is_refused_in_a_sentence(opened, shown, panel):
    lab = opened()
    draw(lab, panel(lab, "here").set(ways=["abacus/cpu"]))
    assert "expected some of" in shown[-1].lower()


def test_a_calibration_is_named_with_its_error_and_a_refusal_with_its_reason():
    assert "not calibrated yet" in page.calibrated_sentence([CalibrationProgress(JAX), CalibrationProgress(NUMPY)])
    assert page.progress([CalibrationProgress(JAX)], [JAX]) == (0, len(trials(JAX)))
    steps = {(JAX, one): StepTime(exact_s(JAX, one), 0.1) for one in trials(JAX)}
    known = calibrations(steps)[0][TrainingWay(Runtime())]
    calibrated = CalibrationProgress(JAX, {trial: one for (_, trial), one in steps.items()}, known)
    noisy = CalibrationProgress(NUMPY, {}, None, "something else uses this machine")
    assert page.calibrated_sentence([calibrated, noisy]).startswith(
        f"This machine is calibrated for {JAX.label} ({known.median_error:.0%}): "
    )
    assert page.progress([calibrated, noisy], [JAX]) == (len(trials(JAX)), len(trials(JAX)))
