"""Calibrations, larger work, costs and remedies: what a button starts, and the drawing and text of the results."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from lib.labs.when_a_gpu_wins import work as page
from lib.labs.when_a_gpu_wins.border import calibrated_side
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments import advice
from lib.sweeps.experiments.advice import Findings
from lib.sweeps.experiments.calibration import CalibrationProgress, TrainingWay, Trial, calibrations, trials
from lib.sweeps.experiments.recorded_machines import MEASURED, PREDICTED
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.workers.messages import State
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.predict import DrivenDevice, Prediction
from lib.timing.prediction.remedies import Effect, Remedy, Setup
from lib.timing.prediction.workload import Way, read_devices
from tests.sweeps.experiments.test_calibration import JAX, NUMPY, exact_s, run
from tests.timing.prediction.invented import device
from tests.timing.prediction.test_predict import calibrated
from tests.ui.views.test_dots import dots_of


def draw(lab, panel=None):
    lab.work(panel or lab.controls("here"), *page.calibration(lab.page))


@pytest.mark.slow
def test_cheap_ways_are_calibrated_by_default(opened, shown):
    draw(opened())
    assert "This machine is calibrated for" in shown[-1]
    assert "<b>Done</b>" in shown[-1]
    draw(opened(here_ways="jax-epoch/cpu"))
    assert "<b>Saved result</b>" in shown[-1], "nothing is missing for it"


def test_a_calibration_is_named_with_its_error():
    assert "not calibrated yet" in page.calibrated_sentence([CalibrationProgress(JAX), CalibrationProgress(NUMPY)])
    assert page.progress([CalibrationProgress(JAX)], [JAX]) == (0, len(trials(JAX)))
    steps = {(JAX, one): StepTime(exact_s(JAX, one), 0.1) for one in trials(JAX)}
    known = calibrations(steps)[0][TrainingWay(Runtime())]
    calibrated = CalibrationProgress(JAX, {trial: one for (_, trial), one in steps.items()}, known)
    noisy = CalibrationProgress(NUMPY, {}, None, "something else is using this machine")
    assert page.calibrated_sentence([calibrated, noisy]).startswith(
        f"This machine is calibrated for {JAX.label} ({known.median_error:.0%}); "
    )
    assert page.progress([calibrated, noisy], [JAX]) == (len(trials(JAX)), len(trials(JAX)))


DEVICES = read_devices()


def test_larger_work_is_stored_predicted_or_refused_for_memory(store):
    here = calibrated_side(TrainingWay(Runtime()), calibrated(0.05))
    small = DrivenDevice(device(memory_bytes=1e6), Way.STEP, label="invented")
    found = page.larger_steps(32, [here, small], store)
    assert [one.known is None for one in found] == 3 * [False, True], "the quickest first"
    assert len(page.too_large(found)) == 3
    subject = TrainingWay(Runtime()).subject(Trial(page.LARGER, 32)) | {"first_call_s": 0.1}
    store.add(Record.of(Kind.STEP_TIME, subject, Measurement((0.004,), 1, Ended.CAP), versions(Runtime())))
    found = page.larger_steps(32, [here, DrivenDevice(DEVICES["l4"], Way.STEP, label="card")], store)
    (measured,) = (one for one in found if one.measured)
    assert (measured.work.name, measured.side, measured.step_s) == (f"784→{page.LARGER.label}→10", here, 0.004)
    marks = [(one["of"], one["label"]) for one in dots_of(page.larger_chart(found)) if one["known"] == MEASURED]
    assert marks == [(measured.work.name, here.label)]
    assert not any(one.measured for one in page.larger_steps(8, [here], store)), "another batch size"


def test_larger_work_is_predicted_while_its_step_is_measured(opened, shown, monkeypatch):
    monkeypatch.setattr(page, "measure_larger", lambda *_: iter(()))
    lab = opened()
    lab.work(lab.controls("larger"), page.measured_here, page.larger)
    assert "Unsure: " in shown[-1]


def test_costs_are_seconds_times_price_and_unpriced_devices_are_named(opened, shown, live):
    found = page.bills([DrivenDevice(one, Way.STEP, label=one.name) for one in DEVICES.values()], Network(), 32)
    priced = [one for one in found if one.per_h is not None]
    assert found[: len(priced)] == priced, "the cheapest first"
    assert priced[0].dollars(3.6) == pytest.approx(priced[0].per_h)
    assert all(one.dated for one in priced)
    assert f"on {priced[0].side.label}, the cheapest" in page.cost_sentence(found, 0.95, 32, "")
    assert "3 of 3 runs reached it" in page.cost_sentence(found, 0.95, 32, "3 of 3 runs reached it")
    assert "none is the cheapest" in page.cost_sentence(found[:1], 0.95, 32, "")

    def drawn(**settings):
        lab = opened(**settings)
        lab.answer(lab.controls("cost"), page.cost)
        return shown[-1]

    uncalibrated = drawn(cost_price="0.5")
    assert "not calibrated yet, so it has no mark" in uncalibrated
    assert "No price is listed for " in uncalibrated
    run(live, [JAX])
    assert "$0.5 an hour (your price)" in drawn(cost_price="0.5")
    assert "hourly cost above" in drawn()


@pytest.fixture
def applied(monkeypatch):
    """All requested remedies, call by call; each is done at once."""
    found = []

    def apply(_question, _by, chosen, *_):
        found.append(list(chosen))
        yield from chosen

    monkeypatch.setattr(advice, "apply", apply)
    return found


@pytest.fixture
def show(opened, panel):
    lab = opened()
    remedy = panel(lab, "remedy")

    def draw(**values):
        lab.work(remedy.set(**values), *page.remedies(lab.page))

    return draw


def test_an_uncalibrated_page_says_so_and_a_script_asks_for_all(show, shown, applied):
    show()
    assert "JAX, one call a step is not calibrated on this machine" in shown[-1]
    assert applied == [list(Remedy)]


def test_a_calibrated_machine_shows_its_step_and_buttons_of_remedies(show, shown, applied, live):
    run(live, [TrainingWay(Runtime(key)) for key in ("jax-step", "jax-epoch")])
    show()
    assert "JAX, one call a step, batch size 32: a step is predicted to take" in shown[-1]
    assert "Its step is already compiled." in shown[-1]
    assert "Not calibrated yet: JAX, one call an epoch, many networks at once." in shown[-1]
    assert shown[-1].count("marimo-button") >= 3


def test_a_button_asks_for_its_remedy_only_and_one_asks_for_all(show, shown, applied):
    for pressed in ({}, {"apply_epoch": 1}, {"apply_batch": 1}, {"again": 1}, {}):
        show(**pressed)
    assert applied == [list(Remedy), [Remedy.EPOCH], [Remedy.BATCH], list(Remedy)], "shown again, but not asked again"


def test_pending_remedies_survive_another_press_but_not_another_question():
    asked, second = ("a question", "a way"), [Remedy.EPOCH]
    view = SimpleNamespace(items=[Remedy.NETWORKS], state=State.MEASURING)
    stage = SimpleNamespace(asked=(asked, ()), began_with=([Remedy.NETWORKS, Remedy.DATA],))
    stage.running = SimpleNamespace(view=lambda: view)
    assert page.chosen(stage, asked, second) == [Remedy.DATA, Remedy.EPOCH]  # pyright: ignore[reportArgumentType]
    assert page.chosen(stage, ("another", "a way"), second) == [Remedy.EPOCH]  # pyright: ignore[reportArgumentType]
    view.items, view.state = [], State.STOPPED
    assert page.chosen(stage, asked, second) == [Remedy.EPOCH]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden": "12a"}, "Hidden layers: expected widths"),
        ({"networks": 0}, "expected a whole number from 1 to 100000, got 0"),
        ({"by": "cupy-image/gpu"}, "expected one of"),
        ({"size": 4097}, "expected a whole number from 1 to 4096"),
    ],
)
def test_invalid_values_show_one_sentence_in_place_of_the_remedies(show, shown, values, words):
    show(**values)
    assert len(shown) == 1
    assert words in shown[0]


def took(step_s: float) -> Prediction:
    return Prediction(step_s, 0.8 * step_s, 1.25 * step_s)


BEFORE = Setup("JAX, one call a step", 32, took(1e-3))
COMPILED = Effect(Remedy.EPOCH, Setup("JAX, one call an epoch", 32, took(0.5e-3)), "", 2.0, 1.5, 2.5)
LARGER = Effect(Remedy.BATCH, Setup(BEFORE.by, 128, took(1e-3)), "", 4.0, 3.0, 5.0, "batch size 128 instead of 32")
SLOWER = Effect(Remedy.BACKEND, Setup("NumPy", 32, took(2e-3)), "", 0.5, 0.4, 0.6)
NONE = Effect(Remedy.STEP, why_not="its step is already compiled")
EFFECTS = [NONE, COMPILED, LARGER, SLOWER]
PLAIN = Findings(BEFORE, EFFECTS)
STEPS_S = {None: 2e-3, Remedy.EPOCH: 0.25e-3, Remedy.BATCH: 2e-3}
FOUND = Findings(BEFORE, EFFECTS, {remedy: StepTime(step_s, 0.1) for remedy, step_s in STEPS_S.items()})


def said(found: Findings) -> str:
    return page.remedies_sentence(found).replace("\u202f", " ")


def test_the_best_predicted_remedy_is_named_before_measuring():
    assert said(PLAIN).startswith("JAX, one call a step, batch size 32: a step is predicted to take 1 ms (")
    assert said(PLAIN).endswith(
        "; the prediction is 31 μs an image. Best of those predicted in your own program: a larger batch, 4\xa0(3–5)"
        " times as fast, with batch size 128 instead of 32."
    )
    assert "No remedy that can be predicted here is predicted to help." in said(Findings(BEFORE, [NONE, SLOWER]))


def test_a_remedy_measured_not_to_help_is_not_recommended():
    in_vain = {None: StepTime(2e-3, 0.1), Remedy.BATCH: StepTime(20e-3, 0.1)}
    assert "your own program: compile the epoch" in said(replace(FOUND, measured=in_vain))


def test_each_remedy_has_a_button_or_says_why_not():
    slow = replace(COMPILED, remedy=Remedy.NETWORKS, setup=replace(BEFORE, step=took(100.0)))
    buttons = {remedy: f"<b>press {remedy.name}</b>" for remedy in Remedy}
    shown = page.remedies_table(replace(FOUND, effects=[*EFFECTS, slow]), buttons)
    assert shown.count("<tr") == 1 + 1 + 5
    assert "press EPOCH" in shown
    assert "press STEP" not in shown
    assert "Its step is already compiled." in shown
    assert "expected at most 3 s" in shown.lower()
    assert "<td>100%</td>" in shown, "0.5 ms predicted, 0.25 ms measured"
    assert "<script>" not in page.remedies_table(replace(PLAIN, before=replace(BEFORE, by="<script>")), {})


@pytest.mark.parametrize("found", [Findings(), PLAIN, FOUND])
def test_the_chart_keeps_its_rows_and_marks_known_gains(found):
    chart = page.gains_chart(found)
    dots = dots_of(chart)
    assert sum(dot["known"] == PREDICTED for dot in dots) == sum(one.setup is not None for one in found.effects)
    assert sum(dot["known"] == MEASURED for dot in dots) == len(found.measured.keys() - {None})
    names = [page.NAMES[one.remedy] for one in found.effects] or list(page.NAMES.values())
    assert chart.spec["layer"][-1]["encoding"]["y"]["sort"] == names, "those of this program"
