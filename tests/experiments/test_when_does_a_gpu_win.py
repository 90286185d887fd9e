"""Two sides over width and batch size, on invented devices whose exact border is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.backends.registry import Runtime, versions
from lib.experiments import when_does_a_gpu_win as experiment
from lib.experiments.anatomy_of_a_step import AnatomyTask
from lib.experiments.backend_race import BATCH_SIZES
from lib.experiments.calibration import Trained, Trial, trials
from lib.experiments.known_devices import known_devices
from lib.experiments.published import EPOCH_S
from lib.experiments.recorded_machines import Machine, browsers_in, recorded_here
from lib.experiments.when_does_a_gpu_win import (
    CELLS,
    CHANGEABLE,
    LARGER,
    SIZES,
    WIDTHS,
    RuleCheck,
    Side,
    Surface,
    against_rule,
    answers,
    border,
    calibrated_side,
    check_rule,
    costs,
    imagined,
    measured_points,
    measured_steps,
    points_elsewhere,
    published_points,
    recorded_ways,
    rule_width,
    surface,
    what_it_would_take,
)
from lib.prediction.calibration import LEAST_SAMPLES, NotCalibrated
from lib.prediction.device import DoesNotFit, UnusableDevice, read_devices
from lib.prediction.grid import Predictions
from lib.prediction.predict import predict
from lib.prediction.workload import Way, convolutional, fully_connected, resnet18
from lib.profiling.request import CONVOLUTIONAL, Examination
from lib.spec import Network
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.views.when_does_a_gpu_win import rule_sentence
from tests.experiments.test_kept_machines import CELL, SWIFTSHADER, WHO, keep
from tests.prediction.invented import device
from tests.prediction.test_calibration import calibrated

DEVICES = read_devices()


def side(way=Way.STEP, **figures):
    return Side("invented", device(**figures), way)


def exactly(ratio):
    """A surface without any uncertainty."""
    one = np.ones((CELLS, CELLS))
    return Surface(Predictions(ratio, ratio, ratio), Predictions(one, one, one))


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
    alone, together = (calibrated_side(Trained(Runtime(), together), calibrated(0.05)) for together in (False, True))
    assert alone.seconds(1, 8).step_s == pytest.approx(8 * alone.seconds(1, 1).step_s)
    assert together.seconds(1, 64).step_s == pytest.approx(4 * together.seconds(1, 16).step_s)


def test_what_this_machine_s_memory_cannot_hold_is_refused_as_a_card_s_is(monkeypatch, tmp_path):
    """Twice with another amount free: what was predicted before is known, and what fits is asked anew."""
    known = calibrated(0.05)
    for free_bytes in (5e7, 1e8):
        monkeypatch.setattr(experiment, "usable_memory_bytes", lambda device, n=free_bytes: {"cpu": n}[device])
        here = calibrated_side(Trained(Runtime()), known)
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
    (refused,) = {
        one.why_not for one in answers(32, [here], Store(tmp_path / "results.sqlite")) if one.work == "ResNet-18"
    }
    assert "the free memory" in refused


def test_the_border_lies_where_both_sides_take_equally_long():
    """A card with free launches that multiplies 1,000 times faster and takes 49 ms longer to call."""
    slow = side(host_call_s=0.001, filled_by=1.0, memory_bytes=1e13)
    card = side(host_call_s=0.05, filled_by=1.0, product_flops_per_s=1e12, memory_bytes=1e13)
    shown = surface(slow, card, 1, 1)
    lines = border(shown.ratio)
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
    ratio = np.where(np.arange(CELLS) < column, 0.5, 2.0)[None, :] * np.ones((CELLS, 1))
    lines = border(ratio)
    assert len(lines) == CELLS - 1
    place = 2 ** (12 * column / CELLS)
    assert all(x == pytest.approx(place) and x2 == pytest.approx(place) for x, _, x2, _ in lines)
    assert border(np.full((CELLS, CELLS), np.nan)) == border(np.full((CELLS, CELLS), 3.0)) == []


def test_a_side_that_always_or_never_wins_has_no_border():
    assert exactly(np.full((CELLS, CELLS), 2.0)).wins_from(128) == 1
    assert exactly(np.full((CELLS, CELLS), 0.5)).wins_from(128) is None


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_rule_s_width_is_the_first_with_as_many_parameters(depth):
    width = rule_width(depth)
    assert Network((width,) * depth).n_parameters >= 500_000 > Network((width - 1,) * depth).n_parameters


def test_the_rule_is_held_against_sure_cells_of_its_corners_alone():
    always, never = exactly(np.full((CELLS, CELLS), 4.0)), exactly(np.full((CELLS, CELLS), 0.25))
    found = check_rule(always, 1)
    assert (found.gpu_wins_below, found.processor_wins_above, found.above) == (1, 0, None)
    width, size, ratio = found.below or (0, 0, 0)
    assert width < rule_width(1)
    assert size < 256
    assert ratio == 4
    found = check_rule(never, 1)
    assert (found.gpu_wins_below, found.below, found.processor_wins_above) == (0, None, 1)
    wide = Predictions(always.left.step_s, 0.1 * always.left.step_s, 10 * always.left.step_s)
    assert check_rule(Surface(wide, always.right), 1).below is None, "nobody wins for sure"


def test_published_points_are_the_article_s_and_belong_to_its_network_alone():
    points = published_points(1, 1)
    assert {one.batch_size for one in points} == set(EPOCH_S["keras-tensorflow", "gpu"])
    first = next(one for one in points if one.batch_size == 32)
    assert (first.width, first.left_s, first.right_s, first.by[0]) == (128, 2.37, 6.26, "jax-step")
    assert published_points(2, 1) == published_points(1, 8) == []


def test_what_readers_kept_from_their_browsers_is_a_point_each_and_software_none(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    keep(store, replace(WHO, reader="a"), gpu_s=0.002, cpu_s=0.004)
    keep(store, SWIFTSHADER, gpu_s=0.02, cpu_s=0.004)
    keep(store, replace(WHO, reader="b", adapter=None), gpu_s=0, cpu_s=0.004)
    (network, size), machines = CELL, browsers_in(store)
    (point,) = points_elsewhere(machines, len(network.hidden), 1)
    assert (point.width, point.batch_size) == (network.hidden[0], size)
    assert point.ratio == pytest.approx(2, rel=0.05)
    assert point.machine in {one.name for one in machines if one.has_gpu}
    for depth, networks in ((len(network.hidden) + 1, 1), (len(network.hidden), 2)):
        assert points_elsewhere(machines, depth, networks) == []


def test_the_recorded_card_beside_the_processor_of_its_own_machine():
    """An H100 is slower than sixteen cores for single images, and faster from batch size 32 on: both by their best."""
    machines = [one for one in recorded_here().machines if one.has_gpu]
    points = points_elsewhere(machines, 1, 1)
    assert {point.batch_size for point in points} >= set(BATCH_SIZES)
    assert all((point.ratio > 1) is (point.batch_size > 1) for point in points)
    wrong = against_rule(points, 1)
    assert {(point.width, point.batch_size) for point in wrong} == {(128, 32), (128, 128), (256, 32)}, (
        "below 256, where the articles' rule says processor"
    )
    said = rule_sentence(RuleCheck(0.0, None, 0.0, None), "a processor", "a GPU", wrong)
    assert "it fails at 3 diamonds: at width 128 and batch size 32 the GPU NVIDIA H100 80GB HBM3 is 4 times" in said
    assert against_rule(published_points(1, 1), 1) == [], "the articles' own agree with it"


def test_of_many_networks_at_once_the_recorded_card_is_further_ahead():
    """Each device by whichever way was the quickest; of a number that was not recorded there is no point."""
    machines = [one for one in recorded_here().machines if one.has_gpu]
    (alone,) = (one for one in points_elsewhere(machines, 1, 1) if (one.width, one.batch_size) == (128, 32))
    (many,) = points_elsewhere(machines, 1, 64)
    assert (many.width, many.batch_size) == (128, 32)
    assert many.ratio > 2 * alone.ratio
    assert many.left_s < 64 * alone.left_s, "sixteen cores train them a core each"
    assert points_elsewhere(machines, 1, 3) == points_elsewhere(machines, 2, 64) == []


def test_measured_points_are_the_stored_steps_of_this_runtime_depth_and_machine(tmp_path):
    store, runtime = Store(tmp_path / "results.sqlite"), Runtime()

    def keep(trial, step_s, runtime=runtime):
        subject = Trained(runtime).subject(trial) | {"first_call_s": 0.1}
        store.add(Record.of(Kind.STEP_TIME, subject, Measurement((step_s,), 1, Ended.CAP), versions(runtime)))

    for hidden, step_s in (((64,), 1e-4), ((64, 64), 2e-4), ((64, 32), 3e-4), ((), 4e-4)):
        keep(Trial(Network(hidden), 32), step_s)
    keep(Trial(Network((64,)), 32), 9e-4, Runtime("numpy"))
    keep(Trial(Network((64,)), 32, 4), 9e-4)  # together
    steps = measured_steps(store, runtime)
    assert {(network.hidden, size) for network, size in steps} == {
        ((64,), 32),
        ((64, 64), 32),
        ((64, 32), 32),
        ((), 32),
    }
    card = Side("card", DEVICES["l4"], Way.STEP)
    (one,) = measured_points(steps, card, 1, 1)
    assert (one.width, one.batch_size, one.left_s) == (64, 32, 1e-4)
    assert one.right_s == card.all_of(Network((64,)), 32).step_s
    (many,) = measured_points(steps, card, 2, 4)
    assert many.left_s == pytest.approx(8e-4)
    assert measured_points(steps, side(memory_bytes=1e6), 1, 4) == [], "a card that cannot hold it has no point"


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


@given(
    st.sampled_from([key for key, one in DEVICES.items() if one.on_gpu]), st.sampled_from(Way), st.floats(1e-6, 1e-2)
)
def test_the_figure_that_it_would_take_makes_both_sides_equal(key, way, goal_s):
    card, work = DEVICES[key], fully_connected(Network(), 32, way)
    found = what_it_would_take(work, card, goal_s)
    assert sum(one.share for one in found) == pytest.approx(1)
    for one in found:
        others_s = predict(work, card).step_s * (1 - one.share)
        if one.needed is None:
            assert others_s >= goal_s * (1 - 1e-9)
        else:
            own_s = predict(work, card).step_s * one.share
            scale = one.now / one.needed if one.unit.endswith("/s") else one.needed / one.now
            assert others_s + own_s * scale == pytest.approx(goal_s)


def test_larger_work_is_measured_where_it_is_stored_predicted_elsewhere_and_refused_where_nothing_holds_it(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    here = calibrated_side(Trained(Runtime()), calibrated(0.05))
    small = side(memory_bytes=1e6)
    found = answers(32, [here, small], store)
    assert len({one.work for one in found}) == 3
    assert all(one.measured is None for one in found)
    assert all("expected at most" in one.why_not for one in found if one.side == "invented")
    (far,) = (one for one in found if one.work == "ResNet-18" and one.side != "invented")
    assert far.prediction is not None
    assert far.prediction.warning
    subject = Trained(Runtime()).subject(Trial(LARGER, 32)) | {"first_call_s": 0.1}
    store.add(Record.of(Kind.STEP_TIME, subject, Measurement((0.004,), 1, Ended.CAP), versions(Runtime())))
    (measured,) = (one for one in answers(32, [here, small], store) if one.measured is not None)
    assert measured.work == f"784→{LARGER.label}→10"
    assert measured.measured is not None
    assert measured.measured.step_s == 0.004
    assert [one for one in answers(8, [here], store) if one.measured] == [], "another batch size"


def test_the_convolutional_network_is_measured_where_its_step_is_stored(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    here = calibrated_side(Trained(Runtime()), calibrated(0.05))
    elsewhere = replace(here, recorded=True)
    task = AnatomyTask(Runtime(), Examination(CONVOLUTIONAL, batch_size=32))
    for seconds in ((0.009, 0.010, 0.5), (0.012, 0.012, 0.001), (0.5, 0.014, 0.001)):
        of = task.subject | {"name": CONVOLUTIONAL, "work": 1.0}
        store.add(Record.of(Kind.ANATOMY, of, Measurement(seconds, 1, Ended.CAP), versions(Runtime())))
    (measured,) = (one for one in answers(32, [here, elsewhere], store) if one.measured is not None)
    assert (measured.work, measured.side) == (convolutional(32).name, here.label)
    assert measured.measured is not None
    assert (measured.measured.low_s, measured.measured.step_s, measured.measured.high_s) == (0.010, 0.012, 0.014)
    assert [one for one in answers(8, [here], store) if one.measured] == [], "another batch size"


def test_a_way_to_train_that_was_recorded_elsewhere_is_predicted_as_there():
    """Steps of a machine that multiplies 100 GFLOP/s, measured on another machine by other code."""
    records = []
    for trained in (Trained(Runtime()), Trained(Runtime("numpy"))):
        for trial in trials(trained)[: 30 if trained.runtime == Runtime() else LEAST_SAMPLES - 1]:
            seconds = 1e-5 + trial.workload(trained.runtime).flops / 1e11
            subject = trained.subject(trial) | {"first_call_s": 0.1}
            record = Record.of(Kind.STEP_TIME, subject, Measurement((seconds,), 1, Ended.CAP), "jax 0.1")
            records.append(replace(record, machine="m1", sources="other"))
    found = recorded_ways([Machine("the other", "a file", tuple(records)), Machine("no calibration", "a file")])
    assert list(found) == ["m1/jax-epoch/cpu"], "NumPy's steps are too few"
    one = found["m1/jax-epoch/cpu"]
    assert one.label == one.side.label == "JAX, one call an epoch, recorded on the other"
    assert (one.side.here, one.side.on_gpu, one.side.way) == (None, False, Way.EPOCH)
    wanted = fully_connected(Network((128,)), 64, Way.EPOCH)
    assert one.side.one(wanted).step_s == pytest.approx(1e-5 + wanted.flops / 1e11, rel=0.05)
    noise = np.random.default_rng(0).lognormal(sigma=3, size=len(one.step_times))
    spoilt = {
        key: replace(step, step_s=step.step_s * times)
        for (key, step), times in zip(one.step_times.items(), noise, strict=True)
    }
    with pytest.raises(NotCalibrated, match="the other: JAX, one call an epoch: steps that were measured differ"):
        _ = replace(one, step_times=spoilt).side


def test_only_images_that_were_published_of_are_brought_to_a_library():
    """ResNet-18's have 192 times as many bytes: how long bringing them takes, no published figure says."""
    keras = replace(device(transfer_bytes_per_s=1e6, memory_bytes=1e13), library="Keras")
    side = Side("Keras", keras, Way.STEP)
    found = side.one(resnet18(1))
    assert "transfers" not in found.parts_s
    assert "pixels" in found.warning
    assert side.one(convolutional(1)).parts_s["transfers"] == pytest.approx(4 * 784 / 1e6)


