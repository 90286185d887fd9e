"""What is said of this machine's calibrations: only of those that are there, and why others are not."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.calibration import Trained, calibrations, trials
from lib.experiments.live_calibration import Standing
from lib.sweeps.cost_model import StepTime
from lib.views.live_calibration import calibrated_sentence, calibrations_table, problems, progress

JAX, NUMPY = Trained(Runtime()), Trained(Runtime("numpy"))


@pytest.fixture(scope="module")
def calibrated():
    steps = {(JAX, one): StepTime(1e-5 + one.workload(JAX.runtime).flops / 1e11, 0.1) for one in trials(JAX)}
    found, _ = calibrations(steps)
    return Standing(JAX, {trial: one for (_, trial), one in steps.items()}, found[JAX])


def test_a_machine_without_a_calibration_is_not_predicted():
    assert "not calibrated yet" in calibrated_sentence([Standing(JAX), Standing(NUMPY)])
    assert progress([Standing(JAX)], [JAX]) == (0, len(trials(JAX)))


def test_a_calibration_is_named_with_its_error_and_a_refusal_with_its_reason(calibrated):
    noisy = Standing(NUMPY, {}, None, "NumPy: something else uses this machine")
    said = calibrated_sentence([calibrated, noisy])
    assert JAX.label in said
    assert f"{calibrated.calibration.median_error:.0%} off" in said
    assert NUMPY.label not in said
    assert problems([calibrated, noisy], [JAX, NUMPY]) == ["NumPy: something else uses this machine."]
    assert problems([calibrated, noisy], [JAX]) == [], "nobody asked for it"
    assert progress([calibrated, noisy], [JAX]) == (len(trials(JAX)), len(trials(JAX)))
    table = calibrations_table([calibrated, noisy])
    assert f"{len(trials(JAX))} of {len(trials(JAX))}" in table
    assert "something else uses this machine" in table
