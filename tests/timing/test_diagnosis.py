"""Each finding appears on numbers that show it, stays away on numbers that do not, and repeats the numbers it stands
on."""

import pytest

from lib.timing.diagnosis import DETECTORS, Observed, findings

# name: (numbers that show it, numbers that do not, what the evidence must repeat, the expected gain)
CASES = {
    "compilation counted": (
        Observed(epoch_s=(6.0, 1.0, 1.0, 1.0), first_call_counted=True),
        Observed(epoch_s=(1.05, 1.0, 1.0, 1.0), first_call_counted=True),
        ("2.25 s", "1.00 s", "6.0 s"),
        2.25,
    ),
    "unsynchronised timing": (
        Observed(step_s=541e-6, reported_step_s=20e-6),
        Observed(step_s=541e-6, reported_step_s=530e-6),
        ("540 μs", "20.0 μs"),
        27.05,
    ),
    "tiny work on a GPU": (
        Observed("gpu", step_s=2.8e-3, arithmetic_s=0.14e-3),
        Observed("gpu", step_s=2.8e-3, arithmetic_s=1e-3),
        ("2.80 ms", "140 μs"),
        20.0,
    ),
    "transfer in the loop": (
        Observed(step_s=1e-3, transfer_s=0.5e-3),
        Observed(step_s=1e-3, transfer_s=0.05e-3),
        ("500 μs", "50%"),
        2.0,
    ),
    "input-bound": (Observed(step_s=1e-3, input_s=0.75e-3), Observed(step_s=1e-3, input_s=0.1e-3), ("75%",), 4.0),
    "wrong precision": (
        Observed(precisions=("float32", "tf32")),
        Observed(precisions=("float32", "float32")),
        ("float32 and tf32",),
        None,
    ),
    "disturbed measurement": (
        Observed(spread=0.25),
        Observed(spread=0.02),
        ("25%",),
        None,
    ),
    "GPU present but not registered": (
        Observed(gpus_present=1, gpus_registered=0),
        Observed(gpus_present=1, gpus_registered=1),
        ("1 GPU,", "sees 0"),
        None,
    ),
    "batch sizes compared by epoch time alone": (
        Observed(batch_sizes=(32, 4096)),
        Observed(batch_sizes=(32, 32)),
        ("32, 4096",),
        None,
    ),
}


def test_every_detector_has_a_case():
    assert len(CASES) == len(DETECTORS)


@pytest.mark.parametrize("name", CASES)
def test_a_finding_and_its_absence(name):
    wrong, right, numbers, gain = CASES[name]
    (found,) = findings(wrong)
    assert found.name == name
    assert all(number in found.evidence for number in numbers), found.evidence
    assert found.gain == (pytest.approx(gain) if gain is not None else None)
    assert found.cause
    assert found.remedy
    assert findings(right) == []


def test_nothing_known_nothing_said():
    assert findings(Observed()) == []


def test_the_largest_gain_comes_first():
    both = Observed("gpu", step_s=2.8e-3, arithmetic_s=1e-6, transfer_s=1e-3, spread=0.25)
    assert [finding.name for finding in findings(both)] == [
        "tiny work on a GPU",
        "transfer in the loop",
        "disturbed measurement",
    ]


@pytest.mark.parametrize(("preprocessing_s", "words"), [(0.6e-3, "Preprocess ahead"), (0.1e-3, "batches by slicing")])
def test_what_is_waited_for_decides_the_remedy(preprocessing_s, words):
    (found,) = findings(Observed(step_s=1e-3, input_s=0.75e-3, preprocessing_s=preprocessing_s))
    assert words in found.remedy
