"""Costs fitted to steps of invented machines, whose exact time is known; and steps that teach nothing."""

import numpy as np
import pytest

from lib.model.spec import Network
from lib.timing.prediction.predict import (
    COVERAGE,
    LEAST_SAMPLES,
    ROWS,
    NotCalibrated,
    calibrate,
    predict,
    row_shares,
)
from lib.timing.prediction.workload import OperationKind, Way, Workload, fully_connected

RNG = np.random.default_rng(5)
WIDTHS = (16, 64, 128, 256, 512)


def workloads(n: int) -> list[Workload]:
    """Different ones, drawn with a seed."""
    found: dict[tuple, Workload] = {}
    while len(found) < n:
        hidden = tuple(int(width) for width in RNG.choice(WIDTHS, RNG.integers(0, 4)))
        size = int(2 ** RNG.integers(0, 13))
        found[hidden, size] = fully_connected(Network(hidden), size, Way.EPOCH)
    return list(found.values())


def exact_s(workload: Workload) -> float:
    """A machine on which a call takes 20 μs, a kernel 2 μs, a byte of an update 1/30 ns and a FLOP 1/200 ns."""
    updated = sum(one.n_bytes for one in workload.operations if one.kind is OperationKind.UPDATE)
    return 20e-6 + 2e-6 * workload.launches + updated / 30e9 + workload.flops / 200e9


SEEN, UNSEEN = (lambda drawn: (drawn[:40], drawn[40:]))(workloads(100))


def calibrated(scatter: float = 0.0):
    factors = np.exp(scatter * RNG.standard_normal(len(SEEN)))
    return calibrate("an invented machine", [(w, exact_s(w) * f) for w, f in zip(SEEN, factors, strict=True)])


def test_the_costs_of_an_exact_machine_are_found():
    found = calibrated()
    errors = [abs(predict(one, found).step_s / exact_s(one) - 1) for one in UNSEEN]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.1
    assert found.median_error < 0.01


def test_parts_add_up_to_the_seconds():
    found = calibrated(0.05)
    for one in UNSEEN[:10]:
        predicted = predict(one, found)
        assert sum(predicted.parts_s.values()) == pytest.approx(predicted.step_s)
        assert predicted.low_s < predicted.step_s < predicted.high_s


def test_nine_in_ten_unseen_steps_of_a_noisy_machine_lie_in_their_intervals():
    found = calibrated(0.1)
    noisy_s = [exact_s(one) * np.exp(0.1 * RNG.standard_normal()) for one in UNSEEN]
    inside = [(p := predict(one, found)).low_s <= s <= p.high_s for one, s in zip(UNSEEN, noisy_s, strict=True)]
    assert np.mean(inside) >= 0.85  # of 60, with a seed
    assert np.median([predict(one, found).high_s / predict(one, found).low_s for one in UNSEEN]) < 2


def test_the_interval_widens_away_from_the_samples_and_says_so():
    found = calibrated(0.05)
    known, unknown = SEEN[0], fully_connected(Network((4096,) * 8), 3, Way.EPOCH)
    near, far = predict(known, found), predict(unknown, found)
    assert np.log(far.high_s / far.low_s) > 1.5 * np.log(near.high_s / near.low_s)
    assert not near.warning
    assert "far from every step" in far.warning


@pytest.mark.parametrize("faster", [0.1, 1000.0])
def test_a_machine_that_is_so_many_times_faster_is_predicted_so_many_times_faster(faster):
    factors = np.exp(0.1 * np.random.default_rng(4).standard_normal(len(SEEN)))
    timed = [(one, exact_s(one) * factor) for one, factor in zip(SEEN, factors, strict=True)]
    slow, fast = (calibrate("one", [(one, s / k) for one, s in timed]) for k in (1.0, faster))
    for one in UNSEEN:
        assert predict(one, fast).step_s * faster == pytest.approx(predict(one, slow).step_s, rel=1e-3)


def test_a_single_image_is_taken_to_cost_what_two_do_where_no_sample_says_otherwise():
    found = calibrate("one", [(one, exact_s(one)) for one in SEEN if one.batch_size > 1])
    one, two = (fully_connected(Network((512,)), size, Way.EPOCH) for size in (1, 2))
    assert predict(one, found).parts_s["products"] > 0.3 * predict(two, found).parts_s["products"]


def test_steps_of_a_machine_so_noisy_that_they_mean_nothing_are_refused():
    anything_s = np.exp(3 * RNG.standard_normal(len(SEEN))) * 1e-3
    with pytest.raises(NotCalibrated, match="something else uses this machine"):
        calibrate("a busy machine", [(one, s) for one, s in zip(SEEN, anything_s, strict=True)])


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [(one, exact_s(one)) for one in SEEN[: LEAST_SAMPLES - 1]],
            f"at least {LEAST_SAMPLES} measured steps, got {LEAST_SAMPLES - 1}",
        ),
        ([(one, 0.0) for one in SEEN], "seconds above 0, got 0"),
        ([(one, float("nan")) for one in SEEN], "seconds above 0, got nan"),
        ([(one, exact_s(one)) for one in SEEN[1:]] + [(SEEN[0], float("inf"))], "seconds above 0, got inf"),
    ],
)
def test_too_little_is_refused_in_a_sentence(samples, words):
    with pytest.raises(NotCalibrated, match=words):
        calibrate("a machine", samples)


def test_rows_are_shared_between_neighbours():
    for number, rows in enumerate(ROWS):
        assert row_shares(rows)[number] == 1
    assert row_shares(512)[ROWS.index(256)] == pytest.approx(0.5), "halfway between 256 and 1024 in octaves"
    for rows in (0.5, 3, 100, 10**6):
        assert row_shares(rows).sum() == pytest.approx(1)


def test_the_fewest_samples_have_an_error_that_nine_in_ten_do_not_exceed():
    assert (LEAST_SAMPLES + 1) * COVERAGE <= LEAST_SAMPLES
    assert LEAST_SAMPLES * COVERAGE > LEAST_SAMPLES - 1, "one fewer has none"


def test_intervals_hold_the_share_that_conformal_prediction_asks_for():
    """Of ten samples, each predicted from the nine others, the one at rank ⌈11 × 0.9⌉, which is the farthest off."""
    samples = [(one, exact_s(one) * np.exp(0.1 * RNG.standard_normal())) for one in SEEN[:10]]
    deviations = []
    for index, (workload, seconds) in enumerate(samples):
        others = calibrate("one", samples[:index] + samples[index + 1 :])
        step_s, _, high_s = map(float, others.predicted(workload))
        deviations.append(abs(np.log(step_s / seconds)) / (np.log(high_s / step_s) / others.widening))
    assert calibrate("one", samples).widening == pytest.approx(max(deviations))