def test_a_library_that_trains_one_network_at_a_time_takes_as_many_times_as_long():
    devices = known_devices()
    alone, together = (
        experiment.known_side(devices[f"i9-10885h/{one}"], Way.STEP) for one in ("keras-tensorflow", "jax-step")
    )
    assert alone.seconds(1, 8).step_s == pytest.approx(8 * alone.seconds(1, 1).step_s)
    assert (together.seconds(1, 8).step_s < 8 * together.seconds(1, 1).step_s).all()
    assert alone.label == "Core i9-10885H by Keras on TensorFlow (compiled step)"


def test_costs_are_seconds_times_the_price_and_devices_without_one_say_so():
    sides = [Side(one.name, one, Way.STEP) for one in DEVICES.values()]
    found = costs(sides, Network(), 32, 3)
    priced = [one for one in found if one.dollars is not None]
    assert {one.per_h for one in priced} == {
        one.figures["price_per_h"].value for one in DEVICES.values() if "price_per_h" in one.figures
    }
    assert found[: len(priced)] == priced
    for one in priced:
        assert one.dollars == pytest.approx(one.epoch.step_s / 3600 * (one.per_h or 0))
        assert one.to_accuracy == pytest.approx(3 * (one.dollars or 0))
        assert one.dated
    assert all(one.to_accuracy is None and not one.dated for one in found if one.dollars is None)
    assert all(one.to_accuracy is None for one in costs(sides, Network(), 32, None))


def test_this_machine_costs_what_the_reader_says_and_no_other_does():
    here, unlisted = calibrated_side(Trained(Runtime()), calibrated(0.05)), Side("T4", DEVICES["t4"], Way.STEP)
    assert all(one.dollars is None for one in costs([here, unlisted], Network(), 32, 3))
    mine, other = costs([unlisted, here], Network(), 32, 3, 0.25)
    assert (mine.side, mine.per_h, mine.dated) == (here.label, 0.25, "your price")
    assert mine.dollars == pytest.approx(mine.epoch.step_s / 3600 * 0.25)
    assert (other.side, other.dollars, other.dated) == ("T4", None, "")


def test_a_software_adapter_is_no_card():
    known = calibrated(0.05)
    assert not Side("software", known, Way.STEP, 1, Runtime("webgpu-step", "software")).on_gpu
    assert Side("card", known, Way.STEP, 1, Runtime("webgpu-step", "discrete")).on_gpu
    assert experiment.Side("l4", DEVICES["l4"], Way.STEP).on_gpu
