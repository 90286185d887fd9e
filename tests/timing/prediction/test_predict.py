from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.prediction.predict import (
    COVERAGE,
    LEAST_SAMPLES,
    ROWS,
    USUAL,
    Question,
    calibrate,
    predict,
    predict_many,
    row_shares,
)
from lib.timing.prediction.workload import (
    NoPrediction,
    OperationKind,
    Way,
    Workload,
    convolutional,
    even_networks,
    fully_connected,
    read_devices,
    resnet18,
)
from tests.timing.prediction.invented import FIGURES, device, figure, workload

SOME_WIDTHS = (16, 64, 128, 256, 512)


def workloads(n: int) -> list[Workload]:
    rng, found = np.random.default_rng(5), {}
    while len(found) < n:
        hidden = tuple(int(width) for width in rng.choice(SOME_WIDTHS, rng.integers(0, 4)))
        size = int(2 ** rng.integers(0, 13))
        found[hidden, size] = fully_connected(Network(hidden), size, Way.EPOCH)
    return list(found.values())


def exact_s(workload: Workload) -> float:
    """On a machine with 20 μs a call, 2 μs a kernel, 1/30 ns per updated byte and 1/200 ns per FLOP."""
    updated = sum(one.n_bytes for one in workload.operations if one.kind is OperationKind.UPDATE)
    return 20e-6 + 2e-6 * workload.launches + updated / 30e9 + workload.flops / 200e9


def timed(work: Iterable[Workload], scatter: float = 0.0, seed: int = 4):
    rng = np.random.default_rng(seed)
    return [(one, exact_s(one) * np.exp(scatter * rng.standard_normal())) for one in work]


DRAWN = workloads(100)
SEEN, UNSEEN = DRAWN[:40], DRAWN[40:]


def calibrated(scatter: float = 0.0):
    return calibrate("an invented machine", timed(SEEN, scatter))


def test_a_noiseless_machine_is_fitted_accurately():
    found = calibrated()
    errors = [abs(predict(one, found).step_s / exact_s(one) - 1) for one in UNSEEN]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.1
    assert found.median_error < 0.01


def test_intervals_cover_nine_in_ten_unseen_steps_of_a_noisy_machine():
    found = calibrated(0.1)
    predicted = [(predict(one, found), seconds) for one, seconds in timed(UNSEEN, 0.1, seed=5)]
    assert np.mean([one.low_s <= seconds <= one.high_s for one, seconds in predicted]) >= 0.85  # 60 steps, seeded
    assert np.median([one.high_s / one.low_s for one, _ in predicted]) < 2


def test_the_interval_widens_away_from_the_samples_with_a_warning():
    found = calibrated(0.05)
    known, unknown = SEEN[0], fully_connected(Network((4096,) * 8), 3, Way.EPOCH)
    near, far = predict(known, found), predict(unknown, found)
    assert np.log(far.high_s / far.low_s) > 1.5 * np.log(near.high_s / near.low_s)
    assert not near.warning
    assert "far from every step" in far.warning


@pytest.mark.parametrize("faster", [0.1, 1000.0])
def test_predictions_scale_with_the_speed_of_the_machine(faster):
    samples = timed(SEEN, 0.1)
    slow, fast = (calibrate("one", [(one, s / k) for one, s in samples]) for k in (1.0, faster))
    for one in UNSEEN:
        assert predict(one, fast).step_s * faster == pytest.approx(predict(one, slow).step_s, rel=1e-3)


def test_one_image_costs_like_two_if_no_sample_says_otherwise():
    found = calibrate("one", timed(one for one in SEEN if one.batch_size > 1))
    of_one_image, of_two = found.costs[len(USUAL) : len(USUAL) + 2]
    assert of_one_image == pytest.approx(of_two, rel=0.01)


def test_meaningless_steps_of_a_noisy_machine_are_refused():
    with pytest.raises(NoPrediction, match="something else is using this machine"):
        calibrate("a busy machine", timed(SEEN, 3.0))


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (timed(SEEN[: LEAST_SAMPLES - 1]), f"expected {LEAST_SAMPLES} measured steps, got {LEAST_SAMPLES - 1}"),
        ([(one, 0.0) for one in SEEN], "seconds above 0, got 0"),
        ([(one, float("nan")) for one in SEEN], "seconds above 0, got nan"),
        ([*timed(SEEN[1:]), (SEEN[0], float("inf"))], "seconds above 0, got inf"),
    ],
)
def test_too_few_or_invalid_samples_are_refused(samples, words):
    with pytest.raises(NoPrediction, match=words):
        calibrate("a machine", samples)


