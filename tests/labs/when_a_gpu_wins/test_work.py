"""Larger work and costs: every number wears its word, and what is missing is said."""

from dataclasses import replace

import pytest

from lib.labs.when_a_gpu_wins import work
from lib.labs.when_a_gpu_wins.sides import Side, calibrated_side
from lib.labs.when_a_gpu_wins.work import LARGER, Bill, LargerStep, bills, larger_steps, parts_on_demand
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask
from lib.sweeps.experiments.calibration import TrainingWay, Trial
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from lib.timing.prediction.device import read_devices
from lib.timing.prediction.predict import Prediction, predict
from lib.timing.prediction.workload import Way, convolutional, resnet18
from lib.timing.profiling.request import CONVOLUTIONAL, Examination
from tests.sweeps.experiments.test_live_calibration import JAX, run
from tests.timing.prediction.invented import device, workload
from tests.timing.prediction.test_calibration import calibrated

DEVICES = read_devices()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


@pytest.fixture
def here():
    return calibrated_side(TrainingWay(Runtime()), calibrated(0.05))


def measured_of(batch_size, all_sides, store):
    return [one for one in larger_steps(batch_size, all_sides, store) if one.how.startswith("measured; predicted: ")]


def test_larger_work_is_measured_where_it_is_stored_predicted_elsewhere_and_refused_where_nothing_holds_it(store, here):
    small = Side("invented", device(memory_bytes=1e6), Way.STEP)
    found = larger_steps(32, [here, small], store)
    assert len({one.work.name for one in found}) == 3
    assert all("expected a step of at most" in one.how for one in found if one.side is small)
    assert [one.how for one in found if one.side is here] == 3 * ["predicted, unsure"], "far from all calibrated steps"
    subject = TrainingWay(Runtime()).subject(Trial(LARGER, 32)) | {"first_call_s": 0.1}
    store.add(Record.of(Kind.STEP_TIME, subject, Measurement((0.004,), 1, Ended.CAP), versions(Runtime())))
    (measured,) = measured_of(32, [here, small], store)
    assert (measured.work.name, measured.step_s) == (f"784→{LARGER.label}→10", 0.004)
    assert measured_of(8, [here], store) == [], "another batch size"


def test_the_convolutional_network_is_measured_where_its_step_is_stored(store, here):
    task = AnatomyTask(Runtime(), Examination(CONVOLUTIONAL, batch_size=32))
    for seconds in ((0.009, 0.010, 0.5), (0.012, 0.012, 0.001), (0.5, 0.014, 0.001)):
        of = task.subject | {"name": CONVOLUTIONAL, "work": 1.0}
        store.add(Record.of(Kind.ANATOMY, of, Measurement(seconds, 1, Ended.CAP), versions(Runtime())))
    (measured,) = measured_of(32, [here, replace(here, here=None)], store)
    assert (measured.work.name, measured.side) == (convolutional(32).name, here)
    assert isinstance(measured.known, StepTime)
    assert (measured.known.low_s, measured.known.step_s, measured.known.high_s) == (0.010, 0.012, 0.014)


def test_every_number_of_larger_work_wears_its_word():
    slow, card = Side("here", calibrated(0.05), Way.EPOCH), Side("card", DEVICES["l4"], Way.STEP, on_gpu=True)
    step, measured = (resnet18(32), slow), StepTime(0.05, 0.1)
    found = [LargerStep(resnet18(32), card, "predicted", StepTime(0.01, 0.1)), LargerStep(*step, "measured", measured)]
    table = work.larger_table([*found, LargerStep(*step, "no memory")])
    assert ">10\u202fms<" in table
    assert "no memory" in table
    assert table.count(">ResNet-18<") == 1
    assert "ResNet-18: card, 5 times faster than here" in work.larger_sentence(found, 32)


