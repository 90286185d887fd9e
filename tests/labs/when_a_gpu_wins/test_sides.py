"""Two sides over width and batch size, on invented devices whose exact border is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.labs.when_a_gpu_wins import sides
from lib.labs.when_a_gpu_wins.border import rule_sentence
from lib.labs.when_a_gpu_wins.sides import (
    CELLS,
    CHANGEABLE,
    SIZES,
    WIDTHS,
    Side,
    Surface,
    against_rule,
    border_lines,
    calibrated_side,
    imagined,
    known_side,
    measured_points,
    measured_steps,
    points_elsewhere,
    published_points,
    recorded_side,
    recorded_ways,
    rule_failures,
    rule_width,
    surface,
)
from lib.model.backends.registry import BACKENDS, Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments.backend_race import BATCH_SIZES
from lib.sweeps.experiments.calibration import TrainingWay, Trial, trials
from lib.sweeps.experiments.known_devices import known_devices
from lib.sweeps.experiments.published import EPOCH_S
from lib.sweeps.experiments.recorded_machines import Machine, browsers_in, recorded_here
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.calibration import LEAST_SAMPLES, NotCalibrated
from lib.timing.prediction.device import DoesNotFit, UnusableDevice, read_devices
from lib.timing.prediction.predict import Predictions, predict
from lib.timing.prediction.workload import Way, convolutional, fully_connected, resnet18
from tests.sweeps.experiments.test_kept_machines import CELL, SWIFTSHADER, WHO, keep
from tests.timing.prediction.invented import device
from tests.timing.prediction.test_calibration import calibrated

DEVICES = read_devices()
ONE = np.ones((CELLS, CELLS))
EPOCH, ADAPTERS = TrainingWay(Runtime()), ("software", "discrete")


def side(way=Way.STEP, **figures):
    return Side("invented", device(**figures), way)


def exactly(ratio):
    """A surface without any uncertainty."""
    found = ratio * ONE
    return Surface(Predictions(found, found, found), Predictions(ONE, ONE, ONE))


@given(st.sampled_from(sorted(DEVICES)), st.sampled_from(Way), st.integers(1, 4), st.sampled_from((1, 8)))
def test_a_cell_of_the_surface_is_what_a_single_prediction_says(key, way, depth, networks):
    one = Side("one", DEVICES[key], way)
    shown = one.seconds(depth, networks)
    for row, column in ((0, 0), (20, 31), (CELLS - 1, CELLS - 1)):
        network, size = Network((int(WIDTHS[row]),) * depth), int(SIZES[column])
        try:
            expected = one.all_of(network, size, networks).step_s
        except DoesNotFit:
            expected = np.nan
        assert shown.step_s[row, column] == pytest.approx(expected, nan_ok=True)


def test_networks_that_do_not_fit_into_one_program_follow_one_another():
    alone, together = (
        calibrated_side(TrainingWay(Runtime(), together), calibrated(0.05)) for together in (False, True)
    )
    assert alone.seconds(1, 8).step_s == pytest.approx(8 * alone.seconds(1, 1).step_s)
    assert together.seconds(1, 64).step_s == pytest.approx(4 * together.seconds(1, 16).step_s)
    keras, jax = (known_side(known_devices()[f"i9-10885h/{one}"], Way.STEP) for one in ("keras-tensorflow", "jax-step"))
    assert keras.seconds(1, 8).step_s == pytest.approx(8 * keras.seconds(1, 1).step_s)
    assert (jax.seconds(1, 8).step_s < 8 * jax.seconds(1, 1).step_s).all()
    assert keras.label == "Core i9-10885H by Keras on TensorFlow (compiled step)"


def test_what_this_machine_s_memory_cannot_hold_is_refused_as_a_card_s_is(monkeypatch):
    """Twice with another amount free: what was predicted before is known, and what fits is asked anew."""
    known = calibrated(0.05)
    for free_bytes in (5e7, 1e8):
        monkeypatch.setattr(sides, "usable_memory_bytes", lambda device, n=free_bytes: {"cpu": n}[device])
        here = calibrated_side(TrainingWay(Runtime()), known)
        shown = here.seconds(2, 1)
        needed = np.array(
            [[fully_connected(Network((int(w),) * 2), int(n)).working_bytes for n in SIZES[::9]] for w in WIDTHS[::9]]
        )
        for end in (shown.step_s, shown.low_s, shown.high_s):
            assert (np.isnan(end[::9, ::9]) == (needed > free_bytes)).all()
        assert np.isfinite(shown.step_s).any()
        assert np.isnan(shown.step_s).any()
        with pytest.raises(DoesNotFit, match=r"expected a step of at most 0\.\d+ GB, the free memory"):
            here.all_of(Network((4096, 4096)), 32)


def test_the_border_lies_where_both_sides_take_equally_long():
    """A card with free launches that multiplies 1,000 times faster and takes 49 ms longer to call."""
    slow = side(host_call_s=0.001, filled_by=1.0, memory_bytes=1e13)
    card = side(host_call_s=0.05, filled_by=1.0, product_flops_per_s=1e12, memory_bytes=1e13)
    shown = surface(slow, card, 1, 1)
    lines = border_lines(shown.ratio)
    assert lines
    for x, y, *_ in lines:
        flops = Network((round(y),)).step_flops(round(x))
        assert flops * (1e-9 - 1e-12) == pytest.approx(0.049, rel=0.25), "a cell is 10 % wide, and rounded"
    from_size = shown.wins_from(128)
    assert from_size is not None
    row = int(np.abs(np.log2(WIDTHS / 128)).argmin())
    assert all((shown.ratio[row] > 1) == (from_size <= SIZES))
    assert not shown.unclear[shown.ratio != 1].any(), "their figures have no range"


@given(st.integers(1, CELLS - 1))
def test_a_straight_border_is_found_between_its_cells(column):
    ratio = np.where(np.arange(CELLS) < column, 0.5, 2.0)[None, :] * ONE
    lines = border_lines(ratio)
    assert len(lines) == CELLS - 1
    place = 2 ** (12 * column / CELLS)
    assert all(x == pytest.approx(place) and x2 == pytest.approx(place) for x, _, x2, _ in lines)
    assert border_lines(np.nan * ONE) == border_lines(3.0 * ONE) == []
    assert (exactly(2.0).wins_from(128), exactly(0.5).wins_from(128)) == (1, None)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_rule_s_width_is_the_first_with_as_many_parameters(depth):
    width = rule_width(depth)
    assert Network((width,) * depth).n_parameters >= 500_000 > Network((width - 1,) * depth).n_parameters


def test_the_rule_is_held_against_sure_cells_of_its_corners_alone():
    (below, width, size, ratio), (above, *_) = rule_failures(exactly(4.0), 1)
    assert (below, above) == (1, 0)
    assert width < rule_width(1)
    assert size < 256
    assert ratio == pytest.approx(4)
    assert [share for share, *_ in rule_failures(exactly(0.25), 1)] == [0, 1]
    wide = Predictions(4 * ONE, 0.4 * ONE, 40 * ONE)
    assert [share for share, *_ in rule_failures(Surface(wide, exactly(1.0).right), 1)] == [0, 0], "neither for sure"


def test_published_points_are_the_article_s_and_belong_to_its_network_alone():
    points = published_points(1, 1)
    assert {one.batch_size for one in points} == set(EPOCH_S["keras-tensorflow", "gpu"])
    first = next(one for one in points if one.batch_size == 32)
    assert (first.width, first.left_s, first.right_s) == (128, 2.37, 6.26)
    assert first.names == (BACKENDS["jax-step"].label, BACKENDS["keras-tensorflow"].label)
    assert published_points(2, 1) == published_points(1, 8) == []
    assert against_rule(points, 1) == [], "the articles' own agree with their rule"


def test_what_readers_kept_from_their_browsers_is_a_point_each_and_software_none(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    keep(store, replace(WHO, reader="a"), gpu_s=0.002, cpu_s=0.004)
    keep(store, SWIFTSHADER, gpu_s=0.02, cpu_s=0.004)
    keep(store, replace(WHO, reader="b", adapter=None), gpu_s=0, cpu_s=0.004)
    (network, size), machines = CELL, browsers_in(store)
    (point,) = points_elsewhere(machines, len(network.hidden), 1)
    assert (point.width, point.batch_size) == (network.hidden[0], size)
    assert point.ratio == pytest.approx(2, rel=0.05)
    assert point.names[1] in {f"the GPU of {one.name}" for one in machines if one.has_gpu}
    for depth, networks in ((len(network.hidden) + 1, 1), (len(network.hidden), 2)):
        assert points_elsewhere(machines, depth, networks) == []


def test_the_recorded_card_beside_the_processor_of_its_own_machine():
    """An H100 is slower than sixteen cores for single images, and faster from batch size 32 on: both by their best."""
    machines = [one for one in recorded_here().machines if one.has_gpu]

    def points_of(networks, depth=1):
        return points_elsewhere(machines, depth, networks)

    points = points_of(1)
    assert {point.batch_size for point in points} >= set(BATCH_SIZES)
    assert all((point.ratio > 1) is (point.batch_size > 1) for point in points)
    wrong = against_rule(points, 1)
    assert {(point.width, point.batch_size) for point in wrong} == {(128, 32), (128, 128), (256, 32)}, (
        "below 256, where the articles' rule says processor"
    )
    said = rule_sentence(rule_failures(exactly(1.0), 1), "a processor", "a GPU", wrong)
    assert "it fails at 3 diamonds: at width 128 and batch size 32 the GPU of" in said
    assert "NVIDIA H100 80GB HBM3 is 4 times faster than the processor beside it" in said
    (alone,), (many,) = ([one for one in points if (one.width, one.batch_size) == (128, 32)], points_of(64))
    assert (many.width, many.batch_size) == (128, 32)
    assert many.ratio > 2 * alone.ratio, "each device by whichever way to train many was the quickest"
    assert many.left_s < 64 * alone.left_s, "sixteen cores train them a core each"
    assert points_of(3) == points_of(64, depth=2) == [], "was not recorded"


def test_measured_points_are_the_stored_steps_of_this_runtime_depth_and_machine(tmp_path):
    store, times = Store(tmp_path / "results.sqlite"), {(64,): 1e-4, (64, 64): 2e-4, (64, 32): 3e-4, (): 4e-4}
    known = [(EPOCH, Trial(Network(hidden), 32), step_s) for hidden, step_s in times.items()]
    known += [
        (TrainingWay(Runtime("numpy")), known[0][1], 9e-4),
        (EPOCH, Trial(Network((64,)), 32, 4), 9e-4),
    ]  # not of it
    for trained, trial, step_s in known:
        subject, version = trained.subject(trial) | {"first_call_s": 0.1}, versions(trained.runtime)
        store.add(Record.of(Kind.STEP_TIME, subject, Measurement((step_s,), 1, Ended.CAP), version))
    steps, card = measured_steps(store, EPOCH.runtime), Side("card", DEVICES["l4"], Way.STEP)
    assert {(network.hidden, size) for network, size in steps} == {(hidden, 32) for hidden in times}
    (one,) = measured_points(steps, card, card, 1, 1)
    assert (one.width, one.batch_size, one.left_s) == (64, 32, 1e-4)
    assert one.right_s == card.all_of(Network((64,)), 32).step_s
    (many,) = measured_points(steps, card, card, 2, 4)
    assert many.left_s == pytest.approx(8e-4)
    small = side(memory_bytes=1e6)
    assert measured_points(steps, card, small, 1, 4) == [], "a card that cannot hold it has no point"


@given(st.sampled_from(sorted(CHANGEABLE)), st.sampled_from((0.25, 4.0)), st.sampled_from(Way))
def test_a_better_figure_never_makes_an_imagined_card_slower(name, factor, way):
    card = DEVICES["l4"]
    work = fully_connected(Network(), 32, way)
    before, after = (predict(work, one).step_s for one in (card, imagined(card, {name: factor})))
    better = (factor > 1) == (name in ("bandwidth", "throughput", "feeding"))
    assert after <= before if better else after >= before
    assert imagined(card, {name: 1.0}) == card


def test_an_imagined_card_beyond_all_sense_is_refused_by_name():
    with pytest.raises(UnusableDevice, match=r"launch_s between 0 and 0\.01 s, got"):
        imagined(DEVICES["l4"], {"launch": 1e6})


def test_a_way_to_train_that_was_recorded_elsewhere_is_predicted_as_there():
    """Steps of a machine that multiplies 100 GFLOP/s, measured on another machine by other code."""
    records = []
    for trained, n in ((EPOCH, 30), (TrainingWay(Runtime("numpy")), LEAST_SAMPLES - 1)):
        for trial in trials(trained)[:n]:
            seconds = 1e-5 + trial.workload(trained.runtime).flops / 1e11
            subject = trained.subject(trial) | {"first_call_s": 0.1}
            record = Record.of(Kind.STEP_TIME, subject, Measurement((seconds,), 1, Ended.CAP), "jax 0.1")
            records.append(replace(record, machine="m1", sources="other"))
    found = recorded_ways([Machine("the other", "a file", tuple(records)), Machine("no calibration", "a file")])
    assert list(found) == ["m1/jax-epoch/cpu"], "NumPy's steps are too few"
    *whose, steps = found["m1/jax-epoch/cpu"]
    one = recorded_side(*whose, steps)
    assert one.label == "JAX, one call an epoch, recorded on the other"
    assert (one.here, one.on_gpu, one.way) == (None, False, Way.EPOCH)
    wanted = fully_connected(Network((128,)), 64, Way.EPOCH)
    assert one.one(wanted).step_s == pytest.approx(1e-5 + wanted.flops / 1e11, rel=0.05)
    noise = np.random.default_rng(0).lognormal(sigma=3, size=len(steps))
    spoilt = {key: replace(step, step_s=step.step_s * by) for (key, step), by in zip(steps.items(), noise, strict=True)}
    with pytest.raises(NotCalibrated, match="the other: JAX, one call an epoch: steps that were measured differ"):
        recorded_side(*whose, spoilt)


def test_only_images_that_were_published_of_are_brought_to_a_library():
    """ResNet-18's have 192 times as many bytes: how long bringing them takes, no published figure says."""
    keras = Side("Keras", replace(device(transfer_bytes_per_s=1e6, memory_bytes=1e13), library="Keras"), Way.STEP)
    found = keras.one(resnet18(1))
    assert "transfers" not in found.parts_s
    assert "pixels" in found.warning
    assert keras.one(convolutional(1)).parts_s["transfers"] == pytest.approx(4 * 784 / 1e6)


def test_a_software_adapter_is_no_card():
    kinds = [calibrated_side(TrainingWay(Runtime("webgpu-step", kind)), calibrated(0.05)) for kind in ADAPTERS]
    assert [one.on_gpu for one in [*kinds, known_side(DEVICES["l4"], Way.STEP)]] == [False, True, True]