def test_rows_are_interpolated_between_neighbouring_sizes():
    for number, rows in enumerate(ROWS):
        assert row_shares(rows)[number] == 1
    assert row_shares(512)[ROWS.index(256)] == pytest.approx(0.5), "halfway between 256 and 1024 in octaves"
    for rows in (0.5, 3, 100, 10**6):
        assert row_shares(rows).sum() == pytest.approx(1)


def test_the_least_number_of_samples_allows_the_coverage():
    assert (LEAST_SAMPLES + 1) * COVERAGE <= LEAST_SAMPLES
    assert LEAST_SAMPLES * COVERAGE > LEAST_SAMPLES - 1, "one fewer has none"


def test_intervals_are_widened_as_conformal_prediction_requires():
    samples = timed(SEEN[:10], 0.1)
    deviations = []
    for index, (work, seconds) in enumerate(samples):
        others = calibrate("one", samples[:index] + samples[index + 1 :])
        step_s, _, high_s = map(float, others.predicted(work))
        deviations.append(abs(np.log(step_s / seconds)) / (np.log(high_s / step_s) / others.widening))
    assert calibrate("one", samples).widening == pytest.approx(max(deviations))


MOVED_S = 20_000 / 1e10  # cached bytes: 4,000 + 3 × 2,000 + 10,000
PRODUCTS_S = 2 * 2_000_000 / 1e9  # 100 elements fill half of the device


@pytest.mark.parametrize(
    ("way", "overhead_s"),
    [
        (Way.WAITED, 5 * (1e-3 + 2e-3)),
        (Way.OPERATIONS, 5 * 1e-3),
        (Way.STEP, 1e-2 + 3 * 1e-4),
        (Way.EPOCH, 1e-2 / 100 + 3 * 1e-4),
        (Way.GRAPH, 1e-2 / 100 + 3 * 1e-5),
    ],
)
def test_each_way_of_running_a_step_matches_a_hand_calculation(way, overhead_s):
    assert predict(workload(way), device()).step_s == pytest.approx(overhead_s + MOVED_S + PRODUCTS_S, rel=1e-12)


def test_images_from_the_host_cost_latency_and_bytes():
    here, there = (predict(workload(resident=resident), device()) for resident in (True, False))
    assert there.step_s - here.step_s == pytest.approx(3e-3 + 500 / 1e6)


def test_two_networks_use_capacity_that_one_leaves_idle():
    one, two, four = (predict(workload(networks=n), device()).step_s - n * MOVED_S for n in (1, 2, 4))
    assert one == pytest.approx(two)
    assert four - one == pytest.approx(PRODUCTS_S)


def test_bytes_beyond_the_cache_come_from_memory():
    held, beyond = (predict(workload(), device(cache_bytes=n_bytes)).step_s for n_bytes in (2_600, 2_599))
    assert beyond - held == pytest.approx(9 * MOVED_S)


@st.composite
def figures(draw):
    """Ranges around the invented figures; either end is up to a factor of 100 away."""
    found = {}
    for name, value in FIGURES.items():
        down, up = draw(st.floats(1, 100)), draw(st.floats(1, 100))
        found[name] = figure(value, value / down, value * up)
    memory, cache = found["memory_bytes_per_s"], found["cache_bytes_per_s"]
    found["cache_bytes_per_s"] = figure(cache.value, max(cache.low, memory.low), max(cache.high, memory.high))
    found["memory_bytes"] = figure(1e13)
    return found


NETWORKS = st.lists(st.integers(1, 300), max_size=3).map(lambda widths: Network(tuple(widths)))
WORK = st.one_of(
    st.builds(
        fully_connected, NETWORKS, st.integers(1, 4_096), st.sampled_from(Way), st.integers(1, 32), st.booleans()
    ),
    st.builds(lambda size, way: convolutional(size).by(way), st.integers(1, 64), st.sampled_from(Way)),
    st.builds(lambda size, way: resnet18(size).by(way), st.integers(1, 8), st.sampled_from(Way)),
)


