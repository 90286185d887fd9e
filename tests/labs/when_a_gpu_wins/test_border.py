"""The border between two sides over width and batch size, where it is known exactly: predictions, chart, sentence."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.labs import why_slower
from lib.labs.when_a_gpu_wins import border as page
from lib.labs.when_a_gpu_wins.border import CELLS, SIZES, WIDTHS, Surface
from lib.labs.when_a_gpu_wins.work import calibration
from lib.model.backends.registry import Runtime, versions
from lib.model.hardware.webgpu import Adapter
from lib.model.spec import Network
from lib.sweeps.experiments import advice
from lib.sweeps.experiments.calibration import TrainingWay, Trial
from lib.sweeps.experiments.recorded_machines import browsers_in
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.predict import DrivenDevice, Prediction, predict
from lib.timing.prediction.workload import NoPrediction, Way, fully_connected, read_devices
from tests.sweeps.experiments.test_calibration import JAX, run
from tests.sweeps.experiments.test_your_gpu import CELL, SWIFTSHADER, WHO, keep
from tests.timing.prediction.invented import device
from tests.timing.prediction.test_predict import calibrated

DEVICES = read_devices()
EPOCH = TrainingWay(Runtime())
ONE = np.ones((CELLS, CELLS))
LEFT_HALF = np.arange(CELLS)[None, :] < CELLS // 2


def side(way=Way.STEP, **figures):
    return DrivenDevice(device(**figures), way, 16, label="invented")


def surface_of(ratio, spread=1.0):
    left = ratio * ONE
    return Surface(Prediction(left, left / spread, left * spread), Prediction(ONE, ONE, ONE))


@given(st.sampled_from(sorted(DEVICES)), st.sampled_from(Way), st.integers(1, 4), st.sampled_from((1, 8)))
def test_surface_cells_equal_single_predictions(key, way, depth, networks):
    one = DrivenDevice(DEVICES[key], way, DEVICES[key].together)
    shown = page.surface_s(one, depth, networks)
    for row, column in ((0, 0), (20, 31), (CELLS - 1, CELLS - 1)):
        network, size = Network((int(WIDTHS[row]),) * depth), int(SIZES[column])
        try:
            expected = page.all_of(one, network, size, networks).step_s
        except NoPrediction:
            expected = np.nan
        assert shown.step_s[row, column] == pytest.approx(expected, nan_ok=True)


def test_networks_beyond_this_machines_memory_are_refused(monkeypatch):
    """With two amounts of free memory: earlier predictions are cached, but whether they fit is checked again."""
    known = calibrated(0.05)
    for free_bytes in (5e7, 1e8):
        monkeypatch.setattr(advice, "usable_memory_bytes", lambda device, n=free_bytes: {"cpu": n}[device])
        here = page.calibrated_side(TrainingWay(Runtime()), known)
        shown = page.surface_s(here, 2, 1)
        networks = [Network((int(width),) * 2) for width in WIDTHS[::9]]
        needed = np.array([[fully_connected(one, int(n)).working_bytes for n in SIZES[::9]] for one in networks])
        for end in (shown.step_s, shown.low_s, shown.high_s):
            assert (np.isnan(end[::9, ::9]) == (needed > free_bytes)).all()
        assert np.isfinite(shown.step_s).any()
        assert np.isnan(shown.step_s).any()
        with pytest.raises(NoPrediction, match=r"expected a step of at most 0\.\d+ GB, the free memory"):
            page.all_of(here, Network((4096, 4096)), 32)


@given(st.integers(1, CELLS - 1))
def test_a_straight_border_is_found_between_its_cells(column):
    ratio = np.where(np.arange(CELLS) < column, 0.5, 2.0)[None, :] * ONE
    lines = page.border_lines(ratio)
    assert len(lines) == CELLS - 1
    place = 2 ** (12 * column / CELLS)
    assert all(x == pytest.approx(place) and x2 == pytest.approx(place) for x, _, x2, _ in lines)
    assert page.border_lines(np.nan * ONE) == page.border_lines(3.0 * ONE) == []
    assert (surface_of(2.0).wins_at(128), surface_of(0.5).wins_at(128)) == (
        "with every batch size",
        "with no batch size",
    )


def test_the_rule_is_checked_against_certain_cells_only():
    (below, width, size, ratio), (above, *_) = page.rule_failures(surface_of(4.0), 1)
    assert (below, above) == (1, 0)
    assert width < page.rule_width(1)
    assert size < 256
    assert ratio == pytest.approx(4)
    assert [share for share, *_ in page.rule_failures(surface_of(0.25), 1)] == [0, 1]
    assert [share for share, *_ in page.rule_failures(surface_of(4.0, spread=10), 1)] == [0, 0], "neither for sure"


def test_browser_measurements_are_points_except_software_adapters(store):
    keep(store, replace(WHO, reader="a"), gpu_s=0.002, cpu_s=0.004)
    keep(store, SWIFTSHADER, gpu_s=0.02, cpu_s=0.004)
    keep(store, replace(WHO, reader="b", adapter=None), gpu_s=0, cpu_s=0.004)
    (network, size), machines = CELL, browsers_in(store)
    (point,) = page.points_elsewhere(machines, len(network.hidden))
    assert (point.width, point.batch_size) == (network.hidden[0], size)
    assert point.ratio == pytest.approx(2, rel=0.05)
    assert point.names[1] in {f"the GPU of {one.name}" for one in machines if one.has_gpu}
    assert page.points_elsewhere(machines, len(network.hidden) + 1) == []


def test_measured_points_match_runtime_depth_and_machine(tmp_path):
    store, times = Store(tmp_path / "results.sqlite"), {(64,): 1e-4, (64, 64): 2e-4, (64, 32): 3e-4, (): 4e-4}
    known = [(EPOCH, Trial(Network(hidden), 32), step_s) for hidden, step_s in times.items()]
    known.append((TrainingWay(Runtime("numpy")), known[0][1], 9e-4))  # different training
    known.append((EPOCH, Trial(Network((64,)), 32, 4), 9e-4))  # several networks
    for trained, trial, step_s in known:
        subject, version = trained.subject(trial) | {"first_call_s": 0.1}, versions(trained.runtime)
        store.add(Record.of(Kind.STEP_TIME, subject, Measurement((step_s,), 1, Ended.CAP), version))
    steps, card = page.measured_steps(store, EPOCH.runtime), DrivenDevice(DEVICES["l4"], Way.STEP, label="card")
    assert {(network.hidden, size) for network, size in steps} == {(hidden, 32) for hidden in times}
    (one,) = page.measured_points(steps, card, card, 1, 1)
    assert (one.width, one.batch_size, one.left_s) == (64, 32, 1e-4)
    assert one.right_s == page.all_of(card, Network((64,)), 32).step_s
    (many,) = page.measured_points(steps, card, card, 2, 4)
    assert many.left_s == pytest.approx(8e-4)
    small = side(memory_bytes=1e6)
    assert page.measured_points(steps, card, small, 1, 4) == [], "a card that cannot hold it has no point"


@given(st.sampled_from(sorted(page.CHANGEABLE)), st.sampled_from((0.25, 4.0)), st.sampled_from(Way))
def test_a_better_figure_never_makes_an_imagined_card_slower(name, factor, way):
    card = DEVICES["l4"]
    work = fully_connected(Network(), 32, way)
    before, after = (predict(work, one).step_s for one in (card, page.imagined(card, {name: factor})))
    better = (factor > 1) == (name in ("bandwidth", "throughput", "feeding"))
    assert after <= before if better else after >= before
    assert page.imagined(card, {name: 1.0}) == card


def draw(lab, name="win"):
    win = lab.controls("win")
    if name == "win":
        lab.answer(win, page.border)
    else:
        lab.answer(lab.controls(name), page.imagined_card, win)


@pytest.mark.parametrize(("name", "recorded"), [("win", True), ("what", True), ("win", False), ("what", False)])
def test_a_section_is_drawn_before_anything_is_measured(name, recorded, opened, shown, monkeypatch):
    if not recorded:
        monkeypatch.setattr(page, "recorded", dict)
    draw(opened(), name)
    assert "marimo-ui-element" in shown[-1], "its controls"
    assert "lab-sentence" in shown[-1]
    assert "stands in until" in shown[-1], "the left side is known by its data sheet, and says so"
    assert "Measure again" not in shown[-1], "nothing is measured for it"


@pytest.mark.parametrize("name", ["win", "what"])
def test_unjudged_predictions_are_called_unsure_once(name, opened, shown):
    draw(opened(win_way="graph"), name)
    assert shown[-1].count("by one graph an epoch: no published figure") == 1
    draw(opened(win_way="step"))
    assert "Unsure" not in shown[-1], "by a compiled step both sides are judged"


def test_the_recorded_card_is_predicted_as_on_the_first_screen(opened, shown, live):
    where, found = next(one for one in page.recorded() if "NVIDIA H100" in one), page.side(page.CARD, Way.EPOCH, live)
    wanted = why_slower.predicted_epoch(where, "jax-epoch", 64, Network((64,)))
    assert wanted is not None
    assert found is not None
    assert 750 * page.all_of(found, Network((64,)), 64).step_s == pytest.approx(wanted.middle)
    draw(opened(win_way="epoch"))
    (at_128,) = re.findall("at width 128 with (batch sizes from [0-9]+)", shown[-1])
    assert "H100 by JAX, one call an epoch: predicted from 11 epochs recorded there; each is off by 7%" in shown[-1]
    draw(opened(win_way="epoch"), "what")
    assert shown[-1].count(at_128) == 2, "as it is, and driven by a compiled epoch"


def test_a_calibration_replaces_the_data_sheet_and_notifies_all_sections(opened, shown, live):
    lab = opened(win_left="here/jax-epoch/cpu")
    calibration(lab.page)
    before = lab.page.news.version
    run(live, [JAX])
    assert lab.page.news.version > before
    draw(lab)
    assert "stands in until" not in shown[-1]
    assert re.search("for a step of your network.+than JAX, one call an epoch, here", shown[-1])
    draw(opened(win_left="here/numpy/cpu"))
    assert re.search("EPYC, 2 cores stands in.+Predicted for one network.+beat its own machine.+CPU in", shown[-1])
    assert "for a step of your network" not in shown[-1], "another machine's would contradict the verdict"


def test_an_invalid_value_is_refused_in_every_section_that_uses_it(opened, shown, panel):
    lab = opened()
    win = panel(lab, "win").set(networks=3)
    lab.answer(win, page.border)
    assert "expected one of" in shown[-1].lower()
    lab.answer(lab.controls("what"), page.imagined_card, win)
    assert "expected one of" in shown[-1].lower()


def test_cards_never_include_a_software_adapter(monkeypatch):
    kinds = [Adapter(kind, kind, "", "") for kind in ("discrete", "software")]
    monkeypatch.setattr("lib.model.backends.registry.webgpu.adapters", lambda: tuple(kinds))
    cards = set(page.cards().values())
    assert not [key for key in cards if "software" in key]
    assert {"l4", "h100-pcie"} <= cards


def test_the_sentence_states_where_each_side_wins_and_where_neither_does():
    said = page.surface_sentence(surface_of(np.where(LEFT_HALF, 0.5, 2.0)), "NumPy", "L4", 1, 1)
    assert "surely faster in 50% of this field and surely slower in 50%" in said
    assert "L4 beats NumPy at width 128 with batch sizes from" in said
    said = page.surface_sentence(surface_of(1.5, spread=2.0), "NumPy", "L4", 2, 8)
    assert "8 networks of 2 hidden layers" in said
    assert "L4 would beat NumPy" in said
    assert "Everywhere the range includes the opposite: only a measurement can tell." in said
    assert "with no batch size" in page.surface_sentence(surface_of(0.5), "NumPy", "L4", 1, 1)
    half = surface_of(np.where(LEFT_HALF, np.nan, 2.0))
    assert "Grey: 50% of the field" in page.surface_sentence(half, "NumPy", "L4", 4, 128)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"launch_s": 1e-7, "product_flops_per_s": 1e10}, {"launch_s": 1e-4, "product_flops_per_s": 1e13}),
        ({"launch_s": 1e-4, "product_flops_per_s": 1e13}, {"launch_s": 1e-7, "product_flops_per_s": 1e10}),
        ({"launch_s": 1e-4, "product_flops_per_s": 1e12}, {"launch_s": 1e-6, "product_flops_per_s": 1e11}),
        ({"launch_s": 1e-6}, {"launch_s": 2e-6}),
    ],
)
def test_the_colours_of_the_map_match_its_sentence(left, right):
    """Invented devices: low overhead but slow products, the reverse twice, and nearly equal ones."""
    shown = Surface(*(page.surface_s(side(**figures), 1, 1) for figures in (left, right)))
    said = page.surface_sentence(shown, "Left", "Right", 1, 1).replace(",", "")
    ground = page.rgba(shown.ratio, shown.unclear)
    for width in page.NAMED_WIDTHS:
        row = ground[int(np.abs(np.log2(WIDTHS / width)).argmin()), :, :3] * 255
        right_wins = np.asarray((np.abs(row - page.RIGHT) < 1).all(axis=-1))
        (words,) = re.findall(rf"at width {width} with (.*?)(?: and at width|\. It)", said)
        told = np.full(len(SIZES), words == "every batch size")
        for first, last in re.findall(r"(?:from (\d+))? ?(?:(?:up )?to (\d+))?", words):
            told |= bool(first or last) & (int(first or 1) <= SIZES) & (int(last or 4096) >= SIZES)
        assert (told == right_wins).all(), words


def test_the_readers_network_is_placed_by_its_parameter_count():
    assert page.even_width(Network((128,)).n_parameters, 1) == 128
    assert 64 < page.even_width(Network((128, 64)).n_parameters, 2) <= 128
    shown = surface_of(2.0)
    words = page.surface_chart(shown, "NumPy", "L4", 1, yours=(64, 128)).spec["datasets"]["words"]
    assert words[-1] == {"x": 64, "y": 128, "text": "◂ your network"}


def test_colours_show_the_faster_side_and_pale_where_uncertain():
    ratio = np.array([0.01, 0.5, 2.0, 100.0, 1e9, np.nan])
    sure, unsure = (page.rgba(ratio, np.full(6, unclear)) for unclear in (False, True))
    assert (sure[:2, :3] * 255 == page.LEFT).all()
    assert (sure[2:5, :3] * 255 == page.RIGHT).all()
    assert sure[0, 3] == sure[3, 3] == sure[4, 3] > sure[1, 3] == pytest.approx(sure[2, 3])
    assert (unsure[:5, 3] < sure[:5, 3]).all()
    assert sure[5] == pytest.approx([0.5, 0.5, 0.5, 0.3]), "what fits nowhere is grey"


def test_borders_points_and_the_rule_are_drawn_and_described():
    shown = surface_of(np.where(LEFT_HALF, 0.5, 2.0), spread=1.5)
    points = [
        page.SurfacePoint(kind, 128, 32, left_s, 1.0, ("<one>", "the other"))
        for kind, left_s in zip(page.KINDS, (0.5, 3.0, 2.0), strict=True)
    ]
    chart = page.surface_chart(shown, "NumPy", "L4", 1, points, before=surface_of(np.where(LEFT_HALF, 2.0, 0.5)))
    rows = chart.spec["datasets"]
    assert {"border", "before", "rule"} <= {row["kind"] for row in rows["lines"]}
    found = [(row["kind"], row["color"], row["words"]) for kind in page.KINDS for row in rows[kind]]
    colors = [f"rgb{color}" for color in (page.LEFT, page.RIGHT, page.RIGHT)]
    assert [one[:2] for one in found] == list(zip(page.KINDS, colors, strict=True))
    assert found[0][2].replace("\u202f", " ") == "500 ms by <one>, 1.0 s by the other: a step"
    assert found[1][2].endswith("an epoch")
    assert rows["words"][0]["text"] == "the articles' rule"
    tips = page.surface_chart(surface_of(1.2, 2), "a", "b", 1).spec["datasets"]["tips"]
    assert any("b is 1.2 times faster, but not for sure" in row["predicted"] for row in tips)
    assert "how many times faster L4 is than NumPy" in chart.title
    shown = page.legend("<b>", "L4", [*points, points[1]])
    assert "&lt;b&gt;" in shown, "names are escaped"
    assert "measured here: steps stored here, the GPU faster in 0 of 1" in shown
    assert "recorded: each GPU against its own machine&#x27;s CPU, the GPU faster in 2 of 2" in shown
    assert "published" not in page.legend("a", "b", points[:2])