def test_larger_work_is_predicted_while_its_step_is_measured(opened, shown, monkeypatch):
    monkeypatch.setattr(work, "measure_larger", lambda *_: iter(()))
    lab = opened()
    lab.work(lab.controls("larger"), work.measured_here, work.larger)
    parts = shown[-1].partition("<details")[2]
    assert "starting kernels" in parts
    assert parts.count("ResNet-18") == 1, "a heading"
    assert "Unsure: " in shown[-1]


def test_each_part_of_a_step_has_its_seconds_and_its_share():
    both = {"slow": Prediction(2e-3, 1e-3, 3e-3, {"calls": 5e-4, "products": 1.5e-3})}
    both["quick"] = Prediction(1e-3, 1e-3, 1e-3, {"products": 1e-3, "waiting": 0.0})
    text = parts_on_demand({"a <network>": both})
    assert "a &lt;network&gt;" in text
    head, heading, slow, quick = text.split("<tr>")[1:]
    places = [head.index(name) for name in ("calls", "products", "waiting")]
    assert places == sorted(places)
    assert slow.count("<td>") == quick.count("<td>") == 1 + 3
    assert "500\u202fμs (25%)" in slow
    assert "1.5\u202fms (75%)" in slow
    assert quick.count("<td>–</td>") == 2, "what costs nothing and what it does not have"
    assert "colspan" in heading
    unknown = Prediction(1.0, 1.0, 1.0, {})
    assert parts_on_demand({"": {"unknown": unknown}}) == ""
    known = parts_on_demand({"": {"unknown": unknown, "card": predict(workload(Way.OPERATIONS), device())}})
    assert "unknown" not in known
    assert "dispatching operations" in known


def test_costs_are_seconds_times_the_price_and_devices_without_one_say_so():
    all_sides = [Side(one.name, one, Way.STEP) for one in DEVICES.values()]
    found = bills(all_sides, Network(), 32, 3)
    priced = [one for one in found if one.dollars is not None]
    prices = {one.figures["price_per_h"].value for one in DEVICES.values() if "price_per_h" in one.figures}
    assert {one.per_h for one in priced} == prices
    assert found[: len(priced)] == priced
    for one in priced:
        assert one.dollars == pytest.approx(one.epoch.step_s / 3600 * (one.per_h or 0))
        assert one.to_accuracy == pytest.approx(3 * (one.dollars or 0))
        assert one.dated
    assert all(one.to_accuracy is None and not one.dated for one in found if one.dollars is None)
    assert all(one.to_accuracy is None for one in bills(all_sides, Network(), 32, None))


def test_this_machine_has_a_cost_once_it_is_calibrated_and_its_reader_says_the_price(opened, shown, live):
    def draw(**settings):
        lab = opened(**settings)
        lab.answer(lab.controls("cost"), work.cost)

    draw(cost_price="0.5")
    assert "not calibrated yet, so it has no row" in shown[-1]
    assert "your price" not in shown[-1]
    run(live, [JAX])
    draw(cost_price="0.5")
    assert "JAX, one call an epoch, here" in shown[-1]
    assert "0.5 $ an hour (your price)" in shown[-1]
    draw()
    assert "hourly cost above" in shown[-1]


def test_costs_say_what_is_missing():
    epoch = Prediction(3.6, 1.0, 10.0, {})
    found = [Bill("a", epoch, 0.001, 1.0, "2026", 0.003), Bill("b", epoch, 0.002, 2.0, "2026", 0.006)]
    unpriced = Bill("c", epoch, None, None, "")
    table = work.cost_table([*found, unpriced])
    assert "1 $ an hour (2026)" in table
    assert "no price is listed" in table
    counted = work.cost_sentence(found, 0.95, 32, "3 of 3 runs reached it")
    assert "1 $ on a, the cheapest" in counted
    assert "on b 2 times as much" in counted
    assert "3 of 3 runs reached it" in counted
    assert "was not counted on this machine" in work.cost_sentence(found, 0.95, 32, "")
    assert "none is the cheapest" in work.cost_sentence([unpriced], 0.95, 32, "")