@given(WORK, figures())
def test_the_interval_contains_the_prediction(work, ranges):
    found = predict(work, device(**ranges))
    assert 0 < found.low_s <= found.step_s <= found.high_s


@given(NETWORKS, st.integers(1, 2_048), st.sampled_from(Way), figures())
def test_more_work_never_takes_less_time(network, batch_size, way, ranges):
    one = device(**ranges)
    step_s = predict(fully_connected(network, batch_size, way), one).step_s
    assert step_s <= predict(fully_connected(network, 2 * batch_size, way), one).step_s * (1 + 1e-12)
    assert step_s <= predict(fully_connected(network, batch_size, way, networks=2), one).step_s * (1 + 1e-12)
    assert step_s <= predict(fully_connected(network, batch_size, way, resident=False), one).step_s


@pytest.mark.parametrize("key", list(read_devices()))
def test_a_graph_is_no_slower_than_an_epoch_and_that_no_slower_than_a_step(key):
    one = read_devices()[key]
    by_way = [predict(fully_connected(Network(), 32, way), one).step_s for way in (Way.GRAPH, Way.EPOCH, Way.STEP)]
    assert by_way == sorted(by_way)


def test_steps_beyond_the_memory_are_not_predicted():
    with pytest.raises(NoPrediction, match=r"expected a step of at most the 0\.001 GB"):
        predict(workload(parameter_bytes=500_000), device(memory_bytes=1e6))
    found = predict_many(even_networks((1, 4096), (1,), 4), device(memory_bytes=1e8))
    assert np.isfinite(found.step_s[0, 0])
    assert np.isnan([found.step_s[1, 0], found.low_s[1, 0], found.high_s[1, 0]]).all()


WIDTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(tuple)
SIZES = st.lists(st.integers(1, 48_000), min_size=1, max_size=3).map(tuple)
DEVICES = {**read_devices(), "a calibration": calibrated(0.05)}


@given(WIDTHS, SIZES, st.integers(1, 4), st.integers(1, 64), st.sampled_from(Way), st.sampled_from(sorted(DEVICES)))
def test_predicting_many_equals_predicting_each(widths, sizes, depth, networks, way, key):
    found = predict_many(even_networks(widths, sizes, depth, networks, way), DEVICES[key])
    for row, width in enumerate(widths):
        for column, size in enumerate(sizes):
            one = fully_connected(Network((width,) * depth), size, way, networks)
            ends = [end[row, column] for end in (found.step_s, found.low_s, found.high_s)]
            try:
                each = predict(one, DEVICES[key])
                assert ends == pytest.approx((each.step_s, each.low_s, each.high_s), rel=1e-9)
            except NoPrediction:
                assert np.isnan(ends).all()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"networks": 0}, "networks: expected 1 to 100,000, got 0"),
        ({"networks": True}, "networks: expected"),
        ({"batch_size": 0}, "batch size: expected 1"),
        ({"epochs": 0}, "epochs: expected 1"),
        ({"rows": 0}, "rows: expected 1 to 1,000,000,000, got 0"),
        ({"rows": 20}, r"batch size: expected 1 to 20 \(the number of training rows\), got 32"),
        ({"price_per_h": -1}, "price: expected 0 to 1,000 dollars an hour, got -1"),
        ({"price_per_h": float("nan")}, "price: expected 0 to 1,000 dollars an hour, got nan"),
    ],
)
def test_an_invalid_question_is_refused(other, words):
    with pytest.raises(ValueError, match=words):
        Question(Network((128,)), **other)


@pytest.mark.parametrize(
    ("inputs", "classes", "rows"), [(4, 3, 150), (784, 10, 48_000), (784, 10, 60_000), (3_072, 100, 50_000)]
)
def test_a_question_uses_its_inputs_classes_and_full_batches(inputs, classes, rows):
    question = Question(Network((64,), inputs, classes), 7, 3, rows=rows)
    step = question.workload(Way.STEP)
    assert (question.steps, step.steps) == (3 * (rows // 7), rows // 7)
    assert step.input_bytes == 4 * 7 * inputs
    assert step.parameter_bytes == 4 * question.network.n_parameters
    assert step.flops == question.network.step_flops(7)
