"""The sections of the notebook: drawn from predictions before anything is measured, and from calibrations then."""

from types import SimpleNamespace

import pytest

from lib.backends.registry import Runtime
from lib.experiments import live_calibration as live_module
from lib.experiments.calibration import Trained, trials
from lib.experiments.live_calibration import LiveCalibrations
from lib.experiments.recorded_machines import Machine
from lib.experiments.when_does_a_gpu_win import Recorded
from lib.hardware.webgpu import Adapter
from lib.pages import mnist_training, streaming
from lib.pages import when_does_a_gpu_win as page
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.storage.store import Store
from lib.sweeps.cost_model import StepTime
from tests.experiments.test_live_calibration import JAX, invented, run

CONTROLS = SimpleNamespace(text="the panel")
PREDICTED = ("win", "what", "move", "cost")


@pytest.fixture
def stage(tmp_path):
    return Stage(None, Store(tmp_path / "results.sqlite"))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def live(stage, monkeypatch):
    monkeypatch.setattr(live_module, "measure_trials", invented)
    return LiveCalibrations(stage.store)


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(streaming.mo.output, "replace", lambda html: found.append(html.text))
    monkeypatch.setattr(page.mo.output, "replace", lambda html: found.append(html.text))
    return found


def panels(stage, **said):
    """All panels, with other values where they are given as `prefix_name`."""
    address = Address(arguments={name.replace("_", ".", 1): value for name, value in said.items()})
    return {name: page.panel(name, address, stage) for name in page.sections()}


@pytest.mark.parametrize("name", PREDICTED)
def test_a_section_is_there_before_anything_is_measured(name, stage, live, shown):
    page.show(stage, name, found := panels(stage), live, mnist_training.controls(found[name]))
    assert "marimo-ui-element" in shown[-1], "its controls"
    assert "lab-sentence" in shown[-1]
    if name != "cost":
        assert "stands in its place" in shown[-1], "the left side is known by its data sheet, and says so"


def test_a_calibration_takes_the_place_of_the_data_sheet(stage, live, shown):
    run(live, [JAX])
    page.show(stage, "win", panels(stage), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "stands in its place" not in shown[-1]
    assert "than JAX, one call an epoch, here" in shown[-1]


@pytest.mark.parametrize("name", ["win", "what", "move"])
def test_what_nothing_judges_is_called_unsure_once(name, stage, live, shown):
    page.show(stage, name, panels(stage, win_way="graph"), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert shown[-1].count("Unsure: ") == 1
    assert shown[-1].count("by one graph an epoch: no published figure") == 1
    page.show(stage, "win", panels(stage), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "Unsure" not in shown[-1], "by a compiled step both sides are judged"


def test_what_this_machine_cannot_hold_is_grey_and_said(stage, live, shown, monkeypatch):
    monkeypatch.setattr("lib.experiments.when_does_a_gpu_win.usable_memory_bytes", lambda _device: 1e7)
    run(live, [JAX])
    page.show(stage, "win", panels(stage), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "of the field fits into no memory of its side" in shown[-1]
    monkeypatch.setattr("lib.experiments.when_does_a_gpu_win.usable_memory_bytes", lambda _device: 1e3)
    page.show(stage, "win", panels(stage), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "No network of this depth fits" in shown[-1]


def test_this_machine_has_a_cost_once_it_is_calibrated_and_its_reader_says_the_price(stage, live, shown):
    page.show(stage, "cost", panels(stage, cost_price="0.5"), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "not calibrated yet, so it has no row" in shown[-1]
    assert "your price" not in shown[-1]
    run(live, [JAX])
    page.show(stage, "cost", panels(stage, cost_price="0.5"), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "JAX, one call an epoch, here" in shown[-1]
    assert "0.5 $ an hour (your price)" in shown[-1]
    page.show(stage, "cost", panels(stage), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "is for you to say" in shown[-1]


def test_the_button_is_answered(stage, live, shown):
    panel = panels(stage)
    asked = SimpleNamespace(value=panel["what"].value | {"start": 1})
    page.show(stage, "what", {**panel, "what": asked}, live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "a step of width 128 at batch size 32" in shown[-1]


@pytest.mark.parametrize(
    ("said", "words"),
    [({"win_networks": "64"}, "64 networks"), ({"win_depth": "3"}, "3 hidden layers"), ({"win_right": "t4"}, "T4 by")],
)
def test_a_moved_control_is_seen(stage, live, shown, said, words):
    page.show(stage, "win", panels(stage, **said), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert words in shown[-1]


def test_a_value_that_is_not_offered_is_refused_in_a_sentence(stage, live, shown):
    panel = panels(stage)
    panel["win"] = SimpleNamespace(value=panel["win"].value | {"networks": 3})  # pyright: ignore[reportArgumentType]
    page.show(stage, "win", panel, live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "expected one of" in shown[-1].lower()


def test_a_calibrated_adapter_may_stand_for_the_gpu_and_a_software_one_never(monkeypatch):
    kinds = [Adapter(kind, kind, "", "") for kind in ("discrete", "software")]
    monkeypatch.setattr("lib.backends.registry.webgpu.adapters", lambda: tuple(kinds))
    cards = set(page.sections()["win"].settings["win.right"].options)
    assert not [key for key in cards if "software" in key]
    assert {"l4", "h100-pcie"} <= cards


def test_a_recorded_machine_may_stand_on_the_left(stage, live, shown, monkeypatch):
    trained = Trained(Runtime())
    steps = {(trained, one): StepTime(1e-5 + one.workload(Runtime()).flops / 1e11, 0.1) for one in trials(trained)}
    known = {"m1/jax-epoch/cpu": Recorded(Machine("the other", "a file"), trained, steps)}
    monkeypatch.setattr(page, "elsewhere", lambda: known)
    page.show(stage, "win", panels(stage, win_left="recorded/m1/jax-epoch/cpu"), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "than JAX, one call an epoch, recorded on the other" in shown[-1]
    assert "stands in its place" not in shown[-1]
    assert "recorded/m1/jax-epoch/cpu" not in page.sections()["win"].settings["win.right"].options, "no card"


def test_larger_work_is_predicted_while_its_step_is_measured_and_says_so(stage, live, shown, monkeypatch):
    monkeypatch.setattr(page.experiment, "measure_larger", lambda *_: iter(()))
    page.show_larger(stage, panels(stage), live, CONTROLS)  # pyright: ignore[reportArgumentType]
    assert "ResNet-18" in shown[-1]
    assert "predicted" in shown[-1]
    parts = shown[-1].partition("<details")[2]
    assert "starting kernels" in parts
    assert parts.count("ResNet-18") == 1, "a heading"


def test_the_articles_figures_stand_beside_predictions():
    assert "Of 54 figures that the articles print" in page.articles().text
